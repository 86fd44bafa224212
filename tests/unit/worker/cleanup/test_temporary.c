/*
 * Which temporary objects belong to the dead. Names, deletes and rounds: tests/unit/worker/write,
 * tests/e2e/test_compose.py.
 */
#include <check.h>
#include <stdlib.h>

#include "worker/cleanup/temporary.h"

#define RUN "0f8fad5b-d9cb-469f-a165-70867728950e"

/* By a mark, by age, for objects of fetch and of write workers. */
START_TEST(whose_objects_are_dead)
{
    struct mr_maker fetch = {.run = RUN, .slot = 1, .start = 2};
    struct mr_maker write = {.run = RUN, .slot = MR_MAKER_WRITE + 1, .start = 2};
    struct mr_dead_mark of_write = {.maker = write}, marks = {.next = &of_write, .maker = fetch};
    ck_assert(mr_temporary_is_dead(&fetch, 0, -1, &marks, true));
    ck_assert(!mr_temporary_is_dead(&write, 0, -1, &marks, false)); /* its successor may be on its way */
    of_write.gone = true; /* the run is dead for good: there is no successor */
    ck_assert(mr_temporary_is_dead(&write, 0, -1, &marks, false));
    of_write.gone = false;
    of_write.late = true;
    ck_assert(mr_temporary_is_dead(&write, 0, -1, &marks, false));
    ck_assert(!mr_temporary_is_dead(&write, 0, -1, &marks, true)); /* or is there */

    ck_assert(!mr_temporary_is_dead(&fetch, MR_TEMPORARY_AGE_S - 1, -1, NULL, false));
    ck_assert(mr_temporary_is_dead(&fetch, MR_TEMPORARY_AGE_S, -1, NULL, false));
    ck_assert(!mr_temporary_is_dead(&fetch, MR_TEMPORARY_AGE_S, -1, NULL, true));
    ck_assert(!mr_temporary_is_dead(&write, MR_TEMPORARY_PART_AGE_S - 1, -1, NULL, false));
    ck_assert(mr_temporary_is_dead(&write, MR_TEMPORARY_PART_AGE_S, -1, NULL, false));
    ck_assert(mr_temporary_is_dead(NULL, MR_TEMPORARY_AGE_S, -1, NULL, false));
    ck_assert(!mr_temporary_is_dead(NULL, -1, -1, NULL, false)); /* of an unknown age */
    ck_assert(mr_temporary_is_dead(&write, 0, 0, NULL, false));
    ck_assert(!mr_temporary_is_dead(&write, 0, 0, NULL, true));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("temporary");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, whose_objects_are_dead);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
