/*
 * lease.c - Lease: a read-only buffer over one delivered object, and the consumer's hold on its memory.
 *
 * torch.frombuffer and numpy keep a pointer after the buffer's export count is back to 0, but they keep the Lease
 * alive: so memory is given back when the Lease dies (or the last DLPack tensor of it), never when a buffer is
 * released.
 */
#include "ring.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    struct ring_hold *hold; /* NULL once released */
    struct ring_index *index;
    uint64_t object, position, size, generation;
    uint32_t crc32c;
    bool gzip;
    bool writable; /* a private copy that may be changed */
    bool exported; /* somebody may have a pointer: only dealloc may release it */
    bool released;
    PyObject *weak;
} Lease;

PyObject *ring_lease_new(struct ring_state *state, struct ring_hold *hold, const struct mr_delivery *delivery,
                         bool writable)
{
    Lease *self = PyObject_New(Lease, state->lease);
    if (!self) {
        ring_hold_unref(hold);
        return NULL;
    }
    self->hold = hold;
    self->index = ring_index_ref(hold->index);
    self->object = hold->object;
    self->position = delivery->sample.cookie;
    self->size = hold->length;
    self->generation = delivery->generation;
    self->crc32c = delivery->crc32c;
    self->gzip = delivery->desc_flags & MR_DESC_GZIP;
    self->writable = writable;
    self->exported = self->released = false;
    self->weak = NULL;
    return (PyObject *)self;
}

static void lease_dealloc(Lease *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    ring_hold_unref(self->hold);
    ring_index_unref(self->index);
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

static const char *encoding_of(const Lease *self)
{
    return self->gzip ? "gzip" : "";
}

/* Item(bytes, name, encoding): the form that crosses processes. */
static PyObject *lease_item_args(Lease *self)
{
    if (lease_check(self))
        return NULL;
    struct ring_hold *hold = ring_hold_ref(self->hold); /* a finaliser may release the Lease at any allocation */
    PyObject *name = ring_name(&self->index->index, self->object);
    PyObject *args = name ? Py_BuildValue("y#Ns", hold->data, (Py_ssize_t)self->size, name, encoding_of(self)) : NULL;
    ring_hold_unref(hold);
    return args;
}

static PyObject *item_type(void)
{
    PyObject *module = PyImport_ImportModule("millrace._item");
    PyObject *type = module ? PyObject_GetAttrString(module, "Item") : NULL;
    Py_XDECREF(module);
    return type;
}

static PyObject *lease_copy(Lease *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *args = lease_item_args(self);
    PyObject *type = args ? item_type() : NULL;
    PyObject *item = type ? PyObject_CallObject(type, args) : NULL;
    Py_XDECREF(type);
    Py_XDECREF(args);
    return item;
}

static PyObject *lease_reduce(Lease *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *args = lease_item_args(self);
    PyObject *type = args ? item_type() : NULL;
    if (type)
        return Py_BuildValue("NN", type, args);
    Py_XDECREF(args);
    return NULL;
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
    PyObject *name = ring_name(&self->index->index, self->object);
    if (!name)
        return NULL;
    PyObject *text = PyUnicode_FromFormat("<millrace.Lease %R, %llu bytes%s>", name, (unsigned long long)self->size,
                                          self->released ? ", released" : "");
    Py_DECREF(name);
    return text;
}

static PyObject *lease_get_name(Lease *self, void *closure)
{
    (void)closure;
    return ring_name(&self->index->index, self->object);
}

static PyObject *lease_get_url(Lease *self, void *closure)
{
    (void)closure;
    return ring_url(&self->index->index, self->object);
}

static PyMethodDef lease_methods[] = {
    {"copy", (PyCFunction)lease_copy, METH_NOARGS,
     "copy() -> Item: the bytes, with .name, .size and .encoding, in private memory."},
    {"release", (PyCFunction)lease_release, METH_NOARGS,
     "Gives the memory back now, or with the last buffer made from this Lease. May be called twice."},
    {"__dlpack__", (PyCFunction)(void (*)(void))lease_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A one-dimensional uint8 tensor over the bytes; read-only, so the consumer must know DLPack 1.0."},
    {"__dlpack_device__", (PyCFunction)lease_dlpack_device, METH_NOARGS, "The CPU."},
    {"__reduce__", (PyCFunction)lease_reduce, METH_NOARGS, "Pickles as an Item, which holds a copy."},
    {NULL, NULL, 0, NULL},
};
static PyObject *lease_get_encoding(Lease *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(encoding_of(self));
}

static PyGetSetDef lease_getset[] = {
    {"encoding", (getter)lease_get_encoding, NULL,
     "\"gzip\" where the store said so (Content-Encoding) when it gave the bytes, which are the compressed ones; else "
     "\"\", as for an object that came in a composed download",
     NULL},
    {"name", (getter)lease_get_name, NULL, "the name of the object, without the bucket; of a sample, its key", NULL},
    {"url", (getter)lease_get_url, NULL, "the URI of the object, or of the shard that holds the sample", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef lease_members[] = {
    {"size", T_ULONGLONG, offsetof(Lease, size), READONLY, "bytes"},
    {"generation", T_ULONGLONG, offsetof(Lease, generation), READONLY, "the version that was read"},
    {"crc32c", T_UINT, offsetof(Lease, crc32c), READONLY, "checksum of the bytes"},
    {"index", T_ULONGLONG, offsetof(Lease, object), READONLY, "number of the object in .objects"},
    {"position", T_ULONGLONG, offsetof(Lease, position), READONLY, "place in the epoch's order"},
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
     "torch.frombuffer and DLPack. The memory returns when the Lease and all that was made from it is gone."},
    {0, NULL},
};
PyType_Spec ring_lease_spec = {
    .name = "millrace._ring.Lease",
    .basicsize = sizeof(Lease),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lease_slots,
};
