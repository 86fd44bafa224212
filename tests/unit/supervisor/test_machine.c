/* What /proc and a cgroup say of the machine, from texts, and from this one. */
#include <check.h>
#include <stdlib.h>

#include "base/clock.h"
#include "supervisor/run_impl.h"
#include "tests/unit/suite.h"

START_TEST(test_all_processes)
{
    ck_assert_uint_eq(mr_machine_busy_ticks("cpu  10 2 30 4000 500 6 7 8 90 1\ncpu0 1 1 1 1\n"),
                      10 + 2 + 30 + 6 + 7 + 8);
    ck_assert_uint_eq(mr_machine_busy_ticks("cpu  10 2"), 0);
    ck_assert_uint_eq(mr_machine_busy_ticks(""), 0);
}
END_TEST

START_TEST(test_a_process)
{
    const char *stat = "77 (a) b) c (d) S 1 77 77 0 -1 4194304 100 200 3 4 50 6 7 8 20 0 1 0 100 1000 10";
    ck_assert_uint_eq(mr_machine_process_ticks(stat), 56);
    ck_assert_uint_eq(mr_machine_process_ticks("77 (cat) S 1 2"), 0);
    ck_assert_uint_eq(mr_machine_process_ticks(""), 0);
}
END_TEST

/* This machine: the first look counts nothing, the next ones what came since. */
START_TEST(test_this_machine)
{
    struct mr_supervisor *s = calloc(1, sizeof *s);
    s->board = calloc(1, sizeof *s->board);
    ck_assert_uint_ge(mr_machine_cores(), 1);
    mr_machine_look(s, MR_SECOND_NS);
    ck_assert_uint_eq(mr_counter_get(&s->board->node, MR_NC_WATCHED_NS), 0);
    ck_assert_uint_gt(s->machine.last.busy_ns, 0);
    mr_machine_look(s, 3 * MR_SECOND_NS);
    ck_assert_uint_eq(mr_counter_get(&s->board->node, MR_NC_WATCHED_NS), 2 * MR_SECOND_NS);
    ck_assert_uint_eq(mr_counter_get(&s->board->node, MR_NC_CORES), mr_machine_cores());
    free(s->board);
    free(s);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("machine");
    tcase_add_test(tcase, test_all_processes);
    tcase_add_test(tcase, test_a_process);
    tcase_add_test(tcase, test_this_machine);
    return mr_suite_run("supervisor_machine", tcase);
}
