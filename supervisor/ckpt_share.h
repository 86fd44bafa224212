/*
 * ckpt_share.h - how much of the checkpoint arena a checkpoint writer is given, and where.
 *
 * Arithmetic only. If several are announced, each is sure of an equal share. A lone one gets three quarters of what is
 * free, or all of it if checkpoint.workers - 1 others have theirs already. It is cut into a power of two of parts, 8 to
 * 64, of part_bytes at most, in whole pages; into fewer if they would be under 5 MiB, the least that a store takes for
 * a part that is not the last one. They lie side by side, in the first gap that holds them; if no gap does, fewer of
 * them, at least 2.
 */
#ifndef MR_SUPERVISOR_CKPT_SHARE_H
#define MR_SUPERVISOR_CKPT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#define MR_CKPT_PART_PAGE      UINT64_C(4096)
#define MR_CKPT_PART_BYTES_MIN (UINT64_C(5) << 20)

struct mr_ckpt_share {
    uint64_t part_bytes;
    uint32_t slots;
};

/* An extent of the arena that is in use. */
struct mr_ckpt_extent {
    uint64_t offset, bytes;
};

/* The arena holds two of the smallest parts: else there are no checkpoints. */
bool mr_ckpt_share_possible(uint64_t arena_bytes);
/* What a writer may have. sharers: announced to be open side by side, this one included; others: writers that hold
 * memory now; gap_bytes: the largest piece that is free. */
uint64_t mr_ckpt_share_bytes(uint64_t arena_bytes, uint64_t gap_bytes, uint64_t writers, uint64_t others,
                             uint64_t sharers);
/* So many bytes, in parts; at least two of the smallest ones, which the arena must hold. */
struct mr_ckpt_share mr_ckpt_share(uint64_t bytes, uint64_t arena_bytes, uint64_t part_bytes);
/* The largest gap. `used` as below. */
uint64_t mr_ckpt_share_gap(uint64_t arena_bytes, const struct mr_ckpt_extent *used, unsigned used_count);
/* First fit: true and *offset; share->slots may have become fewer. `used` is sorted by offset, without overlaps. */
bool mr_ckpt_share_place(struct mr_ckpt_share *share, uint64_t arena_bytes, const struct mr_ckpt_extent *used,
                         unsigned used_count, uint64_t *offset);

#endif
