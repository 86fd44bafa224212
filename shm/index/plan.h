/*
 * plan.h - which object each rank and worker gets at each step of an epoch: pure functions in O(1) memory.
 *
 * A position is a place in the epoch's order: 0 .. size-1. A keyed permutation turns it into an object's number in the
 * index. The order depends on (index digest, seed, epoch) alone, in blocks also on their two sizes: not on ranks,
 * workers, batch or speed. The values are part of the state that users save: changing them breaks their resumes, and
 * test_plan.c pins them.
 *
 * Nothing here allocates, blocks or keeps state; every struct may be copied, and read by any number of threads.
 */
#ifndef MR_SHM_INDEX_PLAN_H
#define MR_SHM_INDEX_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#define MR_PLAN_DIGEST_BYTES 32
#define MR_PLAN_MAX_SIZE     (UINT64_C(1) << 48)
#define MR_PLAN_MAX_WORLD    (UINT32_C(1) << 20)
#define MR_PLAN_MAX_BATCH    (UINT32_C(1) << 26)
#define MR_PLAN_MAX_MIX      (UINT32_C(1) << 16)
#define MR_PLAN_REPLACEMENTS 8 /* how many replacements of a position there are to try */
#define MR_PERM_ROUNDS       8

/* A permutation of 0 .. size-1: a balanced Feistel network on the next even number of bits, with cycle walking. */
struct mr_perm {
    uint64_t size;
    uint64_t mask; /* of one half */
    uint32_t half; /* bits of one half; 0: identity */
    uint64_t keys[MR_PERM_ROUNDS];
};

/* Blocks of consecutive objects in a permuted order; the samples of each `mix` of them are permuted once more. */
struct mr_blocks {
    struct mr_perm order; /* of the blocks */
    uint64_t size;        /* objects */
    uint64_t block;       /* objects of a block */
    uint64_t mix;         /* blocks */
    uint64_t last_place;  /* the place in the order of the index's last block, which alone may be short */
    uint64_t missing;     /* objects that it lacks */
    uint64_t key;
};

/* What happens to the samples that do not fill a step of world x batch. */
enum mr_plan_tail {
    MR_TAIL_SHORT, /* dealt in contiguous shares of ceil or floor; fewer than world: left out */
    MR_TAIL_DROP,  /* left out */
    MR_TAIL_PAD,   /* the last step is filled up from the epoch's start */
    MR_TAIL_KINDS
};

struct mr_plan_params {
    uint64_t size; /* objects in the index */
    uint64_t seed;
    uint64_t epoch;
    uint64_t cursor; /* positions that the loop was given already, <= size */
    uint8_t digest[MR_PLAN_DIGEST_BYTES];
    uint32_t rank;
    uint32_t world; /* ranks, >= 1 */
    uint32_t batch; /* samples a rank a step, >= 1 */
    bool shuffle;
    uint64_t block; /* with shuffle: objects of a block, or 0: every object by itself */
    uint32_t mix;   /* with block: blocks whose samples are permuted together, >= 1 */
    enum mr_plan_tail tail;
};

/* The rest of an epoch from its cursor. Step s counts from the cursor: a resume recomputes the tail. */
struct mr_plan {
    struct mr_plan_params p;
    union {
        struct mr_perm perm;     /* without blocks */
        struct mr_blocks blocks; /* p.block > 0 */
    };
    uint64_t full;  /* steps of world x batch */
    uint64_t left;  /* samples after them */
    bool tail_step; /* one more step with those */
};

/* 0, or -1 (USAGE) that names the parameter that is out of range. */
int mr_plan_init(struct mr_plan *plan, const struct mr_plan_params *params);

/* Steps of the rest of the epoch: the same for every rank. */
uint64_t mr_plan_steps(const struct mr_plan *plan);
/*
 * What this rank gets at step < mr_plan_steps: `count` consecutive positions from `first`. With MR_TAIL_PAD they run
 * past size in the last step: mr_plan_object takes them modulo size. Past the last step: count 0.
 */
void mr_plan_share(const struct mr_plan *plan, uint64_t step, uint64_t *first, uint32_t *count);
/* The object at a position. */
uint64_t mr_plan_object(const struct mr_plan *plan, uint64_t position);
/* The cursor once step has been given to the loop: at most size. */
uint64_t mr_plan_cursor_after(const struct mr_plan *plan, uint64_t step);
/* Objects that no rank gets in the rest of this epoch: fewer than world (SHORT), than world x batch (DROP), or 0. */
uint64_t mr_plan_left_out(const struct mr_plan *plan);

/* DataLoader worker w of n makes steps w, w+n, ...: how many that is, and the k-th of them. n >= 1, w < n. */
uint64_t mr_plan_worker_steps(const struct mr_plan *plan, uint32_t worker, uint32_t workers);
uint64_t mr_plan_worker_step(uint64_t k, uint32_t worker, uint32_t workers);

/*
 * The form without batches (an IterableDataset in a bare DataLoader): the p-th position from the cursor goes to rank
 * p mod world and there to worker (p div world) mod workers. Every rank gets as many, so fewer than world are left out.
 * `batch` and `tail` are ignored. How many a worker of this rank gets, and the position of its k-th.
 */
uint64_t mr_plan_single_count(const struct mr_plan *plan, uint32_t worker, uint32_t workers);
uint64_t mr_plan_single_position(const struct mr_plan *plan, uint32_t worker, uint32_t workers, uint64_t k);

/*
 * on_error = "replace": the position to take instead of an unreadable one, attempt 0 .. MR_PLAN_REPLACEMENTS-1: a
 * keyed function of (seed, epoch, position). Never the position itself, and no two attempts give the same.
 * 0, or -1 (no error is set) when there is none left: attempt too high, or the index has too few objects.
 */
int mr_plan_replacement(const struct mr_plan *plan, uint64_t position, uint32_t attempt, uint64_t *replacement);

/* "short", "drop", "pad": 0, or -1 (USAGE) for another word. */
int mr_plan_tail_parse(const char *text, enum mr_plan_tail *tail);

#endif
