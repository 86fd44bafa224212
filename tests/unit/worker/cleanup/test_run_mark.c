/* Marks of processes that make temporary objects: who lives, who has died, and when a mark goes. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/cleanup/run_mark.h"

#define RUN      "0f8fad5b-d9cb-469f-a165-70867728950e"
#define ENDPOINT "http://127.0.0.1:1"

static char runtime[64], marks_path[128];

static void make_runtime(void)
{
    strcpy(runtime, "/tmp/mr-mark-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    snprintf(marks_path, sizeof marks_path, "%s/millrace/composed", runtime);
}

static void remove_runtime(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runtime);
    ck_assert_int_eq(system(command), 0);
}

static unsigned count_marks(void)
{
    unsigned count = 0;
    DIR *dir = opendir(marks_path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

/* A process that marks itself for the buckets and is killed when it has. */
static void die_with_mark(unsigned slot, unsigned buckets)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct mr_maker maker = {.run = RUN, .slot = slot, .start = 1};
        struct mr_run_mark *mark = mr_run_mark_new(&maker);
        for (unsigned i = 0; i < buckets; i++) {
            char name[16];
            snprintf(name, sizeof name, "b%u", i);
            if (!mark || mr_run_mark_note(mark, ENDPOINT, name) != 0)
                _exit(1);
        }
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
}

static bool lives(const char *run, const struct mr_dead_mark *marks)
{
    struct mr_run_life life = {.lives = false};
    return mr_run_lives(&life, run, marks);
}

/* As if the death had been noticed long ago. */
static struct mr_dead_mark *take_late(void)
{
    struct mr_dead_mark *marks = mr_dead_marks_take(100);
    for (struct mr_dead_mark *mark = marks; mark; mark = mark->next)
        mark->late = true;
    return marks;
}

START_TEST(the_living_are_left_alone)
{
    struct mr_maker maker = {.run = RUN, .slot = 3, .start = 7}, other = {.run = RUN, .slot = 3, .start = 8};
    struct mr_run_mark *mark = mr_run_mark_new(&maker);
    ck_assert_ptr_nonnull(mark);
    ck_assert_int_eq(mr_run_mark_note(mark, ENDPOINT, "bucket"), 0);
    ck_assert_int_eq(mr_run_mark_note(mark, ENDPOINT, "bucket"), 0);
    ck_assert_ptr_null(mr_dead_marks_take(100));
    ck_assert(lives(RUN, NULL));
    ck_assert(!lives("1f8fad5b-d9cb-469f-a165-70867728950e", NULL));
    ck_assert(!mr_maker_equal(&maker, &other));
    mr_run_mark_destroy(mark, false);
    ck_assert_uint_eq(count_marks(), 0);
    ck_assert(!lives(RUN, NULL));
}
END_TEST

START_TEST(the_dead_are_found_once_and_stay_until_it_is_late)
{
    die_with_mark(1, 1);
    struct mr_dead_mark *marks = mr_dead_marks_take(100);
    ck_assert_ptr_nonnull(marks);
    ck_assert_ptr_null(marks->next);
    ck_assert_uint_eq(marks->maker.slot, 1);
    mr_dead_mark_cleaned(marks, ENDPOINT, "b"); /* of another bucket and another endpoint: nothing */
    mr_dead_mark_cleaned(marks, "http://127.0.0.1", "b0");
    ck_assert_str_eq(marks->text, ENDPOINT " b0\n");
    ck_assert(!marks->late);
    ck_assert_ptr_null(mr_dead_marks_take(100)); /* ours now */
    ck_assert(!lives(RUN, marks));               /* and no sign of life */
    mr_dead_marks_free(marks);
    ck_assert_uint_eq(count_marks(), 1);
    marks = mr_dead_marks_take(100);
    ck_assert_ptr_nonnull(marks);
    ck_assert(!marks->late); /* noticed, but only now */
    mr_dead_marks_free(marks);
    marks = take_late();
    mr_dead_mark_cleaned(marks, ENDPOINT, "b0");
    mr_dead_marks_free(marks);
    ck_assert_uint_eq(count_marks(), 0);
}
END_TEST

START_TEST(a_mark_goes_with_its_last_bucket)
{
    die_with_mark(1, 3);
    struct mr_dead_mark *marks = take_late();
    mr_dead_mark_cleaned(marks, ENDPOINT, "b1");
    mr_dead_mark_cleaned(marks, ENDPOINT, "b1");
    mr_dead_mark_cleaned(marks, ENDPOINT, "none");
    ck_assert_str_eq(marks->text, ENDPOINT " b0\n" ENDPOINT " b2\n");
    mr_dead_mark_cleaned(marks, ENDPOINT, "b0");
    ck_assert_uint_eq(count_marks(), 1);
    mr_dead_mark_cleaned(marks, ENDPOINT, "b2");
    mr_dead_marks_free(marks);
    ck_assert_uint_eq(count_marks(), 0);
}
END_TEST

START_TEST(what_names_no_bucket_or_is_no_mark)
{
    die_with_mark(1, 0);
    struct mr_maker maker = {.run = RUN, .slot = 9, .start = 1};
    struct mr_run_mark *mark = mr_run_mark_new(&maker);
    char path[256];
    snprintf(path, sizeof path, "%s/x", marks_path);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert(fd >= 0 && write(fd, "a b\n", 4) == 4);
    close(fd);
    snprintf(path, sizeof path, "%s/" RUN ".1.x", marks_path);
    ck_assert_int_eq(symlink("/dev/null", path), 0);
    ck_assert_ptr_null(mr_dead_marks_take(100));
    ck_assert_uint_eq(count_marks(), 3); /* the empty one is gone */
    mr_run_mark_destroy(mark, true);
    ck_assert_uint_eq(count_marks(), 3);
}
END_TEST

START_TEST(a_folder_of_others_is_an_error)
{
    ck_assert_int_eq(chmod(runtime, 0700), 0);
    char path[128];
    snprintf(path, sizeof path, "%s/millrace", runtime);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    ck_assert_int_eq(chmod(path, 0777), 0);
    struct mr_maker maker = {.run = RUN, .slot = 1, .start = 1};
    ck_assert_ptr_null(mr_run_mark_new(&maker));
    ck_assert_ptr_null(mr_dead_marks_take(100));
    ck_assert(!lives(RUN, NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_mark");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, make_runtime, remove_runtime);
    tcase_add_test(tests, the_living_are_left_alone);
    tcase_add_test(tests, the_dead_are_found_once_and_stay_until_it_is_late);
    tcase_add_test(tests, a_mark_goes_with_its_last_bucket);
    tcase_add_test(tests, what_names_no_bucket_or_is_no_mark);
    tcase_add_test(tests, a_folder_of_others_is_an_error);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
