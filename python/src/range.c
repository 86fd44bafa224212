/*
 * range.c - RangeReader: the bytes of one large object by offset, copied out of shared memory without the GIL. It opens
 * a lane when it first needs one, and another when it is used elsewhere in the object (shm/ring/range_reader.h).
 */
#include "ring.h"

#include "base/error.h"
#include "shm/memory/fork_mark.h"
#include "shm/ring/range_reader.h"

#define SLICE_MS 100 /* of a wait: in between, signals and the supervisor are checked */

typedef struct {
    PyObject_HEAD
    PyObject *client;
    struct mr_range_reader *reader; /* NULL once closed */
    PyThread_type_lock lock;
    uint64_t mark;      /* of the process that opened it */
    unsigned long user; /* the thread that holds the lock; 0 */
    uint32_t lane;
    uint64_t dataset;
    bool has_lane;
    bool gzip; /* stored so, as the store said with what was read */
    unsigned long long size, generation;
} RangeReader;

PyObject *ring_range_new(struct ring_state *state, PyObject *client, uint64_t dataset, uint64_t block_bytes, bool exact,
                         struct ring_index *index, uint64_t object, const char *label)
{
    struct mr_index_entry entry;
    if (mr_index_get(&index->index, object, &entry, NULL) != 0)
        return ring_raise();
    struct mr_range_source source = {.label = label,
                                     .dataset = mr_dataset_number(dataset),
                                     .object = object,
                                     .size = entry.size,
                                     .block_bytes = block_bytes,
                                     .exact = exact,
                                     .crc32c = entry.crc32c,
                                     .has_crc32c = entry.has_crc32c};
    struct mr_range_reader *reader = mr_range_reader_new(&source);
    if (!reader)
        return ring_raise();
    RangeReader *self = PyObject_New(RangeReader, state->range);
    if (!self) {
        mr_range_reader_destroy(reader);
        return NULL;
    }
    Py_INCREF(client);
    self->client = client;
    self->reader = reader;
    self->lock = PyThread_allocate_lock();
    self->mark = mr_fork_mark();
    self->user = 0;
    self->dataset = dataset;
    self->has_lane = false;
    self->size = entry.size;
    self->generation = entry.version;
    self->gzip = false;
    if (self->lock)
        return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void lane_closed(RangeReader *self)
{
    if (self->has_lane)
        ring_client_lane_closed(self->client, self->lane);
    self->has_lane = false;
}

/* In a forked child both locks may be held by a thread that is not there: nothing is locked or sent. */
static bool is_foreign(const RangeReader *self)
{
    return !mr_fork_mark_is(self->mark);
}

/* In a forked child only our copies are released, and nothing at all if a thread of the parent was reading at the
 * fork. */
static void range_drop(RangeReader *self)
{
    if (is_foreign(self)) {
        self->has_lane = false;
        if (!self->lock || !PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
            self->reader = NULL; /* a thread of the parent was in the middle of a read: it is left as it is */
            return;
        }
        PyThread_release_lock(self->lock);
    }
    mr_range_reader_destroy(self->reader);
    self->reader = NULL;
    lane_closed(self);
}

static void range_dealloc(RangeReader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    range_drop(self);
    if (self->lock)
        PyThread_free_lock(self->lock);
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int refuse_foreign(void)
{
    PyErr_SetString(PyExc_ValueError, "this reader belongs to the process before the fork: open it in this one");
    return -1;
}

/* What only happens while we wait: 0 to continue, -1 with an exception. */
static int check_interrupts(RangeReader *self, struct mr_silence *wait)
{
    if (PyErr_CheckSignals())
        return -1;
    if (is_foreign(self)) /* a handler has forked, and this is the child */
        return refuse_foreign();
    return ring_client_check(self->client, self->dataset, wait);
}

static int range_open_lane(RangeReader *self)
{
    lane_closed(self);
    struct mr_consumer *consumer;
    if (ring_client_open_range_lane(self->client, self->dataset, MR_RANGE_LANE_WINDOW, &consumer, &self->lane) != 0)
        return -1;
    self->has_lane = true;
    mr_range_reader_give(self->reader, consumer);
    return 0;
}

/* All of [offset, offset + length) that there is: how much, or -1 with an exception. Under the lock. */
static Py_ssize_t fill(RangeReader *self, uint64_t offset, char *dest, uint64_t length)
{
    uint64_t done = 0, got;
    enum mr_range_result result = MR_RANGE_WAIT;
    struct mr_silence wait = {0};
    if (length <= RING_SMALL) {
        result = mr_range_reader_read(self->reader, offset, dest, length, 0, &got);
        done = got;
    }
    while (result != MR_RANGE_OK) {
        if (result == MR_RANGE_FAILED) {
            ring_raise();
            return -1;
        }
        if (result == MR_RANGE_LANE && range_open_lane(self) != 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS
            result = mr_range_reader_read(self->reader, offset + done, dest + done, length - done, SLICE_MS, &got);
        Py_END_ALLOW_THREADS
        done += got;
        if (got > 0)
            wait = (struct mr_silence){0};
        if (result == MR_RANGE_WAIT && check_interrupts(self, &wait) != 0)
            return -1;
    }
    self->gzip = mr_range_reader_is_gzip(self->reader);
    return (Py_ssize_t)done;
}

/* Threads take turns. A signal handler or finaliser of the thread whose turn it is would wait for itself: -1 with an
 * exception. */
static int range_enter(RangeReader *self)
{
    if (ring_refuse_reentry(self->user, "reader"))
        return -1;
    int got;
    while ((got = ring_lock_or_signal(self->lock, SLICE_MS)) == 0) /* another thread reads, from a silent store? */
        if (is_foreign(self))
            return refuse_foreign();
    if (got < 0)
        return -1;
    self->user = PyThread_get_thread_ident();
    return 0;
}

static void leave(RangeReader *self)
{
    self->user = 0;
    PyThread_release_lock(self->lock);
}

static Py_ssize_t locked_fill(RangeReader *self, uint64_t offset, char *dest, uint64_t length)
{
    Py_ssize_t got = -1;
    if (is_foreign(self))
        return refuse_foreign();
    if (range_enter(self))
        return -1;
    if (self->reader)
        got = fill(self, offset, dest, length);
    else
        PyErr_SetString(PyExc_ValueError, "I/O operation on closed file");
    leave(self);
    return got;
}

static PyObject *range_read_into(RangeReader *self, PyObject *args)
{
    unsigned long long offset;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "w*K:read_into", &view, &offset))
        return NULL;
    Py_ssize_t got = locked_fill(self, offset, view.buf, (uint64_t)view.len);
    PyBuffer_Release(&view);
    return got < 0 ? NULL : PyLong_FromSsize_t(got);
}

static PyObject *range_read(RangeReader *self, PyObject *args)
{
    unsigned long long length, offset;
    if (!PyArg_ParseTuple(args, "KK:read", &length, &offset))
        return NULL;
    unsigned long long left = offset < self->size ? self->size - offset : 0;
    if (length > left)
        length = left;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (!bytes)
        return NULL;
    Py_ssize_t got = locked_fill(self, offset, PyBytes_AS_STRING(bytes), length);
    if (got < 0)
        Py_CLEAR(bytes);
    else if ((unsigned long long)got != length)
        _PyBytes_Resize(&bytes, got);
    return bytes;
}

static PyObject *range_close(RangeReader *self, PyObject *ignored)
{
    (void)ignored;
    if (is_foreign(self)) {
        range_drop(self);
        Py_RETURN_NONE;
    }
    if (range_enter(self))
        return NULL;
    range_drop(self);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *range_get_size(RangeReader *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->size);
}

static PyObject *range_get_generation(RangeReader *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->generation);
}

static PyObject *range_get_encoding(RangeReader *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(self->gzip ? "gzip" : "");
}

static PyMethodDef range_methods[] = {
    {"read", (PyCFunction)range_read, METH_VARARGS, "read(length, offset) -> bytes; fewer only at the object's end."},
    {"read_into", (PyCFunction)range_read_into, METH_VARARGS,
     "read_into(buffer, offset) -> int: fills it, or as much of it as there is."},
    {"close", (PyCFunction)range_close, METH_NOARGS, "Releases all memory. May be called twice."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef range_getset[] = {
    {"size", (getter)range_get_size, NULL, "bytes of the object", NULL},
    {"generation", (getter)range_get_generation, NULL, "the version that is read", NULL},
    {"encoding", (getter)range_get_encoding, NULL,
     "\"gzip\" where the object is stored with Content-Encoding: gzip, once bytes have been read; else \"\"", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot range_slots[] = {
    {Py_tp_new, ring_no_new},
    {Py_tp_dealloc, range_dealloc},
    {Py_tp_methods, range_methods},
    {Py_tp_getset, range_getset},
    {Py_tp_doc, "The bytes of one large object. Threads take turns. Client.range_reader makes it."},
    {0, NULL},
};
PyType_Spec ring_range_spec = {
    .name = "millrace._ring.RangeReader",
    .basicsize = sizeof(RangeReader),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = range_slots,
};
