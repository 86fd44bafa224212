/* compose.c - POST .../o/DESTINATION/compose: one object out of up to 32. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/counts.h"
#include "devstore/metadata.h"

#define SOURCES_MAX 32

struct compose {
    const struct ds_request *request;
    struct ds_bucket *bucket;
    struct ds_object *source[SOURCES_MAX];
    size_t n;
    unsigned components;
};

/* A 64-bit number, which Google's JSON writes as a string and some clients as a number. 1; 0: absent; -1: malformed. */
static int get_number(const json_t *object, const char *key, uint64_t *value)
{
    const json_t *number = json_object_get(object, key);
    if (!number || json_is_null(number))
        return 0;
    if (json_is_integer(number) && json_integer_value(number) >= 0) {
        *value = (uint64_t)json_integer_value(number);
        return 1;
    }
    if (json_is_string(number) && ds_parse_u64(json_string_value(number), value) == 0)
        return 1;
    mr_error_set(MR_E_USAGE, "%s is not a number", key);
    return -1;
}

/* Looks the source up and checks its preconditions. 0, or -1 with an error; either way c owns the references that it
 * has. */
static int add_source(struct compose *c, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    if (!name) {
        mr_error_set(MR_E_USAGE, "source object %zu has no name", c->n + 1);
        return -1;
    }
    uint64_t generation = 0;
    int has_generation = get_number(entry, "generation", &generation);
    uint64_t match = 0;
    int has_match = get_number(json_object_get(entry, "objectPreconditions"), "ifGenerationMatch", &match);
    if (has_generation < 0 || has_match < 0)
        return -1;
    struct ds_object *object = ds_bucket_get(c->bucket, name);
    if (object && object->path && ds_object_check(object) < 0) {
        struct ds_object *fresh = ds_bucket_refresh(c->bucket, object);
        ds_object_unref(object);
        object = fresh;
    }
    if (!object)
        return -1;
    c->source[c->n++] = object;
    if (has_generation && object->generation != generation) {
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s#%" PRIu64, ds_bucket_name(c->bucket), name, generation);
        return -1;
    }
    if (has_match && object->generation != match) {
        mr_error_set(MR_E_CHANGED, "The generation of source object \"%s\" is not the one that was asked for.", name);
        return -1;
    }
    c->components += object->component_count ? object->component_count : 1;
    return 0;
}

static int add_sources(struct compose *c, const json_t *body)
{
    const json_t *sources = json_object_get(body, "sourceObjects");
    size_t n = json_array_size(sources);
    if (n < 1 || n > SOURCES_MAX) {
        mr_error_set(MR_E_USAGE, "The number of source components provided (%zu) is not from 1 to %d", n, SOURCES_MAX);
        return -1;
    }
    size_t i;
    json_t *entry;
    json_array_foreach(sources, i, entry)
    {
        if (add_source(c, entry) < 0)
            return -1;
    }
    return 0;
}

/* The composite, live; NULL with an error. */
static struct ds_object *make(struct compose *c, const json_t *body, const struct ds_conditions *conditions)
{
    struct ds_metadata metadata = {0};
    struct ds_object *object = NULL;
    int rc = -1;
    if (ds_metadata_take(&metadata, json_object_get(body, "destination")) < 0 ||
        ds_metadata_set_name(&metadata, c->request->object) < 0)
        goto out;
    object = ds_object_new(metadata.name);
    if (!object || ds_metadata_apply(&metadata, object) < 0)
        goto out;
    object->component_count = c->components;
    rc = ds_api_join(c->bucket, c->source, c->n, object, conditions);
out:
    ds_metadata_close(&metadata);
    if (rc < 0) {
        ds_object_unref(object);
        object = NULL;
    }
    return object;
}

void ds_api_compose(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct compose c = {.request = request};
    struct ds_object *object = NULL;
    json_t *body = NULL;
    c.bucket = ds_api_bucket(api, request, reply);
    struct ds_conditions conditions;
    if (!c.bucket || ds_api_conditions(request, &conditions, reply) < 0)
        return;
    if (ds_bucket_settings(c.bucket)->zonal) {
        ds_reply_error(reply, request, 400, "invalid",
                       "Compose is not supported for objects in a bucket with the RAPID storage class.");
        return;
    }
    json_error_t error;
    body = json_loadb(request->body.data ? request->body.data : "", request->body.length, 0, &error);
    if (!json_is_object(body)) {
        ds_reply_error(reply, request, 400, "parseError", "The body is not a JSON object.");
        goto out;
    }
    if (add_sources(&c, body) == 0)
        object = make(&c, body, &conditions);
    if (object && api->counts)
        ds_counts_add(&api->counts->compose_sources, c.n);
    if (object)
        ds_api_resource(request, c.bucket, object, reply);
    else
        ds_reply_from_error(reply, request);
    ds_object_unref(object);
out:
    for (size_t i = 0; i < c.n; i++)
        ds_object_unref(c.source[i]);
    json_decref(body);
}
