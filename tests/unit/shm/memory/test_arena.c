/* test_arena.c - best fit over page runs: against a plain map of pages, and by example. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/arena.h"
#include "tests/unit/suite.h"

#define P ((uint64_t)MR_ARENA_PAGE)

START_TEST(reserve_is_never_given_out)
{
    struct mr_arena *arena = mr_arena_new(10 * P + 17, 2 * P + 1, 10 * P + 17);

    ck_assert_ptr_nonnull(arena);
    ck_assert_uint_eq(mr_arena_reserve_bytes(arena), 3 * P);
    ck_assert_uint_eq(mr_arena_free_bytes(arena), 7 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 7 * P);
    ck_assert_int_eq(mr_arena_alloc(arena, 7 * P + 1), -1);
    ck_assert_int_eq(mr_arena_alloc(arena, 7 * P), (int64_t)(3 * P));
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 0);
    ck_assert_int_eq(mr_arena_alloc(arena, 1), -1);
    ck_assert_int_eq(mr_arena_alloc(arena, 0), -1);
    mr_arena_free(arena, 3 * P, 7 * P);
    ck_assert_uint_eq(mr_arena_free_bytes(arena), 7 * P);
    mr_arena_destroy(arena);
    mr_arena_destroy(NULL);
    arena = mr_arena_new(4 * P, 4 * P, 4 * P); /* all of it */
    ck_assert_int_eq(mr_arena_alloc(arena, 1), -1);
    mr_arena_destroy(arena);
    ck_assert_ptr_null(mr_arena_new(P - 1, 0, P - 1));
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_ptr_null(mr_arena_new(2 * P, 3 * P, 2 * P));
}
END_TEST

START_TEST(best_fit_and_most_recently_freed)
{
    struct mr_arena *arena = mr_arena_new(100 * P, 0, 100 * P);
    int64_t run[10];

    /* 3 used, 1 guard, 2 used, 1 guard, 2 used, 1 guard, the rest */
    for (int i = 0; i < 6; i++)
        run[i] = mr_arena_alloc(arena, (i % 2 ? 1 : i == 0 ? 3 : 2) * P);
    mr_arena_free(arena, (uint64_t)run[0], 3 * P);
    mr_arena_free(arena, (uint64_t)run[2], 2 * P);
    mr_arena_free(arena, (uint64_t)run[4], 2 * P);
    ck_assert_int_eq(mr_arena_alloc(arena, 2 * P), run[4]); /* the last one freed */
    ck_assert_int_eq(mr_arena_alloc(arena, P + 1), run[2]);
    ck_assert_int_eq(mr_arena_alloc(arena, 2 * P), run[0]); /* the next larger one */
    mr_arena_destroy(arena);
}
END_TEST

START_TEST(neighbours_are_joined)
{
    struct mr_arena *arena = mr_arena_new(9 * P, 0, 9 * P);
    int64_t a = mr_arena_alloc(arena, 3 * P), b = mr_arena_alloc(arena, 3 * P), c = mr_arena_alloc(arena, 3 * P);

    mr_arena_free(arena, (uint64_t)a, 3 * P);
    mr_arena_free(arena, (uint64_t)c, 3 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 3 * P);
    mr_arena_free(arena, (uint64_t)b, 3 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 9 * P);
    mr_arena_destroy(arena);
}
END_TEST

START_TEST(claims_after_a_restart)
{
    struct mr_arena *arena = mr_arena_new(20 * P, 2 * P, 20 * P);

    ck_assert(mr_arena_claim(arena, 5 * P + 100, P)); /* pages 5 and 6 */
    ck_assert(!mr_arena_claim(arena, 6 * P, 1));
    ck_assert(!mr_arena_claim(arena, 4 * P, 3 * P));
    ck_assert(!mr_arena_claim(arena, 0, P)); /* the reserve */
    ck_assert(!mr_arena_claim(arena, 19 * P, P + 1));
    ck_assert(!mr_arena_claim(arena, UINT64_MAX - 5, 10));
    ck_assert(!mr_arena_claim(arena, 8 * P, 0));
    ck_assert(mr_arena_claim(arena, 2 * P, 3 * P));
    ck_assert_uint_eq(mr_arena_free_bytes(arena), 13 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 13 * P);
    mr_arena_free(arena, 5 * P + 100, P);
    mr_arena_free(arena, 5 * P + 100, P); /* twice: refused, and logged */
    mr_arena_free(arena, 2 * P, 3 * P);
    ck_assert_uint_eq(mr_arena_free_bytes(arena), 18 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 18 * P);
    mr_arena_destroy(arena);
}
END_TEST

START_TEST(what_has_no_memory_is_not_given_out)
{
    struct mr_arena *arena = mr_arena_new(20 * P, 2 * P, 2 * P);

    ck_assert_ptr_null(mr_arena_new(20 * P, 3 * P, 2 * P));
    ck_assert_ptr_null(mr_arena_new(20 * P, 3 * P, 21 * P));
    ck_assert_int_eq(mr_arena_alloc(arena, 1), -1);
    ck_assert(!mr_arena_claim(arena, 2 * P, P));
    ck_assert_uint_eq(mr_arena_free_bytes(arena), 18 * P);
    mr_arena_extend(arena, 5 * P);
    ck_assert_uint_eq(mr_arena_backed_bytes(arena), 5 * P);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 3 * P);
    ck_assert_int_eq(mr_arena_alloc(arena, 2 * P), (int64_t)(2 * P));
    ck_assert_int_eq(mr_arena_alloc(arena, 2 * P), -1);
    mr_arena_extend(arena, 8 * P); /* joins what was free before it */
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 4 * P);
    ck_assert(!mr_arena_claim(arena, 7 * P, 2 * P));
    ck_assert(!mr_arena_shrink(arena, 4 * P)); /* one is in use */
    mr_arena_free(arena, 2 * P, 2 * P);
    ck_assert(mr_arena_shrink(arena, 4 * P));
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 2 * P);
    mr_arena_free(arena, 5 * P, P); /* refused, and logged */
    ck_assert(mr_arena_shrink(arena, 2 * P));
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), 0);
    mr_arena_extend(arena, 100 * P);
    ck_assert_uint_eq(mr_arena_backed_bytes(arena), 20 * P);
    ck_assert_int_eq(mr_arena_alloc(arena, 18 * P), (int64_t)(2 * P));
    mr_arena_destroy(arena);
}
END_TEST

/* Random steps against a map of pages: no overlap, the best fit is taken, all comes back as one run. It grows meanwhile. */
static void random_steps(uint64_t seed, unsigned pages, unsigned steps)
{
    unsigned backed = (unsigned)(mr_mix64(seed) % (pages + 1));
    struct mr_arena *arena = mr_arena_new(pages * P, 0, backed * P);
    unsigned char *map = calloc(pages, 1);
    uint64_t offset[256], bytes[256];
    unsigned count = 0;

    for (unsigned i = 0; i < steps; i++) {
        uint64_t random = mr_mix64(seed << 32 | i);
        if (random % 61 == 0 && backed <= pages) {
            backed += (unsigned)(random / 61 % (pages - backed + 1));
            mr_arena_extend(arena, backed * P);
        }
        if (random % 2 && count < 256) {
            uint64_t want = 1 + random / 2 % (pages * P / 8), n = (want + P - 1) / P, best = UINT64_MAX;
            int64_t at = mr_arena_alloc(arena, want);
            for (unsigned from = 0, page = 0; page <= backed; page++) {
                if (page < backed && !map[page])
                    continue;
                if (page - from >= n && page - from < best)
                    best = page - from;
                from = page + 1;
            }
            ck_assert_int_eq(at < 0, best == UINT64_MAX);
            if (at < 0)
                continue;
            for (uint64_t page = (uint64_t)at / P; page < (uint64_t)at / P + n; page++) {
                ck_assert_uint_eq(map[page], 0);
                map[page] = 1;
            }
            /* what is left of the run it was cut from */
            uint64_t end = (uint64_t)at / P + n, free_after = 0;
            while (end + free_after < backed && !map[end + free_after])
                free_after++;
            ck_assert_uint_eq(n + free_after, best);
            offset[count] = (uint64_t)at;
            bytes[count++] = want;
        } else if (count > 0) {
            unsigned k = (unsigned)(random / 2 % count);
            memset(map + offset[k] / P, 0, (bytes[k] + P - 1) / P);
            mr_arena_free(arena, offset[k], bytes[k]);
            offset[k] = offset[--count];
            bytes[k] = bytes[count];
        }
    }
    while (count-- > 0)
        mr_arena_free(arena, offset[count], bytes[count]);
    ck_assert_uint_eq(mr_arena_largest_bytes(arena), backed * P);
    ck_assert_uint_eq(mr_arena_free_bytes(arena), pages * P);
    free(map);
    mr_arena_destroy(arena);
}

START_TEST(random_against_a_map)
{
    static const unsigned sizes[] = {1, 7, 63, 64, 65, 500, 4096, 5000};

    for (uint64_t seed = 0; seed < 40; seed++)
        random_steps(seed, sizes[seed % 8], 600);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("arena");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, reserve_is_never_given_out);
    tcase_add_test(tc, best_fit_and_most_recently_freed);
    tcase_add_test(tc, neighbours_are_joined);
    tcase_add_test(tc, claims_after_a_restart);
    tcase_add_test(tc, what_has_no_memory_is_not_given_out);
    tcase_add_test(tc, random_against_a_map);
    return mr_suite_run("arena", tc);
}
