/* test_batch.c - batch lanes: each step of the table, limits, and what a damaged segment or message can do. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/ring/batch.h"
#include "tests/unit/suite.h"

#define LANES 2u
#define SLOTS 4u
#define LIMIT (UINT64_C(1) << 20)

static struct mr_batch_arena arena;

static void make(uint32_t first_lap)
{
    struct mr_batch_format format = {
        .lanes = LANES, .slots = SLOTS, .first_lap = first_lap, .slot_bytes = LIMIT, .limit_bytes = LIMIT};

    ck_assert_int_eq(mr_batch_new(&arena, &format), 0);
}

/* A batch of one lane; its word. */
static uint64_t send(uint32_t lane, const char *text, uint32_t *slot)
{
    uint64_t filling;

    ck_assert(mr_batch_reserve(&arena, lane, 0, slot, &filling));
    ck_assert(mr_batch_grow(&arena, lane, *slot, strlen(text)));
    memcpy(mr_batch_memory(&arena, lane, *slot), text, strlen(text));
    return mr_batch_publish(&arena, lane, *slot, filling, strlen(text));
}

static enum mr_state state_of(uint32_t lane, uint32_t slot)
{
    return mr_word_state(atomic_load(&mr_batch_slot_at(&arena, lane, slot)->word));
}

START_TEST(life_of_a_batch)
{
    make(UINT32_MAX - 1); /* the lap wraps */
    for (int round = 0; round < 5; round++) {
        uint32_t slot;
        uint64_t word = send(1, "abc", &slot), held, length;
        ck_assert_int_eq(state_of(1, slot), MR_READY);
        ck_assert(!mr_batch_take(&arena, 0, slot, word, &held, &length)); /* of another lane */
        ck_assert(mr_batch_take(&arena, 1, slot, word, &held, &length));
        ck_assert(!mr_batch_take(&arena, 1, slot, word, &held, &length)); /* twice */
        ck_assert_uint_eq(length, 3);
        ck_assert(memcmp(mr_batch_memory(&arena, 1, slot), "abc", 3) == 0);
        mr_batch_release(&arena, 1, slot, held);
        ck_assert_int_eq(state_of(1, slot), MR_EMPTY);
    }
    struct mr_batch_counts counts = {0};
    mr_batch_count(&arena, &counts);
    ck_assert_uint_eq(counts.batches, 5);
    ck_assert_uint_eq(counts.bytes, 15);
    ck_assert_uint_eq(mr_batch_bytes(&arena), 65536); /* the warm slot, each time */
    mr_batch_close(&arena);
}
END_TEST

START_TEST(a_lane_that_is_full_waits)
{
    make(0);
    uint32_t slot, seen;
    uint64_t words[SLOTS], held[SLOTS], length, filling;
    for (uint32_t i = 0; i < SLOTS; i++) {
        ck_assert_int_eq(mr_batch_holds_many(&arena, 0), i == SLOTS - 1);
        words[i] = send(0, "x", &slot);
        ck_assert(mr_batch_take(&arena, 0, slot, words[i], &held[i], &length));
    }
    ck_assert(mr_batch_holds_many(&arena, 0) && !mr_batch_holds_many(&arena, 1));
    struct mr_batch_counts counts = {0};
    mr_batch_count(&arena, &counts);
    ck_assert_uint_eq(counts.held, SLOTS * (SLOTS - 1) / 2); /* 0 at the first take, 1 at the next, ... */
    ck_assert(!mr_batch_reserve_or_want(&arena, 0, 0, &slot, &filling, &seen));
    ck_assert_int_eq(mr_batch_wait(&arena, 0, seen, 1), MR_WAKE_TIMEOUT);
    mr_batch_release(&arena, 0, 2, held[2]); /* the slots were taken in some order: whichever it is */
    for (uint32_t i = 0; i < SLOTS; i++)
        if (i != 2)
            mr_batch_release(&arena, 0, i, held[i]);
    ck_assert_int_eq(mr_batch_wait(&arena, 0, seen, 10000), MR_WAKE_CHANGED);
    ck_assert(mr_batch_reserve_or_want(&arena, 0, 0, &slot, &filling, &seen));
    mr_batch_withdraw(&arena, 0, slot, filling);
    ck_assert_int_eq(state_of(0, slot), MR_EMPTY);
    /* A view of its own keeps a slot from the worker, and no other. */
    ck_assert(!mr_batch_reserve(&arena, 0, (UINT64_C(1) << SLOTS) - 1, &slot, &filling));
    ck_assert(mr_batch_reserve(&arena, 0, ~(UINT64_C(1) << 3), &slot, &filling));
    ck_assert_uint_eq(slot, 3);
    mr_batch_close(&arena);
}
END_TEST

START_TEST(memory_within_the_limit)
{
    make(0);
    uint32_t slot, other;
    uint64_t filling;
    ck_assert(mr_batch_reserve(&arena, 0, 0, &slot, &filling));
    ck_assert(!mr_batch_grow(&arena, 0, slot, LIMIT + 1)); /* larger than a slot */
    ck_assert(mr_batch_grow(&arena, 0, slot, LIMIT / 2));
    ck_assert_uint_ge(mr_batch_extent(&arena, 0, slot), LIMIT / 2);
    uint64_t before = mr_batch_bytes(&arena);
    ck_assert(mr_batch_grow(&arena, 0, slot, 7) && mr_batch_bytes(&arena) == before); /* it is there */
    ck_assert(mr_batch_reserve(&arena, 1, 0, &other, &filling));
    ck_assert(!mr_batch_grow(&arena, 1, other, LIMIT / 2)); /* of all lanes together */
    ck_assert_uint_eq(mr_batch_bytes(&arena), before);
    ck_assert(mr_batch_grow(&arena, 1, other, 1000));
    /* The largest slot is the first to be used again. */
    mr_batch_recover(&arena, 0);
    ck_assert(mr_batch_reserve(&arena, 0, 0, &other, &filling));
    ck_assert_uint_eq(other, slot);
    mr_batch_close(&arena);
}
END_TEST

static uint64_t pages(void)
{
    struct stat st;
    ck_assert_int_eq(fstat(arena.fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Its pages are there, and its extent does not count them yet: they go back to the system. */
START_TEST(a_worker_dies_while_its_slot_grows)
{
    make(0);
    uint32_t slot;
    uint64_t filling;
    ck_assert(mr_batch_reserve(&arena, 0, 0, &slot, &filling));
    ck_assert(mr_batch_grow(&arena, 0, slot, 10));
    uint64_t before = pages(), counted = mr_batch_bytes(&arena);
    struct mr_batch_slot *line = mr_batch_slot_at(&arena, 0, slot);
    uint64_t offset = (uint64_t)(mr_batch_memory(&arena, 0, slot) - (unsigned char *)arena.shared);
    uint64_t extent = mr_batch_extent(&arena, 0, slot);
    atomic_store(&line->claim, LIMIT / 2);
    ck_assert_int_eq(mr_segment_reserve(arena.fd, "batches", offset + extent, LIMIT / 2 - extent), 0);
    ck_assert_uint_gt(pages(), before);
    mr_batch_recover(&arena, 0);
    ck_assert_uint_eq(pages(), before);
    ck_assert_uint_eq(mr_batch_bytes(&arena), counted);
    atomic_store(&line->claim, UINT64_MAX); /* damaged: nothing beyond its slot is touched */
    memset(mr_batch_memory(&arena, 1, 0), 1, 4096);
    mr_batch_recover(&arena, 0);
    ck_assert_uint_eq(mr_batch_memory(&arena, 1, 0)[0], 1);
    mr_batch_close(&arena);
}
END_TEST

START_TEST(recovery)
{
    make(0);
    uint32_t sent, filled, held_slot;
    uint64_t held, length, filling;
    uint64_t kept = send(0, "kept", &held_slot);
    ck_assert(mr_batch_take(&arena, 0, held_slot, kept, &held, &length));
    uint64_t stale = send(0, "stale", &sent);
    ck_assert(mr_batch_reserve(&arena, 0, 0, &filled, &filling));
    mr_batch_recover(&arena, 0);
    ck_assert_int_eq(state_of(0, sent), MR_EMPTY);
    ck_assert_int_eq(state_of(0, filled), MR_EMPTY);
    ck_assert_int_eq(state_of(0, held_slot), MR_HELD);
    ck_assert(memcmp(mr_batch_memory(&arena, 0, held_slot), "kept", 4) == 0);
    for (uint32_t i = 0; i < SLOTS - 1; i++) {
        uint32_t slot;
        send(0, "again", &slot);
        ck_assert(!mr_batch_take(&arena, 0, sent, stale, &kept, &length));
    }
    mr_batch_close(&arena);
}
END_TEST

START_TEST(damage)
{
    make(0);
    uint32_t slot;
    uint64_t word = send(0, "abc", &slot), held, length;
    mr_batch_slot_at(&arena, 0, slot)->length = UINT64_MAX;
    ck_assert(!mr_batch_take(&arena, 0, slot, word, &held, &length));
    ck_assert(!mr_batch_take(&arena, LANES, 0, word, &held, &length));
    ck_assert(!mr_batch_take(&arena, 0, SLOTS, word, &held, &length));
    ck_assert(!mr_batch_take(&arena, 0, 0, 0, &held, &length));

    struct mr_batch_shared *shared = arena.shared;
    struct mr_batch_arena other;
    for (unsigned i = 0; i < sizeof *shared; i++) { /* each byte of the header */
        unsigned char *at = (unsigned char *)shared + i;
        *at ^= 0x80;
        if (mr_batch_attach(&other, shared, arena.size, -1) == 0) {
            uint64_t end = other.memory_offset + (uint64_t)other.lanes * other.slots * other.slot_bytes;
            ck_assert_uint_le(end, arena.size);
        }
        *at ^= 0x80;
    }
    ck_assert_int_eq(mr_batch_attach(&other, shared, 63, -1), -1);
    ck_assert_int_eq((int)mr_error_code(), MR_E_CORRUPT);
    shared->version++;
    ck_assert_int_eq(mr_batch_attach(&other, shared, arena.size, -1), -1);
    ck_assert_int_eq((int)mr_error_code(), MR_E_PROTOCOL);
    mr_batch_close(&arena);
}
END_TEST

START_TEST(arguments_and_few_addresses)
{
    struct mr_batch_format format = {.lanes = 0, .slots = SLOTS, .slot_bytes = LIMIT, .limit_bytes = LIMIT};

    ck_assert_int_eq(mr_batch_new(&arena, &format), -1);
    ck_assert_int_eq((int)mr_error_code(), MR_E_USAGE);
    format.lanes = 1;
    format.slots = 1;
    ck_assert_int_eq(mr_batch_new(&arena, &format), -1);
    format.slots = SLOTS;
    format.slot_bytes = UINT64_C(1) << 50; /* more than the address space has */
    ck_assert_int_eq(mr_batch_new(&arena, &format), 0);
    ck_assert_uint_lt(arena.slot_bytes, UINT64_C(1) << 45);
    uint64_t slot_bytes = arena.slot_bytes;
    int again = dup(arena.fd);
    mr_batch_close(&arena); /* first: there may not be as many addresses a second time */
    mr_batch_close(&arena); /* nothing */
    struct mr_batch_arena other;
    ck_assert_int_eq(mr_batch_map(&other, again), 0);
    ck_assert_uint_eq(other.slot_bytes, slot_bytes);
    mr_batch_close(&other);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("batch");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, life_of_a_batch);
    tcase_add_test(tc, a_lane_that_is_full_waits);
    tcase_add_test(tc, memory_within_the_limit);
    tcase_add_test(tc, recovery);
    tcase_add_test(tc, a_worker_dies_while_its_slot_grows);
    tcase_add_test(tc, damage);
    tcase_add_test(tc, arguments_and_few_addresses);
    return mr_suite_run("batch", tc);
}
