/*
 * listing.h - who lists what: ranges of names to list workers.
 *
 * A data set begins as one range a URI. When a worker is idle (or may still be started) and no range waits, the
 * busiest one is asked to give away the upper part of what is left (SPLIT; ranges.h has the rules). When all ranges of a data set are done,
 * one worker puts the parts together (CONCAT). When no data set is being listed, the workers end. A worker that dies
 * gives its range, or the putting together, back whole.
 */
#ifndef MR_SUPERVISOR_LISTING_H
#define MR_SUPERVISOR_LISTING_H

#include "supervisor/child.h"
#include "supervisor/dataset.h"

#define MR_LIST_WORKERS_MAX 32u

struct mr_listing {
    struct mr_child workers[MR_LIST_WORKERS_MAX];
    unsigned worker_count;    /* slots that are used */
    uint64_t last_range;      /* its id */
    struct mr_timer progress; /* the line about what is being listed */
    bool terminal;            /* it goes to a terminal, and is written over */
    unsigned shown;           /* characters of it that stand there */
};

int mr_listing_init(struct mr_supervisor *s);
void mr_listing_close(struct mr_supervisor *s);
/* Gives work to whoever is idle, starts and ends workers. Call after anything has changed. */
void mr_listing_dispatch(struct mr_supervisor *s);
/* The data set is not to be listed any further: its workers end. */
void mr_listing_abandon(struct mr_dataset *dataset);

#endif
