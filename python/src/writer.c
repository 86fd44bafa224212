/*
 * writer.c - Writer: one object on its way to the store, through a checkpoint lane. Bytes are copied before write
 * returns; waits and large copies are done without the GIL. For one thread at a time.
 */
#include "ring.h"

#include "base/clock.h"
#include "base/error.h"
#include "shm/control/ckpt_stream.h"
#include "shm/memory/fork_mark.h"

#define SLICE_MS   100 /* of a wait: in between, signals and the supervisor are checked */
#define WHAT       "checkpoint writer"
#define OUTCOME_MS 10000 /* within which an aborted lane's worker stores the cause */

typedef struct {
    PyObject_HEAD
    PyObject *client;
    struct mr_ckpt_writer writer;
    struct mr_ckpt_stream stream;
    uint64_t mark;      /* of the process that opened it */
    unsigned long user; /* the thread that is in a method; 0 */
    bool sealed, aborted, closed;
    uint64_t stored; /* last known, once it is closed */
} Writer;

static bool is_foreign(const Writer *self)
{
    return !mr_fork_mark_is(self->mark);
}

/* What was not sealed is aborted, so no object appears. */
static void close_writer(Writer *self)
{
    if (self->closed)
        return;
    self->closed = true;
    if (is_foreign(self))
        return; /* the lane stays mapped: a child must touch neither the parent's memory nor its threads */
    if (!self->sealed && !self->aborted)
        mr_ckpt_stream_abort(&self->stream);
    mr_ckpt_stream_close(&self->stream);
    self->stored = mr_ckpt_stream_stored(&self->stream);
    ring_client_writer_closed(self->client, &self->writer);
}

PyObject *ring_writer_new(struct ring_state *state, PyObject *client, const struct mr_ckpt_writer *opened)
{
    Writer *self = PyObject_New(Writer, state->writer);
    if (!self) {
        struct mr_ckpt_writer writer = *opened;
        mr_ckpt_part_abort(&writer.lane);
        mr_wake_producer(writer.line, writer.eventfd);
        ring_client_writer_closed(client, &writer);
        return NULL;
    }
    Py_INCREF(client);
    self->client = client;
    self->writer = *opened;
    self->sealed = self->aborted = self->closed = false;
    self->user = 0;
    self->stored = 0;
    mr_ckpt_stream_init(&self->stream, &self->writer);
    self->mark = mr_fork_mark();
    if (self->mark)
        return (PyObject *)self;
    Py_DECREF(self);
    return ring_raise();
}

static bool is_saved(const Writer *self)
{
    uint32_t code, crc32c;
    uint64_t generation;
    return mr_ckpt_part_result(&self->writer.lane, &code, NULL, &generation, &crc32c) == MR_CKPT_PART_DONE;
}

/* The outcome of a promise has not been read here, and will not be: the supervisor gets no CLOSE_WRITER, so that it
 * counts a failure among the promises that were not kept. */
static void leave_promise(Writer *self)
{
    self->closed = true;
    mr_ckpt_stream_close(&self->stream);
    ring_client_writer_left(self->client, &self->writer);
}

/* A sealed checkpoint outlives its writer. An error that is being raised survives the clean-up. */
static void writer_dealloc(Writer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject *type_of_error, *value, *traceback;
    PyErr_Fetch(&type_of_error, &value, &traceback);
    if (self->sealed && !self->closed && !is_foreign(self) && !is_saved(self))
        leave_promise(self);
    close_writer(self);
    PyErr_Restore(type_of_error, value, traceback);
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int refuse_foreign(void)
{
    PyErr_SetString(PyExc_ValueError, "this checkpoint writer belongs to the process before the fork");
    return -1;
}

/* For a method, which calls leave at its end: 0, or -1 with an exception. */
static int writer_enter(Writer *self)
{
    if (is_foreign(self))
        refuse_foreign();
    else if (self->closed)
        PyErr_SetString(PyExc_ValueError, "this checkpoint writer is closed");
    else
        return ring_enter(&self->user, WHAT);
    return -1;
}

static void leave(Writer *self)
{
    ring_leave(&self->user);
}

/* For bytes and the promise: as enter, and neither is done yet. */
static int enter_open(Writer *self)
{
    if (writer_enter(self))
        return -1;
    if (!self->sealed && !self->aborted)
        return 0;
    leave(self);
    PyErr_SetString(PyExc_ValueError,
                    self->sealed ? "this checkpoint writer is closed" : "this checkpoint writer was aborted");
    return -1;
}

static void abort_stream(Writer *self)
{
    if (!is_foreign(self)) /* in a child that a handler has forked in the middle of a call it is the parent's */
        mr_ckpt_stream_abort(&self->stream);
    self->aborted = true;
}

/* Signal handlers; one may have forked, and this may be the child. */
static int check_signals(Writer *self)
{
    if (PyErr_CheckSignals())
        return -1;
    return is_foreign(self) ? refuse_foreign() : 0;
}

/* A wait of one slice, then what only happens while we wait, signal handlers among it: they find the object in use.
 * 0 to try again, -1 with an exception. */
static int wait_slice(Writer *self, enum mr_wake_result (*wait)(struct mr_ckpt_stream *, unsigned),
                      struct mr_silence *silence)
{
    enum mr_wake_result result;
    Py_BEGIN_ALLOW_THREADS
        result = wait(&self->stream, SLICE_MS);
    Py_END_ALLOW_THREADS
    if (check_signals(self))
        return -1;
    if (result != MR_WAKE_CHANGED)
        return ring_client_check_alive(self->client, silence);
    *silence = (struct mr_silence){0};
    return 0;
}

/* The upload has failed, or it was aborted: raises why. Always NULL. */
static PyObject *raise_outcome(Writer *self)
{
    int64_t until_ns = mr_clock_mono_ns() + OUTCOME_MS * MR_MILLISECOND_NS;
    struct mr_silence silence = {0};
    for (;;) {
        uint32_t code, crc32c;
        uint64_t generation;
        char text[MR_CKPT_PART_TEXT];
        enum mr_ckpt_part_outcome outcome = mr_ckpt_part_result(&self->writer.lane, &code, text, &generation, &crc32c);
        if (outcome == MR_CKPT_PART_UNDECIDED && mr_clock_mono_ns() < until_ns) {
            if (wait_slice(self, mr_ckpt_stream_wait_outcome, &silence))
                return NULL;
            continue;
        }
        if (outcome == MR_CKPT_PART_UNDECIDED)
            mr_error_set(MR_E_GONE, "the upload was aborted, and its write worker has not stored why");
        else
            mr_error_set(code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_GONE, "%s", text);
        return ring_raise();
    }
}

/* Blocks while all parts are in use. Returns -1 with an exception after a signal handler that raises, or once the
 * checkpoint has ended. */
static int write_all(Writer *self, const unsigned char *data, size_t length)
{
    struct mr_silence silence = {0};
    for (;;) {
        size_t taken;
        enum mr_push got;
        Py_BEGIN_ALLOW_THREADS
            got = mr_ckpt_stream_push(&self->stream, data, length, &taken);
        Py_END_ALLOW_THREADS
        data += taken;
        length -= taken;
        if (got == MR_PUSH_DONE)
            return 0;
        if (got == MR_PUSH_ENDED)
            raise_outcome(self);
        else if (got == MR_PUSH_TOO_MANY)
            ring_raise();
        else if (got == MR_PUSH_MORE ? !check_signals(self) : !wait_slice(self, mr_ckpt_stream_wait, &silence))
            continue;
        return -1;
    }
}

static PyObject *write_buffer(Writer *self, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) {
        if (PyObject_CheckBuffer(data))
            PyErr_SetString(PyExc_BufferError, "the bytes to write do not lie side by side: give bytes(view) of a "
                                               "memoryview, numpy.ascontiguousarray(array) of an array");
        return NULL;
    }
    size_t length = (size_t)view.len;
    int rc = 0;
    if (length > RING_SMALL || mr_ckpt_stream_has_ended(&self->stream) ||
        !mr_ckpt_stream_put(&self->stream, view.buf, length)) {
        rc = write_all(self, view.buf, length);
        if (rc) /* a part of these bytes may be there: what follows them must not make an object of it */
            abort_stream(self);
    }
    PyBuffer_Release(&view);
    return rc ? NULL : PyLong_FromSize_t(length);
}

static PyObject *writer_write(Writer *self, PyObject *data)
{
    if (enter_open(self))
        return NULL;
    PyObject *result = write_buffer(self, data);
    leave(self);
    return result;
}

static PyObject *seal(Writer *self)
{
    struct mr_silence silence = {0};
    if (ring_client_check_alive(self->client, &silence)) { /* no process may be left that would see the promise */
        abort_stream(self);
        return NULL;
    }
    enum mr_fate fate;
    while ((fate = mr_ckpt_stream_seal(&self->stream)) == MR_FATE_OPEN) {
        if (wait_slice(self, mr_ckpt_stream_wait_worker, &silence)) {
            abort_stream(self);
            return NULL;
        }
    }
    if (fate == MR_FATE_SEALED) {
        self->sealed = true;
        mr_ckpt_stream_close(&self->stream);
        Py_RETURN_NONE;
    }
    raise_outcome(self);
    abort_stream(self);
    return NULL;
}

static PyObject *writer_seal(Writer *self, PyObject *ignored)
{
    (void)ignored;
    if (enter_open(self))
        return NULL;
    PyObject *result = seal(self);
    leave(self);
    return result;
}

static PyObject *outcome_now(Writer *self)
{
    uint32_t code, crc32c;
    uint64_t generation;
    char text[MR_CKPT_PART_TEXT];
    enum mr_ckpt_part_outcome outcome = mr_ckpt_part_result(&self->writer.lane, &code, text, &generation, &crc32c);
    if (outcome == MR_CKPT_PART_UNDECIDED)
        Py_RETURN_NONE;
    PyObject *reason = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
    if (!reason)
        return NULL;
    return Py_BuildValue("OINKI", outcome == MR_CKPT_PART_DONE ? Py_True : Py_False, code, reason,
                         (unsigned long long)generation, crc32c);
}

static PyObject *writer_outcome(Writer *self, PyObject *args)
{
    unsigned timeout_ms = 0;
    if (!PyArg_ParseTuple(args, "|I:outcome", &timeout_ms) || writer_enter(self))
        return NULL;
    if (timeout_ms > 0) {
        Py_BEGIN_ALLOW_THREADS(void)
            mr_ckpt_stream_wait_outcome(&self->stream, timeout_ms);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = outcome_now(self);
    leave(self);
    return result;
}

static PyObject *writer_abort(Writer *self, PyObject *ignored)
{
    (void)ignored;
    if (writer_enter(self))
        return NULL;
    if (!self->sealed)
        abort_stream(self);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *writer_close(Writer *self, PyObject *ignored)
{
    (void)ignored;
    if (!is_foreign(self) && ring_enter(&self->user, WHAT))
        return NULL; /* in a forked child the thread that was in it does not exist */
    close_writer(self);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *writer_stored(Writer *self, PyObject *ignored)
{
    (void)ignored;
    uint64_t stored = self->closed || is_foreign(self) ? self->stored : mr_ckpt_stream_stored(&self->stream);
    return PyLong_FromUnsignedLongLong(stored);
}

static PyObject *writer_get_bytes(Writer *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->stream.bytes);
}

static PyObject *writer_get_aborted(Writer *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self->aborted);
}

static PyObject *writer_get_sealed(Writer *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self->sealed);
}

static PyObject *writer_get_memory(Writer *self, void *closure)
{
    (void)closure;
    const struct mr_ckpt_lane *lane = &self->writer.lane;
    if (self->closed)
        return Py_BuildValue("IK", 0u, 0ull);
    return Py_BuildValue("IK", lane->slots, (unsigned long long)lane->part_bytes);
}

static PyObject *writer_get_drain_s(Writer *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(self->writer.drain_s);
}

static PyMethodDef writer_methods[] = {
    {"write", (PyCFunction)writer_write, METH_O,
     "write(buffer) -> int: copies all of it. Waits for a free part; raises the failure of the upload."},
    {"seal", (PyCFunction)writer_seal, METH_NOARGS,
     "seal(): publishes the rest and promises the object, which is uploaded from here on whatever happens to us. Waits "
     "for the write worker to take the writer up, where it has not done so yet."},
    {"outcome", (PyCFunction)writer_outcome, METH_VARARGS,
     "outcome(timeout_ms=0) -> (done, code, text, generation, crc32c), or None while it is not decided."},
    {"abort", (PyCFunction)writer_abort, METH_NOARGS, "abort(): no object shall appear. Nothing once it is sealed."},
    {"close", (PyCFunction)writer_close, METH_NOARGS,
     "Gives the memory back; aborts what is not sealed. May be called twice."},
    {"stored", (PyCFunction)writer_stored, METH_NOARGS, "stored() -> int: bytes that the store has confirmed."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef writer_getset[] = {
    {"bytes", (getter)writer_get_bytes, NULL, "bytes that were written", NULL},
    {"sealed", (getter)writer_get_sealed, NULL, "the checkpoint is promised", NULL},
    {"aborted", (getter)writer_get_aborted, NULL, "by abort(), or by a call that failed: there will be no object",
     NULL},
    {"memory", (getter)writer_get_memory, NULL, "(parts, bytes of a part) in shared memory", NULL},
    {"drain_s", (getter)writer_get_drain_s, NULL, "how long a promised save may take after the supervisor", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot writer_slots[] = {
    {Py_tp_new, ring_no_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {Py_tp_getset, writer_getset},
    {Py_tp_doc, "One object on its way to the store; for one thread at a time. Client.open_writer makes it."},
    {0, NULL},
};
PyType_Spec ring_writer_spec = {
    .name = "millrace._ring.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = writer_slots,
};
