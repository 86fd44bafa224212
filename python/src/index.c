/* index.c - Index: the listing of a data set as a read-only sequence of (name, size), over the image all share. */
#include "ring.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/uri.h"
#include "shm/index/shards.h"

typedef struct {
    PyObject_HEAD
    struct ring_index *shared;
} Index;

struct ring_index *ring_index_ref(struct ring_index *index)
{
    atomic_fetch_add_explicit(&index->refs, 1, memory_order_relaxed);
    return index;
}

void ring_index_unref(struct ring_index *index)
{
    if (!index || atomic_fetch_sub_explicit(&index->refs, 1, memory_order_acq_rel) != 1)
        return;
    mr_index_close(&index->index);
    free(index);
}

PyObject *ring_index_from_fd(struct ring_state *state, int fd)
{
    struct ring_index *shared = calloc(1, sizeof(*shared));
    if (!shared)
        return PyErr_NoMemory();
    atomic_init(&shared->refs, 1);
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_index_map(&shared->index, fd);
    Py_END_ALLOW_THREADS
    if (rc) {
        free(shared);
        return ring_raise();
    }
    Index *self = PyObject_New(Index, state->index);
    if (!self) {
        ring_index_unref(shared);
        return NULL;
    }
    self->shared = shared;
    return (PyObject *)self;
}

struct ring_index *ring_index_of(struct ring_state *state, PyObject *object)
{
    if (!Py_IS_TYPE(object, state->index)) {
        PyErr_Format(PyExc_TypeError, "an Index is wanted, not %.100s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    return ((Index *)object)->shared;
}

PyObject *ring_name(const struct mr_index *index, uint64_t object)
{
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry entry;
    if (mr_index_get(index, object, &entry, name))
        return ring_raise();
    return PyUnicode_DecodeUTF8(name, entry.name_length, "surrogateescape");
}

PyObject *ring_url(const struct mr_index *index, uint64_t object)
{
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry entry;
    struct mr_index_range range;
    if (mr_index_locate(index, object, &entry, name, &range))
        return ring_raise();
    char *url = mr_uri_format(index->info.scheme, index->info.bucket, name);
    if (!url)
        return PyErr_NoMemory();
    PyObject *text = PyUnicode_DecodeUTF8(url, (Py_ssize_t)strlen(url), "surrogateescape");
    free(url);
    return text;
}

/* Index(fd): for tests and tools; data sets get theirs from Client.index. */
static PyObject *index_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", NULL};
    int fd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:Index", names, &fd))
        return NULL;
    return ring_index_from_fd(ring_state_of(type), fd);
}

static void index_dealloc(Index *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ring_index_unref(self->shared);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t index_length(Index *self)
{
    return (Py_ssize_t)self->shared->index.info.count;
}

static PyObject *index_pair(Index *self, uint64_t i)
{
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry entry;
    if (mr_index_get(&self->shared->index, i, &entry, name))
        return ring_raise();
    PyObject *text = PyUnicode_DecodeUTF8(name, entry.name_length, "surrogateescape");
    return text ? Py_BuildValue("NK", text, (unsigned long long)entry.size) : NULL;
}

static PyObject *index_item(Index *self, Py_ssize_t i)
{
    if (i < 0 || i >= index_length(self)) {
        PyErr_Format(PyExc_IndexError, "there is no object %zd: the index has %zd, counted from 0", i,
                     index_length(self));
        return NULL;
    }
    return index_pair(self, (uint64_t)i);
}

static PyObject *index_slice(Index *self, PyObject *key)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(index_length(self), &start, &stop, step);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *pair = index_pair(self, (uint64_t)(start + i * step));
        if (pair)
            PyList_SET_ITEM(list, i, pair);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *index_subscript(Index *self, PyObject *key)
{
    if (PySlice_Check(key))
        return index_slice(self, key);
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return NULL;
    return index_item(self, i < 0 ? i + index_length(self) : i);
}

static PyObject *index_find(Index *self, PyObject *name)
{
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "a name is a str, not %.100s", Py_TYPE(name)->tp_name);
        return NULL;
    }
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogateescape");
    if (!bytes)
        return NULL;
    uint64_t i = 0;
    int rc = mr_index_find(&self->shared->index, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes), &i);
    Py_DECREF(bytes);
    if (rc && mr_error_code() == MR_E_NOT_FOUND) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    return rc ? ring_raise() : PyLong_FromUnsignedLongLong(i);
}

static PyObject *index_repr(Index *self)
{
    return PyUnicode_FromFormat("<millrace index of %zd objects>", index_length(self));
}

static PyObject *index_digest(Index *self, void *closure)
{
    (void)closure;
    char text[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(self->shared->index.info.digest, text);
    return PyUnicode_FromString(text);
}

static PyObject *index_total_bytes(Index *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->shared->index.info.total_bytes);
}

static PyObject *index_max_size(Index *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->shared->index.info.max_size);
}

static PyObject *index_shards(Index *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(mr_index_shard_count(&self->shared->index));
}

static PyMethodDef index_methods[] = {
    {"find", (PyCFunction)index_find, METH_O, "find(name) -> int: the number of the object; KeyError without one."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef index_getset[] = {
    {"digest", (getter)index_digest, NULL, "64 hex digits: equal exactly for equal listings", NULL},
    {"total_bytes", (getter)index_total_bytes, NULL, "the sum of all sizes", NULL},
    {"max_size", (getter)index_max_size, NULL, "the size of the largest object", NULL},
    {"shards", (getter)index_shards, NULL, "tar shards whose samples it has; 0: it is of whole objects", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot index_slots[] = {
    {Py_tp_new, index_new},
    {Py_tp_dealloc, index_dealloc},
    {Py_tp_repr, index_repr},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_getset},
    {Py_sq_length, index_length},
    {Py_sq_item, index_item},
    {Py_mp_length, index_length},
    {Py_mp_subscript, index_subscript},
    {Py_tp_doc,
     "The listing of a data set: a read-only sequence of (name, size). Nothing is copied out of it in bulk."},
    {0, NULL},
};
PyType_Spec ring_index_spec = {
    .name = "millrace._ring.Index",
    .basicsize = sizeof(Index),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = index_slots,
};
