/* test_utf8.c - what is a character, and what is none. */
#include <check.h>

#include "base/utf8.h"
#include "tests/unit/suite.h"

static unsigned length_of(const char *text)
{
    return mr_utf8_length((const unsigned char *)text);
}

START_TEST(characters)
{
    ck_assert_uint_eq(length_of(""), 1);
    ck_assert_uint_eq(length_of("a"), 1);
    ck_assert_uint_eq(length_of("\x7f"), 1);
    ck_assert_uint_eq(length_of("\xc2\x80"), 2);
    ck_assert_uint_eq(length_of("\xdf\xbf"), 2);
    ck_assert_uint_eq(length_of("\xe0\xa0\x80"), 3);
    ck_assert_uint_eq(length_of("\xed\x9f\xbf"), 3);
    ck_assert_uint_eq(length_of("\xee\x80\x80"), 3);
    ck_assert_uint_eq(length_of("\xf0\x90\x80\x80"), 4);
    ck_assert_uint_eq(length_of("\xf4\x8f\xbf\xbf"), 4);
}
END_TEST

START_TEST(no_characters)
{
    static const char *const texts[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xf5\x80\x80\x80",
        "\xff",
        "\xc3",
        "\xe2\x82",
        "\xf0\x9f\x98",
        "\xc3(",
        "\xe2(\x82",
        "\xf0\x9f\x98(",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
    };
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++)
        ck_assert_msg(length_of(texts[i]) == 0, "text %u", i);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("utf8");
    tcase_add_test(tc, characters);
    tcase_add_test(tc, no_characters);
    return mr_suite_run("utf8", tc);
}
