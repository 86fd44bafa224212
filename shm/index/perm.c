/* Permutations of 0 .. size-1 by a Feistel network: the order of objects or blocks, without a table. */
#include <string.h>

#include "base/clock.h"
#include "shm/index/plan_impl.h"

#define GOLDEN        UINT64_C(0x9e3779b97f4a7c15) /* SplitMix64's step */
#define KEY_ORDER     UINT64_C(0x6d696c6c72616365) /* "millrace": keys of the epoch's order */
#define MIN_HALF_BITS 3 /* so that small sizes have a network with enough different permutations */

uint64_t mr_perm_key_add(uint64_t key, uint64_t word)
{
    return mr_mix64(key ^ mr_mix64(word));
}

static uint64_t load_le64(const uint8_t *p)
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--)
        word = word << 8 | p[i];
    return word;
}

/* The network over the smallest 2^(2 * half) >= size: less than 4 * size unless size is tiny. */
void mr_perm_set(struct mr_perm *perm, uint64_t size, uint64_t key)
{
    memset(perm, 0, sizeof(*perm));
    perm->size = size;
    perm->half = MIN_HALF_BITS;
    while (UINT64_C(1) << (2 * perm->half) < size)
        perm->half++;
    perm->mask = (UINT64_C(1) << perm->half) - 1;
    for (unsigned i = 0; i < MR_PERM_ROUNDS; i++)
        perm->keys[i] = mr_mix64(key + i * GOLDEN);
}

uint64_t mr_perm_key(uint64_t kind, uint64_t seed, uint64_t epoch, const uint8_t digest[MR_PLAN_DIGEST_BYTES])
{
    uint64_t key = mr_perm_key_add(mr_perm_key_add(kind, seed), epoch);
    for (unsigned i = 0; i < MR_PLAN_DIGEST_BYTES; i += 8)
        key = mr_perm_key_add(key, load_le64(digest + i));
    return key;
}

void mr_perm_init(struct mr_perm *perm, uint64_t size, uint64_t seed, uint64_t epoch,
                  const uint8_t digest[MR_PLAN_DIGEST_BYTES], bool shuffle)
{
    if (size > MR_PLAN_MAX_SIZE)
        size = MR_PLAN_MAX_SIZE;
    if (!shuffle) {
        memset(perm, 0, sizeof(*perm));
        perm->size = size;
        return;
    }
    mr_perm_set(perm, size, mr_perm_key(KEY_ORDER, seed, epoch, digest));
}

static uint64_t round_bits(const struct mr_perm *perm, unsigned i, uint64_t half)
{
    return mr_mix64(half ^ perm->keys[i]) & perm->mask;
}

uint64_t mr_perm_at(const struct mr_perm *perm, uint64_t position)
{
    if (position >= perm->size)
        position = perm->size ? position % perm->size : 0;
    if (!perm->half || perm->size < 2)
        return position;
    /* Cycle walking: apply the network until the value is inside again. It ends, for the walk is on a cycle that begins
     * inside; on average it takes at most 4 turns. */
    do {
        uint64_t left = position >> perm->half, right = position & perm->mask;
        for (unsigned i = 0; i < MR_PERM_ROUNDS; i++) {
            uint64_t next = left ^ round_bits(perm, i, right);
            left = right;
            right = next;
        }
        position = left << perm->half | right;
    } while (position >= perm->size);
    return position;
}

uint64_t mr_perm_position(const struct mr_perm *perm, uint64_t object)
{
    if (!perm->half || perm->size < 2)
        return object;
    do { /* the same walk backwards */
        uint64_t left = object >> perm->half, right = object & perm->mask;
        for (unsigned i = MR_PERM_ROUNDS; i-- > 0;) {
            uint64_t before = right ^ round_bits(perm, i, left);
            right = left;
            left = before;
        }
        object = left << perm->half | right;
    } while (object >= perm->size);
    return object;
}
