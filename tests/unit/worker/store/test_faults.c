/*
 * test_faults.c - the table of docs/retries.md for reads: each fault of a store, at each kind of request, once;
 * is it repaired by a repeat, or which error is it? And what counts as a stall.
 */
#include <check.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "fault_server.h"
#include "worker/store/latency.h"
#include "worker/store/transfer.h"

#define SIZE      100000u
#define LONG_TIME 3600000u /* ms: a stall that nobody would wait for */

enum op { GET, LIST, STAT, OPS };
enum fault {
    NONE,
    STATUS,
    RESET_BEFORE,
    CLOSE_BEFORE,
    RESET_IN_HEAD,
    RESET_IN_BODY,
    CLOSE_IN_BODY,
    RESET_AFTER,
    SILENT,
    STALL_IN_HEAD,
    STALL_IN_BODY,
    LONGER,
    SHORTER,
    WRONG_BYTE,
    OTHER_GENERATION,
    GARBAGE,
};

static unsigned char object[SIZE], dest[SIZE + 1];

/* What the server does: the first `count` requests of `op` have the fault. */
static struct {
    enum fault fault;
    int status;
    const char *extra, *words;
    unsigned count;
    uint64_t there; /* generation that a look-up finds; 0: none */
    unsigned delay_ms;
    _Atomic unsigned asked[OPS];
    uint64_t resumed_at;
    unsigned last_on_conn;
} plan;

static struct fault_server *server;
static struct mr_http *http;
static struct mr_store *store;
static struct mr_transfer_engine *engine;
static struct {
    int done;
    struct mr_transfer_result result; /* of list and stat: code and status */
    char text[2000];
    size_t items;
} outcome;

/* ---- the server ---- */

static bool send_head(struct fault_conn *conn, uint64_t at, size_t told, uint64_t generation)
{
    char crc[9];
    mr_crc32c_to_base64(mr_crc32c(0, object, SIZE), crc);
    if (at > 0)
        fault_printf(conn, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %llu-%u/%u\r\n",
                     (unsigned long long)at, SIZE - 1, SIZE);
    else
        fault_printf(conn, "HTTP/1.1 200 OK\r\n");
    if (plan.fault == STALL_IN_HEAD && generation == 0) {
        fault_wait(conn, LONG_TIME);
        return false;
    }
    fault_printf(conn, "x-goog-generation: %llu\r\nx-goog-hash: crc32c=%s\r\nContent-Length: %zu\r\n\r\n",
                 (unsigned long long)(generation ? generation : 7), crc, told);
    return true;
}

static bool reset(struct fault_conn *conn)
{
    fault_wait(conn, 30); /* a reset overtakes what is not read yet */
    fault_reset(conn);
    return false;
}

static bool send_faulty(struct fault_conn *conn, uint64_t at, const unsigned char *body, size_t length)
{
    switch (plan.fault) {
    case STATUS:
        fault_answer(conn, plan.status, plan.extra ? plan.extra : "", plan.words ? plan.words : "",
                     plan.words ? strlen(plan.words) : 0);
        return true;
    case RESET_BEFORE:
        return reset(conn);
    case CLOSE_BEFORE:
        return false;
    case RESET_IN_HEAD:
        fault_printf(conn, "HTTP/1.1 200 OK\r\nContent-Le");
        return reset(conn);
    case SILENT:
        fault_wait(conn, LONG_TIME);
        return false;
    case STALL_IN_HEAD:
        return send_head(conn, at, length, 0);
    case GARBAGE:
        fault_printf(conn, "220 this is no web server\r\n");
        return false;
    default:
        break;
    }
    send_head(conn, at, length + (plan.fault == LONGER) - (plan.fault == SHORTER),
              plan.fault == OTHER_GENERATION ? 8 : 7);
    unsigned char copy[SIZE];
    memcpy(copy, body, length);
    copy[length / 2] ^= plan.fault == WRONG_BYTE;
    if (plan.fault == RESET_IN_BODY || plan.fault == CLOSE_IN_BODY || plan.fault == STALL_IN_BODY)
        length /= 2;
    fault_send(conn, copy, length - (plan.fault == SHORTER));
    if (plan.fault == LONGER)
        fault_send(conn, "x", 1);
    if (plan.fault == STALL_IN_BODY)
        fault_wait(conn, LONG_TIME);
    if (plan.fault == RESET_IN_BODY || plan.fault == RESET_AFTER)
        return reset(conn);
    return plan.fault != CLOSE_IN_BODY && plan.fault != STALL_IN_BODY;
}

static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    const char *range = fault_header(request, "Range"), *wanted = fault_query(request, "generation");
    unsigned long long at = 0;
    enum op op = fault_query(request, "alt") ? GET : fault_query(request, "prefix") ? LIST : STAT;
    (void)arg;
    unsigned n = plan.asked[op]++;
    if (range)
        sscanf(range, "bytes=%llu-", &at);
    plan.resumed_at = at;
    plan.last_on_conn = request->on_conn;
    fault_wait(conn, plan.delay_ms);
    char crc[9];
    mr_crc32c_to_base64(mr_crc32c(0, object, SIZE), crc);
    uint64_t generation = op == STAT && !wanted ? plan.there : 7;
    char text[400];
    int length =
        snprintf(text, sizeof text, "%s{\"name\":\"x\",\"size\":\"%u\",\"generation\":\"%llu\",\"crc32c\":\"%s\"}%s",
                 op == LIST ? "{\"items\":[" : "", SIZE, (unsigned long long)generation, crc, op == LIST ? "]}" : "");
    const unsigned char *body = op == GET ? object + at : (const unsigned char *)text;
    size_t bytes = op == GET ? SIZE - at : (size_t)length;
    if (generation == 0) {
        fault_answer(conn, 404, "", "No such object", 14);
        return true;
    }
    if (n < plan.count && (op != STAT || wanted))
        return send_faulty(conn, at, body, bytes);
    send_head(conn, at, bytes, 7);
    fault_send(conn, body, bytes);
    return true;
}

/* ---- the client ---- */

static void open_store(unsigned stall_timeout_ms, struct mr_transfer_options options)
{
    options.retry_base_ms = options.retry_base_ms ? options.retry_base_ms : 5;
    options.retry_cap_ms = options.retry_cap_ms ? options.retry_cap_ms : 20;
    options.deadline_ms = options.deadline_ms ? options.deadline_ms : 100000;
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS,
                                                     .bucket = "bucket",
                                                     .endpoint = fault_server_host(server),
                                                     .auth = "anonymous",
                                                     .stall_timeout_ms = stall_timeout_ms,
                                                     .http = http});
    engine = mr_transfer_new(&options, http);
    ck_assert(http && store && engine);
}

static void setup(void)
{
    for (size_t i = 0; i < SIZE; i++)
        object[i] = (unsigned char)mr_mix64(i);
    memset(&plan, 0, sizeof plan);
    server = fault_server_start(handle, NULL);
}

static void teardown(void)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    fault_server_stop(server);
}

static void keep(enum mr_code code, const char *text)
{
    outcome.done++;
    outcome.result.code = code;
    snprintf(outcome.text, sizeof outcome.text, "%s", text);
}

static void on_fetch(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    outcome.result = *result;
    keep(result->code, result->text);
}

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    outcome.items = page ? page->count : 0;
    keep(result->code, result->text);
}

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    outcome.items = item && item->size == SIZE && item->generation == 7;
    keep(result->code, result->text);
}

static void start_and_wait(enum op op)
{
    struct mr_transfer_request get = {.store = store,
                                      .name = "x",
                                      .name_length = 1,
                                      .generation = 7,
                                      .size = SIZE,
                                      .length = SIZE,
                                      .crc32c = mr_crc32c(0, object, SIZE),
                                      .has_crc32c = true,
                                      .dest = dest};
    memset(&outcome, 0, sizeof outcome);
    memset(dest, 0, sizeof dest);
    struct mr_store_list_request list = {.prefix = "x"};
    if (op == GET)
        ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &get, on_fetch, NULL));
    else if (op == LIST)
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &list, on_list, NULL));
    else
        ck_assert_ptr_nonnull(mr_transfer_stat(engine, store, "x", 1, 7, on_stat, NULL));
    int64_t end = mr_clock_mono_ns() + 200 * MR_SECOND_NS;
    while (!outcome.done && mr_clock_mono_ns() < end)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_msg(outcome.done == 1, "done was called %d times", outcome.done);
}

static void check_good(enum op op)
{
    ck_assert_msg(outcome.result.code == MR_OK, "%s", outcome.text);
    if (op == GET)
        ck_assert_mem_eq(dest, object, SIZE);
    else
        ck_assert_uint_eq(outcome.items, 1);
    ck_assert_uint_eq(dest[SIZE], 0);
}

/* ---- the table ---- */

static const struct row {
    enum fault fault;
    int status;
    uint64_t there;
    enum mr_code get, list, stat; /* MR_OK: repaired by one repeat; MR_E_INTERNAL: does not apply */
    const char *text;             /* part of the get's message */
} rows[] = {
    {RESET_BEFORE, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {CLOSE_BEFORE, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {RESET_IN_HEAD, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {RESET_IN_BODY, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {CLOSE_IN_BODY, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {SILENT, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {STALL_IN_HEAD, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {STALL_IN_BODY, 0, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 408, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 429, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 500, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 502, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 503, 7, MR_OK, MR_OK, MR_OK, ""},
    {STATUS, 504, 7, MR_OK, MR_OK, MR_OK, ""},
    {WRONG_BYTE, 0, 7, MR_OK, MR_E_INTERNAL, MR_E_INTERNAL, ""},
    {STATUS, 400, 7, MR_E_USAGE, MR_E_USAGE, MR_E_USAGE, "HTTP status 400"},
    {STATUS, 401, 7, MR_E_DENIED, MR_E_DENIED, MR_E_DENIED, "permission"},
    {STATUS, 403, 7, MR_E_DENIED, MR_E_DENIED, MR_E_DENIED, "permission"},
    {STATUS, 404, 0, MR_E_NOT_FOUND, MR_E_NOT_FOUND, MR_E_NOT_FOUND, "deleted since the listing"},
    {STATUS, 404, 8, MR_E_CHANGED, MR_E_NOT_FOUND, MR_E_NOT_FOUND, "changed since the listing"},
    {STATUS, 412, 8, MR_E_CHANGED, MR_E_CHANGED, MR_E_CHANGED, "changed since the listing"},
    {STATUS, 412, 0, MR_E_NOT_FOUND, MR_E_CHANGED, MR_E_CHANGED, "deleted since the listing"},
    {STATUS, 412, 7, MR_E_CHANGED, MR_E_CHANGED, MR_E_CHANGED, "contradicts itself"},
    {STATUS, 416, 7, MR_E_CHANGED, MR_E_CHANGED, MR_E_CHANGED, "shorter"},
    {STATUS, 301, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "redirects are not followed"},
    {STATUS, 501, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "HTTP status 501"},
    {STATUS, 505, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "HTTP status 505"},
    {LONGER, 0, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "100000 bytes were expected, and 100001 came"},
    {SHORTER, 0, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "100000 bytes were expected, and 99999 came"},
    {OTHER_GENERATION, 0, 7, MR_E_CHANGED, MR_E_INTERNAL, MR_E_INTERNAL, "generation 7 was listed, 8 is there"},
    {GARBAGE, 0, 7, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "gs://bucket/x: "},
};

START_TEST(a_fault)
{
    const struct row *row = &rows[_i / OPS];
    enum op op = (enum op)(_i % OPS);
    enum mr_code expected = op == GET ? row->get : op == LIST ? row->list : row->stat;
    bool stalls = row->fault == SILENT || row->fault == STALL_IN_HEAD || row->fault == STALL_IN_BODY;
    open_store(stalls ? 300 : LONG_TIME, (struct mr_transfer_options){0});
    if (expected == MR_E_INTERNAL)
        return;
    plan.fault = row->fault;
    plan.status = row->status;
    plan.there = row->there;
    plan.count = 1;
    start_and_wait(op);
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    if (expected != MR_OK) {
        ck_assert_msg(outcome.result.code == expected, "%d: %s", outcome.result.code, outcome.text);
        ck_assert_msg(op != GET || strstr(outcome.text, row->text), "%s", outcome.text);
        ck_assert_msg(strncmp(outcome.text, "gs://bucket/x: ", 15) == 0, "%s", outcome.text);
        ck_assert_uint_eq(plan.asked[op], 1);
        ck_assert_uint_eq(c->failures, 1);
        ck_assert_uint_eq(c->retries, 0);
        return;
    }
    check_good(op);
    if (stalls) { /* on a loaded machine a good answer may seem to stall as well */
        ck_assert_uint_ge(c->stalls, 1);
        ck_assert_uint_ge(c->retries, 1);
        return;
    }
    ck_assert_uint_eq(plan.asked[op], 2);
    ck_assert_uint_eq(c->retries, 1);
    ck_assert_uint_eq(c->throttled, row->status == 429 || row->status == 503);
    ck_assert_uint_eq(c->crc_errors, row->fault == WRONG_BYTE);
    ck_assert_uint_eq(plan.resumed_at,
                      op == GET && (row->fault == RESET_IN_BODY || row->fault == CLOSE_IN_BODY) ? SIZE / 2 : 0);
    if (row->fault != STATUS)
        ck_assert_uint_eq(plan.last_on_conn, 0); /* on a new connection */
}
END_TEST

/* A good answer is good whatever happens to its connection. */
START_TEST(reset_after_the_last_byte)
{
    plan.fault = RESET_AFTER;
    plan.count = 1;
    open_store(LONG_TIME, (struct mr_transfer_options){0});
    start_and_wait((enum op)_i);
    check_good((enum op)_i);
    ck_assert_uint_eq(plan.asked[_i], 1);
    start_and_wait((enum op)_i); /* and the next request finds a connection that works */
    check_good((enum op)_i);
}
END_TEST

START_TEST(retry_after)
{
    plan.fault = STATUS;
    plan.status = _i == GET ? 503 : 429;
    plan.extra = "Retry-After: 1\r\n";
    plan.count = 1;
    open_store(LONG_TIME, (struct mr_transfer_options){0});
    int64_t start = mr_clock_mono_ns();
    start_and_wait((enum op)_i);
    check_good((enum op)_i);
    ck_assert_int_ge(mr_clock_mono_ns() - start, MR_SECOND_NS);
}
END_TEST

START_TEST(attempts_are_counted_where_they_are_limited)
{
    plan.fault = STATUS;
    plan.status = 500;
    plan.count = 1000;
    open_store(LONG_TIME, (struct mr_transfer_options){.attempts = 3});
    start_and_wait((enum op)_i);
    ck_assert_int_eq(outcome.result.code, MR_E_BUSY);
    ck_assert_uint_eq(plan.asked[_i], 3);
}
END_TEST

/* What the log says, to a file; the previous standard error comes back with show_log. */
static int saved_stderr = -1;

static void hide_log(void)
{
    int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    fflush(stderr);
    saved_stderr = dup(2);
    dup2(fd, 2);
    close(fd);
}

static void show_log(char *text, size_t size)
{
    ssize_t n = pread(2, text, size - 1, 0);
    text[n > 0 ? n : 0] = 0;
    dup2(saved_stderr, 2);
    close(saved_stderr);
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned n = 0;
    while ((text = strstr(text, part))) {
        n++;
        text += strlen(part);
    }
    return n;
}

START_TEST(egress_limits_are_told_once_and_what_to_do)
{
    static char log[8000];
    plan.fault = STATUS;
    plan.status = 429;
    plan.words = "This workload is drawing too much egress bandwidth from Cloud Storage and has exceeded the "
                 "GoogleEgressBandwidth (google_egress_bandwidth) Quota in the us-east1 region.";
    plan.count = 5;
    open_store(LONG_TIME, (struct mr_transfer_options){0});
    hide_log();
    start_and_wait(GET);
    show_log(log, sizeof log);
    check_good(GET);
    ck_assert_uint_eq(mr_transfer_counters(engine)->egress, 5);
    ck_assert_uint_eq(mr_transfer_counters(engine)->throttled, 5);
    ck_assert_msg(count_of(log, "warning") == 1, "%s", log);
    ck_assert_msg(strstr(log, "google_egress_bandwidth") && strstr(log, "[fetch] connections") &&
                      strstr(log, "Quotas & System Limits") && strstr(log, "Anywhere Cache"),
                  "%s", log);
    plan.asked[GET] = 0; /* without repeats it is the error itself that says so */
    plan.count = 1000;
    mr_transfer_destroy(engine);
    engine = mr_transfer_new(&(struct mr_transfer_options){.attempts = 1}, http);
    start_and_wait(GET);
    ck_assert_int_eq(outcome.result.code, MR_E_BUSY);
    ck_assert_ptr_nonnull(strstr(outcome.text, "Quotas & System Limits"));
}
END_TEST

/* ---- stalls ---- */

START_TEST(percentiles)
{
    static struct mr_latency latency;
    memset(&latency, 0, sizeof latency);
    for (unsigned i = 0; i < MR_LATENCY_ENOUGH; i++) {
        ck_assert_uint_eq(mr_latency_p99_ms(&latency), 0);
        mr_latency_add(&latency, i * MR_MILLISECOND_NS);
    }
    uint64_t p99 = mr_latency_p99_ms(&latency); /* 98 ms, and at most a quarter more */
    ck_assert_msg(p99 > 98 && p99 <= 98 * 5 / 4, "%llu", (unsigned long long)p99);
    for (unsigned i = 0; i < 10000; i++) /* what was forgets itself */
        mr_latency_add(&latency, 3 * MR_SECOND_NS);
    for (unsigned i = 0; i < 20000; i++)
        mr_latency_add(&latency, 2 * MR_MILLISECOND_NS);
    ck_assert_uint_eq(mr_latency_p99_ms(&latency), 3);
    static const int64_t odd[] = {-1, 0, INT64_MAX, INT64_MIN};
    for (unsigned i = 0; i < 4000; i++)
        mr_latency_add(&latency, odd[i % 4]);
    ck_assert_uint_gt(mr_latency_p99_ms(&latency), 1000000);
    for (uint64_t ms = 1; ms < 1000000; ms = ms * 9 / 8 + 1) { /* never below what was measured */
        memset(&latency, 0, sizeof latency);
        for (unsigned i = 0; i < MR_LATENCY_ENOUGH; i++)
            mr_latency_add(&latency, (int64_t)ms * MR_MILLISECOND_NS);
        p99 = mr_latency_p99_ms(&latency);
        ck_assert_msg(p99 > ms && p99 <= ms + ms / 4 + 1, "%llu: %llu", (unsigned long long)ms,
                      (unsigned long long)p99);
    }
}
END_TEST

static void learn(void)
{
    for (unsigned i = 0; i < MR_LATENCY_ENOUGH; i++) {
        start_and_wait(GET);
        check_good(GET);
    }
}

START_TEST(stalls_are_learnt)
{
    static const enum fault silences[] = {SILENT, STALL_IN_HEAD, STALL_IN_BODY};
    open_store(LONG_TIME, (struct mr_transfer_options){.stall_min_ms = 50});
    unsigned ms[2];
    mr_transfer_stall_ms(engine, store, ms);
    ck_assert_uint_eq(ms[0], LONG_TIME);
    ck_assert_uint_eq(ms[1], LONG_TIME);
    learn();
    mr_transfer_stall_ms(engine, store, ms);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_msg(ms[i] >= 50 && ms[i] < 30000, "%u ms", ms[i]);
    plan.fault = silences[_i];
    plan.asked[GET] = 0;
    plan.count = 1;
    start_and_wait(GET); /* without what was learnt it would take an hour */
    check_good(GET);
    ck_assert_uint_ge(mr_transfer_counters(engine)->stalls, 1);
}
END_TEST

/* A store that has become slow: each stall gives the same stream twice the time, and what comes then is learnt. */
START_TEST(slow_is_not_stalled_for_ever)
{
    open_store(LONG_TIME, (struct mr_transfer_options){.stall_min_ms = 150});
    learn();
    unsigned ms[2];
    mr_transfer_stall_ms(engine, store, ms);
    plan.delay_ms = ms[0] * 4;
    for (unsigned i = 0; i < 3; i++) {
        start_and_wait(GET);
        check_good(GET);
    }
    ck_assert_uint_ge(mr_transfer_counters(engine)->stalls, 1);
    unsigned before = ms[0];
    mr_transfer_stall_ms(engine, store, ms);
    ck_assert_msg(ms[0] >= before * 4, "%u ms, %u before", ms[0], before);
}
END_TEST

START_TEST(stalls_are_not_learnt_beyond_the_limit)
{
    open_store(30000, (struct mr_transfer_options){.stall_min_ms = 40000});
    learn();
    unsigned ms[2];
    mr_transfer_stall_ms(engine, store, ms);
    ck_assert_uint_eq(ms[0], 30000);
    ck_assert_uint_eq(ms[1], 30000);
}
END_TEST

/* The process was stopped: what came meanwhile is read before anything counts as stalled. */
START_TEST(a_pause_of_ours_is_no_stall)
{
    struct mr_transfer_request get = {
        .store = store, .name = "x", .name_length = 1, .generation = 7, .size = SIZE, .length = SIZE, .dest = dest};
    open_store(1000, (struct mr_transfer_options){0});
    get.store = store;
    plan.delay_ms = 100;
    memset(&outcome, 0, sizeof outcome);
    ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &get, on_fetch, NULL));
    while (plan.asked[GET] == 0)
        mr_http_step(http, 5, -1);
    usleep(1500 * 1000);
    while (!outcome.done)
        mr_http_step(http, 1000, -1);
    check_good(GET);
    ck_assert_uint_eq(mr_transfer_counters(engine)->stalls, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_faults");
    TCase *tc = tcase_create("faults");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, a_fault, 0, (int)(sizeof rows / sizeof *rows) * OPS);
    tcase_add_loop_test(tc, reset_after_the_last_byte, 0, OPS);
    tcase_add_loop_test(tc, retry_after, 0, OPS);
    tcase_add_loop_test(tc, attempts_are_counted_where_they_are_limited, 0, OPS);
    tcase_add_test(tc, egress_limits_are_told_once_and_what_to_do);
    tcase_add_test(tc, percentiles);
    tcase_add_loop_test(tc, stalls_are_learnt, 0, 3);
    tcase_add_test(tc, slow_is_not_stalled_for_ever);
    tcase_add_test(tc, stalls_are_not_learnt_beyond_the_limit);
    tcase_add_test(tc, a_pause_of_ours_is_no_stall);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
