/* Files of /proc, and what stands in them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "supervisor/proc.h"
#include "tests/unit/suite.h"

START_TEST(test_a_number_by_its_name)
{
    const char *text = "nr_throttled 3\nthrottled_usec 4500\nthrottled_usec_more 9\n";
    ck_assert_uint_eq(mr_proc_keyed(text, "throttled_usec"), 4500);
    ck_assert_uint_eq(mr_proc_keyed(text, "nr_throttled"), 3);
    ck_assert_uint_eq(mr_proc_keyed(text, "throttled"), 0);
    ck_assert_uint_eq(mr_proc_keyed("throttled_usec", "throttled_usec"), 0);
    ck_assert_uint_eq(mr_proc_keyed("", "x"), 0);
}
END_TEST

START_TEST(test_reading)
{
    char text[64], few[4];
    ck_assert_int_eq(mr_proc_read_of(getpid(), "comm", text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, "test_proc"));
    ck_assert_int_eq(mr_proc_read_of(getpid(), "comm", few, sizeof few), 0);
    ck_assert_str_eq(few, "tes");
    ck_assert_int_eq(mr_proc_read("/proc/none", text, sizeof text), -1);
    ck_assert_str_eq(text, "");
    ck_assert_int_eq(mr_proc_read_cgroup("none", "none", "none", text, sizeof text), -1);
    ck_assert_str_eq(text, "");
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("proc");
    tcase_add_test(tcase, test_a_number_by_its_name);
    tcase_add_test(tcase, test_reading);
    return mr_suite_run("supervisor_proc", tcase);
}
