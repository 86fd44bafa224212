/*
 * ckpt_share.h - how much of the checkpoint arena a checkpoint writer is given, and where.
 *
 * Arithmetic alone. With n = max(checkpoint.workers, those who share): a part has min(part_bytes, arena / 8n) bytes, in
 * whole pages, never under 5 MiB (the least that a store takes for a part that is not the last one), and a writer has
 * as many parts as fit arena / n: a power of two, 2 to 64. They lie side by side, in the first gap that holds them;
 * where no gap does, fewer of them, at least 2.
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

/* arena_bytes must hold two of the smallest parts: mr_ckpt_share_possible. */
struct mr_ckpt_share mr_ckpt_share(uint64_t arena_bytes, uint64_t part_bytes, uint64_t writers, uint64_t sharers);
bool mr_ckpt_share_possible(uint64_t arena_bytes);
/* First fit: true and *offset; share->slots may have become fewer. `used` is sorted by offset, without overlaps. */
bool mr_ckpt_share_place(struct mr_ckpt_share *share, uint64_t arena_bytes, const struct mr_ckpt_extent *used,
                         unsigned used_count, uint64_t *offset);

#endif
