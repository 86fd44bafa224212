/*
 * opened.c - Opened: the hold on one data set at the supervisor, which is closed once for each time that it was opened.
 *
 * It is made before the data set is opened and given to that call, whose wait for the answer ends with the number in it:
 * no exception of a signal handler, which comes as soon as a call returns, finds a number that belongs to nobody. One
 * that goes without close() may go in the middle of any call of its Client, which it cannot wait for: what it held is
 * put down there, in memory that it has had from the beginning, and closed before the next one is opened.
 */
#include "ring.h"

#include <stdlib.h>

#include "shm/memory/fork_mark.h"

typedef struct {
    PyObject_HEAD
    PyObject *client;
    struct ring_unused *unused; /* our memory; NULL once it was handed over */
    uint64_t mark;              /* of the process that made it */
    bool open;                  /* unused->dataset is */
} Opened;

static PyObject *opened_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", NULL};
    PyObject *client;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Opened", names, ring_state_of(type)->client, &client))
        return NULL;
    struct ring_unused *unused = calloc(1, sizeof(*unused));
    Opened *self = unused ? PyObject_New(Opened, type) : NULL;
    if (!self) {
        free(unused);
        return PyErr_NoMemory();
    }
    Py_INCREF(client);
    self->client = client;
    self->unused = unused;
    self->mark = mr_fork_mark();
    self->open = false;
    return (PyObject *)self;
}

/* A forked child has opened nothing: the data set is the parent's. */
static void opened_dealloc(Opened *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->open && mr_fork_mark_is(self->mark))
        ring_client_unused(self->client, self->unused);
    else
        free(self->unused);
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

int ring_opened_check(struct ring_state *state, PyObject *client, PyObject *object)
{
    if (!Py_IS_TYPE(object, state->opened)) {
        PyErr_Format(PyExc_TypeError, "an Opened is wanted, not %.100s", Py_TYPE(object)->tp_name);
        return -1;
    }
    Opened *self = (Opened *)object;
    if (self->client == client && !self->open && mr_fork_mark_is(self->mark))
        return 0;
    PyErr_SetString(PyExc_ValueError, "this Opened is of another connection, or holds a data set already");
    return -1;
}

void ring_opened_put(PyObject *object, uint64_t dataset)
{
    Opened *self = (Opened *)object;
    self->unused->dataset = dataset;
    self->open = true;
}

static PyObject *opened_close(Opened *self, PyObject *ignored)
{
    (void)ignored;
    bool open = self->open && mr_fork_mark_is(self->mark);
    self->open = false;
    if (open)
        ring_client_dataset_closed(self->client, self->unused->dataset);
    Py_RETURN_NONE;
}

static PyObject *opened_get_number(Opened *self, void *closure)
{
    (void)closure;
    if (self->open)
        return PyLong_FromUnsignedLongLong(self->unused->dataset);
    PyErr_SetString(PyExc_ValueError, "this Opened holds no data set");
    return NULL;
}

static PyMethodDef opened_methods[] = {
    {"close", (PyCFunction)opened_close, METH_NOARGS, "Closes the data set now. May be called twice, and without one."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef opened_getset[] = {
    {"number", (getter)opened_get_number, NULL, "the supervisor's, of the data set that is open", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot opened_slots[] = {
    {Py_tp_new, opened_new},
    {Py_tp_dealloc, opened_dealloc},
    {Py_tp_methods, opened_methods},
    {Py_tp_getset, opened_getset},
    {Py_tp_doc, "Opened(client): what a data set that is opened next is held by; without it, it is closed."},
    {0, NULL},
};
PyType_Spec ring_opened_spec = {
    .name = "millrace._ring.Opened",
    .basicsize = sizeof(Opened),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = opened_slots,
};
