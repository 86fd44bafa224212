/*
 * ring.h - what the files of the extension millrace._ring share: its types, its module state, errors.
 *
 * Ownership in one line: a Lease owns a ring_hold; a ring_hold owns the HELD ticket (or a private copy) and a
 * reference to the ring_index; both are plain C with atomic counts, so that a DLPack deleter can drop them from any
 * thread without the GIL.
 */
#ifndef RING_H
#define RING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/control/client.h"
#include "shm/index/index.h"
#include "shm/index/plan.h"
#include "shm/ring/consumer.h"

#if PY_VERSION_HEX < 0x030a0000
static inline PyObject *Py_NewRef(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#endif

struct ring_state { /* module state */
    PyTypeObject *client, *opened, *index, *plan, *lane, *lease, *failure, *writer, *range, *batch, *batch_arena,
        *meter;
};
/* The state of the module that made this type: borrowed. */
struct ring_state *ring_state_of(PyTypeObject *type);
/* A converter ("O&"): *out, a new bytes, is a name as a store or file system has it, also where it is not UTF-8. */
int ring_name_bytes(PyObject *text, void *out);
/* Raises the Python exception of the thread's mr_error (millrace._errors.from_code). Always NULL. */
PyObject *ring_raise(void);
/* A warning in the log of the Python package; "": nothing. An exception that is set stays as it is. */
void ring_warn(const char *text);
/* tp_new of types that only the module makes. */
PyObject *ring_no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
/*
 * Takes a lock without ever waiting for it while holding the GIL. false: it is held by a thread that will not continue,
 * as the interpreter is ending, which stops daemon threads where they next want the GIL; what it guards will not be
 * used again.
 */
bool ring_lock(PyThread_type_lock lock);
/* The same, where the one who has it may wait for long: for slice_ms, and then signal handlers run. 1: it is ours; 0: ask
 * again, unless this is a child now that a handler has forked; -1 with a handler's exception, or ring_refuse_ending's. */
int ring_lock_or_signal(PyThread_type_lock lock, unsigned slice_ms);
/* The exception of a method that did not get it. -1. */
int ring_refuse_ending(void);
/*
 * Objects for one thread at a time. A method enters before anything that may run other code (a wait, which calls signal
 * handlers; a buffer; an allocation, which calls finalisers) and leaves at its end, so that whatever calls back into
 * the same object meanwhile gets an exception. user: the object's, 0 while no call is in it. what: "checkpoint writer".
 * 0, or -1 (RuntimeError).
 */
int ring_enter(unsigned long *user, const char *what);
void ring_leave(unsigned long *user);
/* As ring_enter for objects whose threads take turns (a lock): only a call from inside this thread's own is refused. */
int ring_refuse_reentry(unsigned long user, const char *what);
/* An int of 64 or 32 bits without a sign: 0, or -1 with an exception. */
int ring_uint64(PyObject *object, uint64_t *value);
int ring_uint32(PyObject *object, uint32_t *value);

/* ---- index.c ---- */

/* A mapped index image that names outlive its Python object with. */
struct ring_index {
    _Atomic uint32_t refs;
    struct mr_index index;
};
struct ring_index *ring_index_ref(struct ring_index *index);
void ring_index_unref(struct ring_index *index);
/* The Index over fd (stays the caller's): a new reference, or NULL with an exception. */
PyObject *ring_index_from_fd(struct ring_state *state, int fd);
/* The ring_index of an Index, borrowed; NULL with TypeError for anything else. */
struct ring_index *ring_index_of(struct ring_state *state, PyObject *object);
/* A file name as str (surrogateescape keeps bytes that are not UTF-8). */
PyObject *ring_name(const struct mr_index *index, uint64_t object);
extern PyType_Spec ring_index_spec;

/* The URI of the object that holds an entry, as str; NULL with an exception. */
PyObject *ring_url(const struct mr_index *index, uint64_t object);

/* ---- sample.c ---- */

/* members(buffer) -> (key, {suffix: (offset, size)}): the module's function. */
PyObject *ring_members(PyObject *module, PyObject *buffer);

/* ---- plan.c ---- */

const struct mr_plan *ring_plan_of(struct ring_state *state, PyObject *object);
extern PyType_Spec ring_plan_spec;

/* ---- hold.c: what keeps the bytes of one delivery ---- */

struct ring_hold {
    _Atomic uint32_t refs;
    struct mr_consumer *consumer; /* the ticket's; NULL: data is the owner's, or a private copy, freed with the hold */
    void *owner;
    void (*drop)(void *owner);
    uint64_t owner_mark; /* the process that may use what the owner has; 0: any process that has it */
    void *data;          /* never NULL */
    uint64_t length;
    uint64_t word;
    uint32_t slot;
    uint32_t watch;           /* entry in fault.c's table, or RING_UNWATCHED */
    struct ring_index *index; /* NULL: the owner's bytes are of none */
    uint64_t object;
};
/* Takes over what the delivery holds; on NULL (no memory, no exception set) it has been dropped. */
struct ring_hold *ring_hold_new(struct mr_consumer *consumer, struct ring_index *index,
                                const struct mr_delivery *delivery);
#define RING_SMALL ((size_t)64 << 10) /* bytes that are copied with the GIL held: giving it away costs more */
/* The same bytes in private memory; NULL without memory (no exception set). */
struct ring_hold *ring_hold_copy(const struct ring_hold *hold);
/* A copy of these bytes, of no index. */
struct ring_hold *ring_hold_private(const void *data, uint64_t length);
/* Bytes of an owner, which `drop` ends in whatever thread, without the GIL. It is taken over; NULL without memory (no
 * exception set), the owner dropped. */
struct ring_hold *ring_hold_owned(void *data, uint64_t length, void *owner, void (*drop)(void *owner), uint64_t mark);
struct ring_hold *ring_hold_ref(struct ring_hold *hold);
/* Any thread, no GIL. In a forked child it changes no word. */
void ring_hold_unref(struct ring_hold *hold);
/* In a child forked since: the parent may release the bytes at any time. */
bool ring_hold_is_foreign(const struct ring_hold *hold);

/* ---- fault.c: a write into shared memory gets a message before the process dies ---- */

#define RING_UNWATCHED UINT32_MAX
/* Installs the SIGSEGV handler, once a process, in front of the one that is there. */
void ring_fault_install(void);
/* Puts new in place of old among the arenas that the handler knows (NULL: nothing). Their owner keeps them alive. */
void ring_fault_swap_views(struct mr_views *old, struct mr_views *new);
uint32_t ring_fault_watch(const struct ring_hold *hold);
void ring_fault_unwatch(uint32_t watch);

/* ---- lease.c, dlpack.c ---- */

#define RING_REPLACES ((uint64_t)1 << 63) /* in a cookie, beside the position: fed in the place of what failed */

/* A Lease that takes over hold (dropped on failure; NULL: there was no memory for it). */
PyObject *ring_lease_new(struct ring_state *state, struct ring_hold *hold, const struct mr_delivery *delivery,
                         bool writable);
/* The same of what another one's `_state()` says. */
PyObject *ring_lease_from(struct ring_state *state, struct ring_hold *hold, PyObject *of);
/* The bytes of a Lease for a call that keeps no pointer, which count as read and not as handed out: a new reference,
 * and their number. NULL without an exception: the object is no Lease; with one: its bytes may not be read. */
struct ring_hold *ring_lease_hold(struct ring_state *state, PyObject *object, uint64_t *length);
/* lease_of(buffer, state) -> Lease: the module's function. */
PyObject *ring_lease_of(PyObject *module, PyObject *args);
/* __dlpack__ of the bytes in hold; read_only without a copy. */
PyObject *ring_dlpack(struct ring_hold *hold, bool read_only, PyObject *args, PyObject *kwargs);
/* The old form of a capsule over bytes that may be written: one dimension, uint8. Takes over owner, which `drop` ends
 * in whatever thread, without the GIL. */
PyObject *ring_dlpack_writable(void *data, uint64_t length, void *owner, void (*drop)(void *owner));
extern PyType_Spec ring_lease_spec;

/* ---- batch.c ---- */

extern PyType_Spec ring_batch_spec, ring_batch_arena_spec;
/* memory_limit_bytes(): the module's function. */
PyObject *ring_memory_limit(PyObject *module, PyObject *ignored);

/* ---- meter.c ---- */

extern PyType_Spec ring_meter_spec;
/* A millrace._timing.Times: false with an exception where it is none. */
struct mr_meter_times;
bool ring_meter_times(PyObject *times, struct mr_meter_times *made);
/* delay_ns(): the module's function. */
PyObject *ring_delay_ns(PyObject *module, PyObject *ignored);

/* ---- trace.c: the module's functions ---- */

PyObject *ring_tracing(PyObject *module, PyObject *ignored);
PyObject *ring_trace(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *ring_trace_made(PyObject *module, PyObject *times);

/* ---- lane.c ---- */

/* A Lane over an open lane, which it takes over; NULL with an exception, the lane closed and unmapped. */
PyObject *ring_lane_new(struct ring_state *state, PyObject *client, struct mr_views *views, struct mr_lane *lane,
                        uint64_t dataset, struct ring_index *index, bool writable, uint32_t request_flags, long parent);
extern PyType_Spec ring_lane_spec;
extern PyStructSequence_Desc ring_failure_desc;

/* ---- range.c ---- */

/* A RangeReader of one object; NULL with an exception. */
PyObject *ring_range_new(struct ring_state *state, PyObject *client, uint64_t dataset, uint64_t block_bytes, bool exact,
                         struct ring_index *index, uint64_t object, const char *label);
extern PyType_Spec ring_range_spec;

/* ---- opened.c ---- */

/* An Opened of this client that holds nothing: 0, or -1 with an exception. */
int ring_opened_check(struct ring_state *state, PyObject *client, PyObject *object);
/* It holds the data set from now on. */
void ring_opened_put(PyObject *object, uint64_t dataset);
extern PyType_Spec ring_opened_spec;

/* ---- connection.c, client.c ---- */

/* A data set that is to be closed once, in a list; malloc'ed. */
struct ring_unused {
    struct ring_unused *next;
    uint64_t dataset;
};
/* It is closed before the next one is opened. Takes it over, and no lock. With the GIL. */
void ring_client_unused(PyObject *client, struct ring_unused *unused);
/* Closes a data set now; errors do not matter. Takes the lock. */
void ring_client_dataset_closed(PyObject *client, uint64_t dataset);

/* Checks the supervisor and the data set, from a wait whose silence is zeroed before it and after each progress: 0, or
 * -1 with an exception. Does nothing while another thread has a call. */
int ring_client_check(PyObject *client, uint64_t dataset, struct mr_silence *wait);
/* Notifies the supervisor that the lane is closed; errors do not matter. */
void ring_client_lane_closed(PyObject *client, uint32_t lane);
/* The same without a data set. */
int ring_client_check_alive(PyObject *client, struct mr_silence *wait);
/* The end of a Writer: notifies the supervisor and unmaps the lane; errors do not matter. Takes the lock. */
void ring_client_writer_closed(PyObject *client, struct mr_ckpt_writer *writer);
/* The same without notifying the supervisor. */
void ring_client_writer_left(PyObject *client, struct mr_ckpt_writer *writer);
/* A lane for a RangeReader: 0 with its consumer and number, or -1 with an exception. */
int ring_client_open_range_lane(PyObject *client, uint64_t dataset, uint32_t window, struct mr_consumer **consumer,
                                uint32_t *lane);
/* What the supervisor counts of its node: 0, or -1 with an exception (no Client, or a closed one). */
int ring_client_node(struct ring_state *state, PyObject *client, struct mr_node *node);
extern PyType_Spec ring_client_spec;

/* ---- writer.c ---- */

/* A Writer over an opened checkpoint lane, which it takes over; NULL with an exception, the lane aborted and closed. */
PyObject *ring_writer_new(struct ring_state *state, PyObject *client, const struct mr_ckpt_writer *opened);
extern PyType_Spec ring_writer_spec;

#endif
