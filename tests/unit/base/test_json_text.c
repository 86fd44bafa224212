/* test_json_text.c - texts of stores as JSON strings, whatever bytes they have. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "tests/unit/suite.h"

static void expect(const char *text, const char *shown)
{
    json_t *string = mr_json_from_text(text);
    ck_assert_str_eq(json_string_value(string), shown);
    json_decref(string);
}

START_TEST(what_is_utf8_stays)
{
    ck_assert(json_is_null(mr_json_from_text(NULL)));
    expect("", "");
    expect("a \"b\"\n\x01", "a \"b\"\n\x01");
    expect("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f");
}
END_TEST

START_TEST(what_is_not_is_shown_in_ascii)
{
    char text[2001];
    memset(text, 'x', 2000);
    text[1999] = '\xc3'; /* cut within a character */
    text[2000] = 0;
    json_t *string = mr_json_from_text(text);
    ck_assert_uint_eq(json_string_length(string), 2000);
    ck_assert_int_eq(json_string_value(string)[1999], '?');
    json_decref(string);
    expect("gr\xc3\xbc\xff", "gr???");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("json_text");
    tcase_add_test(tc, what_is_utf8_stays);
    tcase_add_test(tc, what_is_not_is_shown_in_ascii);
    return mr_suite_run("json_text", tc);
}
