/* Resumable uploads of the GCS client. Facts: docs/protocols.md, "Google Cloud Storage";
 * https://cloud.google.com/storage/docs/performing-resumable-uploads. */
#include <stdio.h>
#include <string.h>

#include "worker/store/gcs_impl.h"

/* ---- begin ---- */

/* The path and query of a URL; NULL if unusable. A session's requests go to our endpoint, whichever host an emulator
 * names. */
static const char *path_of(const char *url)
{
    const char *host = strstr(url, "://");
    const char *path = host ? strchr(host + 3, '/') : url;
    if (!path || path[0] != '/')
        return NULL;
    for (const char *at = path; *at; at++) {
        if (*at <= ' ' || *at > '~')
            return NULL;
    }
    return strlen(path) < MR_STORE_NAME_MAX ? path : NULL;
}

static void gcs_upload_on_begin(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    const char *path = NULL;
    if (answer->result.code == MR_OK) {
        path = path_of(http->location);
        if (!path) {
            mr_error_set(MR_E_PROTOCOL, "the store began an upload session without a usable Location");
            mr_gcs_refuse(call, answer);
        }
    }
    call->done.begin(call->arg, &answer->result, path);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_upload_begin(struct mr_store *base, const struct mr_store_upload_request *request,
                                          mr_store_begin_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_UPLOAD, arg);
    const char *type = request->content_type ? request->content_type : MR_GCS_CONTENT_TYPE;
    if (!call)
        return NULL;
    struct mr_http_request http = {.method = "POST", .body = call->body, .body_count = 1};
    call->done.begin = done;
    call->generation_match = request->generation_match;
    mr_text_add(&call->name, request->name, request->name_length);
    mr_text_puts(&call->head, "{\"name\":");
    mr_text_put_json(&call->head, request->name, request->name_length);
    mr_text_puts(&call->head, ",\"contentType\":");
    mr_text_put_json(&call->head, type, strlen(type));
    mr_text_puts(&call->head, "}");
    call->body[0] = (struct mr_http_piece){call->head.data, call->head.length};
    mr_gcs_line(call, "Content-Type: ", "application/json; charset=UTF-8");
    mr_gcs_line(call, "X-Upload-Content-Type: ", type);
    mr_gcs_objects_url(store, "/upload");
    mr_text_puts(&store->url, "?uploadType=resumable&name=");
    mr_text_put_encoded(&store->url, request->name, request->name_length);
    mr_gcs_match(&store->url, "ifGenerationMatch", request->generation_match);
    return mr_gcs_start(call, &http, gcs_upload_on_begin);
}

/* ---- send ---- */

static struct gcs_call *session_call(struct gcs_store *store, const char *session, void *arg)
{
    struct gcs_call *call = mr_gcs_take(store, GCS_SESSION, arg);
    if (!call)
        return NULL;
    mr_text_clear(&store->url);
    mr_text_puts(&store->url, store->endpoint);
    mr_text_puts(&store->url, session);
    return call;
}

/* 308 is a success too: the upload is not complete yet, and its Range header says how much was kept. */
static void on_sent(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_result *result = &answer->result;
    struct mr_store_uploaded state = {0};
    struct mr_store_item item;
    struct mr_gcs_page *page = NULL;
    if (http->code == MR_OK && http->status == 308) {
        *result = (struct mr_store_result){.code = MR_OK, .text = "", .status = 308};
        state.kept = http->headers.has_kept ? http->headers.kept : 0;
    } else if (result->code == MR_OK) {
        if (mr_gcs_item_parse(http->body, http->body_length, &item, &page) != 0) {
            mr_gcs_refuse(call, answer);
        } else {
            state.kept = item.size;
            state.item = &item;
        }
    }
    if (result->code == MR_OK && !state.item && state.kept > call->sent_to) {
        mr_error_set(MR_E_PROTOCOL, "the upload session claims %llu bytes, and %llu were sent",
                     (unsigned long long)state.kept, (unsigned long long)call->sent_to);
        mr_gcs_refuse(call, answer);
    }
    call->done.upload(call->arg, result, result->code == MR_OK ? &state : NULL);
    mr_gcs_page_destroy(page);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_upload_send(struct mr_store *base, const struct mr_store_chunk *chunk,
                                         mr_store_upload_fn *done, void *arg)
{
    struct gcs_call *call = session_call((struct gcs_store *)base, chunk->session, arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {.method = "PUT", .body = call->body, .body_count = 1};
    call->done.upload = done;
    call->generation_match = chunk->upload->generation_match;
    call->sent_to = chunk->offset + chunk->length;
    mr_text_add(&call->name, chunk->upload->name, chunk->upload->name_length);
    char total[24] = "*";
    if (chunk->total != MR_STORE_ANY)
        snprintf(total, sizeof total, "%llu", (unsigned long long)chunk->total);
    char range[80];
    if (chunk->length > 0)
        snprintf(range, sizeof range, "bytes %llu-%llu/%s", (unsigned long long)chunk->offset,
                 (unsigned long long)(chunk->offset + chunk->length - 1), total);
    else
        snprintf(range, sizeof range, "bytes */%s", total);
    call->body[0] = (struct mr_http_piece){chunk->data, chunk->length};
    mr_gcs_line(call, "Content-Range: ", range);
    mr_gcs_line(call, "Content-Type: ", MR_GCS_CONTENT_TYPE);
    return mr_gcs_start(call, &http, on_sent);
}

/* ---- drop ---- */

static void on_dropped(struct gcs_call *call, struct gcs_answer *answer)
{
    (void)answer; /* 499 if it existed; a session that stays expires after a week, and costs nothing */
    mr_gcs_give(call);
}

void mr_gcs_upload_drop(struct mr_store *base, const char *session)
{
    struct gcs_call *call = session_call((struct gcs_store *)base, session, NULL);
    if (call && mr_gcs_send(call, &(struct mr_http_request){.method = "DELETE"}, on_dropped) != 0)
        mr_gcs_give(call);
}
