/* test_segment.c - shared memory of both backings, read-only reopening, sweeping, limits; the board. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/ring/board.h"
#include "tests/unit/suite.h"

static const enum mr_backing backings[] = {MR_BACKING_AUTO, MR_BACKING_POSIX, MR_BACKING_MEMFD};

START_TEST(both_ends_see_the_same)
{
    for (size_t i = 0; i < 3; i++) {
        uint64_t size = 0;
        int fd = mr_segment_new(backings[i], "a test", 100000, true), flags;
        ck_assert_int_ge(fd, 0);
        flags = fcntl(fd, F_GETFD);
        ck_assert(flags & FD_CLOEXEC);
        struct stat st;
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_int_ge(st.st_blocks * 512, 100000); /* reserved */
        ck_assert_uint_eq(st.st_nlink, 0);            /* no name */
        unsigned char *a = mr_segment_map(fd, 0, true, &size);
        unsigned char *b = mr_segment_map(fd, 5000, false, NULL);
        ck_assert_ptr_nonnull(a);
        ck_assert_ptr_nonnull(b);
        ck_assert_uint_eq(size, 100000);
        ck_assert_uint_eq(b[4999], 0);
        a[4999] = 7;
        ck_assert_uint_eq(b[4999], 7);
        mr_segment_unmap(a, size);
        mr_segment_unmap(b, 5000);
        ck_assert_ptr_null(mr_segment_map(fd, 100001, false, NULL));
        ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
        close(fd);
    }
    ck_assert_int_eq(mr_segment_new(MR_BACKING_AUTO, "nothing", 0, false), -1);
}
END_TEST

/* Invariant 20. */
START_TEST(a_readonly_mapping_cannot_become_writable)
{
    for (size_t i = 0; i < 3; i++) {
        int fd = mr_segment_new(backings[i], "an arena", 8192, true), ro = mr_segment_reopen_readonly(fd);
        ck_assert_int_ge(ro, 0);
        void *at = mr_segment_map(ro, 8192, false, NULL);
        ck_assert_ptr_nonnull(at);
        ck_assert_int_eq(mprotect(at, 8192, PROT_READ | PROT_WRITE), -1);
        ck_assert_int_eq(errno, EACCES);
        ck_assert_ptr_null(mr_segment_map(ro, 8192, true, NULL));
        ck_assert_int_eq(ftruncate(ro, 0), -1);
        mr_segment_unmap(at, 8192);
        close(ro);
        close(fd);
    }
}
END_TEST

START_TEST(a_memfd_cannot_be_shrunk)
{
    int fd = mr_segment_new(MR_BACKING_MEMFD, "a lane", 8192, true);

    ck_assert_int_eq(ftruncate(fd, 4096), -1);
    ck_assert_int_eq(ftruncate(fd, 16384), -1);
    close(fd);
}
END_TEST

START_TEST(too_much_is_an_error_and_not_a_death)
{
    int fd = mr_segment_new(MR_BACKING_AUTO, "an arena", UINT64_C(1) << 50, true);

    ck_assert_int_eq(fd, -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "arena_bytes"));
    ck_assert_uint_gt(mr_memory_limit_bytes(), 1 << 20);
    ck_assert_uint_gt(mr_memory_available_bytes(), 0);
    ck_assert_uint_le(mr_memory_available_bytes(), UINT64_C(1) << 50);
}
END_TEST

static long faults(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

/* Of 2,048 pages; the sanitizer's own memory may take some. */
START_TEST(populated_pages_do_not_fault)
{
    const uint64_t size = 8 << 20;
    for (size_t i = 0; i < 3; i++) {
        int fd = mr_segment_new(backings[i], "an arena", size, true);
        unsigned char *at = mr_segment_map(fd, size, true, NULL);
        ck_assert_ptr_nonnull(at);
        mr_segment_populate(at, size);
        long before = faults();
        for (uint64_t page = 0; page < size; page += 4096)
            at[page] = 1;
        ck_assert_int_lt(faults() - before, 1024);
        mr_segment_unmap(at, size);
        close(fd);
    }
}
END_TEST

/* Also where the machine has no huge pages: then they are small, and all there. */
START_TEST(huge_or_small_all_pages_are_reserved)
{
    const uint64_t size = (5 << 20) + 4096;
    for (size_t i = 0; i < 3; i++) {
        int fd = mr_segment_new(backings[i], "an arena", size, false);
        unsigned char *at = mr_segment_map(fd, size, true, NULL);
        ck_assert_ptr_nonnull(at);
        ck_assert_msg(mr_segment_reserve_huge(fd, at, "an arena", 0, size) == 0, "%s", mr_error_text());
        struct stat st;
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_uint_ge((uint64_t)st.st_blocks * 512, size);
        for (uint64_t page = 0; page < size; page += 4096) {
            ck_assert_uint_eq(at[page], 0);
            at[page] = 1;
        }
        mr_segment_unmap(at, size);
        close(fd);
    }
    const uint64_t much = UINT64_C(1) << 44;
    int fd = mr_segment_new(MR_BACKING_MEMFD, "an arena", much, false);
    ck_assert_int_eq(mr_segment_reserve_huge(fd, NULL, "an arena", 0, much), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "arena_bytes"));
    close(fd);
}
END_TEST

START_TEST(names_of_dead_runs_are_swept)
{
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    char dead[64];
    snprintf(dead, sizeof dead, "/millrace.%d-123.0", (int)child); /* its process is gone */
    char mine[64];
    snprintf(mine, sizeof mine, "/millrace.%d-1x.0", (int)getpid()); /* not of this form */
    int status;
    waitpid(child, &status, 0);
    int fd = shm_open(dead, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    fd = shm_open(mine, O_RDWR | O_CREAT, 0600);
    close(fd);
    mr_segment_sweep(); /* a supervisor that starts beside us may have been faster */
    char path[96];
    snprintf(path, sizeof path, "/dev/shm%s", dead);
    bool dead_is_there = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "/dev/shm%s", mine);
    bool mine_is_there = access(path, F_OK) == 0;
    shm_unlink(dead);
    shm_unlink(mine); /* before an assertion: pytest looks for names that are left */
    ck_assert(!dead_is_there);
    ck_assert(mine_is_there);
}
END_TEST

START_TEST(board_is_checked)
{
    int fd = mr_segment_new(MR_BACKING_MEMFD, "the board", sizeof(struct mr_board), true);
    struct mr_board *board = mr_segment_map(fd, sizeof *board, true, NULL);

    ck_assert_ptr_null(mr_board_map(fd)); /* not formatted yet */
    mr_board_format(board, 42, "0123456789012345678901234567890123456789-too-long");
    const struct mr_board *seen = mr_board_map(fd);
    ck_assert_ptr_nonnull(seen);
    ck_assert_uint_eq(seen->supervisor_pid, 42);
    ck_assert_uint_eq(strlen(seen->run_id), 39);
    mr_segment_unmap((void *)seen, sizeof *seen);
    board->version++;
    ck_assert_ptr_null(mr_board_map(fd));
    mr_segment_unmap(board, sizeof *board);
    close(fd);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("segment");
    tcase_add_test(tc, both_ends_see_the_same);
    tcase_add_test(tc, a_readonly_mapping_cannot_become_writable);
    tcase_add_test(tc, a_memfd_cannot_be_shrunk);
    tcase_add_test(tc, too_much_is_an_error_and_not_a_death);
    tcase_add_test(tc, populated_pages_do_not_fault);
    tcase_add_test(tc, huge_or_small_all_pages_are_reserved);
    tcase_add_test(tc, names_of_dead_runs_are_swept);
    tcase_add_test(tc, board_is_checked);
    return mr_suite_run("segment", tc);
}
