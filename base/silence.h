/*
 * silence.h - for how long another process has given no sign of life, while we were there to notice.
 *
 * A sign is a number that the other process changes while it runs. The process that waits looks at it repeatedly.
 * Between two looks no more than a quarter of the limit counts. So after this process was itself stopped, a laptop was
 * closed, a virtual machine was paused, or a wait ended and began anew much later, the other process still has most of
 * its period to give a sign.
 *
 * One owner per structure. Zeroed: no look yet.
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
