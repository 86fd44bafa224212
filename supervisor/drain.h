/*
 * drain.h - DRAINING: the end of the run waits for the checkpoints that were promised.
 *
 * Open checkpoint lanes are aborted; sealed ones get checkpoint.drain_s to be finished, and the log says at once
 * and every 10 s what is waited for. Then, or when a second signal comes, the run stops. A signal that comes while the
 * command's end is being drained logs what is still being saved first, and the next one stops; for `serve` the signal
 * that began the end is the first.
 */
#ifndef MR_SUPERVISOR_DRAIN_H
#define MR_SUPERVISOR_DRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/events.h"

struct mr_supervisor;

struct mr_drain {
    struct mr_timer timer;
    int64_t begun_ns, logged_ns;
    bool warned; /* it was logged that the next signal stops */
    bool term;   /* the command was sent TERM through us */
    bool over;   /* nothing that was promised is left to do, or what is left was abandoned */
};

void mr_drain_init(struct mr_supervisor *s);
void mr_drain_close(struct mr_supervisor *s);
/* DRAINING has begun: aborts what is open. */
void mr_drain_begin(struct mr_supervisor *s);
/* In DRAINING: sets `over` when nothing is left, or the time is up. True when anything has changed. */
bool mr_drain_settle(struct mr_supervisor *s);
/* INT, TERM or QUIT came while DRAINING: true when it is the one that stops. */
bool mr_drain_signal(struct mr_supervisor *s, int signal);
/* Abandons what is not finished, and sets `over`. */
void mr_drain_stop(struct mr_supervisor *s, const char *why);

#endif
