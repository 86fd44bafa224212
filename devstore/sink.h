/* sink.h - where the bytes of a new object go: a temporary file of the bucket's folder, or memory. */
#ifndef MR_DEVSTORE_SINK_H
#define MR_DEVSTORE_SINK_H

#include <stddef.h>
#include <stdint.h>

struct mr_bucket;
struct mr_conditions;
struct mr_object;

struct mr_sink {
    int fd; /* -1: memory */
    char *temporary;
    uint8_t *data;
    size_t capacity;
    uint64_t size;
    uint32_t crc; /* of what was written */
};

/* folder: of the bucket, or NULL for memory. hint: how many bytes may come, or 0. 0 or -1. */
int mr_sink_open(struct mr_sink *sink, const char *folder, uint64_t hint);
int mr_sink_write(struct mr_sink *sink, const void *bytes, size_t length);
/* Gives the object these bytes and makes it live in the bucket. 0, or -1 as mr_bucket_put. */
int mr_sink_put(struct mr_sink *sink, struct mr_bucket *bucket, struct mr_object *object,
                const struct mr_conditions *conditions);
/* Removes what was not put. */
void mr_sink_close(struct mr_sink *sink);

#endif
