/*
 * drain.h - DRAINING: the end of the run waits for the checkpoints that were promised.
 *
 * Open part lanes are aborted; sealed ones get checkpoint.drain_s to be finished, and the log says at once and every
 * 10 s what is waited for. Then, or when a second signal comes, the run stops. A signal that comes while the command's
 * end is being drained says what is still being saved first, and the next one stops; for `serve` the signal that began
 * the end is the first.
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
    int64_t begun_ns, said_ns;
    bool warned; /* somebody has been told that the next signal stops */
    bool term;   /* the command was sent TERM through us */
};

void mr_drain_init(struct mr_supervisor *s);
void mr_drain_close(struct mr_supervisor *s);
/* DRAINING has begun. May end it at once. */
void mr_drain_begin(struct mr_supervisor *s);
/* Something has ended: ends DRAINING when nothing is left. Harmless in other states. */
void mr_drain_look(struct mr_supervisor *s);
/* INT, TERM or QUIT came while DRAINING: true when it is the one that stops. */
bool mr_drain_signal(struct mr_supervisor *s, int signal);
/* Gives up what is not finished; the caller stops the run. */
void mr_drain_stop(struct mr_supervisor *s, const char *why);

#endif
