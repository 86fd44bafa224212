/* test_bar.c - the pieces of a line of progress. */
#include <check.h>
#include <stdlib.h>

#include "base/bar.h"
#include "tests/unit/suite.h"

START_TEST(bars)
{
    char out[48];
    mr_bar_put(out, sizeof out, 0);
    ck_assert_str_eq(out, "[                    ]   0%");
    mr_bar_put(out, sizeof out, 0.5);
    ck_assert_str_eq(out, "[==========          ]  50%");
    mr_bar_put(out, sizeof out, 1);
    ck_assert_str_eq(out, "[====================] 100%");
}
END_TEST

START_TEST(time_left)
{
    char out[32];
    mr_bar_left(out, sizeof out, 0.9);
    ck_assert_str_eq(out, "");
    mr_bar_left(out, sizeof out, 65.4);
    ck_assert_str_eq(out, "1:05 left");
    mr_bar_left(out, sizeof out, 359999);
    ck_assert_str_eq(out, "5999:59 left");
    mr_bar_left(out, sizeof out, 1e300);
    ck_assert_str_eq(out, "");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("bar");
    tcase_add_test(tc, bars);
    tcase_add_test(tc, time_left);
    return mr_suite_run("bar", tc);
}
