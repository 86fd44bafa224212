/* Upload parts of the GCS client: multipart uploads of the XML API. Facts: docs/protocols.md, "Google Cloud Storage";
 * https://cloud.google.com/storage/docs/xml-api. */
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "worker/store/gcs_impl.h"
#include "worker/store/xml.h"

/* A call whose URL is ".../bucket[/name]?<query>", to be added to. */
static struct gcs_call *xml_call(struct gcs_store *store, const char *name, size_t name_length, const char *query,
                                 void *arg)
{
    struct gcs_call *call = mr_gcs_take(store, GCS_XML, arg);
    if (!call)
        return NULL;
    call->generation_match = MR_STORE_ANY;
    mr_text_add(&call->name, name, name_length);
    if (store->project)
        mr_gcs_line(call, "x-goog-user-project: ", store->project);
    mr_text_clear(&store->url);
    mr_text_puts(&store->url, store->endpoint);
    mr_text_puts(&store->url, "/");
    mr_text_put_encoded(&store->url, store->base.bucket, strlen(store->base.bucket));
    if (name_length)
        mr_text_puts(&store->url, "/");
    mr_text_put_encoded(&store->url, name, name_length);
    mr_text_puts(&store->url, query);
    return call;
}

bool mr_gcs_has_parts(const struct mr_store *base)
{
    return !((const struct gcs_store *)base)->no_parts;
}

/* The response's XML if it has that root; else NULL, with the reason in answer->result. */
static struct mr_xml *take_xml(struct gcs_call *call, struct gcs_answer *answer, const char *root)
{
    const struct mr_http_result *http = answer->http;
    struct mr_xml *xml = mr_xml_parse(http->body, http->body_length);
    if (xml && strcmp(mr_xml_root(xml), root) == 0)
        return xml;
    char words[300];
    if (xml && strcmp(mr_xml_root(xml), "Error") == 0) { /* in a 200: docs/protocols.md, "S3" */
        mr_gcs_error_text(http->body, http->body_length, words, sizeof words);
        mr_error_set(strcmp(mr_xml_text(xml, "Code"), "InternalError") == 0 ? MR_E_BUSY : MR_E_PROTOCOL, "%s", words);
    } else if (xml) {
        mr_error_set(MR_E_PROTOCOL, "%s was expected, and %.60s came", root, mr_xml_root(xml));
    }
    mr_gcs_refuse(call, answer);
    mr_xml_destroy(xml);
    return NULL;
}

/* ---- begin ---- */

/* Whether the endpoint does not know such uploads. A bucket that does not exist is another matter. */
static bool says_unknown(const struct mr_http_result *http)
{
    int status = http->status;
    return http->code == MR_OK && (status == 400 || status == 404 || status == 405 || status == 501) &&
           !memmem(http->body, http->body_length, "NoSuchBucket", 12);
}

/* Remembers an endpoint without multipart uploads in no_parts. */
static void gcs_parts_on_begin(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    if (says_unknown(http)) {
        mr_gcs_store(call)->no_parts = true;
        mr_error_set(MR_E_PROTOCOL, "the endpoint has no multipart uploads (HTTP status %d)", http->status);
        mr_gcs_refuse(call, answer);
    }
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK)
        xml = take_xml(call, answer, "InitiateMultipartUploadResult");
    const char *id = xml ? mr_xml_text(xml, "UploadId") : "";
    if (answer->result.code == MR_OK && !id[0]) {
        mr_error_set(MR_E_PROTOCOL, "an upload without an id was begun");
        mr_gcs_refuse(call, answer);
    }
    call->done.parts_begin(call->arg, &answer->result, answer->result.code == MR_OK ? id : NULL);
    mr_xml_destroy(xml);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_parts_begin(struct mr_store *base, const char *name, size_t name_length,
                                         const char *content_type, mr_store_parts_begin_fn *done, void *arg)
{
    struct gcs_call *call = xml_call((struct gcs_store *)base, name, name_length, "?uploads", arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {.method = "POST", .body = call->body, .body_count = 1};
    call->done.parts_begin = done;
    call->body[0] = (struct mr_http_piece){NULL, 0};
    mr_gcs_line(call, "Content-Type: ", content_type ? content_type : MR_GCS_CONTENT_TYPE);
    return mr_gcs_start(call, &http, gcs_parts_on_begin);
}

/* ---- a part ---- */

static void gcs_parts_on_part(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    const char *etag = http->headers.etag;
    if (answer->result.code == MR_OK && (!etag[0] || strlen(etag) + 1 >= sizeof http->headers.etag)) {
        mr_error_set(MR_E_PROTOCOL, "a part was taken without a usable ETag");
        mr_gcs_refuse(call, answer);
    }
    if (answer->result.code == MR_OK && http->headers.checksum.kind == MR_CHECKSUM_CRC32C &&
        http->headers.checksum.value != call->crc32c) {
        mr_error_set(MR_E_CORRUPT,
                     "the store has other bytes of a part than were sent"); /* sent again, it replaces them */
        mr_gcs_refuse(call, answer);
    }
    call->done.part(call->arg, &answer->result, answer->result.code == MR_OK ? etag : NULL);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_part_send(struct mr_store *base, const struct mr_upload_part_request *request,
                                       mr_upload_part_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = xml_call(store, request->name, request->name_length, "?partNumber=", arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {.method = "PUT", .body = call->body, .body_count = 1};
    call->done.part = done;
    call->crc32c = request->crc32c;
    call->body[0] = (struct mr_http_piece){request->data, request->length};
    mr_text_put_u64(&store->url, request->number);
    mr_gcs_parameter(&store->url, "&uploadId=", request->id);
    char hash[] = "crc32c=AAAAAA==";
    mr_crc32c_to_base64(request->crc32c, hash + strlen("crc32c="));
    mr_gcs_line(call, "x-goog-hash: ", hash);
    mr_gcs_line(call, "Content-Type: ", MR_GCS_CONTENT_TYPE);
    return mr_gcs_start(call, &http, gcs_parts_on_part);
}

/* ---- complete ---- */

static void gcs_parts_on_complete(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    if (answer->result.code == MR_OK)
        mr_xml_destroy(take_xml(call, answer, "CompleteMultipartUploadResult"));
    call->done.complete(call->arg, &answer->result,
                        answer->result.code == MR_OK && http->headers.has_generation ? http->headers.generation : 0);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_parts_complete(struct mr_store *base, const struct mr_store_complete_request *request,
                                            mr_store_complete_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = xml_call(store, request->name, request->name_length, "?", arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {
        .method = "POST", .body = call->body, .body_count = 1, .drip_ms = MR_STORE_COMPLETE_MS};
    struct mr_text *body = &call->head;
    call->done.complete = done;
    mr_gcs_parameter(&store->url, "uploadId=", request->id);
    mr_text_puts(body, "<CompleteMultipartUpload>");
    for (unsigned i = 0; i < request->count; i++) {
        mr_text_puts(body, "<Part><PartNumber>");
        mr_text_put_u64(body, request->parts[i].number);
        mr_text_puts(body, "</PartNumber><ETag>");
        mr_text_put_xml(body, request->parts[i].etag, strlen(request->parts[i].etag));
        mr_text_puts(body, "</ETag></Part>");
    }
    mr_text_puts(body, "</CompleteMultipartUpload>");
    call->body[0] = (struct mr_http_piece){body->data, body->length};
    mr_gcs_line(call, "Content-Type: ", "application/xml");
    return mr_gcs_start(call, &http, gcs_parts_on_complete);
}

/* ---- abort ---- */

struct mr_store_call *mr_gcs_parts_abort(struct mr_store *base, const char *name, size_t name_length, const char *id,
                                         mr_store_delete_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = xml_call(store, name, name_length, "?", arg);
    if (!call)
        return NULL;
    call->done.remove = done;
    mr_gcs_parameter(&store->url, "uploadId=", id);
    return mr_gcs_start(call, &(struct mr_http_request){.method = "DELETE"}, mr_gcs_on_removed);
}

/* ---- what is under way ---- */

static void gcs_parts_on_list(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_pending_page page = {0};
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK) {
        xml = mr_xml_parse(http->body, http->body_length);
        if (!xml || mr_xml_pending(xml, &page) != 0)
            mr_gcs_refuse(call, answer);
    }
    page.now_s = http->headers.date_s;
    call->done.pending(call->arg, &answer->result, answer->result.code == MR_OK ? &page : NULL);
    mr_xml_destroy(xml);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                        const char *from_id, mr_store_parts_list_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = xml_call(store, "", 0, "?uploads", arg);
    if (!call)
        return NULL;
    call->done.pending = done;
    mr_gcs_parameter(&store->url, "&prefix=", prefix && prefix[0] ? prefix : NULL);
    mr_gcs_parameter(&store->url, "&key-marker=", from_name);
    mr_gcs_parameter(&store->url, "&upload-id-marker=", from_id && from_id[0] ? from_id : NULL);
    return mr_gcs_start(call, &(struct mr_http_request){0}, gcs_parts_on_list);
}
