/* Who made an object or a file, from its name: what is of the form, and what is not. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/cleanup/maker.h"

#define RUN "0f8fad5b-d9cb-469f-a165-70867728950e"

START_TEST(names_are_read)
{
    struct mr_maker maker, same = mr_maker_of(RUN, 4097, 7);
    uint64_t number = 0;
    ck_assert(mr_maker_parse(RUN "/4097-7-123", &maker, &number));
    ck_assert(mr_maker_equal(&maker, &same));
    ck_assert(mr_maker_is_write(&maker));
    ck_assert_uint_eq(number, 123);
    ck_assert(mr_maker_parse(RUN "/0-0-18446744073709551615", &maker, &number));
    ck_assert_uint_eq(number, UINT64_MAX);
    ck_assert(!mr_maker_is_write(&maker));
    ck_assert(mr_maker_parse(RUN "/4294967295-4294967295-0", &maker, NULL));
    ck_assert(mr_maker_parse_file(RUN ".4097.7", &maker));
    ck_assert(mr_maker_equal(&maker, &same));
}
END_TEST

START_TEST(garbage_is_no_name)
{
    static const char *const objects[] = {"",
                                          "/",
                                          RUN,
                                          RUN "/",
                                          RUN "/1",
                                          RUN "/1-",
                                          RUN "/1-2",
                                          RUN "/1-2-",
                                          RUN "/-1-2-3",
                                          RUN "/1-2-3x",
                                          RUN "/1-2-3-4",
                                          RUN "/+1-2-3",
                                          RUN "/ 1-2-3",
                                          RUN "/4294967296-2-3",
                                          RUN "/1-4294967296-3",
                                          RUN "/1-2-18446744073709551616",
                                          RUN "/99999999999999999999999-2-3",
                                          RUN ".1.2",
                                          "0F8FAD5B-D9CB-469F-A165-70867728950E/1-2-3",
                                          "gf8fad5b-d9cb-469f-a165-70867728950e/1-2-3",
                                          "0f8fad5b/1-2-3"};
    static const char *const files[] = {"",
                                        ".",
                                        "..",
                                        "x",
                                        RUN,
                                        RUN ".",
                                        RUN ".1",
                                        RUN ".1.",
                                        RUN ".1.x",
                                        RUN ".1.2.3",
                                        RUN ".1.2x",
                                        RUN ".x.2",
                                        RUN ".4294967296.1",
                                        RUN "/1-2-3",
                                        RUN "..1.2"};
    struct mr_maker maker;
    uint64_t number;
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
        ck_assert_msg(!mr_maker_parse(objects[i], &maker, &number), "%s", objects[i]);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        ck_assert_msg(!mr_maker_parse_file(files[i], &maker), "%s", files[i]);
}
END_TEST

START_TEST(each_shorter_text_is_no_name)
{
    static const char whole[] = RUN "/4097-7-1";
    struct mr_maker maker;
    for (size_t length = 0; length < sizeof whole - 1; length++) {
        char *cut = strndup(whole, length); /* its end is the end of its memory */
        ck_assert_ptr_nonnull(cut);
        ck_assert(!mr_maker_parse(cut, &maker, NULL));
        ck_assert(!mr_maker_parse_file(cut, &maker));
        free(cut);
    }
}
END_TEST

START_TEST(each_part_of_a_maker_counts)
{
    struct mr_maker a = mr_maker_of(RUN, 1, 2), b = mr_maker_of(RUN, 1, 3), c = mr_maker_of(RUN, 2, 2);
    struct mr_maker d = mr_maker_of("1f8fad5b-d9cb-469f-a165-70867728950e", 1, 2);
    ck_assert(mr_maker_equal(&a, &a));
    ck_assert(!mr_maker_equal(&a, &b));
    ck_assert(!mr_maker_equal(&a, &c));
    ck_assert(!mr_maker_equal(&a, &d));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("maker");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, names_are_read);
    tcase_add_test(tests, garbage_is_no_name);
    tcase_add_test(tests, each_shorter_text_is_no_name);
    tcase_add_test(tests, each_part_of_a_maker_counts);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
