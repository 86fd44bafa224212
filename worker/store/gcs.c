/* What the requests of the client of Google Cloud Storage share: calls, credentials, URLs and messages. The requests
 * are in gcs_*.c, the store itself in gcs_store.c. Facts: docs/protocols.md, "Google Cloud Storage";
 * https://cloud.google.com/storage/docs/json_api. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "worker/store/gcs_impl.h"

#define WRITE_PATIENCE 3 /* times the stall timeout: a server takes longer over a write than over a read */
/* https://cloud.google.com/storage/docs/bandwidth-usage#increase; Anywhere Cache's throughput is not the bucket's. */
#define EGRESS_ADVICE                                                                                               \
    "; this is a limit of the project that owns the bucket, for all its readers of the region together: (1) use "   \
    "fewer [fetch] connections, workers or nodes, (2) ask for more quota: console, IAM & Admin > Quotas & System "  \
    "Limits, \"Google egress bandwidth per second per region\" (to outside of Google: \"Internet egress bandwidth " \
    "...\"), or (3) create an Anywhere Cache in the nodes' zone, or keep the data in the nodes' own region"

/* ---- calls ---- */

struct gcs_call *mr_gcs_take(struct gcs_store *store, enum gcs_kind kind, void *arg)
{
    struct gcs_call *call = store->pool;
    if (call)
        store->pool = call->next_free;
    else
        call = calloc(1, sizeof *call);
    if (!call) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to gs://%s", store->base.bucket);
        return NULL;
    }
    call->kind = kind;
    call->arg = arg;
    call->http = NULL;
    call->refused = false;
    call->line_count = 0;
    mr_text_clear(&call->name);
    mr_text_clear(&call->lines);
    mr_text_clear(&call->head);
    mr_text_clear(&call->tail);
    mr_store_call_link(&store->base, &call->base);
    return call;
}

static void close_batch(struct gcs_batch *batch)
{
    free(batch->names);
    free(batch->each);
    free(batch->texts);
    mr_text_close(&batch->words);
    memset(batch, 0, sizeof *batch);
}

void mr_gcs_give(struct gcs_call *call)
{
    struct gcs_store *store = mr_gcs_store(call);
    mr_store_call_unlink(&call->base);
    if (call->kind == GCS_BATCH)
        close_batch(&call->batch);
    call->next_free = store->pool;
    store->pool = call;
}

const char *mr_gcs_uri(const struct gcs_call *call, char *out, size_t size)
{
    if (call->kind == GCS_BUCKET || call->kind == GCS_BATCH)
        return mr_store_uri(call->base.store, out, size, "", 0);
    if (call->kind != GCS_LIST)
        return mr_store_uri(call->base.store, out, size, call->name.data, call->name.length);
    const char *prefix = call->list.prefix ? call->list.prefix : "";
    return mr_store_uri(call->base.store, out, size, prefix, strlen(prefix));
}

/* ---- answers ---- */

static enum mr_code code_of_status(int status)
{
    if (status / 100 == 2)
        return MR_OK;
    switch (status) {
    case 400:
        return MR_E_USAGE;
    case 401:
    case 403:
        return MR_E_DENIED;
    case 404:
        return MR_E_NOT_FOUND;
    case 412:
        return MR_E_CHANGED;
    case 408:
    case 429:
        return MR_E_BUSY;
    case 416: /* the object is shorter than the requested range */
        return MR_E_CHANGED;
    default: /* 501, 505: not implemented, and will not be at the next attempt */
        return status / 100 == 5 && status != 501 && status != 505 ? MR_E_BUSY : MR_E_PROTOCOL;
    }
}

static const char *advice_of_write(const struct gcs_call *call, const struct mr_store_result *result)
{
    switch (result->status) {
    case 401:
    case 403:
        return call->kind == GCS_DELETE || call->kind == GCS_BATCH
                   ? "; the caller lacks permission: check [gcs] auth, and that it has storage.objects.delete here"
                   : "; the caller lacks permission: check [gcs] auth, and that it has storage.objects.create here "
                     "(and "
                     ".delete, to replace an object)";
    case 404:
        return "; check the bucket's and the objects' names";
    case 412:
        if (call->kind == GCS_COMPOSE)
            return "; the destination or a source is not what it was when it was looked up";
        return call->generation_match == 0 ? "; it exists already" : "; another generation is there by now";
    case 429:
        return call->kind == GCS_DELETE || call->kind == GCS_BATCH
                   ? ""
                   : "; objects are written too fast: about one write a second to the same name is possible";
    default:
        return result->status / 100 == 3 ? "; redirects are not followed: check the endpoint" : "";
    }
}

static const char *advice_of_status(const struct mr_store_result *result)
{
    if (result->egress_limited)
        return EGRESS_ADVICE;
    switch (result->status) {
    case 401:
    case 403:
        return "; the caller lacks permission: check [gcs] auth, and that it has storage.objects.get and .list here";
    case 404:
        return "; check the bucket's and the object's name";
    case 416:
        return "; it is shorter than it was when it was listed";
    case 429:
        return "; fewer [fetch] connections or workers may help";
    default:
        return result->status / 100 == 3 ? "; redirects are not followed: check the endpoint" : "";
    }
}

/* Whether the store received bytes that do not match the checksum sent with them: BadDigest in XML, words about CRC32C
 * in JSON. */
static bool is_other_bytes(const struct gcs_call *call, const struct mr_http_result *http, const char *words)
{
    return http->status == 400 && call->kind >= GCS_INSERT &&
           (strcasestr(words, "crc32c") || memmem(http->body, http->body_length, "BadDigest", 9));
}

void mr_gcs_explain(const struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_result *result = &answer->result;
    *result =
        (struct mr_store_result){.code = http->code, .text = "", .status = http->status, .active_ns = http->active_ns};
    char uri[400];
    if (http->code != MR_OK) {
        snprintf(answer->text, sizeof answer->text, "%s: %s", mr_gcs_uri(call, uri, sizeof uri), http->text);
        result->text = answer->text;
        result->not_sent = http->sent == 0;
        return;
    }
    result->code = code_of_status(http->status);
    if (result->code == MR_OK)
        return;
    if (http->status == 412 && (call->kind == GCS_INSERT || call->kind >= GCS_UPLOAD) && call->generation_match == 0)
        result->code = MR_E_EXISTS;
    result->retry_after_ms = http->headers.retry_after_ms;
    char words[300];
    mr_gcs_error_text(http->body, http->body_length, words, sizeof words);
    result->is_named = memmem(http->body, http->body_length, "<Code>", 6) != NULL;
    result->rate_limited = http->status == 429;
    result->egress_limited = http->status == 429 && strcasestr(words, "egress");
    result->text = answer->text;
    if (is_other_bytes(call, http, words)) {
        result->code = MR_E_CORRUPT;
        snprintf(answer->text, sizeof answer->text,
                 "%s: the store has got bytes whose crc32c is not that of those which were sent: what lies between "
                 "here and the store damages data (HTTP status 400: %s)",
                 mr_gcs_uri(call, uri, sizeof uri), words);
        return;
    }
    snprintf(answer->text, sizeof answer->text, "%s: %s%sHTTP status %d%s%s", mr_gcs_uri(call, uri, sizeof uri), words,
             words[0] ? " (" : "", http->status, words[0] ? ")" : "",
             call->kind >= GCS_INSERT ? advice_of_write(call, result) : advice_of_status(result));
}

void mr_gcs_refuse(const struct gcs_call *call, struct gcs_answer *answer)
{
    answer->result.code = mr_error_code();
    char uri[400];
    snprintf(answer->text, sizeof answer->text, "%s: %s", mr_gcs_uri(call, uri, sizeof uri), mr_error_text());
    answer->result.text = answer->text;
}

/* `answered` gives the call back or sends another request: the call must not be touched afterwards. */
static void deliver(struct gcs_call *call, const struct mr_http_result *http)
{
    struct gcs_answer answer;
    answer.http = http;
    mr_gcs_explain(call, &answer);
    call->answered(call, &answer);
}

/* ---- requests ---- */

static void gcs_on_answer(void *arg, const struct mr_http_result *http);

/* Sends call->request with these credentials. 0, or -1 with mr_error. */
static int send_with(struct gcs_call *call, const struct mr_auth_headers *headers)
{
    struct gcs_store *store = mr_gcs_store(call);
    const char *lines[MR_HTTP_MAX_HEADERS], *at = call->lines.data;
    struct mr_http_request request = call->request;
    for (unsigned i = 0; i < call->line_count; i++, at += strlen(at) + 1)
        lines[request.header_count++] = at;
    request.url = headers->serial ? call->url.data : store->url.data;
    request.done = gcs_on_answer;
    request.headers = lines;
    unsigned count =
        store->user_project.length && headers->count > 1 ? 1 : headers->count; /* [gcs] user_project wins */
    for (unsigned i = 0; i < count; i++)
        lines[request.header_count++] = headers->lines[i];
    call->token = headers->serial;
    call->http = mr_http_start(store->base.http, &request);
    return call->http ? 0 : -1;
}

static void gcs_on_token(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    struct gcs_call *call = MR_CONTAINER_OF(waiter, gcs_call, waiter);
    struct mr_auth_headers headers;
    struct mr_http_result result = {.code = code, .text = text, .body = ""};
    if (code == MR_OK && !mr_auth_headers(mr_gcs_store(call)->auth, &headers)) { /* it expired at once */
        mr_auth_wait(mr_gcs_store(call)->auth, waiter);
        return;
    }
    char copy[512];
    if (code == MR_OK) {
        if (send_with(call, &headers) == 0)
            return;
        snprintf(copy, sizeof copy, "%s", mr_error_text());
        result.code = mr_error_code();
        result.text = copy;
    }
    deliver(call, &result);
}

/* A token may have been revoked, or a clock may be off: the first 401 repeats the request with a new token, the second
 * is delivered. */
static void gcs_on_answer(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_auth *auth = mr_gcs_store(call)->auth;
    call->http = NULL;
    if (!call->token || http->code != MR_OK || http->status != 401 || call->refused) {
        deliver(call, http);
        return;
    }
    call->refused = true;
    mr_auth_refused(auth, call->token);
    mr_auth_wait(auth, &call->waiter);
}

int mr_gcs_send(struct gcs_call *call, struct mr_http_request *request, gcs_answered_fn *answered)
{
    struct gcs_store *store = mr_gcs_store(call);
    if (call->kind < GCS_SESSION && call->kind != GCS_BATCH)
        mr_text_add(&store->url, store->user_project.data ? store->user_project.data : "", store->user_project.length);
    if (!request->method)
        request->method = "GET";
    if (!request->stall_timeout_ms)
        request->stall_timeout_ms = store->base.stall_timeout_ms;
    if (call->kind >= GCS_INSERT) {
        request->once = true; /* whether to repeat it is a transfer's decision */
        request->stall_timeout_ms *= WRITE_PATIENCE;
    }
    request->arg = call;
    call->request = *request;
    call->answered = answered;
    call->waiter.ready = gcs_on_token;
    struct mr_auth_headers headers;
    bool ready = mr_auth_headers(store->auth, &headers);
    if (!ready || headers.serial) {
        mr_text_clear(&call->url);
        mr_text_add(&call->url, store->url.data ? store->url.data : "", store->url.length);
    }
    if (store->url.failed || call->name.failed || call->url.failed || call->lines.failed || call->head.failed ||
        call->tail.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to gs://%s", store->base.bucket);
        return -1;
    }
    if (ready)
        return send_with(call, &headers);
    mr_auth_wait(store->auth, &call->waiter);
    return 0;
}

struct mr_store_call *mr_gcs_start(struct gcs_call *call, struct mr_http_request *request, gcs_answered_fn *answered)
{
    if (mr_gcs_send(call, request, answered) == 0)
        return &call->base;
    mr_gcs_give(call);
    return NULL;
}

/* ---- urls ---- */

void mr_gcs_objects_url(struct gcs_store *store, const char *above)
{
    size_t n = strlen(store->endpoint);
    mr_text_clear(&store->url);
    mr_text_add(&store->url, store->endpoint, n);
    mr_text_puts(&store->url, above);
    mr_text_add(&store->url, store->objects.data + n, store->objects.length - n);
}

void mr_gcs_match(struct mr_text *url, const char *key, uint64_t generation)
{
    if (generation == MR_STORE_ANY)
        return;
    mr_text_add(url, "&", 1);
    mr_text_puts(url, key);
    mr_text_add(url, "=", 1);
    mr_text_put_u64(url, generation);
}

void mr_gcs_line(struct gcs_call *call, const char *name, const char *value)
{
    mr_text_puts(&call->lines, name);
    mr_text_add(&call->lines, value, strlen(value) + 1);
    call->line_count++;
}

void mr_gcs_parameter(struct mr_text *url, const char *key, const char *value)
{
    if (!value)
        return;
    mr_text_puts(url, key);
    mr_text_put_encoded(url, value, strlen(value));
}

void mr_gcs_object_url(struct gcs_call *call, const char *first, uint64_t generation)
{
    struct gcs_store *store = mr_gcs_store(call);
    mr_gcs_objects_url(store, "");
    mr_text_add(&store->url, "/", 1);
    mr_text_put_encoded(&store->url, call->name.data, call->name.length);
    mr_text_puts(&store->url, first);
    if (generation) {
        mr_text_puts(&store->url, "&generation=");
        mr_text_put_u64(&store->url, generation);
    }
}
