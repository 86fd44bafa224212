/* test_split.c - the cut of a range of names, and explicit lists of names. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "worker/list/names.h"
#include "worker/list/split.h"

static bool valid_utf8(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        int more = *at < 0x80 ? 0 : (*at & 0xe0) == 0xc0 ? 1 : (*at & 0xf0) == 0xe0 ? 2 : (*at & 0xf8) == 0xf0 ? 3 : -1;
        if (more < 0)
            return false;
        for (; more > 0; more--) {
            if ((*++at & 0xc0) != 0x80)
                return false;
        }
    }
    return true;
}

/* Random names over characters that differ by family: digits, hex, mixed, two- and three-byte UTF-8. */
static void random_name(char *out, unsigned family, uint64_t *state)
{
    static const char *const families[][8] = {
        {"0", "1", "2", "5", "7", "8", "9", "9"},
        {"a", "b", "c", "d", "e", "f", "0", "4"},
        {"A", "/", ".", "z", "_", "-", "~", " "},
        {"\xc3\xa9", "\xe6\x97\xa5", "x", "\xc3\xa0", "/", "\xf0\x9f\x98\x80", "b", "\xe6\x9c\xac"},
        {"a", "a", "a", "a", "a", "a", "a", "a"},
    };
    size_t length = 1 + (*state = mr_mix64(*state)) % 12;
    out[0] = 0;
    for (size_t i = 0; i < length; i++)
        strcat(out, families[family][(*state = mr_mix64(*state)) % 8]);
}

START_TEST(cut_lies_between)
{
    uint64_t state = 1;
    unsigned found = 0;
    for (unsigned round = 0; round < 20000; round++) {
        char a[64];
        struct mr_shape shape = {0};
        random_name(a, round % 5, &state);
        char b[64];
        random_name(b, round % 5, &state);
        mr_shape_add(&shape, a, b);
        for (const char *at = a; *at; at++)
            shape.branch[(unsigned char)*at] = true;
        const char *low = strcmp(a, b) < 0 ? a : b, *high = low == a ? b : a;
        if (strcmp(a, b) == 0)
            high = NULL;
        struct mr_split_place place = {.first = low, .last = low, .end = high, .level = round % 3};
        char m[MR_SPLIT_MAX];
        uint64_t level;
        if (!mr_split(&shape, &place, m, &level))
            continue;
        found++;
        ck_assert_uint_ge(level, place.level);
        ck_assert_int_eq(strncmp(m, low, level), 0);
        ck_assert_int_gt(strcmp(m, low), 0);
        ck_assert(!high || strcmp(m, high) < 0);
        ck_assert_msg(valid_utf8(m), "%s | %s | %s", low, m, high ? high : "");
    }
    ck_assert_uint_gt(found, 10000);
}
END_TEST

static int names_fd(const char *text)
{
    int fd = memfd_create("names", 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

START_TEST(names_sorted_and_unique)
{
    struct mr_names names;
    int fd = names_fd("gs://b/z\n\ngs://b/a b\ngs://b/z\ngs://b/\xc3\xa9");
    ck_assert_int_eq(mr_names_init(&names, fd, MR_SCHEME_GS, "b"), 0);
    ck_assert_uint_eq(names.count, 3);
    ck_assert_str_eq(names.names[0], "a b");
    ck_assert_str_eq(names.names[1], "z");
    ck_assert_str_eq(names.names[2], "\xc3\xa9");
    mr_names_close(&names);
    close(fd);
}
END_TEST

START_TEST(names_refused)
{
    static const char *const bad[] = {"gs://b/a\ngs://other/x\n", "gs://b/\n", "s3://b/x\n", "http://b/x\n"};
    struct mr_names names;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int fd = names_fd(bad[i]);
        ck_assert_int_eq(mr_names_init(&names, fd, MR_SCHEME_GS, "b"), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
        ck_assert_ptr_nonnull(strstr(mr_error_text(), "line "));
        close(fd);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("split");
    TCase *tc = tcase_create("split");
    tcase_add_test(tc, cut_lies_between);
    tcase_add_test(tc, names_sorted_and_unique);
    tcase_add_test(tc, names_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
