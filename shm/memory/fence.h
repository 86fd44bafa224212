/*
 * fence.h - the full fence.
 *
 * It stands between a store (or CAS) and a load of another location, where the other side does the same the other way
 * round: one of the two sees the other. ThreadSanitizer does not model fences (gcc warns so); none of our data is
 * ordered by one, only wake-ups and the second look at `closed` are.
 */
#ifndef MR_SHM_MEMORY_FENCE_H
#define MR_SHM_MEMORY_FENCE_H

#include <stdatomic.h>

static inline void mr_fence_full(void)
{
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
    atomic_thread_fence(memory_order_seq_cst);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
}

#endif
