/* Listing, look-ups and reads of the GCS client. Facts: docs/protocols.md, "Google Cloud Storage". */
#include <stdio.h>
#include <string.h>

#include "worker/store/gcs_impl.h"

/* Only what the index keeps: the rest of an object's metadata is ten times as long. */
#define LIST_FIELDS "projection=noAcl&fields=items(name,size,generation,crc32c,storageClass"

/* ---- list ---- */

static void gcs_read_on_list(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_gcs_page *page = NULL;
    if (answer->result.code == MR_OK) {
        page = mr_gcs_page_parse(http->body, http->body_length, &call->list);
        if (!page)
            mr_gcs_refuse(call, answer);
    }
    struct mr_store_page view = {0};
    if (page)
        view = *mr_gcs_page_view(page);
    view.now_s = http->headers.date_s;
    call->done.list(call->arg, &answer->result, page ? &view : NULL);
    mr_gcs_page_destroy(page);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_list(struct mr_store *base, const struct mr_store_list_request *request,
                                  mr_store_list_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_LIST, arg);
    if (!call)
        return NULL;
    call->done.list = done;
    if (mr_store_list_copy(&call->list, request, &call->name) != 0)
        call->name.failed = true; /* mr_gcs_send reports it */
    mr_gcs_objects_url(store, "");
    mr_text_puts(&store->url, "?" LIST_FIELDS);
    mr_text_puts(&store->url, request->with_times ? ",timeCreated),nextPageToken" : "),nextPageToken");
    mr_gcs_parameter(&store->url, "&prefix=", request->prefix);
    mr_gcs_parameter(&store->url, "&startOffset=", request->start_offset);
    mr_gcs_parameter(&store->url, "&endOffset=", request->end_offset);
    mr_gcs_parameter(&store->url, "&pageToken=", request->page_token);
    if (request->max_results) {
        mr_text_puts(&store->url, "&maxResults=");
        mr_text_put_u64(&store->url, request->max_results);
    }
    return mr_gcs_start(call, &(struct mr_http_request){0}, gcs_read_on_list);
}

/* ---- stat ---- */

void mr_gcs_on_item(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_item item;
    struct mr_gcs_page *page = NULL;
    if (answer->result.code == MR_OK && mr_gcs_item_parse(http->body, http->body_length, &item, &page) != 0)
        mr_gcs_refuse(call, answer);
    call->done.stat(call->arg, &answer->result, page ? &item : NULL);
    mr_gcs_page_destroy(page);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                  mr_store_stat_fn *done, void *arg)
{
    struct gcs_call *call = mr_gcs_take((struct gcs_store *)base, GCS_STAT, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    mr_text_add(&call->name, name, name_length);
    if (!call->name.failed)
        mr_gcs_object_url(call, "?" MR_GCS_STAT_FIELDS, generation);
    return mr_gcs_start(call, &(struct mr_http_request){0}, mr_gcs_on_item);
}

/* ---- get ---- */

/* Checks that a response whose header has arrived has the requested bytes. 0, or -1 with mr_error. */
static int check_head(struct gcs_call *call, int status, const struct mr_http_headers *headers)
{
    struct mr_get_body *body = &call->body_in;
    body->head_checked = true;
    if (headers->has_generation)
        body->got.generation = headers->generation;
    body->got.checksum = headers->checksum;
    body->got.gzip = headers->gzip;
    if (headers->gunzipped) {
        mr_error_set(MR_E_PROTOCOL, "the server decompressed it on the way although Accept-Encoding: gzip was sent; a "
                                    "proxy may have dropped that header");
        return -1;
    }
    if (body->get.generation && headers->has_generation && headers->generation != body->get.generation) {
        mr_error_set(MR_E_CHANGED, "changed since the listing: generation %llu was listed, %llu is there",
                     (unsigned long long)body->get.generation, (unsigned long long)headers->generation);
        return -1;
    }
    char uri[400];
    return mr_get_body_head(body, call->base.store, mr_gcs_uri(call, uri, sizeof uri), status, headers);
}

static void *get_room(void *arg, size_t *length)
{
    struct gcs_call *call = arg;
    return mr_get_body_room(&call->body_in, length);
}

static int on_get_body(void *arg, const struct mr_http_call *http, const void *data, size_t length)
{
    struct gcs_call *call = arg;
    if (!call->body_in.head_checked && check_head(call, mr_http_call_status(http), mr_http_call_headers(http)) != 0)
        return -1;
    return mr_get_body_take(&call->body_in, call->arg, data, length);
}

static int send_lookup(struct gcs_call *call);

static void finish_get(struct gcs_call *call, const struct mr_store_result *result)
{
    call->done.get(call->arg, result, &call->body_in.got);
    mr_gcs_give(call);
}

/* If the requested generation does not exist, a look-up finds out whether the object was changed or deleted. */
static void on_get(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    call->body_in.got.first_ns = http->first_ns;
    call->body_in.got.gap_ns = http->gap_ns;
    call->body_in.got.body_ns = http->body_ns;
    if ((answer->result.status == 404 || answer->result.status == 412) && call->body_in.get.generation) {
        call->lost = answer->result;
        if (send_lookup(call) == 0)
            return;
        mr_gcs_refuse(call, answer);
    }
    if (answer->result.code == MR_OK && !call->body_in.head_checked &&
        check_head(call, http->status, &http->headers) != 0)
        mr_gcs_refuse(call, answer);
    if (answer->result.code == MR_OK && mr_get_body_end(&call->body_in) != 0)
        mr_gcs_refuse(call, answer);
    finish_get(call, &answer->result);
}

/* The requested generation no longer exists: is there another one, or none? */
static void on_lookup(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_item item;
    struct mr_gcs_page *page = NULL;
    if (answer->result.code == MR_OK && mr_gcs_item_parse(http->body, http->body_length, &item, &page) != 0)
        mr_gcs_refuse(call, answer);
    char uri[400];
    if (answer->result.code == MR_OK) {
        answer->result = call->lost;
        answer->result.code = MR_E_CHANGED;
        bool same = item.generation == call->body_in.get.generation;
        snprintf(answer->text, sizeof answer->text, "%s: %s: generation %llu was %s, %llu is there",
                 mr_gcs_uri(call, uri, sizeof uri),
                 same ? "the server contradicts itself" : "changed since the listing",
                 (unsigned long long)call->body_in.get.generation, same ? "not found" : "listed",
                 (unsigned long long)item.generation);
    } else if (answer->result.code == MR_E_NOT_FOUND) {
        snprintf(answer->text, sizeof answer->text, "%s: deleted since the listing (generation %llu)",
                 mr_gcs_uri(call, uri, sizeof uri), (unsigned long long)call->body_in.get.generation);
    }
    answer->result.text = answer->text;
    mr_gcs_page_destroy(page);
    finish_get(call, &answer->result);
}

static int send_lookup(struct gcs_call *call)
{
    mr_gcs_object_url(call, "?" MR_GCS_STAT_FIELDS, 0);
    return mr_gcs_send(call, &(struct mr_http_request){0}, on_lookup);
}

struct mr_store_call *mr_gcs_get(struct mr_store *base, const struct mr_store_get_request *request,
                                 mr_store_get_fn *done, void *arg)
{
    struct gcs_call *call = mr_gcs_take((struct gcs_store *)base, GCS_GET, arg);
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
    mr_text_add(&call->name, request->name, request->name_length);
    if (!call->name.failed)
        mr_gcs_object_url(call, "?alt=media", request->generation);
    return mr_gcs_start(call, &http, on_get);
}
