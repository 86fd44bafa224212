/* Look-ups and reads of the S3 client. Facts: docs/protocols.md, "S3". */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/headers.h"
#include "worker/store/s3_impl.h"

/* ---- look-ups ---- */

int mr_s3_look(struct s3_call *call, s3_answered_fn *answered)
{
    struct s3_store *store = mr_s3_store(call);
    mr_s3_target(call, "");
    if (store->asks_checksums)
        mr_s3_line(call, "x-amz-checksum-mode: ", "ENABLED");
    mr_s3_more_lines(call, &store->reads);
    return mr_s3_send(call, &(struct mr_http_request){.method = "HEAD"}, answered);
}

/* The size, from the response to a HEAD, or to the GET of the first byte in its place. 0, or -1 with mr_error. */
static int size_of(const struct mr_http_result *http, uint64_t *size)
{
    const struct mr_http_headers *headers = &http->headers;
    if (http->status == 206 && headers->has_content_range && headers->range_total != UINT64_MAX) {
        *size = headers->range_total;
        return 0;
    }
    if (http->status != 206 && headers->has_content_length) {
        *size = headers->content_length;
        return 0;
    }
    mr_error_set(MR_E_PROTOCOL, "an object without a size");
    return -1;
}

/* Sets mr_error: a version other than the requested one is there. */
static void set_changed(const char *there)
{
    mr_error_set(MR_E_CHANGED, "changed since the listing: its ETag is %.80s now", there[0] ? there : "another one");
}

void mr_s3_on_item(struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_item item;
    uint64_t size;
    bool good = answer->result.code == MR_OK;
    if (good && (size_of(http, &size) != 0 || mr_s3_item(call, &http->headers, size, &item) != 0)) {
        mr_s3_refuse(call, answer);
        good = false;
    }
    if (good && mr_store_is_generation(call->generation_match) && item.generation != call->generation_match) {
        set_changed(item.etag);
        mr_s3_refuse(call, answer);
        good = false;
    }
    if (good)
        item.created_s = mr_http_headers_modified_s(&http->headers);
    call->done.stat(call->arg, &answer->result, good ? &item : NULL);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                 mr_store_stat_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_STAT, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    call->generation_match = generation ? generation : MR_STORE_ANY;
    if (mr_s3_look(call, mr_s3_on_item) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- the ETag of a generation ---- */

static void on_resolved(struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_headers *headers = &answer->http->headers;
    if (answer->result.code == MR_OK && headers->etag[0] && mr_s3_generation(headers->etag) == call->generation_match) {
        memcpy(call->etag, headers->etag, sizeof call->etag);
        if (call->resolved(call) == 0)
            return;
        mr_s3_refuse(call, answer);
    } else if (answer->result.code == MR_OK) {
        set_changed(headers->etag);
        mr_s3_refuse(call, answer);
        answer->result.status = 412;
    }
    call->refused(call, answer);
}

int mr_s3_resolve(struct s3_call *call, s3_resolved_fn *resolved, s3_answered_fn *failed)
{
    if (!mr_store_is_generation(call->generation_match) || call->etag[0])
        return resolved(call);
    call->resolved = resolved;
    call->refused = failed;
    return mr_s3_look(call, on_resolved);
}

/* ---- get ---- */

/* Checks that a response whose header has arrived has the requested version and bytes. 0, or -1 with mr_error. */
static int check_head(struct s3_call *call, int status, const struct mr_http_headers *headers)
{
    struct mr_get_body *body = &call->body_in;
    body->head_checked = true;
    body->got.checksum = headers->checksum;
    body->got.gzip = headers->gzip;
    if (headers->etag[0]) {
        body->got.generation = mr_s3_generation(headers->etag);
        memcpy(body->got.etag, headers->etag, sizeof body->got.etag);
    }
    if (status == 206) /* a checksum in it may be of a part only */
        body->got.checksum.kind = MR_CHECKSUM_NONE;
    if (body->get.generation && body->got.generation != body->get.generation) {
        set_changed(headers->etag);
        return -1;
    }
    char uri[400];
    return mr_get_body_head(body, call->base.store, mr_s3_uri(call, uri, sizeof uri), status, headers);
}

static void *get_room(void *arg, size_t *length)
{
    struct s3_call *call = arg;
    return mr_get_body_room(&call->body_in, length);
}

static int on_get_body(void *arg, const struct mr_http_call *http, const void *data, size_t length)
{
    struct s3_call *call = arg;
    if (!call->body_in.head_checked && check_head(call, mr_http_call_status(http), mr_http_call_headers(http)) != 0)
        return -1;
    return mr_get_body_take(&call->body_in, call->arg, data, length);
}

static void on_get(struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_get_body *body = &call->body_in;
    char uri[400];
    body->got.first_ns = http->first_ns;
    body->got.gap_ns = http->gap_ns;
    body->got.body_ns = http->body_ns;
    if (answer->result.status == 404 && body->get.generation && strcmp(answer->word, "NoSuchBucket") != 0) {
        snprintf(answer->text, sizeof answer->text, "%s: deleted since the listing", mr_s3_uri(call, uri, sizeof uri));
        answer->result.text = answer->text;
    } else if (answer->result.status == 412) {
        snprintf(answer->text, sizeof answer->text, "%s: changed since the listing: its ETag was %.80s",
                 mr_s3_uri(call, uri, sizeof uri), call->etag);
        answer->result.text = answer->text;
    }
    if (answer->result.code == MR_OK && !body->head_checked && check_head(call, http->status, &http->headers) != 0)
        mr_s3_refuse(call, answer);
    if (answer->result.code == MR_OK && mr_get_body_end(body) != 0)
        mr_s3_refuse(call, answer);
    call->done.get(call->arg, &answer->result, &body->got);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_get(struct mr_store *base, const struct mr_store_get_request *request,
                                mr_store_get_fn *done, void *arg)
{
    struct s3_store *store = (struct s3_store *)base;
    struct s3_call *call = mr_s3_take(store, S3_GET, request->name, request->name_length, arg);
    struct mr_http_request http = {
        .sink = on_get_body,
        .room = get_room,
        .has_range = !request->whole,
        .range_first = request->offset,
        .range_last = request->offset + request->length - 1,
        .fresh_connection = request->fresh_connection,
        .first_timeout_ms = request->first_timeout_ms,
        .stall_timeout_ms = request->stall_timeout_ms,
    };
    if (!call)
        return NULL;
    call->done.get = done;
    mr_get_body_init(&call->body_in, request);
    mr_s3_target(call, "");
    if (request->generation && request->etag && request->etag[0]) {
        snprintf(call->etag, sizeof call->etag, "%s", request->etag);
        mr_s3_line(call, "If-Match: ", call->etag);
    }
    if (request->whole && store->asks_checksums)
        mr_s3_line(call, "x-amz-checksum-mode: ", "ENABLED");
    mr_s3_more_lines(call, &store->reads);
    return mr_s3_start(call, &http, on_get);
}
