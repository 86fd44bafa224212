/*
 * timers.h - one thread that wakes suspended connections when their time comes.
 *
 * A reply that must wait (latency, bandwidth, a stall) suspends its connection and leaves it here, so that thousands
 * may wait without a thread each. Deadlines are rounded up to a grid of 1/2 ms: connections due together are resumed
 * together.
 */
#ifndef MR_DEVSTORE_TIMERS_H
#define MR_DEVSTORE_TIMERS_H

#include <stdint.h>

struct MHD_Connection;
struct ds_timers;

struct ds_timers *ds_timers_new(void); /* NULL with an error */
/*
 * Suspends the connection until mr_clock_mono_ns() reaches the deadline. Only from a callback that MHD runs for this
 * connection. 0, or -1 when the server is about to end (or has no memory): the connection was not suspended, go on at
 * once.
 */
int ds_timers_suspend(struct ds_timers *timers, struct MHD_Connection *connection, int64_t deadline_ns);
/* Resumes every connection now and suspends none from here on: to be called before MHD_stop_daemon. */
void ds_timers_drain(struct ds_timers *timers);
void ds_timers_destroy(struct ds_timers *timers); /* after MHD_stop_daemon */

#endif
