/* test_gcs.c - the JSON client: URLs, pages, refusals, endpoints, credentials, texts. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fault_server.h"
#include "worker/store/auth.h"
#include "worker/store/gcs_json.h"
#include "worker/store/text.h"
#include "worker/store/transfer.h"

/* ---- the page parser ---- */

#define ITEM(name, rest) "{\"name\":\"" name "\",\"size\":\"1\",\"generation\":\"2\"" rest "}"

static struct mr_gcs_page *parse(const char *json, struct mr_store_list_request request)
{
    return mr_gcs_page_parse(json, strlen(json), &request);
}

START_TEST(good_pages)
{
    static const char text[] =
        "{\"kind\":\"storage#objects\",\"nextPageToken\":\"t2\",\"items\":["
        "{\"name\":\"a\",\"size\":\"9223372036854775807\",\"generation\":\"1700000000000001\",\"crc32c\":\"4waSgw==\","
        "\"storageClass\":\"STANDARD\",\"etag\":\"CJ==\",\"unknown\":[1,{}]},"
        "{\"name\":\"a/\\u00e9 \\\"\",\"size\":17,\"generation\":3}]}";
    struct mr_gcs_page *page = parse(text, (struct mr_store_list_request){.page_token = "t1"});
    ck_assert_msg(page != NULL, "%s", mr_error_text());
    const struct mr_store_page *view = mr_gcs_page_view(page);
    ck_assert_uint_eq(view->count, 2);
    ck_assert_str_eq(view->next_token, "t2");
    ck_assert_str_eq(view->items[0].name, "a");
    ck_assert_uint_eq(view->items[0].size, INT64_MAX);
    ck_assert_uint_eq(view->items[0].generation, 1700000000000001u);
    ck_assert(view->items[0].has_crc32c && view->items[0].crc32c == 0xe3069283u);
    ck_assert_str_eq(view->items[0].storage_class, "STANDARD");
    ck_assert_str_eq(view->items[0].etag, "CJ==");
    ck_assert_str_eq(view->items[1].name, "a/\xc3\xa9 \"");
    ck_assert_uint_eq(view->items[1].name_length, 6);
    ck_assert_uint_eq(view->items[1].size, 17);
    ck_assert(!view->items[1].has_crc32c);
    mr_gcs_page_destroy(page);
    static const char *const empty[] = {"{}", "{\"items\":[]}", "{\"nextPageToken\":\"\"}", " { } "};
    for (unsigned i = 0; i < 4; i++) {
        page = parse(empty[i], (struct mr_store_list_request){0});
        ck_assert_ptr_nonnull(page);
        ck_assert_uint_eq(mr_gcs_page_view(page)->count, 0);
        ck_assert_ptr_null(mr_gcs_page_view(page)->next_token);
        mr_gcs_page_destroy(page);
    }
}
END_TEST

static const struct {
    const char *json, *text;
} bad_pages[] = {
    {"", "not JSON"},
    {"[]", "not a JSON object"},
    {"<html>", "not JSON"},
    {"{\"items\":[" ITEM("a", ""), "not JSON"},
    {"{\"items\":{}}", "items is not an array"},
    {"{\"items\":[1]}", "without a name"},
    {"{\"items\":[{\"size\":\"1\"}]}", "without a name"},
    {"{\"items\":[{\"name\":\"\",\"size\":\"1\",\"generation\":\"2\"}]}", "without a name"},
    {"{\"items\":[{\"name\":7,\"size\":\"1\",\"generation\":\"2\"}]}", "without a name"},
    {"{\"items\":[{\"name\":\"a\\u0000b\",\"size\":\"1\",\"generation\":\"2\"}]}", "\\u0000"},
    {"{\"items\":[{\"name\":\"\xff\",\"size\":\"1\",\"generation\":\"2\"}]}", "not JSON"},
    {"{\"items\":[{\"name\":\"a\",\"size\":null,\"generation\":\"2\"}]}", "\"a\" has no usable size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"-1\",\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":-1,\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":1.5,\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"\",\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"1x\",\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"9223372036854775808\",\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[{\"name\":\"a\",\"size\":9223372036854775808,\"generation\":\"2\"}]}", "size"},
    {"{\"items\":[" ITEM("a", "") "],\"items\":[]}", "twice"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"1\"}]}", "generation"},
    {"{\"items\":[{\"name\":\"a\",\"size\":\"1\",\"generation\":null}]}", "generation"},
    {"{\"items\":[" ITEM("a", ",\"crc32c\":\"4waSgw=\"") "]}", "crc32c"},
    {"{\"items\":[" ITEM("a", ",\"crc32c\":5") "]}", "crc32c"},
    {"{\"items\":[" ITEM("a", ",\"storageClass\":[]") "]}", "storageClass"},
    {"{\"items\":[" ITEM("a", ",\"etag\":false") "]}", "etag"},
    {"{\"items\":[" ITEM("b", "") "," ITEM("a", "") "]}", "\"a\" comes after \"b\""},
    {"{\"items\":[" ITEM("a", "") "," ITEM("a", "") "]}", "comes after"},
    {"{\"items\":[" ITEM("aa", "") "," ITEM("a", "") "]}", "comes after"},
    {"{\"nextPageToken\":7}", "nextPageToken"},
    {"{\"nextPageToken\":\"same\"}", "never end"},
};

START_TEST(bad_page)
{
    struct mr_store_list_request request = {.page_token = "same"};
    ck_assert_ptr_null(parse(bad_pages[_i].json, request));
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_msg(strstr(mr_error_text(), bad_pages[_i].text) != NULL, "%s", mr_error_text());
}
END_TEST

START_TEST(an_item_without_a_size_is_empty)
{
    struct mr_gcs_page *page =
        parse("{\"items\":[{\"name\":\"a\",\"generation\":\"2\"}]}", (struct mr_store_list_request){0});
    ck_assert_msg(page != NULL, "%s", mr_error_text());
    mr_gcs_page_destroy(page);
}
END_TEST

START_TEST(names_too_long_or_out_of_range)
{
    static char json[3000];
    for (int n = 1024; n <= 1025; n++) {
        snprintf(json, sizeof json, "{\"items\":[{\"name\":\"%0*d\",\"size\":\"1\",\"generation\":\"2\"}]}", n, 0);
        struct mr_gcs_page *page = parse(json, (struct mr_store_list_request){0});
        ck_assert_int_eq(page != NULL, n == 1024);
        mr_gcs_page_destroy(page);
    }
    static const char one[] = "{\"items\":[" ITEM("m/x", "") "]}";
    static const struct {
        struct mr_store_list_request request;
        int good;
    } cases[] = {
        {{.prefix = "m/"}, 1},        {{.prefix = "m/xy"}, 0},       {{.prefix = "n"}, 0},
        {{.start_offset = "m/x"}, 1}, {{.start_offset = "m/x0"}, 0}, {{.end_offset = "m/x"}, 0},
        {{.end_offset = "m/x0"}, 1},  {{.after = "m/x"}, 0},         {{.after = "m/w"}, 1},
        {{.after = "m/xx"}, 0},       {{.end_offset = "\xff"}, 1},   {{.start_offset = "\xff"}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mr_gcs_page *page = parse(one, cases[i].request);
        ck_assert_msg((page != NULL) == cases[i].good, "case %zu: %s", i, mr_error_text());
        mr_gcs_page_destroy(page);
    }
}
END_TEST

START_TEST(error_texts)
{
    char out[40];
    static const struct {
        const char *body, *text;
    } cases[] = {
        {"{\"error\":{\"code\":404,\"message\":\"No such bucket.\"}}", "No such bucket"},
        {"<?xml?><Error><Code>A</Code><Message>Denied</Message></Error>", "Denied"},
        {"No such object: b/x\r\n", "No such object: b/x"},
        {"{\"error\":\"text\"}", "{\"error\":\"text\"}"},
        {"a\nb\x01", "a\\x0ab\\x01"},
        {"", ""},
        {"<Message>unclosed", "<Message>unclosed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_str_eq(mr_gcs_error_text(cases[i].body, strlen(cases[i].body), out, sizeof out), cases[i].text);
    static const char long_text[] = "0123456789012345678901234567890123456789012345678901234567890";
    ck_assert_uint_lt(strlen(mr_gcs_error_text(long_text, sizeof long_text - 1, out, sizeof out)), sizeof out);
    ck_assert_str_eq(out + strlen(out) - 3, "...");
}
END_TEST

/* ---- text ---- */

START_TEST(every_byte_is_encoded_and_quoted)
{
    char name[255];
    for (int i = 0; i < 255; i++)
        name[i] = (char)(i + 1);
    struct mr_text text = {0};
    mr_text_put_encoded(&text, name, sizeof name);
    size_t n = 0;
    char decoded[256];
    for (const char *p = text.data; *p; p++) {
        unsigned byte = (unsigned char)*p;
        if (*p == '%') {
            ck_assert_int_eq(sscanf(p + 1, "%2X", &byte), 1);
            p += 2;
        } else {
            ck_assert_msg(strchr("-._~", *p) || (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
                              (*p >= 'a' && *p <= 'z'),
                          "%c", *p);
        }
        decoded[n++] = (char)byte;
    }
    ck_assert_uint_eq(n, 255);
    ck_assert_mem_eq(decoded, name, 255);
    ck_assert_uint_eq(text.length, strlen(text.data));
    mr_text_clear(&text);
    mr_text_put_u64(&text, UINT64_MAX);
    mr_text_put_u64(&text, 0);
    ck_assert_str_eq(text.data, "184467440737095516150");
    mr_text_close(&text);
    char quoted[2000];
    for (size_t size = 8; size < sizeof quoted; size += 7) {
        mr_text_quote(quoted, size, name, sizeof name);
        ck_assert_uint_lt(strlen(quoted), size);
        for (const char *p = quoted; *p; p++)
            ck_assert_int_ge((unsigned char)*p, 0x20);
    }
}
END_TEST

/* ---- endpoints and credentials ---- */

static struct mr_http *http;

static struct mr_store *open_store(const char *endpoint, const char *auth)
{
    return mr_store_open(&(struct mr_store_options){
        .scheme = MR_SCHEME_GS, .bucket = "b", .endpoint = endpoint, .auth = auth, .http = http});
}

START_TEST(endpoints_and_auth)
{
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    unsetenv("STORAGE_EMULATOR_HOST");
    unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
    setenv("CLOUDSDK_CONFIG", "/nonexistent", 1);
    setenv("NO_GCE_CHECK", "true", 1);
    ck_assert_ptr_null(open_store(NULL, NULL));
    ck_assert_int_eq(mr_error_code(), MR_E_DENIED);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "anonymous"));
    ck_assert_ptr_null(open_store("http://127.0.0.1:9", "default"));
    ck_assert_int_eq(mr_error_code(), MR_E_DENIED);
    static const char *const endpoints[][2] = {{"storage.example.org", "https://storage.example.org"},
                                               {"localhost:9", "http://localhost:9"},
                                               {"127.0.0.1:9/", "http://127.0.0.1:9"},
                                               {"[::1]:9", "http://[::1]:9"},
                                               {"http://10.0.0.1", "http://10.0.0.1"}};
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        struct mr_store *store = open_store(endpoints[i][0], "anonymous");
        char shown[100], credentials[100];
        mr_store_describe(store, shown, sizeof shown, credentials, sizeof credentials);
        ck_assert_str_eq(shown, endpoints[i][1]);
        mr_store_close(store);
    }
    ck_assert_ptr_null(open_store(NULL, "magic"));
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    static const char *const bad[] = {"ftp://x", "http://", "http://a b", "https://u@h", "http://h?x", "h\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_ptr_null(open_store(bad[i], "anonymous"));
        ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    }
    mr_store_close(open_store(NULL, "anonymous"));
    setenv("STORAGE_EMULATOR_HOST", "localhost:9000", 1);
    struct mr_store *store = open_store(NULL, NULL);
    ck_assert_ptr_nonnull(store);
    ck_assert_int_eq(mr_store_scheme(store), MR_SCHEME_GS);
    mr_store_close(store);
    setenv("STORAGE_EMULATOR_HOST", "nonsense://x", 1);
    ck_assert_ptr_null(open_store(NULL, NULL));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "STORAGE_EMULATOR_HOST"));
    ck_assert_ptr_null(mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS, .bucket = "", .http = http}));
    mr_http_destroy(http);
}
END_TEST

/* ---- over the wire ---- */

static struct fault_server *server;
static struct mr_store *store;
static struct mr_transfer_engine *engine;
static char target[8192];
static const char *answer_body;
static int answer_status, answers_bad;

static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    memcpy(target, request->target, sizeof target);
    if (strstr(target, "/o/silent")) {
        fault_wait(conn, 30000);
        return false;
    }
    if (answers_bad > 0) {
        answers_bad--;
        fault_answer(conn, 503, "", "try later", 9);
        return true;
    }
    fault_answer(conn, answer_status, "", answer_body, strlen(answer_body));
    return true;
}

static void setup(void)
{
    server = fault_server_start(handle, NULL);
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://%s/", fault_server_host(server));
    store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS,
                                                     .bucket = "my.bucket",
                                                     .endpoint = endpoint,
                                                     .auth = "anonymous",
                                                     .user_project = "proj ect",
                                                     .http = http});
    ck_assert_ptr_nonnull(store);
    engine = mr_transfer_new(&(struct mr_transfer_options){.retry_base_ms = 1, .deadline_ms = 100000}, http);
    answer_status = 200;
    answers_bad = 0;
}

static void teardown(void)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    fault_server_stop(server);
}

static struct {
    int done;
    enum mr_code code;
    char text[1200], first[1100];
    size_t count;
} seen;

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    seen.done++;
    seen.code = result->code;
    snprintf(seen.text, sizeof seen.text, "%s", result->text);
    ck_assert_int_eq(page != NULL, result->code == MR_OK);
    seen.count = page ? page->count : 0;
    if (seen.count)
        snprintf(seen.first, sizeof seen.first, "%s", page->items[0].name);
}

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    seen.done++;
    seen.code = result->code;
    snprintf(seen.text, sizeof seen.text, "%s", result->text);
    if (item)
        snprintf(seen.first, sizeof seen.first, "%s", item->name);
}

static void run(void)
{
    for (int i = 0; i < 10000 && !seen.done; i++)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_int_eq(seen.done, 1);
}

START_TEST(list_over_the_wire)
{
    answer_body = "{\"items\":[" ITEM("p/ \xc3\xa9q", "") "]}";
    memset(&seen, 0, sizeof seen);
    char prefix[8] = "p/ \xc3\xa9", token[8] = "t=&+";
    struct mr_store_list_request request = {
        .prefix = prefix, .start_offset = "p", .end_offset = "q", .page_token = token, .max_results = 5};
    answers_bad = 2;
    ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
    memset(prefix, 'z', 7); /* strings of a request are copied, for repeats too */
    memset(token, 'z', 7);
    run();
    ck_assert_msg(seen.code == MR_OK, "%s", seen.text);
    ck_assert_str_eq(seen.first, "p/ \xc3\xa9q");
    ck_assert_str_eq(target, "/storage/v1/b/my.bucket/o?projection=noAcl&fields=items(name,size,generation,crc32c,"
                             "storageClass),nextPageToken&prefix=p%2F%20%C3%A9&startOffset=p&endOffset=q&pageToken="
                             "t%3D%26%2B&maxResults=5&userProject=proj%20ect");
    ck_assert_uint_eq(mr_transfer_counters(engine)->retries, 2);
    answer_body = "{\"items\":[" ITEM("zz", "") "]}";
    seen.done = 0;
    ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
    run();
    ck_assert_int_eq(seen.code, MR_E_PROTOCOL);
    ck_assert_msg(strncmp(seen.text, "gs://my.bucket/zzzz", 19) == 0 && strstr(seen.text, "\"zz\""), "%s", seen.text);
    answer_status = 404;
    answer_body = "{\"error\":{\"message\":\"The specified bucket does not exist.\"}}";
    seen.done = 0;
    ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &request, on_list, NULL));
    run();
    ck_assert_int_eq(seen.code, MR_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(seen.text, "The specified bucket does not exist (HTTP status 404)"));
}
END_TEST

START_TEST(stat_over_the_wire)
{
    memset(&seen, 0, sizeof seen);
    answer_body = ITEM("a/b", "");
    ck_assert_ptr_nonnull(mr_transfer_stat(engine, store, "a/b", 3, 9, on_stat, NULL));
    run();
    ck_assert_int_eq(seen.code, MR_OK);
    ck_assert_str_eq(seen.first, "a/b");
    ck_assert_str_eq(target,
                     "/storage/v1/b/my.bucket/o/a%2Fb?fields=name,size,generation,crc32c,storageClass,etag,timeCreated&"
                     "generation=9&userProject=proj%20ect");
    static const char *const bad[] = {"", "{}", "[]", "{\"name\":\"a/b\"}"};
    for (unsigned i = 0; i < 4; i++) {
        answer_body = bad[i];
        seen.done = 0;
        ck_assert_ptr_nonnull(mr_transfer_stat(engine, store, "a/b", 3, 0, on_stat, NULL));
        run();
        ck_assert_int_eq(seen.code, MR_E_PROTOCOL);
        ck_assert_ptr_nonnull(strstr(seen.text, "gs://my.bucket/a/b: "));
    }
    struct mr_transfer *gone = mr_transfer_stat(engine, store, "silent", 6, 0, on_stat, NULL);
    mr_http_step(http, 0, -1);
    seen.done = 0;
    mr_transfer_cancel(engine, gone);
    for (int i = 0; i < 10; i++)
        mr_http_step(http, 2, -1);
    ck_assert_int_eq(seen.done, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_gcs");
    TCase *plain = tcase_create("plain");
    tcase_add_test(plain, good_pages);
    tcase_add_loop_test(plain, bad_page, 0, sizeof bad_pages / sizeof *bad_pages);
    tcase_add_test(plain, an_item_without_a_size_is_empty);
    tcase_add_test(plain, names_too_long_or_out_of_range);
    tcase_add_test(plain, error_texts);
    tcase_add_test(plain, every_byte_is_encoded_and_quoted);
    tcase_add_test(plain, endpoints_and_auth);
    suite_add_tcase(suite, plain);
    TCase *wire = tcase_create("wire");
    tcase_add_checked_fixture(wire, setup, teardown);
    tcase_set_timeout(wire, 60);
    tcase_add_test(wire, list_over_the_wire);
    tcase_add_test(wire, stat_over_the_wire);
    suite_add_tcase(suite, wire);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
