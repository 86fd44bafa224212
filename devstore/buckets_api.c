/* buckets_api.c - buckets as JSON: get, list, create. https://cloud.google.com/storage/docs/json_api/v1/buckets */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/fields.h"
#include "devstore/resource.h"

static json_t *switch_json(const char *name, bool on)
{
    return json_pack("{s:b}", name, on);
}

static json_t *seconds_json(const char *name, uint64_t seconds)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, seconds);
    return json_pack("{s:s}", name, text);
}

static void add_places(json_t *json, const struct ds_bucket_settings *settings)
{
    json_object_set_new(json, "location", json_string(settings->location));
    json_object_set_new(json, "locationType", json_string(settings->location_type));
    if (settings->zonal)
        json_object_set_new(json, "customPlacementConfig", json_pack("{s:[s]}", "dataLocations", "DEVSTORE-A"));
    json_object_set_new(json, "storageClass", json_string(settings->storage_class));
}

/* The whole resource; NULL: no memory. */
static json_t *bucket_json(const struct ds_bucket *bucket, const struct ds_request *request)
{
    char base[300];
    const struct ds_bucket_settings *settings = ds_bucket_settings(bucket);
    const char *name = ds_bucket_name(bucket);
    ds_resource_base(request, base);
    struct ds_text time = {0};
    ds_text_time(&time, ds_bucket_created_us(bucket));
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "kind", "storage#bucket", "id", name, "name", name,
                             "projectNumber", "0", "metageneration", "1", "etag", "CAE=", "timeCreated",
                             time.data ? time.data : "");
    ds_text_close(&time);
    if (!json)
        return NULL;
    json_object_set_new(json, "updated", json_incref(json_object_get(json, "timeCreated")));
    json_object_set_new(json, "selfLink", json_sprintf("%s/storage/v1/b/%s", base, name));
    add_places(json, settings);
    json_object_set_new(json, "softDeletePolicy", seconds_json("retentionDurationSeconds", settings->soft_delete_s));
    json_object_set_new(json, "hierarchicalNamespace", switch_json("enabled", settings->hierarchical));
    json_object_set_new(json, "versioning", switch_json("enabled", settings->versioning));
    json_object_set_new(json, "billing", switch_json("requesterPays", settings->requester_pays));
    json_object_set_new(json, "iamConfiguration",
                        json_pack("{s:{s:b}, s:s}", "uniformBucketLevelAccess", "enabled", true,
                                  "publicAccessPrevention", "inherited"));
    return json;
}

static const char *const known[] = {"kind",
                                    "id",
                                    "name",
                                    "projectNumber",
                                    "metageneration",
                                    "etag",
                                    "timeCreated",
                                    "updated",
                                    "selfLink",
                                    "location",
                                    "locationType",
                                    "customPlacementConfig",
                                    "storageClass",
                                    "softDeletePolicy",
                                    "hierarchicalNamespace",
                                    "versioning",
                                    "billing",
                                    "iamConfiguration",
                                    "acl",
                                    "defaultObjectAcl",
                                    "labels",
                                    "lifecycle",
                                    "logging",
                                    "owner",
                                    "retentionPolicy",
                                    "rpo",
                                    "website",
                                    "cors",
                                    "encryption",
                                    "autoclass",
                                    "defaultEventBasedHold",
                                    "satisfiesPZS",
                                    "ipFilter",
                                    "objectRetention",
                                    NULL};

/* Takes json; what `fields` selects of it under `node` goes into the reply. */
static void reply_json(json_t *json, const struct ds_fields *fields, int node, struct ds_reply *reply)
{
    json_t *part = ds_fields_filter(fields, node, json);
    char *text = part ? json_dumps(part, JSON_COMPACT) : NULL;
    if (text)
        ds_text_puts(&reply->body, text);
    else
        reply->body.failed = true;
    free(text);
    json_decref(part);
    json_decref(json);
    ds_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
}

/* An absent key leaves `to` as it is. 0 or -1 (USAGE). */
static int take_word(const json_t *body, const char *key, char *to, size_t size)
{
    const json_t *value = json_object_get(body, key);
    if (!value || json_is_null(value))
        return 0;
    const char *text = json_string_value(value);
    if (text && *text && strlen(text) < size &&
        strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(text)) {
        memcpy(to, text, strlen(text) + 1);
        return 0;
    }
    mr_error_set(MR_E_USAGE, "Invalid value for %s", key);
    return -1;
}

/* A flag inside an object; if absent, *on is unchanged. */
static void take_switch(const json_t *body, const char *key, const char *inner, bool *on)
{
    const json_t *value = json_object_get(json_object_get(body, key), inner);
    if (json_is_boolean(value))
        *on = json_is_true(value);
}

/* Overwrites the settings that the body has. 0 or -1 (USAGE). */
static int take_settings(const json_t *body, struct ds_bucket_settings *settings)
{
    const json_t *soft = json_object_get(json_object_get(body, "softDeletePolicy"), "retentionDurationSeconds");
    if (take_word(body, "storageClass", settings->storage_class, sizeof settings->storage_class) < 0 ||
        take_word(body, "location", settings->location, sizeof settings->location) < 0)
        return -1;
    if (json_is_integer(soft) && json_integer_value(soft) >= 0) {
        settings->soft_delete_s = (uint64_t)json_integer_value(soft);
    } else if (soft && (!json_is_string(soft) || ds_parse_u64(json_string_value(soft), &settings->soft_delete_s) < 0)) {
        mr_error_set(MR_E_USAGE, "Invalid value for softDeletePolicy.retentionDurationSeconds");
        return -1;
    }
    take_switch(body, "hierarchicalNamespace", "enabled", &settings->hierarchical);
    take_switch(body, "versioning", "enabled", &settings->versioning);
    take_switch(body, "billing", "requesterPays", &settings->requester_pays);
    return 0;
}

static void create(const struct ds_api *api, const struct ds_request *request, const struct ds_fields *fields,
                   struct ds_reply *reply)
{
    json_error_t error;
    struct ds_bucket_settings settings = *ds_buckets_settings(api->buckets);
    json_t *body = json_loadb(request->body.data ? request->body.data : "", request->body.length, 0, &error);
    const char *name = json_string_value(json_object_get(body, "name"));
    if (!name)
        ds_reply_error(reply, request, 400, "required", "The body is not a JSON object with a name.");
    else if (take_settings(body, &settings) < 0 || ds_buckets_create(api->buckets, name, &settings) < 0)
        ds_reply_from_error(reply, request);
    else
        reply_json(bucket_json(ds_buckets_find(api->buckets, name), request), fields, 0, reply);
    json_decref(body);
}

static void list(const struct ds_api *api, const struct ds_request *request, const struct ds_fields *fields,
                 struct ds_reply *reply)
{
    const char *name = "";
    const char *prefix = ds_request_query(request, "prefix");
    json_t *items = json_array();
    while ((name = ds_buckets_next(api->buckets, name))) {
        if (!prefix || strncmp(name, prefix, strlen(prefix)) == 0)
            json_array_append_new(items, bucket_json(ds_buckets_find(api->buckets, name), request));
    }
    reply_json(json_pack("{s:s, s:o}", "kind", "storage#buckets", "items", items), fields, 0, reply);
}

void ds_api_buckets(const struct ds_api *api, const struct ds_request *request, struct ds_bucket *bucket,
                    struct ds_reply *reply)
{
    static const char *const page[] = {"kind", "items", "nextPageToken", NULL};
    struct ds_fields fields;
    bool creates = strcmp(request->method, "POST") == 0, lists = !bucket && !creates;
    if (ds_fields_parse(&fields, ds_request_query(request, "fields")) < 0 ||
        ds_fields_known(&fields, 0, lists ? page : known) < 0 ||
        (lists && ds_fields_known(&fields, ds_fields_under(&fields, 0, "items"), known) < 0))
        ds_reply_from_error(reply, request);
    else if (lists)
        list(api, request, &fields, reply);
    else if (creates)
        create(api, request, &fields, reply);
    else
        reply_json(bucket_json(bucket, request), &fields, 0, reply);
}
