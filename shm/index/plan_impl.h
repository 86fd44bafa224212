/* plan_impl.h - the permutation under a plan, for plan.c and its tests. */
#ifndef MR_SHM_INDEX_PLAN_IMPL_H
#define MR_SHM_INDEX_PLAN_IMPL_H

#include "shm/index/plan.h"

/* size <= MR_PLAN_MAX_SIZE (a larger one is cut to it). shuffle = false: the identity. */
void mr_perm_init(struct mr_perm *perm, uint64_t size, uint64_t seed, uint64_t epoch,
                  const uint8_t digest[MR_PLAN_DIGEST_BYTES], bool shuffle);
/* position < size -> object < size, each once. A position past the end is taken modulo size; size 0 gives 0. */
uint64_t mr_perm_at(const struct mr_perm *perm, uint64_t position);

#endif
