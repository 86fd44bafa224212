#include "devstore/metadata.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "devstore/text.h"

static int replace(char **place, const char *value)
{
    char *copy = strdup(value);
    if (!copy) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
        return -1;
    }
    free(*place);
    *place = copy;
    return 0;
}

int ds_metadata_set_name(struct ds_metadata *metadata, const char *name)
{
    if (!*name || strlen(name) > MR_NAME_MAX || strpbrk(name, "\r\n") || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0) {
        mr_error_set(MR_E_USAGE,
                     "Invalid object name: 1 to 1024 bytes of UTF-8 without CR and LF, not \".\" or \"..\"");
        return -1;
    }
    return replace(&metadata->name, name);
}

int ds_metadata_set_key(struct ds_metadata *metadata, const char *key)
{
    return replace(&metadata->name, key);
}

int ds_metadata_set(struct ds_metadata *metadata, enum ds_attribute attribute, const char *value)
{
    /* It is returned as a response header: no control characters. */
    for (const char *at = value; attribute != MR_ATTR_METADATA && *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            mr_error_set(MR_E_USAGE, "%s holds a control character", ds_attribute_names[attribute]);
            return -1;
        }
    }
    if (!ds_utf8_valid(value, strlen(value))) { /* and in XML and JSON */
        mr_error_set(MR_E_USAGE, "%s is not valid UTF-8", ds_attribute_names[attribute]);
        return -1;
    }
    return replace(&metadata->attributes[attribute], value);
}

static int take_custom(struct ds_metadata *metadata, json_t *custom)
{
    if (!json_is_object(custom)) {
        mr_error_set(MR_E_USAGE, "metadata is not an object");
        return -1;
    }
    const char *key;
    json_t *value;
    json_object_foreach(custom, key, value)
    {
        if (!json_is_string(value)) {
            mr_error_set(MR_E_USAGE, "metadata \"%.100s\" is not a string", key);
            return -1;
        }
    }
    char *text = json_dumps(custom, JSON_COMPACT);
    int rc = text ? ds_metadata_set(metadata, MR_ATTR_METADATA, text) : -1;
    if (!text)
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
    free(text);
    return rc;
}

static int take_attributes(struct ds_metadata *metadata, const json_t *json)
{
    for (int i = 0; i < MR_ATTR_COUNT; i++) {
        json_t *value = json_object_get(json, ds_attribute_names[i]);
        if (!value || json_is_null(value))
            continue;
        if (i == MR_ATTR_METADATA) {
            if (take_custom(metadata, value) < 0)
                return -1;
            continue;
        }
        if (!json_is_string(value)) {
            mr_error_set(MR_E_USAGE, "%s is not a string", ds_attribute_names[i]);
            return -1;
        }
        if (ds_metadata_set(metadata, (enum ds_attribute)i, json_string_value(value)) < 0)
            return -1;
    }
    return 0;
}

static int take_crc(struct ds_metadata *metadata, const char *text, size_t length)
{
    if (!text || mr_crc32c_from_base64(text, length, &metadata->crc) < 0) {
        mr_error_set(MR_E_USAGE, "crc32c is not the base64 of 4 bytes");
        return -1;
    }
    metadata->has_crc = true;
    return 0;
}

static int take_md5(struct ds_metadata *metadata, const char *text, size_t length)
{
    unsigned char coded[24];
    if (!text || length != sizeof coded || text[22] != '=' || text[23] != '=')
        goto bad;
    memcpy(coded, text, sizeof coded);
    unsigned char block[18];
    if (EVP_DecodeBlock(block, coded, sizeof coded) != sizeof block)
        goto bad;
    memcpy(metadata->md5, block, sizeof metadata->md5);
    metadata->has_md5 = true;
    return 0;
bad:
    mr_error_set(MR_E_USAGE, "md5 is not the base64 of 16 bytes");
    return -1;
}

int ds_metadata_take(struct ds_metadata *metadata, const json_t *json)
{
    if (!json)
        return 0;
    if (!json_is_object(json)) {
        mr_error_set(MR_E_USAGE, "The metadata is not a JSON object.");
        return -1;
    }
    json_t *name = json_object_get(json, "name"), *crc = json_object_get(json, "crc32c");
    json_t *md5 = json_object_get(json, "md5Hash");
    if (name && !json_is_string(name)) {
        mr_error_set(MR_E_USAGE, "name is not a string");
        return -1;
    }
    if (name && ds_metadata_set_name(metadata, json_string_value(name)) < 0)
        return -1;
    if (crc && take_crc(metadata, json_string_value(crc), json_string_length(crc)) < 0)
        return -1;
    if (md5 && take_md5(metadata, json_string_value(md5), json_string_length(md5)) < 0)
        return -1;
    return take_attributes(metadata, json);
}

int ds_metadata_parse(struct ds_metadata *metadata, const char *json, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        mr_error_set(MR_E_USAGE, "The metadata is not JSON: %s", error.text);
        return -1;
    }
    int rc = ds_metadata_take(metadata, root);
    json_decref(root);
    return rc;
}

int ds_metadata_hash_header(struct ds_metadata *metadata, const char *header)
{
    const char *crc = header ? strstr(header, "crc32c=") : NULL, *md5 = header ? strstr(header, "md5=") : NULL;
    if (crc) {
        crc += strlen("crc32c=");
        if (take_crc(metadata, crc, strcspn(crc, ", \t")) < 0)
            return -1;
    }
    if (!md5)
        return 0;
    md5 += strlen("md5=");
    return take_md5(metadata, md5, strcspn(md5, ", \t"));
}

int ds_metadata_md5_header(struct ds_metadata *metadata, const char *header)
{
    return header ? take_md5(metadata, header, strlen(header)) : 0;
}

int ds_metadata_check_sums(const struct ds_metadata *metadata, uint32_t crc, const uint8_t *md5)
{
    char base64[25];
    if (metadata->has_crc && metadata->crc != crc) {
        mr_crc32c_to_base64(crc, base64);
        mr_error_set(MR_E_USAGE, "Provided CRC32C does not match the calculated one, \"%s\".", base64);
        return -1;
    }
    if (md5 && metadata->has_md5 && memcmp(metadata->md5, md5, sizeof metadata->md5) != 0) {
        EVP_EncodeBlock((unsigned char *)base64, md5, sizeof metadata->md5);
        mr_error_set(MR_E_USAGE, "Provided MD5 hash does not match the calculated one, \"%s\".", base64);
        return -1;
    }
    return 0;
}

int ds_metadata_apply(const struct ds_metadata *metadata, struct ds_object *object)
{
    for (int i = 0; i < MR_ATTR_COUNT; i++) {
        if (metadata->attributes[i] &&
            ds_object_set_attribute(object, (enum ds_attribute)i, metadata->attributes[i]) < 0)
            return -1;
    }
    return 0;
}

void ds_metadata_close(struct ds_metadata *metadata)
{
    free(metadata->name);
    for (int i = 0; i < MR_ATTR_COUNT; i++)
        free(metadata->attributes[i]);
    memset(metadata, 0, sizeof *metadata);
}
