/*
 * ckpt_share.c - see ckpt_share.h. Arithmetic only: no state, no allocation. What is placed never overlaps an extent
 * in use, and is never smaller than two parts.
 */
#include "supervisor/ckpt_share.h"

#include "shm/ring/ckpt_part.h"

/* A part is a connection: one alone moves 50 to 100 MB/s of what a node could send. */
#define SLOTS_WANTED 8

bool mr_ckpt_share_possible(uint64_t arena_bytes)
{
    return arena_bytes >= MR_CKPT_PART_SLOTS_MIN * MR_CKPT_PART_BYTES_MIN;
}

uint64_t mr_ckpt_share_bytes(uint64_t arena_bytes, uint64_t gap_bytes, uint64_t writers, uint64_t others,
                             uint64_t sharers)
{
    if (sharers > 1)
        return arena_bytes / (sharers > writers ? sharers : writers);
    return others + 1 < writers ? gap_bytes - gap_bytes / 4 : gap_bytes;
}

struct mr_ckpt_share mr_ckpt_share(uint64_t bytes, uint64_t arena_bytes, uint64_t part_bytes)
{
    struct mr_ckpt_share share = {.slots = SLOTS_WANTED};
    while (share.slots < MR_CKPT_PART_SLOTS_MAX && bytes / share.slots > part_bytes &&
           bytes / share.slots / 2 >= MR_CKPT_PART_BYTES_MIN)
        share.slots *= 2;
    uint64_t part = bytes / share.slots;
    if (part > part_bytes)
        part = part_bytes;
    share.part_bytes = part - part % MR_CKPT_PART_PAGE;
    if (share.part_bytes >= MR_CKPT_PART_BYTES_MIN)
        return share;
    uint64_t most = arena_bytes / MR_CKPT_PART_SLOTS_MIN; /* two parts must fit the arena */
    share.part_bytes = MR_CKPT_PART_BYTES_MIN < most ? MR_CKPT_PART_BYTES_MIN : most;
    while (share.slots > MR_CKPT_PART_SLOTS_MIN && share.slots * share.part_bytes > bytes)
        share.slots /= 2;
    return share;
}

/* The bytes that are free before the i-th extent, or after the last one. *offset: where they begin. */
static uint64_t gap(uint64_t arena_bytes, const struct mr_ckpt_extent *used, unsigned used_count, unsigned i,
                    uint64_t *offset)
{
    uint64_t end = i < used_count ? used[i].offset : arena_bytes;
    *offset = i > 0 ? used[i - 1].offset + used[i - 1].bytes : 0;
    return end > *offset ? end - *offset : 0;
}

uint64_t mr_ckpt_share_gap(uint64_t arena_bytes, const struct mr_ckpt_extent *used, unsigned used_count)
{
    uint64_t largest = 0, offset;
    for (unsigned i = 0; i <= used_count; i++) {
        uint64_t bytes = gap(arena_bytes, used, used_count, i, &offset);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* The first gap of at least that many bytes. */
static bool first_fit(uint64_t bytes, uint64_t arena_bytes, const struct mr_ckpt_extent *used, unsigned used_count,
                      uint64_t *offset)
{
    for (unsigned i = 0; i <= used_count; i++)
        if (gap(arena_bytes, used, used_count, i, offset) >= bytes)
            return true;
    return false;
}

bool mr_ckpt_share_place(struct mr_ckpt_share *share, uint64_t arena_bytes, const struct mr_ckpt_extent *used,
                         unsigned used_count, uint64_t *offset)
{
    for (;; share->slots /= 2) {
        if (first_fit(share->slots * share->part_bytes, arena_bytes, used, used_count, offset))
            return true;
        if (share->slots <= MR_CKPT_PART_SLOTS_MIN)
            return false;
    }
}
