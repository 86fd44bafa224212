#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/index/plan_impl.h"
#include "tests/unit/suite.h"

static const uint8_t digest[MR_PLAN_DIGEST_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static struct mr_plan plan_of(uint64_t size, uint32_t rank, uint32_t world, uint32_t batch, uint64_t cursor,
                              enum mr_plan_tail tail)
{
    struct mr_plan_params p = {.size = size,
                               .seed = 7,
                               .epoch = 3,
                               .cursor = cursor,
                               .rank = rank,
                               .world = world,
                               .batch = batch,
                               .shuffle = true,
                               .tail = tail};
    memcpy(p.digest, digest, sizeof(digest));
    struct mr_plan plan;
    if (mr_plan_init(&plan, &p) != 0)
        ck_abort_msg("%s", mr_error_text());
    return plan;
}

/* As ck_assert, without its message to the parent at each call: for loops of millions. */
#define HOLDS(condition)                    \
    do {                                    \
        if (!(condition))                   \
            ck_abort_msg("%s", #condition); \
    } while (0)

START_TEST(permutes_every_small_size)
{
    unsigned char seen[2100];
    for (uint64_t size = 0; size <= 2000; size++) {
        struct mr_perm perm;
        mr_perm_init(&perm, size, size * 3, size & 1, digest, true);
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < size; i++) {
            uint64_t object = mr_perm_at(&perm, i);
            HOLDS(object < size);
            HOLDS(seen[object]++ == 0);
            HOLDS(mr_perm_position(&perm, object) == i);
        }
    }
}
END_TEST

START_TEST(permutes_large_sizes)
{
    static const uint64_t sizes[] = {65535,
                                     65536,
                                     65537,
                                     10000000,
                                     (UINT64_C(1) << 32) - 1,
                                     (UINT64_C(1) << 32) + 1,
                                     (UINT64_C(1) << 46) + 12345,
                                     MR_PLAN_MAX_SIZE - 1,
                                     MR_PLAN_MAX_SIZE};
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct mr_perm perm;
        uint64_t moved = 0;
        mr_perm_init(&perm, sizes[s], s, s, digest, true);
        for (uint64_t k = 0; k < 3000; k++) {
            uint64_t i = k < 10 ? k : k < 20 ? sizes[s] - 1 - (k - 10) : mr_mix64(k) % sizes[s];
            uint64_t object = mr_perm_at(&perm, i);
            HOLDS(object < sizes[s]);
            HOLDS(mr_perm_position(&perm, object) == i);
            HOLDS(mr_perm_at(&perm, mr_perm_position(&perm, i)) == i);
            moved += object != i;
        }
        HOLDS(moved > 2900);
    }
}
END_TEST

START_TEST(identity_without_shuffle)
{
    struct mr_perm perm;
    mr_perm_init(&perm, 1000, 1, 2, digest, false);
    for (uint64_t i = 0; i < 1000; i++) {
        ck_assert_uint_eq(mr_perm_at(&perm, i), i);
        ck_assert_uint_eq(mr_perm_position(&perm, i), i);
    }
    ck_assert_uint_eq(mr_perm_at(&perm, 1003), 3);
    mr_perm_init(&perm, 0, 1, 2, digest, true);
    ck_assert_uint_eq(mr_perm_at(&perm, 5), 0);
}
END_TEST

/* Pearson's statistic against equal chances. */
static double chi_square(const unsigned *counts, unsigned cells, unsigned draws)
{
    double expected = (double)draws / cells, sum = 0;
    for (unsigned i = 0; i < cells; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    return sum;
}

/* Over neighbouring seeds and epochs every one of the 24 orders of 4 objects is as likely. 23 degrees of freedom: above
 * 49.7 by chance once in a thousand, and the draws are always the same. */
START_TEST(orders_of_four_are_equally_likely)
{
    unsigned counts[256] = {0}, cells = 0;
    for (uint64_t k = 0; k < 24000; k++) {
        struct mr_perm perm;
        unsigned code = 0;
        mr_perm_init(&perm, 4, k / 100, k % 100, digest, true);
        for (uint64_t i = 0; i < 4; i++)
            code = code << 2 | (unsigned)mr_perm_at(&perm, i);
        counts[code]++;
    }
    unsigned used[24];
    for (unsigned i = 0; i < 256; i++) {
        if (counts[i] > 0) {
            ck_assert_uint_lt(cells, 24);
            used[cells++] = counts[i];
        }
    }
    ck_assert_uint_eq(cells, 24);
    ck_assert_double_lt(chi_square(used, 24, 24000), 49.7);
}
END_TEST

/* Where a given object lands, over keys; and in one order, how far apart neighbours land. df 15: 37.7 at 0.001. */
START_TEST(objects_land_anywhere)
{
    static const uint64_t sizes[] = {2, 3, 7, 16, 64, 65, 1000, 6296};
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint64_t size = sizes[s];
        unsigned cells = size < 16 ? (unsigned)size : 16, by_key[16] = {0}, by_step[16] = {0}, draws = 0, steps = 0;
        uint64_t inside = size - size % cells; /* equal cells */
        for (uint64_t k = 0; k < 8000; k++) {
            struct mr_perm perm;
            mr_perm_init(&perm, size, 42, k, digest, true);
            uint64_t a = mr_perm_at(&perm, 0), b = mr_perm_at(&perm, 1);
            uint64_t distance = (b + size - a) % size - 1; /* 0 .. size - 2 */
            uint64_t step_cells = size - 1 < 16 ? size - 1 : 16;
            if (a < inside) {
                by_key[a * cells / inside]++;
                draws++;
            }
            if (distance < size - 1 - (size - 1) % step_cells) {
                by_step[distance * step_cells / (size - 1 - (size - 1) % step_cells)]++;
                steps++;
            }
        }
        unsigned step_cells = size - 1 < 16 ? (unsigned)size - 1 : 16;
        ck_assert_msg(chi_square(by_key, cells, draws) < 37.7, "size %u: %f", (unsigned)size,
                      chi_square(by_key, cells, draws));
        ck_assert_msg(chi_square(by_step, step_cells, steps) < 37.7, "size %u: %f", (unsigned)size,
                      chi_square(by_step, step_cells, steps));
    }
}
END_TEST

START_TEST(key_is_digest_seed_and_epoch)
{
    uint8_t other[MR_PLAN_DIGEST_BYTES];
    memcpy(other, digest, sizeof(other));
    other[31] ^= 1;
    struct mr_perm perms[5];
    mr_perm_init(&perms[0], 1000, 7, 3, digest, true);
    mr_perm_init(&perms[1], 1000, 8, 3, digest, true);
    mr_perm_init(&perms[2], 1000, 7, 4, digest, true);
    mr_perm_init(&perms[3], 1000, 7, 3, other, true);
    mr_perm_init(&perms[4], 1000, 3, 7, digest, true);
    for (int a = 0; a < 5; a++) {
        for (int b = a + 1; b < 5; b++) {
            unsigned same = 0;
            for (uint64_t i = 0; i < 1000; i++)
                same += mr_perm_at(&perms[a], i) == mr_perm_at(&perms[b], i);
            ck_assert_uint_lt(same, 12); /* one is expected */
        }
    }
}
END_TEST

static struct mr_blocks blocks_of(uint64_t size, uint64_t block, uint32_t mix, uint64_t epoch)
{
    struct mr_plan_params p = {.size = size, .seed = 7, .epoch = epoch, .block = block, .mix = mix};
    memcpy(p.digest, digest, sizeof(digest));
    struct mr_blocks blocks;
    mr_blocks_init(&blocks, &p);
    return blocks;
}

/* Users save states that name these orders: the values must never change. */
START_TEST(order_is_pinned)
{
    static const uint64_t small[10] = {5, 1, 9, 0, 4, 6, 3, 2, 7, 8};
    struct mr_perm perm;
    mr_perm_init(&perm, 10, 0, 0, digest, true);
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_uint_eq(mr_perm_at(&perm, i), small[i]);
    mr_perm_init(&perm, UINT64_C(1000000007), 123456789, 42, digest, true);
    ck_assert_uint_eq(mr_perm_at(&perm, 0), UINT64_C(317514806));
    ck_assert_uint_eq(mr_perm_at(&perm, 999999999), UINT64_C(676414446));
    struct mr_plan plan = plan_of(1000, 0, 1, 1, 0, MR_TAIL_SHORT);
    uint64_t r;
    ck_assert_int_eq(mr_plan_replacement(&plan, 500, 0, &r), 0);
    ck_assert_uint_eq(r, 636);
    static const uint64_t in_blocks[10] = {0, 1, 8, 7, 6, 2, 5, 3, 9, 4};
    struct mr_blocks blocks = blocks_of(10, 3, 2, 3);
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_uint_eq(mr_blocks_at(&blocks, i), in_blocks[i]);
    blocks = blocks_of(UINT64_C(1000000007), 40, 16, 42);
    ck_assert_uint_eq(mr_blocks_at(&blocks, 0), UINT64_C(231939457));
    ck_assert_uint_eq(mr_blocks_at(&blocks, 999999999), UINT64_C(101725385));
}
END_TEST

/* Every object once; and the positions of a mix hold whole blocks, as many as were asked for but in the last mix. */
static void check_blocks(uint64_t size, uint64_t block, uint32_t mix)
{
    unsigned char seen[400] = {0};
    uint64_t mix_of[400], sizes[401] = {0}, of_position = 0, used = 0;
    struct mr_blocks blocks = blocks_of(size, block, mix, size & 3);
    for (uint64_t i = 0; i < size; i++)
        mix_of[i] = UINT64_MAX;
    for (uint64_t position = 0, left = 0; position < size; position++) {
        uint64_t object = mr_blocks_at(&blocks, position);
        HOLDS(object < size);
        HOLDS(seen[object]++ == 0);
        if (left == 0) { /* a mix begins */
            of_position = used++;
            for (uint64_t place = of_position * mix; place < (of_position + 1) * mix && place < blocks.order.size;
                 place++)
                left += mr_perm_at(&blocks.order, place) == blocks.order.size - 1 ? block - blocks.missing : block;
        }
        left--;
        uint64_t *its = &mix_of[object / block];
        HOLDS(*its == UINT64_MAX || *its == of_position);
        *its = of_position;
        sizes[of_position]++;
    }
    HOLDS(used == (blocks.order.size + mix - 1) / mix);
    for (uint64_t m = 0; m + 1 < used; m++)
        HOLDS(sizes[m] + (m == blocks.last_place / mix ? blocks.missing : 0) == block * mix);
}

START_TEST(blocks_hold_every_object_once)
{
    static const uint64_t lengths[] = {1, 2, 3, 7, 16, 40, 99, 400};
    static const uint32_t mixes[] = {1, 2, 3, 5, 16, 1000};
    for (uint64_t size = 0; size <= 300; size++)
        for (unsigned b = 0; b < sizeof(lengths) / sizeof(lengths[0]); b++)
            for (unsigned k = 0; k < sizeof(mixes) / sizeof(mixes[0]); k++)
                check_blocks(size, lengths[b], mixes[k]);
}
END_TEST

/* The short block is computed, not found: it must be where the permutation has it, first, last and between. */
START_TEST(the_short_block_lies_anywhere)
{
    bool first = false, last = false, between = false;
    for (uint64_t epoch = 0; epoch < 100; epoch++) {
        struct mr_blocks blocks = blocks_of(23, 5, 1, epoch); /* 5 blocks, the last of 3 objects */
        uint64_t position = 0;
        for (uint64_t place = 0; place < 5; place++) {
            uint64_t block = mr_perm_at(&blocks.order, place);
            HOLDS((block == 4) == (place == blocks.last_place));
            for (uint64_t i = 0; i < (block == 4 ? 3 : 5); i++)
                HOLDS(mr_blocks_at(&blocks, position++) / 5 == block);
        }
        HOLDS(position == 23);
        first = first || blocks.last_place == 0;
        last = last || blocks.last_place == 4;
        between = between || blocks.last_place == 2;
    }
    ck_assert(first && last && between);
}
END_TEST

/* The largest sizes overflow nothing: near the start, the end and the short block, objects are inside and different. */
START_TEST(blocks_of_large_sizes)
{
    static const struct {
        uint64_t size, block;
        uint32_t mix;
    } cases[] = {{MR_PLAN_MAX_SIZE, 1, 1},
                 {MR_PLAN_MAX_SIZE, 3, MR_PLAN_MAX_MIX},
                 {MR_PLAN_MAX_SIZE - 1, 40, 16},
                 {MR_PLAN_MAX_SIZE - 1, MR_PLAN_MAX_SIZE, MR_PLAN_MAX_MIX},
                 {MR_PLAN_MAX_SIZE, MR_PLAN_MAX_SIZE - 1, 1},
                 {(UINT64_C(1) << 32) + 1, (UINT64_C(1) << 31) - 1, 2},
                 {10000000, 41, 16}};
    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint64_t size = cases[c].size, seen[60];
        struct mr_blocks blocks = blocks_of(size, cases[c].block, cases[c].mix, c);
        uint64_t middle = blocks.last_place * blocks.block < size ? blocks.last_place * blocks.block : size - 1;
        for (unsigned k = 0; k < 60; k++) {
            uint64_t position = k < 20 ? k : k < 40 ? size - 1 - (k - 20) : (middle + k - 40) % size;
            seen[k] = mr_blocks_at(&blocks, position);
            HOLDS(seen[k] < size);
            HOLDS(mr_blocks_at(&blocks, position + size) == seen[k]);
            for (unsigned other = 0; other < (k < 40 ? k : 0); other++)
                HOLDS(seen[other] != seen[k]);
        }
    }
}
END_TEST

/* Where a sample lands: any block first, any sample of a mix first, as likely as the others. df 15: 37.7 at 0.001. */
START_TEST(blocks_and_their_samples_land_anywhere)
{
    unsigned by_block[16] = {0}, by_sample[16] = {0}, same = 0;
    uint64_t before = 0;
    for (uint64_t epoch = 0; epoch < 8000; epoch++) {
        struct mr_blocks blocks = blocks_of(256, 16, 4, epoch);
        uint64_t object = mr_blocks_at(&blocks, 70);
        by_block[object / 16]++;
        by_sample[object % 16]++;
        same += epoch > 0 && object == before;
        before = object;
    }
    ck_assert_double_lt(chi_square(by_block, 16, 8000), 37.7);
    ck_assert_double_lt(chi_square(by_sample, 16, 8000), 37.7);
    ck_assert_uint_lt(same, 60); /* 31 are expected */
}
END_TEST

START_TEST(a_plan_in_blocks)
{
    struct mr_plan_params p = {
        .size = 100, .seed = 7, .epoch = 3, .world = 1, .batch = 1, .shuffle = true, .block = 8, .mix = 2};
    memcpy(p.digest, digest, sizeof(digest));
    struct mr_plan plan;
    ck_assert_int_eq(mr_plan_init(&plan, &p), 0);
    struct mr_blocks blocks = blocks_of(100, 8, 2, 3);
    unsigned elsewhere = 0;
    struct mr_plan single = plan_of(100, 0, 1, 1, 0, MR_TAIL_SHORT);
    for (uint64_t i = 0; i < 100; i++) {
        ck_assert_uint_eq(mr_plan_object(&plan, i), mr_blocks_at(&blocks, i));
        ck_assert_uint_eq(mr_plan_object(&plan, i + 100), mr_blocks_at(&blocks, i)); /* as MR_TAIL_PAD asks */
        elsewhere += mr_plan_object(&plan, i) != mr_plan_object(&single, i);
    }
    ck_assert_uint_gt(elsewhere, 90);
    p.shuffle = false; /* the order of the names has no blocks */
    ck_assert_int_eq(mr_plan_init(&plan, &p), 0);
    for (uint64_t i = 0; i < 100; i++)
        ck_assert_uint_eq(mr_plan_object(&plan, i), i);
}
END_TEST

/* The rest of an epoch over all ranks and steps: positions from the cursor on, in order, each once, none left but
 * left_out. compare_plan.py compares the shares themselves with a model. */
static void check_rest(uint64_t n, uint32_t world, uint32_t batch, uint64_t cursor, enum mr_plan_tail tail)
{
    uint64_t at = cursor, steps = 0;
    struct mr_plan plan = plan_of(n, 0, world, batch, cursor, tail);
    steps = mr_plan_steps(&plan);
    for (uint64_t s = 0; s < steps; s++) {
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t rank = 0; rank < world; rank++) {
            struct mr_plan mine = plan_of(n, rank, world, batch, cursor, tail);
            HOLDS(mr_plan_steps(&mine) == steps);
            uint64_t first;
            uint32_t count;
            mr_plan_share(&mine, s, &first, &count);
            HOLDS(first == at);
            HOLDS(count > 0);
            HOLDS(count <= batch);
            at += count;
            least = count < least ? count : least;
            most = count > most ? count : most;
        }
        HOLDS(most - least <= 1);
        HOLDS(mr_plan_cursor_after(&plan, s) == (at < n ? at : n));
    }
    if (tail == MR_TAIL_PAD) {
        HOLDS(at >= n);
        HOLDS(mr_plan_left_out(&plan) == 0);
    } else {
        HOLDS(at + mr_plan_left_out(&plan) == n);
        HOLDS(mr_plan_left_out(&plan) < (tail == MR_TAIL_SHORT ? world : (uint64_t)world * batch));
    }
    uint64_t first;
    uint32_t count = 1;
    mr_plan_share(&plan, steps, &first, &count);
    HOLDS(count == 0);
}

START_TEST(shares_cover_the_rest)
{
    for (uint64_t n = 0; n <= 70; n++)
        for (uint32_t world = 1; world <= 5; world++)
            for (uint32_t batch = 1; batch <= 4; batch++)
                for (unsigned tail = 0; tail < MR_TAIL_KINDS; tail++)
                    for (uint64_t cursor = 0; cursor <= n; cursor += 1 + n / 4)
                        check_rest(n, world, batch, cursor, (enum mr_plan_tail)tail);
}
END_TEST

START_TEST(largest_parameters)
{
    uint64_t first;
    uint32_t count;
    for (unsigned tail = 0; tail < MR_TAIL_KINDS; tail++) {
        struct mr_plan plan = plan_of(MR_PLAN_MAX_SIZE - 1, MR_PLAN_MAX_WORLD - 1, MR_PLAN_MAX_WORLD, MR_PLAN_MAX_BATCH,
                                      0, (enum mr_plan_tail)tail);
        uint64_t per_step = (uint64_t)MR_PLAN_MAX_WORLD * MR_PLAN_MAX_BATCH, steps = mr_plan_steps(&plan);
        ck_assert_uint_eq(steps, tail == MR_TAIL_DROP ? 3 : 4);
        mr_plan_share(&plan, 2, &first, &count);
        ck_assert_uint_eq(first + count, 3 * per_step);
        mr_plan_share(&plan, 3, &first, &count);
        ck_assert_uint_eq(first + count, tail == MR_TAIL_PAD ? 4 * per_step : MR_PLAN_MAX_SIZE - 1);
        ck_assert_uint_eq(mr_plan_left_out(&plan), tail == MR_TAIL_DROP ? per_step - 1 : 0);
        ck_assert_uint_eq(mr_plan_cursor_after(&plan, steps - 1),
                          tail == MR_TAIL_DROP ? 3 * per_step : MR_PLAN_MAX_SIZE - 1);
        ck_assert_uint_lt(mr_plan_object(&plan, 4 * per_step - 1), MR_PLAN_MAX_SIZE);
    }
    struct mr_plan one = plan_of(MR_PLAN_MAX_SIZE, 0, 1, 1, 0, MR_TAIL_SHORT);
    ck_assert_uint_eq(mr_plan_steps(&one), MR_PLAN_MAX_SIZE);
    ck_assert_uint_eq(mr_plan_cursor_after(&one, MR_PLAN_MAX_SIZE - 1), MR_PLAN_MAX_SIZE);
}
END_TEST

START_TEST(pad_repeats_from_the_start)
{
    uint64_t first;
    uint32_t count;
    struct mr_plan plan = plan_of(10, 1, 2, 4, 8, MR_TAIL_PAD);
    mr_plan_share(&plan, 0, &first, &count);
    ck_assert_uint_eq(first, 12);
    ck_assert_uint_eq(count, 4);
    ck_assert_uint_eq(mr_plan_object(&plan, 12), mr_plan_object(&plan, 2));
}
END_TEST

START_TEST(workers_share_the_steps)
{
    for (uint64_t n = 0; n < 60; n++) {
        struct mr_plan plan = plan_of(n, 0, 1, 3, 0, MR_TAIL_SHORT);
        for (uint32_t workers = 1; workers <= 5; workers++) {
            unsigned char seen[64] = {0};
            uint64_t sum = 0;
            for (uint32_t w = 0; w < workers; w++) {
                uint64_t mine = mr_plan_worker_steps(&plan, w, workers);
                for (uint64_t k = 0; k < mine; k++) {
                    uint64_t step = mr_plan_worker_step(k, w, workers);
                    HOLDS(step < mr_plan_steps(&plan));
                    HOLDS(step % workers == w);
                    HOLDS(seen[step]++ == 0);
                }
                sum += mine;
            }
            HOLDS(sum == mr_plan_steps(&plan));
        }
    }
}
END_TEST

START_TEST(single_positions)
{
    for (uint64_t n = 0; n < 60; n++) {
        for (uint32_t world = 1; world <= 4; world++) {
            for (uint32_t workers = 1; workers <= 4; workers++) {
                unsigned char seen[64] = {0};
                for (uint32_t rank = 0; rank < world; rank++) {
                    uint64_t of_rank = 0;
                    uint64_t cursor = n / 3;
                    struct mr_plan plan = plan_of(n, rank, world, 1, cursor, MR_TAIL_SHORT);
                    for (uint32_t w = 0; w < workers; w++) {
                        uint64_t mine = mr_plan_single_count(&plan, w, workers);
                        for (uint64_t k = 0; k < mine; k++) {
                            uint64_t p = mr_plan_single_position(&plan, w, workers, k);
                            HOLDS(p >= cursor && p < n);
                            HOLDS((p - cursor) % world == rank);
                            HOLDS((p - cursor) / world % workers == w);
                            HOLDS(seen[p]++ == 0);
                        }
                        of_rank += mine;
                    }
                    HOLDS(of_rank == (n - cursor) / world);
                }
            }
        }
    }
}
END_TEST

START_TEST(replacements_are_others_and_distinct)
{
    for (uint64_t n = 0; n < 40; n++) {
        struct mr_plan plan = plan_of(n, 0, 1, 1, 0, MR_TAIL_SHORT);
        for (uint64_t position = 0; position < n; position++) {
            unsigned char seen[64] = {0};
            uint64_t r, want = n - 1 < MR_PLAN_REPLACEMENTS ? n - 1 : MR_PLAN_REPLACEMENTS;
            for (uint32_t attempt = 0; attempt < MR_PLAN_REPLACEMENTS + 2; attempt++) {
                HOLDS(mr_plan_replacement(&plan, position, attempt, &r) == (attempt < want ? 0 : -1));
                if (attempt < want) {
                    ck_assert_uint_lt(r, n);
                    ck_assert_uint_ne(r, position);
                    ck_assert_uint_eq(seen[r]++, 0);
                }
            }
        }
    }
    uint64_t r, hits = 0, sum = 0;
    struct mr_plan plan = plan_of(1000, 0, 1, 1, 0, MR_TAIL_SHORT);
    for (uint64_t position = 0; position < 1000; position++) {
        ck_assert_int_eq(mr_plan_replacement(&plan, position, 0, &r), 0);
        hits += r == (position + 1) % 1000;
        sum += r;
    }
    ck_assert_uint_lt(hits, 10);
    ck_assert_uint_gt(sum, 1000 * 450);
    ck_assert_uint_lt(sum, 1000 * 550);
}
END_TEST

START_TEST(refuses_out_of_range)
{
    static const struct mr_plan_params good = {.size = 10, .world = 2, .rank = 1, .batch = 3, .cursor = 10};
    struct mr_plan plan;
    ck_assert_int_eq(mr_plan_init(&plan, &good), 0);
    static const char *const names[] = {"size",   "world", "world", "rank", "batch", "batch",
                                        "cursor", "tail",  "block", "mix",  "mix"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct mr_plan_params p = good;
        p.size = i == 0 ? MR_PLAN_MAX_SIZE + 1 : p.size;
        p.world = i == 1 ? 0 : i == 2 ? MR_PLAN_MAX_WORLD + 1 : p.world;
        p.rank = i == 3 ? 2 : p.rank;
        p.batch = i == 4 ? 0 : i == 5 ? MR_PLAN_MAX_BATCH + 1 : p.batch;
        p.cursor = i == 6 ? 11 : p.cursor;
        p.tail = i == 7 ? MR_TAIL_KINDS : p.tail;
        p.block = i == 8 ? MR_PLAN_MAX_SIZE + 1 : 1;
        p.mix = i == 9 ? 0 : i == 10 ? MR_PLAN_MAX_MIX + 1 : 1;
        ck_assert_int_eq(mr_plan_init(&plan, &p), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
        ck_assert_ptr_nonnull(strstr(mr_error_text(), names[i]));
        const uint64_t values[] = {p.size,   p.world, p.world, p.rank, p.batch, p.batch,
                                   p.cursor, p.tail,  p.block, p.mix,  p.mix};
        const uint64_t limits[] = {MR_PLAN_MAX_SIZE,
                                   MR_PLAN_MAX_WORLD,
                                   MR_PLAN_MAX_WORLD,
                                   1,
                                   MR_PLAN_MAX_BATCH,
                                   MR_PLAN_MAX_BATCH,
                                   10,
                                   MR_TAIL_KINDS - 1,
                                   MR_PLAN_MAX_SIZE,
                                   MR_PLAN_MAX_MIX,
                                   MR_PLAN_MAX_MIX};
        char words[100];
        snprintf(words, sizeof words, "is %llu, out of range (limit %llu)", (unsigned long long)values[i],
                 (unsigned long long)limits[i]);
        ck_assert_msg(strstr(mr_error_text(), words) != NULL, "%s", mr_error_text());
    }
}
END_TEST

START_TEST(tail_names)
{
    enum mr_plan_tail tail;
    static const char *const names[MR_TAIL_KINDS] = {"short", "drop", "pad"};
    for (unsigned i = 0; i < MR_TAIL_KINDS; i++) {
        ck_assert_int_eq(mr_plan_tail_parse(names[i], &tail), 0);
        ck_assert_uint_eq(tail, i);
    }
    ck_assert_int_eq(mr_plan_tail_parse("shorter", &tail), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("plan");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, permutes_every_small_size);
    tcase_add_test(tc, permutes_large_sizes);
    tcase_add_test(tc, identity_without_shuffle);
    tcase_add_test(tc, orders_of_four_are_equally_likely);
    tcase_add_test(tc, objects_land_anywhere);
    tcase_add_test(tc, key_is_digest_seed_and_epoch);
    tcase_add_test(tc, order_is_pinned);
    tcase_add_test(tc, blocks_hold_every_object_once);
    tcase_add_test(tc, the_short_block_lies_anywhere);
    tcase_add_test(tc, blocks_of_large_sizes);
    tcase_add_test(tc, blocks_and_their_samples_land_anywhere);
    tcase_add_test(tc, a_plan_in_blocks);
    tcase_add_test(tc, shares_cover_the_rest);
    tcase_add_test(tc, largest_parameters);
    tcase_add_test(tc, pad_repeats_from_the_start);
    tcase_add_test(tc, workers_share_the_steps);
    tcase_add_test(tc, single_positions);
    tcase_add_test(tc, replacements_are_others_and_distinct);
    tcase_add_test(tc, refuses_out_of_range);
    tcase_add_test(tc, tail_names);
    return mr_suite_run("plan", tc);
}
