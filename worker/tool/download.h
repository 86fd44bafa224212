/*
 * download.h - an object, or a range of it, as a stream in order: several pieces are in flight or wait for their turn,
 * so memory is bounded whatever the size. The generation is pinned; the engine checks each piece where it can, and the
 * whole object's crc32c is checked at its end.
 */
#ifndef MR_WORKER_TOOL_DOWNLOAD_H
#define MR_WORKER_TOOL_DOWNLOAD_H

#include "worker/tool/tool.h"

struct mr_download;

/* What is downloaded. name: kept by reference. */
struct mr_download_object {
    struct mr_store *store;
    const char *name;
    uint64_t size, generation;
    uint32_t crc32c;
    bool has_crc32c;
    char etag[MR_ETAG_SIZE]; /* "" where the store has none */
};

/* Fills in all but store and name from a store's answer. */
void mr_download_object_take(struct mr_download_object *object, const struct mr_store_item *item);
/* Looks the object up: 0 or -1. */
int mr_download_look_up(struct mr_tool *tool, struct mr_store *store, const char *name,
                        struct mr_download_object *object);
/* Bytes [first, end) of it. NULL with mr_error. */
struct mr_download *mr_download_new(struct mr_tool *tool, const struct mr_download_object *object, uint64_t first,
                                    uint64_t end);
/* Cancels what is under way. NULL is allowed. */
void mr_download_destroy(struct mr_download *download);
/* Requests pieces, without blocking, while fewer than `room` bytes are in flight or wait for their turn. *held: how
 * many those are. 0 or -1. */
int mr_download_ask(struct mr_download *download, uint64_t room, uint64_t *held);
/* The next bytes: 1 with data that is valid until the next call, 0 at the end, -1. Blocks. */
int mr_download_next(struct mr_download *download, const void **data, uint64_t *length);

#endif
