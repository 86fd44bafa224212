/*
 * meters.h - what the loaders of this node measure (shm/meter/meter.h), and what follows from it.
 *
 * A trainer sends a descriptor of each loader's counters; it is mapped read-only, and read once a second. A mapping is
 * dropped as soon as the trainer says that the loader has ended, or exits.
 */
#ifndef MR_SUPERVISOR_METERS_H
#define MR_SUPERVISOR_METERS_H

#include <stdint.h>

#include "shm/meter/verdict.h"

struct mr_supervisor;
struct mr_client_peer;

/* What a verdict is drawn from, at one moment. */
struct mr_metered_at {
    int64_t at_ns;
    struct mr_batch_counts batches;
    struct mr_meter_sums sums;
    struct mr_node node;
};

struct mr_metered {
    struct mr_metered *next;
    uint64_t number; /* of this run's loaders, from 0: unique */
    const struct mr_client_peer *client;
    struct mr_meter meter;
    struct mr_metered_at older, newer; /* a stretch of 5 to 10 s begins at `older` */
    struct mr_meter_sums stretch;      /* of it, the present wait included */
    struct mr_verdict verdict;         /* of the stretch */
};

struct mr_meters {
    struct mr_metered *first;
    uint64_t made; /* how many were made so far */
};

/* Reads the counters behind fd, which stays the caller's, until its client has exited. 0 or -1 (USAGE, CORRUPT,
 * NO_MEMORY). */
int mr_meters_add(struct mr_supervisor *s, const struct mr_client_peer *client, int fd);
void mr_meters_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Once a second: unmaps what has ended, and finds the verdicts of the others. reader_waits: share of the time that the
 * reader waits which waits most. */
void mr_meters_look(struct mr_supervisor *s, double reader_waits);
/* The loop that waits most, of those that took a batch or wait for one; NULL: there is none. *loops: how many. */
const struct mr_metered *mr_meters_slowest(const struct mr_supervisor *s, unsigned *loops);
void mr_meters_close(struct mr_supervisor *s);

#endif
