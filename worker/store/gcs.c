/* The client of Google Cloud Storage's JSON API. Facts: protocols.md, GCS;
 * https://cloud.google.com/storage/docs/json_api. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/auth.h"
#include "worker/store/gcs_json.h"
#include "worker/store/http.h"
#include "worker/store/store_ops.h"
#include "worker/store/text.h"

#define PUBLIC_ENDPOINT "https://storage.googleapis.com"
/* Only what the index keeps: the rest of an object's metadata is ten times as long. */
#define LIST_FIELDS "projection=noAcl&fields=items(name,size,generation,crc32c,storageClass),nextPageToken"
#define STAT_FIELDS "fields=name,size,generation,crc32c,storageClass,etag"

enum gcs_kind { GCS_LIST, GCS_GET, GCS_STAT };

struct gcs_store {
    struct mr_store base;
    struct mr_auth *auth;
    char *endpoint;
    struct mr_text objects;      /* "http://host/storage/v1/b/bucket/o" */
    struct mr_text user_project; /* "&userProject=x", or nothing */
    struct mr_text url;          /* of the request that is being built */
    struct gcs_call *pool;
};

struct gcs_call {
    struct mr_store_call base;
    struct gcs_call *next_free;
    enum gcs_kind kind;
    struct mr_http_call *http;
    struct mr_auth_waiter waiter;   /* queued while there is no token */
    struct mr_http_request request; /* sent again after a 401; its url and done are the two below */
    struct mr_text url;
    void (*answered)(void *arg, const struct mr_http_result *result);
    uint64_t token; /* that the request was sent with; 0: none */
    int refused;    /* a 401 was answered before */
    void *arg;
    union {
        mr_store_list_fn *list;
        mr_store_get_fn *get;
        mr_store_stat_fn *stat;
    } done;
    struct mr_text name; /* get, stat: the object; list: its strings, each with its NUL */
    struct mr_store_list_request list;
    struct mr_store_get_request get;
    uint64_t generation;
    struct mr_store_got got;
    int head_checked;
    int looking_up;              /* a get whose generation is gone: the second request, without it */
    struct mr_store_result lost; /* how the first one ended */
};

static struct gcs_store *store_of(const struct gcs_call *call)
{
    return (struct gcs_store *)call->base.store;
}

/* ---- calls ---- */

static struct gcs_call *call_take(struct gcs_store *store, enum gcs_kind kind, void *arg)
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
    call->refused = 0;
    call->looking_up = 0;
    call->head_checked = 0;
    mr_text_clear(&call->name);
    memset(&call->got, 0, sizeof call->got);
    mr_store_call_link(&store->base, &call->base);
    return call;
}

static void call_give(struct gcs_call *call)
{
    struct gcs_store *store = store_of(call);
    mr_store_call_unlink(&call->base);
    call->next_free = store->pool;
    store->pool = call;
}

static void gcs_cancel(struct mr_store_call *base)
{
    struct gcs_call *call = (struct gcs_call *)base;
    if (call->http)
        mr_http_cancel(base->store->http, call->http);
    mr_auth_cancel(store_of(call)->auth, &call->waiter);
    call_give(call);
}

static const char *call_uri(const struct gcs_call *call, char *out, size_t size)
{
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
    case 416: /* the object is shorter than the range that was asked for */
        return MR_E_CHANGED;
    default: /* 501, 505: not implemented, and will not be at the next attempt */
        return status / 100 == 5 && status != 501 && status != 505 ? MR_E_BUSY : MR_E_PROTOCOL;
    }
}

static const char *advice_of_status(const struct mr_store_result *result)
{
    if (result->egress_limited)
        return "; the project's egress bandwidth is used up: ask for more quota, or read from a bucket in the same "
               "region";
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

/* Fills result and its text (size bytes) from an answer, or from the lack of one. */
static void explain(const struct gcs_call *call, const struct mr_http_result *http, struct mr_store_result *result,
                    char *text, size_t size)
{
    char uri[400], words[300];
    *result = (struct mr_store_result){.code = http->code, .text = "", .status = http->status};
    if (http->code != MR_OK) {
        snprintf(text, size, "%s: %s", call_uri(call, uri, sizeof uri), http->text);
        result->text = text;
        return;
    }
    result->code = code_of_status(http->status);
    if (result->code == MR_OK)
        return;
    result->retry_after_ms = http->headers.retry_after_ms;
    mr_gcs_error_text(http->body, http->body_length, words, sizeof words);
    result->egress_limited = http->status == 429 && strcasestr(words, "egress") != NULL;
    snprintf(text, size, "%s: %s%sHTTP status %d%s%s", call_uri(call, uri, sizeof uri), words, words[0] ? " (" : "",
             http->status, words[0] ? ")" : "", advice_of_status(result));
    result->text = text;
}

/* A 2xx answer whose content was refused: mr_error says why. */
static void refuse(const struct gcs_call *call, struct mr_store_result *result, char *text, size_t size)
{
    char uri[400];
    result->code = mr_error_code();
    snprintf(text, size, "%s: %s", call_uri(call, uri, sizeof uri), mr_error_text());
    result->text = text;
}

static void on_answer(void *arg, const struct mr_http_result *http);

/* Sends call->request with the lines of now. 0, or -1 with mr_error. */
static int send_with(struct gcs_call *call, const struct mr_auth_headers *headers)
{
    struct gcs_store *store = store_of(call);
    const char *lines[MR_AUTH_LINES];
    struct mr_http_request request = call->request;
    request.url = headers->serial ? call->url.data : store->url.data;
    request.done = headers->serial ? on_answer : call->answered;
    request.headers = lines;
    unsigned count =
        store->user_project.length && headers->count > 1 ? 1 : headers->count; /* [gcs] user_project wins */
    for (unsigned i = 0; i < count; i++)
        lines[request.header_count++] = headers->lines[i];
    call->token = headers->serial;
    call->http = mr_http_start(store->base.http, &request);
    return call->http ? 0 : -1;
}

static void on_token(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    struct gcs_call *call = (struct gcs_call *)(void *)((char *)waiter - offsetof(struct gcs_call, waiter));
    struct mr_auth_headers headers;
    struct mr_http_result result = {.code = code, .text = text, .body = ""};
    char copy[512];
    if (code == MR_OK && mr_auth_headers(store_of(call)->auth, &headers) == 0) { /* it ended at once */
        mr_auth_wait(store_of(call)->auth, waiter);
        return;
    }
    if (code == MR_OK) {
        if (send_with(call, &headers) == 0)
            return;
        snprintf(copy, sizeof copy, "%s", mr_error_text());
        result.code = mr_error_code();
        result.text = copy;
    }
    call->answered(call, &result);
}

/* A token may be revoked or a clock be off: a 401 makes a new one once, the second is the answer. */
static void on_answer(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_auth *auth = store_of(call)->auth;
    call->http = NULL;
    if (http->code != MR_OK || http->status != 401 || call->refused) {
        call->answered(call, http);
        return;
    }
    call->refused = 1;
    mr_auth_refused(auth, call->token);
    mr_auth_wait(auth, &call->waiter);
}

/* Starts the request to store->url, at once or when there is a token. 0, or -1 with mr_error. */
static int send_request(struct gcs_call *call, struct mr_http_request *request)
{
    struct gcs_store *store = store_of(call);
    struct mr_auth_headers headers;
    mr_text_add(&store->url, store->user_project.data ? store->user_project.data : "", store->user_project.length);
    request->method = "GET";
    request->stall_timeout_ms = store->base.stall_timeout_ms;
    request->arg = call;
    call->request = *request;
    call->answered = request->done;
    call->waiter.ready = on_token;
    int ready = mr_auth_headers(store->auth, &headers);
    if (!ready || headers.serial) {
        mr_text_clear(&call->url);
        mr_text_add(&call->url, store->url.data ? store->url.data : "", store->url.length);
    }
    if (store->url.failed || call->name.failed || call->url.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to gs://%s", store->base.bucket);
        return -1;
    }
    if (ready)
        return send_with(call, &headers);
    mr_auth_wait(store->auth, &call->waiter);
    return 0;
}

static void start_url(struct gcs_store *store)
{
    mr_text_clear(&store->url);
    mr_text_add(&store->url, store->objects.data, store->objects.length);
}

/* ---- list ---- */

static void on_list(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_store_result result;
    struct mr_gcs_page *page = NULL;
    char text[1024];
    call->http = NULL;
    explain(call, http, &result, text, sizeof text);
    if (result.code == MR_OK) {
        page = mr_gcs_page_parse(http->body, http->body_length, &call->list);
        if (!page)
            refuse(call, &result, text, sizeof text);
    }
    call->done.list(call->arg, &result, page ? mr_gcs_page_view(page) : NULL);
    mr_gcs_page_destroy(page);
    call_give(call);
}

static void add_parameter(struct mr_text *url, const char *key, const char *value)
{
    if (!value)
        return;
    mr_text_puts(url, key);
    mr_text_put_encoded(url, value, strlen(value));
}

static struct mr_store_call *gcs_list(struct mr_store *base, const struct mr_store_list_request *request,
                                      mr_store_list_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = call_take(store, GCS_LIST, arg);
    struct mr_http_request http = {.done = on_list};
    if (!call)
        return NULL;
    call->done.list = done;
    if (mr_store_list_copy(&call->list, request, &call->name) != 0)
        call->name.failed = 1; /* send_request says so */
    start_url(store);
    mr_text_puts(&store->url, "?" LIST_FIELDS);
    add_parameter(&store->url, "&prefix=", request->prefix);
    add_parameter(&store->url, "&startOffset=", request->start_offset);
    add_parameter(&store->url, "&endOffset=", request->end_offset);
    add_parameter(&store->url, "&pageToken=", request->page_token);
    if (request->max_results) {
        mr_text_puts(&store->url, "&maxResults=");
        mr_text_put_u64(&store->url, request->max_results);
    }
    if (send_request(call, &http) == 0)
        return &call->base;
    call_give(call);
    return NULL;
}

/* ---- stat ---- */

static void on_stat(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_store_result result;
    struct mr_store_item item;
    struct mr_gcs_page *page = NULL;
    char text[1024];
    call->http = NULL;
    explain(call, http, &result, text, sizeof text);
    if (result.code == MR_OK && mr_gcs_item_parse(http->body, http->body_length, &item, &page) != 0)
        refuse(call, &result, text, sizeof text);
    call->done.stat(call->arg, &result, page ? &item : NULL);
    mr_gcs_page_destroy(page);
    call_give(call);
}

/* "/name?<first>[&generation=n]" */
static void object_url(struct gcs_call *call, const char *first, uint64_t generation)
{
    struct gcs_store *store = store_of(call);
    start_url(store);
    mr_text_add(&store->url, "/", 1);
    mr_text_put_encoded(&store->url, call->name.data, call->name.length);
    mr_text_puts(&store->url, first);
    if (generation) {
        mr_text_puts(&store->url, "&generation=");
        mr_text_put_u64(&store->url, generation);
    }
}

static struct mr_store_call *gcs_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                      mr_store_stat_fn *done, void *arg)
{
    struct gcs_call *call = call_take((struct gcs_store *)base, GCS_STAT, arg);
    struct mr_http_request http = {.done = on_stat};
    if (!call)
        return NULL;
    call->done.stat = done;
    mr_text_add(&call->name, name, name_length);
    if (!call->name.failed)
        object_url(call, "?" STAT_FIELDS, generation);
    if (send_request(call, &http) == 0)
        return &call->base;
    call_give(call);
    return NULL;
}

/* ---- get ---- */

/* Is the answer whose head has come the bytes that were asked for? 0, or -1 with mr_error. */
static int check_head(struct gcs_call *call, int status, const struct mr_http_headers *headers)
{
    const struct mr_store_get_request *get = &call->get;
    call->head_checked = 1;
    if (headers->has_generation)
        call->got.generation = headers->generation;
    call->got.has_crc32c = headers->has_crc32c;
    call->got.crc32c = headers->crc32c;
    if (headers->gunzipped) {
        mr_error_set(MR_E_PROTOCOL, "the server decompressed it on the way although Accept-Encoding: gzip was sent; a "
                                    "proxy may have dropped that header");
        return -1;
    }
    if (get->generation && headers->has_generation && headers->generation != get->generation) {
        mr_error_set(MR_E_CHANGED, "changed since the listing: generation %llu was listed, %llu is there",
                     (unsigned long long)get->generation, (unsigned long long)headers->generation);
        return -1;
    }
    if (status == 206) {
        if (headers->has_content_range && headers->range_first == get->offset &&
            headers->range_last - headers->range_first < get->length)
            return 0;
        mr_error_set(MR_E_PROTOCOL, "bytes %llu and %llu more were asked for, and others came",
                     (unsigned long long)get->offset, (unsigned long long)get->length);
        return -1;
    }
    if (get->offset > 0) {
        mr_error_set(MR_E_PROTOCOL, "a range was asked for, and the whole object came (status %d)", status);
        return -1;
    }
    if (headers->has_content_length && headers->content_length != get->length) {
        mr_error_set(get->generation || !get->whole ? MR_E_PROTOCOL : MR_E_CHANGED,
                     "%llu bytes were expected, and %llu came", (unsigned long long)get->length,
                     (unsigned long long)headers->content_length);
        return -1;
    }
    return 0;
}

static int on_get_body(void *arg, const struct mr_http_call *http, const void *data, size_t length)
{
    struct gcs_call *call = arg;
    if (!call->head_checked && check_head(call, mr_http_call_status(http), mr_http_call_headers(http)) != 0)
        return -1;
    if (length > call->get.length - call->got.received) {
        mr_error_set(MR_E_PROTOCOL, "more than the %llu bytes that were expected came",
                     (unsigned long long)call->get.length);
        return -1;
    }
    memcpy(call->get.dest + call->got.received, data, length);
    call->got.received += length;
    if (call->get.progress)
        call->get.progress(call->arg, length);
    return 0;
}

static int send_lookup(struct gcs_call *call);

static void finish_get(struct gcs_call *call, const struct mr_store_result *result)
{
    call->done.get(call->arg, result, &call->got);
    call_give(call);
}

static void on_get(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_store_result result;
    char text[1024];
    call->http = NULL;
    explain(call, http, &result, text, sizeof text);
    if ((result.status == 404 || result.status == 412) && call->get.generation) {
        call->lost = result;
        if (send_lookup(call) == 0)
            return;
        refuse(call, &result, text, sizeof text);
    }
    if (result.code == MR_OK && !call->head_checked && check_head(call, http->status, &http->headers) != 0)
        refuse(call, &result, text, sizeof text);
    if (result.code == MR_OK && call->got.received < call->get.length) {
        mr_error_set(MR_E_NET, "the answer ended after %llu of %llu bytes", (unsigned long long)call->got.received,
                     (unsigned long long)call->get.length);
        refuse(call, &result, text, sizeof text);
    }
    finish_get(call, &result);
}

/* The generation that was asked for is gone: is there another, or none? */
static void on_lookup(void *arg, const struct mr_http_result *http)
{
    struct gcs_call *call = arg;
    struct mr_store_result result;
    struct mr_store_item item;
    struct mr_gcs_page *page = NULL;
    char text[1024], uri[400];
    call->http = NULL;
    explain(call, http, &result, text, sizeof text);
    if (result.code == MR_OK && mr_gcs_item_parse(http->body, http->body_length, &item, &page) != 0)
        refuse(call, &result, text, sizeof text);
    if (result.code == MR_OK) {
        result = call->lost;
        result.code = MR_E_CHANGED;
        int same = item.generation == call->get.generation;
        snprintf(text, sizeof text, "%s: %s: generation %llu was %s, %llu is there", call_uri(call, uri, sizeof uri),
                 same ? "the server contradicts itself" : "changed since the listing",
                 (unsigned long long)call->get.generation, same ? "not found" : "listed",
                 (unsigned long long)item.generation);
    } else if (result.code == MR_E_NOT_FOUND) {
        result.code = MR_E_NOT_FOUND;
        snprintf(text, sizeof text, "%s: deleted since the listing (generation %llu)", call_uri(call, uri, sizeof uri),
                 (unsigned long long)call->get.generation);
    }
    result.text = text;
    mr_gcs_page_destroy(page);
    finish_get(call, &result);
}

static int send_lookup(struct gcs_call *call)
{
    struct mr_http_request http = {.done = on_lookup};
    object_url(call, "?" STAT_FIELDS, 0);
    return send_request(call, &http);
}

static struct mr_store_call *gcs_get(struct mr_store *base, const struct mr_store_get_request *request,
                                     mr_store_get_fn *done, void *arg)
{
    struct gcs_call *call = call_take((struct gcs_store *)base, GCS_GET, arg);
    struct mr_http_request http = {
        .sink = on_get_body,
        .done = on_get,
        .has_range = !request->whole,
        .range_first = request->offset,
        .range_last = request->offset + request->length - 1,
        .fresh_connection = request->fresh_connection,
    };
    if (!call)
        return NULL;
    call->done.get = done;
    call->get = *request;
    mr_text_add(&call->name, request->name, request->name_length);
    if (!call->name.failed)
        object_url(call, "?alt=media", request->generation);
    if (send_request(call, &http) == 0)
        return &call->base;
    call_give(call);
    return NULL;
}

/* ---- life ---- */

static void gcs_destroy(struct mr_store *base)
{
    struct gcs_store *store = (struct gcs_store *)base;
    while (store->pool) {
        struct gcs_call *call = store->pool;
        store->pool = call->next_free;
        mr_text_close(&call->name);
        mr_text_close(&call->url);
        free(call);
    }
    mr_auth_destroy(store->auth);
    mr_text_close(&store->objects);
    mr_text_close(&store->user_project);
    mr_text_close(&store->url);
    free(store->endpoint);
    free(store);
}

static const struct mr_store_ops gcs_ops = {gcs_list, gcs_get, gcs_stat, gcs_cancel, gcs_destroy};

/* malloc'ed "scheme://host[:port]" without a slash at its end; text may lack the scheme (STORAGE_EMULATOR_HOST). */
static char *make_endpoint(const char *text, const char *origin)
{
    const char *scheme = strstr(text, "://") ? "" : "http://", *host;
    char *endpoint = NULL;
    if (asprintf(&endpoint, "%s%s", scheme, text) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an endpoint");
        return NULL;
    }
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        endpoint[--n] = 0;
    if (strncmp(endpoint, "http://", 7) == 0)
        host = endpoint + 7;
    else if (strncmp(endpoint, "https://", 8) == 0)
        host = endpoint + 8;
    else
        host = "";
    if (!host[0] || strcspn(host, " \t\r\n?#@") != strlen(host)) {
        mr_error_set(MR_E_CONFIG, "%s \"%s\" is not of the form http[s]://host[:port]", origin, text);
        free(endpoint);
        return NULL;
    }
    return endpoint;
}

struct mr_store *mr_store_gcs_new(const struct mr_store_options *options)
{
    const char *emulator = getenv("STORAGE_EMULATOR_HOST");
    struct gcs_store *store = calloc(1, sizeof *store);
    if (!store) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        return NULL;
    }
    store->base.ops = &gcs_ops;
    if (!options->bucket || !options->bucket[0]) {
        mr_error_set(MR_E_USAGE, "a gs:// URI needs a bucket");
        goto fail;
    }
    int from_emulator = !options->endpoint && emulator && emulator[0];
    if (options->endpoint)
        store->endpoint = make_endpoint(options->endpoint, "[gcs] endpoint");
    else if (from_emulator)
        store->endpoint = make_endpoint(emulator, "STORAGE_EMULATOR_HOST");
    else
        store->endpoint = make_endpoint(PUBLIC_ENDPOINT, "endpoint");
    if (!store->endpoint)
        goto fail;
    store->auth = mr_auth_new(options->auth, from_emulator, options->http);
    if (!store->auth) {
        mr_error_append("gs://%s", options->bucket);
        goto fail;
    }
    mr_text_puts(&store->objects, store->endpoint);
    mr_text_puts(&store->objects, "/storage/v1/b/");
    mr_text_put_encoded(&store->objects, options->bucket, strlen(options->bucket));
    mr_text_puts(&store->objects, "/o");
    if (options->user_project && options->user_project[0])
        add_parameter(&store->user_project, "&userProject=", options->user_project);
    if (store->objects.failed || store->user_project.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        goto fail;
    }
    return &store->base;
fail:
    gcs_destroy(&store->base);
    return NULL;
}
