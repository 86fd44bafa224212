/* test_transfer.c - the transfer engine against a server that does everything wrong, one thing at a time. */
#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "fault_gcs.h"
#include "worker/store/transfer.h"

#define SIZE 300000u

static unsigned char data[4 << 20];
static unsigned char dest[(4 << 20) + 1];
static struct fault_gcs gcs;
static struct fault_server *server;
static struct mr_http *http;
static struct mr_store *store;
static struct mr_transfer_engine *engine;

static struct outcome {
    int done;
    enum mr_code code;
    char text[1200];
    struct mr_transfer_result result;
} last;

static void on_done(void *arg, const struct mr_transfer_result *result)
{
    struct outcome *outcome = arg;
    outcome->done++;
    outcome->code = result->code;
    outcome->result = *result;
    snprintf(outcome->text, sizeof outcome->text, "%s", result->text);
}

static void open_engine(struct mr_transfer_options options)
{
    options.retry_base_ms = options.retry_base_ms ? options.retry_base_ms : 5;
    options.retry_cap_ms = options.retry_cap_ms ? options.retry_cap_ms : 40;
    options.deadline_ms = options.deadline_ms ? options.deadline_ms : 100000;
    mr_transfer_destroy(engine);
    engine = mr_transfer_new(&options, http);
    ck_assert_ptr_nonnull(engine);
}

static void open_store(unsigned stall_timeout_ms)
{
    mr_store_close(store);
    store = mr_store_open(&(struct mr_store_options){.scheme = MR_SCHEME_GS,
                                                     .bucket = "bucket",
                                                     .endpoint = fault_server_host(server),
                                                     .auth = "anonymous",
                                                     .stall_timeout_ms = stall_timeout_ms,
                                                     .http = http});
    ck_assert_ptr_nonnull(store);
}

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i += 8) {
        uint64_t word = mr_mix64(i);
        memcpy(data + i, &word, 8);
    }
    gcs = (struct fault_gcs){.data = data, .size = SIZE, .generation = 7};
    server = fault_server_start(fault_gcs_handle, &gcs);
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    ck_assert_ptr_nonnull(http);
    store = NULL;
    open_store(10000);
    open_engine((struct mr_transfer_options){0});
}

static void teardown(void)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    fault_server_stop(server);
}

static uint32_t crc_of(uint64_t offset, uint64_t length)
{
    return mr_crc32c(0, data + offset, length);
}

static struct mr_transfer_request whole(void)
{
    return (struct mr_transfer_request){.store = store,
                                        .name = "x",
                                        .name_length = 1,
                                        .generation = 7,
                                        .size = gcs.size,
                                        .length = gcs.size,
                                        .crc32c = crc_of(0, gcs.size),
                                        .has_crc32c = true,
                                        .dest = dest};
}

static void run_until(const int *done)
{
    int64_t end = mr_clock_mono_ns() + 100 * MR_SECOND_NS;
    while (!*done && mr_clock_mono_ns() < end)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_msg(*done == 1, "done was called %d times", *done);
}

static struct outcome *fetch(struct mr_transfer_request request)
{
    memset(&last, 0, sizeof last);
    memset(dest, 0, sizeof dest);
    ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_done, &last));
    ck_assert_int_eq(last.done, 0); /* never from the start call */
    run_until(&last.done);
    ck_assert_uint_eq(mr_transfer_in_flight(engine), 0);
    return &last;
}

static struct outcome *fetch_with(const struct fault_step *script, unsigned steps)
{
    /* Short only where a stall is what is tested: on a busy machine a good answer may take its time. */
    bool stalls = false;
    for (unsigned i = 0; i < steps; i++)
        stalls |= script[i].kind == FAULT_STALL;
    open_store(stalls ? 3000 : 10000);
    gcs.script = script;
    gcs.steps = steps;
    return fetch(whole());
}

static void check_good(const struct outcome *outcome, uint64_t size)
{
    ck_assert_msg(outcome->code == MR_OK, "%s", outcome->text);
    ck_assert_uint_eq(outcome->result.crc32c, crc_of(0, size));
    ck_assert_mem_eq(dest, data, size);
    ck_assert_uint_eq(dest[size], 0); /* and not a byte more */
}

START_TEST(a_whole_object)
{
    struct outcome *outcome = fetch(whole());
    check_good(outcome, SIZE);
    ck_assert(outcome->result.verified);
    ck_assert_uint_eq(outcome->result.generation, 7);
    ck_assert_uint_eq(outcome->result.attempts, 1);
    ck_assert_uint_eq(gcs.seen[0].generation, 7);
    ck_assert(gcs.seen[0].last == UINT64_MAX); /* no Range */
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    ck_assert(c->requests == 1 && c->objects == 1 && c->bytes == SIZE && c->retries == 0 && c->unverified == 0);
}
END_TEST

START_TEST(an_empty_object)
{
    gcs.size = 0;
    struct mr_transfer_request request = whole();
    request.dest = NULL;
    check_good(fetch(request), 0);
}
END_TEST

START_TEST(a_range)
{
    struct mr_transfer_request request = whole();
    request.offset = 1000;
    request.length = 5000;
    request.has_crc32c = false;
    struct outcome *outcome = fetch(request);
    ck_assert_int_eq(outcome->code, MR_OK);
    ck_assert_mem_eq(dest, data + 1000, 5000);
    ck_assert(!outcome->result.verified); /* the header's hash is of the whole object */
    ck_assert_uint_eq(outcome->result.crc32c, crc_of(1000, 5000));
    ck_assert(gcs.seen[0].first == 1000 && gcs.seen[0].last == 5999);
    request.has_crc32c = true;
    request.crc32c = crc_of(1000, 5000);
    ck_assert(fetch(request)->result.verified);
    ck_assert_uint_eq(mr_transfer_counters(engine)->unverified, 0); /* no store has a checksum of a part */
}
END_TEST

static void on_bytes(void *arg, uint64_t at, uint64_t got)
{
    ck_assert_ptr_eq(arg, &last);
    ck_assert_uint_le(at + got, SIZE);
}

START_TEST(a_checksum_that_the_caller_compares_is_not_verified)
{
    struct mr_transfer_request request = whole();
    request.crc32c ^= 1;
    request.arrived = on_bytes;
    struct outcome *outcome = fetch(request);
    ck_assert_int_eq(outcome->code, MR_OK);
    ck_assert_mem_eq(dest, data, SIZE);
    ck_assert(!outcome->result.verified);
    request.crc32c ^= 1;
    ck_assert(!fetch(request)->result.verified);
}
END_TEST

START_TEST(checksum_from_the_answer)
{
    struct mr_transfer_request request = whole();
    request.has_crc32c = false;
    request.generation = 0;
    struct outcome *outcome = fetch(request);
    check_good(outcome, SIZE);
    ck_assert(outcome->result.verified);
    ck_assert_uint_eq(outcome->result.generation, 7);
    gcs.no_hash = true;
    outcome = fetch(request);
    check_good(outcome, SIZE);
    ck_assert(!outcome->result.verified);
    ck_assert_uint_eq(mr_transfer_counters(engine)->unverified, 1);
}
END_TEST

/* Each of these goes wrong once and is repaired: the code of the repeat, and whether it goes on or starts anew. */
static const struct {
    struct fault_step step;
    uint64_t resumed_at;
} repaired[] = {
    {{FAULT_STATUS, 500, 0, "", NULL}, 0},
    {{FAULT_STATUS, 503, 0, "", NULL}, 0},
    {{FAULT_STATUS, 408, 0, "", NULL}, 0},
    {{FAULT_STATUS, 429, 0, "slow down", NULL}, 0},
    {{FAULT_RESET, 0, 0, NULL, NULL}, 0},
    {{FAULT_RESET, 0, 100000, NULL, NULL}, 100000},
    {{FAULT_CLOSE, 0, 1, NULL, NULL}, 1},
    {{FAULT_CLOSE, 0, 299999, NULL, NULL}, 299999},
    {{FAULT_STALL, 0, 0, NULL, NULL}, 0},
    {{FAULT_STALL, 0, 70000, NULL, NULL}, 70000},
    {{FAULT_CHUNKED_SHORT, 0, 10, NULL, NULL}, SIZE - 10},
    {{FAULT_FLIP, 0, 12345, NULL, NULL}, 0},
    {{FAULT_CLOSE_AFTER, 0, 0, NULL, NULL}, 0},
    {{FAULT_CHUNKED_CUT, 0, 0, NULL, NULL}, 0},
};

START_TEST(one_fault_is_repaired)
{
    uint64_t resumed = repaired[_i].resumed_at;
    struct outcome *outcome = fetch_with(&repaired[_i].step, 1);
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    enum fault_kind kind = repaired[_i].step.kind;
    check_good(outcome, SIZE);
    if (kind == FAULT_CLOSE_AFTER || kind == FAULT_CHUNKED_CUT) { /* nothing is missing */
        ck_assert_uint_eq(outcome->result.attempts, 1);
        return;
    }
    ck_assert_uint_eq(outcome->result.attempts, 2);
    ck_assert_uint_eq(c->retries, 1);
    ck_assert_uint_eq(c->resumes, resumed > 0);
    ck_assert_uint_eq(c->stalls, kind == FAULT_STALL);
    ck_assert_uint_eq(c->crc_errors, kind == FAULT_FLIP);
    ck_assert_uint_eq(gcs.seen[1].first, resumed);
    ck_assert_uint_eq(gcs.seen[1].generation, 7);
    ck_assert_uint_eq(c->bytes, SIZE + (kind == FAULT_FLIP ? SIZE : 0));
    if (kind != FAULT_STATUS)
        ck_assert_uint_eq(gcs.seen[1].on_conn, 0); /* on a new connection */
}
END_TEST

/* Each of these ends the transfer. */
static const struct {
    struct fault_step step;
    enum mr_code code;
    const char *text;
} fatal[] = {
    {{FAULT_STATUS, 400, 0, "{\"error\":{\"message\":\"Bad bucket name.\"}}", NULL}, MR_E_USAGE, "Bad bucket name"},
    {{FAULT_STATUS, 401, 0, "", NULL}, MR_E_DENIED, "permission"},
    {{FAULT_STATUS, 403, 0, "<Error><Code>X</Code><Message>Nope!</Message></Error>", NULL}, MR_E_DENIED, "Nope!"},
    {{FAULT_STATUS, 301, 0, "", "Location: http://elsewhere/\r\n"}, MR_E_PROTOCOL, "redirects"},
    {{FAULT_STATUS, 416, 0, "", NULL}, MR_E_CHANGED, "shorter"},
    {{FAULT_STATUS, 501, 0, "", NULL}, MR_E_PROTOCOL, "501"},
    {{FAULT_STATUS, 204, 0, "", NULL}, MR_E_PROTOCOL, "expected"},
    {{FAULT_LONG, 0, 1, NULL, NULL}, MR_E_PROTOCOL, "300001"},
    {{FAULT_SHORT, 0, 1, NULL, NULL}, MR_E_PROTOCOL, "299999"},
    {{FAULT_CHUNKED_LONG, 0, 3, NULL, NULL}, MR_E_PROTOCOL, "more than"},
    {{FAULT_GUNZIPPED, 0, 0, NULL, NULL}, MR_E_PROTOCOL, "decompressed"},
};

START_TEST(one_fault_is_fatal)
{
    struct outcome *outcome = fetch_with(&fatal[_i].step, 1);
    ck_assert_msg(outcome->code == fatal[_i].code, "code %d: %s", outcome->code, outcome->text);
    ck_assert_msg(strstr(outcome->text, fatal[_i].text) != NULL, "%s", outcome->text);
    ck_assert_msg(strncmp(outcome->text, "gs://bucket/x: ", 15) == 0, "%s", outcome->text);
    ck_assert_uint_eq(outcome->result.attempts, 1);
    ck_assert_uint_eq(mr_transfer_counters(engine)->failures, 1);
    ck_assert_uint_eq(dest[SIZE], 0);
}
END_TEST

START_TEST(a_resume_gets_the_range_it_asked_for)
{
    static const struct fault_step other[] = {{.kind = FAULT_CLOSE, .after = 1000}, {.kind = FAULT_OTHER_RANGE}};
    static const struct fault_step alone[] = {{.kind = FAULT_CLOSE, .after = 1000}, {.kind = FAULT_NOT_PARTIAL}};
    ck_assert_int_eq(fetch_with(other, 2)->code, MR_E_PROTOCOL);
    gcs.media = 0;
    ck_assert_int_eq(fetch_with(alone, 2)->code, MR_E_PROTOCOL);
}
END_TEST

/* 200 and the whole object for a range: the bytes before it are skipped, those behind it not taken. */
static const struct {
    struct fault_step step;
    unsigned attempts;
} ignored[] = {
    {{.kind = FAULT_NO_RANGE}, 2},
    {{.kind = FAULT_NO_RANGE_OPEN}, 2},
    {{.kind = FAULT_NO_RANGE_CUT, .after = 0}, 3},
    {{.kind = FAULT_NO_RANGE_CUT, .after = 99999}, 3}, /* before the range, at its beginning, within it */
    {{.kind = FAULT_NO_RANGE_CUT, .after = 100000}, 3},
    {{.kind = FAULT_NO_RANGE_CUT, .after = 200000}, 3},
};

START_TEST(a_range_that_is_answered_by_the_whole)
{
    struct fault_step script[] = {{.kind = FAULT_CLOSE, .after = 100000}, ignored[_i].step};
    struct outcome *outcome = fetch_with(script, 2);
    check_good(outcome, SIZE);
    ck_assert(outcome->result.verified);
    ck_assert_uint_eq(outcome->result.attempts, ignored[_i].attempts);
    ck_assert_uint_eq(mr_transfer_counters(engine)->bytes, SIZE); /* what was skipped is no progress */
    /* Within the object: its beginning, its middle, its end. */
    for (uint64_t at = 0; at < 3; at++) {
        struct mr_transfer_request request = whole();
        request.offset = at * 100000;
        request.length = 100000;
        request.has_crc32c = false;
        gcs.script = &ignored[_i].step;
        gcs.steps = 1;
        gcs.media = 0;
        outcome = fetch(request);
        ck_assert_msg(outcome->code == MR_OK, "%s", outcome->text);
        ck_assert_uint_eq(outcome->result.crc32c, crc_of(request.offset, request.length));
        ck_assert_mem_eq(dest, data + request.offset, request.length);
        ck_assert_uint_eq(dest[request.length], 0);
    }
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
}
END_TEST

/* Every range of a large object, from a server that knows none. */
START_TEST(parallel_ranges_that_are_ignored)
{
    static const struct fault_step script[] = {
        {.kind = FAULT_NO_RANGE}, {.kind = FAULT_NO_RANGE_OPEN}, {.kind = FAULT_NO_RANGE}, {.kind = FAULT_NO_RANGE}};
    open_engine((struct mr_transfer_options){.range_min_bytes = 1 << 20, .range_bytes = 1 << 20, .ranges = 4});
    gcs.size = (4 << 20) - 12345;
    struct outcome *outcome = fetch_with(script, 4);
    check_good(outcome, gcs.size);
    ck_assert_uint_eq(outcome->result.attempts, gcs.media); /* none of them is asked for again */
    ck_assert_uint_gt(gcs.media, 2);
    ck_assert_uint_eq(mr_transfer_counters(engine)->retries, 0);
    gcs.media = 0;
    check_good(fetch(whole()), gcs.size);
    ck_assert_uint_eq(gcs.media, 1); /* of the next object everything would come four times */
}
END_TEST

/* Another object than the one that was asked for is never skipped into. */
START_TEST(a_whole_that_is_another)
{
    static const struct fault_step gunzipped[] = {
        {.kind = FAULT_CLOSE, .after = 1000},
        {.kind = FAULT_NO_RANGE, .extra = "x-guploader-response-body-transformations: gunzipped\r\n"}};
    ck_assert_int_eq(fetch_with(gunzipped, 2)->code, MR_E_PROTOCOL);
    static const struct fault_step replaced[] = {{.kind = FAULT_CLOSE, .after = 1000},
                                                 {.kind = FAULT_NO_RANGE, .extra = "x-goog-generation: 8\r\n"}};
    gcs.media = 0;
    ck_assert_int_eq(fetch_with(replaced, 2)->code, MR_E_CHANGED);
}
END_TEST

START_TEST(many_faults_in_a_row)
{
    static const struct fault_step script[] = {
        {.kind = FAULT_RESET, .after = 50000}, {.kind = FAULT_STATUS, .status = 502},
        {.kind = FAULT_CLOSE, .after = 50000}, {.kind = FAULT_STALL, .after = 1},
        {.kind = FAULT_RESET, .after = 0},     {.kind = FAULT_DRIP, .after = 20000},
    };
    struct outcome *outcome = fetch_with(script, 6);
    check_good(outcome, SIZE);
    ck_assert_uint_eq(outcome->result.attempts, 6);
    ck_assert_uint_eq(gcs.seen[5].first, 100001);
    ck_assert_uint_eq(mr_transfer_counters(engine)->bytes, SIZE); /* no byte twice */
}
END_TEST

START_TEST(always_the_wrong_bytes)
{
    static const struct fault_step script[] = {{.kind = FAULT_FLIP}, {.kind = FAULT_FLIP}, {.kind = FAULT_FLIP}};
    char wanted[9];
    mr_crc32c_to_base64(crc_of(0, SIZE), wanted);
    struct outcome *outcome = fetch_with(script, 3);
    ck_assert_int_eq(outcome->code, MR_E_CORRUPT);
    ck_assert_uint_eq(outcome->result.attempts, 3);
    ck_assert_ptr_nonnull(strstr(outcome->text, wanted));
    open_engine((struct mr_transfer_options){.crc_retries = UINT_MAX});
    gcs.media = 0;
    outcome = fetch_with(script, 3);
    ck_assert_int_eq(outcome->code, MR_E_CORRUPT);
    ck_assert_uint_eq(outcome->result.attempts, 1);
}
END_TEST

START_TEST(another_generation)
{
    gcs.generation = 8;
    struct outcome *outcome = fetch(whole());
    ck_assert_int_eq(outcome->code, MR_E_CHANGED);
    ck_assert_ptr_nonnull(strstr(outcome->text, "changed since the listing"));
    ck_assert_uint_eq(gcs.lookups, 1);
    static const struct fault_step lies[] = {{.kind = FAULT_STATUS, .status = 412}};
    gcs.generation = 7;
    gcs.media = 0;
    outcome = fetch_with(lies, 1);
    ck_assert_int_eq(outcome->code, MR_E_CHANGED);
    ck_assert_ptr_nonnull(strstr(outcome->text, "contradicts itself"));
    gcs.deleted = true;
    outcome = fetch(whole());
    ck_assert_int_eq(outcome->code, MR_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(outcome->text, "deleted since the listing"));
    struct mr_transfer_request request = whole();
    request.generation = 0;
    outcome = fetch(request);
    ck_assert_int_eq(outcome->code, MR_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(outcome->text, "No such object"));
}
END_TEST

START_TEST(generation_is_pinned_by_the_first_answer)
{
    static const struct fault_step script[] = {{.kind = FAULT_CLOSE, .after = 1000}};
    struct mr_transfer_request request = whole();
    request.generation = 0;
    gcs.script = script;
    gcs.steps = 1;
    check_good(fetch(request), SIZE);
    ck_assert_uint_eq(gcs.seen[0].generation, 0);
    ck_assert_uint_eq(gcs.seen[1].generation, 7);
}
END_TEST

START_TEST(retry_after_is_honoured)
{
    static const struct fault_step script[] = {{.kind = FAULT_STATUS, .status = 503, .extra = "Retry-After: 1\r\n"}};
    int64_t start = mr_clock_mono_ns();
    check_good(fetch_with(script, 1), SIZE);
    ck_assert_int_ge(mr_clock_mono_ns() - start, MR_SECOND_NS);
}
END_TEST

START_TEST(the_deadline_ends_repeats)
{
    static struct fault_step script[256];
    for (unsigned i = 0; i < 256; i++)
        script[i] = (struct fault_step){.kind = FAULT_STATUS, .status = 500, .text = "backend error"};
    open_engine((struct mr_transfer_options){.deadline_ms = 2000}); /* time for three requests on a busy machine */
    struct outcome *outcome;
    do { /* once more if we did not run for so long */
        gcs.media = 0;
        outcome = fetch_with(script, 256);
        ck_assert_int_eq(outcome->code, MR_E_BUSY);
    } while (outcome->result.attempts <= 2);
    ck_assert_ptr_nonnull(strstr(outcome->text, "backend error"));
    ck_assert_ptr_nonnull(strstr(outcome->text, "requests)"));
    for (unsigned i = 0; i < 256; i++) /* a wait that would pass the deadline is not begun */
        script[i].extra = "Retry-After: 100\r\n";
    gcs.media = 0;
    outcome = fetch_with(script, 256);
    ck_assert_int_eq(outcome->code, MR_E_BUSY);
    ck_assert_uint_eq(outcome->result.attempts, 1);
}
END_TEST

/* Time in which this process was suspended: nothing could have made progress in it. */
START_TEST(a_pause_is_not_the_deadline)
{
    static const struct fault_step script[] = {{.kind = FAULT_STATUS, .status = 503}};
    open_engine((struct mr_transfer_options){.deadline_ms = 1500});
    gcs.script = script;
    gcs.steps = 1;
    memset(&last, 0, sizeof last);
    struct mr_transfer_request request = whole();
    ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_done, &last));
    while (gcs.media == 0)
        ck_assert_int_ge(mr_http_step(http, 100, -1), 0);
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    run_until(&last.done);
    check_good(&last, SIZE);
    ck_assert_uint_eq(last.result.attempts, 2);
}
END_TEST

START_TEST(egress_limit_is_told_apart)
{
    static const struct fault_step script[] = {
        {.kind = FAULT_STATUS, .status = 429, .text = "The project exceeded its Egress bandwidth limit"}};
    open_engine((struct mr_transfer_options){.deadline_ms = 1, .retry_base_ms = 1000, .retry_cap_ms = 1000});
    struct outcome *outcome;
    do { /* full jitter may draw a wait of 0 or 1 ms */
        gcs.media = 0;
        outcome = fetch_with(script, 1);
    } while (outcome->code == MR_OK);
    ck_assert_int_eq(outcome->code, MR_E_BUSY);
    ck_assert_ptr_nonnull(strstr(outcome->text, "quota"));
    ck_assert_uint_ge(mr_transfer_counters(engine)->egress, 1);
}
END_TEST

START_TEST(parallel_ranges)
{
    static const struct fault_step script[] = {{.kind = FAULT_RESET, .after = 70000},
                                               {.kind = FAULT_STATUS, .status = 503},
                                               {.kind = FAULT_NONE},
                                               {.kind = FAULT_STALL, .after = 5}};
    open_engine((struct mr_transfer_options){.range_min_bytes = 1 << 20, .range_bytes = 256 << 10, .ranges = 8});
    gcs.size = (4 << 20) - 12345;
    gcs.delay_ms = 20;
    check_good(fetch(whole()), gcs.size);
    ck_assert_uint_eq(gcs.media, 8);
    ck_assert_uint_gt(gcs.most_at_once, 1);
    gcs.media = 0;
    check_good(fetch_with(script, 4), gcs.size);
    ck_assert_uint_eq(gcs.media, 11);
    struct mr_transfer_request request = whole(); /* without an index entry: the answer's hash is of the whole */
    request.has_crc32c = false;
    struct outcome *outcome = fetch(request);
    check_good(outcome, gcs.size);
    ck_assert(outcome->result.verified);
    gcs.media = gcs.steps = 0;
    request.generation = 0; /* without a generation: one stream, or two generations could mix */
    check_good(fetch(request), gcs.size);
    ck_assert_uint_eq(gcs.media, 1);
}
END_TEST

START_TEST(a_wrong_byte_in_one_range)
{
    static const struct fault_step script[] = {{.kind = FAULT_NONE}, {.kind = FAULT_FLIP, .after = 17}};
    open_engine((struct mr_transfer_options){.range_min_bytes = 1 << 20, .range_bytes = 1 << 20, .ranges = 3});
    gcs.size = 3 << 20;
    struct outcome *outcome = fetch_with(script, 2);
    check_good(outcome, gcs.size);
    ck_assert_uint_eq(outcome->result.attempts, 6);
    ck_assert_uint_eq(mr_transfer_counters(engine)->crc_errors, 1);
}
END_TEST

START_TEST(one_bad_range_ends_the_others)
{
    static const struct fault_step script[] = {
        {.kind = FAULT_STALL}, {.kind = FAULT_STALL}, {.kind = FAULT_STATUS, .status = 403}};
    open_engine((struct mr_transfer_options){.range_min_bytes = 1 << 20, .range_bytes = 1 << 20, .ranges = 3});
    gcs.size = 3 << 20;
    ck_assert_int_eq(fetch_with(script, 3)->code, MR_E_DENIED);
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
}
END_TEST

START_TEST(busy_answers_lower_both_limits_and_they_recover)
{
    static struct fault_step script[16];
    static struct outcome outcomes[64];
    memset(outcomes, 0, sizeof outcomes);
    for (unsigned i = 0; i < 16; i++)
        script[i] = (struct fault_step){.kind = FAULT_STATUS, .status = i % 2 ? 429 : 503};
    open_engine((struct mr_transfer_options){.connections = 16});
    gcs.size = 1000;
    gcs.delay_ms = 5;
    gcs.script = script;
    gcs.steps = 16;
    ck_assert_uint_eq(mr_transfer_free(engine), 16);
    struct mr_transfer_request request = whole();
    for (unsigned i = 0; i < 64; i++)
        ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_done, &outcomes[i]));
    ck_assert_uint_eq(mr_transfer_free(engine), 0);
    unsigned lowest = 16;
    bool held_up = false;
    for (unsigned i = 0; i < 64; i++) {
        while (!outcomes[i].done) {
            ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
            held_up |= mr_transfer_rate(engine) > 0;
            if (mr_transfer_limit(engine) < lowest)
                lowest = mr_transfer_limit(engine);
            ck_assert_uint_le(mr_transfer_in_flight(engine), 16);
        }
        ck_assert_msg(outcomes[i].code == MR_OK, "%s", outcomes[i].text);
    }
    ck_assert_uint_eq(mr_transfer_counters(engine)->throttled, 16);
    ck_assert_msg(held_up, "429 holds nothing up");
    ck_assert_uint_le(lowest, 8);
    ck_assert_uint_ge(lowest, 1);
    ck_assert_uint_le(gcs.most_at_once, 16);
    while (mr_transfer_limit(engine) < 16 && gcs.media < 2000)
        ck_assert_int_eq(fetch(request)->code, MR_OK);
    ck_assert_uint_eq(mr_transfer_limit(engine), 16);
}
END_TEST

START_TEST(cancelled_in_every_state)
{
    static const struct fault_step script[] = {{.kind = FAULT_STALL, .after = 1000},
                                               {.kind = FAULT_STATUS, .status = 500}};
    static struct outcome gone;
    struct mr_transfer_request request = whole();
    memset(&gone, 0, sizeof gone);
    struct mr_transfer *queued = mr_transfer_fetch(engine, &request, on_done, &gone);
    mr_transfer_cancel(engine, queued);
    gcs.script = script;
    gcs.steps = 2;
    struct mr_transfer *sent = mr_transfer_fetch(engine, &request, on_done, &gone);
    while (mr_transfer_counters(engine)->bytes < 1000)
        mr_http_step(http, 100, -1);
    mr_transfer_cancel(engine, sent);
    ck_assert_uint_eq(mr_transfer_in_flight(engine), 0);
    memset(dest, 0, sizeof dest);
    open_engine((struct mr_transfer_options){.retry_base_ms = 5000, .retry_cap_ms = 5000});
    struct mr_transfer *waiting = mr_transfer_fetch(engine, &request, on_done, &gone);
    while (mr_transfer_counters(engine)->retries == 0)
        mr_http_step(http, 100, -1);
    mr_transfer_cancel(engine, waiting);
    for (int i = 0; i < 20; i++)
        mr_http_step(http, 5, -1);
    ck_assert_int_eq(gone.done, 0);
    ck_assert_uint_eq(dest[0], 0);
    check_good(fetch(request), SIZE);
    ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_done, &gone)); /* the engine goes with it in flight */
    mr_http_step(http, 1, -1);
}
END_TEST

START_TEST(nobody_listens)
{
    struct mr_store *other = mr_store_open(&(struct mr_store_options){
        .scheme = MR_SCHEME_GS, .bucket = "bucket", .endpoint = "127.0.0.1:1", .auth = "anonymous", .http = http});
    struct mr_transfer_request request = whole();
    open_engine((struct mr_transfer_options){.deadline_ms = 2000}); /* time for two attempts on a busy machine */
    request.store = other;
    struct outcome *outcome;
    do { /* once more if we did not run for so long */
        outcome = fetch(request);
        ck_assert_int_eq(outcome->code, MR_E_NET);
    } while (outcome->result.attempts <= 1);
    mr_store_close(other);
}
END_TEST

START_TEST(bad_requests)
{
    static const struct {
        uint64_t size, offset, length;
    } bad[] = {{10, 0, 11}, {10, 5, 6}, {10, 11, 1}, {10, UINT64_MAX, 2}, {10, 5, 0}, {0, 0, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mr_transfer_request request = whole();
        request.size = bad[i].size;
        request.offset = bad[i].offset;
        request.length = bad[i].length;
        ck_assert_ptr_null(mr_transfer_fetch(engine, &request, on_done, &last));
        ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    }
    struct mr_transfer_request request = whole();
    request.name = "a\0b";
    request.name_length = 3;
    ck_assert_int_eq(fetch(request)->code, MR_E_USAGE);
    ck_assert_uint_eq(gcs.media, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_transfer");
    TCase *tc = tcase_create("transfer");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_whole_object);
    tcase_add_test(tc, an_empty_object);
    tcase_add_test(tc, a_range);
    tcase_add_test(tc, a_checksum_that_the_caller_compares_is_not_verified);
    tcase_add_test(tc, checksum_from_the_answer);
    tcase_add_loop_test(tc, one_fault_is_repaired, 0, sizeof repaired / sizeof *repaired);
    tcase_add_loop_test(tc, one_fault_is_fatal, 0, sizeof fatal / sizeof *fatal);
    tcase_add_test(tc, a_resume_gets_the_range_it_asked_for);
    tcase_add_loop_test(tc, a_range_that_is_answered_by_the_whole, 0, (int)(sizeof ignored / sizeof *ignored));
    tcase_add_test(tc, parallel_ranges_that_are_ignored);
    tcase_add_test(tc, a_whole_that_is_another);
    tcase_add_test(tc, many_faults_in_a_row);
    tcase_add_test(tc, always_the_wrong_bytes);
    tcase_add_test(tc, another_generation);
    tcase_add_test(tc, generation_is_pinned_by_the_first_answer);
    tcase_add_test(tc, retry_after_is_honoured);
    tcase_add_test(tc, the_deadline_ends_repeats);
    tcase_add_test(tc, a_pause_is_not_the_deadline);
    tcase_add_test(tc, egress_limit_is_told_apart);
    tcase_add_test(tc, parallel_ranges);
    tcase_add_test(tc, a_wrong_byte_in_one_range);
    tcase_add_test(tc, one_bad_range_ends_the_others);
    tcase_add_test(tc, busy_answers_lower_both_limits_and_they_recover);
    tcase_add_test(tc, cancelled_in_every_state);
    tcase_add_test(tc, nobody_listens);
    tcase_add_test(tc, bad_requests);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
