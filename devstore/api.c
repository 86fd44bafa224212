#include "devstore/api.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "devstore/fields.h"
#include "devstore/resource.h"
#include "devstore/upload_impl.h"

struct ds_bucket *ds_api_bucket(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_buckets_find(api->buckets, request->bucket);
    if (!bucket)
        ds_reply_error(reply, request, 404, request->xml ? "NoSuchBucket" : NULL,
                       "The specified bucket does not exist: %s", request->bucket);
    if (bucket && !request->s3 && ds_bucket_settings(bucket)->requester_pays &&
        !ds_request_query(request, "userProject") && !ds_request_header(request, "x-goog-user-project")) {
        ds_reply_error(reply, request, 400, "required",
                       "Bucket is a requester pays bucket but no user project provided.");
        return NULL;
    }
    return bucket;
}

int ds_api_number(const struct ds_request *request, const char *key, uint64_t fallback, uint64_t *value,
                  struct ds_reply *reply)
{
    const char *text = ds_request_query(request, key);
    *value = fallback;
    if (!text || ds_parse_u64(text, value) == 0)
        return 0;
    ds_reply_error(reply, request, 400, "invalid", "Invalid value for %s: \"%.100s\"", key, text);
    return -1;
}

int ds_api_conditions(const struct ds_request *request, struct ds_conditions *conditions, struct ds_reply *reply)
{
    const struct {
        const char *query, *header;
        unsigned bit;
        uint64_t *value;
    } table[] = {
        {"ifGenerationMatch", "x-goog-if-generation-match", MR_IF_GENERATION, &conditions->generation},
        {"ifGenerationNotMatch", NULL, MR_IF_NOT_GENERATION, &conditions->not_generation},
        {"ifMetagenerationMatch", "x-goog-if-metageneration-match", MR_IF_METAGENERATION, &conditions->metageneration},
        {"ifMetagenerationNotMatch", NULL, MR_IF_NOT_METAGENERATION, &conditions->not_metageneration},
    };
    memset(conditions, 0, sizeof *conditions);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *text = ds_request_query(request, table[i].query);
        if (!text && request->xml && table[i].header)
            text = ds_request_header(request, table[i].header);
        if (!text)
            continue;
        if (ds_parse_u64(text, table[i].value) < 0) {
            ds_reply_error(reply, request, 400, "invalid", "Invalid value for %s: \"%.100s\"", table[i].query, text);
            return -1;
        }
        conditions->has |= table[i].bit;
    }
    return 0;
}

void ds_api_resource(const struct ds_request *request, struct ds_bucket *bucket, struct ds_object *object,
                     struct ds_reply *reply)
{
    struct ds_fields fields;
    struct ds_resource resource;
    if (ds_fields_parse(&fields, ds_request_query(request, "fields")) < 0 ||
        ds_resource_init(&resource, bucket, request, &fields, 0) < 0) {
        ds_reply_from_error(reply, request);
        return;
    }
    ds_resource_write(&resource, object, &reply->body);
    ds_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
    ds_reply_header(reply, "ETag", "%" PRIu64 "/%" PRIu64, object->generation, object->metageneration);
}

struct ds_object *ds_api_find(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply)
{
    struct ds_conditions conditions;
    uint64_t generation;
    if (ds_api_conditions(request, &conditions, reply) < 0 ||
        ds_api_number(request, "generation", 0, &generation, reply) < 0)
        return NULL;
    struct ds_object *object = ds_bucket_get(bucket, request->object);
    if (object && object->path && ds_object_check(object) < 0) {
        struct ds_object *fresh = ds_bucket_refresh(bucket, object);
        ds_object_unref(object);
        object = fresh;
    }
    uint64_t seen = object ? object->generation + (uint64_t)request->changed : 0;
    if (!object || (ds_request_query(request, "generation") && seen != generation)) {
        ds_reply_error(reply, request, 404, NULL, "No such object: %s/%s", request->bucket, request->object);
        ds_object_unref(object);
        return NULL;
    }
    unsigned failed = ds_conditions_fail(&conditions, seen, object->metageneration);
    if (failed) {
        bool fresh = failed == MR_IF_NOT_GENERATION || failed == MR_IF_NOT_METAGENERATION;
        ds_reply_error(reply, request, fresh ? 304 : 412, NULL,
                       "At least one of the pre-conditions you specified did not hold.");
        ds_object_unref(object);
        return NULL;
    }
    return object;
}

void ds_api_put_sums(const struct ds_object *object, uint32_t crc, struct ds_reply *reply)
{
    char base64[25];
    mr_crc32c_to_base64(crc, base64);
    ds_reply_header(reply, "x-goog-hash", "crc32c=%s", base64);
    if (object->has_md5) {
        EVP_EncodeBlock((unsigned char *)base64, object->md5, sizeof object->md5);
        ds_reply_header(reply, "x-goog-hash", "md5=%s", base64);
    }
}

void ds_upload_answer(const struct ds_request *request, struct ds_bucket *bucket, struct ds_object *object,
                      struct ds_reply *reply)
{
    if (!request->xml) {
        ds_api_resource(request, bucket, object, reply);
        return;
    }
    uint32_t crc;
    if (ds_object_crc(object, &crc) == 0)
        ds_api_put_sums(object, crc, reply);
    ds_reply_header(reply, "ETag", "\"%016" PRIx64 "\"", object->generation);
    ds_reply_header(reply, "x-goog-generation", "%" PRIu64, object->generation);
    ds_reply_header(reply, "x-goog-metageneration", "%" PRIu64, object->metageneration);
    ds_reply_header(reply, "x-goog-stored-content-length", "%" PRIu64, object->size);
    ds_reply_header(reply, "x-goog-stored-content-encoding", "%s",
                    object->attributes[MR_ATTR_CONTENT_ENCODING] ? object->attributes[MR_ATTR_CONTENT_ENCODING]
                                                                 : "identity");
}

struct ds_object *ds_api_open(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply,
                              uint32_t *crc, int *fd)
{
    for (int tries = 0; tries < 8; tries++) {
        struct ds_object *object = ds_api_find(request, bucket, reply);
        if (!object)
            return NULL;
        if ((!crc || ds_object_crc(object, crc) == 0) && (!fd || !object->path || (*fd = ds_object_open(object)) >= 0))
            return object;
        ds_object_unref(object);
        if (mr_error_code() != MR_E_CHANGED && mr_error_code() != MR_E_NOT_FOUND)
            break;
    }
    ds_reply_from_error(reply, request);
    return NULL;
}

bool ds_api_has_denied(const struct ds_api *api, const char *permission)
{
    for (int i = 0; i < api->n_denied; i++) {
        if (strcmp(api->denied[i], permission) == 0)
            return true;
    }
    return false;
}

/* What an operation needs; NULL: nothing (more). */
static const char *const permissions[MR_OP_COUNT][2] = {
    [MR_OP_LIST] = {"storage.objects.list"},
    [MR_OP_GET] = {"storage.objects.get"},
    [MR_OP_STAT] = {"storage.objects.get"},
    [MR_OP_UPLOAD] = {"storage.objects.create"},
    [MR_OP_RESUMABLE] = {"storage.objects.create"},
    [MR_OP_INITIATE] = {"storage.multipartUploads.create", "storage.objects.create"},
    [MR_OP_PART] = {"storage.multipartUploads.create", "storage.objects.create"},
    [MR_OP_COMPLETE] = {"storage.multipartUploads.create", "storage.objects.create"},
    [MR_OP_ABORT] = {"storage.multipartUploads.abort"},
    [MR_OP_PARTS] = {"storage.multipartUploads.listParts"},
    [MR_OP_UPLOADS] = {"storage.multipartUploads.list"},
    [MR_OP_COMPOSE] = {"storage.objects.create"},
    [MR_OP_COPY] = {"storage.objects.create", "storage.objects.get"},
    [MR_OP_DELETE] = {"storage.objects.delete"},
    [MR_OP_BUCKET] = {"storage.buckets.get"},
};

const char *ds_api_denied(const struct ds_api *api, enum ds_op op)
{
    for (int i = 0; i < 2; i++) {
        if (permissions[op][i] && ds_api_has_denied(api, permissions[op][i]))
            return permissions[op][i];
    }
    return NULL;
}
