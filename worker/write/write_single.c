/*
 * write_single.c - an object of one checkpoint part, or of none: one multipart/related insert, whose checksum the store
 * compares.
 *
 * Its part stays HELD until the outcome is stored, so that a successor has the bytes. The precondition is that no other
 * process has written the object since it was looked up, so the insert may be repeated; if it is refused to a
 * successor, the predecessor's may have been first (maybe_done).
 */
#include "worker/write/write_impl.h"

static int write_single_begin(struct mr_write_lane *lane)
{
    mr_write_begun(lane, "");
    return 0;
}

static void on_stored(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write_lane *lane = arg;
    lane->transfer = NULL;
    if (result->code != MR_OK) {
        mr_write_failed(lane, result->code, result->text);
        return;
    }
    if (lane->slots[0].held) {
        mr_counter_add(lane->context->counters, MR_WC_PARTS, 1);
        mr_counter_add(lane->context->counters, MR_WC_PART_BYTES, lane->size);
    }
    mr_write_done(lane, item->generation);
}

static int write_single_complete(struct mr_write_lane *lane)
{
    struct mr_store_insert_request request = {
        .name = lane->name,
        .name_length = lane->name_length,
        .body = lane->size ? mr_write_bytes(lane, &lane->slots[0]) : NULL,
        .length = lane->size,
        .crc32c = lane->crc32c,
        .generation_match = lane->generation,
        .maybe_done = lane->maybe_done,
    };
    lane->transfer = mr_transfer_insert(lane->context->net->engine, lane->store, &request, on_stored, lane);
    return lane->transfer ? 0 : -1;
}

const struct mr_write_ops mr_write_single = {
    .method = MR_WRITE_SINGLE, .begin = write_single_begin, .complete = write_single_complete, .undo = mr_write_undone};
