/* A call from the first byte of its response to its end: what arrives is counted and kept, then it calls back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "worker/store/headers.h"
#include "worker/store/http_impl.h"

#define COLLECT_ERROR_MAX (16u << 10)
#define COLLECT_KEEP      (256u << 10) /* a pooled call keeps a collecting buffer up to this size */

/* ---- the response ---- */

static void forget_location(struct mr_http_call *call)
{
    free(call->location);
    call->location = NULL;
}

/* Notes progress now, and the longest wait for it since the response began. */
static void moved(struct mr_http_call *call)
{
    int64_t gap = call->http->now_ns - call->moved_ns;
    call->moved_ns = call->http->now_ns;
    if (call->first_ns && gap > call->gap_ns)
        call->gap_ns = gap;
}

void mr_http_head_line(struct mr_http_call *call, const char *line, size_t length)
{
    int status = mr_http_headers_status(line, length);
    const char *url;
    size_t url_length;
    if (status != 0) { /* also after a 100 Continue */
        if (call->first_ns == 0)
            moved(call); /* a head that arrives line by line, or repeatedly, is not progress */
        call->first_ns = call->http->now_ns - call->started_ns + 1; /* 0 means none */
        call->first_ran_ns = mr_http_ran_ns(call->http);
        call->status = status;
        call->head_ended = false;
        memset(&call->headers, 0, sizeof call->headers);
        forget_location(call);
    } else if (length > 0 && (line[0] == '\r' || line[0] == '\n')) {
        call->head_ended = true;
        if (call->status / 100 != 1)
            moved(call);
    } else {
        mr_http_headers_line(&call->headers, line, length);
        if (!call->location && mr_http_headers_location(line, length, &url, &url_length))
            call->location = strndup(url, url_length); /* no memory: as if the server had left it out */
    }
}

/* Keeps mr_error as the reason why the call ends. Always -1. */
static int fail_sink(struct mr_http_call *call)
{
    call->sink_code = mr_error_code() ? mr_error_code() : MR_E_INTERNAL;
    snprintf(call->sink_text, sizeof call->sink_text, "%s", mr_error_text());
    return -1;
}

/* Keeps body bytes, at most `most` in all. -1 with mr_error. */
static int collect(struct mr_http_call *call, const char *data, size_t length, uint64_t most)
{
    if (length > most || call->collected_length > most - length) {
        mr_error_set(MR_E_PROTOCOL, "the answer is longer than %llu bytes", (unsigned long long)most);
        return -1;
    }
    size_t needed = call->collected_length + length + 1;
    if (needed > call->collected_size) {
        size_t size = call->collected_size ? call->collected_size : 4096;
        while (size < needed)
            size *= 2;
        char *grown = realloc(call->collected, size);
        if (!grown) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for an answer of %zu bytes", needed);
            return -1;
        }
        call->collected = grown;
        call->collected_size = size;
    }
    memcpy(call->collected + call->collected_length, data, length);
    call->collected_length += length;
    call->collected[call->collected_length] = 0;
    return 0;
}

int mr_http_take_body(struct mr_http_call *call, const char *data, size_t length)
{
    int rc;
    if (call->status / 100 != 2) {
        size_t room = COLLECT_ERROR_MAX - call->collected_length;
        rc = collect(call, data, length < room ? length : room, COLLECT_ERROR_MAX);
        if (rc == 0)
            rc = length > room; /* the rest, which may have no end, is not waited for */
    } else if (call->sink) {
        rc = call->sink(call->arg, call, data, length);
    } else {
        rc = collect(call, data, length, call->collect_max);
    }
    if (rc > 0)
        call->cut = true;
    if (rc != 0)
        return rc > 0 ? 1 : fail_sink(call);
    call->received += length;
    if (call->received - call->moved_received >= MR_HTTP_MOVE_BYTES || call->http->now_ns < call->drip_end_ns) {
        call->moved_received = call->received;
        moved(call);
    }
    return 0;
}

int mr_http_call_status(const struct mr_http_call *call)
{
    return call->status;
}

const struct mr_http_headers *mr_http_call_headers(const struct mr_http_call *call)
{
    return &call->headers;
}

/* ---- the end ---- */

void mr_http_call_deactivate(struct mr_http *http, struct mr_http_call *call)
{
    if (!call->own)
        curl_multi_remove_handle(http->multi, call->easy);
    if (call->queued)
        mr_http_unqueue(http, call);
    if (call->line)
        mr_http_line_close(call->line);
    *(call->previous ? &call->previous->next : &http->active) = call->next;
    if (call->next)
        call->next->previous = call->previous;
    http->in_flight--;
}

void mr_http_call_recycle(struct mr_http *http, struct mr_http_call *call)
{
    forget_location(call);
    if (call->lines) /* they may hold a token, which must not outlive its use */
        explicit_bzero(call->lines, call->lines_size);
    if (call->collected_size > COLLECT_KEEP) {
        free(call->collected);
        call->collected = NULL;
        call->collected_size = 0;
    }
    if (http->easy_once && !call->own) {
        curl_easy_cleanup(call->easy);
        call->easy = NULL;
    }
    call->next = http->pool;
    http->pool = call;
}

static enum mr_code code_of_curl(CURLcode curl)
{
    switch (curl) {
    case CURLE_OK:
        return MR_OK;
    case CURLE_OPERATION_TIMEDOUT:
        return MR_E_TIMEOUT;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_URL_MALFORMAT:
        return MR_E_CONFIG;
    case CURLE_UNSUPPORTED_PROTOCOL: /* the scheme was checked before: the response is not HTTP/1 */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
        return MR_E_PROTOCOL;
    case CURLE_OUT_OF_MEMORY:
        return MR_E_NO_MEMORY;
    default:
        return MR_E_NET;
    }
}

void mr_http_finish(struct mr_http *http, struct mr_http_call *call, enum mr_code code, const char *text)
{
    moved(call);
    int64_t body_ns = call->first_ns ? http->now_ns - call->started_ns - call->first_ns : 0;
    bool drips = call->drip_end_ns > call->started_ns && body_ns > 0;
    int64_t drip_ns = drips ? mr_http_ran_ns(http) - call->first_ran_ns : 0;
    struct mr_http_result result = {
        .code = code,
        .text = text,
        .status = call->status,
        .headers = call->headers,
        .body = call->collected_length ? call->collected : "",
        .body_length = call->collected_length,
        .location = call->location ? call->location : "",
        .sent = call->sent,
        .first_ns = call->first_ns,
        .gap_ns = call->gap_ns,
        .body_ns = body_ns > 0 ? body_ns : 0,
        .active_ns = call->active_ns + drip_ns,
    };
    mr_http_trace_end(call);
    mr_http_call_deactivate(http, call);
    http->poked = true;
    call->done(call->arg, &result);
    mr_http_call_recycle(http, call);
}

void mr_http_finish_curl(struct mr_http *http, struct mr_http_call *call, CURLcode curl, const char *curl_text)
{
    char text[CURL_ERROR_SIZE + 400];
    enum mr_code code = code_of_curl(curl);
    snprintf(text, sizeof text, "%s%s", curl_text[0] ? curl_text : curl_easy_strerror(curl),
             code == MR_E_CONFIG ? " (set [http] ca_bundle if the server's certificate is your own)" : "");
    bool connecting = curl == CURLE_COULDNT_CONNECT || curl == CURLE_COULDNT_RESOLVE_HOST;
    if (connecting && mr_process_lacks_descriptors())
        snprintf(text + strlen(text), sizeof text - strlen(text), ": %s", mr_error_text());
    mr_http_finish(http, call, code, text);
}
