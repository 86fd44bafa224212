/* plan_blocks.c - the order in blocks: runs of consecutive objects, shuffled as runs and then within a few of them. */
#include "shm/index/plan_impl.h"

#define KEY_BLOCKS UINT64_C(0x696e20626c6f636b) /* "in block": keys of orders in blocks */

/* The position at which the block at a place of the order begins. All are of one length but the index's last. */
static uint64_t start_of(const struct mr_blocks *blocks, uint64_t place)
{
    return place * blocks->block - (place > blocks->last_place ? blocks->missing : 0);
}

static uint64_t place_of(const struct mr_blocks *blocks, uint64_t position)
{
    bool after = position >= start_of(blocks, blocks->last_place + 1);
    return (position + (after ? blocks->missing : 0)) / blocks->block;
}

void mr_blocks_init(struct mr_blocks *blocks, const struct mr_plan_params *params)
{
    uint64_t count = params->size / params->block + (params->size % params->block > 0);
    uint64_t key = mr_perm_key(KEY_BLOCKS, params->seed, params->epoch, params->digest);
    *blocks = (struct mr_blocks){.size = params->size, .block = params->block, .mix = params->mix, .key = key};
    mr_perm_set(&blocks->order, count, key);
    if (count > 0) {
        blocks->last_place = mr_perm_position(&blocks->order, count - 1);
        blocks->missing = count * params->block - params->size;
    }
}

uint64_t mr_blocks_at(const struct mr_blocks *blocks, uint64_t position)
{
    if (blocks->size == 0)
        return 0;
    position %= blocks->size;
    uint64_t mix = place_of(blocks, position) / blocks->mix;
    uint64_t place = mix * blocks->mix, end = place + blocks->mix;
    uint64_t first = start_of(blocks, place);
    uint64_t past = end < blocks->order.size ? start_of(blocks, end) : blocks->size;
    struct mr_perm inside;
    mr_perm_set(&inside, past - first, mr_perm_key_add(blocks->key, mix));
    position = first + mr_perm_at(&inside, position - first);
    place = place_of(blocks, position);
    return mr_perm_at(&blocks->order, place) * blocks->block + position - start_of(blocks, place);
}
