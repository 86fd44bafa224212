/*
 * fetch_workers.h - the fetch workers, and the memory that they download into.
 *
 * No data set, no arena: when the first listing tells the largest object, memory.arena_bytes is divided (ring.md,
 * "Memory"), P workers start and reserve the pages of their arenas, and with the last of them the data sets are READY.
 *
 *     NONE --(first index)--> RESERVING --(every ARENA_READY)--> READY
 *       ^                         |
 *       +----(no memory: the data sets fail)
 *
 * A data set that comes later with larger objects than the reserve makes the reserve larger, while nobody has a lane: the
 * workers start again over the same arenas (READY -> RESERVING -> READY).
 *
 * A worker's death: wait for its pidfd, count poison, recover its words in every lane, lingering ones too, wake
 * everybody; only then the next one starts in that slot.
 */
#ifndef MR_SUPERVISOR_FETCH_WORKERS_H
#define MR_SUPERVISOR_FETCH_WORKERS_H

#include "shm/ring/board.h"
#include "supervisor/child.h"
#include "supervisor/dataset.h"

enum mr_arenas { MR_ARENAS_NONE, MR_ARENAS_RESERVING, MR_ARENAS_READY };

/* What of a slot outlives its processes. Descriptors are -1 where there is none. */
struct mr_producer_slot {
    int arena, arena_readonly;
    int line, line_readonly, eventfd;
    bool reserved; /* ARENA_READY came: a restarted worker finds its pages */
    bool memfd;    /* /dev/shm had no room */
    bool renewing; /* its worker starts again, for a larger reserve */
    bool stopped;  /* seen in state T, and said so */
};

struct mr_fetch_workers {
    enum mr_arenas state;
    struct mr_child workers[MR_PRODUCERS_MAX];
    struct mr_producer_slot slots[MR_PRODUCERS_MAX];
    unsigned count;                      /* P */
    uint64_t arena_bytes, reserve_bytes; /* of each */
    uint64_t oom_kills;                  /* of our cgroup, at the last look */
};

int mr_fetch_workers_init(struct mr_supervisor *s);
void mr_fetch_workers_close(struct mr_supervisor *s);
/* A data set has its index: divides the memory, or tells the workers; READY or FAILED follows. */
void mr_fetch_workers_indexed(struct mr_dataset *dataset);
/* Data sets that wait for the lanes of checkpoint readers to go: those have changed, or some time has passed. */
void mr_fetch_workers_settle(struct mr_supervisor *s);
/* Every worker that has a process. */
void mr_fetch_workers_lane_opened(struct mr_supervisor *s, uint32_t lane, int fd);
/* Sends DROP_LANE to those of the slots whose bit is set; returns the bits that still have to answer. */
uint64_t mr_fetch_workers_drop_lane(struct mr_supervisor *s, uint32_t lane, uint64_t slots);
/* Sends DROP_DATASET to every worker that has a process; returns their bits. */
uint64_t mr_fetch_workers_drop_dataset(struct mr_supervisor *s, uint32_t dataset);
/* A bit for each slot with a process. */
uint64_t mr_fetch_workers_mask(const struct mr_supervisor *s);
/* Writes every eventfd. */
void mr_fetch_workers_wake(struct mr_supervisor *s);
/* Names workers that are stopped (SIGSTOP, a debugger) while lanes wait. Each few seconds. */
void mr_fetch_workers_look(struct mr_supervisor *s);

#endif
