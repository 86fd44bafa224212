/* test_ckpt_share.c - what a checkpoint writer is given of the checkpoint arena, and where it lies. */
#include <check.h>
#include <stdlib.h>

#include "base/clock.h"
#include "shm/ring/ckpt_part.h"
#include "supervisor/ckpt_share.h"

#define MIB (UINT64_C(1) << 20)

static void expect(uint64_t bytes, uint64_t part, uint64_t part_bytes, uint32_t slots)
{
    struct mr_ckpt_share share = mr_ckpt_share(bytes, 16384 * MIB, part);
    ck_assert_uint_eq(share.part_bytes, part_bytes);
    ck_assert_uint_eq(share.slots, slots);
}

START_TEST(test_parts)
{
    expect(512 * MIB, 64 * MIB, 64 * MIB, 8);
    expect(128 * MIB, 64 * MIB, 16 * MIB, 8);
    expect(2048 * MIB, 64 * MIB, 64 * MIB, 32);
    expect(1152 * MIB, 64 * MIB, 36 * MIB, 32); /* all of it */
    expect(1000 * MIB, 64 * MIB, 1000 * MIB / 16 / 4096 * 4096, 16);
    expect(16384 * MIB, 5 * MIB, 5 * MIB, 64);
    expect(65 * MIB, 8 * MIB, 8 * MIB, 8);
    expect(39 * MIB, 64 * MIB, 5 * MIB, 4);
    expect(32 * MIB, 64 * MIB, 5 * MIB, 4);
    expect(10 * MIB, 64 * MIB, 5 * MIB, 2);
    expect(0, 64 * MIB, 5 * MIB, 2); /* never under 5 MiB, whatever is free */
    ck_assert(mr_ckpt_share_possible(10 * MIB));
    ck_assert(!mr_ckpt_share_possible(10 * MIB - 1));
}
END_TEST

START_TEST(test_who_gets_how_much)
{
    /* announced: equal shares, whatever is free */
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 800 * MIB, 2, 0, 8), 100 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 100 * MIB, 2, 7, 8), 100 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 800 * MIB, 4, 0, 2), 200 * MIB);
    /* alone: what nobody asks for, and something is left for one more */
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 800 * MIB, 2, 0, 1), 600 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 200 * MIB, 2, 1, 1), 200 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 800 * MIB, 1, 0, 0), 800 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_bytes(800 * MIB, 40 * MIB, 4, 2, 1), 30 * MIB);
}
END_TEST

START_TEST(test_gap)
{
    struct mr_ckpt_extent used[] = {{8 * MIB, 16 * MIB}, {40 * MIB, 8 * MIB}};
    ck_assert_uint_eq(mr_ckpt_share_gap(96 * MIB, NULL, 0), 96 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_gap(96 * MIB, used, 2), 48 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_gap(50 * MIB, used, 2), 16 * MIB);
    ck_assert_uint_eq(mr_ckpt_share_gap(48 * MIB, used + 1, 1), 40 * MIB);
}
END_TEST

START_TEST(test_first_fit)
{
    struct mr_ckpt_share share = {.part_bytes = 8 * MIB, .slots = 4};
    struct mr_ckpt_extent used[] = {{0, 16 * MIB}, {40 * MIB, 8 * MIB}};
    uint64_t offset = 1;
    ck_assert(mr_ckpt_share_place(&share, 96 * MIB, NULL, 0, &offset));
    ck_assert_uint_eq(offset, 0);
    ck_assert(mr_ckpt_share_place(&share, 96 * MIB, used, 2, &offset));
    ck_assert_uint_eq(offset, 48 * MIB); /* 24 MiB between the two are too few */
    ck_assert_uint_eq(share.slots, 4);
    ck_assert(mr_ckpt_share_place(&share, 64 * MIB, used, 2, &offset));
    ck_assert_uint_eq(offset, 16 * MIB);
    ck_assert_uint_eq(share.slots, 2); /* fewer, where that is what is free */
}
END_TEST

START_TEST(test_full)
{
    struct mr_ckpt_share share = {.part_bytes = 8 * MIB, .slots = 4};
    struct mr_ckpt_extent used[] = {{0, 24 * MIB}, {32 * MIB, 24 * MIB}};
    uint64_t offset = 1;
    ck_assert(!mr_ckpt_share_place(&share, 64 * MIB, used, 2, &offset));
    ck_assert_uint_eq(share.slots, MR_CKPT_PART_SLOTS_MIN);
    share = (struct mr_ckpt_share){.part_bytes = 5 * MIB, .slots = 2};
    ck_assert(!mr_ckpt_share_place(&share, 5 * MIB, NULL, 0, &offset));
}
END_TEST

struct model {
    struct mr_ckpt_extent used[64];
    unsigned count;
};

static void insert(struct model *m, uint64_t offset, uint64_t bytes)
{
    unsigned at = m->count++;
    for (; at > 0 && m->used[at - 1].offset > offset; at--)
        m->used[at] = m->used[at - 1];
    m->used[at] = (struct mr_ckpt_extent){offset, bytes};
}

static void check_apart(const struct model *m, uint64_t arena)
{
    for (unsigned i = 0; i < m->count; i++) {
        ck_assert_uint_le(m->used[i].offset + m->used[i].bytes, arena);
        if (i > 0)
            ck_assert_uint_le(m->used[i - 1].offset + m->used[i - 1].bytes, m->used[i].offset);
    }
}

/* Whatever is opened and closed: shares are as promised, and no byte is given twice. */
START_TEST(test_random_openings)
{
    uint64_t x = (uint64_t)_i * 7919;
    uint64_t arena = 10 * MIB + mr_mix64(++x) % (2000 * MIB) / 4096 * 4096;
    uint64_t wanted = 5 * MIB + mr_mix64(++x) % (100 * MIB);
    uint64_t writers = 1 + mr_mix64(++x) % 8;
    struct model m = {.count = 0};
    for (unsigned step = 0; step < 300; step++) {
        if (m.count > 0 && (mr_mix64(++x) % 3 == 0 || m.count == 64)) {
            unsigned gone = (unsigned)(mr_mix64(++x) % m.count);
            for (m.count--; gone < m.count; gone++)
                m.used[gone] = m.used[gone + 1];
            continue;
        }
        uint64_t sharers = mr_mix64(++x) % 12, offset;
        uint64_t bytes =
            mr_ckpt_share_bytes(arena, mr_ckpt_share_gap(arena, m.used, m.count), writers, m.count, sharers);
        struct mr_ckpt_share share = mr_ckpt_share(bytes, arena, wanted);
        ck_assert_uint_ge(share.part_bytes, MR_CKPT_PART_BYTES_MIN);
        ck_assert_uint_eq(share.part_bytes % MR_CKPT_PART_PAGE, 0);
        ck_assert(share.slots >= 2 && share.slots <= 64 && (share.slots & (share.slots - 1)) == 0);
        ck_assert(share.part_bytes == MR_CKPT_PART_BYTES_MIN || share.slots * share.part_bytes <= bytes);
        if (mr_ckpt_share_place(&share, arena, m.used, m.count, &offset)) {
            insert(&m, offset, share.slots * share.part_bytes);
            check_apart(&m, arena);
        } else {
            ck_assert_uint_gt(m.count, 0); /* an empty arena has room for anybody */
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("part_share");
    TCase *tests = tcase_create("part_share");
    tcase_add_test(tests, test_parts);
    tcase_add_test(tests, test_who_gets_how_much);
    tcase_add_test(tests, test_gap);
    tcase_add_test(tests, test_first_fit);
    tcase_add_test(tests, test_full);
    tcase_add_loop_test(tests, test_random_openings, 0, 50);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
