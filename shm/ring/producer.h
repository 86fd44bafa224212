/*
 * producer.h - the producer's policy over lanes: which ticket next, out of which extent, when to sleep.
 *
 * One handle a fetch worker process, used by one thread. It never blocks (but for the time in which the kernel makes
 * pages, where the arena grows) and does no input or output: the worker gives it lanes and asks for jobs; it downloads
 * into job->dest and publishes, fails or gives back each claim.
 *
 * Rules that live here (README.md has the reasons): home block (lane + block) mod P; stealing only when none of its
 * own can start, and only within one job of the head or from a dead home; nearest to its lane's head first over all
 * lanes; the reserve for heads alone, one ticket; taking back from the reserve for a wanted head; poison solo (attempt
 * >= 2: alone, nothing else in flight).
 *
 * Tickets of one cell (lane.h) are at home together, with cell mod P, whichever lanes they are of, and go into one job
 * where they lie side by side in one stored object: cells.c.
 */
#ifndef MR_SHM_RING_PRODUCER_H
#define MR_SHM_RING_PRODUCER_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/board.h"
#include "shm/ring/lane.h"
#include "shm/ring/wake.h"

#define MR_JOB_TICKETS 512u /* of one job, at most */

struct mr_producer;
struct mr_producer_lane; /* a lane as this producer knows it */

/* How many bytes a request needs (its extent), from the index: 0 and *bytes, or -1 with the mr_error set: the ticket is
 * failed with it. May be called with a request that is still changing (a peek before the claim): it must check
 * ranges. */
typedef int mr_producer_size_fn(void *arg, const struct mr_request *request, uint64_t *bytes);

/* May one request serve the second ticket together with the first of its job? Both requests may still be changing. */
typedef bool mr_producer_join_fn(void *arg, const struct mr_request *first, const struct mr_request *next);

/* Where the bytes of a request lie: [offset, offset + bytes) of a stored object, which has a number for this. */
struct mr_place {
    uint64_t stored, offset, bytes;
};
/* false: it is not to be read together with others. May be called with a request that is still changing. */
typedef bool mr_producer_place_fn(void *arg, const struct mr_request *request, struct mr_place *place);

/* Memory for bytes [offset, offset + bytes) of the arena: 0, or -1 with the mr_error set (there is none now). */
typedef int mr_producer_back_fn(void *arg, uint64_t offset, uint64_t bytes);

struct mr_producer_options {
    unsigned slot;                 /* 0 .. P-1, the owner in FILLING and READY words */
    uint32_t division;             /* of the memory, that the arena belongs to */
    const struct mr_board *board;  /* P, and which slots are alive */
    struct mr_producer_line *line; /* our page */
    void *arena;                   /* mapped read-write */
    uint64_t arena_bytes;
    uint64_t reserve_bytes; /* the largest listed object at least, rounded up to pages */
    /* NULL: all pages of the arena are there. Else it grows: there are those of the first reserve_backed_bytes of the
     * reserve, and of the first_bytes behind the reserve; the others are asked for when they are needed. */
    mr_producer_back_fn *back;
    void *back_arg;
    uint64_t reserve_backed_bytes, first_bytes;
    mr_producer_size_fn *size;
    void *size_arg;
    mr_producer_join_fn *join; /* NULL: any two. With size_arg */
    /* NULL: cells are not looked at. With size_arg */
    mr_producer_place_fn *place;
    uint64_t cell_bytes; /* of a job of a cell, at most, where it is more than one ticket */
    uint64_t gap_bytes;  /* largest gap between two of its tickets: bytes that no ticket asks for */
};

struct mr_claim {
    struct mr_producer_lane *lane;
    uint32_t slot;
    uint64_t filling; /* our word */
    uint64_t number;
    struct mr_request request;
    void *dest;     /* in our arena; NULL when bytes is 0 */
    uint64_t bytes; /* what size() gave: room at dest */
    uint64_t extent_offset;
    bool reserve;
};

/*
 * The claims of one request to the store, ascending in one run of memory. Without cells: consecutive numbers of one
 * lane, at most MR_LANE_BLOCK, and claims[i + 1].dest is claims[i].dest + claims[i].bytes. Of a cell: of any lanes, and
 * as far apart in memory as in the stored object; what lies between two is memory of the job that is never read.
 */
struct mr_job {
    unsigned count;
    bool solo; /* nothing else may be in flight while it runs (poison) */
    struct mr_claim claims[MR_JOB_TICKETS];
};

struct mr_producer_stats { /* plain, of this process */
    uint64_t jobs, tickets, stolen_blocks, take_backs, reserve_uses, give_backs, no_room;
    uint64_t refused; /* tickets that failed before they were given to the caller */
};

struct mr_producer *mr_producer_new(const struct mr_producer_options *options);
void mr_producer_destroy(struct mr_producer *producer);

/* Takes over the mapped lane: *lane is copied, and unmapped at drop; on -1 it stays the caller's. Also after a restart:
 * extents that its READY and HELD words name in our arena are marked used, in lingering closed lanes too; all lanes are
 * added before the first next_job. */
int mr_producer_add_lane(struct mr_producer *producer, struct mr_lane *lane);
/* The supervisor has sent that lane (index) is empty: forget it once no claim and no word of ours is in it. true:
 * dropped and unmapped; false: call again later. */
bool mr_producer_drop_lane(struct mr_producer *producer, uint32_t lane_index);

/*
 * Claims the next job: up to max_tickets consecutive PENDING tickets whose sum is at most max_bytes (one ticket may
 * always be larger), or those of a cell, extent reserved. inflight: claims that the caller still has in work (a solo
 * job waits for 0). True: job is filled; false: nothing can start now.
 */
bool mr_producer_next_job(struct mr_producer *producer, unsigned max_tickets, uint64_t max_bytes, unsigned inflight,
                          struct mr_job *job);

/* One of these ends each claim; each may be called in any order within a job. They wake the consumer. */
void mr_producer_publish(struct mr_producer *producer, struct mr_claim *claim, uint64_t length, uint64_t generation,
                         uint32_t crc32c, uint32_t desc_flags);
void mr_producer_fail(struct mr_producer *producer, struct mr_claim *claim, uint32_t code, const char *text);
void mr_producer_give_back(struct mr_producer *producer, struct mr_claim *claim);

/* The claim's lane has been closed: the transfer is no longer needed, and the caller may give the claim back early. */
bool mr_producer_claim_is_stale(const struct mr_claim *claim);

/*
 * After next_job returned false, before polling (a caller whose connections are all busy just polls): asleep = 1,
 * fence, one more scan of every lane. False: nothing to do, sleep now (at most 100 ms, with the slot's eventfd among
 * the descriptors); true: there is work, do not sleep (asleep is cleared). After the poll call awake.
 */
bool mr_producer_sleep(struct mr_producer *producer);
void mr_producer_awake(struct mr_producer *producer);

/* When no lane is left: stops handing out what the arena has grown by. true: the memory from *offset on, *bytes of it,
 * may be returned to the kernel, also what a predecessor had made there. */
bool mr_producer_trim(struct mr_producer *producer, uint64_t *offset, uint64_t *bytes);

void mr_producer_stats(const struct mr_producer *producer, struct mr_producer_stats *stats);
/* Of the arena, backed or not; reads every word first. */
uint64_t mr_producer_free_bytes(struct mr_producer *producer);
/* Pages of the arena that are there, the reserve's included. */
uint64_t mr_producer_backed_bytes(const struct mr_producer *producer);

#endif
