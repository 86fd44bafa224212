/* The file whose locks say whether anything of a run goes on: who holds it, who finds it dead, and what follows. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/run_lock.h"

#define RUN   "0f8fad5b-d9cb-469f-a165-70867728950e"
#define OTHER "1f8fad5b-d9cb-469f-a165-70867728950e"

static char runtime[64], path[200];

static void make_runtime(void)
{
    strcpy(runtime, "/tmp/mr-run-lock-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    snprintf(path, sizeof path, "%s/millrace/runs/" RUN, runtime);
}

static void remove_runtime(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runtime);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_run_lives_as_long_as_one_holds_it)
{
    int supervisor = mr_run_lock_new(RUN), worker = mr_run_lock_hold(RUN);
    ck_assert(supervisor >= 0 && worker >= 0);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_LIVES);
    close(supervisor); /* killed */
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_LIVES);
    int next = mr_run_lock_hold(RUN);
    ck_assert_int_ge(next, 0);
    close(worker);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_LIVES);
    close(next);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_DEAD);
}
END_TEST

/* A worker that was being started at that moment: what it would go on with is being removed. */
START_TEST(whoever_comes_too_late_is_told)
{
    close(mr_run_lock_new(RUN));
    int early = mr_run_lock_hold(RUN); /* nobody has looked yet */
    ck_assert_int_ge(early, 0);
    close(early);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_DEAD);
    ck_assert_int_eq(mr_run_lock_hold(RUN), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_GONE);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_DEAD);
}
END_TEST

START_TEST(the_end_in_good_order)
{
    mr_run_lock_end(mr_run_lock_new(RUN), RUN);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_UNKNOWN);
    ck_assert_int_eq(mr_run_lock_hold(RUN), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    mr_run_lock_end(-1, RUN);
}
END_TEST

/* Another run starts, and ends. */
static void start_another(void)
{
    int lock = mr_run_lock_new(OTHER);
    ck_assert_int_ge(lock, 0);
    mr_run_lock_end(lock, OTHER);
}

START_TEST(files_of_the_dead_go)
{
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 9 * 86400}, {.tv_sec = time(NULL) - 9 * 86400}};
    int held = mr_run_lock_new(RUN);
    ck_assert_int_eq(futimens(held, old), 0);
    start_another();
    ck_assert_int_eq(access(path, F_OK), 0); /* it lives, however old */
    close(held);
    start_another();
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(a_dead_ones_file_stays_as_long_as_its_records)
{
    char folder[200], record[300];
    close(mr_run_lock_new(RUN));
    snprintf(folder, sizeof folder, "%s/millrace/kind", runtime);
    snprintf(record, sizeof record, "%s/" RUN ".1.1", folder);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    int fd = open(record, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    start_another();
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_DEAD);
    ck_assert_int_eq(unlink(record), 0);
    start_another();
    ck_assert_int_eq(mr_run_lock_look(RUN), MR_RUN_UNKNOWN);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_lock");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, make_runtime, remove_runtime);
    tcase_add_test(tests, a_run_lives_as_long_as_one_holds_it);
    tcase_add_test(tests, whoever_comes_too_late_is_told);
    tcase_add_test(tests, the_end_in_good_order);
    tcase_add_test(tests, files_of_the_dead_go);
    tcase_add_test(tests, a_dead_ones_file_stays_as_long_as_its_records);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
