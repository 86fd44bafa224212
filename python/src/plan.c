/* plan.c - Plan: which positions of an epoch a rank and a worker get at which step (shm/index/plan.h). */
#include "ring.h"

#include "base/error.h"

typedef struct {
    PyObject_HEAD
    struct mr_plan plan;
} Plan;

const struct mr_plan *ring_plan_of(struct ring_state *state, PyObject *object)
{
    if (!Py_IS_TYPE(object, state->plan)) {
        PyErr_Format(PyExc_TypeError, "a Plan is wanted, not %.100s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    return &((Plan *)object)->plan;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size",  "digest",  "seed", "epoch", "cursor", "rank", "world",
                            "batch", "shuffle", "tail", "block", "mix",    NULL};
    unsigned long long size, seed = 0, epoch = 0, cursor = 0, block = 0;
    unsigned rank = 0, world = 1, batch = 1, mix = 0;
    int shuffle = 0;
    const char *digest, *tail = "short";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ks|$KKKIIIpsKI:Plan", names, &size, &digest, &seed, &epoch, &cursor,
                                     &rank, &world, &batch, &shuffle, &tail, &block, &mix))
        return NULL;
    struct mr_plan_params params = {.size = size,
                                    .seed = seed,
                                    .epoch = epoch,
                                    .cursor = cursor,
                                    .rank = rank,
                                    .world = world,
                                    .batch = batch,
                                    .shuffle = shuffle,
                                    .block = block,
                                    .mix = mix};
    if (mr_index_digest_parse(digest, params.digest) || mr_plan_tail_parse(tail, &params.tail))
        return ring_raise();
    Plan *self = PyObject_New(Plan, type);
    if (self && mr_plan_init(&self->plan, &params)) {
        Py_DECREF(self);
        return ring_raise();
    }
    return (PyObject *)self;
}

static void plan_dealloc(Plan *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* What this rank gets at step `arg`: 0, or -1 with an exception. */
static int share_of(const Plan *self, PyObject *arg, uint64_t *first, uint32_t *count)
{
    uint64_t step;
    if (ring_uint64(arg, &step))
        return -1;
    mr_plan_share(&self->plan, step, first, count);
    return 0;
}

static PyObject *plan_share(Plan *self, PyObject *arg)
{
    uint64_t first;
    uint32_t count;
    if (share_of(self, arg, &first, &count))
        return NULL;
    return Py_BuildValue("KI", (unsigned long long)first, (unsigned)count);
}

static PyObject *plan_object(Plan *self, PyObject *arg)
{
    uint64_t position;
    if (ring_uint64(arg, &position))
        return NULL;
    return PyLong_FromUnsignedLongLong(mr_plan_object(&self->plan, position));
}

/* A batch as a list of object numbers: what a sampler hands out. */
static PyObject *plan_objects(Plan *self, PyObject *arg)
{
    uint64_t first;
    uint32_t count;
    if (share_of(self, arg, &first, &count))
        return NULL;
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(mr_plan_object(&self->plan, first + i));
        if (number)
            PyList_SET_ITEM(list, i, number);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *plan_cursor_after(Plan *self, PyObject *arg)
{
    uint64_t step;
    if (ring_uint64(arg, &step))
        return NULL;
    return PyLong_FromUnsignedLongLong(mr_plan_cursor_after(&self->plan, step));
}

static PyObject *plan_single_count(Plan *self, PyObject *args)
{
    unsigned worker, workers;
    if (!PyArg_ParseTuple(args, "II:single_count", &worker, &workers))
        return NULL;
    return PyLong_FromUnsignedLongLong(mr_plan_single_count(&self->plan, worker, workers));
}

static PyObject *plan_replacement(Plan *self, PyObject *args)
{
    unsigned long long position;
    unsigned attempt;
    if (!PyArg_ParseTuple(args, "KI:replacement", &position, &attempt))
        return NULL;
    uint64_t other;
    if (mr_plan_replacement(&self->plan, position, attempt, &other))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(other);
}

static PyObject *plan_steps(Plan *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(mr_plan_steps(&self->plan));
}

static PyObject *plan_left_out(Plan *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(mr_plan_left_out(&self->plan));
}

static PyMethodDef plan_methods[] = {
    {"share", (PyCFunction)plan_share, METH_O, "share(step) -> (first position, count) of this rank."},
    {"object", (PyCFunction)plan_object, METH_O, "object(position) -> the object's number in the index."},
    {"objects", (PyCFunction)plan_objects, METH_O, "objects(step) -> list of object numbers of this rank's batch."},
    {"cursor_after", (PyCFunction)plan_cursor_after, METH_O, "cursor_after(step) -> the cursor once step was given."},
    {"single_count", (PyCFunction)plan_single_count, METH_VARARGS, "single_count(worker, workers): without batches."},
    {"replacement", (PyCFunction)plan_replacement, METH_VARARGS,
     "replacement(position, attempt) -> the position to take instead, or None when there is none left."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef plan_getset[] = {
    {"steps", (getter)plan_steps, NULL, "steps of the rest of the epoch, the same for every rank", NULL},
    {"left_out", (getter)plan_left_out, NULL, "objects that no rank gets in the rest of the epoch", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot plan_slots[] = {
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_getset},
    {Py_tp_doc, "Plan(size, digest, *, seed=0, epoch=0, cursor=0, rank=0, world=1, batch=1, shuffle=False, "
                "tail='short', block=0, mix=0): the order of the rest of an epoch."},
    {0, NULL},
};
PyType_Spec ring_plan_spec = {
    .name = "millrace._ring.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = plan_slots,
};
