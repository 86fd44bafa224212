/*
 * heartbeat.h - signs of life: the supervisor's own, for other processes; workers that are stopped, for the log.
 *
 * The supervisor adds 1 to `beat` on the board at least once a second (eight times in supervisor.silence_ms where that
 * is shorter); a process that waits for it looks there (shm/control/client.h). At the same times it looks for workers
 * of any role that are stopped (SIGSTOP, a debugger) while there is work for them: one that has been stopped for half
 * of silence_ms is named in the log, with what to do. Nothing is taken from it: death is a readable pidfd and nothing
 * else.
 */
#ifndef MR_SUPERVISOR_HEARTBEAT_H
#define MR_SUPERVISOR_HEARTBEAT_H

#include "supervisor/events.h"

struct mr_supervisor;

struct mr_heartbeat {
    struct mr_timer timer;
};

/* Begins. The board is there. */
void mr_heartbeat_init(struct mr_supervisor *s);
void mr_heartbeat_close(struct mr_supervisor *s);

#endif
