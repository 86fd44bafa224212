/*
 * test_auth.c - the life of a token in one process: one fetch for all who wait, its replacement ahead of its end and
 * after a 401, repeats, and what is left in memory. The kinds of credentials: tests/store/test_auth.py.
 */
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault_server.h"
#include "tests/unit/descriptors.h"
#include "worker/store/auth.h"
#include "worker/store/auth_impl.h"
#include "worker/store/transfer.h"

#define WAITERS 40

static struct fault_server *server;
static struct mr_http *http;
static struct mr_store *stores[2];
static char path[64];
static _Atomic unsigned tokens, reads, refusals, faults, bodies;
static _Atomic unsigned misplaced; /* requests for a token with the line of [http] headers, or reads without it */
static _Atomic unsigned good, lifetime_s, delay_ms, fault_status; /* token number `good` and later are taken */
static _Atomic bool held;                                         /* no token is answered */

static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    const char *every = fault_header(request, "X-Store");
    bool is_token = strcmp(request->target, "/token") == 0;
    misplaced += (every != NULL) == is_token;
    char body[200];
    if (is_token) {
        if (faults > 0) {
            faults--;
            fault_answer(conn, (int)fault_status, "", "{\"error\":\"x\"}", 13);
            return true;
        }
        if (delay_ms)
            fault_wait(conn, delay_ms);
        while (held)
            fault_wait(conn, 1);
        snprintf(body, sizeof body, "{\"access_token\":\"token-%u\",\"expires_in\":%u}", ++tokens, lifetime_s);
        fault_answer(conn, 200, "", body, strlen(body));
        return true;
    }
    const char *line = fault_header(request, "Authorization");
    unsigned number = 0;
    if (!line || sscanf(line, "Bearer token-%u", &number) != 1 || number < good) {
        refusals++;
        fault_answer(conn, 401, "", "", 0);
        return true;
    }
    static const char item[] = "{\"name\":\"a\",\"size\":\"1\",\"generation\":\"1\"}";
    bodies += strstr(request->body, "\r\n\r\npayload\r\n--") != NULL;
    reads++;
    fault_answer(conn, 200, "", item, sizeof item - 1);
    return true;
}

static struct mr_store *open_bucket(const char *bucket)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://%s", fault_server_host(server));
    return mr_store_open(
        &(struct mr_store_options){.scheme = MR_SCHEME_GS, .bucket = bucket, .endpoint = endpoint, .http = http});
}

static void setup(void)
{
    tokens = reads = refusals = faults = bodies = good = delay_ms = misplaced = 0;
    lifetime_s = 3600;
    server = fault_server_start(handle, NULL);
    snprintf(path, sizeof path, "/tmp/millrace-test-auth-%d.json", (int)getpid());
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\",\"refresh_token\":\"r\","
            "\"token_uri\":\"http://%s/token\"}",
            fault_server_host(server));
    fclose(file);
    unsetenv("STORAGE_EMULATOR_HOST");
    setenv("GOOGLE_APPLICATION_CREDENTIALS", path, 1);
    static const char *const lines[] = {"X-Store: only"};
    http = mr_http_new(&(struct mr_http_options){.proxy = "", .headers = lines, .header_count = 1});
    for (int i = 0; i < 2; i++) {
        stores[i] = open_bucket(i ? "bucket-1" : "bucket-0");
        ck_assert_msg(stores[i] != NULL, "%s", mr_error_text());
    }
}

static void teardown(void)
{
    ck_assert_uint_eq(misplaced, 0);
    mr_store_close(stores[0]);
    mr_store_close(stores[1]);
    mr_http_destroy(http);
    fault_server_stop(server);
    unlink(path);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* the leak checker looks into the process */
}

static unsigned ended, ended_well;
static char last_text[600];
static enum mr_code last_code;

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    ck_assert_int_eq(item != NULL, result->code == MR_OK);
    ended++;
    ended_well += result->code == MR_OK;
    last_code = result->code;
    snprintf(last_text, sizeof last_text, "%s", result->text);
}

static struct mr_store_call *ask(unsigned bucket)
{
    struct mr_store_call *call = mr_store_stat(stores[bucket], "a", 1, 0, on_stat, NULL);
    ck_assert_msg(call != NULL, "%s", mr_error_text());
    return call;
}

static void run_until(unsigned count)
{
    int64_t end = mr_clock_mono_ns() + 100 * MR_SECOND_NS;
    while (ended < count) {
        ck_assert_int_ge(mr_http_step(http, 50, -1), 0);
        ck_assert_msg(mr_clock_mono_ns() < end, "%u of %u ended", ended, count);
    }
}

START_TEST(one_fetch_for_all)
{
    ended = ended_well = 0;
    delay_ms = 50;
    struct mr_store_call *calls[WAITERS];
    for (unsigned i = 0; i < WAITERS; i++)
        calls[i] = ask(i % 2);
    ck_assert_uint_eq(ended, 0);
    mr_store_cancel(calls[0]); /* from both ends and the middle of the queue */
    mr_store_cancel(calls[17]);
    mr_store_cancel(calls[WAITERS - 1]);
    run_until(WAITERS - 3);
    ck_assert_uint_eq(ended_well, WAITERS - 3);
    ck_assert_uint_eq(tokens, 1);
    ck_assert_uint_eq(reads, WAITERS - 3);
    ask(1);
    run_until(WAITERS - 2);
    ck_assert_uint_eq(tokens, 1);
}
END_TEST

START_TEST(closed_while_waiting)
{
    ended = 0;
    held = true;
    for (unsigned i = 0; i < 4; i++)
        ask(i % 2);
    for (unsigned i = 0; i < 3; i++)
        mr_http_step(http, 5, -1);
    mr_store_close(stores[0]);
    stores[0] = NULL;
    held = false;
    run_until(2);
    ck_assert_uint_eq(reads, 2);
}
END_TEST

START_TEST(refused_once)
{
    ended = ended_well = 0;
    ask(0);
    run_until(1);
    good = 2;
    for (unsigned i = 0; i < 20; i++)
        ask(i % 2);
    run_until(21);
    ck_assert_uint_eq(ended_well, 21);
    ck_assert_uint_eq(tokens, 2); /* one new token for the twenty that were refused */
    good = 1000;
    ask(0);
    run_until(22);
    ck_assert_int_eq(last_code, MR_E_DENIED);
    ck_assert_uint_eq(tokens, 3);
    ck_assert_uint_eq(refusals, 20 + 2);
}
END_TEST

/* A write that is refused goes out again whole, and once: it was not done. */
START_TEST(a_write_is_refused_once)
{
    ended = ended_well = 0;
    ask(0);
    run_until(1);
    good = 2;
    struct mr_store_insert_request insert = {
        .name = "a", .name_length = 1, .body = "payload", .length = 7, .generation_match = MR_STORE_ANY};
    ck_assert_ptr_nonnull(mr_store_insert(stores[0], &insert, on_stat, NULL));
    run_until(2);
    ck_assert_msg(ended_well == 2, "%s", last_text);
    ck_assert_uint_eq(refusals, 1);
    ck_assert_uint_eq(bodies, 1);
    good = 1000;
    ck_assert_ptr_nonnull(mr_store_insert(stores[0], &insert, on_stat, NULL));
    run_until(3);
    ck_assert_int_eq(last_code, MR_E_DENIED);
    ck_assert_uint_eq(refusals, 3);
    ck_assert_uint_eq(bodies, 1);
}
END_TEST

/* A token of 3 s is replaced after half of it, without a request that waits or fails. */
START_TEST(replaced_ahead)
{
    lifetime_s = 10; /* of which half may pass before a replaced one is noticed */
    ended = ended_well = 0;
    ask(0);
    run_until(1);
    struct mr_auth *auth = mr_auth_new(NULL, false, http);
    int64_t end = mr_clock_mono_ns() + 100 * MR_SECOND_NS;
    struct mr_auth_headers headers;
    while (tokens < 3) {
        mr_http_step(http, 20, -1);
        ck_assert(mr_auth_headers(auth, &headers));
        ck_assert_int_lt(mr_clock_mono_ns(), end);
    }
    good = 2; /* the first is over: a new one is in use */
    ask(1);
    run_until(2);
    ck_assert_uint_eq(refusals, 0);
    mr_auth_destroy(auth);
}
END_TEST

/* While the server fails, the token that is still good stays in use; one that has ended is fetched by who needs it. */
START_TEST(replacement_fails)
{
    lifetime_s = 12;
    ended = ended_well = 0;
    ask(0);
    run_until(1);
    faults = 1000;
    fault_status = 403;
    int64_t half = mr_clock_mono_ns() + 6500 * MR_MILLISECOND_NS;
    while (mr_clock_mono_ns() < half)
        mr_http_step(http, 20, -1);
    ask(0);
    run_until(2);
    ck_assert_uint_eq(ended_well, 2);
    int64_t over = mr_clock_mono_ns() + 6000 * MR_MILLISECOND_NS;
    while (mr_clock_mono_ns() < over)
        mr_http_step(http, 20, -1);
    ask(0);
    run_until(3);
    ck_assert_int_eq(last_code, MR_E_DENIED);
    faults = 0;
    ask(0);
    run_until(4);
    ck_assert_uint_eq(ended_well, 3);
    ck_assert_uint_eq(tokens, 2);
}
END_TEST

/* And no connection for tokens is kept, while the one for reads is. */
START_TEST(repeats)
{
    unsigned kept = 0;
    ended = ended_well = 0;
    fault_status = 503;
    for (unsigned i = 1; i <= 8; i++) {
        faults = 2;
        good = i; /* the last token is refused */
        ask(0);
        run_until(i);
        ck_assert_uint_eq(ended_well, i);
        ck_assert_uint_eq(tokens, i);
        if (i == 1)
            kept = mr_count_descriptors();
    }
    int64_t end = mr_clock_mono_ns() + 20 * MR_SECOND_NS;
    while (mr_count_descriptors() > kept) { /* the server closes its ends in threads */
        ck_assert_msg(mr_clock_mono_ns() < end, "%u descriptors, %u after the first token", mr_count_descriptors(),
                      kept);
        usleep(1000);
    }
}
END_TEST

START_TEST(no_core_dump)
{
    ck_assert_int_eq(prctl(PR_GET_DUMPABLE), 0);
}
END_TEST

START_TEST(members)
{
    char text[] = "{\"a\":1,\"b\":\"x\\ny\",\"c\":true,\"d\":null,\"e\":{\"a\":2},\"f\":-1.5}";
    struct mr_auth_member all[] = {{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}, {"e", 0}, {"f", 0}};
    ck_assert_int_eq(mr_auth_members(text, strlen(text), all, 6), 0);
    ck_assert_str_eq(all[0].value, "1");
    ck_assert_str_eq(all[1].value, "x\ny");
    ck_assert_str_eq(all[2].value, "true");
    ck_assert_ptr_null(all[3].value);
    ck_assert_ptr_null(all[4].value);
    ck_assert_str_eq(all[5].value, "-1.5");
    static const char *const bad[] = {"", "[]", "{\"a\":}", "{\"a\":1", "{\"a\":1}x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char copy[32];
        snprintf(copy, sizeof copy, "%s", bad[i]);
        ck_assert_int_eq(mr_auth_members(copy, strlen(copy), all, 1), -1);
    }
}
END_TEST

START_TEST(json_text)
{
    struct mr_text text = {0};
    mr_auth_put_json(&text, "a\"b\\c\n");
    ck_assert_str_eq(text.data, "\"a\\\"b\\\\c\\u000a\"");
    mr_text_clear(&text);
    mr_auth_put_base64(&text, "\xfb\xff", 2, true);
    ck_assert_str_eq(text.data, "-_8");
    mr_auth_text_wipe(&text);
    ck_assert(mr_auth_is_token("abc.-_~+/="));
    ck_assert(!mr_auth_is_token(""));
    ck_assert(!mr_auth_is_token("a b"));
    ck_assert(!mr_auth_is_token("a\r\nx: y"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("auth");
    TCase *life = tcase_create("life"), *small = tcase_create("small");
    tcase_add_checked_fixture(life, setup, teardown);
    tcase_set_timeout(life, 60);
    tcase_add_test(life, one_fetch_for_all);
    tcase_add_test(life, closed_while_waiting);
    tcase_add_test(life, refused_once);
    tcase_add_test(life, a_write_is_refused_once);
    tcase_add_test(life, replaced_ahead);
    tcase_add_test(life, replacement_fails);
    tcase_add_test(life, repeats);
    tcase_add_test(life, no_core_dump);
    tcase_add_test(small, members);
    tcase_add_test(small, json_text);
    suite_add_tcase(suite, life);
    suite_add_tcase(suite, small);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
