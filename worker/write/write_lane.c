/*
 * write_lane.c - see write_lane.h for the states; what the methods do is in write_single.c, write_parts.c,
 * write_composed.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/write/write_impl.h"

static const struct mr_write_ops *const methods[MR_WRITE_METHODS] = {
    [MR_WRITE_SINGLE] = &mr_write_single, [MR_WRITE_PARTS] = &mr_write_parts, [MR_WRITE_COMPOSED] = &mr_write_composed};

/* ---- parts ---- */

static struct mr_write_slot *unsent(struct mr_write_lane *lane)
{
    for (unsigned i = 0; i < lane->ckpt.slots; i++)
        if (lane->slots[i].held && !lane->slots[i].transfer)
            return &lane->slots[i];
    return NULL;
}

static bool any_held(const struct mr_write_lane *lane)
{
    for (unsigned i = 0; i < lane->ckpt.slots; i++)
        if (lane->slots[i].held)
            return true;
    return false;
}

/* The next READY part: HELD, and its checksum known. NULL: there is none, or the lane has failed. */
static struct mr_write_slot *write_lane_take(struct mr_write_lane *lane)
{
    struct mr_write_slot slot = {.lane = lane, .held = true};
    while (mr_ckpt_part_take(&lane->ckpt, &slot.number, &slot.word, &slot.length)) {
        struct mr_write_slot *at = &lane->slots[mr_ckpt_part_slot(&lane->ckpt, slot.number)];
        /* The words lie where a wild trainer may store: what is in work is not taken again, whatever its word is. */
        if (at->held || at->transfer) {
            mr_write_fail_damaged(lane, "a part that is being uploaded was published again");
            return NULL;
        }
        struct mr_ckpt_part_record record;
        if (mr_ckpt_part_record_get(&lane->ckpt, slot.number,
                                    &record)) { /* a predecessor's: it died after the record */
            mr_ckpt_part_done(&lane->ckpt, slot.number, slot.word, &record);
            mr_ckpt_part_wake_trainer(&lane->ckpt);
            continue;
        }
        slot.crc32c = mr_crc32c(0, mr_write_bytes(lane, &slot), slot.length);
        *at = slot;
        return at;
    }
    return NULL;
}

/* A part that has to be sent, the next one taken. False: the lane has failed meanwhile. *slot NULL: there is none. */
static bool next_part(struct mr_write_lane *lane, struct mr_write_slot **slot)
{
    enum mr_write_state before = lane->state;
    *slot = unsent(lane);
    if (!*slot)
        *slot = write_lane_take(lane);
    return lane->state == before;
}

/* Size and checksum of the whole, from its parts. 0, or -1: the lane is damaged, and has failed. */
static int sum_up(struct mr_write_lane *lane, uint32_t parts, uint64_t bytes)
{
    uint64_t size = 0;
    uint32_t crc = 0;
    if (lane->ops == &mr_write_single) {
        const struct mr_write_slot *slot = &lane->slots[0];
        size = slot->held ? slot->length : 0;
        crc = slot->held ? slot->crc32c : 0;
    } else {
        struct mr_ckpt_part_record record;
        for (uint32_t i = 0; i < parts && mr_ckpt_part_record_get(&lane->ckpt, i, &record); i++) {
            crc = mr_crc32c_combine(crc, record.crc32c, record.length);
            size += record.length;
        }
    }
    if (size != bytes) {
        mr_write_fail_damaged(lane, "its parts are not as long as the whole");
        return -1;
    }
    lane->size = size;
    lane->crc32c = crc;
    return 0;
}

/* ---- states ---- */

/* What is there may be what a predecessor meant to make: for certain where it has a checksum, or has no bytes. In S3 the
 * same bytes have the same version. */
static bool write_lane_is_ours(const struct mr_write_lane *lane, const struct mr_store_item *item)
{
    bool other = item && (item->generation != lane->generation || lane->uri.scheme == MR_SCHEME_S3);
    return other && item->size == lane->size && (!item->has_crc32c || item->crc32c == lane->crc32c);
}

static const struct mr_write_ops *choose(const struct mr_write_lane *lane)
{
    if (lane->ops)
        return lane->ops;
    /* Where the last request has a precondition, and a name is given only to what is whole. */
    if (lane->uri.scheme == MR_SCHEME_FILE || lane->uri.scheme == MR_SCHEME_S3)
        return &mr_write_parts;
    return lane->generation == 0 && !lane->if_absent && mr_store_has_parts(lane->store) ? &mr_write_parts
                                                                                        : &mr_write_composed;
}

static void on_looked_up(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code != MR_OK && result->code != MR_E_NOT_FOUND) {
        mr_write_failed(lane, result->code, result->text);
        return;
    }
    if (lane->maybe_done && write_lane_is_ours(lane, item)) {
        if (item->has_crc32c || lane->size == 0)
            mr_write_found(lane, item->generation);
        else if (mr_write_verify(lane, item) != 0)
            mr_write_fail_here(lane);
        return;
    }
    if (!lane->resumed) {
        lane->generation = item ? item->generation : 0;
        lane->ops = choose(lane);
    }
    if (!lane->resumed && lane->if_absent && item) {
        char uri[300], text[MR_CKPT_PART_TEXT];
        snprintf(text, sizeof text, "%s: it exists already (generation %" PRIu64 ")",
                 mr_write_uri(lane, uri, sizeof uri), item->generation);
        mr_write_failed(lane, MR_E_EXISTS, text);
        return;
    }
    mr_write_begin(lane);
}

/* From WAITING: is there something to upload, and is it known how? */
static bool leave_waiting(struct mr_write_lane *lane, bool sealed)
{
    uint32_t parts = 0;
    uint64_t bytes = 0;
    if (sealed && mr_ckpt_part_totals(&lane->ckpt, &parts, &bytes) != 0) {
        mr_write_fail_here(lane);
        return true;
    }
    struct mr_write_slot *slot;
    if (!next_part(lane, &slot))
        return true;
    if (!lane->resumed && !sealed && (!slot || (slot->number == 0 && slot->length < lane->ckpt.part_bytes)))
        return false; /* a short part is the last one: perhaps it is all */
    if (!lane->resumed && sealed && parts <= 1) {
        lane->ops = &mr_write_single;
        if (parts == 1 && (!slot || slot->number != 0)) {
            mr_write_fail_damaged(lane, "its only part is not there");
            return true;
        }
    }
    if (lane->maybe_done && sum_up(lane, parts, bytes) != 0)
        return true;
    if (lane->resumed && !lane->maybe_done) {
        mr_write_begin(lane);
        return true;
    }
    lane->state = MR_WRITE_LOOKING_UP;
    lane->transfer =
        mr_transfer_stat(lane->context->net->engine, lane->store, lane->name, lane->name_length, 0, on_looked_up, lane);
    if (!lane->transfer)
        mr_write_fail_here(lane);
    return true;
}

static bool write_lane_complete(struct mr_write_lane *lane, uint32_t parts, uint64_t bytes)
{
    if (sum_up(lane, parts, bytes) != 0)
        return true;
    lane->state = MR_WRITE_ENDING;
    mr_ckpt_part_set_complete_sent(&lane->ckpt);
    if (lane->ops->complete(lane) != 0)
        mr_write_fail_here(lane);
    return true;
}

/* From SENDING: the next part, or the last request. */
static bool send_next(struct mr_write_lane *lane, bool sealed)
{
    bool single = lane->ops == &mr_write_single; /* its part goes with the last request */
    struct mr_write_slot *slot;
    if (!next_part(lane, &slot))
        return true;
    if (slot && !single) {
        if (slot->number >= MR_CKPT_PARTS_MAX) {
            mr_error_set(MR_E_USAGE, "it has more than %u parts of %" PRIu64 " bytes: raise checkpoint.part_bytes",
                         MR_CKPT_PARTS_MAX, lane->ckpt.part_bytes);
            mr_write_fail_here(lane);
        } else if (lane->ops->send(lane, slot) != 0) {
            mr_write_fail_here(lane);
        }
        return true;
    }
    if (!sealed)
        return false;
    uint32_t parts;
    uint64_t bytes;
    if (mr_ckpt_part_totals(&lane->ckpt, &parts, &bytes) != 0) {
        mr_write_fail_here(lane);
        return true;
    }
    if (single || lane->stored == parts)
        return write_lane_complete(lane, parts, bytes);
    if (!any_held(lane)) {
        mr_write_fail_damaged(lane, "parts are missing");
        return true;
    }
    return false;
}

static void stop_if_aborted(struct mr_write_lane *lane)
{
    if (lane->state >= MR_WRITE_UNDOING || mr_ckpt_part_fate(&lane->ckpt) != MR_FATE_ABORTED)
        return;
    char uri[300], text[MR_CKPT_PART_TEXT];
    snprintf(text, sizeof text, "%s: given up before it was whole; nothing is to be seen of it",
             mr_write_uri(lane, uri, sizeof uri));
    mr_write_stop(lane, MR_CKPT_PART_GONE, MR_E_GONE, text);
}

bool mr_write_lane_start(struct mr_write_lane *lane)
{
    bool sealed =
        mr_ckpt_part_fate(&lane->ckpt) == MR_FATE_SEALED; /* read before its parts are taken: then all are there */
    stop_if_aborted(lane);
    if (lane->state == MR_WRITE_WAITING)
        return leave_waiting(lane, sealed);
    if (lane->state == MR_WRITE_SENDING)
        return send_next(lane, sealed);
    return false;
}

void mr_write_lane_step(struct mr_write_lane *lane, int64_t now_ns)
{
    stop_if_aborted(lane);
    if (lane->state != MR_WRITE_UNDOING || now_ns < lane->give_up_ns)
        return;
    char uri[400];
    mr_log_warning("%s: what was begun of it could not be removed in %d s; millrace clean does it later",
                   mr_write_uri(lane, uri, sizeof uri), MR_WRITE_UNDO_S);
    mr_write_cancel(lane);
    mr_write_undone(lane);
}

void mr_write_lane_abort(struct mr_write_lane *lane)
{
    if (lane->state < MR_WRITE_UNDOING && mr_ckpt_part_abort(&lane->ckpt) == MR_FATE_ABORTED)
        stop_if_aborted(lane);
}

void mr_write_lane_give_up(struct mr_write_lane *lane, const char *why)
{
    mr_error_set(MR_E_TIMEOUT, "%s", why);
    if (lane->state < MR_WRITE_UNDOING)
        mr_write_fail_here(lane);
}

bool mr_write_lane_is_ended(const struct mr_write_lane *lane)
{
    return lane->state == MR_WRITE_ENDED;
}

/* ---- life ---- */

/* What a predecessor has left in the lane. 0, or -1 with mr_error (CORRUPT). */
static int resume(struct mr_write_lane *lane)
{
    char all[MR_CKPT_PART_UPLOAD_ID];
    uint32_t method;
    if (!mr_ckpt_part_get_upload(&lane->ckpt, &method, all))
        return 0;
    char *rest;
    lane->generation = strtoull(all, &rest, 10);
    if (method >= MR_WRITE_METHODS || !methods[method] || *rest != ' ') {
        mr_error_set(MR_E_CORRUPT, "the checkpoint's shared memory is damaged (method %u)", method);
        return -1;
    }
    snprintf(lane->id, sizeof lane->id, "%s", rest + 1);
    lane->ops = methods[method];
    lane->resumed = true;
    lane->maybe_done = mr_ckpt_part_complete_sent(&lane->ckpt);
    struct mr_ckpt_part_record record;
    for (uint64_t i = 0; i < MR_CKPT_PARTS_MAX; i++)
        lane->stored += mr_ckpt_part_record_get(&lane->ckpt, i, &record);
    return lane->ops->resume ? lane->ops->resume(lane) : 0;
}

/* A predecessor has stored the outcome, and died on its way to the end. */
static void end_again(struct mr_write_lane *lane)
{
    if (lane->ops && lane->ops->ended)
        lane->ops->ended(lane);
    mr_write_drain(lane);
    lane->state = MR_WRITE_ENDED;
}

static void write_lane_open_lane(struct mr_write_lane *lane, const char *uri)
{
    uint32_t code, crc;
    uint64_t generation;
    bool decided = mr_ckpt_part_result(&lane->ckpt, &code, NULL, &generation, &crc) != MR_CKPT_PART_UNDECIDED;
    int rc = mr_uri_init(&lane->uri, uri);
    if (rc == 0) {
        lane->name = lane->uri.key;
        lane->name_length = strlen(lane->name);
        lane->store = mr_net_store(lane->context->net, lane->uri.scheme, lane->uri.bucket);
        if (lane->store && lane->uri.scheme == MR_SCHEME_GS)
            (void)mr_write_bucket(lane); /* whatever this one will need: a dead run may have left something there */
        rc = lane->store ? resume(lane) : -1;
    }
    if (decided)
        end_again(lane);
    else if (rc != 0 && lane->name)
        mr_write_fail_here(lane);
    else if (rc != 0) /* the text names it */
        mr_write_stop(lane, MR_CKPT_PART_FAILED, mr_error_code(), mr_error_text());
}

struct mr_write_lane *mr_write_lane_new(struct mr_write_context *context, struct mr_ckpt_lane *ckpt, const char *uri,
                                        bool if_absent)
{
    struct mr_write_lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        mr_ckpt_part_unmap(ckpt);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checkpoint's upload");
        return NULL;
    }
    lane->context = context;
    lane->ckpt = *ckpt;
    lane->if_absent = if_absent;
    lane->begun_ns = mr_clock_mono_ns();
    write_lane_open_lane(lane, uri);
    mr_ckpt_part_adopt(&lane->ckpt); /* from here on a seal is kept, whatever becomes of the supervisor */
    mr_ckpt_part_wake_trainer(&lane->ckpt);
    return lane;
}

void mr_write_lane_destroy(struct mr_write_lane *lane)
{
    if (!lane)
        return;
    mr_write_cancel(lane);
    if (lane->ops && lane->ops->close)
        lane->ops->close(lane);
    mr_uri_close(&lane->uri);
    mr_ckpt_part_unmap(&lane->ckpt);
    free(lane);
}
