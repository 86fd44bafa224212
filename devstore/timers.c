#include "devstore/timers.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"

#define GRID_NS (MR_MILLISECOND_NS / 2)

struct entry {
    int64_t deadline_ns;
    struct MHD_Connection *connection;
};

struct ds_timers {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct entry *heap; /* the earliest deadline first */
    size_t count, capacity;
    bool draining;
    pthread_t thread;
};

static void sift_up(struct entry *heap, size_t i)
{
    for (size_t parent; i > 0 && heap[i].deadline_ns < heap[parent = (i - 1) / 2].deadline_ns; i = parent) {
        struct entry swap = heap[i];
        heap[i] = heap[parent];
        heap[parent] = swap;
    }
}

static void sift_down(struct entry *heap, size_t count, size_t i)
{
    for (;;) {
        size_t least = i, child = 2 * i + 1;
        for (size_t c = child; c < child + 2 && c < count; c++) {
            if (heap[c].deadline_ns < heap[least].deadline_ns)
                least = c;
        }
        if (least == i)
            return;
        struct entry swap = heap[i];
        heap[i] = heap[least];
        heap[least] = swap;
        i = least;
    }
}

/* Resumes connections as their time comes. When draining, resumes all that are left and ends. */
static void *timers_run(void *cls)
{
    struct ds_timers *timers = cls;
    pthread_mutex_lock(&timers->lock);
    while (!timers->draining || timers->count > 0) {
        if (timers->count == 0) {
            pthread_cond_wait(&timers->changed, &timers->lock);
            continue;
        }
        int64_t deadline_ns = timers->heap[0].deadline_ns;
        if (!timers->draining && deadline_ns > mr_clock_mono_ns()) {
            struct timespec until = {.tv_sec = (time_t)(deadline_ns / MR_SECOND_NS),
                                     .tv_nsec = (long)(deadline_ns % MR_SECOND_NS)};
            pthread_cond_timedwait(&timers->changed, &timers->lock, &until);
            continue;
        }
        struct MHD_Connection *connection = timers->heap[0].connection;
        timers->heap[0] = timers->heap[--timers->count];
        sift_down(timers->heap, timers->count, 0);
        /* Unlocked, since the callbacks of a resumed connection may call us at once. MHD does not close a suspended
         * connection, so the pointer is valid. */
        pthread_mutex_unlock(&timers->lock);
        MHD_resume_connection(connection);
        pthread_mutex_lock(&timers->lock);
    }
    pthread_mutex_unlock(&timers->lock);
    return NULL;
}

struct ds_timers *ds_timers_new(void)
{
    struct ds_timers *timers = calloc(1, sizeof *timers);
    if (!timers) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for timers");
        return NULL;
    }
    pthread_mutex_init(&timers->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&timers->changed, &attr);
    pthread_condattr_destroy(&attr);
    int failed = pthread_create(&timers->thread, NULL, timers_run, timers);
    if (failed) {
        mr_error_set_errno(failed, "cannot start the timer thread");
        pthread_cond_destroy(&timers->changed);
        pthread_mutex_destroy(&timers->lock);
        free(timers);
        return NULL;
    }
    return timers;
}

int ds_timers_suspend(struct ds_timers *timers, struct MHD_Connection *connection, int64_t deadline_ns)
{
    int rc = -1;
    deadline_ns = (deadline_ns + GRID_NS - 1) / GRID_NS * GRID_NS;
    pthread_mutex_lock(&timers->lock);
    if (timers->draining)
        goto out;
    if (timers->count == timers->capacity) {
        size_t capacity = timers->capacity ? timers->capacity * 2 : 256;
        struct entry *heap = realloc(timers->heap, capacity * sizeof *heap);
        if (!heap)
            goto out;
        timers->heap = heap;
        timers->capacity = capacity;
    }
    /* Suspended before it is in the heap: the thread must not resume what is not suspended yet. */
    MHD_suspend_connection(connection);
    timers->heap[timers->count] = (struct entry){.deadline_ns = deadline_ns, .connection = connection};
    sift_up(timers->heap, timers->count++);
    if (timers->heap[0].connection == connection)
        pthread_cond_signal(&timers->changed);
    rc = 0;
out:
    pthread_mutex_unlock(&timers->lock);
    return rc;
}

void ds_timers_drain(struct ds_timers *timers)
{
    pthread_mutex_lock(&timers->lock);
    bool first = !timers->draining;
    timers->draining = true;
    pthread_cond_signal(&timers->changed);
    pthread_mutex_unlock(&timers->lock);
    if (first)
        pthread_join(timers->thread, NULL);
}

void ds_timers_destroy(struct ds_timers *timers)
{
    if (!timers)
        return;
    ds_timers_drain(timers);
    pthread_cond_destroy(&timers->changed);
    pthread_mutex_destroy(&timers->lock);
    free(timers->heap);
    free(timers);
}
