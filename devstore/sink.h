/*
 * sink.h - where the bytes of a new object go: a temporary file of the bucket's folder, or memory.
 *
 * Memory grows by blocks that are never copied, so that an upload is held once, however large it is.
 */
#ifndef MR_DEVSTORE_SINK_H
#define MR_DEVSTORE_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evp_md_ctx_st;
struct ds_bucket;
struct ds_conditions;
struct ds_object;

struct ds_sink_block {
    uint8_t *data;
    size_t used, capacity;
};

struct ds_sink {
    int fd; /* -1: memory */
    char *temporary;
    struct ds_sink_block *blocks;
    size_t n_blocks;
    uint64_t hint, reserved;
    uint64_t size;
    uint32_t crc;              /* of what was written */
    struct evp_md_ctx_st *md5; /* the sum so far; NULL: none is made */
};

/* folder: of the bucket, or NULL for memory. hint: how many bytes may come, or 0. md5: whether to compute it. 0 or
 * -1. */
int ds_sink_open(struct ds_sink *sink, const char *folder, uint64_t hint, bool md5);
int ds_sink_write(struct ds_sink *sink, const void *bytes, size_t length);
/* Appends all bytes of an object. The sink has no md5 from then on. 0 or -1 (CHANGED). */
int ds_sink_append(struct ds_sink *sink, struct ds_object *object);
/* The end of writing: gives the object its size, its sums and, from memory, its bytes. 0 or -1. */
int ds_sink_fill(struct ds_sink *sink, struct ds_object *object);
/* After fill, for an object in no bucket: a file stays where it is, and the caller removes it (object->path). 0, -1. */
int ds_sink_give(struct ds_sink *sink, struct ds_object *object);
/* After fill: makes the object live in the bucket. 0, or -1 as ds_bucket_put. */
int ds_sink_put(struct ds_sink *sink, struct ds_bucket *bucket, struct ds_object *object,
                const struct ds_conditions *conditions);
/* Removes what was not given or put. */
void ds_sink_close(struct ds_sink *sink);

#endif
