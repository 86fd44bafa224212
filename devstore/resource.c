#include "devstore/resource.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"

/* In the order in which they are written. */
enum field {
    KIND,
    ID,
    SELF_LINK,
    MEDIA_LINK,
    NAME,
    BUCKET,
    GENERATION,
    METAGENERATION,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    CONTENT_DISPOSITION,
    CONTENT_LANGUAGE,
    CACHE_CONTROL,
    CUSTOM_TIME,
    STORAGE_CLASS,
    SIZE,
    CRC32C,
    MD5,
    ETAG,
    TIME_CREATED,
    UPDATED,
    TIME_STORAGE_CLASS_UPDATED,
    COMPONENT_COUNT,
    METADATA,
    FIELDS
};

/* The fields above, and after them those that the real resource has and this one never does: asking for them is not an
 * error. */
static const char *const names[] = {
    "kind",
    "id",
    "selfLink",
    "mediaLink",
    "name",
    "bucket",
    "generation",
    "metageneration",
    "contentType",
    "contentEncoding",
    "contentDisposition",
    "contentLanguage",
    "cacheControl",
    "customTime",
    "storageClass",
    "size",
    "crc32c",
    "md5Hash",
    "etag",
    "timeCreated",
    "updated",
    "timeStorageClassUpdated",
    "componentCount",
    "metadata",
    "owner",
    "acl",
    "timeDeleted",
    "softDeleteTime",
    "hardDeleteTime",
    "eventBasedHold",
    "temporaryHold",
    "retentionExpirationTime",
    "retention",
    "kmsKeyName",
    "customerEncryption",
    "timeFinalized",
    "restoreToken",
    "contexts",
    NULL,
};

void ds_resource_base(const struct ds_request *request, char base[300])
{
    const char *host = ds_request_header(request, "Host");
    bool good = host && *host && strlen(host) < 280;
    for (const char *at = host; good && *at; at++)
        good = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
               strchr(".-:[]_", *at);
    snprintf(base, 300, "%s://%s", request->secure ? "https" : "http", good ? host : "localhost");
}

int ds_resource_init(struct ds_resource *resource, const struct ds_bucket *bucket, const struct ds_request *request,
                     const struct ds_fields *fields, int node)
{
    resource->wanted = 0;
    resource->bucket = ds_bucket_name(bucket);
    resource->storage_class = ds_bucket_settings(bucket)->storage_class;
    ds_resource_base(request, resource->base);
    if (node < 0)
        return 0;
    if (ds_fields_known(fields, node, names) < 0)
        return -1;
    for (unsigned i = 0; i < FIELDS; i++) {
        if (ds_fields_under(fields, node, names[i]) >= 0)
            resource->wanted |= 1u << i;
    }
    return 0;
}

int ds_resource_wants_crc(const struct ds_resource *resource)
{
    return resource->wanted >> CRC32C & 1;
}

/* "name": with a comma in front of all but the first; false when the field is not wanted. */
static bool resource_begin(const struct ds_resource *resource, struct ds_text *out, enum field field)
{
    if (!(resource->wanted >> field & 1))
        return false;
    if (out->failed)
        return false;
    if (out->data[out->length - 1] != '{')
        ds_text_append(out, ",", 1);
    ds_text_append(out, "\"", 1);
    ds_text_puts(out, names[field]);
    ds_text_append(out, "\":", 2);
    return true;
}

static void put_string(const struct ds_resource *resource, struct ds_text *out, enum field field, const char *value)
{
    if (value && resource_begin(resource, out, field))
        ds_text_json_string(out, value);
}

/* 64-bit numbers are strings in Google's JSON. */
static void put_number(const struct ds_resource *resource, struct ds_text *out, enum field field, uint64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    if (!resource_begin(resource, out, field))
        return;
    *--at = '"';
    do
        *--at = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    *--at = '"';
    ds_text_append(out, at, (size_t)(digits + sizeof digits - at));
}

static void put_time(const struct ds_resource *resource, struct ds_text *out, enum field field, int64_t microseconds)
{
    if (!resource_begin(resource, out, field))
        return;
    ds_text_append(out, "\"", 1);
    ds_text_time(out, microseconds);
    ds_text_append(out, "\"", 1);
}

static void put_link(const struct ds_resource *resource, struct ds_text *out, enum field field,
                     const struct ds_object *object)
{
    if (!resource_begin(resource, out, field))
        return;
    ds_text_printf(out, "\"%s%s/storage/v1/b/%s/o/", resource->base, field == MEDIA_LINK ? "/download" : "",
                   resource->bucket);
    ds_text_percent(out, object->name);
    if (field == MEDIA_LINK)
        ds_text_printf(out, "?generation=%" PRIu64 "&alt=media", object->generation);
    ds_text_append(out, "\"", 1);
}

void ds_resource_write(const struct ds_resource *resource, struct ds_object *object, struct ds_text *out)
{
    ds_text_append(out, "{", 1);
    put_string(resource, out, KIND, "storage#object");
    if (resource_begin(resource, out, ID)) {
        struct ds_text id = {0};
        ds_text_printf(&id, "%s/%s/%" PRIu64, resource->bucket, object->name, object->generation);
        ds_text_json_string(out, id.data ? id.data : "");
        ds_text_close(&id);
    }
    put_link(resource, out, SELF_LINK, object);
    put_link(resource, out, MEDIA_LINK, object);
    put_string(resource, out, NAME, object->name);
    put_string(resource, out, BUCKET, resource->bucket);
    put_number(resource, out, GENERATION, object->generation);
    put_number(resource, out, METAGENERATION, object->metageneration);
    put_string(resource, out, CONTENT_TYPE, object->attributes[MR_ATTR_CONTENT_TYPE]);
    put_string(resource, out, CONTENT_ENCODING, object->attributes[MR_ATTR_CONTENT_ENCODING]);
    put_string(resource, out, CONTENT_DISPOSITION, object->attributes[MR_ATTR_CONTENT_DISPOSITION]);
    put_string(resource, out, CONTENT_LANGUAGE, object->attributes[MR_ATTR_CONTENT_LANGUAGE]);
    put_string(resource, out, CACHE_CONTROL, object->attributes[MR_ATTR_CACHE_CONTROL]);
    put_string(resource, out, CUSTOM_TIME, object->attributes[MR_ATTR_CUSTOM_TIME]);
    put_string(resource, out, STORAGE_CLASS,
               object->attributes[MR_ATTR_STORAGE_CLASS] ? object->attributes[MR_ATTR_STORAGE_CLASS]
                                                         : resource->storage_class);
    put_number(resource, out, SIZE, object->size);
    uint32_t crc;
    char base64[25];
    if (ds_resource_wants_crc(resource) && ds_object_crc(object, &crc) == 0) {
        mr_crc32c_to_base64(crc, base64);
        put_string(resource, out, CRC32C, base64);
    }
    if (object->has_md5) {
        EVP_EncodeBlock((unsigned char *)base64, object->md5, sizeof object->md5);
        put_string(resource, out, MD5, base64);
    }
    if (resource_begin(resource, out, ETAG))
        ds_text_printf(out, "\"%" PRIu64 "/%" PRIu64 "\"", object->generation, object->metageneration);
    put_time(resource, out, TIME_CREATED, object->created_us);
    put_time(resource, out, UPDATED, object->updated_us);
    put_time(resource, out, TIME_STORAGE_CLASS_UPDATED, object->created_us);
    if (object->component_count && resource_begin(resource, out, COMPONENT_COUNT))
        ds_text_printf(out, "%u", object->component_count);
    if (object->attributes[MR_ATTR_METADATA] && resource_begin(resource, out, METADATA))
        ds_text_puts(out, object->attributes[MR_ATTR_METADATA]);
    ds_text_append(out, "}", 1);
}
