/* test_aws_ini.c - the files of the AWS tools, line by line. Whole environments: tests/store/test_aws_credentials.py. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/unit/suite.h"
#include "worker/store/aws_impl.h"
#include "worker/store/aws_ini.h"

static struct mr_aws_ini *ini;

static void read_text(const char *text)
{
    ini = mr_aws_ini_parse(text, strlen(text));
    ck_assert_msg(ini != NULL, "%s", mr_error_text());
}

static void teardown(void)
{
    mr_aws_ini_destroy(ini);
    ini = NULL;
}

START_TEST(values)
{
    read_text("[a]\nOne=1\ntwo : 2 = 3 \n\n three =\n[b]\none = 4 # 5\n");
    unsigned line = 0;
    int a = mr_aws_ini_section(ini, "a"), b = mr_aws_ini_section(ini, "b");
    ck_assert_str_eq(mr_aws_ini_get(ini, a, "one", &line), "1");
    ck_assert_uint_eq(line, 2);
    ck_assert_str_eq(mr_aws_ini_get(ini, b, "one", &line), "4 # 5");
    ck_assert_uint_eq(line, 7);
    ck_assert_ptr_null(mr_aws_ini_get(ini, b, "two", NULL));
    ck_assert_uint_eq(mr_aws_ini_line(ini, b), 6);
    ck_assert_int_eq(mr_aws_ini_section(ini, "c"), -1);
    /* " three" is deeper than "two": it continues its value */
    ck_assert_str_eq(mr_aws_ini_get(ini, a, "two", NULL), "2 = 3\n\nthree =");
    ck_assert_ptr_null(mr_aws_ini_get(ini, a, "three", NULL));
}
END_TEST

START_TEST(continued)
{
    read_text("[a]\n  k = 1\r\n    two\r\n  # no\r\n\r\n\t\t\tthree\r\n  l = 2\n\n\n[b]\nk =\n x = 1\n\n  y= 2 \n x=3");
    int a = mr_aws_ini_section(ini, "a"), b = mr_aws_ini_section(ini, "b");
    size_t length = 0;
    ck_assert_str_eq(mr_aws_ini_get(ini, a, "k", NULL), "1\ntwo\n\nthree");
    ck_assert_str_eq(mr_aws_ini_get(ini, b, "k", NULL), "\nx = 1\n\ny= 2\nx=3");
    const char *value = mr_aws_ini_nested(mr_aws_ini_get(ini, b, "k", NULL), "y", &length);
    ck_assert_int_eq(strncmp(value, "2", length), 0);
    value = mr_aws_ini_nested(mr_aws_ini_get(ini, b, "k", NULL), "x", &length);
    ck_assert_int_eq(strncmp(value, "3", length), 0); /* the last one */
    ck_assert_ptr_null(mr_aws_ini_nested(mr_aws_ini_get(ini, b, "k", NULL), "z", &length));
    ck_assert_ptr_null(mr_aws_ini_nested("x = 1", "x", &length));
}
END_TEST

START_TEST(titles)
{
    read_text("[default]\n[profile a]\n[profile 'b c']\n[profile \"d\\\"e\"]\n[profile f g]\n[profile "
              "'open]\n[sso-session a]\n"
              "[DEFAULT]\nx = 1\n[services a] ; [b]\n[profile h]\nx = 2\n[DEFAULT]\ny = 3\n");
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "default"), 0);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "a"), 1);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "b c"), 2);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "d\"e"), 3);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "f"), -1);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "profile", "open"), -1);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "sso-session", "a"), 6);
    ck_assert_int_eq(mr_aws_ini_titled(ini, "sso-session", "default"), -1);
    ck_assert_str_eq(mr_aws_ini_get(ini, 1, "x", NULL), "1"); /* [DEFAULT] counts everywhere */
    ck_assert_str_eq(mr_aws_ini_get(ini, mr_aws_ini_titled(ini, "profile", "h"), "x", NULL), "2");
    ck_assert_str_eq(mr_aws_ini_get(ini, 0, "y", NULL), "3");
}
END_TEST

START_TEST(broken)
{
    static const struct {
        const char *text, *message;
        size_t length;
    } all[] = {
        {"a = 1\n", "line 1: it stands before the first [section]", 0},
        {"[a]\n\nword\n", "line 3: it is neither [section] nor key = value", 0},
        {"[a]\n= 1\n", "line 2: it is neither", 0},
        {"[]\n", "line 1: it stands before", 0},
        {"[a]\n[b]\n[a]\n", "line 3: the section [a] is there twice; merge the two", 0},
        {"[a]\nk = 1\nK = 2\n", "line 3: \"k\" is there twice in its section (line 2)", 0},
        {"[a]\nk =\n x\n[b]\n", "line 2: a line of the value of \"k\" has no \"=\"", 0},
        {"[a]\nk = 1\0\n", "line 2: it has a NUL byte: this is not a text file", 11},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t length = all[i].length ? all[i].length : strlen(all[i].text);
        ck_assert_ptr_null(mr_aws_ini_parse(all[i].text, length));
        ck_assert_int_eq(mr_error_code(), MR_E_DENIED);
        ck_assert_msg(strncmp(mr_error_text(), all[i].message, strlen(all[i].message)) == 0, "%s", mr_error_text());
    }
}
END_TEST

START_TEST(empty)
{
    read_text("");
    ck_assert_int_eq(mr_aws_ini_section(ini, "default"), -1);
    teardown();
    read_text("\xef\xbb\xbf[default]");
    ck_assert_int_eq(mr_aws_ini_section(ini, "default"), 0);
}
END_TEST

START_TEST(times)
{
    static const struct {
        const char *text;
        int64_t seconds;
    } all[] = {
        {"1970-01-02T00:00:00Z", 86400},
        {"1970-01-02T00:00:00", 86400},
        {"1970-01-02T00:00:00UTC", 86400},
        {"1970-01-02T00:00:00.123456Z", 86400},
        {"1970-01-02T01:30:00+01:30", 86400},
        {"1970-01-01T23:00:00-0100", 86400},
        {"2038-01-19T03:14:08+00:00", INT64_C(1) << 31},
        {"", -1},
        {"tomorrow", -1},
        {"1970-01-02", -1},
        {"1970-13-02T00:00:00Z", -1},
        {"1970-01-02T00:00:00X", -1},
        {"1970-01-02T00:00:00+0", -1},
        {"1970-01-02T00:00:00Z ", -1},
        {"1970-1-2T00:00:00Z", -1},
        {" 970-01-02T00:00:00Z", -1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ck_assert_msg(mr_aws_parse_time(all[i].text) == all[i].seconds, "%s: %lld", all[i].text,
                      (long long)mr_aws_parse_time(all[i].text));
    ck_assert_int_eq(mr_aws_parse_number("900", 900), 900);
    ck_assert_int_eq(mr_aws_parse_number("901", 900), -1);
    ck_assert_int_eq(mr_aws_parse_number("", 900), -1);
    ck_assert_int_eq(mr_aws_parse_number("1h", 900), -1);
    ck_assert_int_eq(mr_aws_parse_number("-1", 900), -1);
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, NULL, teardown);
    tcase_add_test(all, values);
    tcase_add_test(all, continued);
    tcase_add_test(all, titles);
    tcase_add_test(all, broken);
    tcase_add_test(all, empty);
    tcase_add_test(all, times);
    return mr_suite_run("aws_ini", all);
}
