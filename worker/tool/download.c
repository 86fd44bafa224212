#include "worker/tool/download.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"

#define PIECE_BYTES (UINT64_C(8) << 20)
#define PIECES      8

struct piece {
    struct mr_download *download;
    struct mr_transfer *transfer; /* NULL: not running */
    char *data;
    uint64_t length;
    bool arrived;
};

struct mr_download {
    struct mr_tool *tool;
    struct mr_download_object object;
    uint64_t first, end; /* bytes wanted */
    uint64_t asked;      /* up to here pieces are in flight or have arrived */
    uint64_t given;
    uint32_t crc32c;
    struct piece pieces[PIECES];
    unsigned turn;       /* whose bytes come next */
    bool out;            /* the caller has that piece's bytes */
    enum mr_code failed; /* the first failure of a piece */
    char failure[512];
};

struct look_up {
    struct mr_tool *tool;
    struct mr_download_object *object;
};

void mr_download_object_take(struct mr_download_object *object, const struct mr_store_item *item)
{
    object->size = item->size;
    object->generation = item->generation;
    object->crc32c = item->crc32c;
    object->has_crc32c = item->has_crc32c;
    snprintf(object->etag, sizeof object->etag, "%s", item->etag);
}

static void looked_up(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct look_up *look_up = arg;
    mr_tool_answer(look_up->tool, result);
    if (result->code != MR_OK)
        return;
    mr_download_object_take(look_up->object, item);
}

int mr_download_look_up(struct mr_tool *tool, struct mr_store *store, const char *name,
                        struct mr_download_object *object)
{
    struct look_up look_up = {tool, object};
    *object = (struct mr_download_object){.store = store, .name = name};
    return mr_tool_await(tool, mr_transfer_stat(tool->net.engine, store, name, strlen(name), 0, looked_up, &look_up));
}

struct mr_download *mr_download_new(struct mr_tool *tool, const struct mr_download_object *object, uint64_t first,
                                    uint64_t end)
{
    struct mr_download *d = calloc(1, sizeof *d);
    if (!d) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a download");
        return NULL;
    }
    d->tool = tool;
    d->object = *object;
    d->first = d->asked = d->given = first;
    d->end = end;
    return d;
}

void mr_download_destroy(struct mr_download *d)
{
    if (!d)
        return;
    for (unsigned i = 0; i < PIECES; i++) {
        if (d->pieces[i].transfer)
            mr_transfer_cancel(d->tool->net.engine, d->pieces[i].transfer);
        free(d->pieces[i].data);
    }
    free(d);
}

/* Keeps the download's first failure only. */
static void piece_arrived(void *arg, const struct mr_transfer_result *result)
{
    struct piece *piece = arg;
    piece->transfer = NULL;
    piece->arrived = true;
    struct mr_download *d = piece->download;
    if (result->code == MR_OK || d->failed != MR_OK)
        return;
    d->failed = result->code;
    snprintf(d->failure, sizeof d->failure, "%s", result->text);
}

/* Requests the bytes from d->asked on into a free piece, without blocking. 0 or -1. */
static int start_piece(struct mr_download *d, struct piece *piece)
{
    uint64_t left = d->end - d->asked;
    bool whole = d->asked == 0 && left == d->object.size;
    piece->download = d;
    piece->length = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (!piece->data && !(piece->data = malloc(piece->length))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %" PRIu64 " bytes", piece->length);
        return -1;
    }
    struct mr_transfer_request request = {
        .store = d->object.store,
        .name = d->object.name,
        .name_length = strlen(d->object.name),
        .generation = d->object.generation,
        .etag = d->object.etag,
        .size = d->object.size,
        .offset = d->asked,
        .length = piece->length,
        .crc32c = d->object.crc32c, /* where one piece is the whole object, a corrupt one is fetched again */
        .has_crc32c = whole && piece->length == left && d->object.has_crc32c,
        .dest = piece->data,
    };
    piece->transfer = mr_transfer_fetch(d->tool->net.engine, &request, piece_arrived, piece);
    if (!piece->transfer)
        return -1;
    d->asked += piece->length;
    return 0;
}

/* Checks the crc32c of an object that was downloaded whole, where the store has one. 0, or -1 (CORRUPT). */
static int check_whole(const struct mr_download *d)
{
    if (d->first != 0 || d->end != d->object.size || !d->object.has_crc32c || d->crc32c == d->object.crc32c)
        return 0;
    mr_error_set(MR_E_CORRUPT, "%s: the bytes have crc32c %08x and the store says %08x: do not use the output",
                 d->object.name, d->crc32c, d->object.crc32c);
    return -1;
}

int mr_download_ask(struct mr_download *d, uint64_t room, uint64_t *held)
{
    for (unsigned i = 0; i < PIECES && d->asked < d->end && d->asked - d->given < room; i++) {
        struct piece *piece = &d->pieces[(d->turn + i) % PIECES];
        if (!piece->transfer && !piece->arrived && start_piece(d, piece) != 0)
            return -1;
    }
    *held = d->asked - d->given;
    return 0;
}

int mr_download_next(struct mr_download *d, const void **data, uint64_t *length)
{
    if (d->out) {
        d->pieces[d->turn].arrived = false;
        d->turn = (d->turn + 1) % PIECES;
        d->out = false;
    }
    if (d->given == d->end)
        return check_whole(d);
    uint64_t held;
    if (mr_download_ask(d, UINT64_MAX, &held) != 0)
        return -1;
    struct piece *piece = &d->pieces[d->turn];
    while (!piece->arrived && d->failed == MR_OK)
        if (mr_tool_step(d->tool) != 0)
            return -1;
    if (d->failed != MR_OK) {
        mr_error_set(d->failed, "%s", d->failure);
        return -1;
    }
    d->crc32c = mr_crc32c(d->crc32c, piece->data, piece->length);
    d->given += piece->length;
    d->out = true;
    *data = piece->data;
    *length = piece->length;
    return 1;
}
