/*
 * meter.c - Meter: what a loader measures, in memory that the supervisor reads too (shm/meter/).
 *
 * Its values are counters: no method waits, calls back or needs a lock beside the GIL.
 */
#include "ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/fork_mark.h"
#include "shm/meter/verdict.h"

typedef struct {
    PyObject_HEAD
    struct mr_meter meter;
    struct mr_meter_sums began;     /* as the iteration began */
    struct mr_node node;            /* likewise; where watched */
    struct mr_batch_counts batches; /* likewise */
    bool watched;                   /* there was a supervisor */
    uint64_t mark;                  /* the process that made it */
} Meter;

static PyObject *meter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"workers", "rank", "world", NULL};
    unsigned workers, rank = 0, world = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I|II:Meter", names, &workers, &rank, &world))
        return NULL;
    uint64_t mark = mr_fork_mark();
    if (!mark)
        return ring_raise();
    Meter *self = PyObject_New(Meter, type);
    if (!self)
        return NULL;
    self->mark = mark;
    self->watched = false;
    self->batches = (struct mr_batch_counts){0};
    if (mr_meter_new(&self->meter, workers, rank, world)) {
        Py_DECREF(self);
        return ring_raise();
    }
    mr_meter_read(&self->meter, &self->began);
    return (PyObject *)self;
}

static void meter_dealloc(Meter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (mr_fork_mark_is(self->mark))
        mr_meter_close(&self->meter);
    else
        mr_meter_close_in_child(&self->meter);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *meter_begin(Meter *self, PyObject *args)
{
    unsigned epoch, cores, sharers;
    unsigned long long batches, beside, held;
    PyObject *client;
    if (!PyArg_ParseTuple(args, "III(KKK)O:begin", &epoch, &cores, &sharers, &batches, &beside, &held, &client))
        return NULL;
    self->watched = client != Py_None;
    if (self->watched && ring_client_node(ring_state_of(Py_TYPE(self)), client, &self->node))
        return NULL;
    self->batches = (struct mr_batch_counts){.batches = batches, .beside = beside, .held = held};
    mr_meter_begin(&self->meter, epoch, cores, sharers);
    mr_meter_read(&self->meter, &self->began);
    Py_RETURN_NONE;
}

static PyObject *meter_ask(Meter *self, PyObject *ignored)
{
    (void)ignored;
    int64_t now_ns = mr_clock_mono_ns();
    mr_meter_ask(&self->meter, now_ns);
    return PyLong_FromLongLong(now_ns);
}

static PyObject *meter_rest(Meter *self, PyObject *ignored)
{
    (void)ignored;
    mr_meter_ask(&self->meter, 0);
    Py_RETURN_NONE;
}

bool ring_meter_times(PyObject *times, struct mr_meter_times *made)
{
    long long at[6];
    unsigned long long waited, cpu, thread, delay;
    unsigned worker;
    if (!PyArg_ParseTuple(times, "ILLLLLLKKKK:Times", &worker, &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &waited,
                          &cpu, &thread, &delay))
        return false;
    *made = (struct mr_meter_times){.worker = worker,
                                    .began = at[0],
                                    .fetched = at[1],
                                    .reserved = at[2],
                                    .collated = at[3],
                                    .packed = at[4],
                                    .sent = at[5],
                                    .waited = waited,
                                    .cpu = cpu,
                                    .thread = thread,
                                    .delay = delay};
    return true;
}

static PyObject *meter_take(Meter *self, PyObject *args)
{
    long long asked, taken, arrived;
    unsigned long long saved;
    PyObject *times;
    struct mr_meter_times made;
    if (!PyArg_ParseTuple(args, "LLLKO!:take", &asked, &taken, &arrived, &saved, &PyTuple_Type, &times) ||
        !ring_meter_times(times, &made))
        return NULL;
    mr_meter_take(&self->meter, asked, taken, arrived, saved, &made);
    Py_RETURN_NONE;
}

/* A new reference: {stage: seconds a step}. */
static PyObject *stages_dict(const double ns[MR_STAGE_COUNT])
{
    PyObject *dict = PyDict_New();
    for (unsigned i = MR_STAGE_STORE; dict && i < MR_STAGE_CHECKPOINT; i++) {
        PyObject *value = PyFloat_FromDouble(ns[i] / 1e9);
        if (!value || PyDict_SetItemString(dict, mr_stage_name(i), value))
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

static double share(uint64_t part, uint64_t rest)
{
    return part + rest > 0 ? (double)part / (double)(part + rest) : 0;
}

static PyObject *report_dict(const struct mr_meter_sums *sums, const struct mr_verdict *verdict)
{
    double n = (sums->batches > 0 ? (double)sums->batches : 1) * 1e9;
    uint64_t working = sums->transform + sums->collate + sums->pack, busy = working + sums->store + sums->extent;
    double made[MR_STAGE_COUNT] = {[MR_STAGE_STORE] = (double)sums->store,
                                   [MR_STAGE_TRANSFORM] = (double)sums->transform,
                                   [MR_STAGE_COLLATE] = (double)sums->collate,
                                   [MR_STAGE_EXTENT] = (double)sums->extent,
                                   [MR_STAGE_TRANSPORT] = (double)sums->pack};
    for (unsigned i = 0; i < MR_STAGE_COUNT; i++)
        made[i] /= n / 1e9;
    PyObject *waits = stages_dict(verdict->waits), *works = stages_dict(made);
    if (!waits || !works || PyDict_DelItemString(works, "device")) {
        Py_XDECREF(waits);
        Py_XDECREF(works);
        return NULL;
    }
    double cpu = working > 0 ? (double)sums->cpu / (double)working : 0;
    double delay = working > 0 ? (double)sums->delay / (double)working : 0;
    return Py_BuildValue("{sI sK sd sd sd sd sd sN sN sI sd sd sd sz sz sI ss}", "epoch", sums->epoch, "batches",
                         (unsigned long long)sums->batches, "first_batch_s", (double)sums->first / 1e9, "step_s",
                         (double)(sums->step + sums->wait) / n, "wait_s", (double)sums->wait / n, "wait_share",
                         mr_verdict_wait_share(sums), "checkpoint_s", (double)sums->save / n, "waits_s", waits,
                         "worker_s", works, "workers", sums->workers, "worker_idle_share", share(sums->idle, busy),
                         "worker_cpu_share", cpu < 1 ? cpu : 1, "worker_delay_share", delay < 1 ? delay : 1, "stage",
                         verdict->stage == MR_STAGE_NONE ? NULL : mr_stage_name(verdict->stage), "cause",
                         verdict->cause == MR_CAUSE_NONE ? NULL : mr_cause_name(verdict->cause), "try_workers",
                         verdict->try_workers, "verdict", verdict->text);
}

static PyObject *meter_report(Meter *self, PyObject *args)
{
    unsigned long long batches, beside, held;
    PyObject *client;
    struct mr_node node = {0};
    if (!PyArg_ParseTuple(args, "(KKK)O:report", &batches, &beside, &held, &client))
        return NULL;
    bool watched = self->watched && client != Py_None;
    if (watched && ring_client_node(ring_state_of(Py_TYPE(self)), client, &node))
        return NULL;
    struct mr_meter_sums sums;
    mr_meter_read(&self->meter, &sums);
    mr_meter_since(&sums, &self->began);
    if (watched)
        mr_node_since(&node, &self->node);
    struct mr_batch_counts counts = {.batches = batches, .beside = beside, .held = held};
    mr_batch_since(&counts, &self->batches);
    struct mr_verdict verdict;
    mr_verdict_find(&sums, watched ? &node : NULL, &counts, &verdict);
    return report_dict(&sums, &verdict);
}

static PyObject *meter_fileno(Meter *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromLong(self->meter.fd);
}

PyObject *ring_delay_ns(PyObject *module, PyObject *ignored)
{
    static int fd = -1; /* under the GIL; of the process's first thread */
    static pid_t owner;
    unsigned long long runs, delay = 0;
    char text[96];

    (void)module;
    (void)ignored;
    if (gettid() != getpid())
        return PyLong_FromLong(0);
    if (owner != getpid()) { /* a forked child has its parent's */
        if (fd >= 0)
            close(fd);
        fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
        owner = getpid();
    }
    ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%llu %llu", &runs, &delay) != 2)
        delay = 0;
    return PyLong_FromUnsignedLongLong(delay);
}

static PyMethodDef meter_methods[] = {
    {"begin", (PyCFunction)meter_begin, METH_VARARGS,
     "begin(epoch, cores, sharers, batches, client): an iteration begins. batches: BatchArena.counts() so far, of it "
     "batches, "
     "beside and held; client: a Client, or None."},
    {"ask", (PyCFunction)meter_ask, METH_NOARGS, "ask() -> ns of the monotonic clock: the loop wants its next batch."},
    {"rest", (PyCFunction)meter_rest, METH_NOARGS, "The loop wants no batch any more."},
    {"take", (PyCFunction)meter_take, METH_VARARGS,
     "take(asked, taken, arrived, saved, times): it has it. arrived: when it was there to be copied to the device, or "
     "0; "
     "saved: ns since the last one in calls of checkpoints; times: a millrace._timing.Times."},
    {"report", (PyCFunction)meter_report, METH_VARARGS,
     "report(batches, client) -> dict: see DataLoader.stats, of the present iteration."},
    {"fileno", (PyCFunction)meter_fileno, METH_NOARGS, "The descriptor; it stays the meter's."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot meter_slots[] = {
    {Py_tp_new, meter_new},
    {Py_tp_dealloc, meter_dealloc},
    {Py_tp_methods, meter_methods},
    {Py_tp_doc, "Meter(workers, rank=0, world=1): what a loader measures, for its loop and for the supervisor."},
    {0, NULL},
};
PyType_Spec ring_meter_spec = {
    .name = "millrace._ring.Meter",
    .basicsize = sizeof(Meter),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = meter_slots,
};
