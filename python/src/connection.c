/* connection.c - the connection of a Client, for what uses it: see client_impl.h. */
#include "client_impl.h"

#include <unistd.h>

#include "base/error.h"
#include "shm/memory/fork_mark.h"

#define VIEWS_TRIES    1000
#define VIEWS_PAUSE_US 10000

bool ring_client_is_foreign(const Client *self)
{
    return !mr_fork_mark_is(self->mark);
}

int ring_client_begin(Client *self)
{
    if (ring_client_is_foreign(self)) { /* the lock may be held by a thread that is not there */
        PyErr_SetString(PyExc_ValueError,
                        "this connection to the supervisor was opened before a fork: connect again in the child");
        return -1;
    }
    if (!ring_lock(self->lock))
        return ring_refuse_ending();
    if (self->client)
        return 0;
    PyThread_release_lock(self->lock);
    PyErr_SetString(PyExc_ValueError, "this connection is closed");
    return -1;
}

void ring_client_end(Client *self)
{
    PyThread_release_lock(self->lock);
}

/* 0 also while another thread is using the connection: that thread will find out. A warning about a stopped supervisor
 * may be issued, and may raise. */
static int check(PyObject *object, const uint64_t *dataset, struct mr_silence *wait)
{
    Client *self = (Client *)object;
    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK))
        return 0; /* the thread that holds it will see the same */
    int rc = 0;
    const char *warning = "";
    if (!self->client) {
        rc = -1;
        mr_error_set(MR_E_GONE, "the connection to the supervisor was closed");
    } else {
        rc = mr_client_check_wait(self->client, wait);
        warning = mr_client_warning(self->client);
        if (!rc && dataset && mr_client_dataset_state(self->client, *dataset) == MR_DATASET_FAILED)
            rc = -1;
    }
    ring_client_end(self);
    if (rc)
        ring_raise();
    ring_warn(warning);
    return rc;
}

int ring_client_check(PyObject *object, uint64_t dataset, struct mr_silence *wait)
{
    return check(object, &dataset, wait);
}

int ring_client_check_alive(PyObject *object, struct mr_silence *wait)
{
    return check(object, NULL, wait);
}

/* A call whose failure is not reported: a supervisor that lives and does not answer is worth a line. */
static bool is_unanswered(const Client *self, int rc)
{
    return rc != 0 && mr_error_code() == MR_E_GONE && !mr_client_has_ended(self->client);
}

/* A lane, or a data set, is not used any more. */
static void closed(Client *self, bool is_lane, uint64_t number)
{
    bool unanswered = false;
    if (!ring_lock(self->lock))
        return; /* the supervisor sees this process end */
    if (self->client) {
        int rc;
        Py_BEGIN_ALLOW_THREADS
            rc = is_lane ? mr_client_close_lane(self->client, (uint32_t)number)
                         : mr_client_close_dataset(self->client, number);
        Py_END_ALLOW_THREADS
        unanswered = is_unanswered(self, rc);
    }
    if (is_lane)
        self->lanes--;
    ring_client_end(self);
    if (unanswered)
        ring_warn(mr_error_text());
}

void ring_client_lane_closed(PyObject *object, uint32_t lane)
{
    closed((Client *)object, true, lane);
}

void ring_client_dataset_closed(PyObject *object, uint64_t dataset)
{
    closed((Client *)object, false, dataset);
}

void ring_client_unused(PyObject *object, struct ring_unused *unused)
{
    Client *self = (Client *)object;
    unused->next = self->unused;
    self->unused = unused;
}

/* The data set is READY: BUSY is the moment in which the fetch workers start again for a larger reserve. */
struct mr_views *ring_client_await_views(struct mr_client *client)
{
    struct mr_views *views;
    for (unsigned i = 0; !(views = mr_client_views(client)) && mr_error_code() == MR_E_BUSY && i < VIEWS_TRIES; i++)
        usleep(VIEWS_PAUSE_US);
    return views;
}

int ring_client_open_range_lane(PyObject *object, uint64_t dataset, uint32_t window, struct mr_consumer **consumer,
                                uint32_t *number)
{
    Client *self = (Client *)object;
    *consumer = NULL;
    if (ring_client_begin(self))
        return -1;
    struct mr_lane lane;
    struct mr_loop loop;
    bool has_loop;
    Py_BEGIN_ALLOW_THREADS
        struct mr_views *views = ring_client_await_views(self->client);
        if (views && mr_client_open_lane(self->client, dataset, window, window, NULL, &lane, &loop, &has_loop) == 0) {
            *number = lane.lane;
            views = mr_client_views(self->client); /* the lane's */
            *consumer = views ? mr_consumer_new(&lane, views) : NULL;
            if (!*consumer) {
                mr_lane_unmap(&lane);
                mr_client_close_lane(self->client, *number);
            }
        }
    Py_END_ALLOW_THREADS
    if (*consumer)
        self->lanes++;
    ring_client_end(self);
    if (*consumer)
        return 0;
    ring_raise();
    return -1;
}

void ring_client_writer_left(PyObject *object, struct mr_ckpt_writer *writer)
{
    Client *self = (Client *)object;
    if (!ring_lock(self->lock))
        return;
    mr_ckpt_part_unmap(&writer->lane);
    self->writers--;
    ring_client_end(self);
}

void ring_client_writer_closed(PyObject *object, struct mr_ckpt_writer *writer)
{
    Client *self = (Client *)object;
    if (!ring_lock(self->lock))
        return; /* the supervisor sees this process end */
    int rc;
    Py_BEGIN_ALLOW_THREADS
        rc = mr_client_close_writer(self->client, writer);
    Py_END_ALLOW_THREADS
    bool unanswered = is_unanswered(self, rc);
    self->writers--;
    ring_client_end(self);
    if (unanswered)
        ring_warn(mr_error_text());
}

int ring_client_node(struct ring_state *state, PyObject *client, struct mr_node *node)
{
    if (!Py_IS_TYPE(client, state->client)) {
        PyErr_Format(PyExc_TypeError, "a Client is wanted, not %.100s", Py_TYPE(client)->tp_name);
        return -1;
    }
    Client *self = (Client *)client;
    if (ring_client_begin(self))
        return -1;
    mr_client_node(self->client, node);
    ring_client_end(self);
    return 0;
}
