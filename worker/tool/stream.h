/*
 * stream.h - the bytes of many objects, one after the other: the next ones are fetched while the current one is read.
 * Each object is one version, checked as download.h says.
 */
#ifndef MR_WORKER_TOOL_STREAM_H
#define MR_WORKER_TOOL_STREAM_H

#include "worker/tool/download.h"

/* What is to be read. Owns the objects' names. Zeroed: nothing. */
struct mr_stream_list {
    struct mr_download_object *objects;
    size_t count, room;
    uint64_t bytes;
};

/* Adds the object that the URI names; where it names none, or ends in a slash, all objects below it in bytewise order,
 * without folder markers and temporary objects. 0, or -1 (NOT_FOUND where there is nothing). Blocks. */
int mr_stream_list_add(struct mr_stream_list *list, struct mr_tool *tool, const char *uri);
void mr_stream_list_close(struct mr_stream_list *list);

struct mr_stream;

/* list and order (list->count indices that say which object comes when) are kept by reference. NULL: NO_MEMORY. */
struct mr_stream *mr_stream_new(struct mr_tool *tool, const struct mr_stream_list *list, const uint64_t *order);
/* Cancels what is under way. NULL is allowed. */
void mr_stream_destroy(struct mr_stream *stream);
/* Requests as much as there is room for, without blocking: 0 or -1. */
int mr_stream_ask(struct mr_stream *stream);
/* The next bytes: 1 with data that is valid until the next call, 0 at the end, -1. Blocks. */
int mr_stream_next(struct mr_stream *stream, const void **data, uint64_t *length);

#endif
