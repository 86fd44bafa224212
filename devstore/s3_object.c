/* s3_object.c - GetObject, HeadObject and DeleteObject. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_conditions.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"

/* The bytes that are asked for. */
struct span {
    uint64_t first, length;
    bool partial; /* 206 */
    size_t part;  /* its number; 0: none was asked for */
};

static size_t count_parts(const struct ds_object *object)
{
    return object->s3 ? object->s3->n_parts : 0;
}

/* An object that was no multipart upload has one part. 0, or -1 with the reply. */
static int find_part(const struct ds_request *request, const struct ds_object *object, struct span *span,
                     struct ds_reply *reply)
{
    const char *text = ds_request_query(request, "partNumber");
    size_t n = count_parts(object);
    uint64_t number;
    if (ds_parse_u64(text, &number) < 0 || number == 0 || number > 10000) {
        ds_s3_error_said(reply, request, "InvalidArgument",
                         "Part number must be an integer between 1 and 10000, inclusive");
        return -1;
    }
    if (number > (n ? n : 1)) {
        ds_s3_error(reply, request, "InvalidPartNumber");
        return -1;
    }
    const struct ds_s3_part_info *parts = n ? object->s3->parts : NULL;
    span->part = (size_t)number;
    span->first = n && number > 1 ? parts[number - 2].end : 0;
    span->length = (n ? parts[number - 1].end : object->size) - span->first;
    span->partial = true;
    return 0;
}

/* The bytes that partNumber or the Range header asks for. 0, or -1 with the reply. */
static int find_span(const struct ds_request *request, const struct ds_object *object, struct span *span,
                     struct ds_reply *reply)
{
    const char *range = ds_request_header(request, "Range");
    uint64_t first, last;
    *span = (struct span){.length = object->size};
    if (ds_request_query(request, "partNumber")) {
        if (!range)
            return find_part(request, object, span, reply);
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "Cannot specify both Range header and partNumber query parameter");
        return -1;
    }
    enum ds_range found = ds_parse_range(range, object->size, &first, &last);
    if (found == MR_RANGE_PART)
        *span = (struct span){.first = first, .length = last - first + 1, .partial = true};
    if (found != MR_RANGE_UNSATISFIABLE)
        return 0;
    char size[24];
    snprintf(size, sizeof size, "%" PRIu64, object->size);
    ds_s3_error(reply, request, "InvalidRange");
    ds_s3_error_add(reply, "RangeRequested", range);
    ds_s3_error_add(reply, "ActualObjectSize", size);
    ds_reply_header(reply, "Content-Range", "bytes */%" PRIu64, object->size);
    return -1;
}

/* Puts custom metadata, the text of a JSON object or NULL, as x-amz-meta- headers. */
static void put_custom(const char *text, struct ds_reply *reply)
{
    json_error_t error;
    json_t *custom = text ? json_loads(text, 0, &error) : NULL;
    const char *key;
    json_t *value;
    json_object_foreach(custom, key, value)
    {
        char name[128];
        const char *string = json_string_value(value);
        /* GCS's clients may set what cannot be a header. */
        if (!string || strpbrk(string, "\r\n") || strpbrk(key, "\r\n: \t") ||
            snprintf(name, sizeof name, "x-amz-meta-%s", key) >= (int)sizeof name)
            continue;
        ds_reply_header_named(reply, name, string);
    }
    json_decref(custom);
}

static void put_headers(const struct ds_object *object, const char *etag, struct ds_reply *reply)
{
    static const char *const names[MR_ATTR_COUNT] = {
        [MR_ATTR_CONTENT_ENCODING] = "Content-Encoding",
        [MR_ATTR_CONTENT_DISPOSITION] = "Content-Disposition",
        [MR_ATTR_CONTENT_LANGUAGE] = "Content-Language",
        [MR_ATTR_CACHE_CONTROL] = "Cache-Control",
    };
    char *const *attributes = object->attributes;
    const char *type = attributes[MR_ATTR_CONTENT_TYPE], *class = attributes[MR_ATTR_STORAGE_CLASS];
    char modified[40];
    ds_http_date(object->updated_us, modified);
    ds_reply_header(reply, "ETag", "\"%s\"", etag);
    ds_reply_header(reply, "Last-Modified", "%s", modified);
    ds_reply_header(reply, "Accept-Ranges", "bytes");
    ds_reply_header(reply, "Content-Type", "%s", type ? type : "binary/octet-stream");
    for (int i = 0; i < MR_ATTR_COUNT; i++) {
        if (names[i] && attributes[i])
            ds_reply_header(reply, names[i], "%s", attributes[i]);
    }
    if (class && strcmp(class, "STANDARD") != 0)
        ds_reply_header(reply, "x-amz-storage-class", "%s", class);
    put_custom(attributes[MR_ATTR_METADATA], reply);
}

/* Puts the checksum of the whole object, or of one part if the upload kept it. 0, or -1: the object has changed
 * meanwhile. */
static int put_sum(const struct ds_api *api, const struct ds_request *request, struct ds_object *object,
                   const struct span *span, struct ds_reply *reply)
{
    const char *mode = ds_request_header(request, "x-amz-checksum-mode");
    char text[MR_S3_SUM_MAX];
    bool composite;
    if (!mode || api->s3->ignore_checksums || strcasecmp(mode, "ENABLED") != 0)
        return 0;
    bool whole = span->first == 0 && span->length == object->size && (!span->partial || span->part);
    const char *part = span->part && count_parts(object) ? object->s3->parts[span->part - 1].sum : "";
    if (!whole && !*part)
        return 0;
    enum ds_s3_algorithm algorithm = ds_s3_object_sum(object, text, &composite);
    if (algorithm == MR_S3_NONE)
        return -1;
    ds_reply_header(reply, ds_s3_sum_headers[algorithm], "%s", *part ? part : text);
    ds_reply_header(reply, "x-amz-checksum-type", composite ? "COMPOSITE" : "FULL_OBJECT");
    return 0;
}

static bool archived(const struct ds_object *object)
{
    const char *class = object->attributes[MR_ATTR_STORAGE_CLASS];
    return class && (strcmp(class, "GLACIER") == 0 || strcmp(class, "DEEP_ARCHIVE") == 0);
}

/* The live object and its open file; where there is none, a client that may not list is not told so. */
static struct ds_object *s3_object_find(const struct ds_api *api, const struct ds_request *request,
                                        struct ds_bucket *bucket, int *fd, struct ds_reply *reply)
{
    *fd = -1;
    struct ds_object *object = ds_api_open(request, bucket, reply, NULL, fd);
    if (!object && reply->status == 404)
        ds_s3_error(reply, request, ds_api_denied(api, MR_OP_LIST) ? "AccessDenied" : "NoSuchKey");
    return object;
}

void ds_s3_get(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    int fd;
    struct ds_object *object = bucket ? s3_object_find(api, request, bucket, &fd, reply) : NULL;
    if (!object)
        return;
    struct span span;
    char etag[48];
    ds_s3_etag(object, request->changed, etag);
    if (ds_s3_check_read(request, etag, reply) < 0 || find_span(request, object, &span, reply) < 0)
        goto out;
    if (request->op == MR_OP_GET && archived(object)) {
        ds_s3_error(reply, request, "InvalidObjectState");
        ds_s3_error_add(reply, "StorageClass", object->attributes[MR_ATTR_STORAGE_CLASS]);
        goto out;
    }
    if (put_sum(api, request, object, &span, reply) < 0) {
        ds_reply_from_error(reply, request);
        goto out;
    }
    put_headers(object, etag, reply);
    if (span.part && count_parts(object))
        ds_reply_header(reply, "x-amz-mp-parts-count", "%zu", count_parts(object));
    if (span.partial && span.length > 0) {
        reply->status = 206;
        ds_reply_header(reply, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, span.first,
                        span.first + span.length - 1, object->size);
    }
    reply->first = span.first;
    reply->length = span.length;
    reply->object = object;
    reply->fd = fd;
    return;
out:
    ds_object_unref(object);
    if (fd >= 0)
        close(fd);
}

void ds_s3_delete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_conditions conditions;
    if (!bucket || ds_s3_write_conditions(api, request, bucket, &conditions, reply) < 0)
        return;
    /* What does not exist counts as deleted. */
    if (ds_bucket_delete(bucket, request->object, 0, &conditions) < 0 && mr_error_code() != MR_E_NOT_FOUND)
        ds_s3_write_failed(request, reply);
    else
        reply->status = 204;
}
