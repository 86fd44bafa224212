/* test_write_devstore.c - writing through transfers: against the devstore program (argv[1]), and in a folder. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "store_scene.h"
#include "worker/store/upload_parts.h"

static const char *devstore;
static char name_root[100];

static struct answer *insert(const char *name, const char *body, uint64_t match)
{
    char path[200];
    snprintf(path, sizeof path, "%s%s", name_root, name);
    struct mr_store_insert_request request = {.name = path,
                                              .name_length = strlen(path),
                                              .body = body,
                                              .length = strlen(body),
                                              .crc32c = mr_crc32c(0, body, strlen(body)),
                                              .generation_match = match};
    return wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL));
}

static struct answer *look(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s%s", name_root, name);
    return wait_for(mr_transfer_stat(engine, store, path, strlen(path), 0, on_item, NULL));
}

/* In a batch of one. */
static enum mr_code delete_it(const char *name, uint64_t generation)
{
    char path[200];
    snprintf(path, sizeof path, "%s%s", name_root, name);
    struct mr_store_name one = {path, strlen(path), generation, NULL};
    unsigned count = 1;
    wait_for(mr_transfer_delete_batch(engine, store, &one, 1, on_batch, &count));
    ck_assert_int_eq(last.code, MR_OK);
    return last.each[0];
}

static const char *const no_faults[] = {"--synthetic", "made:100:1000", NULL};

/* loop 0: devstore; 1: a folder */
static void open_store_with(int is_file, const char *const *options)
{
    snprintf(name_root, sizeof name_root, "%s%s", is_file ? root : "", is_file ? "/" : "");
    if (!is_file)
        scene_devstore_start(devstore, options);
    scene_open((struct mr_store_options){.scheme = is_file ? MR_SCHEME_FILE : MR_SCHEME_GS,
                                         .bucket = is_file ? "" : "made",
                                         .endpoint = is_file ? NULL : endpoint,
                                         .stall_timeout_ms = 10000},
               100000);
}

static void open_one(int is_file)
{
    open_store_with(is_file, no_faults);
}

static void teardown(void)
{
    scene_close();
    scene_devstore_stop();
    scene_root_remove();
}

START_TEST(write_and_replace)
{
    open_one(_i);
    struct answer *answer = insert("a b\"c+\xc3\xa9", "one", 0);
    ck_assert_msg(answer->code == MR_OK, "%s", answer->text);
    ck_assert_uint_eq(answer->size, 3);
    ck_assert_uint_eq(answer->crc32c, mr_crc32c(0, "one", 3));
    uint64_t first = answer->generation;
    ck_assert_int_eq(insert("a b\"c+\xc3\xa9", "two", 0)->code, MR_E_EXISTS);
    ck_assert_int_eq(insert("a b\"c+\xc3\xa9", "two", first + 1)->code, MR_E_CHANGED);
    answer = insert("a b\"c+\xc3\xa9", "three", first);
    ck_assert_msg(answer->code == MR_OK, "%s", answer->text);
    ck_assert_uint_ne(answer->generation, first);
    ck_assert_uint_eq(look("a b\"c+\xc3\xa9")->size, 5);
    ck_assert_int_eq(insert("a b\"c+\xc3\xa9", "", MR_STORE_ANY)->code, MR_OK);
    ck_assert_uint_eq(look("a b\"c+\xc3\xa9")->size, 0);
    if (_i)
        ck_assert_uint_eq(scene_root_files(), 1); /* no temporary one is left */
}
END_TEST

START_TEST(wrong_checksum_of_the_caller)
{
    open_one(_i);
    char path[200];
    snprintf(path, sizeof path, "%sx", name_root);
    struct mr_store_insert_request request = {
        .name = path, .name_length = strlen(path), .body = "abc", .length = 3, .crc32c = 7};
    /* Over a network they may have changed on the way: sent again, then CORRUPT. */
    ck_assert_int_eq(wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL))->code,
                     _i ? MR_E_USAGE : MR_E_CORRUPT);
    ck_assert_int_eq(look("x")->code, MR_E_NOT_FOUND);
    if (_i)
        ck_assert_uint_eq(scene_root_files(), 0);
}
END_TEST

START_TEST(deletes)
{
    open_one(_i);
    uint64_t generation = insert("x", "one", 0)->generation;
    ck_assert_int_eq(delete_it("x", generation + 1), MR_E_CHANGED);
    ck_assert_int_eq(delete_it("x", generation), MR_OK);
    ck_assert_int_eq(delete_it("x", generation), MR_E_NOT_FOUND);
    insert("x", "one", 0);
    ck_assert_int_eq(delete_it("x", MR_STORE_ANY), MR_OK);
    ck_assert_int_eq(look("x")->code, MR_E_NOT_FOUND);
    struct mr_store_name names[MR_STORE_BATCH_MAX];
    char paths[MR_STORE_BATCH_MAX][200];
    for (unsigned i = 0; i < MR_STORE_BATCH_MAX; i++) {
        char name[20];
        snprintf(name, sizeof name, "n %u?", i);
        snprintf(paths[i], sizeof paths[i], "%s%s", name_root, name);
        names[i] = (struct mr_store_name){paths[i], strlen(paths[i]), 1, NULL};
        if (i != 7)
            names[i].generation = insert(name, "x", 0)->generation;
        if (i == 8)
            names[i].generation++;
    }
    unsigned count = MR_STORE_BATCH_MAX;
    ck_assert_int_eq(wait_for(mr_transfer_delete_batch(engine, store, names, count, on_batch, &count))->code, MR_OK);
    for (unsigned i = 0; i < count; i++)
        ck_assert_int_eq(last.each[i], i == 7 ? MR_E_NOT_FOUND : i == 8 ? MR_E_CHANGED : MR_OK);
    ck_assert_int_eq(look("n 8?")->code, MR_OK);
    ck_assert_int_eq(look("n 99?")->code, MR_E_NOT_FOUND);
    if (_i)
        ck_assert_uint_eq(scene_root_files(), 1);
}
END_TEST

START_TEST(composes)
{
    open_one(_i);
    struct mr_store_name sources[MR_STORE_COMPOSE_MAX];
    char paths[MR_STORE_COMPOSE_MAX][200];
    uint32_t crc = 0;
    for (unsigned i = 0; i < MR_STORE_COMPOSE_MAX; i++) {
        char name[20];
        snprintf(name, sizeof name, "part %u", i);
        snprintf(paths[i], sizeof paths[i], "%s%s", name_root, name);
        sources[i] =
            (struct mr_store_name){paths[i], strlen(paths[i]), insert(name, i ? "abc" : "", 0)->generation, NULL};
        crc = mr_crc32c(crc, "abc", i ? 3 : 0);
    }
    char path[200];
    snprintf(path, sizeof path, "%swhole", name_root);
    struct mr_store_compose_request request = {.name = path,
                                               .name_length = strlen(path),
                                               .sources = sources,
                                               .count = MR_STORE_COMPOSE_MAX,
                                               .has_size = true,
                                               .has_crc32c = true,
                                               .size = 93,
                                               .crc32c = crc};
    struct answer *answer = wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL));
    ck_assert_msg(answer->code == MR_OK, "%s", answer->text);
    ck_assert_uint_eq(answer->size, 93);
    ck_assert_uint_eq(answer->crc32c, crc);
    ck_assert_int_eq(wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL))->code, MR_E_EXISTS);
    request.name_length--; /* another name */
    sources[5].generation++;
    answer = wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL));
    ck_assert_msg(answer->code == MR_E_CHANGED || answer->code == MR_E_NOT_FOUND, "%s", answer->text);
    sources[5].generation--;
    request.crc32c++; /* it is not what the caller says: it must not stay */
    ck_assert_int_eq(wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL))->code, MR_E_CORRUPT);
    ck_assert_int_eq(look("whol")->code, MR_E_NOT_FOUND);
}
END_TEST

START_TEST(questions)
{
    static const char *const names[] = {"storage.objects.get", "storage.objects.create"};
    open_one(_i);
    ck_assert_int_eq(wait_for(mr_transfer_bucket(engine, store, on_bucket, NULL))->code, MR_OK);
    ck_assert_int_eq(wait_for(mr_transfer_permissions(engine, store, names, 2, on_permissions, NULL))->code, MR_OK);
    ck_assert_uint_eq(last.granted, 3);
}
END_TEST

/* ---- large ones ---- */

#define LARGE (5u * MR_STORE_CHUNK + 1234)

static unsigned char large[LARGE];
static uint64_t read_at;

static int64_t read_large(void *arg, void *buffer, size_t size)
{
    uint64_t left = LARGE - read_at, n = left < size ? left : size;
    (void)arg;
    memcpy(buffer, large + read_at, n);
    read_at += n;
    return (int64_t)n;
}

static int rewind_large(void *arg)
{
    (void)arg;
    read_at = 0;
    return 0;
}

static void fill_large(void)
{
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (unsigned char)(i * 2654435761u >> 24);
}

static struct answer *upload(const char *name, uint64_t match)
{
    char path[200];
    snprintf(path, sizeof path, "%s%s", name_root, name);
    struct mr_transfer_upload_request request = {.store = store,
                                                 .name = path,
                                                 .name_length = strlen(path),
                                                 .generation_match = match,
                                                 .size = MR_STORE_ANY,
                                                 .chunk_bytes = MR_STORE_CHUNK,
                                                 .read = read_large,
                                                 .rewind = rewind_large};
    read_at = 0;
    return wait_for(mr_transfer_upload(engine, &request, on_item, NULL));
}

static void check_large(const char *name)
{
    ck_assert_msg(last.code == MR_OK, "%s", last.text);
    ck_assert_uint_eq(look(name)->size, LARGE);
    if (!name_root[0])
        ck_assert_uint_eq(last.crc32c, mr_crc32c(0, large, LARGE));
}

START_TEST(uploads)
{
    open_one(_i);
    fill_large();
    upload("large", 0);
    check_large("large");
    uint64_t generation = last.generation;
    ck_assert_int_eq(upload("large", 0)->code, MR_E_EXISTS);
    ck_assert_int_eq(upload("large", generation + 1)->code, MR_E_CHANGED);
    upload("large", generation);
    check_large("large");
    upload("large", MR_STORE_ANY);
    check_large("large");
    if (_i)
        ck_assert_uint_eq(scene_root_files(), 1);
}
END_TEST

static unsigned pending;

static void on_pending(void *arg, const struct mr_store_result *result, const struct mr_store_pending_page *page)
{
    (void)arg;
    keep(result);
    pending = page ? (unsigned)page->count : 0;
}

static struct answer *write_parts(const char *name, bool end_it)
{
    size_t n = strlen(name);
    wait_for(mr_transfer_parts_begin(engine, store, name, n, NULL, on_word, NULL));
    ck_assert_msg(last.code == MR_OK, "%s", last.text);
    char id[sizeof last.word];
    memcpy(id, last.word, sizeof id);
    struct mr_upload_part parts[6];
    for (unsigned i = 0; i < 6; i++) {
        uint64_t length = i < 5 ? MR_STORE_CHUNK : 1234;
        struct mr_upload_part_request part = {.name = name,
                                              .name_length = n,
                                              .id = id,
                                              .number = i + 1,
                                              .data = large + (uint64_t)i * MR_STORE_CHUNK,
                                              .length = length,
                                              .crc32c = mr_crc32c(0, large + (uint64_t)i * MR_STORE_CHUNK, length)};
        wait_for(mr_transfer_part_send(engine, store, &part, on_word, NULL));
        ck_assert_msg(last.code == MR_OK, "%s", last.text);
        parts[i].number = i + 1;
        snprintf(parts[i].etag, sizeof parts[i].etag, "%.90s", last.word);
    }
    if (!end_it)
        return wait_for(mr_transfer_parts_abort(engine, store, name, n, id, on_delete, NULL));
    struct mr_store_complete_request complete = {.name = name,
                                                 .name_length = n,
                                                 .id = id,
                                                 .parts = parts,
                                                 .count = 6,
                                                 .size = LARGE,
                                                 .crc32c = mr_crc32c(0, large, LARGE)};
    return wait_for(mr_transfer_parts_complete(engine, store, &complete, on_item, NULL));
}

START_TEST(objects_in_parts)
{
    static const char *const options[] = {"--synthetic", "made:100:1000", "--min-part-bytes", "100KiB", NULL};
    open_store_with(0, options);
    fill_large();
    write_parts("a/b c", true);
    check_large("a/b c");
    write_parts("a/b c", true); /* there is no precondition */
    check_large("a/b c");
    ck_assert_int_eq(write_parts("gone", false)->code, MR_OK);
    ck_assert_int_eq(look("gone")->code, MR_E_NOT_FOUND);
    wait_for(mr_transfer_parts_begin(engine, store, "left", 4, NULL, on_word, NULL));
    wait_for(mr_transfer_parts_list(engine, store, NULL, NULL, NULL, on_pending, NULL));
    ck_assert_int_eq(last.code, MR_OK);
    ck_assert_uint_eq(pending, 1);
}
END_TEST

START_TEST(a_bad_day)
{
    static const char *const options[] = {
        "--synthetic", "made:100:1000",          "--min-part-bytes", "100KiB",
        "--fault",     "keep-less:0.2::chunk:*", "--fault",          "expire:0.03::chunk:*",
        "--fault",     "status:0.1:503:*",       "--fault",          "reset:0.1:0:insert:*",
        "--fault",     "reset:0.1:0:compose:*",  "--fault",          "reset:0.2:0:batch:*",
        "--fault",     "reset:0.1:0:chunk:*",    "--fault",          "reset:0.1:0:part:*",
        "--fault",     "reset:0.3:0:complete:*", "--fault",          "status:0.1:429:resumable:*",
        NULL};
    open_store_with(0, options);
    fill_large();
    char name[40];
    uint64_t generation;
    for (unsigned i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "small-%u", i);
        ck_assert_msg(insert(name, "some bytes", 0)->code == MR_OK, "%s", last.text);
        generation = last.generation;
        ck_assert_uint_eq(look(name)->generation, generation); /* written once, however often it was sent */
        if (i % 2)
            ck_assert_msg(delete_it(name, generation) == MR_OK, "%s", last.first_text);
    }
    for (unsigned i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "composed-%u", i);
        struct mr_store_name sources[2] = {{"small-0", 7, 0, NULL}, {"small-2", 7, 0, NULL}};
        struct mr_store_compose_request request = {.name = name,
                                                   .name_length = strlen(name),
                                                   .sources = sources,
                                                   .count = 2,
                                                   .has_size = true,
                                                   .has_crc32c = true,
                                                   .size = 20,
                                                   .crc32c = mr_crc32c(0, "some bytessome bytes", 20)};
        ck_assert_msg(wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL))->code == MR_OK, "%s",
                      last.text);
    }
    for (unsigned i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "upload-%u", i);
        upload(name, i % 2 ? 0 : MR_STORE_ANY);
        check_large(name);
        snprintf(name, sizeof name, "parts-%u", i);
        write_parts(name, true);
        check_large(name);
    }
    ck_assert_uint_gt(mr_transfer_counters(engine)->retries, 30);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc != 2)
        return EXIT_FAILURE;
    devstore = argv[1];
    Suite *suite = suite_create("store_write_devstore");
    TCase *tc = tcase_create("write");
    tcase_add_checked_fixture(tc, scene_root_make, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, write_and_replace, 0, 2);
    tcase_add_loop_test(tc, wrong_checksum_of_the_caller, 0, 2);
    tcase_add_loop_test(tc, deletes, 0, 2);
    tcase_add_loop_test(tc, composes, 0, 2);
    tcase_add_loop_test(tc, questions, 0, 2);
    tcase_add_loop_test(tc, uploads, 0, 2);
    tcase_add_test(tc, objects_in_parts);
    tcase_add_test(tc, a_bad_day);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
