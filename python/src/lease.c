/*
 * lease.c - Lease: a read-only buffer over one delivered object, and the consumer's hold on its memory.
 *
 * torch.frombuffer and numpy keep a pointer after the buffer's export count is back to 0, but they keep the Lease
 * alive: so memory is given back when the Lease dies (or the last DLPack tensor of it), never when a buffer is
 * released.
 *
 * A Lease that came in a batch has its bytes there, and knows its names itself: the process has no index of them.
 */
#include "ring.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    struct ring_hold *hold;   /* NULL once released */
    struct ring_index *index; /* NULL: name and url are */
    PyObject *name, *url;
    uint64_t object, size, generation;
    uint64_t cookie; /* what it was fed with: the position, and RING_REPLACES */
    uint32_t crc32c;
    bool gzip;
    bool writable; /* a private copy that may be changed */
    bool exported; /* a pointer may have been kept: only dealloc may release it */
    bool released;
    PyObject *weak;
} Lease;

/* Takes over hold, NULL where there was no memory for it. */
static Lease *lease_alloc(struct ring_state *state, struct ring_hold *hold)
{
    if (!hold) {
        PyErr_NoMemory();
        return NULL;
    }
    Lease *self = PyObject_New(Lease, state->lease);
    if (!self) {
        ring_hold_unref(hold);
        return NULL;
    }
    self->hold = hold;
    self->size = hold->length;
    self->index = NULL;
    self->name = self->url = self->weak = NULL;
    self->exported = self->released = false;
    return self;
}

PyObject *ring_lease_new(struct ring_state *state, struct ring_hold *hold, const struct mr_delivery *delivery,
                         bool writable)
{
    Lease *self = lease_alloc(state, hold);
    if (!self)
        return NULL;
    self->index = ring_index_ref(hold->index);
    self->object = hold->object;
    self->cookie = delivery->sample.cookie;
    self->generation = delivery->generation;
    self->crc32c = delivery->crc32c;
    self->gzip = delivery->desc_flags & MR_DESC_GZIP;
    self->writable = writable;
    return (PyObject *)self;
}

#define STATE_FORMAT "UUKIKKpp:Lease" /* name, url, generation, crc32c, index, position, gzip, writable */

PyObject *ring_lease_from(struct ring_state *state, struct ring_hold *hold, PyObject *of)
{
    Lease *self = lease_alloc(state, hold);
    PyObject *name, *url;
    unsigned long long generation, object, position;
    unsigned crc32c;
    int gzip, writable;
    if (!self)
        return NULL;
    if (!PyArg_ParseTuple(of, STATE_FORMAT, &name, &url, &generation, &crc32c, &object, &position, &gzip, &writable)) {
        Py_DECREF(self);
        return NULL;
    }
    self->name = Py_NewRef(name);
    self->url = Py_NewRef(url);
    self->object = object;
    self->cookie = position;
    self->generation = generation;
    self->crc32c = crc32c;
    self->gzip = gzip;
    self->writable = writable;
    return (PyObject *)self;
}

static void lease_dealloc(Lease *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    ring_hold_unref(self->hold);
    ring_index_unref(self->index);
    Py_XDECREF(self->name);
    Py_XDECREF(self->url);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* 0 when the bytes may be read, else -1 with ValueError. */
static int lease_check(Lease *self)
{
    if (self->released) {
        PyErr_SetString(PyExc_ValueError, "this Lease has been released");
        return -1;
    }
    if (ring_hold_is_foreign(self->hold)) {
        PyErr_SetString(PyExc_ValueError, "this Lease belongs to the process before the fork, which may release its "
                                          "bytes at any time: pass on .copy()");
        return -1;
    }
    return 0;
}

struct ring_hold *ring_lease_hold(struct ring_state *state, PyObject *object, uint64_t *length)
{
    Lease *lease = (Lease *)object;
    if (!PyObject_TypeCheck(object, (PyTypeObject *)state->lease) || lease_check(lease) != 0)
        return NULL;
    *length = lease->size;
    return ring_hold_ref(lease->hold);
}

static int lease_getbuffer(Lease *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    if (lease_check(self))
        return -1;
    if ((flags & PyBUF_WRITABLE) && !self->writable) {
        PyErr_SetString(PyExc_BufferError, "the bytes of a Lease are shared and read-only: open the data set with "
                                           "writable=True, or use .copy()");
        return -1;
    }
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->hold->data, (Py_ssize_t)self->size, !self->writable, flags))
        return -1;
    self->exported = true;
    return 0;
}

static Py_ssize_t lease_length(Lease *self)
{
    return (Py_ssize_t)self->size;
}

static PyObject *lease_get_name(Lease *self, void *closure)
{
    (void)closure;
    return self->index ? ring_name(&self->index->index, self->object) : Py_NewRef(self->name);
}

static PyObject *lease_get_url(Lease *self, void *closure)
{
    (void)closure;
    return self->index ? ring_url(&self->index->index, self->object) : Py_NewRef(self->url);
}

static const char *encoding_of(const Lease *self)
{
    return self->gzip ? "gzip" : "";
}

/* As bytes; NULL with an exception. */
static PyObject *bytes_of(Lease *self)
{
    if (lease_check(self))
        return NULL;
    struct ring_hold *hold = ring_hold_ref(self->hold); /* a finaliser may release the Lease at any allocation */
    PyObject *bytes = PyBytes_FromStringAndSize(hold->data, (Py_ssize_t)self->size);
    ring_hold_unref(hold);
    return bytes;
}

static PyObject *lease_copy(Lease *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *bytes = bytes_of(self);
    PyObject *name = bytes ? lease_get_name(self, NULL) : NULL;
    PyObject *module = name ? PyImport_ImportModule("millrace._item") : NULL;
    PyObject *item = module ? PyObject_CallMethod(module, "Item", "OOs", bytes, name, encoding_of(self)) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(name);
    Py_XDECREF(bytes);
    return item;
}

static uint64_t position_of(const Lease *self)
{
    return self->cookie & ~RING_REPLACES;
}

static PyObject *lease_state(Lease *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *name = lease_get_name(self, NULL);
    PyObject *url = name ? lease_get_url(self, NULL) : NULL;
    if (url)
        return Py_BuildValue("NNKIKKOO", name, url, (unsigned long long)self->generation, (unsigned)self->crc32c,
                             (unsigned long long)self->object, (unsigned long long)position_of(self),
                             self->gzip ? Py_True : Py_False, self->writable ? Py_True : Py_False);
    Py_XDECREF(name);
    return NULL;
}

static PyObject *lease_reduce(Lease *self, PyObject *ignored)
{
    PyObject *bytes = bytes_of(self);
    PyObject *state = bytes ? lease_state(self, ignored) : NULL;
    PyObject *make = state ? PyObject_GetAttrString(PyType_GetModule(Py_TYPE(self)), "lease_of") : NULL;
    if (make)
        return Py_BuildValue("N(NN)", make, bytes, state);
    Py_XDECREF(state);
    Py_XDECREF(bytes);
    return NULL;
}

PyObject *ring_lease_of(PyObject *module, PyObject *args)
{
    Py_buffer bytes;
    PyObject *of;
    if (!PyArg_ParseTuple(args, "y*O!:lease_of", &bytes, &PyTuple_Type, &of))
        return NULL;
    PyObject *lease = ring_lease_from(PyModule_GetState(module), ring_hold_private(bytes.buf, (uint64_t)bytes.len), of);
    PyBuffer_Release(&bytes);
    return lease;
}

static PyObject *lease_release(Lease *self, PyObject *ignored)
{
    (void)ignored;
    self->released = true;
    if (!self->exported) {
        ring_hold_unref(self->hold);
        self->hold = NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *lease_dlpack(Lease *self, PyObject *args, PyObject *kwargs)
{
    if (lease_check(self))
        return NULL;
    struct ring_hold *hold = ring_hold_ref(self->hold); /* and so may what is asked for the truth of `copy` */
    PyObject *capsule = ring_dlpack(hold, !self->writable, args, kwargs);
    ring_hold_unref(hold);
    return capsule;
}

static PyObject *lease_dlpack_device(Lease *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return Py_BuildValue("ii", 1, 0); /* kDLCPU */
}

static PyObject *lease_repr(Lease *self)
{
    PyObject *name = lease_get_name(self, NULL);
    if (!name)
        return NULL;
    PyObject *text = PyUnicode_FromFormat("<millrace.Lease %R, %llu bytes%s>", name, (unsigned long long)self->size,
                                          self->released ? ", released" : "");
    Py_DECREF(name);
    return text;
}

static PyMethodDef lease_methods[] = {
    {"copy", (PyCFunction)lease_copy, METH_NOARGS,
     "copy() -> Item: the bytes, with .name, .size and .encoding, in private memory."},
    {"release", (PyCFunction)lease_release, METH_NOARGS,
     "Gives the memory back now, or with the last buffer made from this Lease. May be called twice."},
    {"__dlpack__", (PyCFunction)(void (*)(void))lease_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A one-dimensional uint8 tensor over the bytes; read-only, so the consumer must know DLPack 1.0."},
    {"__dlpack_device__", (PyCFunction)lease_dlpack_device, METH_NOARGS, "The CPU."},
    {"_state", (PyCFunction)lease_state, METH_NOARGS,
     "_state() -> tuple: what crosses to another process beside the bytes, for Batch.lease and lease_of."},
    {"__reduce__", (PyCFunction)lease_reduce, METH_NOARGS,
     "Pickles with a copy of the bytes, which is what the new Lease is over."},
    {NULL, NULL, 0, NULL},
};
static PyObject *lease_get_encoding(Lease *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(encoding_of(self));
}

static PyObject *lease_get_position(Lease *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(position_of(self));
}

static PyGetSetDef lease_getset[] = {
    {"encoding", (getter)lease_get_encoding, NULL,
     "\"gzip\" where the store said so (Content-Encoding) when it gave the bytes, which are the compressed ones; else "
     "\"\", as for an object that came in a composed download",
     NULL},
    {"name", (getter)lease_get_name, NULL, "the name of the object, without the bucket; of a sample, its key", NULL},
    {"position", (getter)lease_get_position, NULL, "place in the epoch's order", NULL},
    {"url", (getter)lease_get_url, NULL, "the URI of the object, or of the shard that holds the sample", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef lease_members[] = {
    {"size", T_ULONGLONG, offsetof(Lease, size), READONLY, "bytes"},
    {"generation", T_ULONGLONG, offsetof(Lease, generation), READONLY, "the version that was read"},
    {"crc32c", T_UINT, offsetof(Lease, crc32c), READONLY,
     "crc32c of the bytes; 0 where the store's checksum is of another kind (S3)"},
    {"index", T_ULONGLONG, offsetof(Lease, object), READONLY, "number of the object in .objects"},
    {"_cookie", T_ULONGLONG, offsetof(Lease, cookie), READONLY, "what it was fed with"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Lease, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot lease_slots[] = {
    {Py_tp_new, ring_no_new},
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_repr, lease_repr},
    {Py_tp_methods, lease_methods},
    {Py_tp_getset, lease_getset},
    {Py_tp_members, lease_members},
    {Py_sq_length, lease_length},
    {Py_bf_getbuffer, lease_getbuffer},
    {Py_tp_doc,
     "The bytes of one object in shared memory: a read-only buffer for memoryview, numpy.frombuffer, "
     "torch.frombuffer and DLPack. The memory returns when the Lease and all that was made from it is freed."},
    {0, NULL},
};
PyType_Spec ring_lease_spec = {
    .name = "millrace._ring.Lease",
    .basicsize = sizeof(Lease),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lease_slots,
};
