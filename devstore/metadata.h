/* metadata.h - what a client sends with an object that it creates: the JSON part of an upload, compose's
 * destination. */
#ifndef MR_DEVSTORE_METADATA_H
#define MR_DEVSTORE_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

struct json_t;

struct ds_metadata {
    char *name; /* NULL: not given */
    char *attributes[MR_ATTR_COUNT];
    bool has_crc, has_md5; /* sums of the bytes, from the client */
    uint32_t crc;
    uint8_t md5[16];
};

/* All return 0, or -1 (USAGE: what is wrong; NO_MEMORY). What was set before and is not in the JSON stays. */
int ds_metadata_parse(struct ds_metadata *metadata, const char *json, size_t length);
/* From parsed JSON; NULL is an empty object. */
int ds_metadata_take(struct ds_metadata *metadata, const struct json_t *json);
/* A copy. The name must be GCS's: 1 to 1024 bytes of UTF-8, not "." or "..", no CR or LF. */
int ds_metadata_set_name(struct ds_metadata *metadata, const char *name);
/* The same by S3's rule, which allows everything that a path can decode to. */
int ds_metadata_set_key(struct ds_metadata *metadata, const char *key);
int ds_metadata_set(struct ds_metadata *metadata, enum ds_attribute attribute, const char *value);
/* The sums of an x-goog-hash header ("crc32c=...,md5=..."); NULL: none. */
int ds_metadata_hash_header(struct ds_metadata *metadata, const char *header);
/* The same for a Content-MD5 header. */
int ds_metadata_md5_header(struct ds_metadata *metadata, const char *header);
/* 0 when the sums that the client gave, if any, are these; md5 NULL is not compared. -1 (USAGE). */
int ds_metadata_check_sums(const struct ds_metadata *metadata, uint32_t crc, const uint8_t *md5);
/* Copies the attributes to an object. */
int ds_metadata_apply(const struct ds_metadata *metadata, struct ds_object *object);
void ds_metadata_close(struct ds_metadata *metadata);

#endif
