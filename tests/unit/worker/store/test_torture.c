/*
 * test_torture.c - a listing, a look-up and a fetch with our n-th allocation failing, for every n: an error or a
 * good end, never a crash, a hang or (under the address sanitizer) a leak. libcurl's own allocations are left alone:
 * 7.88 divides by zero where one for its table of connections fails.
 */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fault_bucket.h"
#include "fault_gcs.h"
#include "worker/store/transfer.h"
#include "worker/store/upload_parts.h"

#define SIZE 100000u

/* Only what mr_store allocates in the thread under test counts: the server lives in other threads. */
static _Thread_local long fail_at = -1; /* allocations until the one that fails; -1: none does */
static _Thread_local bool failed;

static bool fails(void)
{
    if (fail_at < 0 || fail_at-- > 0)
        return false;
    failed = true;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
    if (fails())
        return -1;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(out, fmt, ap);
    va_end(ap);
    return n;
}

static unsigned char data[SIZE], dest[SIZE];
static struct fault_gcs gcs = {.data = data, .size = SIZE, .generation = 7};
static struct fault_server *server;
static int done, good, bad_texts;

static void on_fetch(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    done++;
    good += result->code == MR_OK;
    bad_texts += result->code != MR_OK && result->text[0] == 0;
}

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    (void)item;
    done++;
    good += result->code == MR_OK;
}

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    (void)page;
    done++;
    good += result->code == MR_OK;
}

static void on_batch(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    (void)arg;
    (void)each;
    done++;
    good += result->code == MR_OK;
}

static void on_word(void *arg, const struct mr_store_result *result, const char *word)
{
    (void)arg;
    (void)word;
    done++;
    good += result->code == MR_OK;
}

static void on_bucket(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket)
{
    (void)arg;
    (void)bucket;
    done++;
    good += result->code == MR_OK;
}

static int64_t read_zeros(void *arg, void *buffer, size_t size)
{
    uint64_t *left = arg;
    size_t n = size < *left ? size : (size_t)*left;
    memset(buffer, 0, n);
    *left -= n;
    return (int64_t)n;
}

static void wait_for(struct mr_http *http, int started)
{
    int64_t end = mr_clock_mono_ns() + 100 * MR_SECOND_NS;
    while (done < started && mr_clock_mono_ns() < end)
        mr_http_step(http, 100, -1);
}

static uint64_t left;

/* The same for what writes. */
static void run_writes(struct mr_http *http, struct mr_transfer_engine *engine, struct mr_store *store)
{
    static const struct mr_store_name names[2] = {{"a", 1, MR_STORE_ANY, NULL}, {"b", 1, 7, NULL}};
    static const struct mr_upload_part part = {.number = 1, .etag = "\"part\""};
    struct mr_store_compose_request compose = {
        .name = "c", .name_length = 1, .sources = names, .count = 2, .content_type = "text/plain"};
    struct mr_transfer_upload_request upload = {.store = store,
                                                .name = "d",
                                                .name_length = 1,
                                                .size = MR_STORE_ANY,
                                                .chunk_bytes = MR_STORE_CHUNK,
                                                .read = read_zeros};
    struct mr_store_complete_request complete = {.name = "e", .name_length = 1, .id = "99", .parts = &part, .count = 1};
    left = MR_STORE_CHUNK + 1;
    struct mr_store_insert_request insert = {.name = "a", .name_length = 1, .body = "", .content_type = "text/plain"};
    int started = mr_transfer_insert(engine, store, &insert, on_stat, NULL) != NULL;
    started += mr_transfer_compose(engine, store, &compose, on_stat, NULL) != NULL;
    started += mr_transfer_delete_batch(engine, store, names, 2, on_batch, NULL) != NULL;
    started += mr_transfer_bucket(engine, store, on_bucket, NULL) != NULL;
    started += mr_transfer_parts_begin(engine, store, "e", 1, "text/plain", on_word, NULL) != NULL;
    started += mr_transfer_parts_complete(engine, store, &complete, on_stat, NULL) != NULL;
    wait_for(http, started); /* the upload's arg is another */
    started += mr_transfer_upload(engine, &upload, on_stat, &left) != NULL;
    wait_for(http, started);
    fail_at = -1;
    ck_assert_int_eq(done, started);
    if (started < 7)
        ck_assert_int_eq(mr_error_code(), MR_E_NO_MEMORY);
}

/* Starts one of each and sees them end. */
static void run(struct mr_http *http, struct mr_transfer_engine *engine, struct mr_store *store)
{
    struct mr_transfer_request fetch = {
        .store = store, .name = "x", .name_length = 1, .generation = 7, .size = SIZE, .length = SIZE, .dest = dest};
    int started = mr_transfer_fetch(engine, &fetch, on_fetch, NULL) != NULL;
    started += mr_transfer_stat(engine, store, "x", 1, 0, on_stat, NULL) != NULL;
    struct mr_store_list_request list = {.prefix = "x", .start_offset = "x"};
    started += mr_transfer_list(engine, store, &list, on_list, NULL) != NULL;
    wait_for(http, started);
    fail_at = -1; /* check allocates too */
    ck_assert_int_eq(done, started);
    ck_assert_int_eq(bad_texts, 0);
    if (started < 3)
        ck_assert_int_eq(mr_error_code(), MR_E_NO_MEMORY);
}

/* Returns whether no allocation failed any more. */
static bool attempt(long n, bool writes)
{
    done = good = 0;
    failed = false;
    fail_at = n;
    const char *line = "X-A: b";
    struct mr_http *http = mr_http_new(&(struct mr_http_options){.proxy = "", .headers = &line, .header_count = 1});
    struct mr_transfer_engine *engine = NULL;
    if (http)
        engine = mr_transfer_new(
            &(struct mr_transfer_options){.retry_base_ms = 1, .retry_cap_ms = 1, .deadline_ms = 10000}, http);
    struct mr_store *store = NULL;
    if (engine)
        store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS,
                                                         .bucket = "bucket",
                                                         .endpoint = fault_server_host(server),
                                                         .auth = "anonymous",
                                                         .user_project = "p",
                                                         .stall_timeout_ms = 10000,
                                                         .http = http});
    if (store && writes)
        run_writes(http, engine, store);
    else if (store)
        run(http, engine, store);
    fail_at = -1;
    if (!store)
        ck_assert_msg(mr_error_code() == MR_E_NO_MEMORY, "allocation %ld: %s", n, mr_error_text());
    fail_at = -1;
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    return !failed;
}

START_TEST(every_allocation_fails_once)
{
    server = fault_server_start(fault_gcs_handle, &gcs);
    long n = 0;
    while (!attempt(n, false))
        n++;
    ck_assert_int_gt(n, 25);
    ck_assert_int_eq(good, 3); /* without a failure all end well: to a listing an object looks like an empty page */
    fault_server_stop(server);
}
END_TEST

START_TEST(every_allocation_of_writes_fails_once)
{
    static struct fault_bucket bucket;
    long n = 0;
    bool last = false;
    do {
        fault_bucket_init(&bucket);
        server = fault_server_start(fault_bucket_handle, &bucket);
        last = attempt(n++, true);
        fault_server_stop(server);
        fault_bucket_close(&bucket);
    } while (!last);
    ck_assert_int_gt(n, 40);
    /* All but a compose of what is not there, and the end of an upload that was never begun. */
    ck_assert_int_eq(good, 5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_torture");
    TCase *tc = tcase_create("torture");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, every_allocation_fails_once);
    tcase_add_test(tc, every_allocation_of_writes_fails_once);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int not_good = srunner_ntests_failed(runner);
    srunner_free(runner);
    return not_good ? EXIT_FAILURE : EXIT_SUCCESS;
}
