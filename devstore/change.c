/*
 * change.c - what is done to an object that exists: its metadata (PATCH, PUT), a copy of it (rewriteTo, copyTo, moveTo,
 * and the XML API's x-goog-copy-source), another generation of the same bytes (POST /_devstore/touch).
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "devstore/api.h"
#include "devstore/metadata.h"
#include "devstore/upload_impl.h"
#include "devstore/xml.h"
#include "shm/base/error.h"

/* The custom metadata after a change: a null takes a key away, and for `metadata` itself, all of them. */
static int change_custom(const struct mr_object *object, const json_t *change, struct mr_object *to)
{
    json_error_t error;
    const char *old = object->attributes[MR_ATTR_METADATA];
    json_t *value, *custom = old ? json_loads(old, 0, &error) : NULL;
    struct mr_metadata checked = {0};
    int rc = -1;
    if (json_is_null(change)) {
        json_decref(custom);
        return mr_object_set_attribute(to, MR_ATTR_METADATA, NULL);
    }
    custom = custom ? custom : json_object();
    if (!json_is_object(change)) {
        mr_error_set(MR_E_USAGE, "metadata is not an object");
        goto out;
    }
    const char *key;
    json_object_foreach((json_t *)change, key, value)
    {
        if (json_is_null(value))
            json_object_del(custom, key);
        else
            json_object_set(custom, key, value);
    }
    json_t *whole = json_pack("{s:O}", "metadata", custom);
    rc = mr_metadata_take(&checked, whole);
    json_decref(whole);
    if (rc == 0)
        rc = mr_object_set_attribute(to, MR_ATTR_METADATA,
                                     json_object_size(custom) ? checked.attributes[MR_ATTR_METADATA] : NULL);
out:
    mr_metadata_close(&checked);
    json_decref(custom);
    return rc;
}

/* body: a JSON object. all: what it does not name is removed (PUT), else it stays. 0 or -1. */
static int change(const struct mr_object *object, const json_t *body, bool all, struct mr_object *to)
{
    for (int i = 0; i < MR_ATTR_COUNT; i++) {
        const json_t *value = json_object_get(body, mr_attribute_names[i]);
        if (all && i != MR_ATTR_STORAGE_CLASS && mr_object_set_attribute(to, (enum mr_attribute)i, NULL) < 0)
            return -1;
        if (!value)
            continue;
        struct mr_metadata checked = {0};
        int rc = 0;
        if (i == MR_ATTR_METADATA)
            rc = change_custom(all ? to : object, value, to);
        else if (json_is_null(value))
            rc = mr_object_set_attribute(to, (enum mr_attribute)i, NULL);
        else if (!json_is_string(value))
            mr_error_set(MR_E_USAGE, "%s is not a string", mr_attribute_names[i]), rc = -1;
        else if ((rc = mr_metadata_set(&checked, (enum mr_attribute)i, json_string_value(value))) == 0)
            rc = mr_object_set_attribute(to, (enum mr_attribute)i, checked.attributes[i]);
        mr_metadata_close(&checked);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static json_t *read_body(const struct mr_request *request, struct mr_reply *reply)
{
    json_error_t error;
    json_t *body =
        request->body.length ? json_loadb(request->body.data, request->body.length, 0, &error) : json_object();
    if (json_is_object(body))
        return body;
    json_decref(body);
    mr_reply_error(reply, request, 400, "parseError", "The body is not a JSON object.");
    return NULL;
}

void mr_api_patch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    struct mr_bucket *bucket = mr_api_bucket(api, request, reply);
    json_t *body = bucket ? read_body(request, reply) : NULL;
    bool all = strcmp(request->method, "PUT") == 0;
    int rc = -1;
    for (int tries = 0; body && rc < 0 && tries < 8; tries++) {
        struct mr_object *object = mr_api_find(request, bucket, reply);
        struct mr_object *changed = object ? mr_object_copy_of(object) : NULL;
        if (!object)
            break;
        if (!changed || change(object, body, all, changed) < 0)
            tries = 8;
        else
            rc = mr_bucket_change(bucket, object, changed);
        if (rc == 0)
            mr_api_resource(request, bucket, changed, reply);
        else if (tries >= 7 || mr_error_code() != MR_E_CHANGED)
            mr_reply_from_error(reply, request);
        mr_object_unref(changed);
        mr_object_unref(object);
    }
    json_decref(body);
}

/* Removes the source of a move, unless somebody put another object there meanwhile. */
static void remove_source(struct mr_bucket *bucket, const struct mr_object *object)
{
    struct mr_conditions none = {0};
    if (mr_bucket_delete(bucket, object->name, object->generation, &none) < 0)
        mr_error_clear();
}

/* Makes the copy: as the source, but for what the client gives. NULL: the reply says why not. */
static struct mr_object *copy(const struct mr_api *api, const struct mr_request *request, struct mr_request *source,
                              struct mr_bucket *to, const char *name, struct mr_metadata *metadata,
                              struct mr_reply *reply)
{
    struct mr_bucket *from = mr_api_bucket(api, source, reply);
    struct mr_object *object = from ? mr_api_find(source, from, reply) : NULL, *made = NULL;
    if (!object)
        return NULL;
    struct mr_conditions conditions;
    if (mr_api_conditions(request, &conditions, reply) < 0) {
        mr_object_unref(object);
        return NULL;
    }
    if (mr_metadata_set_name(metadata, name) == 0)
        made = mr_object_new(name);
    if (!made || mr_object_copy_attributes(made, object) < 0 || mr_metadata_apply(metadata, made) < 0)
        goto fail;
    made->component_count = object->component_count;
    made->has_md5 = object->has_md5;
    memcpy(made->md5, object->md5, sizeof made->md5);
    if (mr_api_join(to, &object, 1, made, &conditions) < 0)
        goto fail;
    if (request->move && strcmp(object->name, made->name) != 0)
        remove_source(from, object);
    mr_object_unref(object);
    return made;
fail:
    mr_reply_from_error(reply, request);
    mr_object_unref(made);
    mr_object_unref(object);
    return NULL;
}

/* The source's conditions and generation are parameters of other names. */
static void source_request(const struct mr_request *request, struct mr_request *source)
{
    static const char *const names[][2] = {{"sourceGeneration", "generation"},
                                           {"ifSourceGenerationMatch", "ifGenerationMatch"},
                                           {"ifSourceGenerationNotMatch", "ifGenerationNotMatch"},
                                           {"ifSourceMetagenerationMatch", "ifMetagenerationMatch"},
                                           {"userProject", "userProject"}};
    *source = *request;
    source->n_query = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = mr_request_query(request, names[i][0]);
        if (value) {
            source->query[source->n_query].key = (char *)names[i][1];
            source->query[source->n_query++].value = (char *)value;
        }
    }
}

void mr_api_copy(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply)
{
    struct mr_request target = *request;
    target.bucket = request->to_bucket;
    target.object = request->to_object;
    struct mr_request source;
    source_request(request, &source);
    struct mr_bucket *to = mr_api_bucket(api, &target, reply);
    if (!to)
        return;
    struct mr_metadata metadata = {0};
    struct mr_object *made = NULL;
    if (request->body.length && mr_metadata_parse(&metadata, request->body.data, request->body.length) < 0)
        mr_reply_from_error(reply, request);
    else
        made = copy(api, request, &source, to, request->to_object, &metadata, reply);
    if (made && !request->rewrite) {
        mr_api_resource(request, to, made, reply);
    } else if (made) {
        struct mr_request whole = *request; /* its fields are those of the rewrite's answer */
        whole.n_query = 0;
        mr_text_printf(&reply->body,
                       "{\"kind\":\"storage#rewriteResponse\",\"totalBytesRewritten\":\"%" PRIu64
                       "\",\"objectSize\":\"%" PRIu64 "\",\"done\":true,\"resource\":",
                       made->size, made->size);
        mr_api_resource(&whole, to, made, reply);
        mr_text_puts(&reply->body, "}");
    }
    mr_object_unref(made);
    mr_metadata_close(&metadata);
}

/* x-goog-copy-source: /bucket/object, percent-encoded; the slash in front may be missing. 0, or -1: the error. */
static int split_source(const char *text, struct mr_request *source)
{
    text += *text == '/';
    const char *slash = strchr(text, '/');
    source->bucket = slash ? mr_percent_decode(text, (size_t)(slash - text), false) : NULL;
    source->object = slash ? mr_percent_decode(slash + 1, strlen(slash + 1), false) : NULL;
    if (source->bucket && source->object)
        return 0;
    mr_error_set(MR_E_USAGE, "x-goog-copy-source is not /bucket/object: \"%.200s\"", text);
    return -1;
}

void mr_api_xml_copy(const struct mr_api *api, const struct mr_request *request, struct mr_bucket *bucket,
                     const char *from, struct mr_reply *reply)
{
    struct mr_request source = *request;
    const char *directive = mr_request_header(request, "x-goog-metadata-directive");
    source.n_query = 0;
    source.header = NULL; /* the conditions are the target's */
    source.bucket = source.object = NULL;
    struct mr_metadata metadata = {0};
    struct mr_object *made = NULL;
    if (split_source(from, &source) < 0 ||
        (directive && strcasecmp(directive, "REPLACE") == 0 && mr_xml_metadata(request, &metadata) < 0))
        mr_reply_from_error(reply, request);
    else
        made = copy(api, request, &source, bucket, request->object, &metadata, reply);
    if (made) {
        mr_upload_answer(request, bucket, made, reply);
        mr_xml_begin(&reply->body, "CopyObjectResult");
        mr_text_printf(&reply->body, "<ETag>&quot;%016" PRIx64 "&quot;</ETag><LastModified>", made->generation);
        mr_text_time(&reply->body, made->updated_us);
        mr_text_puts(&reply->body, "</LastModified></CopyObjectResult>");
        mr_reply_header(reply, "Content-Type", "application/xml; charset=UTF-8");
    }
    free(source.bucket);
    free(source.object);
    mr_object_unref(made);
    mr_metadata_close(&metadata);
}

void mr_api_touch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    const char *bucket = mr_request_query(request, "bucket"), *name = mr_request_query(request, "name");
    struct mr_bucket *found = mr_buckets_find(api->buckets, bucket ? bucket : "");
    uint64_t generation;
    if (!found || !name) {
        mr_reply_error(reply, request, 404, NULL, "No such bucket; the parameters are bucket and name.");
    } else if (mr_bucket_touch(found, name, &generation) < 0) {
        mr_reply_from_error(reply, request);
    } else {
        mr_text_printf(&reply->body, "{\"generation\":\"%" PRIu64 "\"}\n", generation);
        mr_reply_header(reply, "Content-Type", "application/json");
    }
}
