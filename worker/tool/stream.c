#include "worker/tool/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/cleanup/temporary.h"

#define AHEAD_BYTES   (UINT64_C(64) << 20)
#define AHEAD_OBJECTS 64u

/* ---- what there is ---- */

struct listing {
    struct mr_stream_list *list;
    struct mr_tool *tool;
    struct mr_store *store;
    char *token, *last;
    bool failed;
};

/* Appends a copy of the object and its name. -1 without mr_error: no memory. */
static int stream_add(struct mr_stream_list *list, const struct mr_download_object *object)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct mr_download_object *objects = realloc(list->objects, room * sizeof *objects);
        if (!objects)
            return -1;
        list->objects = objects;
        list->room = room;
    }
    struct mr_download_object *added = &list->objects[list->count];
    *added = *object;
    added->name = strdup(object->name);
    if (!added->name)
        return -1;
    list->count++;
    list->bytes += object->size;
    return 0;
}

static void stream_page_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct listing *listing = arg;
    mr_tool_answer(listing->tool, result);
    if (result->code != MR_OK)
        return;
    for (size_t i = 0; i < page->count && !listing->failed; i++) {
        const struct mr_store_item *item = &page->items[i];
        struct mr_download_object object = {.store = listing->store, .name = item->name};
        mr_download_object_take(&object, item);
        if (!mr_store_item_is_folder(item) && !mr_temporary_has_name(item->name)) /* as a data set has it */
            listing->failed = stream_add(listing->list, &object) != 0;
    }
    free(listing->token);
    listing->token = page->next_token ? strdup(page->next_token) : NULL;
    if (page->count > 0) {
        free(listing->last);
        listing->last = strdup(page->items[page->count - 1].name);
    }
    listing->failed = listing->failed || (page->next_token && !listing->token) || (page->count > 0 && !listing->last);
}

/* Appends all objects below the prefix. 0, or -1 with mr_error. Blocks. */
static int list_below(struct mr_stream_list *list, struct mr_tool *tool, struct mr_store *store, const char *prefix)
{
    struct listing listing = {.list = list, .tool = tool, .store = store};
    int rc;
    do {
        struct mr_store_list_request request = {.prefix = prefix, .page_token = listing.token, .after = listing.last};
        rc = mr_tool_await(tool, mr_transfer_list(tool->net.engine, store, &request, stream_page_arrived, &listing));
        if (rc == 0 && listing.failed) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a listing of %zu objects", list->count);
            rc = -1;
        }
    } while (rc == 0 && listing.token);
    free(listing.token);
    free(listing.last);
    return rc;
}

/* Appends the object of that name: 1, 0 where there is none, -1. */
static int add_object(struct mr_stream_list *list, struct mr_tool *tool, struct mr_store *store, const char *name)
{
    struct mr_download_object found;
    if (mr_download_look_up(tool, store, name, &found) != 0)
        return mr_error_code() == MR_E_NOT_FOUND && !mr_tool_interrupted() ? 0 : -1;
    if (stream_add(list, &found) == 0)
        return 1;
    mr_error_set(MR_E_NO_MEMORY, "no memory for a name");
    return -1;
}

int mr_stream_list_add(struct mr_stream_list *list, struct mr_tool *tool, const char *text)
{
    struct mr_uri uri;
    struct mr_store *store = mr_tool_open(tool, text, &uri);
    if (!store)
        return -1;
    size_t before = list->count, length = strlen(uri.key);
    bool is_folder = length == 0 || uri.key[length - 1] == '/';
    int rc = is_folder ? 0 : add_object(list, tool, store, uri.key);
    if (rc == 0) {
        char *folder = NULL;
        rc = asprintf(&folder, "%s%s", uri.key, is_folder ? "" : "/") < 0 ? -1 : 0;
        if (rc == 0)
            rc = list_below(list, tool, store, folder);
        else
            mr_error_set(MR_E_NO_MEMORY, "no memory for a prefix");
        free(folder);
        if (rc == 0 && list->count == before) {
            mr_error_set(MR_E_NOT_FOUND, "nothing matches %s", text);
            rc = -1;
        }
    }
    mr_uri_close(&uri);
    return rc < 0 ? -1 : 0;
}

void mr_stream_list_close(struct mr_stream_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free((void *)(uintptr_t)list->objects[i].name);
    free(list->objects);
    *list = (struct mr_stream_list){0};
}

/* ---- their bytes ---- */

struct mr_stream {
    struct mr_tool *tool;
    const struct mr_stream_list *list;
    const uint64_t *order;
    size_t done;                              /* objects that have been given whole */
    struct mr_download *ahead[AHEAD_OBJECTS]; /* of object k of the order at k % AHEAD_OBJECTS; NULL: not begun */
};

struct mr_stream *mr_stream_new(struct mr_tool *tool, const struct mr_stream_list *list, const uint64_t *order)
{
    struct mr_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a stream");
        return NULL;
    }
    stream->tool = tool;
    stream->list = list;
    stream->order = order;
    return stream;
}

void mr_stream_destroy(struct mr_stream *stream)
{
    if (!stream)
        return;
    for (unsigned i = 0; i < AHEAD_OBJECTS; i++)
        mr_download_destroy(stream->ahead[i]);
    free(stream);
}

/* The download of object k of the order, begun if it was not. NULL with mr_error. */
static struct mr_download **begun(struct mr_stream *stream, size_t k)
{
    struct mr_download **at = &stream->ahead[k % AHEAD_OBJECTS];
    if (!*at) {
        const struct mr_download_object *object = &stream->list->objects[stream->order[k]];
        *at = mr_download_new(stream->tool, object, 0, object->size);
    }
    return *at ? at : NULL;
}

int mr_stream_ask(struct mr_stream *stream)
{
    uint64_t room = AHEAD_BYTES;
    for (size_t k = stream->done; k < stream->list->count && k < stream->done + AHEAD_OBJECTS && room > 0; k++) {
        struct mr_download **download = begun(stream, k);
        uint64_t held;
        if (!download || mr_download_ask(*download, room, &held) != 0)
            return -1;
        room -= held < room ? held : room;
    }
    return 0;
}

int mr_stream_next(struct mr_stream *stream, const void **data, uint64_t *length)
{
    while (stream->done < stream->list->count) {
        struct mr_download **download = begun(stream, stream->done);
        if (!download || mr_stream_ask(stream) != 0)
            return -1;
        int rc = mr_download_next(*download, data, length);
        if (rc != 0)
            return rc;
        mr_download_destroy(*download);
        *download = NULL;
        stream->done++;
    }
    return 0;
}
