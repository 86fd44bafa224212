/* test_file.c - a folder as a store: order, ranges of names, pages, links, changes under our feet. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/unit/descriptors.h"
#include "worker/store/transfer.h"

static char root[64]; /* "/tmp/mr-file-XXXXXX" */
static struct mr_http *http;
static struct mr_store *store;
static struct mr_transfer_engine *engine;

static void setup(void)
{
    strcpy(root, "/tmp/mr-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_FILE, .bucket = "", .http = http});
    engine = mr_transfer_new(&(struct mr_transfer_options){0}, http);
    ck_assert(http && store && engine);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void teardown(void)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *path_of(const char *name)
{
    static char path[4][5000];
    static unsigned turn;
    char *out = path[turn++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", root, name);
    return out;
}

static void put(const char *name, const char *text)
{
    char *path = strdup(path_of(name));
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    fputs(text, file);
    fclose(file);
    free(path);
}

/* A whole listing: names relative to root, one a line. */
static struct {
    int done, pages;
    enum mr_code code;
    char text[1200], names[1 << 16], token[5000], after[5000];
    size_t count;
    uint64_t skipped, size;
} seen;

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    seen.done++;
    seen.code = result->code;
    snprintf(seen.text, sizeof seen.text, "%s", result->text);
    ck_assert_int_eq(page != NULL, result->code == MR_OK);
    seen.token[0] = 0;
    if (!page)
        return;
    seen.pages++;
    seen.skipped += page->skipped;
    for (size_t i = 0; i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        ck_assert_uint_eq(strlen(item->name), item->name_length);
        ck_assert_msg(strcmp(item->name, seen.after) > 0, "%s after %s", item->name, seen.after);
        ck_assert(!item->has_crc32c);
        ck_assert_uint_gt(item->generation, 0);
        snprintf(seen.after, sizeof seen.after, "%s", item->name);
        strcat(seen.names, item->name + strlen(root) + 1);
        strcat(seen.names, "\n");
        seen.size += item->size;
        seen.count++;
    }
    if (page->next_token)
        snprintf(seen.token, sizeof seen.token, "%s", page->next_token);
}

static void run_until(const int *done)
{
    for (int i = 0; i < 100000 && !*done; i++)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_int_eq(*done, 1);
}

static const char *list(struct mr_store_list_request request)
{
    memset(&seen, 0, sizeof seen);
    request.prefix = request.prefix ? request.prefix : root;
    do {
        char token[5000];
        snprintf(token, sizeof token, "%s", seen.token);
        char after[5000];
        snprintf(after, sizeof after, "%s", seen.after);
        request.page_token = token[0] ? token : NULL;
        request.after = after[0] ? after : NULL;
        seen.done = 0;
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
        run_until(&seen.done);
    } while (seen.token[0]);
    return seen.names;
}

START_TEST(byte_order_of_whole_paths)
{
    put("a/b", "1");
    put("a.b", "22"); /* '.' < '/' < '0' */
    put("a0", "333");
    put("a/c/d", "4444");
    put("a/c.d", "");
    put("\xff\xfe", "not UTF-8");
    put("Z", "");
    put("\xc3\xa9", "");
    static const char want[] = "Z\na.b\na/b\na/c.d\na/c/d\na0\n\xc3\xa9\n\xff\xfe\n";
    ck_assert_str_eq(list((struct mr_store_list_request){0}), want);
    ck_assert_uint_eq(seen.size, 1 + 2 + 3 + 4 + 9);
    for (unsigned page = 1; page <= 9; page++) {
        ck_assert_str_eq(list((struct mr_store_list_request){.max_results = page}), want);
        ck_assert_int_eq(seen.pages, (int)(8 / page) + 1);
    }
}
END_TEST

START_TEST(ranges_and_prefixes)
{
    put("a/1", "");
    put("a/2", "");
    put("ab", "");
    put("b/1/x", "");
    put("b/1/y", "");
    put("b/2", "");
    put("c", "");
    ck_assert_str_eq(list((struct mr_store_list_request){.prefix = path_of("a")}), "a/1\na/2\n"); /* the folder */
    ck_assert_str_eq(list((struct mr_store_list_request){.prefix = path_of("a/")}), "a/1\na/2\n");
    ck_assert_str_eq(list((struct mr_store_list_request){.prefix = path_of("b/1/x")}), "b/1/x\n");
    ck_assert_str_eq(list((struct mr_store_list_request){.prefix = path_of("b/nothing")}), "");
    /* every pair of bounds agrees with a filter over the whole list */
    static const char *const cuts[] = {"",    "a",     "a/1",   "a/2", "a/3", "ab", "b",
                                       "b/1", "b/1/x", "b/1/z", "b/2", "bb",  "c",  "d"};
    static const char *const all[] = {"a/1", "a/2", "ab", "b/1/x", "b/1/y", "b/2", "c"};
    for (unsigned i = 0; i < 14; i++) {
        for (unsigned j = 0; j < 14; j++) {
            char want[200] = "";
            for (unsigned k = 0; k < 7; k++) {
                if (strcmp(all[k], cuts[i]) >= 0 && strcmp(all[k], cuts[j]) < 0)
                    strcat(strcat(want, all[k]), "\n");
            }
            const char *start = path_of(cuts[i]), *end = path_of(cuts[j]);
            ck_assert_str_eq(list((struct mr_store_list_request){.start_offset = start, .end_offset = end}), want);
            ck_assert_str_eq(
                list((struct mr_store_list_request){.start_offset = start, .end_offset = end, .max_results = 2}), want);
        }
    }
}
END_TEST

START_TEST(links_and_what_is_no_file)
{
    put("d/f", "x");
    ck_assert_int_eq(symlink("f", path_of("d/link")), 0);
    ck_assert_int_eq(symlink("..", path_of("d/up")), 0);  /* a loop */
    ck_assert_int_eq(symlink(".", path_of("d/self")), 0); /* a loop */
    ck_assert_int_eq(symlink("gone", path_of("d/dangling")), 0);
    ck_assert_int_eq(mkfifo(path_of("d/fifo"), 0600), 0);
    ck_assert_int_eq(mkdir(path_of("other"), 0755), 0);
    ck_assert_int_eq(symlink("../other", path_of("d/other")), 0);
    put("other/g", "y");
    ck_assert_str_eq(list((struct mr_store_list_request){0}), "d/f\nd/link\nd/other/g\nother/g\n");
    ck_assert_uint_eq(seen.skipped, 4);
}
END_TEST

START_TEST(folders_that_cannot_be_read)
{
    list((struct mr_store_list_request){.prefix = path_of("none/")});
    ck_assert_int_eq(seen.code, MR_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(seen.text, "none/"));
    list((struct mr_store_list_request){.prefix = "relative"});
    ck_assert_int_eq(seen.code, MR_E_USAGE);
    if (geteuid() == 0 && setegid(65534) == 0)
        ck_assert_int_eq(seteuid(65534), 0); /* root reads everything */
    char mine[64];
    strcpy(mine, "/tmp/mr-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(mine));
    char locked[100];
    snprintf(locked, sizeof locked, "%s/locked", mine);
    ck_assert_int_eq(mkdir(locked, 0000), 0);
    list((struct mr_store_list_request){.prefix = mine});
    ck_assert_int_eq(seen.code, MR_E_DENIED);
    ck_assert_msg(strstr(seen.text, "/locked/") != NULL, "%s", seen.text);
    ck_assert(rmdir(locked) == 0 && rmdir(mine) == 0);
    ck_assert(seteuid(getuid()) == 0 && setegid(getgid()) == 0);
}
END_TEST

START_TEST(a_folder_that_changes_between_pages)
{
    char name[64];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "d%d/%02d", i % 5, i);
        put(name, "x");
    }
    memset(&seen, 0, sizeof seen);
    struct mr_store_list_request request = {.prefix = root, .max_results = 7};
    ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
    run_until(&seen.done);
    for (int i = 4; i < 50; i += 5) { /* d4 disappears before the walk comes to it */
        snprintf(name, sizeof name, "d4/%02d", i);
        unlink(path_of(name));
    }
    rmdir(path_of("d4"));
    char token[5000];
    while (seen.token[0]) {
        snprintf(token, sizeof token, "%s", seen.token);
        request.page_token = token;
        seen.done = 0;
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
        run_until(&seen.done);
        ck_assert_msg(seen.code == MR_OK, "%s", seen.text);
    }
    ck_assert_uint_eq(seen.count, 40);
}
END_TEST

static struct {
    int done;
    bool verified;
    enum mr_code code;
    char text[1200];
    struct mr_store_item item;
    uint64_t generation;
} got;

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    got.done++;
    got.code = result->code;
    snprintf(got.text, sizeof got.text, "%s", result->text);
    if (item)
        got.item = *item;
}

static void on_fetch(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    got.done++;
    got.code = result->code;
    got.verified = result->verified;
    got.generation = result->generation;
    snprintf(got.text, sizeof got.text, "%s", result->text);
}

static enum mr_code stat_of(const char *path, uint64_t generation)
{
    got.done = 0;
    ck_assert_ptr_nonnull(mr_transfer_stat(engine, store, path, strlen(path), generation, on_stat, NULL));
    run_until(&got.done);
    return got.code;
}

static enum mr_code fetch(const char *path, uint64_t generation, uint64_t size, uint64_t offset, uint64_t length,
                          void *dest)
{
    struct mr_transfer_request request = {.store = store,
                                          .name = path,
                                          .name_length = strlen(path),
                                          .generation = generation,
                                          .size = size,
                                          .offset = offset,
                                          .length = length,
                                          .dest = dest};
    got.done = 0;
    ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_fetch, NULL));
    run_until(&got.done);
    return got.code;
}

START_TEST(read_and_look_up)
{
    put("f", "0123456789");
    put("empty", "");
    const char *path = path_of("f");
    ck_assert_int_eq(stat_of(path, 0), MR_OK);
    ck_assert_uint_eq(got.item.size, 10);
    uint64_t generation = got.item.generation;
    ck_assert_int_eq(stat_of(path, generation), MR_OK);
    ck_assert_int_eq(stat_of(path, generation + 1), MR_E_CHANGED);
    char dest[16] = "";
    ck_assert_int_eq(fetch(path, generation, 10, 0, 10, dest), MR_OK);
    ck_assert_str_eq(dest, "0123456789");
    ck_assert(!got.verified);
    ck_assert_uint_eq(got.generation, generation);
    ck_assert_int_eq(fetch(path, 0, 10, 3, 4, dest), MR_OK);
    ck_assert_mem_eq(dest, "34566", 4);
    ck_assert_int_eq(fetch(path_of("empty"), 0, 0, 0, 0, NULL), MR_OK);
    ck_assert_int_eq(fetch(path, generation + 1, 10, 0, 10, dest), MR_E_CHANGED);
    ck_assert_int_eq(fetch(path, 0, 9, 0, 9, dest), MR_E_CHANGED);
    ck_assert_int_eq(fetch(path, 0, 12, 8, 4, dest), MR_E_CHANGED);
    ck_assert_int_eq(fetch(path_of("none"), 5, 10, 0, 10, dest), MR_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(got.text, "deleted since the listing"));
    ck_assert_int_eq(fetch(root, 0, 10, 0, 10, dest), MR_E_NOT_FOUND);
    ck_assert_int_eq(stat_of(root, 0), MR_E_NOT_FOUND);
    ck_assert_int_eq(stat_of(path_of("none"), 0), MR_E_NOT_FOUND);
    ck_assert_msg(strstr(got.text, "/none: ") != NULL, "%s", got.text);
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    ck_assert_int_eq(fetch(path_of("fifo"), 0, 10, 0, 10, dest), MR_E_NOT_FOUND);
}
END_TEST

START_TEST(a_file_that_may_not_be_read_says_what_to_do)
{
    char dest[4];
    put("secret", "abc");
    ck_assert_int_eq(chmod(path_of("secret"), 0), 0);
    ck_assert_int_eq(chmod(root, 0755), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(65534), 0); /* root reads everything */
    ck_assert_int_eq(fetch(path_of("secret"), 0, 3, 0, 3, dest), MR_E_DENIED);
    ck_assert_msg(strstr(got.text, "Permission denied: user ") && strstr(got.text, "chmod"), "%s", got.text);
    (void)!seteuid(getuid());
}
END_TEST

static uint64_t came; /* bytes that were given */

static void on_bytes(void *arg, uint64_t at, uint64_t more)
{
    (void)arg;
    ck_assert_uint_eq(at, came);
    came += more;
}

/* What is read after the change is not given: it would be published. */
START_TEST(written_to_while_it_is_read)
{
    size_t size = 5 << 20;
    char *dest = malloc(size);
    put("big", "");
    ck_assert_int_eq(truncate(path_of("big"), (off_t)size), 0);
    const char *path = strdup(path_of("big"));
    struct mr_transfer_request request = {
        .store = store, .name = path, .name_length = strlen(path), .size = size, .length = size, .dest = dest};
    request.arrived = on_bytes;
    for (int shrink = 0; shrink < 2; shrink++) {
        got.done = 0;
        came = 0;
        ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_fetch, NULL));
        while (came < 2 << 20)
            mr_http_step(http, 100, -1);
        uint64_t good = came;
        if (shrink) {
            ck_assert_int_eq(truncate(path, 3 << 20), 0);
        } else {
            static const struct timespec times[2] = {{1, 0}, {1, 0}};
            ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
        }
        run_until(&got.done);
        ck_assert_int_eq(got.code, MR_E_CHANGED);
        ck_assert_uint_eq(came, good);
    }
    free((char *)path);
    free(dest);
}
END_TEST

START_TEST(cancelled_calls_close_their_files)
{
    static char dest[3 << 20];
    put("big", "");
    ck_assert_int_eq(truncate(path_of("big"), sizeof dest), 0);
    const char *path = path_of("big");
    int before = mr_count_descriptors();
    struct mr_transfer_request request = {.store = store,
                                          .name = path,
                                          .name_length = strlen(path),
                                          .size = sizeof dest,
                                          .length = sizeof dest,
                                          .dest = dest};
    got.done = 0;
    for (int i = 0; i < 20; i++) {
        struct mr_transfer *transfer = mr_transfer_fetch(engine, &request, on_fetch, NULL);
        for (int step = 0; step < i % 2; step++)
            mr_http_step(http, 0, -1);
        mr_transfer_cancel(engine, transfer);
    }
    ck_assert_int_eq(mr_count_descriptors(), before);
    ck_assert_int_eq(got.done, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_file");
    TCase *tc = tcase_create("file");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, byte_order_of_whole_paths);
    tcase_add_test(tc, ranges_and_prefixes);
    tcase_add_test(tc, links_and_what_is_no_file);
    tcase_add_test(tc, folders_that_cannot_be_read);
    tcase_add_test(tc, a_folder_that_changes_between_pages);
    tcase_add_test(tc, read_and_look_up);
    tcase_add_test(tc, a_file_that_may_not_be_read_says_what_to_do);
    tcase_add_test(tc, written_to_while_it_is_read);
    tcase_add_test(tc, cancelled_calls_close_their_files);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
