/*
 * fetch_workers.h - the fetch workers, and the memory that they download into.
 *
 * No data set, no arena: when the first listing has given the largest object, memory.arena_bytes is divided, P workers
 * start and reserve the pages of their arenas, and with the last of them the data sets are READY.
 *
 *     NONE --(first index)--> RESERVING --(every ARENA_READY)--> READY
 *       ^                         |
 *       +----(no memory: the data sets fail)
 *
 * A data set that comes later with larger objects than the reserve makes the reserve larger, while there is no lane:
 * the workers start again over the same arenas (READY -> RESERVING -> READY).
 *
 * A division that was abandoned (a worker cannot start) is followed by another one when there is a data set for it. Its
 * arenas are other ones: `division` counts up, each lane and each descriptor names the division that it belongs to, and
 * no process reads or writes across (shm/ring/README.md, "Divisions").
 *
 * A worker's death: wait for its pidfd, count poison, recover its words in every lane, lingering ones too, wake all
 * consumers and workers; only then the next one starts in that slot.
 *
 * mr_fetch_workers_settle sends fetch workers all that they get: data sets and lanes that a process was not sent yet,
 * ARENA after them, DROP_LANE.
 */
#ifndef MR_SUPERVISOR_FETCH_WORKERS_H
#define MR_SUPERVISOR_FETCH_WORKERS_H

#include "shm/ring/board.h"
#include "supervisor/arenas.h"
#include "supervisor/child.h"
#include "supervisor/dataset.h"

/* What outlives the processes of a slot. */
struct mr_fetch_slot {
    struct mr_arena_fds arena;
    struct mr_worker_line line;
    bool reserved;   /* ARENA_READY came: a restarted worker finds its pages */
    bool no_room;    /* FAILED came instead: they could not be reserved */
    bool renewing;   /* its worker starts again, for a larger reserve */
    bool arena_sent; /* to its process */
};

struct mr_fetch_workers {
    enum mr_arenas_state state;
    struct mr_child workers[MR_PRODUCERS_MAX];
    struct mr_fetch_slot slots[MR_PRODUCERS_MAX];
    unsigned count;                      /* P */
    uint32_t division;                   /* counts the divisions: lanes and descriptors name theirs */
    uint64_t arena_bytes, reserve_bytes; /* of each */
    uint64_t largest_bytes;              /* an object that is always sure of room */
    bool was_ready;                      /* this division: processes may have mapped its arenas */
    bool memfd;                          /* later divisions need not try /dev/shm: it is full */
    bool announce;                       /* there may be something that a process was not sent yet */
};

int mr_fetch_workers_init(struct mr_supervisor *s);
void mr_fetch_workers_close(struct mr_supervisor *s);
/* Recovers what the dead held and restarts them; divides the memory for data sets that have an index; makes these READY
 * or FAILED; sends the workers what they have not been sent. True when anything has changed. */
bool mr_fetch_workers_settle(struct mr_supervisor *s);
/* The configuration has changed: each is started again. What it has in flight goes back and is claimed again. */
void mr_fetch_workers_renew(struct mr_supervisor *s);
/* Asks them to finish; or kills them. */
void mr_fetch_workers_drain(struct mr_supervisor *s);
void mr_fetch_workers_kill(struct mr_supervisor *s);
/* A bit for each slot with a process. */
uint64_t mr_fetch_workers_mask(const struct mr_supervisor *s);
/* Sends DROP_DATASET to every process that was sent the data set; returns their bits. */
uint64_t mr_fetch_workers_drop_dataset(struct mr_supervisor *s, const struct mr_dataset *dataset);

/* The sum of a counter over all slots. */
uint64_t mr_fetch_workers_sum(const struct mr_supervisor *s, enum mr_worker_counter which);

#endif
