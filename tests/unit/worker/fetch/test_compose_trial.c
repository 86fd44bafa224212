/* The decision of fetch.compose = "auto": facts in, yes or no and the reason out. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/cleanup/run_mark.h"
#include "worker/fetch/compose_trial.h"

static char text[MR_TRIAL_TEXT];

/* A bucket where nothing speaks against it. */
static struct mr_trial_facts good(void)
{
    return (struct mr_trial_facts){
        .has_permissions = true,
        .granted = MR_TRIAL_ALL,
        .has_bucket = true,
        .storage_class = "STANDARD",
        .location_type = "region",
        .objects = 1000000,
        .bytes = UINT64_C(100000) * 1000000,
    };
}

static void refused(const struct mr_trial_facts *facts, const char *because)
{
    ck_assert_msg(!mr_trial_allows(facts, text), "allowed: %s", text);
    ck_assert_msg(strstr(text, because), "\"%s\" lacks \"%s\"", text, because);
}

START_TEST(a_standard_bucket_is_tried)
{
    struct mr_trial_facts facts = good();
    ck_assert(mr_trial_allows(&facts, text));
    ck_assert_msg(strstr(text, "1000000 objects of 97.7 KiB"), "%s", text);
    static const char *const classes[] = {"", "REGIONAL", "MULTI_REGIONAL", "standard"};
    for (unsigned i = 0; i < 4; i++) {
        facts.storage_class = classes[i];
        ck_assert(mr_trial_allows(&facts, text));
    }
}
END_TEST

START_TEST(each_missing_permission_is_named)
{
    for (unsigned i = 0; i < 4; i++) {
        struct mr_trial_facts facts = good();
        facts.granted &= ~(1u << i);
        refused(&facts, mr_trial_permissions[i]);
    }
    struct mr_trial_facts facts = good();
    facts.granted = 0;
    refused(&facts, "create storage.objects.get storage.objects.delete storage.objects.list");
    facts.has_permissions = false; /* not told: the first compose will */
    ck_assert(mr_trial_allows(&facts, text));
}
END_TEST

START_TEST(what_costs_money_says_no_with_numbers)
{
    struct mr_trial_facts facts = good();
    facts.soft_delete_s = 7 * 86400;
    refused(&facts, "7.0 days: 100.0 GB an epoch, about $0.47");
    refused(&facts, "cost $0.17 instead of $0.40");
    facts = good();
    facts.versioning = true;
    refused(&facts, "old versions");
    facts = good();
    facts.storage_class = "NEARLINE";
    refused(&facts, "30 days");
    facts.storage_class = "COLDLINE";
    refused(&facts, "90 days");
    facts.storage_class = "ARCHIVE";
    refused(&facts, "365 days");
    facts = good();
    facts.has_bucket = false; /* soft delete is on by default */
    refused(&facts, "storage.buckets.get");
}
END_TEST

START_TEST(an_emulator_sends_no_bill)
{
    struct mr_trial_facts facts = good();
    facts.emulator = true;
    facts.soft_delete_s = 7 * 86400;
    facts.storage_class = "ARCHIVE";
    facts.versioning = true;
    ck_assert_msg(mr_trial_allows(&facts, text), "%s", text);
    ck_assert_msg(strstr(text, "measured speed alone"), "%s", text);
    facts.has_bucket = facts.has_permissions = false;
    ck_assert(mr_trial_allows(&facts, text));
    facts = good();
    facts.emulator = true;
    facts.location_type = "zone"; /* it cannot, whoever asks */
    refused(&facts, "zonal");
}
END_TEST

START_TEST(bucket_kinds_and_sizes)
{
    struct mr_trial_facts facts = good();
    facts.storage_class = "RAPID";
    refused(&facts, "zonal");
    facts = good();
    facts.objects = MR_TRIAL_MIN_OBJECTS - 1;
    facts.bytes = facts.objects * 1000;
    refused(&facts, "too few");
    facts.objects++;
    ck_assert(mr_trial_allows(&facts, text));
    facts = good();
    facts.bytes = facts.objects * MR_TRIAL_MAX_MEAN_SIZE;
    refused(&facts, "4.0 MiB on average");
    facts.bytes--;
    ck_assert(mr_trial_allows(&facts, text));
    facts.objects = facts.bytes = 0;
    refused(&facts, "too few");
}
END_TEST

static bool compares(int64_t composed_wall, int64_t composed_cpu, int64_t plain_wall, int64_t plain_cpu)
{
    struct mr_trial_cost composed = {
        .objects = 500, .wall_ns = composed_wall * 500000, .cpu_ns = composed_cpu * 500000};
    struct mr_trial_cost plain = {.objects = 500, .wall_ns = plain_wall * 500000, .cpu_ns = plain_cpu * 500000};
    return mr_trial_favours(&composed, &plain, text);
}

START_TEST(measured_speed)
{
    ck_assert(compares(79, 900, 100, 100)); /* faster by a fifth, whatever it costs us */
    ck_assert_msg(strcmp(text, "composed 79 us and 900 us of CPU an object (500 tried), plain 100 us and 100 us (500 "
                               "tried)") == 0,
                  "%s", text);
    ck_assert(compares(100, 89, 100, 100)); /* as fast, and cheaper */
    ck_assert(!compares(100, 95, 100, 100));
    ck_assert(!compares(121, 10, 100, 100)); /* slower */
    struct mr_trial_cost none = {0}, some = {.objects = 10, .wall_ns = 10, .cpu_ns = 10};
    ck_assert(!mr_trial_favours(&none, &some, text));
    mr_trial_favours(&some, &none, text); /* divides by nothing */
}
END_TEST

START_TEST(google_is_told_from_emulators)
{
    ck_assert(mr_trial_is_google("https://storage.googleapis.com"));
    ck_assert(mr_trial_is_google("https://STORAGE.googleapis.com:443/"));
    ck_assert(mr_trial_is_google("https://storage-xy.p.googleapis.com"));
    ck_assert(!mr_trial_is_google("http://127.0.0.1:9000"));
    ck_assert(!mr_trial_is_google("http://googleapis.com.example.org"));
    ck_assert(!mr_trial_is_google("http://example.org/.googleapis.com"));
    ck_assert(!mr_trial_is_google("storage.googleapis.com"));
    ck_assert(!mr_trial_is_google(""));
}
END_TEST

#define RUN "0f8fad5b-d9cb-469f-a165-70867728950e"

START_TEST(names_of_makers)
{
    struct mr_maker maker;
    uint64_t number;
    ck_assert(mr_maker_parse(RUN "/3-12-345", &maker, &number));
    ck_assert_str_eq(maker.run, RUN);
    ck_assert_uint_eq(maker.slot, 3);
    ck_assert_uint_eq(maker.start, 12);
    ck_assert_uint_eq(number, 345);
    ck_assert(mr_maker_parse(RUN "/0-1-18446744073709551615", &maker, NULL));
    static const char *const wrong[] = {"",
                                        "x",
                                        RUN,
                                        RUN "/",
                                        RUN "/1-2",
                                        RUN "/1-2-",
                                        RUN "/1-2-3x",
                                        RUN "/-2-3",
                                        RUN ".1-2-3",
                                        RUN "/1.2-3",
                                        RUN "/4294967296-1-1",
                                        RUN "/1-1-18446744073709551616",
                                        "0F8FAD5B-d9cb-469f-a165-70867728950e/1-2-3",
                                        "0f8fad5b-d9cb-469f-a165-70867728950/1-2-3"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(!mr_maker_parse(wrong[i], &maker, &number), "%s", wrong[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compose_auto");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, a_standard_bucket_is_tried);
    tcase_add_test(tests, each_missing_permission_is_named);
    tcase_add_test(tests, what_costs_money_says_no_with_numbers);
    tcase_add_test(tests, an_emulator_sends_no_bill);
    tcase_add_test(tests, bucket_kinds_and_sizes);
    tcase_add_test(tests, measured_speed);
    tcase_add_test(tests, google_is_told_from_emulators);
    tcase_add_test(tests, names_of_makers);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
