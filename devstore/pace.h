/*
 * pace.h - a limit in bytes per second, of one connection or shared by all of them.
 *
 * A sender asks when it may send (ds_pace_ready), sends at most ds_pace_piece bytes, and reports how many it sent
 * (ds_pace_charge). Several senders that share a pace may be told "now" at once; they then wait longer afterwards.
 */
#ifndef MR_DEVSTORE_PACE_H
#define MR_DEVSTORE_PACE_H

#include <pthread.h>
#include <stdint.h>

struct ds_pace {
    double rate; /* bytes/s; 0: no limit */
    pthread_mutex_t lock;
    int64_t next_ns; /* from when on more may be sent */
};

void ds_pace_init(struct ds_pace *pace, double rate);
void ds_pace_close(struct ds_pace *pace);
/* When more may be sent; a time in the past: now. */
int64_t ds_pace_ready(struct ds_pace *pace);
/* The most bytes to be sent at once: those of about 10 ms, at least one. */
uint64_t ds_pace_piece(const struct ds_pace *pace);
void ds_pace_charge(struct ds_pace *pace, int64_t now_ns, uint64_t bytes);

#endif
