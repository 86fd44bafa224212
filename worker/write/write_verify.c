/*
 * write_verify.c - is what lies under the name what a dead predecessor meant to make? A folder keeps no checksum, and
 * an object of that size may be another writer's: so its bytes are read, block by block.
 */
#include <stdlib.h>

#include "base/checksum.h"
#include "worker/write/write_impl.h"

#define BLOCK (4u << 20)

static void write_verify_end(struct mr_write_lane *lane, bool ours)
{
    mr_write_verify_close(lane);
    mr_write_verified(lane, ours);
}

static int read_block(struct mr_write_lane *lane);

static void on_block(void *arg, const struct mr_transfer_result *result)
{
    struct mr_write_lane *lane = arg;
    struct mr_write_verify *verify = &lane->verify;
    lane->transfer = NULL;
    if (result->code == MR_E_CHANGED || result->code == MR_E_NOT_FOUND) { /* it is being written at this moment */
        write_verify_end(lane, false);
    } else if (result->code != MR_OK) {
        mr_write_failed(lane, result->code, result->text);
    } else {
        verify->crc32c = mr_crc32c_combine(verify->crc32c, result->crc32c, verify->length);
        verify->at += verify->length;
        if (verify->at == lane->size)
            write_verify_end(lane, verify->crc32c == lane->crc32c);
        else if (read_block(lane) != 0)
            mr_write_failed(lane, mr_error_code(), mr_error_text());
    }
}

static int read_block(struct mr_write_lane *lane)
{
    struct mr_write_verify *verify = &lane->verify;
    uint64_t left = lane->size - verify->at;
    verify->length = left < BLOCK ? left : BLOCK;
    struct mr_transfer_request request = {
        .store = lane->store,
        .name = lane->name,
        .name_length = lane->name_length,
        .generation = verify->generation,
        .size = lane->size,
        .offset = verify->at,
        .length = verify->length,
        .needs_crc32c = true,
        .dest = verify->block,
    };
    lane->transfer = mr_transfer_fetch(lane->context->net->engine, &request, on_block, lane);
    return lane->transfer ? 0 : -1;
}

int mr_write_verify(struct mr_write_lane *lane, const struct mr_store_item *item)
{
    lane->verify = (struct mr_write_verify){.generation = item->generation, .block = malloc(BLOCK)};
    if (!lane->verify.block) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to read what is there");
        return -1;
    }
    return read_block(lane);
}
