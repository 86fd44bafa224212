/* test_durable.c - names of new files: on file systems with renameat2, with links alone, with neither. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "tests/unit/suite.h"

#define FILES 60

/* What the file system lacks (ld --wrap). */
static int rename_fails, link_fails, link_answer, fsync_fails, folder_syncs, folder_locks;

int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    errno = rename_fails;
    return rename_fails ? -1 : __real_renameat2(from_folder, from, to_folder, to, flags);
}

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to)
{
    int rc = link_fails ? -1 : __real_link(from, to);
    if (link_fails || link_answer)
        errno = link_fails ? link_fails : link_answer;
    return link_answer ? -1 : rc;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    folder_syncs++;
    errno = fsync_fails;
    return fsync_fails ? -1 : __real_fsync(fd);
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
    folder_locks++;
    return __real_flock(fd, operation);
}

static char folder[512], from[600], to[600];

static void setup(void)
{
    const char *base = getenv("MR_TEST_FOLDER"); /* another file system than that of /tmp */
    snprintf(folder, sizeof folder, "%s/mr-durable-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(from, sizeof from, "%s/from", folder);
    snprintf(to, sizeof to, "%s/to", folder);
}

static void teardown(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void check_text(const char *path, const char *text)
{
    char there[64] = "";
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge((int)fread(there, 1, sizeof there - 1, file), 0);
    fclose(file);
    ck_assert_str_eq(there, text);
}

static const struct {
    int rename_fails, link_fails;
} lacks[] = {{0, 0}, {EINVAL, 0}, {ENOSYS, 0}, {EPERM, 0}, {EINVAL, EPERM}, {ENOSYS, EOPNOTSUPP}, {EINVAL, ENOSYS}};
#define LACKS (int)(sizeof lacks / sizeof *lacks)

START_TEST(a_new_name)
{
    rename_fails = lacks[_i].rename_fails;
    link_fails = lacks[_i].link_fails;
    put(from, "new");
    ck_assert_msg(mr_durable_name_new(from, to) == 0, "%s", strerror(errno));
    check_text(to, "new");
    ck_assert_int_ne(access(from, F_OK), 0);
    put(from, "newer");
    ck_assert_int_eq(mr_durable_name_new(from, to), -1);
    ck_assert_int_eq(errno, EEXIST);
    check_text(to, "new");
    check_text(from, "newer");
    unlink(to);
    if (symlink("nowhere", to) == 0) { /* a name too, although nothing is behind it */
        ck_assert_int_eq(mr_durable_name_new(from, to), -1);
        ck_assert_int_eq(errno, EEXIST);
    }
    unlink(from);
    unlink(to);
    ck_assert_int_eq(mr_durable_name_new(from, to), -1);
    ck_assert_int_eq(errno, ENOENT);
}
END_TEST

/* The answer of a network file system was lost, and what it says to the repeated request is of its own work. */
START_TEST(a_link_that_was_made_is_no_refusal)
{
    rename_fails = EINVAL;
    put(from, "new");
    if (__real_link(from, to) != 0 || unlink(to) != 0)
        return; /* MR_TEST_FOLDER has no links */
    link_answer = EEXIST;
    ck_assert_int_eq(mr_durable_name_new(from, to), 0);
    check_text(to, "new");
    ck_assert_int_ne(access(from, F_OK), 0);
}
END_TEST

/* Four processes give the same names: each name is one's, and the others' files are still there. */
START_TEST(one_of_many_gets_it)
{
    rename_fails = lacks[_i].rename_fails;
    link_fails = lacks[_i].link_fails;
    pid_t children[4];
    for (int child = 0; child < 4; child++) {
        children[child] = fork();
        if (children[child] != 0)
            continue;
        int won = 0;
        for (int i = 0; i < FILES; i++) {
            char mine[700], name[700], text[32];
            snprintf(mine, sizeof mine, "%s/%d-%d", folder, child, i);
            snprintf(name, sizeof name, "%s/name-%d", folder, i);
            snprintf(text, sizeof text, "%d", child);
            FILE *file = fopen(mine, "w");
            if (!file || fputs(text, file) < 0 || fclose(file) != 0)
                _exit(255);
            if (mr_durable_name_new(mine, name) == 0)
                won++;
            else if (errno != EEXIST || access(mine, F_OK) != 0)
                _exit(255);
        }
        _exit(won);
    }
    int all = 0;
    for (int child = 0; child < 4; child++) {
        int status;
        ck_assert_int_eq(waitpid(children[child], &status, 0), children[child]);
        ck_assert(WIFEXITED(status));
        ck_assert_int_ne(WEXITSTATUS(status), 255);
        all += WEXITSTATUS(status);
    }
    ck_assert_int_eq(all, FILES);
}
END_TEST

START_TEST(the_lock_is_taken_where_it_is_needed)
{
    put(from, "new");
    rename_fails = EINVAL;
    bool has_links = __real_link(from, to) == 0 && unlink(to) == 0;
    ck_assert_int_eq(mr_durable_name_new(from, to), 0);
    ck_assert_int_eq(folder_locks, has_links ? 0 : 1);
    link_fails = EPERM;
    folder_locks = 0;
    ck_assert_int_eq(mr_durable_name_new(to, from), 0);
    ck_assert_int_eq(folder_locks, 1);
}
END_TEST

START_TEST(a_sync_that_fails_is_an_error)
{
    ck_assert_int_eq(mr_durable_sync_folder(to, -1), 0);
    fsync_fails = EIO;
    ck_assert_int_eq(mr_durable_sync_folder(to, -1), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_IO);
    ck_assert_msg(strstr(mr_error_text(), folder) != NULL, "%s", mr_error_text());
    fsync_fails = EINVAL; /* it cannot do that for folders */
    ck_assert_int_eq(mr_durable_sync_folder(to, -1), 0);
    snprintf(to, sizeof to, "%s/missing/to", folder);
    ck_assert_int_eq(mr_durable_sync_folder(to, -1), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
}
END_TEST

START_TEST(folders_that_are_made_last)
{
    snprintf(to, sizeof to, "%s/a/b/c/file", folder);
    ck_assert_int_eq(mr_durable_make_folders(to, false), 0);
    ck_assert_int_eq(folder_syncs, 3); /* the folder that each of the new ones is in */
    ck_assert_int_eq(mr_durable_make_folders(to, false), 0);
    ck_assert_int_eq(folder_syncs, 3);
    put(to, "there");
    snprintf(to, sizeof to, "%s/d/file", folder);
    fsync_fails = EIO;
    ck_assert_int_eq(mr_durable_make_folders(to, false), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_IO);
    snprintf(to, sizeof to, "%s/a/b/c/file/below/file", folder);
    ck_assert_int_eq(mr_durable_make_folders(to, true), -1);
}
END_TEST

START_TEST(the_folder_of_a_path)
{
    static const char *const cases[][2] = {{"file", "."}, {"/file", "/"}, {"a/b", "a"}, {"/a/b", "/a"}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[8];
        ck_assert_int_eq(mr_durable_folder_of(cases[i][0], out, sizeof out), 0);
        ck_assert_str_eq(out, cases[i][1]);
    }
    char small[3];
    ck_assert_int_eq(mr_durable_folder_of("/abc/d", small, sizeof small), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("durable");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, a_new_name, 0, LACKS);
    tcase_add_test(tcase, a_link_that_was_made_is_no_refusal);
    tcase_add_loop_test(tcase, one_of_many_gets_it, 0, LACKS);
    tcase_add_test(tcase, the_lock_is_taken_where_it_is_needed);
    tcase_add_test(tcase, a_sync_that_fails_is_an_error);
    tcase_add_test(tcase, folders_that_are_made_last);
    tcase_add_test(tcase, the_folder_of_a_path);
    return mr_suite_run("durable", tcase);
}
