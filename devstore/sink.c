#include "devstore/sink.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "devstore/bucket.h"
#include "devstore/folder.h"

#define BLOCK_MIN ((size_t)64 << 10)
#define BLOCK_MAX ((size_t)64 << 20)

int ds_sink_open(struct ds_sink *sink, const char *folder, uint64_t hint, bool md5)
{
    memset(sink, 0, sizeof *sink);
    sink->fd = -1;
    sink->hint = hint;
    if (md5) {
        sink->md5 = EVP_MD_CTX_new();
        if (!sink->md5 || EVP_DigestInit_ex(sink->md5, EVP_md5(), NULL) != 1) {
            mr_error_set(MR_E_NO_MEMORY, "no MD5 for an upload");
            return -1;
        }
    }
    if (folder)
        sink->fd = ds_folder_temporary(folder, &sink->temporary);
    return folder && sink->fd < 0 ? -1 : 0;
}

static int write_file(struct ds_sink *sink, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t n = write(sink->fd, bytes, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            mr_error_set_errno(errno, "cannot write \"%s\"", sink->temporary);
            return -1;
        }
        bytes += n;
        length -= (size_t)n;
    }
    return 0;
}

/* A block with room: what the client announced, otherwise twice the one before. NULL: no memory. */
static struct ds_sink_block *room(struct ds_sink *sink)
{
    struct ds_sink_block *last = sink->n_blocks ? &sink->blocks[sink->n_blocks - 1] : NULL;
    if (last && last->used < last->capacity)
        return last;
    uint64_t capacity = sink->hint > sink->reserved ? sink->hint - sink->reserved
                        : last                      ? last->capacity * 2
                                                    : BLOCK_MIN;
    if (capacity > BLOCK_MAX)
        capacity = BLOCK_MAX;
    struct ds_sink_block *blocks = realloc(sink->blocks, (sink->n_blocks + 1) * sizeof *blocks);
    uint8_t *data = blocks ? malloc((size_t)capacity) : NULL;
    if (blocks)
        sink->blocks = blocks;
    if (!data) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
        return NULL;
    }
    blocks[sink->n_blocks] = (struct ds_sink_block){.data = data, .capacity = (size_t)capacity};
    sink->reserved += capacity;
    return &blocks[sink->n_blocks++];
}

static int write_memory(struct ds_sink *sink, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        struct ds_sink_block *block = room(sink);
        if (!block)
            return -1;
        size_t n = block->capacity - block->used < length ? block->capacity - block->used : length;
        memcpy(block->data + block->used, bytes, n);
        block->used += n;
        bytes += n;
        length -= n;
    }
    return 0;
}

int ds_sink_write(struct ds_sink *sink, const void *bytes, size_t length)
{
    if (length == 0)
        return 0;
    if ((sink->fd >= 0 ? write_file(sink, bytes, length) : write_memory(sink, bytes, length)) < 0)
        return -1;
    sink->crc = mr_crc32c(sink->crc, bytes, length);
    if (sink->md5)
        EVP_DigestUpdate(sink->md5, bytes, length);
    sink->size += length;
    return 0;
}

/* Computes no sums: the caller has them. 0, or -1 with an error. */
static int copy_through_buffer(struct ds_sink *sink, const struct ds_object *object, int fd, uint64_t at)
{
    enum { BLOCK = 1 << 18 };
    int rc = -1;
    uint8_t *block = malloc(BLOCK);
    if (!block) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a copy");
        return -1;
    }
    while (at < object->size) {
        size_t n = object->size - at < BLOCK ? (size_t)(object->size - at) : BLOCK;
        if (ds_object_read(object, fd, at, block, n) < 0 ||
            (sink->fd >= 0 ? write_file(sink, (char *)block, n) : write_memory(sink, block, n)) < 0)
            goto out;
        at += n;
    }
    rc = 0;
out:
    free(block);
    return rc;
}

/* Copies from file to file inside the kernel, as far as that works. Returns how many bytes. */
static uint64_t copy_in_kernel(const struct ds_sink *sink, int fd, uint64_t length)
{
    uint64_t at = 0;
    off64_t from = 0;
    while (at < length) {
        ssize_t n = copy_file_range(fd, &from, sink->fd, NULL, (size_t)(length - at), 0);
        if (n <= 0)
            break; /* an error will be met again by the copy through a buffer */
        at += (uint64_t)n;
    }
    return at;
}

int ds_sink_append(struct ds_sink *sink, struct ds_object *object)
{
    int fd = -1, rc = -1;
    uint32_t crc;
    if (ds_object_crc(object, &crc) < 0 || (object->path && (fd = ds_object_open(object)) < 0))
        return -1;
    uint64_t at = fd >= 0 && sink->fd >= 0 ? copy_in_kernel(sink, fd, object->size) : 0;
    if (copy_through_buffer(sink, object, fd, at) < 0 || (object->path && ds_object_check(object) < 0))
        goto out;
    sink->crc = mr_crc32c_combine(sink->crc, crc, object->size);
    sink->size += object->size;
    EVP_MD_CTX_free(sink->md5);
    sink->md5 = NULL;
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Moves the blocks into the object. On failure the object has some of them, and the sink the others. */
static int give_memory(struct ds_sink *sink, struct ds_object *object)
{
    if (sink->n_blocks == 0)
        return 0;
    struct ds_sink_block *last = &sink->blocks[sink->n_blocks - 1];
    uint8_t *smaller = realloc(last->data, last->used ? last->used : 1);
    last->data = smaller ? smaller : last->data;
    object->pieces = calloc(sink->n_blocks, sizeof *object->pieces);
    if (!object->pieces) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object");
        return -1;
    }
    for (size_t i = 0; i < sink->n_blocks; i++) {
        struct ds_sink_block *block = &sink->blocks[i];
        struct ds_blob *blob = ds_blob_new(block->data);
        if (!blob)
            return -1;
        object->pieces[object->n_pieces++] =
            (struct ds_piece){.data = block->data, .length = block->used, .owner = blob};
        block->data = NULL;
    }
    return 0;
}

int ds_sink_fill(struct ds_sink *sink, struct ds_object *object)
{
    object->size = sink->size;
    ds_object_set_crc(object, sink->crc);
    if (sink->md5)
        object->has_md5 = EVP_DigestFinal_ex(sink->md5, object->md5, NULL) == 1;
    return sink->fd < 0 ? give_memory(sink, object) : 0;
}

int ds_sink_give(struct ds_sink *sink, struct ds_object *object)
{
    if (sink->fd < 0)
        return 0;
    struct stat st;
    if (fstat(sink->fd, &st) < 0) {
        mr_error_set_errno(errno, "cannot stat \"%s\"", sink->temporary);
        return -1;
    }
    object->mtime_ns = st.st_mtim.tv_sec * MR_SECOND_NS + st.st_mtim.tv_nsec;
    object->path = sink->temporary;
    sink->temporary = NULL;
    return 0;
}

int ds_sink_put(struct ds_sink *sink, struct ds_bucket *bucket, struct ds_object *object,
                const struct ds_conditions *conditions)
{
    if (ds_bucket_put(bucket, object, sink->temporary, conditions) < 0)
        return -1;
    free(sink->temporary); /* it has been moved */
    sink->temporary = NULL;
    return 0;
}

void ds_sink_close(struct ds_sink *sink)
{
    if (sink->fd >= 0)
        close(sink->fd);
    if (sink->temporary)
        unlink(sink->temporary);
    free(sink->temporary);
    for (size_t i = 0; i < sink->n_blocks; i++)
        free(sink->blocks[i].data);
    free(sink->blocks);
    EVP_MD_CTX_free(sink->md5);
    memset(sink, 0, sizeof *sink);
    sink->fd = -1;
}
