/* events.h - the supervisor's one loop: descriptors and timers, called back from mr_events_step and nowhere else. */
#ifndef MR_SUPERVISOR_EVENTS_H
#define MR_SUPERVISOR_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

/* Both are embedded in their owner, zero-initialised, and must be removed before its memory is freed. A callback may
 * add and remove any of them, its own included. */
struct mr_watch {
    int fd; /* borrowed; valid while `active` */
    bool active;
    void (*ready)(struct mr_watch *watch, uint32_t epoll_events);
};

struct mr_timer {
    int64_t due_ns;
    void (*run)(struct mr_timer *timer); /* once; it may set itself again */
    struct mr_timer *next;               /* private */
    bool active;
};

struct mr_events {
    int epoll;
    struct mr_timer *timers; /* by due_ns */
    struct mr_watch **batch; /* what the current step has still to call */
    int batch_count;
};

int mr_events_init(struct mr_events *events);
void mr_events_close(struct mr_events *events);
/* Calls watch->ready when fd has one of epoll_events (EPOLLIN, ...). 0 or -1. */
int mr_events_watch(struct mr_events *events, struct mr_watch *watch, int fd, uint32_t epoll_events);
int mr_events_change(struct mr_events *events, struct mr_watch *watch, uint32_t epoll_events);
/* Before fd is closed. Nothing happens when it is not active. */
void mr_events_unwatch(struct mr_events *events, struct mr_watch *watch);
/* Sets the timer, again if it is set. */
void mr_events_start(struct mr_events *events, struct mr_timer *timer, unsigned delay_ms);
void mr_events_stop(struct mr_events *events, struct mr_timer *timer);
/* Waits until something happens and calls it. 0 or -1. */
int mr_events_step(struct mr_events *events);

#endif
