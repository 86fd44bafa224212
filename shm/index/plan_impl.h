/* plan_impl.h - the permutations under a plan (perm.c), for plan.c, plan_blocks.c and their tests. */
#ifndef MR_SHM_INDEX_PLAN_IMPL_H
#define MR_SHM_INDEX_PLAN_IMPL_H

#include "shm/index/plan.h"

/* size <= MR_PLAN_MAX_SIZE (a larger one is cut to it). shuffle = false: the identity. */
void mr_perm_init(struct mr_perm *perm, uint64_t size, uint64_t seed, uint64_t epoch,
                  const uint8_t digest[MR_PLAN_DIGEST_BYTES], bool shuffle);
/* position < size -> object < size, each once. A position past the end is taken modulo size; size 0 gives 0. */
uint64_t mr_perm_at(const struct mr_perm *perm, uint64_t position);
/* The reverse, for object < size. */
uint64_t mr_perm_position(const struct mr_perm *perm, uint64_t object);

/* The key of an epoch's order; kind: a constant that keeps orders of different kinds apart. */
uint64_t mr_perm_key(uint64_t kind, uint64_t seed, uint64_t epoch, const uint8_t digest[MR_PLAN_DIGEST_BYTES]);
/* One word more into a key; the order of the words matters. */
uint64_t mr_perm_key_add(uint64_t key, uint64_t word);
/* The permutation of 0 .. size-1 of this very key. */
void mr_perm_set(struct mr_perm *perm, uint64_t size, uint64_t key);

/* block >= 1 objects, mix >= 1 blocks; size <= MR_PLAN_MAX_SIZE. */
void mr_blocks_init(struct mr_blocks *blocks, const struct mr_plan_params *params);
/* position -> object < size, each once. A position past the end is taken modulo size; size 0 gives 0. */
uint64_t mr_blocks_at(const struct mr_blocks *blocks, uint64_t position);

#endif
