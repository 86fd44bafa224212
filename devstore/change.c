/*
 * change.c - what is done to an object that exists: a copy of it (copyTo, moveTo), another generation of the same bytes
 * (POST /_devstore/touch).
 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/metadata.h"

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
    if (made)
        mr_api_resource(request, to, made, reply);
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
