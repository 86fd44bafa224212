/* Lock files: who lives, what a death leaves, when it is late, and what is removed. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/control/runtime_folder.h"
#include "worker/cleanup/lock_file.h"
#include "worker/cleanup/upload_record.h"

#define RUN   "0f8fad5b-d9cb-469f-a165-70867728950e"
#define OTHER "1f8fad5b-d9cb-469f-a165-70867728950e"
#define KIND  "test"

static char runtime[64];

/* time(2) in the whole program, by the linker's --wrap. */
time_t __wrap_time(time_t *to);
time_t __real_time(time_t *to);
static time_t ahead_s;

time_t __wrap_time(time_t *to)
{
    time_t now = __real_time(NULL) + ahead_s;
    if (to)
        *to = now;
    return now;
}

static void make_runtime(void)
{
    strcpy(runtime, "/tmp/mr-lock-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
}

static void remove_runtime(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runtime);
    ck_assert_int_eq(system(command), 0);
}

/* The file of a process that wrote the text and was killed. */
static void make_dead(unsigned slot, const char *text, char path[MR_LOCK_FILE_PATH_SIZE])
{
    struct mr_maker maker = mr_maker_of(RUN, slot, 1);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = mr_lock_file_new(KIND, &maker, path);
        if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    char folder[PATH_MAX];
    ck_assert_int_eq(mr_runtime_folder(KIND, folder), 0);
    snprintf(path, MR_LOCK_FILE_PATH_SIZE, "%s/" RUN ".%u.1", folder, slot);
}

static bool is_same(const void *one, const struct mr_maker *other)
{
    return one && mr_maker_equal(one, other);
}

START_TEST(a_living_process_keeps_its_file)
{
    struct mr_maker maker = mr_maker_of(RUN, 3, 7);
    char path[MR_LOCK_FILE_PATH_SIZE];
    int fd = mr_lock_file_new(KIND, &maker, path);
    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_nonnull(strstr(path, "/" KIND "/" RUN ".3.7"));
    ck_assert_int_eq(write(fd, "x", 1), 1);
    struct stat status;
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert(mr_lock_file_run_lives(KIND, RUN, is_same, NULL));
    ck_assert(!mr_lock_file_run_lives(KIND, OTHER, is_same, NULL));
    ck_assert(!mr_lock_file_run_lives("other", RUN, is_same, NULL));
    ck_assert(!mr_lock_file_run_lives(KIND, RUN, is_same, &maker)); /* ours does not count */
    close(fd);
    ck_assert(!mr_lock_file_run_lives(KIND, RUN, is_same, NULL));
}
END_TEST

/* Without a descriptor to look with, nobody is taken for dead: what is his would be removed. */
START_TEST(without_descriptors_all_live)
{
    char path[MR_LOCK_FILE_PATH_SIZE];
    make_dead(1, "text", path);
    ck_assert(!mr_lock_file_run_lives(KIND, RUN, is_same, NULL));
    struct rlimit old, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (rlim_t spare = 0; spare < 3; spare++) { /* for the run's lock, the folder, the file */
        int next = dup(0);
        ck_assert_int_ge(next, 0);
        close(next);
        none = (struct rlimit){(rlim_t)next + spare, old.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        bool lives = mr_lock_file_run_lives(KIND, RUN, is_same, NULL), live = mr_upload_is_live("bucket", "id");
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
        ck_assert_msg(lives == (spare < 2) && live == (spare < 1), "%u descriptors", (unsigned)spare);
    }
}
END_TEST

START_TEST(a_dead_ones_file_is_taken_by_one)
{
    char path[MR_LOCK_FILE_PATH_SIZE];
    make_dead(1, "text", path);
    ck_assert(!mr_lock_file_run_lives(KIND, RUN, is_same, NULL));
    struct stat status;
    int fd = mr_lock_file_take(path, &status);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(status.st_size, 4);
    char text[8];
    ck_assert_int_eq(pread(fd, text, sizeof text, 0), 4);
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1); /* it is held */
    close(fd);
    fd = mr_lock_file_take(path, &status); /* given back */
    ck_assert_int_ge(fd, 0);
    close(fd);
    unlink(path);
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1);
}
END_TEST

START_TEST(a_death_is_late_from_its_notice_on)
{
    char path[MR_LOCK_FILE_PATH_SIZE];
    make_dead(1, "text", path);
    struct stat status;
    int fd = mr_lock_file_take(path, &status);
    ck_assert_int_ge(fd, 0);
    ck_assert(!mr_lock_file_is_late(fd, &status, MR_LATE_S));
    ck_assert_uint_eq(status.st_mode & 0777, 0400);
    struct stat again;
    ck_assert_int_eq(fstat(fd, &again), 0);
    ck_assert_int_eq(again.st_ctime, status.st_ctime); /* of the notice */
    ck_assert(mr_lock_file_is_late(fd, &status, -2));  /* a file's time may be a tick ahead of time(2) */
    ck_assert_int_eq(fstat(fd, &again), 0);
    ck_assert_int_eq(again.st_ctime, status.st_ctime); /* a second check is no second notice */
    status.st_ctime -= MR_LATE_S + 2;                  /* the same tick */
    ck_assert(mr_lock_file_is_late(fd, &status, MR_LATE_S));
    close(fd);
}
END_TEST

START_TEST(empty_and_abandoned_files_are_removed)
{
    char path[MR_LOCK_FILE_PATH_SIZE];
    make_dead(1, "", path);
    struct stat status;
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1);
    ck_assert_int_ne(access(path, F_OK), 0);
    make_dead(2, "text", path);
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = time(NULL) - 8 * 86400}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    int fd = mr_lock_file_take(path, &status);
    ck_assert_int_ge(fd, 0); /* its process wrote it once, and lived for a week */
    ck_assert(!mr_lock_file_is_late(fd, &status, MR_LATE_S));
    close(fd);
    ahead_s = 6 * 86400;
    fd = mr_lock_file_take(path, &status);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ahead_s = 8 * 86400;
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1);
    ck_assert_int_ne(access(path, F_OK), 0);
    ahead_s = 0;
}
END_TEST

START_TEST(what_is_no_regular_name_is_left_alone)
{
    char folder[PATH_MAX];
    ck_assert_int_eq(mr_runtime_folder(KIND, folder), 0);
    char path[MR_LOCK_FILE_PATH_SIZE];
    snprintf(path, sizeof path, "%s/" RUN ".1.1", folder);
    ck_assert_int_eq(symlink("/dev/null", path), 0);
    struct stat status;
    ck_assert_int_eq(mr_lock_file_take(path, &status), -1);
    struct mr_maker maker = mr_maker_of(RUN, 1, 1);
    ck_assert_int_eq(mr_lock_file_new(KIND, &maker, path), -1);
    ck_assert(!mr_lock_file_run_lives(KIND, RUN, is_same, NULL));
    ck_assert_int_eq(lstat(path, &status), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lock_file");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, make_runtime, remove_runtime);
    tcase_add_test(tests, a_living_process_keeps_its_file);
    tcase_add_test(tests, without_descriptors_all_live);
    tcase_add_test(tests, a_dead_ones_file_is_taken_by_one);
    tcase_add_test(tests, a_death_is_late_from_its_notice_on);
    tcase_add_test(tests, empty_and_abandoned_files_are_removed);
    tcase_add_test(tests, what_is_no_regular_name_is_left_alone);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
