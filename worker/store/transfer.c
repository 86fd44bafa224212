#include "worker/store/transfer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "worker/store/transfer_impl.h"

#define PROGRESS_BYTES (UINT64_C(64) << 10) /* an attempt that brings less does not extend the deadline */
#define WARN_FAILURES  3                    /* in a row */
#define WARN_EVERY_NS  (10 * MR_SECOND_NS)
#define WARN_EGRESS_NS (60 * MR_SECOND_NS)
#define RANGE_ALIGN    (UINT64_C(64) << 10)
#define CORRUPT_TRIES  4 /* of a write whose bytes the store refuses because of their checksum */
#define STALL_FACTOR   2 /* times the 99th percentile */

static void pump(struct mr_http_timer *timer);

/* ---- the queue ---- */

void mr_stream_queue(struct mr_stream *stream, bool in_front)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    stream->state = MR_STREAM_QUEUED;
    stream->previous = in_front ? NULL : engine->last;
    stream->next = in_front ? engine->first : NULL;
    *(stream->previous ? &stream->previous->next : &engine->first) = stream;
    *(stream->next ? &stream->next->previous : &engine->last) = stream;
    engine->queued++;
    if (!engine->pump.armed)
        mr_http_timer_set(engine->http, &engine->pump, 0);
}

static void dequeue(struct mr_stream *stream)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    *(stream->previous ? &stream->previous->next : &engine->first) = stream->next;
    *(stream->next ? &stream->next->previous : &engine->last) = stream->previous;
    engine->queued--;
}

/* Ends what it is doing, without a callback. */
static void stop(struct mr_stream *stream)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    switch (stream->state) {
    case MR_STREAM_QUEUED:
        dequeue(stream);
        break;
    case MR_STREAM_SENT:
        mr_store_cancel(stream->call);
        engine->in_flight--;
        break;
    case MR_STREAM_WAITING:
        mr_http_timer_stop(engine->http, &stream->timer);
        break;
    case MR_STREAM_ENDED:
        break;
    }
    stream->state = MR_STREAM_ENDED;
}

static void on_wait_over(struct mr_http_timer *timer)
{
    mr_stream_queue(MR_CONTAINER_OF(timer, mr_stream, timer), true);
}

/* ---- the limit ---- */

unsigned mr_transfer_limit(const struct mr_transfer_engine *engine)
{
    return mr_flight_limit(&engine->flight);
}

double mr_transfer_rate(const struct mr_transfer_engine *engine)
{
    return engine->first && engine->rate.waits ? engine->rate.limit : 0;
}

unsigned mr_transfer_phase(const struct mr_transfer_engine *engine)
{
    return engine->flight.phase;
}

unsigned mr_transfer_in_flight(const struct mr_transfer_engine *engine)
{
    return engine->in_flight;
}

unsigned mr_transfer_free(const struct mr_transfer_engine *engine)
{
    unsigned taken = engine->in_flight + engine->queued, limit = mr_transfer_limit(engine);
    unsigned most = taken < limit ? limit - taken : 0, soon = mr_rate_soon(&engine->rate);
    /* Other workers may be faster: work that is taken and cannot be sent is waited for. */
    unsigned now = engine->queued < soon ? soon - engine->queued : 0;
    return most < now ? most : now;
}

/* ---- stalls ---- */

/* How long a stream may be silent after so many stalls of its own; the rules are in transfer.h. */
static unsigned stall_ms(const struct mr_transfer_engine *engine, const struct mr_store *store,
                         const struct mr_latency *latency, unsigned stalls)
{
    uint64_t most = store->stall_timeout_ms, ms = mr_latency_p99_ms(latency) * STALL_FACTOR;
    if (ms == 0) /* too few samples */
        return (unsigned)most;
    if (ms < engine->options.stall_min_ms)
        ms = engine->options.stall_min_ms;
    ms <<= stalls < 20 ? stalls : 20;
    return (unsigned)(ms < most ? ms : most);
}

void mr_transfer_stall_ms(const struct mr_transfer_engine *engine, const struct mr_store *store, unsigned ms[2])
{
    ms[0] = stall_ms(engine, store, &engine->head_waits, 0);
    ms[1] = stall_ms(engine, store, &engine->gap_waits, 0);
}

/* ---- the end of a transfer ---- */

void mr_transfer_end(struct mr_transfer *transfer)
{
    for (unsigned i = 0; i < transfer->stream_count; i++)
        stop(&transfer->streams[i]);
    *(transfer->previous ? &transfer->previous->next : &transfer->engine->transfers) = transfer->next;
    if (transfer->next)
        transfer->next->previous = transfer->previous;
    if (transfer->streams != &transfer->single)
        free(transfer->streams);
    mr_text_close(&transfer->strings);
    if (transfer->ops->close)
        transfer->ops->close(transfer);
    free(transfer);
}

void mr_transfer_fail(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    struct mr_transfer_engine *engine = transfer->engine;
    struct mr_store_result last = *result;
    for (unsigned i = 0; i < transfer->stream_count; i++)
        stop(&transfer->streams[i]); /* before the callback, which may give the caller's memory away */
    char text[1200];
    if (transfer->attempts > 1) {
        snprintf(text, sizeof text, "%s (after %u requests)", result->text, transfer->attempts);
        last.text = text;
    }
    engine->counters.failures++;
    mr_http_poke(engine->http);
    transfer->ops->fail(transfer, &last);
    mr_transfer_end(transfer);
}

/* ---- repeats ---- */

/* Full jitter: anything between 0 and min(cap, base * 2^n). */
static unsigned wait_ms(const struct mr_transfer_options *options, unsigned failures, unsigned retry_after_ms)
{
    unsigned shift = failures - 1 < 20 ? failures - 1 : 20;
    uint64_t most = (uint64_t)options->retry_base_ms << shift;
    if (most > options->retry_cap_ms)
        most = options->retry_cap_ms;
    unsigned wait = (unsigned)(mr_random64() % (most + 1));
    return wait > retry_after_ms ? wait : retry_after_ms;
}

/* Waits can add up to minutes, so the log has the reason, but not a line for each object. */
static void warn(struct mr_transfer_engine *engine, const struct mr_stream *stream,
                 const struct mr_store_result *result)
{
    int64_t now = mr_http_now_ns(engine->http);
    mr_log_debug("%s; trying again", result->text);
    if (result->egress_limited && (!engine->warned_egress_ns || now - engine->warned_egress_ns >= WARN_EGRESS_NS)) {
        engine->warned_egress_ns = now;
        mr_log_warning("%s. It is waited for and tried again, with fewer requests a second", result->text);
        return;
    }
    if (result->egress_limited || stream->failures < WARN_FAILURES ||
        (engine->warned_ns && now - engine->warned_ns < WARN_EVERY_NS))
        return;
    engine->warned_ns = now;
    mr_log_warning("%s; trying again, as for other requests, until there is no progress for %u s", result->text,
                   engine->options.deadline_ms / 1000);
}

/* What a 429 or 503 says about how much may be sent. */
static void learn_busy(struct mr_stream *stream, const struct mr_store_result *result)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    int64_t now = mr_http_now_ns(engine->http);
    if (!result->rate_limited)
        mr_flight_busy(&engine->flight, now, stream->sent_ns);
    else if (stream->transfer->is_compose) /* there are too many composes, which says nothing about the rest */
        engine->counters.compose_throttled++;
    else if (!stream->in_part) /* else a smaller request is the remedy */
        mr_rate_refused(&engine->rate, now, stream->sent_ns);
}

void mr_stream_again(struct mr_stream *stream, const struct mr_store_result *result)
{
    struct mr_transfer *transfer = stream->transfer;
    struct mr_transfer_engine *engine = transfer->engine;
    struct mr_transfer_counters *counters = &engine->counters;
    int64_t now = mr_http_now_ns(engine->http);
    counters->stalls += result->code == MR_E_TIMEOUT;
    stream->stalls += result->code == MR_E_TIMEOUT;
    transfer->progress_ns += result->active_ns;
    counters->egress += result->egress_limited != 0;
    if (result->status == 429 || result->status == 503) {
        counters->throttled++;
        learn_busy(stream, result);
    }
    /* The store received other bytes than were sent, and has kept none of them. */
    bool corrupt = result->code == MR_E_CORRUPT;
    counters->crc_errors += corrupt;
    bool again = corrupt ? stream->failures + 1 < CORRUPT_TRIES
                         : mr_code_retryable(result->code) && (!transfer->once || result->not_sent);
    if (!again) {
        mr_transfer_fail(transfer, result);
        return;
    }
    if (stream->received - stream->attempt_start >= PROGRESS_BYTES)
        stream->failures = 0;
    stream->failures++;
    if (engine->options.attempts && stream->failures >= engine->options.attempts) {
        mr_transfer_fail(transfer, result);
        return;
    }
    int64_t wait_ns = (int64_t)wait_ms(&engine->options, stream->failures, result->retry_after_ms) * MR_MILLISECOND_NS;
    if (mr_http_ran_ns(engine->http) + wait_ns - transfer->progress_ns >
        (int64_t)engine->options.deadline_ms * MR_MILLISECOND_NS) {
        mr_transfer_fail(transfer, result);
        return;
    }
    warn(engine, stream, result);
    counters->retries++;
    counters->resumes += stream->received > 0;
    stream->fresh = result->code != MR_E_BUSY; /* a broken or silent connection; a busy server's may be good */
    stream->state = MR_STREAM_WAITING;
    stream->timer.run = on_wait_over;
    mr_http_timer_set(engine->http, &stream->timer, now + wait_ns);
}

void mr_stream_landed(struct mr_stream *stream)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    engine->in_flight--;
    engine->landed++;
    stream->state = MR_STREAM_ENDED;
    if (engine->first && !engine->pump.armed)
        mr_http_timer_set(engine->http, &engine->pump, 0);
}

void mr_stream_progress(struct mr_stream *stream)
{
    stream->in_part = true;
    stream->failures = 0;
    stream->transfer->progress_ns = mr_http_ran_ns(stream->transfer->engine->http);
}

int mr_stream_end(struct mr_stream *stream, const struct mr_store_result *result)
{
    struct mr_transfer_engine *engine = stream->transfer->engine;
    mr_stream_landed(stream);
    if (result->code != MR_OK) {
        mr_stream_again(stream, result);
        return -1;
    }
    int64_t now = mr_http_now_ns(engine->http);
    mr_rate_good(&engine->rate, now);
    /* Responses come in bursts: all requests that were in flight together were in flight when it was full. */
    mr_flight_good(&engine->flight, now, stream->received - stream->attempt_start,
                   engine->landed <= mr_transfer_limit(engine));
    mr_stream_progress(stream);
    mr_http_poke(engine->http);
    return 0;
}

/* ---- fetch ---- */

/* Stops it and calls back. */
static void report_fetch(struct mr_transfer *transfer, enum mr_code code, const char *text,
                         const struct mr_checksum *sum, bool verified)
{
    struct mr_transfer_result result = {
        .code = code,
        .text = text,
        .status = transfer->status,
        .crc32c = sum->kind == MR_CHECKSUM_CRC32C ? (uint32_t)sum->value : 0,
        .verified = verified,
        .generation = transfer->generation,
        .gzip = transfer->gzip,
        .attempts = transfer->attempts,
    };
    for (unsigned i = 0; i < transfer->stream_count; i++)
        stop(&transfer->streams[i]); /* before the callback, which may give dest away */
    mr_http_poke(transfer->engine->http);
    transfer->fetched(transfer->arg, &result);
}

/* Ends the transfer: all bytes came, and their checksum is right or wrong. */
static void end_fetch(struct mr_transfer *transfer, enum mr_code code, const char *text, const struct mr_checksum *sum,
                      bool verified)
{
    struct mr_transfer_counters *counters = &transfer->engine->counters;
    if (code == MR_OK) {
        counters->objects++;
        /* A part of an object has no checksum in the store: the reader of all parts compares the whole. */
        counters->unverified += !verified && !transfer->fetch.arrived && transfer->fetch.length == transfer->fetch.size;
    } else {
        counters->failures++;
    }
    report_fetch(transfer, code, text, sum, verified);
    mr_transfer_end(transfer);
}

static void fail_fetch(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    report_fetch(transfer, result->code, result->text, &(struct mr_checksum){MR_CHECKSUM_NONE, 0}, false);
}

static bool is_whole(const struct mr_transfer_request *fetch)
{
    return fetch->length == fetch->size;
}

/* At the first bytes: the checksum of a whole object is of the kind that the store names, unless the caller needs a
 * crc32c. */
static void choose_checksum(struct mr_stream *stream, const struct mr_store_got *got)
{
    const struct mr_transfer_request *fetch = &stream->transfer->fetch;
    enum mr_checksum_kind named = got->checksum.kind;
    bool free = is_whole(fetch) && stream->transfer->stream_count == 1 && !fetch->has_crc32c && !fetch->needs_crc32c;
    stream->sum = (struct mr_checksum){free && named != MR_CHECKSUM_NONE ? named : MR_CHECKSUM_CRC32C, 0};
}

/* Checksums the bytes while they are in cache, unless the caller's `arrived` takes them. */
static void on_progress(void *arg, const struct mr_store_got *got, uint64_t more)
{
    struct mr_stream *stream = arg;
    struct mr_transfer *transfer = stream->transfer;
    const unsigned char *dest = transfer->fetch.dest;
    if (stream->received == 0)
        choose_checksum(stream, got);
    if (transfer->fetch.arrived)
        transfer->fetch.arrived(transfer->arg, stream->received, more);
    else
        mr_checksum_add(&stream->sum, dest + stream->offset + stream->received, more);
    stream->received += more;
    transfer->engine->counters.bytes += more;
    if (stream->received - stream->attempt_start >= PROGRESS_BYTES)
        transfer->progress_ns = mr_http_ran_ns(transfer->engine->http);
}

/* After a wrong checksum: fetches all bytes again, on new connections. */
static void restart(struct mr_transfer *transfer)
{
    transfer->streams_left = transfer->stream_count;
    transfer->answer_sum.kind = MR_CHECKSUM_NONE;
    transfer->engine->counters.retries++;
    for (unsigned i = 0; i < transfer->stream_count; i++) {
        struct mr_stream *stream = &transfer->streams[i];
        stream->received = 0;
        stream->fresh = true;
        mr_stream_queue(stream, true);
    }
}

static void fail_checksum(struct mr_transfer *transfer, const struct mr_checksum *sum,
                          const struct mr_checksum *expected)
{
    const struct mr_transfer_request *fetch = &transfer->fetch;
    char got[MR_CHECKSUM_TEXT_SIZE], wanted[MR_CHECKSUM_TEXT_SIZE];
    mr_checksum_to_base64(sum, got);
    mr_checksum_to_base64(expected, wanted);
    char uri[400];
    mr_store_uri(transfer->store, uri, sizeof uri, fetch->name, fetch->name_length);
    char text[700];
    snprintf(text, sizeof text,
             "%s: the %s of its %llu bytes is %s and should be %s (after %u downloads): the object, or what lies "
             "between here and the store, is damaged",
             uri, mr_checksum_name(sum->kind), (unsigned long long)fetch->length, got, wanted, transfer->crc_failures);
    end_fetch(transfer, MR_E_CORRUPT, text, sum, false);
}

/* All bytes are there: ends the transfer, or restarts it if they are not the right ones. */
static void verify(struct mr_transfer *transfer)
{
    const struct mr_transfer_request *fetch = &transfer->fetch;
    struct mr_checksum sum = transfer->streams[0].sum, expected = {MR_CHECKSUM_NONE, 0};
    if (fetch->length == 0) /* no byte came that would have begun it */
        sum = (struct mr_checksum){transfer->answer_sum.kind ? transfer->answer_sum.kind : MR_CHECKSUM_CRC32C, 0};
    for (unsigned i = 1; i < transfer->stream_count; i++)
        sum.value = mr_crc32c_combine((uint32_t)sum.value, (uint32_t)transfer->streams[i].sum.value,
                                      transfer->streams[i].length);
    if (fetch->has_crc32c)
        expected = (struct mr_checksum){MR_CHECKSUM_CRC32C, fetch->crc32c};
    else if (is_whole(fetch))
        expected = transfer->answer_sum;
    bool comparable = expected.kind != MR_CHECKSUM_NONE && expected.kind == sum.kind;
    if (!comparable || sum.value == expected.value || fetch->arrived) {
        end_fetch(transfer, MR_OK, "", &sum, comparable && !fetch->arrived);
        return;
    }
    transfer->engine->counters.crc_errors++;
    if (transfer->crc_failures++ < transfer->engine->options.crc_retries)
        restart(transfer);
    else
        fail_checksum(transfer, &sum, &expected);
}

static void on_get(void *arg, const struct mr_store_result *result, const struct mr_store_got *got)
{
    struct mr_stream *stream = arg;
    struct mr_transfer *transfer = stream->transfer;
    transfer->status = result->status;
    transfer->gzip = transfer->gzip || got->gzip;
    if (got->generation && !transfer->generation)
        transfer->generation = got->generation;
    if (got->etag[0] && !transfer->etag[0] && got->generation == transfer->generation)
        memcpy(transfer->etag, got->etag, sizeof transfer->etag);
    if (transfer->answer_sum.kind == MR_CHECKSUM_NONE)
        transfer->answer_sum = got->checksum;
    struct mr_store_result end = *result;
    if (mr_code_retryable(end.code) && stream->length > 0 && stream->received == stream->length)
        end.code = MR_OK; /* the connection ended after the last byte, before the answer's own end */
    if (mr_stream_end(stream, &end) != 0)
        return;
    if (got->first_ns) {
        mr_latency_add(&transfer->engine->head_waits, got->first_ns);
        mr_latency_add(&transfer->engine->gap_waits, got->gap_ns);
        struct mr_transfer_counters *counters = &transfer->engine->counters;
        counters->answers++;
        counters->first_ns += (uint64_t)got->first_ns;
        counters->body_ns += (uint64_t)got->body_ns;
    }
    if (--transfer->streams_left == 0)
        verify(transfer);
}

static struct mr_store_call *send_get(struct mr_stream *stream)
{
    struct mr_transfer *transfer = stream->transfer;
    const struct mr_transfer_request *fetch = &transfer->fetch;
    uint64_t at = stream->offset + stream->received;
    struct mr_store_get_request get = {
        .name = fetch->name,
        .name_length = fetch->name_length,
        .generation = transfer->generation,
        .etag = transfer->etag,
        .offset = fetch->offset + at,
        .length = stream->length - stream->received,
        .fresh_connection = stream->fresh,
        .first_timeout_ms = stall_ms(transfer->engine, transfer->store, &transfer->engine->head_waits, stream->stalls),
        .stall_timeout_ms = stall_ms(transfer->engine, transfer->store, &transfer->engine->gap_waits, stream->stalls),
        .dest = fetch->dest ? (unsigned char *)fetch->dest + at : NULL,
        .progress = on_progress,
    };
    get.whole = get.offset == 0 && get.length == fetch->size;
    stream->attempt_start = stream->received;
    stream->fresh = false;
    transfer->engine->counters.class_b++;
    return mr_store_get(transfer->store, &get, on_get, stream);
}

static const struct mr_transfer_ops fetch_ops = {send_get, fail_fetch, NULL};

/* ---- list and stat ---- */

static void transfer_on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.list(transfer->arg, result, page);
    mr_transfer_end(transfer);
}

static void on_stat(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.stat(transfer->arg, result, item);
    mr_transfer_end(transfer);
}

static struct mr_store_call *send_list(struct mr_stream *stream)
{
    stream->transfer->engine->counters.class_a++;
    return mr_store_list(stream->transfer->store, &stream->transfer->list, transfer_on_list, stream);
}

static struct mr_store_call *send_stat(struct mr_stream *stream)
{
    struct mr_transfer *transfer = stream->transfer;
    transfer->engine->counters.class_b++;
    return mr_store_stat(transfer->store, transfer->strings.data, transfer->strings.length, transfer->generation,
                         on_stat, stream);
}

static void fail_list(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    transfer->done.list(transfer->arg, result, NULL);
}

static void fail_stat(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    transfer->done.stat(transfer->arg, result, NULL);
}

static const struct mr_transfer_ops list_ops = {send_list, fail_list, NULL};
static const struct mr_transfer_ops stat_ops = {send_stat, fail_stat, NULL};

/* ---- sending ---- */

/* If the request cannot be made, the transfer fails: the stream must not be touched afterwards. */
static void send_stream(struct mr_stream *stream)
{
    struct mr_transfer *transfer = stream->transfer;
    struct mr_transfer_engine *engine = transfer->engine;
    stream->sent_ns = mr_http_now_ns(engine->http);
    mr_rate_sent(&engine->rate, stream->sent_ns);
    transfer->attempts++;
    engine->counters.requests++;
    stream->in_part = false;
    stream->call = transfer->ops->send(stream);
    if (stream->call) {
        stream->state = MR_STREAM_SENT;
        if (++engine->in_flight >= mr_transfer_limit(engine))
            engine->landed = 0;
        return;
    }
    stream->state = MR_STREAM_ENDED;
    mr_transfer_fail(transfer, &(struct mr_store_result){.code = mr_error_code(), .text = mr_error_text()});
}

/* Sends queued streams until the limit on requests in flight is reached, or, by the rate, none is due. */
static void pump(struct mr_http_timer *timer)
{
    struct mr_transfer_engine *engine = MR_CONTAINER_OF(timer, mr_transfer_engine, pump);
    while (engine->first && engine->in_flight < mr_transfer_limit(engine)) {
        struct mr_stream *stream = engine->first;
        int64_t due_ns = mr_rate_due_ns(&engine->rate, mr_http_now_ns(engine->http));
        if (due_ns > 0) {
            mr_http_timer_set(engine->http, timer, due_ns);
            return;
        }
        dequeue(stream);
        send_stream(stream);
    }
}

/* ---- starting ---- */

void *mr_transfer_make(struct mr_transfer_engine *engine, struct mr_store *store, const struct mr_transfer_ops *ops,
                       size_t size, void *arg)
{
    struct mr_transfer *transfer = calloc(1, size);
    if (!transfer) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a transfer");
        return NULL;
    }
    transfer->engine = engine;
    transfer->ops = ops;
    transfer->store = store;
    transfer->arg = arg;
    transfer->streams = &transfer->single;
    transfer->stream_count = transfer->streams_left = 1;
    transfer->single = (struct mr_stream){.transfer = transfer, .state = MR_STREAM_ENDED};
    transfer->progress_ns = mr_http_ran_ns(engine->http);
    transfer->next = engine->transfers;
    if (engine->transfers)
        engine->transfers->previous = transfer;
    engine->transfers = transfer;
    return transfer;
}

struct mr_transfer *mr_transfer_begin(struct mr_transfer *transfer)
{
    if (transfer->strings.failed) {
        mr_transfer_end(transfer);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a transfer");
        return NULL;
    }
    for (unsigned i = 0; i < transfer->stream_count; i++)
        mr_stream_queue(&transfer->streams[i], false);
    return transfer;
}

/*
 * Parallel ranges of one object must be of one generation, so it has to be known; a file is as fast in one stream.
 * 0, or -1 with mr_error.
 */
static int transfer_split(struct mr_transfer *transfer)
{
    const struct mr_transfer_options *options = &transfer->engine->options;
    uint64_t length = transfer->fetch.length, count = 1;
    if (length >= options->range_min_bytes && transfer->generation &&
        mr_store_scheme(transfer->store) != MR_SCHEME_FILE)
        count = transfer->fetch.arrived || mr_store_ignores_ranges(transfer->store) ? 1 : length / options->range_bytes;
    if (count > options->ranges)
        count = options->ranges;
    if (count > 1) {
        uint64_t each = ((length + count - 1) / count + RANGE_ALIGN - 1) / RANGE_ALIGN * RANGE_ALIGN;
        transfer->streams = calloc(count, sizeof *transfer->streams);
        if (!transfer->streams) {
            transfer->streams = &transfer->single;
            mr_error_set(MR_E_NO_MEMORY, "no memory for a transfer");
            return -1;
        }
        transfer->stream_count = 0;
        for (uint64_t at = 0; at < length; at += each) {
            uint64_t left = length - at;
            transfer->streams[transfer->stream_count++] = (struct mr_stream){
                .transfer = transfer, .state = MR_STREAM_ENDED, .offset = at, .length = left < each ? left : each};
        }
        transfer->streams_left = transfer->stream_count;
    } else {
        transfer->single.length = length;
    }
    return 0;
}

struct mr_transfer *mr_transfer_fetch(struct mr_transfer_engine *engine, const struct mr_transfer_request *request,
                                      mr_transfer_fn *done, void *arg)
{
    if (request->length > request->size || request->offset > request->size - request->length ||
        (request->length == 0 && request->size > 0)) {
        mr_error_set(MR_E_USAGE, "%llu bytes at %llu are not a part of an object of %llu bytes",
                     (unsigned long long)request->length, (unsigned long long)request->offset,
                     (unsigned long long)request->size);
        return NULL;
    }
    struct mr_transfer *transfer = mr_transfer_make(engine, request->store, &fetch_ops, sizeof *transfer, arg);
    if (!transfer)
        return NULL;
    mr_text_add(&transfer->strings, request->name, request->name_length);
    transfer->fetched = done;
    transfer->fetch = *request;
    transfer->fetch.name = transfer->strings.data;
    transfer->generation = request->generation;
    if (request->etag && strlen(request->etag) < sizeof transfer->etag)
        snprintf(transfer->etag, sizeof transfer->etag, "%s", request->etag);
    if (transfer_split(transfer) != 0) {
        mr_transfer_end(transfer);
        return NULL;
    }
    return mr_transfer_begin(transfer);
}

struct mr_transfer *mr_transfer_list(struct mr_transfer_engine *engine, struct mr_store *store,
                                     const struct mr_store_list_request *request, mr_store_list_fn *done, void *arg)
{
    struct mr_transfer *transfer = mr_transfer_make(engine, store, &list_ops, sizeof *transfer, arg);
    if (!transfer)
        return NULL;
    transfer->done.list = done;
    if (mr_store_list_copy(&transfer->list, request, &transfer->strings) != 0)
        transfer->strings.failed = true;
    return mr_transfer_begin(transfer);
}

struct mr_transfer *mr_transfer_stat(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                     size_t name_length, uint64_t generation, mr_store_stat_fn *done, void *arg)
{
    struct mr_transfer *transfer = mr_transfer_make(engine, store, &stat_ops, sizeof *transfer, arg);
    if (!transfer)
        return NULL;
    transfer->done.stat = done;
    transfer->generation = generation;
    mr_text_add(&transfer->strings, name, name_length);
    return mr_transfer_begin(transfer);
}

void mr_transfer_cancel(struct mr_transfer_engine *engine, struct mr_transfer *transfer)
{
    mr_transfer_end(transfer);
    if (engine->first && !engine->pump.armed) /* its place in flight is free */
        mr_http_timer_set(engine->http, &engine->pump, 0);
}

/* ---- life ---- */

const struct mr_transfer_counters *mr_transfer_counters(const struct mr_transfer_engine *engine)
{
    return &engine->counters;
}

#define OR(value, standard) ((value) ? (value) : (standard))

struct mr_transfer_engine *mr_transfer_new(const struct mr_transfer_options *options, struct mr_http *http)
{
    struct mr_transfer_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a transfer engine");
        return NULL;
    }
    engine->http = http;
    engine->pump.run = pump;
    engine->batch_most = MR_STORE_BATCH_MAX;
    engine->options = (struct mr_transfer_options){
        .retry_base_ms = OR(options->retry_base_ms, 1000),
        .retry_cap_ms = OR(options->retry_cap_ms, 32000),
        .deadline_ms = OR(options->deadline_ms, 300000),
        .attempts = options->attempts,
        .stall_min_ms = OR(options->stall_min_ms, 1500),
        .crc_retries = options->crc_retries == UINT_MAX ? 0 : OR(options->crc_retries, 2),
        .range_min_bytes = OR(options->range_min_bytes, UINT64_C(16) << 20),
        .range_bytes = OR(options->range_bytes, UINT64_C(8) << 20),
        .ranges = OR(options->ranges, 8),
    };
    mr_flight_init(&engine->flight, options->connections, options->connections_most);
    mr_rate_init(&engine->rate, mr_http_now_ns(http));
    return engine;
}

void mr_transfer_destroy(struct mr_transfer_engine *engine)
{
    if (!engine)
        return;
    while (engine->transfers)
        mr_transfer_end(engine->transfers); // NOLINT(clang-analyzer-unix.Malloc): it takes itself off the list
    mr_http_timer_stop(engine->http, &engine->pump);
    free(engine);
}
