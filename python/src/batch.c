/*
 * batch.c - BatchArena and Batch: shm/ring/batch.h for Python.
 *
 * A Batch is one slot: in a worker while it is collated (FILLING) and as long as a view of it lives there; in the
 * trainer while the loop has it (HELD), or a private copy of one. What counts is a ring_batch, plain C with an atomic
 * count, so that DLPack deleters can drop it from any thread without the GIL.
 */
#include "ring.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/fork_mark.h"
#include "shm/memory/segment.h"
#include "shm/ring/batch.h"

#define SLICE_MS    100                  /* of a wait: in between, signals are checked */
#define WITHOUT_GIL (UINT64_C(64) << 10) /* bytes from which a copy lets other threads run */

struct ring_batch_arena {
    _Atomic uint32_t refs;
    struct mr_batch_arena map;
    _Atomic uint64_t *viewed; /* one a lane: slots of which this process has views, as their worker; its own memory */
    uint64_t *touched;        /* one a slot: bytes that are in this process's page tables */
    uint64_t maker;           /* the mark of the process that made it; 0: another one's */
};

enum batch_state { BATCH_FILLING, BATCH_SENT, BATCH_HELD, BATCH_COPY };

struct ring_batch {
    _Atomic uint32_t refs;
    _Atomic int state; /* enum batch_state */
    struct ring_batch_arena *arena;
    uint32_t lane, slot;
    uint64_t word;
    unsigned char *data;
    uint64_t length; /* HELD, COPY: bytes of the batch; FILLING: bytes given out */
    uint64_t mark;   /* the process that may change the word */
};

typedef struct {
    PyObject_HEAD
    struct ring_batch_arena *arena;
} BatchArena;

typedef struct {
    PyObject_HEAD
    struct ring_batch *batch;
    unsigned long user; /* the thread that is in a method; 0 */
} Batch;

static void arena_unref(struct ring_batch_arena *arena)
{
    if (!arena || atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (mr_fork_mark_is(arena->maker))
        mr_batch_end(&arena->map);
    mr_batch_close(&arena->map);
    free((void *)arena->viewed);
    free(arena->touched);
    free(arena);
}

static struct ring_batch_arena *arena_alloc(void)
{
    struct ring_batch_arena *arena = calloc(1, sizeof *arena);

    if (arena)
        atomic_init(&arena->refs, 1);
    else
        PyErr_NoMemory();
    return arena;
}

/* The tables of a mapped arena; 0, or -1 with an exception. */
static int arena_tables(struct ring_batch_arena *arena)
{
    arena->viewed = calloc(arena->map.lanes, sizeof *arena->viewed);
    arena->touched = calloc((size_t)arena->map.lanes * arena->map.slots, sizeof *arena->touched);
    if (arena->viewed && arena->touched)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* ---- ring_batch ---- */

/* NULL with an exception. */
static struct ring_batch *batch_alloc(struct ring_batch_arena *arena, uint32_t lane, enum batch_state state)
{
    struct ring_batch *batch = calloc(1, sizeof *batch);

    if (!batch) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!(batch->mark = mr_fork_mark())) {
        free(batch);
        ring_raise();
        return NULL;
    }
    atomic_init(&batch->refs, 1);
    atomic_init(&batch->state, state);
    atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);
    batch->arena = arena;
    batch->lane = lane;
    return batch;
}

static struct ring_batch *batch_ref(struct ring_batch *batch)
{
    atomic_fetch_add_explicit(&batch->refs, 1, memory_order_relaxed);
    return batch;
}

/* Any thread, no GIL. In a forked child it changes no word. */
static void batch_unref(void *dropped)
{
    struct ring_batch *batch = dropped;

    if (!batch || atomic_fetch_sub_explicit(&batch->refs, 1, memory_order_acq_rel) != 1)
        return;
    struct ring_batch_arena *arena = batch->arena;
    enum batch_state state = (enum batch_state)atomic_load(&batch->state);
    if (state == BATCH_COPY)
        free(batch->data);
    else if (mr_fork_mark_is(batch->mark)) {
        if (state == BATCH_HELD)
            mr_batch_release(&arena->map, batch->lane, batch->slot, batch->word);
        else
            atomic_fetch_and(&arena->viewed[batch->lane], ~(UINT64_C(1) << batch->slot));
        if (state == BATCH_FILLING)
            mr_batch_withdraw(&arena->map, batch->lane, batch->slot, batch->word);
    }
    free(batch);
    arena_unref(arena);
}

/* The slot's memory up to its extent into this process's page tables: a fault at each page costs more than the copy. */
static void touch(struct ring_batch *batch)
{
    uint64_t *touched = &batch->arena->touched[(size_t)batch->lane * batch->arena->map.slots + batch->slot];
    uint64_t extent = mr_batch_extent(&batch->arena->map, batch->lane, batch->slot);

    if (extent > *touched) {
        mr_segment_populate(batch->data + *touched, extent - *touched);
        *touched = extent;
    }
}

/* A place for so many bytes in a batch that is being filled; -1: there is none. Without the GIL where it takes long. */
static Py_ssize_t batch_place(struct ring_batch *batch, uint64_t bytes)
{
    uint64_t at = (batch->length + MR_BATCH_ALIGN - 1) / MR_BATCH_ALIGN * MR_BATCH_ALIGN;

    if (atomic_load(&batch->state) != BATCH_FILLING || bytes > INT64_MAX - at)
        return -1;
    if (at + bytes > mr_batch_extent(&batch->arena->map, batch->lane, batch->slot)) {
        bool grown;
        Py_BEGIN_ALLOW_THREADS
            grown = mr_batch_grow(&batch->arena->map, batch->lane, batch->slot, at + bytes);
            if (grown)
                touch(batch);
        Py_END_ALLOW_THREADS
        if (!grown)
            return -1;
    }
    batch->length = at + bytes;
    return (Py_ssize_t)at;
}

/* ---- Batch ---- */

/* Takes over batch. */
static PyObject *batch_object(PyTypeObject *arena_type, struct ring_batch *batch)
{
    Batch *self = batch ? PyObject_New(Batch, ring_state_of(arena_type)->batch) : NULL;

    if (!self) {
        batch_unref(batch);
        return NULL;
    }
    self->batch = batch;
    self->user = 0;
    return (PyObject *)self;
}

static void batch_dealloc(Batch *self)
{
    PyTypeObject *type = Py_TYPE(self);

    batch_unref(self->batch);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *batch_alloc_bytes(Batch *self, PyObject *size)
{
    uint64_t bytes;

    if (ring_uint64(size, &bytes) || ring_enter(&self->user, "batch"))
        return NULL;
    Py_ssize_t at = batch_place(self->batch, bytes);
    ring_leave(&self->user);
    return PyLong_FromSsize_t(at);
}

static PyObject *batch_put(Batch *self, PyObject *object)
{
    Py_buffer view;

    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE))
        return NULL;
    if (ring_enter(&self->user, "batch")) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Py_ssize_t at = batch_place(self->batch, (uint64_t)view.len);
    if (at >= 0 && (uint64_t)view.len >= WITHOUT_GIL) {
        Py_BEGIN_ALLOW_THREADS
            memcpy(self->batch->data + at, view.buf, (size_t)view.len);
        Py_END_ALLOW_THREADS
    } else if (at >= 0 && view.len > 0)
        memcpy(self->batch->data + at, view.buf, (size_t)view.len);
    ring_leave(&self->user);
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(at);
}

static PyObject *batch_offset_of(Batch *self, PyObject *args)
{
    unsigned long long address, size;

    if (!PyArg_ParseTuple(args, "KK:offset_of", &address, &size))
        return NULL;
    uint64_t from = (uint64_t)(uintptr_t)self->batch->data;
    bool inside =
        address >= from && address - from <= self->batch->length && size <= self->batch->length - (address - from);
    return PyLong_FromLongLong(inside ? (long long)(address - from) : -1);
}

/* 0, or -1 with an exception. */
static int check_inside(const struct ring_batch *batch, uint64_t at, uint64_t size)
{
    if (at <= batch->length && size <= batch->length - at)
        return 0;
    PyErr_SetString(PyExc_ValueError, "these bytes are not in the batch");
    return -1;
}

static PyObject *batch_capsule(Batch *self, PyObject *args)
{
    unsigned long long at, size;

    if (!PyArg_ParseTuple(args, "KK:capsule", &at, &size) || check_inside(self->batch, at, size))
        return NULL;
    return ring_dlpack_writable(self->batch->data + at, size, batch_ref(self->batch), batch_unref);
}

static PyObject *batch_lease(Batch *self, PyObject *args)
{
    struct ring_batch *batch = self->batch;
    unsigned long long at, size;
    PyObject *of;

    if (!PyArg_ParseTuple(args, "KKO!:lease", &at, &size, &PyTuple_Type, &of) || check_inside(batch, at, size))
        return NULL;
    uint64_t mark = atomic_load(&batch->state) == BATCH_COPY ? 0 : batch->mark;
    struct ring_hold *hold = ring_hold_owned(batch->data + at, size, batch_ref(batch), batch_unref, mark);
    return ring_lease_from(ring_state_of(Py_TYPE(self)), hold, of);
}

static PyObject *batch_publish(Batch *self, PyObject *ignored)
{
    struct ring_batch *batch = self->batch;

    (void)ignored;
    int filling = BATCH_FILLING;
    if (!atomic_compare_exchange_strong(&batch->state, &filling, BATCH_SENT)) {
        PyErr_SetString(PyExc_ValueError, "this batch is not being filled");
        return NULL;
    }
    batch->word = mr_batch_publish(&batch->arena->map, batch->lane, batch->slot, batch->word, batch->length);
    return Py_BuildValue("IK", batch->slot, (unsigned long long)batch->word);
}

static PyObject *batch_withdraw(Batch *self, PyObject *ignored)
{
    struct ring_batch *batch = self->batch;

    (void)ignored;
    if (atomic_load(&batch->state) == BATCH_SENT && mr_fork_mark_is(batch->mark))
        mr_batch_withdraw(&batch->arena->map, batch->lane, batch->slot, batch->word);
    Py_RETURN_NONE;
}

static int batch_getbuffer(Batch *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->batch->data, (Py_ssize_t)self->batch->length, 0, flags);
}

static PyMethodDef batch_methods[] = {
    {"alloc", (PyCFunction)batch_alloc_bytes, METH_O,
     "alloc(size) -> offset: room for so many bytes, aligned to 64; -1: there is none."},
    {"put", (PyCFunction)batch_put, METH_O, "put(buffer) -> offset: its bytes, copied; -1: there is no room."},
    {"offset_of", (PyCFunction)batch_offset_of, METH_VARARGS,
     "offset_of(address, size) -> offset of bytes that lie in what was given out; -1 for others."},
    {"capsule", (PyCFunction)batch_capsule, METH_VARARGS,
     "capsule(offset, size): a DLPack tensor over these bytes, uint8 and writable. It keeps the batch."},
    {"lease", (PyCFunction)batch_lease, METH_VARARGS,
     "lease(offset, size, state) -> Lease: over these bytes, as the one whose _state() this is. It keeps the batch."},
    {"publish", (PyCFunction)batch_publish, METH_NOARGS, "publish() -> (slot, word), for the message to the trainer."},
    {"withdraw", (PyCFunction)batch_withdraw, METH_NOARGS, "What was published, and of which no message was sent."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot batch_slots[] = {
    {Py_tp_new, ring_no_new},
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_methods, batch_methods},
    {Py_bf_getbuffer, batch_getbuffer},
    {Py_tp_doc,
     "The memory of one batch, a writable buffer. It returns when this and all that was made from it is freed."},
    {0, NULL},
};
PyType_Spec ring_batch_spec = {
    .name = "millrace._ring.Batch",
    .basicsize = sizeof(Batch),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = batch_slots,
};

PyObject *ring_memory_limit(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(mr_memory_limit_bytes());
}

/* ---- BatchArena ---- */

/* Takes over arena. */
static PyObject *arena_object(PyTypeObject *type, struct ring_batch_arena *arena)
{
    BatchArena *self = arena_tables(arena) ? NULL : (BatchArena *)PyType_GenericAlloc(type, 0);

    if (!self) {
        arena_unref(arena);
        return NULL;
    }
    self->arena = arena;
    return (PyObject *)self;
}

static PyObject *arena_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lanes", "slots", "limit_bytes", NULL};
    unsigned lanes, slots;
    unsigned long long limit;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIK:BatchArena", names, &lanes, &slots, &limit))
        return NULL;
    struct ring_batch_arena *arena = arena_alloc();
    if (!arena)
        return NULL;
    struct mr_batch_format format = {.lanes = lanes, .slots = slots, .slot_bytes = limit, .limit_bytes = limit};
    if (!(arena->maker = mr_fork_mark()) || mr_batch_new(&arena->map, &format)) {
        free(arena);
        return ring_raise();
    }
    return arena_object(type, arena);
}

static PyObject *arena_attach(PyTypeObject *type, PyObject *number)
{
    int fd = (int)PyLong_AsLong(number);

    if (fd < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "not a descriptor");
        return NULL;
    }
    struct ring_batch_arena *arena = arena_alloc();
    if (!arena) {
        close(fd);
        return NULL;
    }
    if (mr_batch_map(&arena->map, fd)) {
        close(fd);
        free(arena);
        return ring_raise();
    }
    return arena_object(type, arena);
}

static void arena_dealloc(BatchArena *self)
{
    PyTypeObject *type = Py_TYPE(self);

    arena_unref(self->arena);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int check_lane(const BatchArena *self, unsigned lane)
{
    if (lane < self->arena->map.lanes)
        return 0;
    PyErr_Format(PyExc_ValueError, "there is no lane %u: there are %u", lane, self->arena->map.lanes);
    return -1;
}

/* 1, 0 when none was free within timeout_ms, -1 with an exception. */
static int wait_for_slot(struct mr_batch_arena *map, uint32_t lane, _Atomic uint64_t *viewed, unsigned timeout_ms,
                         uint32_t *slot, uint64_t *word)
{
    int64_t from = mr_clock_mono_ns(), until = from + timeout_ms * MR_MILLISECOND_NS;
    uint32_t seen;
    int result = 1;

    while (!mr_batch_reserve_or_want(map, lane, atomic_load(viewed), slot, word, &seen)) {
        Py_BEGIN_ALLOW_THREADS
            mr_batch_wait(map, lane, seen, timeout_ms < SLICE_MS ? timeout_ms : SLICE_MS);
        Py_END_ALLOW_THREADS
        result = PyErr_CheckSignals() ? -1 : mr_clock_mono_ns() < until;
        if (result <= 0)
            break;
    }
    uint64_t waited = (uint64_t)(mr_clock_mono_ns() - from);
    atomic_fetch_add_explicit(&map->lane_lines[lane].waited_ns, waited, memory_order_relaxed);
    return result;
}

static PyObject *arena_reserve(BatchArena *self, PyObject *args)
{
    unsigned lane, timeout_ms;

    if (!PyArg_ParseTuple(args, "II:reserve", &lane, &timeout_ms) || check_lane(self, lane))
        return NULL;
    struct ring_batch *batch = batch_alloc(self->arena, lane, BATCH_COPY); /* of nothing, until it has a slot */
    if (!batch)
        return NULL;
    struct mr_batch_arena *map = &self->arena->map;
    _Atomic uint64_t *viewed = &self->arena->viewed[lane];
    if (!mr_batch_reserve(map, lane, atomic_load(viewed), &batch->slot, &batch->word)) {
        int found = wait_for_slot(map, lane, viewed, timeout_ms, &batch->slot, &batch->word);
        if (found <= 0) {
            batch_unref(batch);
            if (found < 0)
                return NULL;
            Py_RETURN_NONE;
        }
    }
    atomic_fetch_or(viewed, UINT64_C(1) << batch->slot);
    batch->data = mr_batch_memory(map, lane, batch->slot);
    atomic_store(&batch->state, BATCH_FILLING);
    Py_BEGIN_ALLOW_THREADS
        touch(batch);
    Py_END_ALLOW_THREADS
    return batch_object(Py_TYPE(self), batch);
}

static PyObject *arena_viewed(BatchArena *self, PyObject *args)
{
    unsigned lane;

    if (!PyArg_ParseTuple(args, "I:viewed", &lane) || check_lane(self, lane))
        return NULL;
    return PyLong_FromLong(__builtin_popcountll(atomic_load(&self->arena->viewed[lane])));
}

/* The bytes of a batch that is held in private memory, and the slot is free; 0, or -1 without memory. */
static int make_private(struct ring_batch *batch)
{
    unsigned char *copy = malloc(batch->length ? batch->length : 1);

    if (!copy)
        return -1;
    Py_BEGIN_ALLOW_THREADS
        memcpy(copy, batch->data, batch->length);
    Py_END_ALLOW_THREADS
    struct mr_batch_arena *map = &batch->arena->map;
    mr_batch_release(map, batch->lane, batch->slot, batch->word);
    atomic_fetch_add_explicit(&map->lane_lines[batch->lane].copies, 1, memory_order_relaxed);
    batch->data = copy;
    atomic_store(&batch->state, BATCH_COPY);
    return 0;
}

static PyObject *arena_take(BatchArena *self, PyObject *args)
{
    unsigned lane, slot;
    unsigned long long ready;

    if (!PyArg_ParseTuple(args, "IIK:take", &lane, &slot, &ready) || check_lane(self, lane))
        return NULL;
    struct ring_batch *batch = batch_alloc(self->arena, lane, BATCH_COPY);
    if (!batch)
        return NULL;
    struct mr_batch_arena *map = &self->arena->map;
    bool many = mr_batch_holds_many(map, lane);
    if (!mr_batch_take(map, lane, slot, ready, &batch->word, &batch->length)) {
        batch_unref(batch);
        PyErr_SetString(PyExc_ValueError, "the batch is of a worker that has ended");
        return NULL;
    }
    batch->slot = slot;
    batch->data = mr_batch_memory(map, lane, slot);
    atomic_store(&batch->state, BATCH_HELD);
    if (many && make_private(batch)) {
        batch_unref(batch);
        return PyErr_NoMemory();
    }
    return batch_object(Py_TYPE(self), batch);
}

static PyObject *arena_recover(BatchArena *self, PyObject *ignored)
{
    (void)ignored;
    for (uint32_t lane = 0; lane < self->arena->map.lanes; lane++)
        mr_batch_recover(&self->arena->map, lane);
    Py_RETURN_NONE;
}

static PyObject *arena_beside(BatchArena *self, PyObject *args)
{
    unsigned lane, count;

    if (!PyArg_ParseTuple(args, "II:beside", &lane, &count) || check_lane(self, lane))
        return NULL;
    atomic_fetch_add_explicit(&self->arena->map.lane_lines[lane].beside, count, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *arena_counts(BatchArena *self, PyObject *ignored)
{
    struct mr_batch_counts counts = {0};

    (void)ignored;
    mr_batch_count(&self->arena->map, &counts);
    return Py_BuildValue("{sKsKsKsdsKsKsK}", "batches", (unsigned long long)counts.batches, "bytes",
                         (unsigned long long)counts.bytes, "beside", (unsigned long long)counts.beside, "waited_s",
                         (double)counts.waited_ns / 1e9, "copies", (unsigned long long)counts.copies, "held",
                         (unsigned long long)counts.held, "memory_bytes", (unsigned long long)counts.memory_bytes);
}

static PyObject *arena_extents(BatchArena *self, PyObject *ignored)
{
    const struct mr_batch_arena *map = &self->arena->map;
    PyObject *list = PyList_New(0);

    (void)ignored;
    for (uint32_t i = 0; list && i < map->lanes * map->slots; i++) {
        uint64_t extent = mr_batch_extent(map, i / map->slots, i % map->slots);
        PyObject *pair =
            Py_BuildValue("KK", (unsigned long long)(uintptr_t)mr_batch_memory(map, i / map->slots, i % map->slots),
                          (unsigned long long)extent);
        if (!pair || PyList_Append(list, pair))
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *arena_fileno(BatchArena *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromLong(self->arena->map.fd);
}

static PyMethodDef arena_methods[] = {
    {"attach", (PyCFunction)arena_attach, METH_O | METH_CLASS,
     "attach(fd) -> BatchArena: the arena behind a descriptor, which it takes over."},
    {"reserve", (PyCFunction)arena_reserve, METH_VARARGS,
     "reserve(lane, timeout_ms) -> Batch: a slot of this worker's lane; None: none was free in that time."},
    {"viewed", (PyCFunction)arena_viewed, METH_VARARGS,
     "viewed(lane) -> int: of how many of its slots this worker has views itself; none of them is reserved."},
    {"take", (PyCFunction)arena_take, METH_VARARGS,
     "take(lane, slot, word) -> Batch: what a message names. ValueError: its worker has ended, and the lane was "
     "recovered."},
    {"recover", (PyCFunction)arena_recover, METH_NOARGS,
     "Frees what workers that are gone have left. Only when every one of them is."},
    {"beside", (PyCFunction)arena_beside, METH_VARARGS,
     "beside(lane, count): so many tensors, arrays and bytes found no room."},
    {"counts", (PyCFunction)arena_counts, METH_NOARGS, "What went through since the arena was made, and its memory."},
    {"extents", (PyCFunction)arena_extents, METH_NOARGS, "extents() -> [(address, bytes)], of each slot."},
    {"fileno", (PyCFunction)arena_fileno, METH_NOARGS, "The descriptor; it stays the arena's."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot arena_slots[] = {
    {Py_tp_new, arena_new},
    {Py_tp_dealloc, arena_dealloc},
    {Py_tp_methods, arena_methods},
    {Py_tp_doc,
     "BatchArena(lanes, slots, limit_bytes): memory for the batches of a loader, a lane of slots each worker; together "
     "at most limit_bytes."},
    {0, NULL},
};
PyType_Spec ring_batch_arena_spec = {
    .name = "millrace._ring.BatchArena",
    .basicsize = sizeof(BatchArena),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = arena_slots,
};
