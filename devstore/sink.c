#include "devstore/sink.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devstore/bucket.h"
#include "devstore/folder.h"
#include "shm/base/checksum.h"
#include "shm/base/error.h"

#define HINT_MAX (UINT64_C(1) << 30) /* a client's Content-Length is believed up to here */

int mr_sink_open(struct mr_sink *sink, const char *folder, uint64_t hint)
{
    memset(sink, 0, sizeof *sink);
    sink->fd = -1;
    if (folder) {
        sink->fd = mr_folder_temporary(folder, &sink->temporary);
        return sink->fd < 0 ? -1 : 0;
    }
    sink->capacity = hint < HINT_MAX ? (size_t)hint : (size_t)HINT_MAX;
    sink->capacity += sink->capacity == 0;
    sink->data = malloc(sink->capacity);
    if (!sink->data) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
        return -1;
    }
    return 0;
}

static int write_file(struct mr_sink *sink, const char *bytes, size_t length)
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

static int write_memory(struct mr_sink *sink, const void *bytes, size_t length)
{
    if (length > sink->capacity - sink->size) {
        size_t capacity = sink->capacity * 2 > sink->size + length ? sink->capacity * 2 : (size_t)sink->size + length;
        uint8_t *data = realloc(sink->data, capacity);
        if (!data) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
            return -1;
        }
        sink->data = data;
        sink->capacity = capacity;
    }
    memcpy(sink->data + sink->size, bytes, length);
    return 0;
}

int mr_sink_write(struct mr_sink *sink, const void *bytes, size_t length)
{
    if (length == 0)
        return 0;
    if ((sink->fd >= 0 ? write_file(sink, bytes, length) : write_memory(sink, bytes, length)) < 0)
        return -1;
    sink->crc = mr_crc32c(sink->crc, bytes, length);
    sink->size += length;
    return 0;
}

int mr_sink_put(struct mr_sink *sink, struct mr_bucket *bucket, struct mr_object *object,
                const struct mr_conditions *conditions)
{
    if (sink->fd < 0) {
        struct mr_blob *blob = mr_blob_new(sink->data);
        if (!blob)
            return -1;
        mr_object_set_piece(object, sink->data, sink->size, blob);
        sink->data = NULL;
    }
    object->size = sink->size;
    mr_object_set_crc(object, sink->crc);
    if (mr_bucket_put(bucket, object, sink->temporary, conditions) < 0)
        return -1;
    free(sink->temporary); /* it has been moved */
    sink->temporary = NULL;
    return 0;
}

void mr_sink_close(struct mr_sink *sink)
{
    if (sink->fd >= 0)
        close(sink->fd);
    if (sink->temporary)
        unlink(sink->temporary);
    free(sink->temporary);
    free(sink->data);
    memset(sink, 0, sizeof *sink);
    sink->fd = -1;
}
