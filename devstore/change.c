/*
 * change.c - what is done to an object that exists: a copy of it (copyTo, moveTo), another generation of the same bytes
 * (POST /_devstore/touch).
 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/metadata.h"

/* Removes the source of a move, unless another object has taken its place meanwhile. */
static void remove_source(struct ds_bucket *bucket, const struct ds_object *object)
{
    struct ds_conditions none = {0};
    if (ds_bucket_delete(bucket, object->name, object->generation, &none) < 0)
        mr_error_clear();
}

/* Makes the copy: like the source, except for what the client sets. NULL: the reply says why not. */
static struct ds_object *change_copy(const struct ds_api *api, const struct ds_request *request,
                                     struct ds_request *source, struct ds_bucket *to, const char *name,
                                     struct ds_metadata *metadata, struct ds_reply *reply)
{
    struct ds_bucket *from = ds_api_bucket(api, source, reply);
    struct ds_object *object = from ? ds_api_find(source, from, reply) : NULL, *made = NULL;
    if (!object)
        return NULL;
    struct ds_conditions conditions;
    if (ds_api_conditions(request, &conditions, reply) < 0) {
        ds_object_unref(object);
        return NULL;
    }
    if (ds_metadata_set_name(metadata, name) == 0)
        made = ds_object_new(name);
    if (!made || ds_object_copy_attributes(made, object) < 0 || ds_metadata_apply(metadata, made) < 0)
        goto fail;
    made->component_count = object->component_count;
    made->has_md5 = object->has_md5;
    memcpy(made->md5, object->md5, sizeof made->md5);
    if (ds_api_join(to, &object, 1, made, &conditions) < 0)
        goto fail;
    if (request->move && strcmp(object->name, made->name) != 0)
        remove_source(from, object);
    ds_object_unref(object);
    return made;
fail:
    ds_reply_from_error(reply, request);
    ds_object_unref(made);
    ds_object_unref(object);
    return NULL;
}

/* The source's conditions and generation are parameters of other names. */
static void source_request(const struct ds_request *request, struct ds_request *source)
{
    static const char *const names[][2] = {{"sourceGeneration", "generation"},
                                           {"ifSourceGenerationMatch", "ifGenerationMatch"},
                                           {"ifSourceGenerationNotMatch", "ifGenerationNotMatch"},
                                           {"ifSourceMetagenerationMatch", "ifMetagenerationMatch"},
                                           {"userProject", "userProject"}};
    *source = *request;
    source->n_query = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = ds_request_query(request, names[i][0]);
        if (value) {
            source->query[source->n_query].key = (char *)names[i][1];
            source->query[source->n_query++].value = (char *)value;
        }
    }
}

void ds_api_copy(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply)
{
    struct ds_request target = *request;
    target.bucket = request->to_bucket;
    target.object = request->to_object;
    struct ds_request source;
    source_request(request, &source);
    struct ds_bucket *to = ds_api_bucket(api, &target, reply);
    if (!to)
        return;
    struct ds_metadata metadata = {0};
    struct ds_object *made = NULL;
    if (request->body.length && ds_metadata_parse(&metadata, request->body.data, request->body.length) < 0)
        ds_reply_from_error(reply, request);
    else
        made = change_copy(api, request, &source, to, request->to_object, &metadata, reply);
    if (made)
        ds_api_resource(request, to, made, reply);
    ds_object_unref(made);
    ds_metadata_close(&metadata);
}

void ds_api_touch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *bucket = ds_request_query(request, "bucket"), *name = ds_request_query(request, "name");
    struct ds_bucket *found = ds_buckets_find(api->buckets, bucket ? bucket : "");
    uint64_t generation;
    if (!found || !name) {
        ds_reply_error(reply, request, 404, NULL, "No such bucket; the parameters are bucket and name.");
    } else if (ds_bucket_touch(found, name, &generation) < 0) {
        ds_reply_from_error(reply, request);
    } else {
        ds_text_printf(&reply->body, "{\"generation\":\"%" PRIu64 "\"}\n", generation);
        ds_reply_header(reply, "Content-Type", "application/json");
    }
}
