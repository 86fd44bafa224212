/* Upload parts of the S3 client: multipart uploads. Facts: docs/protocols.md, "S3". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/s3_impl.h"

bool mr_s3_has_parts(const struct mr_store *base)
{
    (void)base;
    return true;
}

/* ---- begin ---- */

int mr_s3_send_begin(struct s3_call *call, const char *content_type, s3_answered_fn *answered)
{
    struct s3_store *store = mr_s3_store(call);
    struct mr_http_request http = {.method = "POST"};
    mr_s3_target(call, "?uploads");
    mr_s3_line(call, "Content-Type: ", content_type ? content_type : MR_S3_CONTENT_TYPE);
    if (store->sends_checksums) {
        mr_s3_line(call, "x-amz-checksum-algorithm: ", "CRC32C");
        mr_s3_line(call, "x-amz-checksum-type: ", "FULL_OBJECT");
    }
    mr_s3_more_lines(call, &store->writes);
    mr_s3_body(call, &http, NULL, 0, true);
    return mr_s3_send(call, &http, answered);
}

static void s3_parts_on_begin(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK)
        xml = mr_s3_xml(call, answer, "InitiateMultipartUploadResult");
    const char *id = xml ? mr_xml_text(xml, "UploadId") : "";
    if (answer->result.code == MR_OK && !id[0]) {
        mr_error_set(MR_E_PROTOCOL, "an upload without an id was begun");
        mr_s3_refuse(call, answer);
    }
    call->done.parts_begin(call->arg, &answer->result, answer->result.code == MR_OK ? id : NULL);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_parts_begin(struct mr_store *base, const char *name, size_t name_length,
                                        const char *content_type, mr_store_parts_begin_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_BEGIN, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.parts_begin = done;
    if (mr_s3_send_begin(call, content_type, s3_parts_on_begin) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- a part ---- */

int mr_s3_send_part(struct s3_call *call, const char *id, unsigned number, const void *data, uint64_t length,
                    s3_answered_fn *answered)
{
    struct mr_http_request http = {.method = "PUT"};
    mr_s3_target(call, "?partNumber=");
    mr_text_put_u64(&call->target, number);
    mr_s3_parameter(call, "&uploadId=", id);
    mr_s3_line(call, "Content-Type: ", MR_S3_CONTENT_TYPE); /* libcurl's own would be a form's */
    mr_s3_checksum_line(call, &call->sum);
    mr_s3_more_lines(call, &mr_s3_store(call)->reads);
    mr_s3_body(call, &http, data, length, false);
    return mr_s3_send(call, &http, answered);
}

const char *mr_s3_part_etag(struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_headers *headers = &answer->http->headers;
    if (answer->result.code == MR_OK && (!headers->etag[0] || strlen(headers->etag) + 1 >= sizeof headers->etag)) {
        mr_error_set(MR_E_PROTOCOL, "a part was taken without a usable ETag");
        mr_s3_refuse(call, answer);
    }
    if (answer->result.code == MR_OK && headers->checksum.kind == call->sum.kind &&
        headers->checksum.value != call->sum.value) {
        mr_error_set(MR_E_CORRUPT,
                     "the store has other bytes of a part than were sent"); /* sent again, it replaces them */
        mr_s3_refuse(call, answer);
    }
    return answer->result.code == MR_OK ? headers->etag : NULL;
}

static void s3_parts_on_part(struct s3_call *call, struct s3_answer *answer)
{
    const char *etag = mr_s3_part_etag(call, answer);
    call->done.part(call->arg, &answer->result, etag);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_part_send(struct mr_store *base, const struct mr_upload_part_request *request,
                                      mr_upload_part_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_PART, request->name, request->name_length, arg);
    if (!call)
        return NULL;
    call->done.part = done;
    call->sum = (struct mr_checksum){MR_CHECKSUM_CRC32C, request->crc32c};
    if (mr_s3_send_part(call, request->id, request->number, request->data, request->length, s3_parts_on_part) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- complete ---- */

void mr_s3_put_parts(struct s3_call *call, const struct mr_upload_part *parts, unsigned count)
{
    struct mr_text *body = &call->head;
    mr_text_clear(body);
    mr_text_puts(body, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (unsigned i = 0; i < count; i++) {
        mr_text_puts(body, "<Part><PartNumber>");
        mr_text_put_u64(body, parts[i].number);
        mr_text_puts(body, "</PartNumber><ETag>");
        mr_text_put_xml(body, parts[i].etag, strlen(parts[i].etag));
        mr_text_puts(body, "</ETag>");
        if (mr_s3_store(call)->sends_checksums) {
            const struct mr_checksum sum = {MR_CHECKSUM_CRC32C, parts[i].crc32c};
            char text[MR_CHECKSUM_TEXT_SIZE];
            mr_text_puts(body, "<ChecksumCRC32C>");
            mr_text_puts(body, mr_checksum_to_base64(&sum, text));
            mr_text_puts(body, "</ChecksumCRC32C>");
        }
        mr_text_puts(body, "</Part>");
    }
    mr_text_puts(body, "</CompleteMultipartUpload>");
}

int mr_s3_send_complete(struct s3_call *call, const char *id, uint64_t size, uint32_t crc32c, s3_answered_fn *answered)
{
    struct mr_http_request http = {.method = "POST", .drip_ms = MR_STORE_COMPLETE_MS};
    const struct mr_checksum sum = {MR_CHECKSUM_CRC32C, crc32c};
    char bytes[24];
    mr_s3_target(call, "?");
    mr_s3_parameter(call, "uploadId=", id);
    mr_s3_line(call, "Content-Type: ", "application/xml");
    mr_s3_match_line(call);
    if (mr_s3_store(call)->sends_checksums) {
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)size);
        mr_s3_checksum_line(call, &sum);
        mr_s3_line(call, "x-amz-checksum-type: ", "FULL_OBJECT");
        mr_s3_line(call, "x-amz-mp-object-size: ", bytes);
    }
    mr_s3_more_lines(call, &mr_s3_store(call)->reads);
    mr_s3_body(call, &http, call->head.data, call->head.length, true);
    return mr_s3_send(call, &http, answered);
}

/* White space keeps the connection alive while the store works; then a result comes, or an error in a 200. */
static void s3_parts_on_complete(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_xml *xml = NULL;
    uint64_t generation = 0;
    if (answer->result.code == MR_OK)
        xml = mr_s3_xml(call, answer, "CompleteMultipartUploadResult");
    if (xml && mr_xml_text(xml, "ETag")[0])
        generation = mr_s3_generation(mr_xml_text(xml, "ETag"));
    call->done.complete(call->arg, &answer->result, generation);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

static int send_complete(struct s3_call *call)
{
    return mr_s3_send_complete(call, call->id.data, call->size, call->crc32c, s3_parts_on_complete);
}

static void fail_complete(struct s3_call *call, struct s3_answer *answer)
{
    call->done.complete(call->arg, &answer->result, 0);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_parts_complete(struct mr_store *base, const struct mr_store_complete_request *request,
                                           mr_store_complete_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_COMPLETE, request->name, request->name_length, arg);
    if (!call)
        return NULL;
    call->done.complete = done;
    call->generation_match = request->generation_match;
    call->size = request->size;
    call->crc32c = request->crc32c;
    mr_text_clear(&call->id);
    mr_text_puts(&call->id, request->id);
    mr_s3_put_parts(call, request->parts, request->count);
    call->name.failed |= call->id.failed; /* mr_s3_send reports it */
    if (mr_s3_resolve(call, send_complete, fail_complete) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- abort ---- */

struct mr_store_call *mr_s3_parts_abort(struct mr_store *base, const char *name, size_t name_length, const char *id,
                                        mr_store_delete_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_ABORT, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.remove = done;
    mr_s3_target(call, "?");
    mr_s3_parameter(call, "uploadId=", id);
    return mr_s3_start(call, &(struct mr_http_request){.method = "DELETE"}, mr_s3_on_removed);
}

/* ---- what is under way ---- */

/* A directory bucket lists whole folders: keeps the uploads whose names begin with the prefix. */
static void keep_prefix(struct mr_store_pending_page *page, const char *prefix)
{
    struct mr_store_pending *items = (struct mr_store_pending *)(uintptr_t)page->items; /* the response's own */
    size_t kept = 0;
    for (size_t i = 0; i < page->count; i++)
        if (strncmp(items[i].name, prefix, strlen(prefix)) == 0)
            items[kept++] = items[i];
    page->count = kept;
}

static void s3_parts_on_list(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_store_pending_page page = {0};
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK)
        xml = mr_s3_xml(call, answer, "ListMultipartUploadsResult");
    if (xml && mr_xml_pending(xml, &page) != 0)
        mr_s3_refuse(call, answer);
    else if (xml && call->head.length)
        keep_prefix(&page, call->head.data);
    page.now_s = answer->http->headers.date_s;
    call->done.pending(call->arg, &answer->result, answer->result.code == MR_OK ? &page : NULL);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                       const char *from_id, mr_store_parts_list_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_UPLOADS, "", 0, arg);
    if (!call)
        return NULL;
    call->done.pending = done;
    mr_s3_target(call, "?uploads&encoding-type=url");
    bool express = mr_s3_store(call)->zone[0] != 0;
    mr_s3_put_prefix(call, prefix);
    if (express && prefix)
        mr_text_puts(&call->head, prefix);
    mr_s3_parameter(call, "&key-marker=", from_name);
    mr_s3_parameter(call, "&upload-id-marker=", from_id && from_id[0] && !express ? from_id : NULL);
    return mr_s3_start(call, &(struct mr_http_request){0}, s3_parts_on_list);
}
