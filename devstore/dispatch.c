/* Which function answers a request of GCS's two APIs, and the small ones among them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/gunzip.h"
#include "devstore/s3.h"

#define GUNZIP_MAX (UINT64_C(1) << 30) /* bytes of a decompressed object */

static void media_headers(const struct ds_object *object, uint64_t generation, uint32_t crc, bool gunzipped,
                          struct ds_reply *reply)
{
    char *const *attributes = object->attributes;
    const char *encoding = attributes[MR_ATTR_CONTENT_ENCODING], *type = attributes[MR_ATTR_CONTENT_TYPE];
    ds_reply_header(reply, "Content-Type", "%s", type ? type : "application/octet-stream");
    ds_api_put_sums(object, crc, reply);
    ds_reply_header(reply, "x-goog-generation", "%" PRIu64, generation);
    ds_reply_header(reply, "x-goog-metageneration", "%" PRIu64, object->metageneration);
    ds_reply_header(reply, "x-goog-stored-content-length", "%" PRIu64, object->size);
    ds_reply_header(reply, "x-goog-stored-content-encoding", "%s", encoding ? encoding : "identity");
    ds_reply_header(reply, "Accept-Ranges", gunzipped ? "none" : "bytes");
    ds_reply_header(reply, "ETag", "\"%016" PRIx64 "\"", generation);
    char modified[40];
    ds_http_date(object->updated_us, modified);
    ds_reply_header(reply, "Last-Modified", "%s", modified);
    if (encoding && !gunzipped)
        ds_reply_header(reply, "Content-Encoding", "%s", encoding);
    if (attributes[MR_ATTR_CACHE_CONTROL])
        ds_reply_header(reply, "Cache-Control", "%s", attributes[MR_ATTR_CACHE_CONTROL]);
    if (attributes[MR_ATTR_CONTENT_DISPOSITION])
        ds_reply_header(reply, "Content-Disposition", "%s", attributes[MR_ATTR_CONTENT_DISPOSITION]);
    if (object->component_count)
        ds_reply_header(reply, "x-goog-component-count", "%u", object->component_count);
}

/* https://cloud.google.com/storage/docs/transcoding */
static bool must_gunzip(const struct ds_request *request, const struct ds_object *object)
{
    const char *encoding = object->attributes[MR_ATTR_CONTENT_ENCODING];
    const char *cache = object->attributes[MR_ATTR_CACHE_CONTROL];
    const char *accepted = ds_request_header(request, "Accept-Encoding");
    return encoding && strcasecmp(encoding, "gzip") == 0 && !(accepted && strcasestr(accepted, "gzip")) &&
           !(cache && strcasestr(cache, "no-transform"));
}

/* Takes object and fd, and fills in the reply. */
static void send_gunzipped(const struct ds_request *request, struct ds_object *object, int fd, uint32_t crc,
                           struct ds_reply *reply)
{
    if (ds_gunzip(object, fd, GUNZIP_MAX, &reply->body) < 0) {
        ds_reply_from_error(reply, request);
    } else {
        media_headers(object, object->generation + (uint64_t)request->changed, crc, true, reply);
        ds_reply_header(reply, "x-guploader-response-body-transformations", "gunzipped");
        ds_reply_header(reply, "Warning", "214 UploadServer gunzipped");
        reply->chunked = true;
    }
    if (fd >= 0)
        close(fd);
    ds_object_unref(object);
}

static void get_media(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply)
{
    uint32_t crc = 0;
    int fd = -1;
    struct ds_object *object = ds_api_open(request, bucket, reply, &crc, &fd);
    if (!object)
        return;
    if (must_gunzip(request, object)) {
        send_gunzipped(request, object, fd, crc, reply);
        return;
    }
    uint64_t first = 0, last = 0;
    enum ds_range range = ds_parse_range(ds_request_header(request, "Range"), object->size, &first, &last);
    if (range == MR_RANGE_UNSATISFIABLE) {
        ds_reply_error(reply, request, 416, NULL, "The requested range cannot be satisfied.");
        ds_reply_header(reply, "Content-Range", "bytes */%" PRIu64, object->size);
        ds_object_unref(object);
        if (fd >= 0)
            close(fd);
        return;
    }
    media_headers(object, object->generation + (uint64_t)request->changed, crc, false, reply);
    reply->object = object;
    reply->fd = fd;
    reply->first = first;
    reply->length = range == MR_RANGE_PART ? last - first + 1 : object->size;
    if (range == MR_RANGE_PART) {
        reply->status = 206;
        ds_reply_header(reply, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, first, last, object->size);
    }
}

static void get_metadata(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply)
{
    uint32_t crc;
    struct ds_object *object = ds_api_open(request, bucket, reply, &crc, NULL);
    if (object)
        ds_api_resource(request, bucket, object, reply);
    ds_object_unref(object);
}

static void delete_object(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply)
{
    struct ds_conditions conditions;
    uint64_t generation;
    if (ds_api_conditions(request, &conditions, reply) < 0 ||
        ds_api_number(request, "generation", 0, &generation, reply) < 0)
        return;
    if (ds_bucket_delete(bucket, request->object, generation, &conditions) < 0)
        ds_reply_from_error(reply, request);
    else
        reply->status = 204;
}

static void test_permissions(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    ds_text_puts(&reply->body, "{\"kind\":\"storage#testIamPermissionsResponse\",\"permissions\":[");
    const char *separator = "";
    for (int i = 0; i < request->n_query; i++) {
        if (strcmp(request->query[i].key, "permissions") != 0 || ds_api_has_denied(api, request->query[i].value))
            continue;
        ds_text_puts(&reply->body, separator);
        ds_text_json_string(&reply->body, request->query[i].value);
        separator = ",";
    }
    ds_text_puts(&reply->body, "]}");
    ds_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
}

int ds_api_refuse(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply)
{
    if (request->s3)
        return ds_s3_refuse(api, request, reply);
    const char *needs = ds_api_denied(api, request->op);
    if (request->bad)
        ds_reply_error(reply, request, (unsigned)request->bad, NULL, "%s", request->why);
    else if (needs)
        ds_reply_error(reply, request, 403, NULL,
                       "Anonymous caller does not have %s access to the Google Cloud Storage %s.", needs,
                       request->op == MR_OP_LIST ? "bucket" : "object");
    else if (request->xml && ds_request_header(request, "x-goog-copy-source"))
        ds_reply_error(reply, request, 501, NULL, "The development store does not do x-goog-copy-source.");
    else
        return 0;
    return (int)reply->status;
}

void ds_api_answer(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply)
{
    bool buckets = request->op == MR_OP_BUCKET && !request->bucket;
    if (request->s3) { /* the code that claimed it has called ds_api_refuse */
        ds_s3_answer(api, request, reply);
        return;
    }
    if (ds_api_refuse(api, request, reply))
        return;
    struct ds_bucket *bucket = NULL;
    if (!buckets && request->op != MR_OP_BATCH && !(bucket = ds_api_bucket(api, request, reply)))
        return;
    switch (request->op) {
    case MR_OP_LIST:
        ds_api_list(api, request, reply);
        break;
    case MR_OP_COPY:
        ds_api_copy(api, request, reply);
        break;
    case MR_OP_RESUMABLE:
        ds_api_resumable(api, request, reply);
        break;
    case MR_OP_CANCEL:
        ds_api_cancel(api, request, reply);
        break;
    case MR_OP_INITIATE:
        ds_api_initiate(api, request, reply);
        break;
    case MR_OP_COMPLETE:
        ds_api_complete(api, request, reply);
        break;
    case MR_OP_ABORT:
        ds_api_abort(api, request, reply);
        break;
    case MR_OP_PARTS:
        ds_api_parts(api, request, reply);
        break;
    case MR_OP_UPLOADS:
        ds_api_uploads(api, request, reply);
        break;
    case MR_OP_GET:
        get_media(request, bucket, reply);
        break;
    case MR_OP_STAT:
        get_metadata(request, bucket, reply);
        break;
    case MR_OP_DELETE:
        delete_object(request, bucket, reply);
        break;
    case MR_OP_BUCKET:
        ds_api_buckets(api, request, bucket, reply);
        break;
    case MR_OP_COMPOSE:
        ds_api_compose(api, request, reply);
        break;
    case MR_OP_BATCH:
        ds_api_batch(api, request, reply, ds_api_answer);
        break;
    case MR_OP_IAM:
        test_permissions(api, request, reply);
        break;
    default:
        ds_reply_error(reply, request, 501, NULL, "The development store does not do this.");
        break;
    }
}
