/* test_receive.c - answers over connections of our own (http_receive.c): whole and byte by byte, odd, cut and wrong ones. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fault_server.h"
#include "tests/unit/suite.h"
#include "worker/store/http.h"

#define BIG 300000u

static struct fault_server *server;
static struct mr_http *http;
static unsigned char there[BIG], pattern[BIG]; /* where bodies belong */
static unsigned requests;

static struct {
    int done;
    enum mr_code code;
    char text[512];
    int status;
    size_t got, in_place, most; /* in_place: came where they belong; most: more is not wanted */
} seen;

struct row {
    const char *answer;
    bool closes; /* the server, after it */
    enum mr_code code;
    const char *body; /* or what the text says, where the code is not OK */
    bool kept;        /* the connection is used again */
};

static const struct row rows[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, MR_OK, "hello", true},
    {"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", false, MR_OK, "hello", true},
    {"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello", false, MR_OK, "hello", true},
    {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, MR_OK, "", true},
    {"HTTP/1.1 200 OK\r\nX-A: b\r\n c: d\r\n\te: f\r\nContent-Length: 5\r\n\r\nhello", false, MR_OK, "hello", true},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
     "5\r\n\r\nhello",
     false, MR_OK, "hello", true},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", false, MR_OK, "hello",
     true},
    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: "
     "Chunked\r\n\r\n0000A;a=\"b\"\r\nhellohello\r\n00\r\nX: y\r\n"
     "Z: 1\r\n\r\n",
     false, MR_OK, "hellohello", true},
    {"HTTP/1.1 204 No\r\n\r\n", false, MR_OK, "", true},
    {"HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n", false, MR_OK, "", true},
    {"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", false, MR_OK, "", true},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 408 Slow\r\n\r\n", false, MR_OK, "hello", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", false, MR_OK, "hello", false},
    {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, MR_OK, "hello", false},
    {"HTTP/1.1 200 OK\r\n\r\nhello", true, MR_OK, "hello", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", true, MR_E_NET, "with 2 bytes of the answer still to come",
     false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", true, MR_E_NET, "within the answer", false},
    {"HTTP/1.1 200 OK\r\nContent-Len", true, MR_E_NET, "within the head", false},
    {"", true, MR_E_NET, "before an answer came", false},
    {"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n", true, MR_E_NET, "within the head", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello", false, MR_E_PROTOCOL, "not a number", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: br\r\n\r\nhello", false, MR_E_PROTOCOL, "Transfer-Encoding", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello", false, MR_E_PROTOCOL, "no length", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", false, MR_E_PROTOCOL, "no length", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n;a\r\n", false, MR_E_PROTOCOL, "no length", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", false, MR_E_PROTOCOL, "no length",
     false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false, MR_E_PROTOCOL, "Transfer-Encoding",
     false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", false, MR_E_PROTOCOL, "two lengths",
     false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nHTTP/1.1 200 OK\r\n\r\nhello", false, MR_E_PROTOCOL, "within the head",
     false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", false, MR_OK, "hello", true},
    {"HTTP/1.1 101 Switching\r\n\r\n", false, MR_E_PROTOCOL, "changes the protocol", false},
    {"HTTP/2 200 OK\r\n\r\n", false, MR_E_PROTOCOL, "not HTTP/1", false},
    {"SSH-2.0-OpenSSH_9.2", false, MR_E_PROTOCOL, "not HTTP/1", false},
    {"HTTP/1.1 \r\nContent-Length: 5\r\n\r\nhello", false, MR_E_PROTOCOL, "not HTTP/1", false},
};
#define ROWS ((int)(sizeof rows / sizeof rows[0]))

static const char *then; /* is asked for by the callback; NULL */

static void start(const char *path, size_t most);

static void on_done(void *arg, const struct mr_http_result *result)
{
    const char *next = then;
    (void)arg;
    then = NULL;
    if (next) {
        ck_assert_int_eq(result->code, MR_OK);
        start(next, 0);
        return;
    }
    seen.done++;
    seen.code = result->code;
    seen.status = result->status;
    snprintf(seen.text, sizeof seen.text, "%s", result->text);
}

static void *room(void *arg, size_t *length)
{
    (void)arg;
    *length = sizeof there - seen.got;
    return *length > 0 ? there + seen.got : NULL;
}

static int sink(void *arg, const struct mr_http_call *call, const void *data, size_t length)
{
    (void)arg, (void)call;
    ck_assert_uint_le(length, sizeof there - seen.got);
    if (data == there + seen.got)
        seen.in_place += length;
    else
        memcpy(there + seen.got, data, length);
    seen.got += length;
    return seen.most > 0 && seen.got >= seen.most;
}

/* "/ROW", "/ROW/slowly" */
static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    requests++;
    if (strcmp(request->target, "/big") == 0) {
        fault_answer(conn, 200, "", (const char *)pattern, sizeof pattern);
        return true;
    }
    if (strcmp(request->target, "/stray") == 0) {
        char all[8300]; /* in one piece: what comes later is the next one's, for every client */
        int n = snprintf(all, sizeof all, "HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n%08000d\r\n", 0);
        fault_send(conn, all, (size_t)n);
        return true;
    }
    if (strcmp(request->target, "/long-head") == 0) {
        fault_printf(conn, "HTTP/1.1 200 OK\r\n");
        for (unsigned i = 0; i < 3000; i++)
            fault_printf(conn, "X-%u: %0100u\r\n", i, i);
        return false;
    }
    if (strcmp(request->target, "/once") == 0 && request->on_conn > 0)
        return false;
    unsigned long row = strtoul(request->target + 1, NULL, 10);
    if (row >= (unsigned long)ROWS || strcmp(request->target, "/once") == 0) {
        fault_answer(conn, 200, "", "fine", 4);
        return true;
    }
    size_t length = strlen(rows[row].answer), step = strstr(request->target, "slowly") ? 1 : length + 1;
    for (size_t at = 0; at < length; at += step)
        fault_send(conn, rows[row].answer + at, step < length - at ? step : length - at);
    return !rows[row].closes;
}

static void setup(void)
{
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (unsigned char)(i * 7 >> 3);
    server = fault_server_start(handle, NULL);
    http = mr_http_new(&(struct mr_http_options){.proxy = "", .connect_timeout_ms = 60000});
    ck_assert_ptr_nonnull(http);
}

static void teardown(void)
{
    mr_http_destroy(http);
    fault_server_stop(server);
}

static void start(const char *path, size_t most)
{
    char url[100];
    snprintf(url, sizeof url, "http://%s%s", fault_server_host(server), path);
    memset(&seen, 0, sizeof seen);
    memset(there, 0, sizeof there);
    seen.most = most;
    struct mr_http_request request = {
        .method = "GET", .url = url, .sink = sink, .room = room, .done = on_done, .stall_timeout_ms = 60000};
    ck_assert_ptr_nonnull(mr_http_start(http, &request));
}

static void get(const char *path, size_t most)
{
    start(path, most);
    while (!seen.done)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_int_eq(seen.done, 1);
}

START_TEST(an_answer)
{
    const struct row *row = &rows[_i / 2];
    char path[40];
    if (_i % 2 && strstr(row->answer, "408"))
        return; /* bytes behind an answer that come later are the next one's */
    snprintf(path, sizeof path, "/%d%s", _i / 2, _i % 2 ? "/slowly" : "");
    get(path, 0);
    ck_assert_msg(seen.code == row->code, "%s: %d, %s", row->answer, (int)seen.code, seen.text);
    if (row->code == MR_OK)
        ck_assert_msg(strcmp((const char *)there, row->body) == 0, "%s: %s", row->answer, there);
    else
        ck_assert_msg(strstr(seen.text, row->body), "%s: %s", row->answer, seen.text);
    get("/9999", 0);
    ck_assert_str_eq((const char *)there, "fine");
    ck_assert_msg(fault_server_connections(server) == (row->kept ? 1u : 2u), "%s", row->answer);
}
END_TEST

START_TEST(a_body_is_read_where_it_belongs)
{
    get("/big", 0);
    ck_assert_int_eq(seen.code, MR_OK);
    ck_assert_uint_eq(seen.got, sizeof pattern);
    ck_assert_int_eq(memcmp(there, pattern, sizeof pattern), 0);
    ck_assert_uint_ge(seen.in_place, sizeof pattern - 4096);
    get("/big", 1000); /* that is enough: the connection is of no use, as the rest would come on it */
    ck_assert_int_eq(seen.code, MR_OK);
    ck_assert_uint_ge(seen.got, 1000);
    ck_assert_uint_eq(fault_server_connections(server), 1);
    get("/9999", 0);
    ck_assert_uint_eq(fault_server_connections(server), 2);
}
END_TEST

START_TEST(bytes_behind_an_answer_are_nobody_s)
{
    for (int i = 0; i < 50; i++) {
        then = "/9999";
        get("/stray", 0);
        ck_assert_msg(seen.code == MR_OK && strcmp((const char *)there, "fine") == 0, "%s", seen.text);
    }
}
END_TEST

START_TEST(a_head_without_end)
{
    get("/long-head", 0);
    ck_assert_int_eq(seen.code, MR_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(seen.text, "longer than 128 KiB"));
}
END_TEST

/* A server that closes an idle connection just when it is used again is asked once more; one that never answers is not. */
START_TEST(a_connection_that_has_died_idle)
{
    get("/once", 0);
    get("/once", 0);
    ck_assert_int_eq(seen.code, MR_OK);
    ck_assert_str_eq((const char *)there, "fine");
    ck_assert_uint_eq(requests, 3);
    requests = 0;
    get("/18", 0);
    ck_assert_int_eq(seen.code, MR_E_NET);
    ck_assert_uint_eq(requests, 2);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("receive");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, an_answer, 0, 2 * ROWS);
    tcase_add_test(tc, a_body_is_read_where_it_belongs);
    tcase_add_test(tc, bytes_behind_an_answer_are_nobody_s);
    tcase_add_test(tc, a_head_without_end);
    tcase_add_test(tc, a_connection_that_has_died_idle);
    return mr_suite_run("receive", tc);
}
