/* test_out_file.c - a file that a command writes gets its name at the end, also where a file system has no links. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/unit/suite.h"
#include "worker/tool/out_file.h"

#define BYTES 3000000u /* more than one copy */

static unsigned char data[BYTES];
static char folder[] = "/tmp/millrace-test-out-XXXXXX", path[100];
static int link_errno;

int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    if (link_errno == 0)
        return __real_linkat(from_folder, from, to_folder, to, flags);
    errno = access(to, F_OK) == 0 ? EEXIST : link_errno; /* as the kernel does: the name is looked up first */
    return -1;
}

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/name", folder);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i % 251);
}

static void teardown(void)
{
    unlink(path);
    ck_assert_msg(rmdir(folder) == 0, "something is left beside it");
}

static int write_it(bool absent)
{
    struct mr_out_file file;
    ck_assert_int_eq(mr_out_file_open(&file, path, absent), 0);
    ck_assert_int_eq(write(file.fd, data, BYTES), BYTES);
    return mr_out_file_commit(&file);
}

static void check_it(void)
{
    static unsigned char found[BYTES + 1];
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(read(fd, found, sizeof found), BYTES);
    close(fd);
    ck_assert_mem_eq(found, data, BYTES);
}

static const int errors[] = {0, EPERM, EOPNOTSUPP, EXDEV};

START_TEST(a_file_gets_its_name)
{
    link_errno = errors[_i];
    ck_assert_msg(write_it(false) == 0, "%s", mr_error_text());
    check_it();
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_msg(write_it(false) == 0, "%s", mr_error_text()); /* replaced, with its mode */
    check_it();
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0640);
}
END_TEST

START_TEST(what_has_come_to_exist_stays)
{
    struct mr_out_file file;
    link_errno = errors[_i];
    ck_assert_int_eq(mr_out_file_open(&file, path, true), 0);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    ck_assert_int_eq(mr_out_file_commit(&file), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_EXISTS);
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("out_file");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_loop_test(all, a_file_gets_its_name, 0, (int)(sizeof errors / sizeof *errors));
    tcase_add_loop_test(all, what_has_come_to_exist_stays, 0, (int)(sizeof errors / sizeof *errors));
    return mr_suite_run("out_file", all);
}
