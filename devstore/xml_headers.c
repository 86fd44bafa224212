/* An object's metadata from the headers of a request of the XML API, GCS's or S3's. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "devstore/xml.h"

struct custom {
    const char *prefix;
    json_t *json;
};

/* x-goog-meta-NAME: value, or x-amz-meta- */
static void take_custom(void *cls, const char *name, const char *value)
{
    const struct custom *custom = cls;
    size_t n = strlen(custom->prefix);
    if (strncasecmp(name, custom->prefix, n) != 0 || !name[n])
        return;
    char *key = strdup(name + n);
    for (char *at = key; at && *at; at++)
        *at = (char)(*at >= 'A' && *at <= 'Z' ? *at - 'A' + 'a' : *at);
    if (key)
        json_object_set_new(custom->json, key, json_string(value)); /* one that is not UTF-8 is left out */
    free(key);
}

/* "aws-chunked" is how the body was sent, not what the object is: it is left out. */
static int set_encoding(struct ds_metadata *metadata, const char *value)
{
    char rest[256];
    size_t n = 0;
    for (const char *at = value; *at;) {
        at += strspn(at, " \t,");
        size_t length = strcspn(at, " \t,");
        bool keep = length > 0 && !(length == 11 && strncasecmp(at, "aws-chunked", 11) == 0);
        if (keep && n + length + 2 < sizeof rest) {
            if (n)
                rest[n++] = ',';
            memcpy(rest + n, at, length);
            n += length;
        }
        at += length;
    }
    rest[n] = 0;
    return n ? ds_metadata_set(metadata, MR_ATTR_CONTENT_ENCODING, rest) : 0;
}

int ds_xml_metadata(const struct ds_request *request, struct ds_metadata *metadata)
{
    static const char *const headers[MR_ATTR_COUNT] = {
        [MR_ATTR_CONTENT_TYPE] = "Content-Type",
        [MR_ATTR_CONTENT_ENCODING] = "Content-Encoding",
        [MR_ATTR_CONTENT_DISPOSITION] = "Content-Disposition",
        [MR_ATTR_CONTENT_LANGUAGE] = "Content-Language",
        [MR_ATTR_CACHE_CONTROL] = "Cache-Control",
        [MR_ATTR_CUSTOM_TIME] = "x-goog-custom-time",
    };
    const char *class = ds_request_header(request, request->s3 ? "x-amz-storage-class" : "x-goog-storage-class");
    int rc = class && *class ? ds_metadata_set(metadata, MR_ATTR_STORAGE_CLASS, class) : 0;
    for (int i = 0; rc == 0 && i < MR_ATTR_COUNT; i++) {
        const char *value = headers[i] ? ds_request_header(request, headers[i]) : NULL;
        if (value && *value && request->s3 && i == MR_ATTR_CONTENT_ENCODING)
            rc = set_encoding(metadata, value);
        else if (value && *value)
            rc = ds_metadata_set(metadata, (enum ds_attribute)i, value);
    }
    if (rc == 0 && request->each_header) {
        struct custom custom = {.prefix = request->s3 ? "x-amz-meta-" : "x-goog-meta-", .json = json_object()};
        request->each_header(request->header_cls, take_custom, &custom);
        char *text = json_object_size(custom.json) ? json_dumps(custom.json, JSON_COMPACT) : NULL;
        if (text)
            rc = ds_metadata_set(metadata, MR_ATTR_METADATA, text);
        free(text);
        json_decref(custom.json);
    }
    if (rc < 0 || request->s3)
        return rc;
    return ds_metadata_hash_header(metadata, ds_request_header(request, "x-goog-hash"));
}
