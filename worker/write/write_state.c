/* What the methods of a checkpoint lane ask for and report, and how its upload ends. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/trace/trace.h"
#include "worker/cleanup/upload_record.h"
#include "worker/store/leftovers.h"
#include "worker/write/write_impl.h"

#define SWEEP_S     60 /* the shortest time between two scans of a folder for leftovers */
#define DAMAGED_MAX 3  /* a part of which the store has had other bytes so often is given up */

const unsigned char *mr_write_bytes(const struct mr_write_lane *lane, const struct mr_write_slot *slot)
{
    return lane->context->arena + mr_ckpt_part_offset(&lane->ckpt, mr_ckpt_part_slot(&lane->ckpt, slot->number));
}

const char *mr_write_uri(const struct mr_write_lane *lane, char *out, size_t size)
{
    char root[MR_URI_PLACE_SIZE];
    snprintf(out, size, "%s%s", mr_uri_root(lane->uri.scheme, lane->uri.bucket, root), lane->uri.key);
    return out;
}

struct mr_temporary_bucket *mr_write_bucket(const struct mr_write_lane *lane)
{
    char endpoint[300], credentials[300];
    mr_store_describe(lane->store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    return mr_temporaries_bucket(lane->context->temporaries, lane->store, endpoint, lane->uri.bucket, false);
}

/* ---- the end ---- */

static void count_end(struct mr_write_lane *lane)
{
    static const unsigned counter[] = {[MR_CKPT_PART_DONE] = MR_WC_UPLOADS_DONE,
                                       [MR_CKPT_PART_FAILED] = MR_WC_UPLOADS_FAILED,
                                       [MR_CKPT_PART_GONE] = MR_WC_UPLOADS_ABORTED};
    mr_counter_add(lane->context->counters, counter[lane->outcome], 1);
    char uri[400];
    if (lane->outcome == MR_CKPT_PART_DONE)
        mr_log_debug("%s: %" PRIu64 " bytes stored", mr_write_uri(lane, uri, sizeof uri), lane->size);
    else if (lane->outcome == MR_CKPT_PART_FAILED)
        mr_log_error("%s", lane->text);
    else
        mr_log_info("%s", lane->text);
}

/* The outcome is stored before: a successor reads nothing else then, so what is recorded here does not matter. */
void mr_write_drain(struct mr_write_lane *lane)
{
    static const struct mr_ckpt_part_record nothing;
    for (unsigned i = 0; i < lane->ckpt.slots; i++) {
        if (lane->slots[i].held)
            mr_ckpt_part_done(&lane->ckpt, lane->slots[i].number, lane->slots[i].word, &nothing);
        lane->slots[i].held = false;
    }
    uint64_t number, held, length;
    while (mr_ckpt_part_take(&lane->ckpt, &number, &held, &length))
        mr_ckpt_part_done(&lane->ckpt, number, held, &nothing);
    mr_ckpt_part_wake_trainer(&lane->ckpt);
}

static void trace_end(const struct mr_write_lane *lane)
{
    char uri[MR_STORE_NAME_MAX + 128];

    if (mr_trace_is_on())
        mr_trace_emit(&(struct mr_trace_record){.kind = MR_SPAN_UPLOAD,
                                                .begin_ns = lane->begun_ns,
                                                .end_ns = mr_clock_mono_ns(),
                                                .bytes = lane->size,
                                                .code = lane->outcome},
                      mr_write_uri(lane, uri, sizeof uri));
}

static void write_state_end(struct mr_write_lane *lane, uint64_t generation)
{
    mr_ckpt_part_finish(&lane->ckpt, lane->outcome, (uint32_t)lane->code, lane->text, generation, lane->crc32c);
    if (lane->ops && lane->ops->ended)
        lane->ops->ended(lane); /* before records are written over */
    mr_write_drain(lane);
    lane->state = MR_WRITE_ENDED;
    count_end(lane);
    trace_end(lane);
}

void mr_write_done(struct mr_write_lane *lane, uint64_t generation)
{
    lane->outcome = MR_CKPT_PART_DONE;
    write_state_end(lane, generation);
}

void mr_write_undone(struct mr_write_lane *lane)
{
    lane->crc32c = 0;
    write_state_end(lane, 0);
}

void mr_write_verify_close(struct mr_write_lane *lane)
{
    free(lane->verify.block);
    lane->verify.block = NULL;
}

/* After this nothing of ours is under way. */
void mr_write_cancel(struct mr_write_lane *lane)
{
    struct mr_transfer_engine *engine = lane->context->net->engine;
    if (lane->transfer)
        mr_transfer_cancel(engine, lane->transfer);
    lane->transfer = NULL;
    mr_write_verify_close(lane);
    for (unsigned i = 0; i < lane->ckpt.slots; i++) {
        struct mr_write_slot *slot = &lane->slots[i];
        if (!slot->transfer)
            continue;
        mr_transfer_cancel(engine, slot->transfer);
        slot->transfer = NULL;
        if (lane->ops->cancelled)
            lane->ops->cancelled(lane, slot);
    }
    if (lane->ops && lane->ops->stop)
        lane->ops->stop(lane);
}

void mr_write_stop(struct mr_write_lane *lane, enum mr_ckpt_part_outcome outcome, enum mr_code code, const char *text)
{
    bool begun = lane->ops && (lane->resumed || lane->state >= MR_WRITE_BEGINNING);
    if (lane->state >= MR_WRITE_UNDOING)
        return;
    lane->outcome = outcome;
    lane->code = code;
    snprintf(lane->text, sizeof lane->text, "%s", text);
    struct mr_transfer *begin = lane->state == MR_WRITE_BEGINNING && lane->ops->keeps_begin ? lane->transfer : NULL;
    if (begin)
        lane->transfer = NULL;
    mr_write_cancel(lane);
    lane->transfer = begin;
    if (mr_ckpt_part_abort(&lane->ckpt) ==
        MR_FATE_ABORTED) { /* a sealed one keeps its parts until its outcome is stored */
        for (unsigned i = 0; i < lane->ckpt.slots; i++) {
            if (lane->slots[i].held)
                mr_ckpt_part_put_back(&lane->ckpt, lane->slots[i].number, lane->slots[i].word);
            lane->slots[i].held = false;
        }
    }
    mr_ckpt_part_wake_trainer(&lane->ckpt);
    lane->state = MR_WRITE_UNDOING;
    lane->give_up_ns = mr_clock_mono_ns() + MR_WRITE_UNDO_S * MR_SECOND_NS;
    if (begun)
        lane->ops->undo(lane);
    else
        mr_write_undone(lane);
}

void mr_write_failed(struct mr_write_lane *lane, enum mr_code code, const char *text)
{
    char uri[300], words[MR_CKPT_PART_TEXT];
    if (code == MR_E_EXISTS && !lane->if_absent) { /* to us that was a precondition, and not the user's wish */
        snprintf(words, sizeof words, "%s: another writer has written it in the meantime; save under another name",
                 mr_write_uri(lane, uri, sizeof uri));
        mr_write_stop(lane, MR_CKPT_PART_FAILED, MR_E_CHANGED, words);
        return;
    }
    if (!strstr(text, mr_write_uri(lane, uri, sizeof uri))) { /* of a temporary object */
        snprintf(words, sizeof words, "%s: %s", uri, text);
        text = words;
    }
    mr_write_stop(lane, MR_CKPT_PART_FAILED, code, text);
}

/* With this thread's error. */
void mr_write_fail_here(struct mr_write_lane *lane)
{
    char uri[300], text[MR_CKPT_PART_TEXT];
    snprintf(text, sizeof text, "%s: %.300s", mr_write_uri(lane, uri, sizeof uri), mr_error_text());
    mr_write_failed(lane, mr_error_code(), text);
}

void mr_write_fail_damaged(struct mr_write_lane *lane, const char *what)
{
    mr_error_set(MR_E_CORRUPT, "the checkpoint's shared memory is damaged (%s)", what);
    mr_write_fail_here(lane);
}

/* ---- parts ---- */

void mr_write_part_stored(struct mr_write_slot *slot, const char *etag, uint64_t generation)
{
    struct mr_write_lane *lane = slot->lane;
    struct mr_ckpt_part_record record = {.crc32c = slot->crc32c, .length = slot->length, .generation = generation};
    slot->transfer = NULL;
    if (strlen(etag) >= sizeof record.etag) {
        mr_error_set(MR_E_PROTOCOL, "the store's ETag of a part has %zu bytes, which is too long", strlen(etag));
        mr_write_fail_here(lane);
        return;
    }
    snprintf(record.etag, sizeof record.etag, "%s", etag);
    mr_ckpt_part_done(&lane->ckpt, slot->number, slot->word, &record);
    slot->held = false;
    lane->stored++;
    mr_counter_add(lane->context->counters, MR_WC_PARTS, 1);
    mr_counter_add(lane->context->counters, MR_WC_PART_BYTES, slot->length);
    mr_ckpt_part_wake_trainer(&lane->ckpt);
}

void mr_write_part_failed(struct mr_write_slot *slot, enum mr_code code, const char *text)
{
    slot->transfer = NULL;
    if (code == MR_E_CORRUPT && ++slot->damaged < DAMAGED_MAX) {
        mr_counter_add(slot->lane->context->counters, MR_WC_RETRIES, 1);
        return; /* it is sent again */
    }
    mr_write_failed(slot->lane, code, text);
}

/* ---- states ---- */

/* Its worker is dead, and a successor may come. */
static bool is_going_on(const char *name)
{
    return mr_upload_is_live(MR_UPLOAD_FILE, name);
}

/* What killed write workers have left in the folder; once in a while, since a folder may hold many files. */
static void remove_leftovers(struct mr_write_lane *lane)
{
    struct mr_write_context *context = lane->context;
    int64_t now_ns = mr_clock_mono_ns();
    char folder[MR_STORE_NAME_MAX + 1];
    snprintf(folder, sizeof folder, "%s", lane->name);
    *strrchr(folder, '/') = 0;
    if (strcmp(folder, context->swept) == 0 && now_ns < context->swept_ns + SWEEP_S * MR_SECOND_NS)
        return;
    snprintf(context->swept, sizeof context->swept, "%s", folder);
    context->swept_ns = now_ns;
    unsigned count = mr_leftovers_remove(folder[0] ? folder : "/", is_going_on);
    if (count > 0) {
        mr_log_info("%u temporary files of dead write workers were removed from %s", count, folder);
        mr_counter_add(context->counters, MR_WC_ORPHANS_REMOVED, count);
    }
}

void mr_write_begin(struct mr_write_lane *lane)
{
    lane->state = MR_WRITE_BEGINNING;
    if (lane->uri.scheme == MR_SCHEME_FILE && !lane->resumed) {
        if (mr_durable_make_folders(lane->name, true) != 0) { /* users expect the folder of a checkpoint to be made */
            mr_write_fail_here(lane);
            return;
        }
        remove_leftovers(lane);
    }
    if (lane->ops->begin(lane) != 0)
        mr_write_fail_here(lane);
}

void mr_write_switch(struct mr_write_lane *lane, const struct mr_write_ops *ops)
{
    lane->transfer = NULL;
    lane->ops = ops;
    mr_write_begin(lane);
}

void mr_write_begun(struct mr_write_lane *lane, const char *id)
{
    lane->transfer = NULL;
    if (!lane->resumed) {
        snprintf(lane->id, sizeof lane->id, "%s", id);
        char all[MR_CKPT_PART_UPLOAD_ID + 32];
        int n = snprintf(all, sizeof all, "%" PRIu64 " %s", lane->generation, id);
        if (n < 0 || (size_t)n >= MR_CKPT_PART_UPLOAD_ID ||
            !mr_ckpt_part_set_upload(&lane->ckpt, lane->ops->method, all)) {
            mr_error_set(MR_E_PROTOCOL, "the store's name of the upload has %zu bytes, which is too long", strlen(id));
            mr_write_fail_here(lane);
            return;
        }
    }
    lane->state = MR_WRITE_SENDING;
}

void mr_write_found(struct mr_write_lane *lane, uint64_t generation)
{
    int rc = 0;
    if (lane->uri.scheme == MR_SCHEME_FILE) {
        int fd = open(lane->uri.key, O_RDONLY | O_CLOEXEC);
        rc = mr_durable_sync_folder(lane->uri.key, fd);
        if (fd >= 0)
            close(fd);
    }
    if (rc == 0)
        mr_write_done(lane, generation);
    else
        mr_write_fail_here(lane);
}

void mr_write_verified(struct mr_write_lane *lane, bool ours)
{
    if (ours)
        mr_write_found(lane, lane->verify.generation);
    else
        mr_write_begin(lane);
}
