/*
 * write_composed.c - by the JSON API: each checkpoint part is a temporary object, then composes of up to 32 in a tree,
 * the last one onto the name. For a name that is taken, for one that must not be, and where there is no XML API.
 *
 *     parts   0 .. 31 | 32 .. 63 | ...          temporary objects, created only, each with its checksum
 *     nodes      a    |     b    | ...          temporary objects, while there are more than 32
 *     the whole       a b ...                   a temporary object too, where it is to replace another
 *     the name       whole                      replaces the generation that was there before the first part, or none
 *
 * So what was there stays until all of the new one is in the store and verified, and another process that writes it
 * meanwhile is noticed. Temporary objects are recorded and removed by temporary.h; a checkpoint part's record has its
 * handle in place of an ETag. Nodes have no record: a successor makes new ones, and removes the old ones, which are not
 * in use.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "worker/write/write_impl.h"

#define SIDE_BY_SIDE 8 /* composes of one level */

struct node {
    uint64_t handle, generation, size;
    uint32_t crc32c;
};

struct group { /* a compose of a level, under way */
    struct mr_write_lane *lane;
    struct mr_transfer *transfer;
    struct node *to;
};

struct composed {
    struct mr_temporary_bucket *bucket;
    int64_t began_s;      /* since the machine has begun, as its successors count too */
    struct node *nodes;   /* all levels, one after the other: the checkpoint parts first */
    unsigned count, done; /* of the level: its nodes, and those of the next one that are made */
    struct node *level, *next;
    unsigned started; /* of the next level */
    struct group groups[SIDE_BY_SIDE];
};

static int open_bucket(struct mr_write_lane *lane)
{
    struct composed *own = calloc(1, sizeof *own);
    if (!own) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checkpoint's upload");
        return -1;
    }
    lane->own = own;
    own->bucket = mr_write_bucket(lane);
    return own->bucket ? 0 : -1;
}

static bool record_of(const struct mr_write_lane *lane, uint64_t number, struct node *node)
{
    struct mr_ckpt_part_record record;
    if (!mr_ckpt_part_record_get(&lane->ckpt, number, &record))
        return false;
    if (record.generation == 0) /* of a part that was given up */
        return false;
    *node = (struct node){.handle = strtoull(record.etag, NULL, 10),
                          .generation = record.generation,
                          .size = record.length,
                          .crc32c = record.crc32c};
    return true;
}

/* A predecessor's parts are ours from now on. */
static int resume(struct mr_write_lane *lane)
{
    if (open_bucket(lane) != 0)
        return -1;
    struct composed *own = lane->own;
    mr_temporary_inherit(own->bucket);
    own->began_s = strtoll(lane->id, NULL, 10);
    struct node node;
    for (uint64_t i = 0; i < MR_CKPT_PARTS_MAX; i++)
        if (record_of(lane, i, &node) && mr_temporary_adopt(own->bucket, node.handle) != 0)
            return -1;
    return 0;
}

static int write_composed_begin(struct mr_write_lane *lane)
{
    char id[32] = "";
    if (!lane->resumed) {
        if (open_bucket(lane) != 0)
            return -1;
        struct composed *own = lane->own;
        own->began_s = mr_clock_boot_ns() / MR_SECOND_NS;
        snprintf(id, sizeof id, "%" PRId64, own->began_s);
    }
    mr_write_begun(lane, id);
    return 0;
}

/* ---- parts ---- */

/* A refusal: nothing was made. Otherwise it is unknown: there may have been no memory to read the answer of a
 * success. */
static void write_composed_forget(struct composed *own, uint64_t handle, enum mr_code code)
{
    if (code == MR_E_DENIED || code == MR_E_USAGE || code == MR_E_NOT_FOUND)
        mr_temporary_not_made(own->bucket, handle);
    else
        mr_temporary_lost(own->bucket, handle);
}

static void write_composed_on_part(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write_slot *slot = arg;
    if (result->code != MR_OK) {
        write_composed_forget(slot->lane->own, slot->temporary, result->code);
        mr_write_part_failed(slot, result->code, result->text);
        return;
    }
    char etag[32];
    snprintf(etag, sizeof etag, "%" PRIu64, slot->temporary);
    mr_write_part_stored(slot, etag, item->generation);
}

/* Others take temporary objects of twice this age for dead. */
static int check_age(const struct composed *own)
{
    if (mr_clock_boot_ns() / MR_SECOND_NS - own->began_s < MR_TEMPORARY_PART_AGE_S / 2)
        return 0;
    mr_error_set(MR_E_TIMEOUT, "it was begun %d hours ago and is not whole; its parts are given up",
                 MR_TEMPORARY_PART_AGE_S / 2 / 3600);
    return -1;
}

static int send_part(struct mr_write_lane *lane, struct mr_write_slot *slot)
{
    struct composed *own = lane->own;
    char name[MR_TEMPORARY_NAME_SIZE];
    if (check_age(own) != 0 || mr_temporary_begin(own->bucket, name, &slot->temporary) != 0)
        return -1;
    struct mr_store_insert_request request = {
        .name = name,
        .name_length = strlen(name),
        .body = mr_write_bytes(lane, slot),
        .length = slot->length,
        .crc32c = slot->crc32c,
        .generation_match = 0,
    };
    slot->transfer =
        mr_transfer_insert(lane->context->net->engine, lane->store, &request, write_composed_on_part, slot);
    if (slot->transfer)
        return 0;
    mr_temporary_not_made(own->bucket, slot->temporary);
    return -1;
}

static void cancelled(struct mr_write_lane *lane, struct mr_write_slot *slot)
{
    mr_temporary_lost(((struct composed *)lane->own)->bucket, slot->temporary);
}

/* ---- the tree ---- */

static struct mr_transfer *compose(struct mr_write_lane *lane, const struct node *from, unsigned count,
                                   struct mr_store_compose_request *request, mr_store_stat_fn *done, void *arg)
{
    const struct composed *own = lane->own;
    struct mr_store_name sources[MR_STORE_COMPOSE_MAX];
    char names[MR_STORE_COMPOSE_MAX][MR_TEMPORARY_NAME_SIZE];
    for (unsigned i = 0; i < count; i++) {
        mr_temporary_name_of(own->bucket, from[i].handle, names[i]);
        sources[i] = (struct mr_store_name){names[i], strlen(names[i]), from[i].generation, NULL};
    }
    request->sources = sources;
    request->count = count;
    request->has_size = request->has_crc32c = true;
    return mr_transfer_compose(lane->context->net->engine, lane->store, request, done, arg); /* copies it */
}

static void write_composed_fail(struct mr_write_lane *lane, const struct mr_store_result *result)
{
    if (result->code != MR_E_NOT_FOUND) {
        mr_write_failed(lane, result->code, result->text);
        return;
    }
    char uri[300], text[MR_CKPT_PART_TEXT];
    snprintf(text, sizeof text, "%s: a temporary part of it is missing: what cleans gs://%s/" MR_TEMPORARY_PREFIX "?",
             mr_write_uri(lane, uri, sizeof uri), lane->uri.bucket);
    mr_write_failed(lane, MR_E_CHANGED, text);
}

static void on_named(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code != MR_OK)
        write_composed_fail(lane, result);
    else
        mr_write_done(lane, item->generation);
}

static int name_it(struct mr_write_lane *lane)
{
    const struct composed *own = lane->own;
    struct mr_store_compose_request request = {
        .name = lane->name,
        .name_length = lane->name_length,
        .generation_match = lane->generation,
        .size = lane->size,
        .crc32c = lane->crc32c,
        .maybe_done = lane->maybe_done,
    };
    lane->transfer = compose(lane, own->level, own->count, &request, on_named, lane);
    return lane->transfer ? 0 : -1;
}

static int write_composed_go_on(struct mr_write_lane *lane);

static void on_node(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct group *group = arg;
    struct mr_write_lane *lane = group->lane;
    struct composed *own = lane->own;
    group->transfer = NULL;
    if (result->code != MR_OK) {
        write_composed_forget(own, group->to->handle, result->code);
        group->to->handle = 0;
        write_composed_fail(lane, result);
        return;
    }
    group->to->generation = item->generation;
    own->done++;
    if (write_composed_go_on(lane) != 0)
        mr_write_failed(lane, mr_error_code(), mr_error_text());
}

static int start_group(struct mr_write_lane *lane, struct group *group)
{
    struct composed *own = lane->own;
    unsigned first = own->started * MR_STORE_COMPOSE_MAX;
    unsigned count = own->count - first < MR_STORE_COMPOSE_MAX ? own->count - first : MR_STORE_COMPOSE_MAX;
    struct node *to = &own->next[own->started++];
    char name[MR_TEMPORARY_NAME_SIZE];
    if (mr_temporary_begin(own->bucket, name, &to->handle) != 0)
        return -1;
    for (unsigned i = 0; i < count; i++) {
        const struct node *from = &own->level[first + i];
        to->crc32c = mr_crc32c_combine(to->crc32c, from->crc32c, from->size);
        to->size += from->size;
    }
    struct mr_store_compose_request request = {
        .name = name, .name_length = strlen(name), .generation_match = 0, .size = to->size, .crc32c = to->crc32c};
    group->lane = lane;
    group->to = to;
    group->transfer = compose(lane, own->level + first, count, &request, on_node, group);
    if (group->transfer)
        return 0;
    mr_temporary_not_made(own->bucket, to->handle);
    to->handle = 0;
    return -1;
}

/* The next composes of this level, the next level, or the name. 0, or -1 with mr_error. */
static int write_composed_go_on(struct mr_write_lane *lane)
{
    struct composed *own = lane->own;
    unsigned groups = (own->count + MR_STORE_COMPOSE_MAX - 1) / MR_STORE_COMPOSE_MAX;
    if (own->done == groups) {
        own->level = own->next;
        own->count = groups;
        own->next += groups;
        own->started = own->done = 0;
        groups = (own->count + MR_STORE_COMPOSE_MAX - 1) / MR_STORE_COMPOSE_MAX;
    }
    /* What is there is replaced by one whole object, whose checksum the store has reported. */
    if (own->count == 1 || (groups == 1 && lane->generation == 0))
        return name_it(lane);
    for (unsigned i = 0; i < SIDE_BY_SIDE && own->started < groups; i++)
        if (!own->groups[i].transfer && start_group(lane, &own->groups[i]) != 0)
            return -1;
    return 0;
}

static int write_composed_complete(struct mr_write_lane *lane)
{
    struct composed *own = lane->own;
    if (check_age(own) != 0)
        return -1;
    own->nodes = calloc(2 * (size_t)lane->stored + 1, sizeof *own->nodes); /* the levels above: n/32 + n/1024 + ... */
    if (!own->nodes) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u parts", lane->stored);
        return -1;
    }
    while (own->count < lane->stored && record_of(lane, own->count, &own->nodes[own->count]))
        own->count++;
    own->level = own->nodes;
    own->next = own->nodes + own->count;
    return write_composed_go_on(lane);
}

/* ---- the end ---- */

static void stop(struct mr_write_lane *lane)
{
    struct composed *own = lane->own;
    for (unsigned i = 0; own && i < SIDE_BY_SIDE; i++) {
        struct group *group = &own->groups[i];
        if (!group->transfer)
            continue;
        mr_transfer_cancel(lane->context->net->engine, group->transfer);
        group->transfer = NULL;
        mr_temporary_lost(own->bucket, group->to->handle);
        group->to->handle = 0;
    }
}

/* Whatever became of it, the temporary objects go. */
static void ended(struct mr_write_lane *lane)
{
    struct composed *own = lane->own;
    if (!own || !own->bucket)
        return;
    struct node node;
    for (uint64_t i = 0; i < MR_CKPT_PARTS_MAX; i++)
        if (record_of(lane, i, &node))
            mr_temporary_remove(own->bucket, node.handle, node.generation);
    for (const struct node *at = own->nodes + lane->stored; own->nodes && at < own->next + own->started; at++)
        if (at->handle != 0)
            mr_temporary_remove(own->bucket, at->handle, at->generation);
}

static void close_lane(struct mr_write_lane *lane)
{
    struct composed *own = lane->own;
    if (own)
        free(own->nodes);
    free(own);
}

const struct mr_write_ops mr_write_composed = {.method = MR_WRITE_COMPOSED,
                                               .resume = resume,
                                               .begin = write_composed_begin,
                                               .send = send_part,
                                               .complete = write_composed_complete,
                                               .cancelled = cancelled,
                                               .stop = stop,
                                               .undo = mr_write_undone,
                                               .ended = ended,
                                               .close = close_lane};
