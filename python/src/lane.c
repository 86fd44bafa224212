/*
 * lane.c - Lane: one consumer's ordered stream. It is fed from a plan (in C, a little ahead of the window) or with
 * numbers of objects, and gives Leases in that order.
 */
#include "ring.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/index/shards.h"
#include "shm/ring/producer.h"

#define SLICE_MS       100 /* of a wait: in between, the supervisor, the data set and the parent are checked */
#define FEED_AT_A_TIME 32
#define WINDOW_BYTES \
    (4u << 20) /* of neighbours that are read together, where no plan says so; BLOCK_BYTES of _shuffle.py */

struct feeder { /* the samples of a plan for one worker, in order */
    struct mr_plan plan;
    uint32_t worker, workers;
    bool single;          /* the form without batches */
    uint64_t next, total; /* the worker's steps; single: its samples */
    uint64_t position;    /* within a step: what comes next */
    uint32_t left;        /* within a step */
};

typedef struct {
    PyObject_HEAD
    PyObject *client;
    struct ring_index *index;
    struct mr_consumer *consumer;
    uint32_t lane;
    uint64_t dataset;
    pid_t parent; /* when this process's parent is another one, its work is of no use any more; 0: does not matter */
    uint32_t request_flags; /* MR_REQUEST_* of every request */
    uint32_t cell;          /* samples of shards that are read together (shm/ring/lane.h); 0: none */
    bool writable, closed, feeding;
    unsigned long user; /* the thread that is in a method; 0 */
    struct feeder feeder;
} Lane;

static PyStructSequence_Field failure_fields[] = {
    {"index", "number of the object in .objects"},
    {"position", "place in the epoch's order, or what it was fed with"},
    {"code", "enum mr_code"},
    {"text", "why"},
    {NULL, NULL},
};
PyStructSequence_Desc ring_failure_desc = {
    .name = "millrace._ring.Failure",
    .doc = "An object that could not be delivered.",
    .fields = failure_fields,
    .n_in_sequence = 4,
};

/*
 * How many consecutive samples of shards one request is to bring: those of a block of the plan, or about WINDOW_BYTES. A
 * producer takes at most MR_JOB_TICKETS at once, so a larger block is divided.
 */
static uint32_t cell_of(const struct mr_index *index, uint64_t block)
{
    uint64_t count = index->info.count, bytes = index->info.total_bytes;
    if (mr_index_shard_count(index) == 0 || count == 0)
        return 0;
    if (block == 0)
        block = bytes / count >= WINDOW_BYTES ? 1 : (uint64_t)((double)WINDOW_BYTES * (double)count / (double)bytes);
    uint64_t parts = block / MR_JOB_TICKETS + (block % MR_JOB_TICKETS > 0);
    return parts > 0 ? (uint32_t)(block / parts + (block % parts > 0)) : 1;
}

PyObject *ring_lane_new(struct ring_state *state, PyObject *client, struct mr_views *views, struct mr_lane *lane,
                        uint64_t dataset, struct ring_index *index, bool writable, uint32_t request_flags, long parent)
{
    uint32_t number = lane->lane;
    struct mr_consumer *consumer = mr_consumer_new(lane, views);
    if (!consumer) {
        ring_raise();
        mr_lane_unmap(lane);
        ring_client_lane_closed(client, number);
        return NULL;
    }
    Lane *self = PyObject_New(Lane, state->lane);
    if (!self) {
        mr_consumer_destroy(consumer);
        ring_client_lane_closed(client, number);
        return NULL;
    }
    Py_INCREF(client);
    self->client = client;
    self->index = ring_index_ref(index);
    self->consumer = consumer;
    self->dataset = dataset;
    self->lane = number;
    self->parent = (pid_t)parent;
    self->writable = writable;
    self->request_flags = request_flags;
    self->cell = cell_of(&index->index, 0);
    self->closed = self->feeding = false;
    self->user = 0;
    ring_fault_install();
    return (PyObject *)self;
}

static void close_lane(Lane *self)
{
    if (self->closed)
        return;
    self->closed = true;
    self->feeding = false;
    mr_consumer_close(self->consumer);
    if (!mr_consumer_is_foreign(self->consumer))
        ring_client_lane_closed(self->client, self->lane);
}

static void lane_dealloc(Lane *self)
{
    PyTypeObject *type = Py_TYPE(self);
    close_lane(self);
    mr_consumer_destroy(self->consumer);
    ring_index_unref(self->index);
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int refuse_foreign(void)
{
    PyErr_SetString(PyExc_ValueError, "this lane belongs to the process before the fork");
    return -1;
}

/* A lane is for one thread at a time, and ends with close and with a fork. For a method, which calls ring_leave at its
 * end: 0, or -1 with an exception. */
static int lane_enter(Lane *self)
{
    if (mr_consumer_is_foreign(self->consumer))
        return refuse_foreign();
    if (!self->closed)
        return ring_enter(&self->user, "lane");
    PyErr_SetString(PyExc_ValueError, "this lane is closed");
    return -1;
}

/* ---- feeding ---- */

static int make_sample(Lane *self, uint64_t object, uint64_t cookie, struct mr_sample *sample)
{
    struct mr_index_entry entry;
    if (mr_index_get(&self->index->index, object, &entry, NULL))
        return -1;
    *sample = (struct mr_sample){.request = {.dataset = mr_dataset_number(self->dataset),
                                             .flags = self->request_flags,
                                             .object = object,
                                             .cell = self->cell},
                                 .bytes = entry.size,
                                 .cookie = cookie};
    return 0;
}

/* The next position of the plan: false at its end. */
static bool feeder_next(struct feeder *f, uint64_t *position)
{
    if (f->single) {
        if (f->next >= f->total)
            return false;
        *position = mr_plan_single_position(&f->plan, f->worker, f->workers, f->next++);
        return true;
    }
    while (!f->left) {
        if (f->next >= f->total)
            return false;
        mr_plan_share(&f->plan, mr_plan_worker_step(f->next++, f->worker, f->workers), &f->position, &f->left);
    }
    f->left--;
    *position = f->position++;
    return true;
}

static int feed_some(Lane *self, struct mr_sample *samples, size_t most)
{
    size_t count = 0;
    uint64_t position;
    while (count < most && (self->feeding = feeder_next(&self->feeder, &position))) {
        if (make_sample(self, mr_plan_object(&self->feeder.plan, position), position, &samples[count++]))
            return -1;
    }
    return count > 0 ? mr_consumer_feed(self->consumer, samples, count) : 0;
}

/* Keeps the queue after the window filled from the plan. */
static int top_up(Lane *self)
{
    while (self->feeding && mr_consumer_backlog(self->consumer) < mr_consumer_window(self->consumer)) {
        struct mr_sample samples[FEED_AT_A_TIME];
        if (feed_some(self, samples, FEED_AT_A_TIME))
            return -1;
    }
    return 0;
}

/* The first window in one go: a worker that sees its first ticket sees all, and which ones go together. */
static int begin_feeding(Lane *self)
{
    size_t count = mr_consumer_window(self->consumer);
    struct mr_sample *samples = malloc(count * sizeof *samples);
    if (!samples) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu samples", count);
        return -1;
    }
    int rc = feed_some(self, samples, count);
    free(samples);
    return rc;
}

static PyObject *lane_start(Lane *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plan", "worker", "workers", "single", "skip", NULL};
    PyObject *object;
    unsigned worker = 0, workers = 1;
    unsigned long long skip = 0;
    int single = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|II$pK:start", names, &object, &worker, &workers, &single, &skip))
        return NULL;
    const struct mr_plan *plan = ring_plan_of(ring_state_of(Py_TYPE(self)), object);
    if (!plan)
        return NULL;
    if (worker >= workers) {
        PyErr_Format(PyExc_ValueError, "there is no worker %u of %u", worker, workers);
        return NULL;
    }
    if (plan->p.size != self->index->index.info.count) {
        PyErr_SetString(PyExc_ValueError, "this plan is for another index: make it for the index of this lane");
        return NULL;
    }
    if (lane_enter(self))
        return NULL;
    bool neighbours = !plan->p.shuffle || plan->p.block > 0;
    self->cell = neighbours ? cell_of(&self->index->index, plan->p.shuffle ? plan->p.block : 0) : 0;
    if (self->cell) /* what it feeds now is read at leisure: the rest of a cell comes soon */
        self->request_flags |= MR_REQUEST_PATIENT;
    self->feeder = (struct feeder){.plan = *plan, .worker = worker, .workers = workers, .single = single, .next = skip};
    self->feeder.total =
        single ? mr_plan_single_count(plan, worker, workers) : mr_plan_worker_steps(plan, worker, workers);
    self->feeding = true;
    int rc = begin_feeding(self);
    ring_leave(&self->user);
    if (rc)
        return ring_raise();
    Py_RETURN_NONE;
}

static PyObject *lane_feed(Lane *self, PyObject *args)
{
    unsigned long long object, position, offset = 0, length = 0;
    if (!PyArg_ParseTuple(args, "KK|KK:feed", &object, &position, &offset, &length) || lane_enter(self))
        return NULL;
    struct mr_sample sample;
    int rc = make_sample(self, object, position, &sample);
    if (rc == 0 && length > 0) {
        sample.request.offset = offset;
        sample.request.length = sample.bytes = length;
    }
    rc = rc || mr_consumer_feed(self->consumer, &sample, 1);
    ring_leave(&self->user);
    if (rc)
        return ring_raise();
    Py_RETURN_NONE;
}

static int sample_of_number(Lane *self, PyObject *number, struct mr_sample *sample)
{
    uint64_t object;
    if (ring_uint64(number, &object))
        return -1;
    if (make_sample(self, object, object, sample) == 0)
        return 0;
    ring_raise();
    return -1;
}

/* In one go: a worker that sees the first of them sees all, so that neighbours are one request. */
static PyObject *lane_feed_all(Lane *self, PyObject *objects)
{
    PyObject *numbers = PySequence_Fast(objects, "a sequence of objects' numbers is fed"), *result = NULL;
    if (!numbers)
        return NULL;
    size_t count = (size_t)PySequence_Fast_GET_SIZE(numbers);
    struct mr_sample *samples = PyMem_Calloc(count + 1, sizeof *samples);
    if (!samples)
        PyErr_NoMemory();
    else if (lane_enter(self) == 0) {
        size_t made = 0;
        while (made < count && sample_of_number(self, PySequence_Fast_GET_ITEM(numbers, made), &samples[made]) == 0)
            made++;
        if (made == count)
            result = mr_consumer_feed(self->consumer, samples, count) ? ring_raise() : Py_NewRef(Py_None);
        ring_leave(&self->user);
    }
    PyMem_Free(samples);
    Py_DECREF(numbers);
    return result;
}

/* ---- taking ---- */

/* What failed, and why: a reason alone, ": ...", comes after what its reader knows. */
static PyObject *failure_text(Lane *self, const struct mr_delivery *delivery)
{
    char *described = NULL;
    if (delivery->text[0] == ':')
        described = mr_index_describe(&self->index->index, delivery->sample.request.object, NULL);
    PyObject *what = PyUnicode_DecodeUTF8(described ? described : "", described ? (Py_ssize_t)strlen(described) : 0,
                                          "backslashreplace");
    free(described);
    PyObject *why = PyUnicode_DecodeUTF8(delivery->text, (Py_ssize_t)strnlen(delivery->text, sizeof(delivery->text)),
                                         "backslashreplace");
    PyObject *text = what && why ? PyUnicode_Concat(what, why) : NULL;
    Py_XDECREF(what);
    Py_XDECREF(why);
    return text;
}

static PyObject *make_failure(Lane *self, struct ring_state *state, const struct mr_delivery *delivery)
{
    PyObject *failure = PyStructSequence_New(state->failure);
    if (!failure)
        return NULL;
    PyStructSequence_SET_ITEM(failure, 0, PyLong_FromUnsignedLongLong(delivery->sample.request.object));
    PyStructSequence_SET_ITEM(failure, 1, PyLong_FromUnsignedLongLong(delivery->sample.cookie));
    PyStructSequence_SET_ITEM(failure, 2, PyLong_FromUnsignedLong(delivery->code));
    PyStructSequence_SET_ITEM(failure, 3, failure_text(self, delivery));
    if (!PyErr_Occurred())
        return failure;
    Py_DECREF(failure);
    return NULL;
}

static PyObject *make_lease(Lane *self, struct ring_state *state, const struct mr_delivery *delivery)
{
    struct ring_hold *hold = ring_hold_new(self->consumer, self->index, delivery);
    if (hold && self->writable && hold->consumer) {
        struct ring_hold *copy = ring_hold_copy(hold);
        ring_hold_unref(hold);
        hold = copy;
    }
    return ring_lease_new(state, hold, delivery, self->writable);
}

/* What only happens while we wait: 0 to continue waiting, -1 with an exception. */
static int check_interrupts(Lane *self, struct mr_silence *wait)
{
    if (PyErr_CheckSignals())
        return -1;
    if (mr_consumer_is_foreign(self->consumer)) /* a handler has forked, and this is the child */
        return refuse_foreign();
    if (self->parent && getppid() != self->parent) {
        PyErr_Format(PyExc_RuntimeError, "the process that this DataLoader worker works for (pid %d) has ended",
                     (int)self->parent);
        return -1;
    }
    return ring_client_check(self->client, self->dataset, wait);
}

/* It is not there yet: 0 when it is, -1 with an exception. Silence counts for this wait alone: workers go on without the
 * supervisor. */
static int wait_for_next(Lane *self, enum mr_next *got, struct mr_delivery *delivery)
{
    struct mr_silence silence = {0};
    while (*got == MR_NEXT_TIMEOUT || *got == MR_NEXT_SIGNAL) {
        Py_BEGIN_ALLOW_THREADS
            *got = mr_consumer_next(self->consumer, SLICE_MS, delivery);
        Py_END_ALLOW_THREADS
        if ((*got == MR_NEXT_TIMEOUT || *got == MR_NEXT_SIGNAL) && check_interrupts(self, &silence))
            return -1;
    }
    return 0;
}

static PyObject *take_next(Lane *self)
{
    struct mr_delivery delivery;
    enum mr_next got = mr_consumer_next(self->consumer, 0, &delivery);
    if ((got == MR_NEXT_TIMEOUT || got == MR_NEXT_SIGNAL) && wait_for_next(self, &got, &delivery))
        return NULL;
    struct ring_state *state = ring_state_of(Py_TYPE(self));
    if (got == MR_NEXT_OK)
        return make_lease(self, state, &delivery);
    if (got == MR_NEXT_FAILED)
        return make_failure(self, state, &delivery);
    Py_RETURN_NONE;
}

static PyObject *lane_next(Lane *self, PyObject *ignored)
{
    (void)ignored;
    if (lane_enter(self))
        return NULL;
    PyObject *result = top_up(self) ? ring_raise() : take_next(self);
    ring_leave(&self->user);
    return result;
}

static PyObject *lane_next_fed(Lane *self, PyObject *ignored)
{
    (void)ignored;
    if (lane_enter(self))
        return NULL;
    PyObject *result = take_next(self);
    ring_leave(&self->user);
    return result;
}

static PyObject *lane_close(Lane *self, PyObject *ignored)
{
    (void)ignored;
    if (!mr_consumer_is_foreign(self->consumer) && ring_enter(&self->user, "lane"))
        return NULL; /* in a forked child the thread that was in it does not exist */
    close_lane(self);
    ring_leave(&self->user);
    Py_RETURN_NONE;
}

static PyObject *lane_count(Lane *self, PyObject *args)
{
    const char *what;
    if (!PyArg_ParseTuple(args, "s", &what))
        return NULL;
    if (strcmp(what, "skipped") != 0 && strcmp(what, "replaced") != 0) {
        PyErr_Format(PyExc_ValueError, "\"%s\" is not skipped or replaced", what);
        return NULL;
    }
    mr_consumer_count(self->consumer, what[0] == 's' ? MR_CC_SKIPPED : MR_CC_REPLACED, 1);
    Py_RETURN_NONE;
}

static PyObject *lane_get_window(Lane *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(mr_consumer_window(self->consumer));
}

static PyObject *lane_get_waited_ns(Lane *self, void *closure)
{
    (void)closure;
    struct mr_consumer_stats stats;
    mr_consumer_stats(self->consumer, &stats);
    return PyLong_FromUnsignedLongLong(stats.wait_ns);
}

static PyMethodDef lane_methods[] = {
    {"start", (PyCFunction)(void (*)(void))lane_start, METH_VARARGS | METH_KEYWORDS,
     "start(plan, worker=0, workers=1, *, single=False): feed what the plan gives that worker."},
    {"feed", (PyCFunction)lane_feed, METH_VARARGS,
     "feed(object, position, offset=0, length=0): one more after what was fed; without a length the whole object."},
    {"feed_all", (PyCFunction)lane_feed_all, METH_O,
     "feed_all(objects): these objects after what was fed, asked for at once; each is its own position."},
    {"next", (PyCFunction)lane_next, METH_NOARGS,
     "next() -> Lease, Failure, or None at the end of what was fed. Waits, without the GIL."},
    {"next_fed", (PyCFunction)lane_next_fed, METH_NOARGS,
     "next_fed(): as next(), but feeds nothing more from the plan before it."},
    {"close", (PyCFunction)lane_close, METH_NOARGS, "Ends the stream. Leases stay valid. May be called twice."},
    {"count", (PyCFunction)lane_count, METH_VARARGS, "count(what): one more \"skipped\" or \"replaced\" sample."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef lane_getset[] = {
    {"window", (getter)lane_get_window, NULL, "tickets of the lane", NULL},
    {"waited_ns", (getter)lane_get_waited_ns, NULL, "ns that next() has waited for objects, in all", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot lane_slots[] = {
    {Py_tp_new, ring_no_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_getset},
    {Py_tp_doc, "One consumer's ordered stream of objects; for one thread at a time. Client.open_lane makes it."},
    {0, NULL},
};
PyType_Spec ring_lane_spec = {
    .name = "millrace._ring.Lane",
    .basicsize = sizeof(Lane),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lane_slots,
};
