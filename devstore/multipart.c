/*
 * multipart.c - multipart uploads of the XML API: begin, parts in any order, complete, abort, and what is under way.
 * https://cloud.google.com/storage/docs/multipart-uploads, /storage/docs/xml-api
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "devstore/api.h"
#include "devstore/multipart_impl.h"
#include "devstore/sessions.h"
#include "devstore/upload_impl.h"
#include "devstore/xml.h"

static void xml_reply(struct ds_reply *reply)
{
    ds_reply_header(reply, "Content-Type", "application/xml; charset=UTF-8");
}

void ds_api_initiate(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_session *session = bucket ? ds_session_new(bucket, true) : NULL;
    if (!bucket)
        return;
    if (!session || ds_metadata_set_name(&session->metadata, request->object) < 0 ||
        ds_xml_metadata(request, &session->metadata) < 0 || ds_sessions_add(api->sessions, session) < 0) {
        ds_reply_from_error(reply, request);
        ds_session_unref(session);
        return;
    }
    ds_xml_begin(&reply->body, "InitiateMultipartUploadResult");
    ds_xml_put(&reply->body, "Bucket", ds_bucket_name(bucket));
    ds_xml_put(&reply->body, "Key", session->metadata.name);
    ds_xml_put(&reply->body, "UploadId", session->id);
    ds_text_puts(&reply->body, "</InitiateMultipartUploadResult>");
    xml_reply(reply);
    ds_session_unref(session);
}

struct ds_session *ds_multipart_find(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *id = ds_request_query(request, "uploadId");
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_session *session = bucket ? ds_sessions_find(api->sessions, id ? id : "", bucket, true) : NULL;
    if (!bucket)
        return NULL;
    if (!session || strcmp(session->metadata.name, request->object) != 0) {
        ds_reply_error(reply, request, 404, "NoSuchUpload", "The requested upload was not found.");
        ds_session_unref(session);
        return NULL;
    }
    return session;
}

struct part {
    struct ds_upload base;
    const struct ds_request *request;
    struct ds_session *session;
    struct ds_metadata metadata; /* only the sums */
    struct ds_sink sink;
    unsigned number;
    bool failed;
    struct ds_reply failure;
};

/* From now on the bytes are ignored; finish sends this failure. */
static void part_fail(struct part *part)
{
    part->failed = true;
    ds_reply_from_error(&part->failure, part->request);
}

static void part_write(struct ds_upload *base, const void *bytes, size_t length)
{
    struct part *part = (struct part *)base;
    if (!part->failed && ds_sink_write(&part->sink, bytes, length) < 0)
        part_fail(part);
}

/* The md5 in hex; without one, something else that distinguishes two parts. */
static void make_etag(const struct ds_object *object, uint32_t crc, char etag[33])
{
    for (size_t i = 0; i < sizeof object->md5 && object->has_md5; i++)
        snprintf(etag + 2 * i, 3, "%02x", object->md5[i]);
    if (!object->has_md5)
        snprintf(etag, 33, "%08x%08x%016" PRIx64, 0u, crc, object->size);
}

int ds_multipart_add(struct ds_session *session, unsigned number, struct ds_object *object, const char *sum,
                     char etag[33])
{
    uint32_t crc;
    if (ds_object_crc(object, &crc) < 0) {
        ds_session_part_drop(object);
        return -1;
    }
    object->created_us = mr_clock_wall_ns() / 1000;
    make_etag(object, crc, etag);
    pthread_mutex_lock(&session->lock);
    int rc = session->gone ? -1 : 0;
    if (rc < 0)
        mr_error_set(MR_E_NOT_FOUND, "The upload was completed or aborted meanwhile.");
    else
        rc = ds_session_add_part(session, number, object, etag, sum);
    if (session->gone)
        ds_session_part_drop(object);
    pthread_mutex_unlock(&session->lock);
    return rc;
}

/* 0, or -1: with part->failed and its reply set, or else with an error for part_fail. */
static int part_store(struct part *part, struct ds_reply *reply)
{
    struct ds_session *session = part->session;
    struct ds_object *object = ds_object_new(session->metadata.name);
    if (!object || ds_sink_fill(&part->sink, object) < 0)
        goto fail;
    if (ds_metadata_check_sums(&part->metadata, part->sink.crc, object->has_md5 ? object->md5 : NULL) < 0) {
        ds_reply_error(&part->failure, part->request, 400, "BadDigest", "%s", mr_error_text());
        part->failed = true;
        ds_object_unref(object);
        return -1;
    }
    if (ds_sink_give(&part->sink, object) < 0)
        goto fail;
    char etag[33];
    if (ds_multipart_add(session, part->number, object, "", etag) < 0)
        return -1;
    char base64[9];
    mr_crc32c_to_base64(part->sink.crc, base64);
    ds_reply_header(reply, "ETag", "\"%s\"", etag);
    ds_reply_header(reply, "x-goog-hash", "crc32c=%s", base64);
    return 0;
fail:
    ds_object_unref(object);
    return -1;
}

static void part_finish(struct ds_upload *base, struct ds_reply *reply)
{
    struct part *part = (struct part *)base;
    if (!part->failed && part_store(part, reply) < 0 && !part->failed)
        part_fail(part);
    if (part->failed) {
        ds_reply_close(reply);
        *reply = part->failure;
        ds_reply_init(&part->failure);
    }
}

static void part_destroy(struct ds_upload *base)
{
    struct part *part = (struct part *)base;
    ds_sink_close(&part->sink);
    ds_metadata_close(&part->metadata);
    ds_reply_close(&part->failure);
    ds_session_unref(part->session);
    free(part);
}

int ds_multipart_number(const struct ds_request *request, unsigned *number, struct ds_reply *reply)
{
    const char *text = ds_request_query(request, "partNumber");
    uint64_t given = 0;
    if (!text || ds_parse_u64(text, &given) < 0 || given < 1 || given > MR_PARTS_MAX) {
        ds_reply_error(reply, request, 400, "InvalidArgument", "partNumber is a number from 1 to %d.", MR_PARTS_MAX);
        return -1;
    }
    *number = (unsigned)given;
    return 0;
}

struct ds_upload *ds_upload_part_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                     struct ds_reply *reply)
{
    struct ds_session *session = ds_multipart_find(api, request, reply);
    struct part *part = session ? calloc(1, sizeof *part) : NULL;
    if (!part) {
        if (session)
            ds_reply_error(reply, request, 500, NULL, "out of memory");
        ds_session_unref(session);
        return NULL;
    }
    part->base = (struct ds_upload){.write = part_write, .finish = part_finish, .destroy = part_destroy};
    part->request = request;
    part->session = session;
    part->sink.fd = -1;
    ds_reply_init(&part->failure);
    if (ds_multipart_number(request, &part->number, reply) < 0)
        goto fail;
    if (ds_metadata_hash_header(&part->metadata, ds_request_header(request, "x-goog-hash")) < 0 ||
        ds_metadata_md5_header(&part->metadata, ds_request_header(request, "Content-MD5")) < 0 ||
        ds_sink_open(&part->sink, ds_bucket_folder(session->bucket), length, api->md5) < 0) {
        ds_reply_from_error(reply, request);
        goto fail;
    }
    return &part->base;
fail:
    part_destroy(&part->base);
    return NULL;
}

/* One <Part> of the list that completes an upload. sum: S3's, or "". 0 or -1: malformed. */
static int read_part(const struct ds_xml_view *content, uint64_t *number, char etag[80], char sum[MR_S3_SUM_MAX])
{
    struct ds_xml_view rest = *content, name, value;
    char text[24];
    sum[0] = 0;
    int more, seen = 0;
    while ((more = ds_xml_next(&rest, &name, &value)) == 1) {
        if (ds_xml_is(&name, "PartNumber")) {
            if (ds_xml_string(&value, text, sizeof text) < 0 || ds_parse_u64(text, number) < 0)
                return -1;
            seen |= 1;
        } else if (ds_xml_is(&name, "ETag")) {
            if (ds_xml_string(&value, etag, 80) < 0)
                return -1;
            seen |= 2;
        } else if ((size_t)(name.end - name.at) > strlen("Checksum") && memcmp(name.at, "Checksum", 8) == 0) {
            if (ds_xml_string(&value, sum, MR_S3_SUM_MAX) < 0)
                return -1;
        }
    }
    return more < 0 || seen != 3 ? -1 : 0;
}

/* Whether the ETag that a client has sent, in quotes or not, is this one. */
static bool same_etag(const char *sent, const char *etag)
{
    size_t n = strlen(etag);
    bool quoted = *sent == '"';
    return strncmp(sent + quoted, etag, n) == 0 && strcmp(sent + quoted + n, quoted ? "\"" : "") == 0;
}

static const struct ds_session_part *find_part(const struct ds_session *session, uint64_t number)
{
    for (size_t low = 0, high = session->n_parts; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (session->parts[middle].number == number)
            return &session->parts[middle];
        if (session->parts[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Takes one entry of the list. NULL, or the error's code with the error set. */
static const char *choose(const struct ds_api *api, const struct ds_session *session, const struct ds_xml_view *content,
                          struct ds_multipart_chosen *chosen)
{
    uint64_t number, last = chosen->n ? chosen->parts[chosen->n - 1]->number : 0;
    char etag[80], sum[MR_S3_SUM_MAX];
    if (read_part(content, &number, etag, sum) < 0) {
        mr_error_set(MR_E_USAGE, "A Part needs a PartNumber and an ETag.");
        return "MalformedXML";
    }
    if (number <= last) {
        mr_error_set(MR_E_USAGE, "The list of parts was not in ascending order.");
        return "InvalidPartOrder";
    }
    const struct ds_session_part *part = find_part(session, number);
    if (!part || !same_etag(etag, part->etag) || (*sum && *part->sum && strcmp(sum, part->sum) != 0)) {
        mr_error_set(MR_E_USAGE, "Part %" PRIu64 " was not uploaded, or its ETag is not %s.", number, etag);
        return "InvalidPart";
    }
    if (chosen->n > 0 && chosen->objects[chosen->n - 1]->size < api->min_part) {
        mr_error_set(MR_E_USAGE,
                     "Part %" PRIu64 " has %" PRIu64 " bytes, and only the last may have less than %" PRIu64, last,
                     chosen->objects[chosen->n - 1]->size, api->min_part);
        return "EntityTooSmall";
    }
    chosen->parts[chosen->n] = part;
    chosen->objects[chosen->n++] = part->object;
    return NULL;
}

const char *ds_multipart_choose(const struct ds_api *api, const struct ds_request *request,
                                const struct ds_session *session, struct ds_multipart_chosen *chosen)
{
    struct ds_xml_view rest = {request->body.data, request->body.data + request->body.length};
    ds_xml_skip_prolog(&rest);
    chosen->n = 0;
    chosen->objects = calloc(session->n_parts + 1, sizeof(struct ds_object *));
    chosen->parts = calloc(session->n_parts + 1, sizeof(struct ds_session_part *));
    if (!chosen->objects || !chosen->parts) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the list of parts");
        return "InternalError";
    }
    struct ds_xml_view name, content;
    const char *code = NULL;
    int more = -1;
    if (request->body.data && ds_xml_next(&rest, &name, &content) == 1 && ds_xml_is(&name, "CompleteMultipartUpload")) {
        while (!code && (more = ds_xml_next(&content, &name, &rest)) == 1) {
            if (!ds_xml_is(&name, "Part"))
                more = -1;
            if (more < 0)
                break;
            code = choose(api, session, &rest, chosen);
        }
    }
    if (!code && (more < 0 || chosen->n == 0)) {
        mr_error_set(MR_E_USAGE, "The XML you provided was not well-formed or is not a list of parts.");
        code = "MalformedXML";
    }
    return code;
}

void ds_multipart_chosen_close(struct ds_multipart_chosen *chosen)
{
    free(chosen->parts);
    free(chosen->objects);
}

static void completed(const struct ds_request *request, const struct ds_session *session, struct ds_object *object,
                      struct ds_reply *reply)
{
    ds_upload_answer(request, session->bucket, object, reply);
    char etag[64];
    snprintf(etag, sizeof etag, "\"%016" PRIx64 "\"", object->generation);
    ds_xml_begin(&reply->body, "CompleteMultipartUploadResult");
    ds_text_puts(&reply->body, "<Location>/");
    ds_xml_text(&reply->body, ds_bucket_name(session->bucket));
    ds_text_puts(&reply->body, "/");
    ds_xml_text(&reply->body, object->name);
    ds_text_puts(&reply->body, "</Location>");
    ds_xml_put(&reply->body, "Bucket", ds_bucket_name(session->bucket));
    ds_xml_put(&reply->body, "Key", object->name);
    ds_xml_put(&reply->body, "ETag", etag);
    ds_text_puts(&reply->body, "</CompleteMultipartUploadResult>");
    xml_reply(reply);
}

/* The session's lock is held. NULL: the reply says why not. */
static struct ds_object *multipart_complete(const struct ds_api *api, const struct ds_request *request,
                                            struct ds_session *session, struct ds_reply *reply)
{
    struct ds_conditions none = {0};
    struct ds_multipart_chosen chosen;
    struct ds_object *object = NULL;
    int rc = -1;
    const char *code = ds_multipart_choose(api, request, session, &chosen);
    if (code) {
        ds_reply_error(reply, request, mr_error_code() == MR_E_NO_MEMORY ? 500 : 400, code, "%s", mr_error_text());
        goto out;
    }
    object = ds_object_new(session->metadata.name);
    if (object && ds_metadata_apply(&session->metadata, object) == 0) {
        object->component_count = (unsigned)chosen.n;
        rc = ds_api_join(session->bucket, chosen.objects, chosen.n, object, &none);
    }
    if (rc < 0)
        ds_reply_from_error(reply, request);
out:
    ds_multipart_chosen_close(&chosen);
    if (rc < 0) {
        ds_object_unref(object);
        object = NULL;
    }
    return object;
}

void ds_api_complete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_session *session = ds_multipart_find(api, request, reply);
    if (!session)
        return;
    pthread_mutex_lock(&session->lock);
    struct ds_object *object = NULL;
    if (session->gone)
        ds_reply_error(reply, request, 404, "NoSuchUpload", "The requested upload was not found.");
    else
        object = multipart_complete(api, request, session, reply);
    session->gone |= object != NULL;
    pthread_mutex_unlock(&session->lock);
    if (object) {
        ds_sessions_remove(api->sessions, session);
        completed(request, session, object, reply);
    }
    ds_object_unref(object);
    ds_session_unref(session);
}

void ds_api_abort(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_session *session = ds_multipart_find(api, request, reply);
    if (!session)
        return;
    pthread_mutex_lock(&session->lock);
    session->gone = true;
    pthread_mutex_unlock(&session->lock);
    ds_sessions_remove(api->sessions, session);
    ds_session_unref(session);
    reply->status = 204;
}

void ds_api_parts(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_session *session = ds_multipart_find(api, request, reply);
    struct ds_text *out = &reply->body;
    size_t n = 0, i = 0;
    if (!session)
        return;
    uint64_t most, after;
    if (ds_api_number(request, "max-parts", 1000, &most, reply) < 0 ||
        ds_api_number(request, "part-number-marker", 0, &after, reply) < 0)
        goto out;
    ds_xml_begin(out, "ListPartsResult");
    ds_xml_put(out, "Bucket", ds_bucket_name(session->bucket));
    ds_xml_put(out, "Key", session->metadata.name);
    ds_xml_put(out, "UploadId", session->id);
    ds_xml_put_number(out, "MaxParts", most);
    pthread_mutex_lock(&session->lock);
    while (i < session->n_parts && session->parts[i].number <= after)
        i++;
    for (; i < session->n_parts && n < most; i++, n++) {
        const struct ds_session_part *part = &session->parts[i];
        ds_text_puts(out, "<Part>");
        ds_xml_put_number(out, "PartNumber", part->number);
        ds_xml_time(out, "LastModified", part->object->created_us);
        ds_text_printf(out, "<ETag>&quot;%s&quot;</ETag>", part->etag);
        ds_xml_put_number(out, "Size", part->object->size);
        ds_text_puts(out, "</Part>");
        after = part->number;
    }
    if (i < session->n_parts)
        ds_xml_put_number(out, "NextPartNumberMarker", after);
    ds_xml_put(out, "IsTruncated", i < session->n_parts ? "true" : "false");
    pthread_mutex_unlock(&session->lock);
    ds_text_puts(out, "</ListPartsResult>");
    xml_reply(reply);
out:
    ds_session_unref(session);
}

/* All of them on one page: there are never many here. */
void ds_api_uploads(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    const char *prefix = ds_request_query(request, "prefix");
    if (!bucket)
        return;
    ds_xml_begin(&reply->body, "ListMultipartUploadsResult");
    ds_xml_put(&reply->body, "Bucket", ds_bucket_name(bucket));
    ds_xml_put(&reply->body, "IsTruncated", "false");
    struct ds_session *session;
    size_t place = 0;
    for (; (session = ds_sessions_next(api->sessions, &place, bucket)); ds_session_unref(session)) {
        if (prefix && strncmp(session->metadata.name, prefix, strlen(prefix)) != 0)
            continue;
        ds_text_puts(&reply->body, "<Upload>");
        ds_xml_put(&reply->body, "Key", session->metadata.name);
        ds_xml_put(&reply->body, "UploadId", session->id);
        ds_xml_time(&reply->body, "Initiated", session->started_us);
        ds_text_puts(&reply->body, "</Upload>");
    }
    ds_text_puts(&reply->body, "</ListMultipartUploadsResult>");
    xml_reply(reply);
}
