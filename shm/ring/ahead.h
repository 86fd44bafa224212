/*
 * ahead.h - how many samples a consumer asks for before it takes them: a number, or one that follows what it waits for.
 *
 * It doubles when the consumer waits though all that it may ask for is asked for, once for all that was asked for then;
 * that is what hides a store's latency. It goes back by a quarter, never below where it began, once the whole of it was
 * taken and half of it lay there ready each time. Private to the consumer; no clock and no memory of its own.
 */
#ifndef MR_SHM_RING_AHEAD_H
#define MR_SHM_RING_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Where nobody says how far: at first, and at most. */
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
/* A sample is taken. half_ready: the one that lies half of `now` behind it is there already; not looked at while now is
 * first. true: now is less. */
bool mr_ahead_taken(struct mr_ahead *ahead, bool half_ready);
/* The consumer is about to wait; asked: samples asked for and not taken. true: now is more, ask for more. Call it where
 * `now` keeps it from asking. */
bool mr_ahead_waits(struct mr_ahead *ahead, uint32_t asked);

#endif
