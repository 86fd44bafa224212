/*
 * ahead.h - how many samples a consumer asks for before it takes them: a number, or one that follows what it waits for.
 *
 * It doubles when the consumer has to wait although it has asked for all that it may, and not again until the samples
 * that were asked for by then are taken; this hides a store's latency. It shrinks by a quarter, never below its first
 * value, once that many samples in a row were taken with half of them READY each time. Private to the consumer; no
 * clock and no memory of its own.
 */
#ifndef MR_SHM_RING_AHEAD_H
#define MR_SHM_RING_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Where no distance is given: the first value, and the maximum. */
#define MR_AHEAD_FIRST 256u
#define MR_AHEAD_MOST  1024u

struct mr_ahead {
    uint32_t now, first;
    /* private */
    uint32_t most;
    uint32_t settling; /* samples to be taken before it may grow: they were asked for under another number */
    uint32_t ample;    /* samples taken in a row while half of it was ready */
};

/* first == most: a number. */
void mr_ahead_init(struct mr_ahead *ahead, uint32_t first, uint32_t most);
/* A sample was taken. half_ready: the one that lies half of `now` after it is READY already; ignored while now is
 * first. true: now has become less. */
bool mr_ahead_taken(struct mr_ahead *ahead, bool half_ready);
/* The consumer is about to wait, and `now` keeps it from asking for more. asked: samples asked for and not taken. true:
 * now has become more, ask for more. */
bool mr_ahead_waits(struct mr_ahead *ahead, uint32_t asked);

#endif
