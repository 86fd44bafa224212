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

static void media_headers(const struct mr_object *object, uint64_t generation, uint32_t crc, bool gunzipped,
                          struct mr_reply *reply)
{
    char *const *attributes = object->attributes;
    const char *encoding = attributes[MR_ATTR_CONTENT_ENCODING], *type = attributes[MR_ATTR_CONTENT_TYPE];
    mr_reply_header(reply, "Content-Type", "%s", type ? type : "application/octet-stream");
    mr_api_put_sums(object, crc, reply);
    mr_reply_header(reply, "x-goog-generation", "%" PRIu64, generation);
    mr_reply_header(reply, "x-goog-metageneration", "%" PRIu64, object->metageneration);
    mr_reply_header(reply, "x-goog-stored-content-length", "%" PRIu64, object->size);
    mr_reply_header(reply, "x-goog-stored-content-encoding", "%s", encoding ? encoding : "identity");
    mr_reply_header(reply, "Accept-Ranges", gunzipped ? "none" : "bytes");
    mr_reply_header(reply, "ETag", "\"%016" PRIx64 "\"", generation);
    char modified[40];
    mr_http_date(object->updated_us, modified);
    mr_reply_header(reply, "Last-Modified", "%s", modified);
    if (encoding && !gunzipped)
        mr_reply_header(reply, "Content-Encoding", "%s", encoding);
    if (attributes[MR_ATTR_CACHE_CONTROL])
        mr_reply_header(reply, "Cache-Control", "%s", attributes[MR_ATTR_CACHE_CONTROL]);
    if (attributes[MR_ATTR_CONTENT_DISPOSITION])
        mr_reply_header(reply, "Content-Disposition", "%s", attributes[MR_ATTR_CONTENT_DISPOSITION]);
    if (object->component_count)
        mr_reply_header(reply, "x-goog-component-count", "%u", object->component_count);
}

/* https://cloud.google.com/storage/docs/transcoding */
static bool must_gunzip(const struct mr_request *request, const struct mr_object *object)
{
    const char *encoding = object->attributes[MR_ATTR_CONTENT_ENCODING];
    const char *cache = object->attributes[MR_ATTR_CACHE_CONTROL];
    const char *accepted = mr_request_header(request, "Accept-Encoding");
    return encoding && strcasecmp(encoding, "gzip") == 0 && !(accepted && strcasestr(accepted, "gzip")) &&
           !(cache && strcasestr(cache, "no-transform"));
}

/* Takes object and fd. */
static void send_gunzipped(const struct mr_request *request, struct mr_object *object, int fd, uint32_t crc,
                           struct mr_reply *reply)
{
    if (mr_gunzip(object, fd, GUNZIP_MAX, &reply->body) < 0) {
        mr_reply_from_error(reply, request);
    } else {
        media_headers(object, object->generation + (uint64_t)request->changed, crc, true, reply);
        mr_reply_header(reply, "x-guploader-response-body-transformations", "gunzipped");
        mr_reply_header(reply, "Warning", "214 UploadServer gunzipped");
        reply->chunked = true;
    }
    if (fd >= 0)
        close(fd);
    mr_object_unref(object);
}

static void get_media(const struct mr_request *request, struct mr_bucket *bucket, struct mr_reply *reply)
{
    uint32_t crc = 0;
    int fd = -1;
    struct mr_object *object = mr_api_open(request, bucket, reply, &crc, &fd);
    if (!object)
        return;
    if (must_gunzip(request, object)) {
        send_gunzipped(request, object, fd, crc, reply);
        return;
    }
    uint64_t first = 0, last = 0;
    enum mr_range range = mr_parse_range(mr_request_header(request, "Range"), object->size, &first, &last);
    if (range == MR_RANGE_UNSATISFIABLE) {
        mr_reply_error(reply, request, 416, NULL, "The requested range cannot be satisfied.");
        mr_reply_header(reply, "Content-Range", "bytes */%" PRIu64, object->size);
        mr_object_unref(object);
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
        mr_reply_header(reply, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, first, last, object->size);
    }
}

static void get_metadata(const struct mr_request *request, struct mr_bucket *bucket, struct mr_reply *reply)
{
    uint32_t crc;
    struct mr_object *object = mr_api_open(request, bucket, reply, &crc, NULL);
    if (object)
        mr_api_resource(request, bucket, object, reply);
    mr_object_unref(object);
}

static void delete_object(const struct mr_request *request, struct mr_bucket *bucket, struct mr_reply *reply)
{
    struct mr_conditions conditions;
    uint64_t generation;
    if (mr_api_conditions(request, &conditions, reply) < 0 ||
        mr_api_number(request, "generation", 0, &generation, reply) < 0)
        return;
    if (mr_bucket_delete(bucket, request->object, generation, &conditions) < 0)
        mr_reply_from_error(reply, request);
    else
        reply->status = 204;
}

static void test_permissions(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    mr_text_puts(&reply->body, "{\"kind\":\"storage#testIamPermissionsResponse\",\"permissions\":[");
    const char *separator = "";
    for (int i = 0; i < request->n_query; i++) {
        if (strcmp(request->query[i].key, "permissions") != 0 || mr_api_has_denied(api, request->query[i].value))
            continue;
        mr_text_puts(&reply->body, separator);
        mr_text_json_string(&reply->body, request->query[i].value);
        separator = ",";
    }
    mr_text_puts(&reply->body, "]}");
    mr_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
}

int mr_api_refuse(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply)
{
    if (request->s3)
        return mr_s3_refuse(api, request, reply);
    const char *needs = mr_api_denied(api, request->op);
    if (request->bad)
        mr_reply_error(reply, request, (unsigned)request->bad, NULL, "%s", request->why);
    else if (needs)
        mr_reply_error(reply, request, 403, NULL,
                       "Anonymous caller does not have %s access to the Google Cloud Storage %s.", needs,
                       request->op == MR_OP_LIST ? "bucket" : "object");
    else if (request->xml && mr_request_header(request, "x-goog-copy-source"))
        mr_reply_error(reply, request, 501, NULL, "The development store does not do x-goog-copy-source.");
    else
        return 0;
    return (int)reply->status;
}

void mr_api_answer(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply)
{
    bool buckets = request->op == MR_OP_BUCKET && !request->bucket;
    if (request->s3) { /* whoever has claimed it has asked mr_api_refuse */
        mr_s3_answer(api, request, reply);
        return;
    }
    if (mr_api_refuse(api, request, reply))
        return;
    struct mr_bucket *bucket = NULL;
    if (!buckets && request->op != MR_OP_BATCH && !(bucket = mr_api_bucket(api, request, reply)))
        return;
    switch (request->op) {
    case MR_OP_LIST:
        mr_api_list(api, request, reply);
        break;
    case MR_OP_COPY:
        mr_api_copy(api, request, reply);
        break;
    case MR_OP_RESUMABLE:
        mr_api_resumable(api, request, reply);
        break;
    case MR_OP_CANCEL:
        mr_api_cancel(api, request, reply);
        break;
    case MR_OP_INITIATE:
        mr_api_initiate(api, request, reply);
        break;
    case MR_OP_COMPLETE:
        mr_api_complete(api, request, reply);
        break;
    case MR_OP_ABORT:
        mr_api_abort(api, request, reply);
        break;
    case MR_OP_PARTS:
        mr_api_parts(api, request, reply);
        break;
    case MR_OP_UPLOADS:
        mr_api_uploads(api, request, reply);
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
        mr_api_buckets(api, request, bucket, reply);
        break;
    case MR_OP_COMPOSE:
        mr_api_compose(api, request, reply);
        break;
    case MR_OP_BATCH:
        mr_api_batch(api, request, reply, mr_api_answer);
        break;
    case MR_OP_IAM:
        test_permissions(api, request, reply);
        break;
    default:
        mr_reply_error(reply, request, 501, NULL, "The development store does not do this.");
        break;
    }
}
