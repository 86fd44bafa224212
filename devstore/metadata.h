/* metadata.h - what a client gives with an object that it makes: the JSON part of an upload, compose's destination. */
#ifndef MR_DEVSTORE_METADATA_H
#define MR_DEVSTORE_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

struct json_t;

struct mr_metadata {
    char *name; /* NULL: not given */
    char *attributes[MR_ATTR_COUNT];
    bool has_crc, has_md5; /* sums of the bytes, from the client */
    uint32_t crc;
    uint8_t md5[16];
};

/* All: 0, or -1 (USAGE: what is wrong; NO_MEMORY). What is set before and not named in the JSON stays. */
int mr_metadata_parse(struct mr_metadata *metadata, const char *json, size_t length);
/* From parsed JSON; NULL is an empty object. */
int mr_metadata_take(struct mr_metadata *metadata, const struct json_t *json);
/* A copy. The name must be GCS's: 1 to 1024 bytes of UTF-8, not "." or "..", no CR or LF. */
int mr_metadata_set_name(struct mr_metadata *metadata, const char *name);
/* The same by S3's rule, which allows all that a path can be decoded to. */
int mr_metadata_set_key(struct mr_metadata *metadata, const char *key);
int mr_metadata_set(struct mr_metadata *metadata, enum mr_attribute attribute, const char *value);
/* The sums of an x-goog-hash header ("crc32c=...,md5=..."); NULL: none. */
int mr_metadata_hash_header(struct mr_metadata *metadata, const char *header);
/* The same of a Content-MD5 header. */
int mr_metadata_md5_header(struct mr_metadata *metadata, const char *header);
/* 0 when the sums that the client gave, if any, are these; md5 NULL is not compared. -1 (USAGE). */
int mr_metadata_check_sums(const struct mr_metadata *metadata, uint32_t crc, const uint8_t *md5);
/* Copies the attributes to an object. */
int mr_metadata_apply(const struct mr_metadata *metadata, struct mr_object *object);
void mr_metadata_close(struct mr_metadata *metadata);

#endif
