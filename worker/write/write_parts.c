/*
 * write_parts.c - each checkpoint part is an upload part (worker/store/upload_parts.h): multipart uploads of GCS's XML
 * API, for a new name, since they have no preconditions; in S3 and in a folder for every name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "worker/write/write_impl.h"

/* Recorded for a successor after our death; of a folder's file, that there is one. */
static void record_begin(struct mr_write_lane *lane)
{
    mr_upload_log_begin(lane->context->uploads, lane->store, lane->uri.bucket, lane->name, lane->name_length,
                        &lane->upload);
}

static void record_end(struct mr_write_lane *lane)
{
    mr_upload_log_end(lane->context->uploads, lane->upload);
    lane->upload = 0;
}

static void undo(struct mr_write_lane *lane);

/* It did not begin. Without memory for the answer it may have: the record stays, and a later run says so. */
static void record_failure(struct mr_write_lane *lane, const struct mr_store_result *result)
{
    if (result->code == MR_E_NO_MEMORY)
        lane->upload = 0;
    else
        record_end(lane);
}

static void begun_late(struct mr_write_lane *lane, const struct mr_store_result *result, const char *id)
{
    if (result->code != MR_OK)
        record_failure(lane, result);
    else if (strlen(id) < sizeof lane->id)
        memcpy(lane->id, id, strlen(id) + 1);
    if (lane->id[0])
        undo(lane);
    else
        mr_write_undone(lane);
}

static void on_begun(void *arg, const struct mr_store_result *result, const char *id)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code == MR_OK)
        mr_upload_log_id(lane->context->uploads, lane->upload, id);
    if (lane->state == MR_WRITE_UNDOING) { /* given up meanwhile */
        begun_late(lane, result, id);
    } else if (result->code == MR_OK) {
        mr_write_begun(lane, id);
    } else if (result->code == MR_E_PROTOCOL && !mr_store_has_parts(lane->store)) {
        record_end(lane);
        mr_write_switch(lane, &mr_write_composed); /* and from now on at once */
    } else {
        record_failure(lane, result);
        mr_write_failed(lane, result->code, result->text);
    }
}

static int write_parts_begin(struct mr_write_lane *lane)
{
    record_begin(lane);
    if (lane->resumed) {
        mr_upload_log_id(lane->context->uploads, lane->upload, lane->id);
        mr_write_begun(lane, lane->id);
        return 0;
    }
    lane->transfer = mr_transfer_parts_begin(lane->context->net->engine, lane->store, lane->name, lane->name_length,
                                             NULL, on_begun, lane);
    if (!lane->transfer)
        record_end(lane);
    return lane->transfer ? 0 : -1;
}

/* NOT_FOUND: the upload no longer exists, nor do its bytes. At its end (slot is NULL) a request whose answer
 * was lost, or a worker that has died, may have completed it. */
static void write_parts_fail(struct mr_write_lane *lane, struct mr_write_slot *slot,
                             const struct mr_store_result *result)
{
    char uri[300], text[MR_CKPT_PART_TEXT];
    const char *words = result->text;
    if (result->code == MR_E_NOT_FOUND && lane->uri.scheme == MR_SCHEME_FILE) {
        snprintf(text, sizeof text,
                 "%s: its temporary file is missing: it was removed, or it got the name and another writer has written "
                 "that since",
                 mr_write_uri(lane, uri, sizeof uri));
        words = text;
    } else if (result->code == MR_E_NOT_FOUND && !slot && lane->maybe_done) {
        snprintf(
            text, sizeof text,
            "%s: its upload is missing: it was removed, or it got the name and another writer has written or removed "
            "that since",
            mr_write_uri(lane, uri, sizeof uri));
        words = text;
    } else if (result->code == MR_E_NOT_FOUND) {
        snprintf(text, sizeof text,
                 "%s: its unfinished upload was removed by another program (a lifecycle rule of the bucket that is too "
                 "strict, or millrace clean)",
                 mr_write_uri(lane, uri, sizeof uri));
        words = text;
    }
    if (slot)
        mr_write_part_failed(slot, result->code, words);
    else
        mr_write_failed(lane, result->code, words);
}

static void write_parts_on_part(void *arg, const struct mr_store_result *result, const char *etag)
{
    struct mr_write_slot *slot = arg;
    if (result->code != MR_OK)
        write_parts_fail(slot->lane, slot, result);
    else
        mr_write_part_stored(slot, etag, 0);
}

static int send_part(struct mr_write_lane *lane, struct mr_write_slot *slot)
{
    struct mr_upload_part_request request = {
        .name = lane->name,
        .name_length = lane->name_length,
        .id = lane->id,
        .number = (unsigned)slot->number + 1,
        .offset = slot->number * lane->ckpt.part_bytes,
        .data = mr_write_bytes(lane, slot),
        .length = slot->length,
        .crc32c = slot->crc32c,
    };
    lane->sent = true;
    slot->transfer =
        mr_transfer_part_send(lane->context->net->engine, lane->store, &request, write_parts_on_part, slot);
    return slot->transfer ? 0 : -1;
}

static void on_completed(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code != MR_OK) {
        write_parts_fail(lane, NULL, result);
        return;
    }
    record_end(lane);
    mr_write_done(lane, item->generation);
}

static int write_parts_complete(struct mr_write_lane *lane)
{
    struct mr_upload_part *parts = calloc(lane->stored, sizeof *parts);
    if (!parts) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u parts", lane->stored);
        return -1;
    }
    struct mr_ckpt_part_record record;
    for (uint32_t i = 0; i < lane->stored && mr_ckpt_part_record_get(&lane->ckpt, i, &record); i++) {
        parts[i].number = i + 1;
        memcpy(parts[i].etag, record.etag, sizeof record.etag);
        parts[i].crc32c = record.crc32c;
    }
    struct mr_store_complete_request request = {
        .name = lane->name,
        .name_length = lane->name_length,
        .id = lane->id,
        .parts = parts,
        .count = lane->stored,
        .size = lane->size,
        .crc32c = lane->crc32c,
        .generation_match = lane->generation,
        .maybe_done = lane->maybe_done,
    };
    lane->transfer = mr_transfer_parts_complete(lane->context->net->engine, lane->store, &request, on_completed, lane);
    free(parts); /* copied */
    return lane->transfer ? 0 : -1;
}

static void on_aborted(void *arg, const struct mr_store_result *result)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code != MR_OK) {
        mr_log_warning("an unfinished upload was not removed: %s; a later run or millrace clean does it", result->text);
    } else if ((lane->sent || lane->resumed) && lane->uri.scheme != MR_SCHEME_FILE) {
        mr_write_again_add(&lane->context->again, lane->store, lane->name, lane->id, lane->upload,
                           lane->context->late_s);
        lane->upload = 0;
    } else {
        record_end(lane);
    }
    mr_write_undone(lane);
}

static void undo(struct mr_write_lane *lane)
{
    if (lane->transfer)
        return; /* until on_begun */
    if (lane->id[0])
        lane->transfer = mr_transfer_parts_abort(lane->context->net->engine, lane->store, lane->name, lane->name_length,
                                                 lane->id, on_aborted, lane);
    else
        record_end(lane); /* it had not begun */
    if (!lane->transfer)
        mr_write_undone(lane);
}

const struct mr_write_ops mr_write_parts = {.method = MR_WRITE_PARTS,
                                            .begin = write_parts_begin,
                                            .keeps_begin = true,
                                            .send = send_part,
                                            .complete = write_parts_complete,
                                            .undo = undo};
