/*
 * listing.h - which list worker lists which range of names.
 *
 * A data set begins as one range a URI. When a worker is idle (or may still be started) and no range waits, the busiest
 * one is asked to give away the upper part of what is left (SPLIT; name_ranges.h has the rules). When all ranges of a
 * data set are done, one worker puts their indexes together (CONCAT). When no data set is being listed, the workers
 * end; after objects that are read by ranges (files) one of them stays for some seconds. If a worker dies, its range,
 * or its putting together, is done again as a whole.
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
    struct mr_timer linger;   /* active: one worker stays, though it has nothing to do */
    bool terminal;            /* it goes to a terminal, and is written over */
    unsigned shown;           /* characters of it that stand there */
};

int mr_listing_init(struct mr_supervisor *s);
void mr_listing_close(struct mr_supervisor *s);
/* Takes back what workers had that have ended; drops data sets that have failed; gives work to idle workers; starts and
 * ends workers. True when anything has changed. */
bool mr_listing_settle(struct mr_supervisor *s);
/* Is there any process? */
bool mr_listing_any(const struct mr_supervisor *s);
/* After a change of the configuration: a worker that is kept idle ends. */
void mr_listing_renew(struct mr_supervisor *s);
/* Asks them to finish; or kills them. */
void mr_listing_drain(struct mr_supervisor *s);
void mr_listing_kill(struct mr_supervisor *s);

#endif
