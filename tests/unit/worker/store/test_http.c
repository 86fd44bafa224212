/* test_http.c - the HTTP loop: bodies, headers, connections, time-outs, cancels, timers. */
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault_server.h"
#include "worker/store/headers.h"
#include "worker/store/http.h"

static struct fault_server *server;
static struct mr_http *http;
static _Atomic bool endless_over;
static bool own; /* GETs go over connections of our own: http_line.c */
static char last_head[8192], last_target[8192], last_body[4096], last_method[16];

/* What one call ended with. */
struct seen {
    int done;
    enum mr_code code;
    char text[512];
    int status;
    struct mr_http_headers headers;
    char body[1 << 16];
    size_t body_length;
    size_t sunk, sink_limit;
};

static void on_done(void *arg, const struct mr_http_result *result)
{
    struct seen *seen = arg;
    seen->done++;
    seen->code = result->code;
    snprintf(seen->text, sizeof seen->text, "%s", result->text);
    seen->status = result->status;
    seen->headers = result->headers;
    if (result->body_length > 0 || seen->sunk > 0)
        seen->body_length = result->body_length;
    memcpy(seen->body, result->body, result->body_length < sizeof seen->body ? result->body_length : 0);
}

static void *room(void *arg, size_t *length)
{
    struct seen *seen = arg;
    *length = sizeof seen->body - 1 - seen->body_length;
    return *length > 0 ? seen->body + seen->body_length : NULL;
}

static int keep(void *arg, const struct mr_http_call *call, const void *data, size_t length)
{
    struct seen *seen = arg;
    (void)call;
    ck_assert_uint_lt(seen->body_length + length, sizeof seen->body);
    memmove(seen->body + seen->body_length, data, length);
    seen->body_length += length;
    return 0;
}

static int on_sink(void *arg, const struct mr_http_call *call, const void *data, size_t length)
{
    struct seen *seen = arg;
    (void)data;
    ck_assert_int_eq(mr_http_call_status(call) / 100, 2);
    seen->sunk += length;
    if (seen->sink_limit && seen->sunk > seen->sink_limit) {
        mr_error_set(MR_E_CORRUPT, "the sink is full");
        return -1;
    }
    return 0;
}

static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    static const char big[100000];
    (void)arg;
    const char *path = request->target;
    if (strcmp(path, "/stall") == 0) {
        fault_printf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        fault_wait(conn, 20000);
        return false;
    }
    if (strcmp(path, "/drip") == 0) { /* always a byte, never an end */
        fault_printf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
        for (int i = 0; i < 100; i++) {
            fault_send(conn, "x", 1);
            fault_wait(conn, 20);
        }
        return false;
    }
    if (strcmp(path, "/silent") == 0) {
        fault_wait(conn, 20000);
        return false;
    }
    if (strncmp(path, "/endless-", 9) == 0) {
        bool body = strcmp(path, "/endless-error") == 0;
        const char *piece =
            strcmp(path, "/endless-head") == 0 ? "X-More: and more\r\n" : "HTTP/1.1 100 Continue\r\n\r\n";
        if (body || strcmp(path, "/endless-head") == 0)
            fault_printf(conn, "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\n%s", body ? "\r\n" : "");
        while (!endless_over) {
            fault_send(conn, body ? big : piece, body ? 5000 : strlen(piece));
            fault_wait(conn, 20);
        }
        return false;
    }
    if (strcmp(path, "/short") == 0) {
        fault_printf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        return false;
    }
    if (strcmp(path, "/reset") == 0) {
        fault_reset(conn);
        return false;
    }
    if (strcmp(path, "/garbage") == 0) {
        fault_printf(conn, "this is not HTTP at all\r\n\r\n");
        return false;
    }
    if (strcmp(path, "/big") == 0) {
        fault_answer(conn, 200, "", big, sizeof big);
        return true;
    }
    if (strcmp(path, "/bigerror") == 0) {
        fault_answer(conn, 500, "", big, sizeof big);
        return true;
    }
    if (strcmp(path, "/chunked") == 0) {
        fault_printf(conn,
                     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
        return true;
    }
    if (strcmp(path, "/gzip") == 0) {
        fault_answer(conn, 200, "Content-Encoding: gzip\r\n", "\x1f\x8bnot really", 12);
        return true;
    }
    if (strcmp(path, "/folded") == 0) {
        fault_printf(conn, "HTTP/1.1 200 OK\r\n and more of a line that was not there\r\nContent-Length: 0\r\n\r\n");
        return true;
    }
    if (strcmp(path, "/drop-second") == 0 && request->on_conn > 0)
        return false; /* an idle connection that the server closes just as it is used again */
    if (strcmp(path, "/continue") == 0) {
        fault_printf(conn, "HTTP/1.1 100 Continue\r\nRetry-After: 9\r\n\r\n");
        fault_answer(conn, 200, "", "ok", 2);
        return true;
    }
    snprintf(last_head, sizeof last_head, "%s", request->head);
    snprintf(last_target, sizeof last_target, "%s", request->target);
    snprintf(last_method, sizeof last_method, "%s", request->method);
    memcpy(last_body, request->body, sizeof last_body);
    fault_answer(conn, 200,
                 "ETag: \"e1\"\r\nX-Goog-Generation: 42\r\nx-goog-hash: md5=AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                 "X-GOOG-HASH: crc32c=4waSgw==\r\nx-goog-stored-content-length: 2\r\n",
                 "ok", 2);
    return true;
}

static void setup_http(void)
{
    static const char *const headers[] = {"X-Every: time"};
    struct mr_http_options options = {.proxy = "", .headers = headers, .header_count = 1, .connect_timeout_ms = 60000};
    server = fault_server_start(handle, NULL);
    http = mr_http_new(&options);
    ck_assert_ptr_nonnull(http);
}

static void setup(void)
{
    own = false;
    setup_http();
}

static void setup_own(void)
{
    own = true;
    setup_http();
}

static void teardown(void)
{
    mr_http_destroy(http);
    fault_server_stop(server);
}

static struct mr_http_call *start(struct seen *seen, const char *path, struct mr_http_request request)
{
    char url[300];
    snprintf(url, sizeof url, "http://%s%s", fault_server_host(server), path);
    memset(seen, 0, sizeof *seen);
    request.url = url;
    request.method = request.method ? request.method : "GET";
    request.done = on_done;
    request.arg = seen;
    if (own && strcmp(request.method, "GET") == 0 && request.collect_max == 0) {
        request.sink = request.sink ? request.sink : keep;
        request.room = room;
    }
    struct mr_http_call *call = mr_http_start(http, &request);
    ck_assert_ptr_nonnull(call);
    return call;
}

static void run_until(const int *done)
{
    int64_t end = mr_clock_mono_ns() + 100 * MR_SECOND_NS;
    while (!*done && mr_clock_mono_ns() < end)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_msg(*done == 1, "done was called %d times", *done);
}

static struct seen *get(const char *path)
{
    static struct seen seen;
    start(&seen, path, (struct mr_http_request){.stall_timeout_ms = 10000});
    run_until(&seen.done);
    return &seen;
}

START_TEST(answers_with_headers)
{
    struct seen *seen = get("/x?y=%2F");
    ck_assert_int_eq(seen->code, MR_OK);
    ck_assert_int_eq(seen->status, 200);
    ck_assert_str_eq(seen->body, "ok");
    ck_assert_str_eq(seen->headers.etag, "\"e1\"");
    ck_assert_uint_eq(seen->headers.generation, 42);
    ck_assert(seen->headers.checksum.kind == MR_CHECKSUM_CRC32C && seen->headers.checksum.value == 0xe3069283u);
    ck_assert(seen->headers.has_content_length && seen->headers.content_length == 2);
    ck_assert_str_eq(last_target, "/x?y=%2F");
    ck_assert_ptr_nonnull(strstr(last_head, "Accept-Encoding: gzip\r\n"));
    ck_assert_ptr_nonnull(strstr(last_head, "X-Every: time\r\n"));
    ck_assert_ptr_null(strstr(last_head, "Range:"));
}
END_TEST

START_TEST(requests_differ_and_share_a_connection)
{
    static struct seen seen;
    static const char *const two[] = {"X-One: 1", "X-Two: 2"};
    struct mr_http_request range = {
        .has_range = true, .range_first = 5, .range_last = 7, .headers = two, .header_count = 2};
    start(&seen, "/r", range);
    run_until(&seen.done);
    ck_assert_ptr_nonnull(strstr(last_head, "Range: bytes=5-7\r\n"));
    ck_assert_ptr_nonnull(strstr(last_head, "X-Two: 2\r\nAccept-Encoding: gzip\r\n"));
    struct mr_http_piece payload = {"payload", 7};
    start(&seen, "/p", (struct mr_http_request){.method = "POST", .body = &payload, .body_count = 1});
    run_until(&seen.done);
    ck_assert_str_eq(last_method, "POST");
    ck_assert_str_eq(last_body, "payload");
    ck_assert_ptr_null(strstr(last_head, "Range:"));
    ck_assert_ptr_null(strstr(last_head, "X-One:"));
    ck_assert_ptr_nonnull(strstr(last_head, "X-Every: time\r\n"));
    start(&seen, "/plain", (struct mr_http_request){.plain = true, .headers = two, .header_count = 2});
    run_until(&seen.done);
    ck_assert_ptr_nonnull(strstr(last_head, "X-Two: 2\r\nAccept-Encoding: gzip\r\n"));
    ck_assert_ptr_null(strstr(last_head, "X-Every:"));
    start(&seen, "/d", (struct mr_http_request){.method = "DELETE"});
    run_until(&seen.done);
    ck_assert_ptr_nonnull(strstr(last_head, "X-Every: time\r\n"));
    ck_assert_str_eq(last_method, "DELETE");
    ck_assert_str_eq(last_body, "");
    get("/g");
    ck_assert_str_eq(last_method, "GET");
    /* own: those of libcurl are another kind; else the one that the plain request had was closed after it. */
    ck_assert_uint_eq(fault_server_connections(server), 2);
    start(&seen, "/f", (struct mr_http_request){.fresh_connection = true});
    run_until(&seen.done);
    ck_assert_uint_eq(fault_server_connections(server), 3);
}
END_TEST

START_TEST(bodies_of_all_kinds)
{
    static struct seen seen;
    struct seen *one = get("/chunked");
    ck_assert_str_eq(one->body, "hello world");
    ck_assert(!one->headers.has_content_length);
    one = get("/gzip"); /* as it is stored, not decoded */
    ck_assert_uint_eq(one->body_length, 12);
    one = get("/continue");
    ck_assert_str_eq(one->body, "ok");
    ck_assert_uint_eq(one->headers.retry_after_ms, 0);
    start(&seen, "/big", (struct mr_http_request){.sink = on_sink});
    run_until(&seen.done);
    ck_assert_uint_eq(seen.sunk, 100000);
    ck_assert_uint_eq(seen.body_length, 0);
    start(&seen, "/big", (struct mr_http_request){.collect_max = 99999});
    run_until(&seen.done);
    ck_assert_int_eq(seen.code, MR_E_PROTOCOL);
    start(&seen, "/bigerror", (struct mr_http_request){.sink = on_sink});
    run_until(&seen.done);
    ck_assert_int_eq(seen.code, MR_OK);
    ck_assert_int_eq(seen.status, 500);
    ck_assert_uint_eq(seen.sunk, 0);
    ck_assert_uint_eq(seen.body_length, 16384);
}
END_TEST

START_TEST(a_sink_can_stop_a_transfer)
{
    static struct seen seen;
    struct mr_http_request request = {.sink = on_sink, .done = on_done, .method = "GET", .arg = &seen};
    char url[300];
    snprintf(url, sizeof url, "http://%s/big", fault_server_host(server));
    memset(&seen, 0, sizeof seen);
    seen.sink_limit = 1000;
    request.url = url;
    request.room = own ? room : NULL;
    ck_assert_ptr_nonnull(mr_http_start(http, &request));
    run_until(&seen.done);
    ck_assert_int_eq(seen.code, MR_E_CORRUPT);
    ck_assert_str_eq(seen.text, "the sink is full");
}
END_TEST

START_TEST(broken_answers)
{
    struct seen *seen = get("/short");
    ck_assert_int_eq(seen->code, MR_E_NET);
    seen = get("/reset");
    ck_assert_int_eq(seen->code, MR_E_NET);
    ck_assert(seen->text[0] != 0);
    seen = get("/garbage");
    ck_assert_int_eq(seen->code, MR_E_PROTOCOL);
    seen = get("/drop-second");
    ck_assert_int_eq(seen->code, MR_OK);
    seen = get("/drop-second"); /* libcurl repeats it by itself on a new connection */
    ck_assert_int_eq(seen->code, MR_OK);
}
END_TEST

START_TEST(refused_connection)
{
    static struct seen seen;
    struct mr_http_request request = {.method = "GET", .url = "http://127.0.0.1:1/x", .done = on_done, .arg = &seen};
    request.sink = own ? keep : NULL;
    request.room = own ? room : NULL;
    memset(&seen, 0, sizeof seen);
    ck_assert_ptr_nonnull(mr_http_start(http, &request));
    run_until(&seen.done);
    ck_assert_int_eq(seen.code, MR_E_NET);
    ck_assert_int_eq(seen.status, 0);
}
END_TEST

START_TEST(no_descriptor_for_a_connection)
{
    static struct seen seen;
    int spare = dup(0);
    struct rlimit before, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){(rlim_t)spare, before.rlim_max};
    close(spare);
    start(&seen, "/x", (struct mr_http_request){0});
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    run_until(&seen.done);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(seen.code, MR_E_NET); /* it may be better later */
    ck_assert_msg(strstr(seen.text, "Too many open files") && strstr(seen.text, "ulimit -n"), "%s", seen.text);
}
END_TEST

START_TEST(stalls_end)
{
    static struct seen stall, silent, fine, drip, alive;
    start(&alive, "/drip", (struct mr_http_request){.stall_timeout_ms = 1000, .drip_ms = 100000});
    start(&drip, "/drip", (struct mr_http_request){.stall_timeout_ms = 150, .sink = on_sink});
    /* Its three bytes have to come before, on a busy machine too. */
    start(&stall, "/stall", (struct mr_http_request){.stall_timeout_ms = 2000, .sink = on_sink});
    start(&silent, "/silent", (struct mr_http_request){.stall_timeout_ms = 150});
    start(&fine, "/fine", (struct mr_http_request){.stall_timeout_ms = 10000});
    run_until(&fine.done);
    run_until(&stall.done);
    run_until(&silent.done);
    run_until(&drip.done);
    run_until(&alive.done);
    ck_assert_int_eq(fine.code, MR_OK);
    ck_assert_int_eq(stall.code, MR_E_TIMEOUT);
    ck_assert_int_eq(silent.code, MR_E_TIMEOUT);
    ck_assert_uint_eq(stall.sunk, 3);
    ck_assert_ptr_nonnull(strstr(stall.text, "stalled"));
    ck_assert_int_eq(drip.code, MR_E_TIMEOUT);
    ck_assert_uint_lt(drip.sunk, 100);
    ck_assert_msg(alive.code == MR_OK, "%s", alive.text);
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
}
END_TEST

/* It moves all the time, and never ends. */
START_TEST(answers_without_end)
{
    static const char *const paths[] = {"/endless-error", "/endless-head", "/endless-continue"};
    static struct seen seen[3];
    for (int i = 0; i < 3; i++) /* the first one has to answer before, on a busy machine too */
        start(&seen[i], paths[i], (struct mr_http_request){.stall_timeout_ms = 2000, .sink = on_sink});
    for (int i = 0; i < 3; i++)
        run_until(&seen[i].done);
    endless_over = true;
    ck_assert_int_eq(seen[0].code, MR_OK); /* its status and its first bytes say enough */
    ck_assert_int_eq(seen[0].status, 503);
    ck_assert_uint_eq(seen[0].headers.retry_after_ms, 1000);
    ck_assert_uint_eq(seen[0].body_length, 16384);
    ck_assert_int_eq(seen[1].code, MR_E_TIMEOUT);
    ck_assert_int_eq(seen[2].code, MR_E_TIMEOUT);
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
}
END_TEST

/* libcurl 7.88 continued the last line of the handle's answer before, in memory that it had freed: the address sanitizer
 * saw it. */
START_TEST(a_folded_first_header_line)
{
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(get("/")->code, MR_OK);
        const struct seen *seen = get("/folded"); /* a later libcurl may refuse it */
        ck_assert(seen->code == MR_OK ? seen->status == 200 : seen->text[0] != '\0');
    }
}
END_TEST

START_TEST(cancelled_calls_are_silent)
{
    static struct seen gone[8], seen;
    for (int i = 0; i < 8; i++) {
        struct mr_http_call *call = start(&gone[i], i % 2 ? "/stall" : "/silent", (struct mr_http_request){0});
        for (int step = 0; step < i; step++)
            ck_assert_int_ge(mr_http_step(http, 5, -1), 0);
        mr_http_cancel(http, call);
    }
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
    start(&seen, "/after", (struct mr_http_request){0});
    run_until(&seen.done);
    ck_assert_int_eq(seen.code, MR_OK);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(gone[i].done, 0);
    start(&gone[0], "/silent", (struct mr_http_request){0}); /* destroyed in flight */
    mr_http_step(http, 5, -1);
}
END_TEST

static struct seen chain;
static int chain_left;

static void on_chain(void *arg, const struct mr_http_result *result);

static void start_chain(void)
{
    char url[300];
    snprintf(url, sizeof url, "http://%s/chain", fault_server_host(server));
    struct mr_http_request request = {.method = "GET",
                                      .url = url,
                                      .done = on_chain,
                                      .arg = &chain,
                                      .sink = own ? keep : NULL,
                                      .room = own ? room : NULL};
    ck_assert_ptr_nonnull(mr_http_start(http, &request));
}

static void on_chain(void *arg, const struct mr_http_result *result)
{
    ck_assert_int_eq(result->status, 200);
    (void)arg;
    if (--chain_left > 0)
        start_chain();
    else
        chain.done = 1;
}

START_TEST(callbacks_start_the_next_requests)
{
    chain_left = 200;
    for (int i = 0; i < 4; i++)
        start_chain();
    while (mr_http_in_flight(http) > 0)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_int_eq(chain.done, 1);
    ck_assert_uint_le(fault_server_connections(server), 4);
}
END_TEST

static unsigned ticks;

static void on_tick(struct mr_http_timer *timer)
{
    if (++ticks < 3)
        mr_http_timer_set(http, timer, 0);
}

START_TEST(timers_and_the_extra_descriptor)
{
    struct mr_http_timer again = {.run = on_tick}, later = {.run = on_tick}, never = {.run = on_tick};
    int fd = eventfd(0, EFD_NONBLOCK);
    ticks = 0;
    mr_http_timer_set(http, &again, 0);
    mr_http_timer_set(http, &never, mr_clock_mono_ns() + 30 * MR_MILLISECOND_NS);
    mr_http_timer_set(http, &later, mr_clock_mono_ns() + 20 * MR_MILLISECOND_NS);
    mr_http_timer_stop(http, &never);
    ck_assert_int_eq(mr_http_step(http, 0, fd), 0);
    ck_assert_int_eq(mr_http_step(http, 0, fd), 0);
    ck_assert_uint_ge(ticks, 2);
    while (ticks < 4)
        ck_assert_int_eq(mr_http_step(http, 10000, fd), 0);
    ck_assert_uint_eq(ticks, 4);
    eventfd_write(fd, 1);
    ck_assert_int_eq(mr_http_step(http, 10000, fd), 1); /* level-triggered, and left unread */
    ck_assert_int_eq(mr_http_step(http, 10000, fd), 1);
    ck_assert_int_eq(mr_http_step(http, 0, -1), 0);
    close(fd);
    ck_assert_int_eq(mr_http_step(http, 0, -1), 0);
}
END_TEST

START_TEST(bad_options)
{
    static const char *const lines[] = {"no colon", ": no name", "A: b\r\nC: d", "range: bytes=0-1",
                                        "Accept-Encoding:"};
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct mr_http_options options = {.headers = &lines[i], .header_count = 1};
        ck_assert_ptr_null(mr_http_new(&options));
        ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    }
    ck_assert_ptr_null(mr_http_new(&(struct mr_http_options){.ca_bundle = "/nowhere/ca.pem"}));
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
}
END_TEST

static struct mr_http_headers parse(const char *line)
{
    struct mr_http_headers headers = {0};
    mr_http_headers_line(&headers, line, strlen(line));
    return headers;
}

START_TEST(header_lines)
{
    static const char *const bad_ranges[] = {
        "Content-Range: bytes 5-4/9", "Content-Range: bytes 5-9/9",
        "Content-Range: bytes -4/9",  "Content-Range: bytes 1-4/9x",
        "Content-Range: bytes 1-4",   "Content-Range: bytes */9",
        "Content-Range: lines 1-4/9", "Content-Range: bytes 1-99999999999999999999/*",
        "Content-Range: bytes 1-4/",  "Content-Range:"};
    struct mr_http_headers h = parse("content-range: bytes 3-7/10\r\n");
    ck_assert(h.has_content_range && h.range_first == 3 && h.range_last == 7 && h.range_total == 10);
    h = parse("Content-Range: bytes 0-0/*");
    ck_assert(h.has_content_range && h.range_total == UINT64_MAX);
    for (size_t i = 0; i < sizeof bad_ranges / sizeof *bad_ranges; i++)
        ck_assert_msg(!parse(bad_ranges[i]).has_content_range, "%s", bad_ranges[i]);
    h = parse("x-goog-hash: crc32c=4waSgw==,md5=x");
    ck_assert(h.checksum.kind == MR_CHECKSUM_CRC32C && h.checksum.value == 0xe3069283u);
    ck_assert(!parse("x-goog-hash: md5=4waSgw==,crc32c=short").checksum.kind);
    ck_assert(parse("x-goog-hash: md5=4waSgw==, crc32c=4waSgw==").checksum.kind == MR_CHECKSUM_CRC32C);
    ck_assert(!parse("Content-Length: 18446744073709551616").has_content_length);
    ck_assert(!parse("Content-Length: -1").has_content_length);
    ck_assert(!parse("Content-Length: 1 2").has_content_length);
    ck_assert_uint_eq(parse("Content-Length: 18446744073709551615").content_length, UINT64_MAX);
    ck_assert_uint_eq(parse("Retry-After: 3\r\n").retry_after_ms, 3000);
    ck_assert_uint_eq(parse("Retry-After: 99999999").retry_after_ms, 3600000);
    ck_assert_uint_eq(parse("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT").retry_after_ms, 0);
    ck_assert_uint_gt(parse("Retry-After: Wed, 21 Oct 2195 07:28:00 GMT").retry_after_ms, 0);
    static const char *const by_the_server[] = {"Date: Wed, 21 Oct 2015 07:27:55 GMT",
                                                "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"};
    for (unsigned i = 0; i < 2; i++) {
        h = parse(by_the_server[i]);
        mr_http_headers_line(&h, by_the_server[1 - i], strlen(by_the_server[1 - i]));
        ck_assert_uint_eq(h.retry_after_ms, 5000);
    }
    ck_assert(parse("x-guploader-response-body-transformations: gunzipped").gunzipped);
    ck_assert(parse("content-encoding: GZIP\r\n").gzip && parse("Content-Encoding: aws-chunked, gzip").gzip);
    ck_assert(parse("x-goog-stored-content-encoding: gzip").gzip && parse("Content-Encoding:x-gzip ").gzip);
    ck_assert(!parse("x-goog-stored-content-encoding: identity").gzip && !parse("Content-Encoding: gzip, br").gzip);
    ck_assert(!parse("Content-Encoding:").gzip && !parse("Content-Encoding: ,").gzip && !parse("Encoding: gzip").gzip);
    ck_assert_int_eq(mr_http_headers_status("HTTP/1.1 206 Partial", 20), 206);
    ck_assert_int_eq(mr_http_headers_status("HTTP/1.1 20", 11), 0);
    ck_assert_int_eq(mr_http_headers_status("HTTP/1.1 99999999999999999999999", 32), 0);
    ck_assert_int_eq(mr_http_headers_status("HTTP/1.1xxxxxxxxxx", 18), 0);
}
END_TEST

static void add_case(Suite *suite, const char *name, SFun set_up)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, set_up, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, answers_with_headers);
    tcase_add_test(tc, requests_differ_and_share_a_connection);
    tcase_add_test(tc, bodies_of_all_kinds);
    tcase_add_test(tc, a_sink_can_stop_a_transfer);
    tcase_add_test(tc, broken_answers);
    tcase_add_test(tc, refused_connection);
    tcase_add_test(tc, no_descriptor_for_a_connection);
    tcase_add_test(tc, stalls_end);
    tcase_add_test(tc, answers_without_end);
    tcase_add_test(tc, a_folded_first_header_line);
    tcase_add_test(tc, cancelled_calls_are_silent);
    tcase_add_test(tc, callbacks_start_the_next_requests);
    suite_add_tcase(suite, tc);
}

int main(void)
{
    Suite *suite = suite_create("store_http");
    add_case(suite, "libcurl", setup);
    add_case(suite, "own", setup_own);
    TCase *loop = tcase_create("loop");
    tcase_add_checked_fixture(loop, setup, teardown);
    tcase_add_test(loop, timers_and_the_extra_descriptor);
    suite_add_tcase(suite, loop);
    TCase *plain = tcase_create("plain");
    tcase_add_test(plain, bad_options);
    tcase_add_test(plain, header_lines);
    suite_add_tcase(suite, plain);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
