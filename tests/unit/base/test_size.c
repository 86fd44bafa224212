/* test_size.c - sizes as text, both ways, and for people. */
#include <check.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "tests/unit/suite.h"

START_TEST(sizes_are_read)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1", 1},
                {"100_000_000", 100000000},
                {"512MiB", 512 << 20},
                {"512 MiB", 512 << 20},
                {"512M", 512 << 20},
                {"512mib", 512 << 20},
                {"1kB", 1000},
                {"64k", 65536},
                {"1.5GiB", UINT64_C(3) << 29},
                {"0.001kB", 1},
                {"2TB", UINT64_C(2000000000000)},
                {"7B", 7},
                {"3KiB", 3072},
                {"3Ki", 3072},
                {"3GB", 3000000000},
                {"3TiB", UINT64_C(3) << 40},
                {"3PiB", UINT64_C(3) << 50},
                {"1.25kB", 1250},
                {"0.999999MB", 999999},
                {"2.75KiB", 2816},
                {"1_0", 10},
                {"18446744073709551.615kB", UINT64_MAX},
                {"16383.999999PiB", UINT64_C(18446744072583651709)},
                {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {"",
                                      " ",
                                      "MiB",
                                      "-1",
                                      "1.5",
                                      "1.MiB",
                                      "1.5.5MiB",
                                      "1__0",
                                      "_1",
                                      "1_",
                                      "1e9",
                                      "0x10",
                                      "1 XiB",
                                      "1MiBs",
                                      "1M i",
                                      "18446744073709551616",
                                      "99999999TiB",
                                      "1.1234567GiB",
                                      "\xff",
                                      "18446744073709551.616kB",
                                      "16384PiB",
                                      "1EiB",
                                      "1Mb1",
                                      "1.",
                                      "1.5B",
                                      "1,5MiB",
                                      "1MiB "};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 12345;
        ck_assert_msg(mr_size_parse(good[i].text, &bytes) == 0 && bytes == good[i].bytes, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes;
        ck_assert_msg(mr_size_parse(bad[i], &bytes) == -1, "'%s'", bad[i]);
        ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(mr_error_text(), "is not a size"));
    }
}
END_TEST

START_TEST(a_bad_size_is_quoted)
{
    uint64_t bytes;
    ck_assert_int_eq(mr_size_parse("12 loaves", &bytes), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "\"12 loaves\" is not a size"));
}
END_TEST

START_TEST(sizes_are_written_so_that_they_are_read_back)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } exact[] = {{0, "0"},
                 {1, "1"},
                 {1023, "1023"},
                 {1024, "1KiB"},
                 {1025, "1025"},
                 {UINT64_C(1536) << 10, "1536KiB"},
                 {UINT64_C(512) << 20, "512MiB"},
                 {UINT64_C(3) << 30, "3GiB"},
                 {UINT64_C(1) << 40, "1TiB"},
                 {UINT64_C(1) << 60, "1048576TiB"},
                 {UINT64_MAX, "18446744073709551615"}};
    char text[32];
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        mr_size_format(exact[i].bytes, text);
        ck_assert_str_eq(text, exact[i].text);
    }
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t value = mr_mix64(i) >> (mr_mix64(i + 1000) % 64) << (mr_mix64(i + 2000) % 20), back;
        mr_size_format(value, text);
        ck_assert_int_eq(mr_size_parse(text, &back), 0);
        ck_assert(back == value);
    }
}
END_TEST

START_TEST(sizes_for_people)
{
    static const struct {
        double bytes;
        const char *text;
    } shown[] = {{0, "0 B"},
                 {12, "12 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {19046, "18.6 KiB"},
                 {1024.0 * 1024, "1.0 MiB"},
                 {1.5 * 1024 * 1024 * 1024, "1.5 GiB"},
                 {1024.0 * 1024 * 1024 * 1024, "1.0 TiB"},
                 {1024.0 * 1024 * 1024 * 1024 * 1024, "1.0 PiB"},
                 {1024.0 * 1024 * 1024 * 1024 * 1024 * 1024, "1024.0 PiB"}};
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        char text[32];
        ck_assert_ptr_eq(mr_size_text(shown[i].bytes, text), text);
        ck_assert_str_eq(text, shown[i].text);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("size");
    tcase_add_test(tcase, sizes_are_read);
    tcase_add_test(tcase, a_bad_size_is_quoted);
    tcase_add_test(tcase, sizes_are_written_so_that_they_are_read_back);
    tcase_add_test(tcase, sizes_for_people);
    return mr_suite_run("size", tcase);
}
