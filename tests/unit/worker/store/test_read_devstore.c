/* test_read_devstore.c - the clients against the devstore program: argv[1]. List everything, read everything. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checksum.h"
#include "store_scene.h"

#define OBJECTS 700

static const char *devstore;
/* A short stall_ms only where something stalls: on a busy machine a good answer may take its time. */
static void open_impatient(const char *name, struct mr_transfer_options options, unsigned stall_ms)
{
    options.retry_base_ms = 2;
    options.deadline_ms = 100000;
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    engine = mr_transfer_new(&options, http);
    store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS,
                                                     .bucket = name,
                                                     .endpoint = endpoint,
                                                     .auth = "anonymous",
                                                     .stall_timeout_ms = stall_ms,
                                                     .http = http});
    ck_assert(http && engine && store);
}

static void open_reading(const char *name, struct mr_transfer_options options)
{
    open_impatient(name, options, 10000);
}

static void teardown(void)
{
    scene_close();
    scene_devstore_stop();
    scene_root_remove();
}

static struct object {
    char name[1100];
    uint64_t size, generation;
    uint32_t crc32c;
    unsigned char *bytes;
    int done;
    enum mr_code code;
    char text[300];
} objects[OBJECTS];
static unsigned count, pages;
static bool listed;
static enum mr_code list_code;
static char token[2000], after[1100];

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    listed = true;
    list_code = result->code;
    token[0] = 0;
    if (!page)
        return;
    pages++;
    for (size_t i = 0; i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        ck_assert_uint_lt(count, OBJECTS);
        struct object *object = &objects[count++];
        snprintf(object->name, sizeof object->name, "%s", item->name);
        object->size = item->size;
        object->generation = item->generation;
        object->crc32c = item->crc32c;
        ck_assert(item->has_crc32c);
        snprintf(after, sizeof after, "%s", item->name);
    }
    if (page->next_token)
        snprintf(token, sizeof token, "%s", page->next_token);
}

static void list_all(const char *prefix, const char *start, const char *end, unsigned max_results)
{
    count = pages = 0;
    token[0] = after[0] = 0;
    do {
        struct mr_store_list_request request = {.prefix = prefix,
                                                .start_offset = start,
                                                .end_offset = end,
                                                .page_token = token[0] ? token : NULL,
                                                .after = after[0] ? after : NULL,
                                                .max_results = max_results};
        listed = false;
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
        while (!listed)
            ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    } while (token[0]);
}

static void on_fetch(void *arg, const struct mr_transfer_result *result)
{
    struct object *object = arg;
    object->done++;
    object->code = result->code;
    snprintf(object->text, sizeof object->text, "%s", result->text);
    if (result->code == MR_OK)
        ck_assert(result->verified);
}

static void fetch_all(void)
{
    for (unsigned i = 0; i < count; i++) {
        struct object *object = &objects[i];
        free(object->bytes);
        object->bytes = malloc(object->size + 1);
        object->done = 0;
        struct mr_transfer_request request = {.store = store,
                                              .name = object->name,
                                              .name_length = strlen(object->name),
                                              .generation = object->generation,
                                              .size = object->size,
                                              .length = object->size,
                                              .crc32c = object->crc32c,
                                              .has_crc32c = true,
                                              .dest = object->bytes};
        ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_fetch, object));
    }
    for (unsigned i = 0; i < count; i++) {
        while (!objects[i].done)
            ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
        ck_assert_int_eq(objects[i].done, 1);
    }
}

static void check_all(void)
{
    for (unsigned i = 0; i < count; i++) {
        ck_assert_msg(objects[i].code == MR_OK, "%s", objects[i].text);
        ck_assert_uint_eq(mr_crc32c(0, objects[i].bytes, objects[i].size), objects[i].crc32c);
    }
}

START_TEST(made_up_objects)
{
    scene_devstore_start(devstore, (const char *const[]){"--synthetic", "made:700:0-20KiB", "--page-size", "90", NULL});
    open_reading("made", (struct mr_transfer_options){0});
    list_all(NULL, NULL, NULL, 0);
    ck_assert_uint_eq(count, 700);
    ck_assert_uint_eq(pages, 8);
    list_all(NULL, "obj-000000100", "obj-000000200", 7);
    ck_assert_uint_eq(count, 100);
    ck_assert_str_eq(objects[0].name, "obj-000000100");
    list_all("obj-00000002", NULL, NULL, 0);
    ck_assert_uint_eq(count, 10);
    list_all(NULL, NULL, NULL, 0);
    fetch_all();
    check_all();
    ck_assert_uint_eq(mr_transfer_counters(engine)->retries, 0);
}
END_TEST

START_TEST(names_of_all_kinds)
{
    static const char *const names[] = {"%2F",
                                        "%zz",
                                        "+plus +",
                                        "a b",
                                        "a#b?c=d&e",
                                        "a;b",
                                        "back\\slash",
                                        "dir/sub/f",
                                        "quo\"te",
                                        "~.-_",
                                        "\x7f",
                                        "\xc3\xa9",
                                        "tab\tnewline\n",
                                        "\xf0\x9f\x98\x80"};
    char path[300];
    snprintf(path, sizeof path, "%s/odd", root);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/odd/dir", root);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/odd/dir/sub", root);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/odd/%s", root, names[i]);
        FILE *file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        fprintf(file, "this is %s", names[i]);
        fclose(file);
    }
    scene_devstore_start(devstore, (const char *const[]){"--root", root, NULL});
    open_reading("odd", (struct mr_transfer_options){0});
    list_all(NULL, NULL, NULL, 3);
    ck_assert_uint_eq(count, sizeof names / sizeof *names);
    fetch_all();
    check_all();
    for (unsigned i = 0; i < count; i++) {
        char text[1200];
        snprintf(text, sizeof text, "this is %.1000s", objects[i].name);
        ck_assert_uint_eq(objects[i].size, strlen(text));
        ck_assert_mem_eq(objects[i].bytes, text, strlen(text));
        list_all(objects[i].name, NULL, NULL, 0); /* as a prefix */
        ck_assert_uint_ge(count, 1);
        list_all(NULL, NULL, NULL, 0);
    }
}
END_TEST

START_TEST(large_objects_in_ranges)
{
    scene_devstore_start(devstore, (const char *const[]){"--synthetic", "large:5:3MiB-9MiB", NULL});
    open_reading("large",
                 (struct mr_transfer_options){.range_min_bytes = 1 << 20, .range_bytes = 1 << 20, .ranges = 5});
    list_all(NULL, NULL, NULL, 0);
    fetch_all();
    check_all();
    ck_assert_uint_gt(mr_transfer_counters(engine)->requests, 10);
}
END_TEST

START_TEST(a_bad_day)
{
    scene_devstore_start(devstore, (const char *const[]){"--synthetic", "made:300:1KiB-200KiB", "--fault",
                                                         "status:0.1:503", "--fault", "reset:0.05", "--fault",
                                                         "short:0.05", "--fault", "wrong:0.05", "--fault", "stall:0.01",
                                                         "--fault", "status:first=1:429:list:*", NULL});
    open_impatient("made", (struct mr_transfer_options){.crc_retries = 10}, 300);
    list_all(NULL, NULL, NULL, 0);
    ck_assert_uint_eq(count, 300);
    fetch_all();
    check_all();
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    ck_assert_uint_gt(c->throttled, 0);
    ck_assert_uint_gt(c->crc_errors, 0);
    ck_assert_uint_gt(c->resumes, 0);
    ck_assert_uint_eq(c->objects, 300);
}
END_TEST

START_TEST(missing_buckets_and_objects)
{
    scene_devstore_start(devstore, (const char *const[]){"--synthetic", "made:3:10", NULL});
    open_reading("nowhere", (struct mr_transfer_options){0});
    list_all(NULL, NULL, NULL, 0);
    ck_assert_int_eq(list_code, MR_E_NOT_FOUND);
    scene_close();
    open_reading("made", (struct mr_transfer_options){0});
    list_all(NULL, NULL, NULL, 0);
    ck_assert_uint_eq(count, 3);
    objects[0].generation++;
    strcpy(objects[1].name, "obj-999");
    fetch_all();
    ck_assert_int_eq(objects[0].code, MR_E_CHANGED);
    ck_assert_int_eq(objects[1].code, MR_E_NOT_FOUND);
    ck_assert_int_eq(objects[2].code, MR_OK);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc != 2)
        return EXIT_FAILURE;
    devstore = argv[1];
    Suite *suite = suite_create("store_devstore");
    TCase *tc = tcase_create("devstore");
    tcase_add_checked_fixture(tc, scene_root_make, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, made_up_objects);
    tcase_add_test(tc, names_of_all_kinds);
    tcase_add_test(tc, large_objects_in_ranges);
    tcase_add_test(tc, a_bad_day);
    tcase_add_test(tc, missing_buckets_and_objects);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
