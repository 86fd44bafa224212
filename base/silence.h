/*
 * silence.h - for how long another process has given no sign of life, while we were there to notice.
 *
 * A sign is a number that the other one changes while it goes on. Whoever waits looks at it again and again. Between
 * two looks no more than a quarter of the limit counts: a process that was itself stopped, a laptop that was closed, a
 * virtual machine that was paused, or a wait that ended and began anew much later find the other one with most of its
 * period before it, in which it only has to go on.
 *
 * One owner a structure. Zeroed: no look yet.
 */
#ifndef MR_BASE_SILENCE_H
#define MR_BASE_SILENCE_H

#include <stdint.h>

#define MR_SILENCE_MS 10000 /* where no configuration is known (supervisor.silence_ms) */

struct mr_silence {
    uint64_t sign;     /* when we looked last */
    int64_t looked_ns; /* CLOCK_MONOTONIC; 0: never */
    int64_t silent_ns; /* since the sign changed, as far as it counts */
};

/* Looks at the sign; limit_ns > 0. Returns for how long it has not changed. */
int64_t mr_silence_look(struct mr_silence *silence, uint64_t sign, int64_t now_ns, int64_t limit_ns);

#endif
