/*
 * producer_impl.h - what producer.c, extents.c and cells.c share: which ticket names which run of the arena, and which
 * tickets a job is to have.
 *
 * A run is one allocation: a job's, shared by its tickets, or the reserve. An extent is a ticket's share of it, kept at
 * the ticket's slot from the claim until the word shows that no reader is left: that word is read again (L5)
 * before the run is used again. Nothing of this lies in shared memory; after a restart it is rebuilt from the words.
 */
#ifndef MR_SHM_RING_PRODUCER_IMPL_H
#define MR_SHM_RING_PRODUCER_IMPL_H

#include "shm/memory/arena.h"
#include "shm/ring/producer.h"

#define MR_SOLO_AFTER 2u /* attempts: from here on a ticket is fetched alone */

struct mr_run {
    uint64_t offset, bytes;
    unsigned refs; /* extents, and the job being claimed */
    bool reserve;
};

struct mr_extent {
    struct mr_run *run; /* NULL: the slot names nothing of ours */
    struct mr_producer_lane *lane;
    struct mr_extent *next, *prev; /* published ones, least recently checked first */
    uint32_t lap;
    bool published;
};

struct mr_producer_lane {
    struct mr_lane lane;
    struct mr_extent *extents; /* [window] */
    uint64_t *cells;           /* [window], the cell of what was posted there last; 0: none. Hints: see cells.c */
    uint64_t noted;            /* lower numbers are in `cells` */
    bool has_cells;            /* some of them were not 0 */
    uint64_t head, own;        /* hints: see producer.c */
    uint64_t sized_number, sized_word, sized_bytes;
    unsigned claims;
    bool has_head;
};

/* A ticket that a job is to have. */
struct mr_planned {
    struct mr_producer_lane *pl;
    uint64_t number, word, bytes;
    uint64_t at; /* of the job's memory; while a cell is gathered: of the stored object */
};

struct mr_job_plan {
    unsigned count;
    uint64_t total;
    struct mr_planned tickets[MR_JOB_TICKETS];
};

struct mr_producer {
    unsigned slot, producers;
    uint32_t division;
    const struct mr_board *board;
    struct mr_producer_line *line;
    unsigned char *base;
    uint64_t arena_bytes;
    mr_producer_size_fn *size;
    void *size_arg;
    mr_producer_join_fn *join;
    mr_producer_place_fn *place; /* NULL: no cells */
    uint64_t cell_bytes, gap_bytes;
    mr_producer_back_fn *back; /* NULL: the arena does not grow */
    void *back_arg;
    uint64_t first_bytes;          /* behind the reserve, at the start */
    uint64_t reserve_backed_bytes; /* of the reserve's first ones */
    int64_t back_again_ns;         /* the arena does not grow before this time: there was no memory */
    struct mr_arena *arena;
    struct mr_run reserve;
    struct mr_extent *reserve_extent; /* its holder; NULL: a job being claimed, or none */
    struct mr_extent *oldest, *newest;
    struct mr_producer_lane **lanes;
    unsigned lane_count, turn;
    unsigned inflight, caller_inflight; /* claims that have not ended */
    bool solo;                          /* the one in flight is alone */
    bool trimmed;                       /* nothing is there behind what is backed, also of a predecessor */
    bool reaped;                        /* every extent has been checked since this search began */
    int64_t rescanned_ns;
    struct mr_producer_stats stats;
    struct mr_job_plan plan; /* of the job that is being claimed */
};

static inline uint64_t mr_producer_posted(const struct mr_producer_lane *pl)
{
    return atomic_load_explicit(&pl->lane.shared->posted, memory_order_acquire); /* pairs with the consumer's post */
}

static inline uint64_t mr_producer_want(const struct mr_producer_lane *pl)
{
    return atomic_load_explicit(&pl->lane.shared->want, memory_order_acquire); /* W3: after asleep's fence */
}

/* Number n may be PENDING again. */
static inline void mr_producer_search_from(struct mr_producer_lane *pl, uint64_t n)
{
    if (mr_lane_distance(&pl->lane, n, pl->head) < 0)
        pl->head = n;
    if (mr_lane_distance(&pl->lane, n, pl->own) < 0)
        pl->own = n;
}

/* A claim of ours on the slot has not ended. */
static inline bool mr_extents_is_filling(const struct mr_producer_lane *pl, uint32_t slot)
{
    return pl->extents[slot].run && !pl->extents[slot].published;
}

/* ---- cells ---- */

/* Notes what was posted since the last call. posted: mr_producer_posted, loaded before, so that the requests are
 * visible. Notes also what only the words show to be posted. */
void mr_cells_note_posted(struct mr_producer_lane *pl, uint64_t posted);
void mr_cells_note(struct mr_producer_lane *pl, uint32_t slot);
/* The producer that the cell of the slot's ticket is at home with; false: it has no cell. */
bool mr_cells_home(const struct mr_producer_lane *pl, uint32_t slot, unsigned producers, unsigned *home);
/* The ticket need not be begun yet: it waits for the rest of its cell, and its consumer is far from it. */
bool mr_cells_may_wait(const struct mr_producer_lane *pl, uint64_t number);
/* The tickets that one request serves together with the first of the plan, that one among them, ascending; false: that
 * one alone, and the plan is as before. */
bool mr_cells_plan(struct mr_producer *producer, struct mr_job_plan *plan);

/* ---- extents ---- */

/* The most that one ticket can ever get: the reserve where there is one, since only that is sure to become free. */
uint64_t mr_extents_largest_ever(const struct mr_producer *producer);
/* May read every word (once a search). */
bool mr_extents_have_room(struct mr_producer *producer, uint64_t bytes);
bool mr_extents_reserve_is_free(struct mr_producer *producer);
/* The reserve's first bytes have memory behind them. false, with mr_error: there is none. */
bool mr_extents_back_reserve(struct mr_producer *producer, uint64_t bytes);
/* The reserve holds a READY ticket: which. */
bool mr_extents_reserve_is_ready(struct mr_producer *producer, struct mr_producer_lane **lane, uint64_t *number);
/* Takes that ticket back: true, and the reserve is free. */
bool mr_extents_take_back(struct mr_producer *producer);

/* A run with one reference, the caller's; NULL: no room. */
struct mr_run *mr_extents_alloc(struct mr_producer *producer, uint64_t bytes);
struct mr_run *mr_extents_reserve(struct mr_producer *producer);
void mr_extents_unuse(struct mr_producer *producer, struct mr_run *run);
/* The claim's slot refers to the run. */
void mr_extents_attach(struct mr_producer *producer, const struct mr_claim *claim, struct mr_run *run);
void mr_extents_published(struct mr_producer *producer, const struct mr_claim *claim);
/* The slot names nothing of ours any more: its word has moved on, by our hand or as seen. */
void mr_extents_forget(struct mr_producer *producer, struct mr_producer_lane *pl, uint32_t slot);

/* Checks the words of up to count published extents, least recently checked first, and frees those that no word
 * names. */
void mr_extents_reap_some(struct mr_producer *producer, unsigned count);
void mr_extents_reap_all(struct mr_producer *producer);
bool mr_extents_are_named(struct mr_producer *producer, struct mr_producer_lane *pl);
/* After a restart: extents of the lane's READY and HELD words in our arena are in use. 0 or -1 (no memory). */
int mr_extents_rebuild(struct mr_producer *producer, struct mr_producer_lane *pl);

#endif
