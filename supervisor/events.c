/*
 * events.c - see events.h. A watch or a timer belongs to its caller and may be taken out at any time, also by a
 * handler of the same batch: what was taken out is not called any more. Timers run after the descriptors, each at most
 * once a step.
 */
#include "supervisor/events.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define BATCH 64

int mr_events_init(struct mr_events *events)
{
    *events = (struct mr_events){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (events->epoll >= 0)
        return 0;
    mr_error_set_errno(errno, "cannot make an epoll descriptor");
    return -1;
}

void mr_events_close(struct mr_events *events)
{
    if (events->epoll >= 0)
        close(events->epoll);
    events->epoll = -1;
}

int mr_events_watch(struct mr_events *events, struct mr_watch *watch, int fd, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = watch};
    if (epoll_ctl(events->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        mr_error_set_errno(errno, "cannot watch descriptor %d", fd);
        return -1;
    }
    watch->fd = fd;
    watch->active = true;
    return 0;
}

int mr_events_change(struct mr_events *events, struct mr_watch *watch, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = watch};
    if (epoll_ctl(events->epoll, EPOLL_CTL_MOD, watch->fd, &event) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot watch descriptor %d", watch->fd);
    return -1;
}

void mr_events_unwatch(struct mr_events *events, struct mr_watch *watch)
{
    if (!watch->active)
        return;
    epoll_ctl(events->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->active = false;
    for (int i = 0; i < events->batch_count; i++)
        if (events->batch[i] == watch)
            events->batch[i] = NULL; /* it was ready too, but its owner may not exist when its turn comes */
}

void mr_events_start(struct mr_events *events, struct mr_timer *timer, unsigned delay_ms)
{
    mr_events_stop(events, timer);
    timer->due_ns = mr_clock_mono_ns() + (int64_t)delay_ms * MR_MILLISECOND_NS;
    struct mr_timer **at = &events->timers;
    while (*at && (*at)->due_ns <= timer->due_ns)
        at = &(*at)->next;
    timer->next = *at;
    timer->active = true;
    *at = timer;
}

void mr_events_stop(struct mr_events *events, struct mr_timer *timer)
{
    if (!timer->active)
        return;
    struct mr_timer **at = &events->timers;
    while (*at != timer)
        at = &(*at)->next;
    *at = timer->next;
    timer->active = false;
}

static int wait_ms(const struct mr_events *events)
{
    if (!events->timers)
        return -1;
    int64_t left_ns = events->timers->due_ns - mr_clock_mono_ns();
    if (left_ns <= 0)
        return 0;
    int64_t left_ms = (left_ns + MR_MILLISECOND_NS - 1) / MR_MILLISECOND_NS;
    return left_ms < 1000000 ? (int)left_ms : 1000000;
}

/* Runs the timers that are due at the start: one that sets itself again at once runs in the next step, after the
 * descriptors. */
static void run_timers(struct mr_events *events)
{
    int64_t now_ns = mr_clock_mono_ns();
    while (events->timers && events->timers->due_ns <= now_ns) {
        struct mr_timer *timer = events->timers;
        mr_events_stop(events, timer);
        timer->run(timer);
    }
}

int mr_events_step(struct mr_events *events)
{
    struct epoll_event ready[BATCH];
    int count = epoll_wait(events->epoll, ready, BATCH, wait_ms(events));
    if (count < 0 && errno != EINTR) {
        mr_error_set_errno(errno, "cannot wait for events");
        return -1;
    }
    struct mr_watch *batch[BATCH];
    for (int i = 0; i < count; i++)
        batch[i] = ready[i].data.ptr;
    events->batch = batch;
    events->batch_count = count > 0 ? count : 0;
    for (int i = 0; i < count; i++)
        if (batch[i])
            batch[i]->ready(batch[i], ready[i].events);
    events->batch = NULL;
    events->batch_count = 0;
    run_timers(events);
    return 0;
}
