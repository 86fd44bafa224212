/* test_ckpt_part.c - checkpoint lanes: each step of the table, what a damaged segment can do, and both ends as
 * threads. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/ring/ckpt_part.h"
#include "tests/unit/suite.h"

#define PART_BYTES 4096u
#define SLOTS      4u

static struct mr_ckpt_lane lane;
static void *segment;

static void make_new_lane(uint32_t first_lap)
{
    struct mr_ckpt_part_format format = {
        .slots = SLOTS, .lane = 1, .trainer = 9, .worker = 2, .first_lap = first_lap, .part_bytes = PART_BYTES};

    segment =
        mmap(NULL, mr_ckpt_part_size(SLOTS), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(segment, MAP_FAILED);
    mr_ckpt_part_format(segment, &format);
    ck_assert_int_eq(mr_ckpt_part_attach(&lane, segment, mr_ckpt_part_size(SLOTS), SLOTS * PART_BYTES), 0);
}

/* With a worker that has taken it up. */
static void make_lane(uint32_t first_lap)
{
    make_new_lane(first_lap);
    mr_ckpt_part_adopt(&lane);
}

static void drop_lane(void)
{
    munmap(segment, mr_ckpt_part_size(SLOTS));
}

static void put(uint64_t number, uint64_t length)
{
    uint64_t filling;

    ck_assert(mr_ckpt_part_fill(&lane, number, &filling));
    mr_ckpt_part_publish(&lane, number, filling, length);
}

static uint64_t serve(void)
{
    struct mr_ckpt_part_record record = {.crc32c = 77};
    uint64_t number, held;

    ck_assert(mr_ckpt_part_take(&lane, &number, &held, &record.length));
    strcpy(record.etag, "\"abc\"");
    mr_ckpt_part_done(&lane, number, held, &record);
    return number;
}

static enum mr_state state_of(uint64_t number)
{
    return mr_word_state(mr_ckpt_part_load(&lane, mr_ckpt_part_slot(&lane, number)));
}

START_TEST(life_of_a_part)
{

    make_lane(UINT32_MAX); /* the lap wraps at part 4 */
    for (uint64_t number = 0; number < SLOTS; number++)
        put(number, PART_BYTES);
    uint64_t filling;
    ck_assert(!mr_ckpt_part_fill(&lane, SLOTS, &filling)); /* the window is full */
    ck_assert_uint_eq(serve(), 0);                         /* in the order of numbers */
    ck_assert_int_eq(state_of(0), MR_EMPTY);
    put(SLOTS, 5); /* of the next lap: it goes behind the others */
    for (uint64_t number = 1; number <= SLOTS; number++)
        ck_assert_uint_eq(serve(), number);
    ck_assert(mr_ckpt_part_is_at_rest(&lane));
    struct mr_ckpt_part_record record;
    ck_assert(mr_ckpt_part_record_get(&lane, SLOTS, &record));
    ck_assert_uint_eq(record.length, 5);
    ck_assert_uint_eq(record.crc32c, 77);
    ck_assert_str_eq(record.etag, "\"abc\"");
    ck_assert(!mr_ckpt_part_record_get(&lane, SLOTS + 1, &record));
    ck_assert(!mr_ckpt_part_record_get(&lane, MR_CKPT_PARTS_MAX, &record));
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, SLOTS + 1, SLOTS * PART_BYTES + 5), MR_FATE_SEALED);
    ck_assert_int_eq(mr_ckpt_part_fate(&lane), MR_FATE_SEALED);
    uint64_t bytes;
    uint32_t parts;
    ck_assert_int_eq(mr_ckpt_part_totals(&lane, &parts, &bytes), 0);
    ck_assert_uint_eq(parts, SLOTS + 1);
    ck_assert_uint_eq(bytes, SLOTS * PART_BYTES + 5);
    ck_assert_int_eq(mr_ckpt_part_abort(&lane), MR_FATE_SEALED); /* a promise stays */
    drop_lane();
}
END_TEST

/* The supervisor may die before it has told a worker of the lane: nobody could keep the promise. */
START_TEST(a_promise_needs_a_worker)
{
    make_new_lane(0);
    put(0, 1);
    ck_assert(!mr_ckpt_part_is_adopted(&lane));
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 1, 1), MR_FATE_OPEN);
    mr_ckpt_part_adopt(&lane);
    ck_assert(mr_ckpt_part_is_adopted(&lane));
    ck_assert_int_eq(mr_ckpt_part_fate(&lane), MR_FATE_OPEN);
    ck_assert_uint_eq(mr_ckpt_part_recover_worker(&lane), 0); /* it died: its successor has to take the lane up */
    ck_assert(!mr_ckpt_part_is_adopted(&lane));
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 1, 1), MR_FATE_OPEN);
    mr_ckpt_part_adopt(&lane);
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 1, 1), MR_FATE_SEALED);
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 1, 1), MR_FATE_SEALED);
    mr_ckpt_part_recover_worker(&lane);
    mr_ckpt_part_adopt(&lane);
    ck_assert_int_eq(mr_ckpt_part_fate(&lane), MR_FATE_SEALED); /* a promise stays */
    drop_lane();
}
END_TEST

START_TEST(an_abort_needs_no_worker)
{
    for (unsigned adopted = 0; adopted < 2; adopted++) {
        make_new_lane(0);
        if (adopted)
            mr_ckpt_part_adopt(&lane);
        ck_assert_int_eq(mr_ckpt_part_abort(&lane), MR_FATE_ABORTED);
        ck_assert(mr_ckpt_part_is_adopted(&lane)); /* decided: a seal waits for nobody */
        mr_ckpt_part_adopt(&lane);
        mr_ckpt_part_recover_worker(&lane);
        ck_assert_int_eq(mr_ckpt_part_seal(&lane, 0, 0), MR_FATE_ABORTED);
        drop_lane();
    }
}
END_TEST

START_TEST(abort_empties_every_slot)
{

    make_lane(0);
    put(0, 1);
    put(1, 2);
    uint64_t filling;
    ck_assert(mr_ckpt_part_fill(&lane, 2, &filling));
    uint64_t number, held, length;
    ck_assert(mr_ckpt_part_take(&lane, &number, &held, &length));
    ck_assert_int_eq(mr_ckpt_part_abort(&lane), MR_FATE_ABORTED);
    ck_assert_int_eq(state_of(1), MR_EMPTY);
    ck_assert_int_eq(state_of(2), MR_FILLING); /* a living trainer's: its own look empties it */
    mr_ckpt_part_publish(&lane, 2, filling, 3);
    ck_assert_int_eq(state_of(2), MR_EMPTY);
    mr_ckpt_part_put_back(&lane, number, held);
    ck_assert_int_eq(state_of(0), MR_EMPTY);
    ck_assert(mr_ckpt_part_is_at_rest(&lane));
    ck_assert(!mr_ckpt_part_fill(&lane, 3, &filling));
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 3, 6), MR_FATE_ABORTED);
    drop_lane();
}
END_TEST

START_TEST(recovery)
{

    make_lane(0);
    put(0, 10);
    put(1, 11);
    uint64_t number, held, length;
    ck_assert(mr_ckpt_part_take(&lane, &number, &held, &length));
    ck_assert_uint_eq(mr_ckpt_part_recover_worker(&lane), 1);
    ck_assert_uint_eq(mr_ckpt_part_recover_worker(&lane), 0);
    ck_assert(mr_ckpt_part_take(&lane, &number, &held, &length));
    ck_assert_uint_eq(number, 0);
    ck_assert_uint_eq(length, 10);
    ck_assert_uint_eq(mr_word_attempt(held), 1);
    mr_ckpt_part_put_back(&lane, number, held);
    uint64_t filling;
    ck_assert(mr_ckpt_part_fill(&lane, 2, &filling));
    ck_assert_int_eq(mr_ckpt_part_recover_trainer(&lane), MR_FATE_ABORTED);
    ck_assert_int_eq(mr_ckpt_part_recover_trainer(&lane), MR_FATE_ABORTED);
    ck_assert(mr_ckpt_part_is_at_rest(&lane));
    drop_lane();

    make_lane(0); /* a sealed lane of a dead trainer is finished */
    put(0, 10);
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, 1, 10), MR_FATE_SEALED);
    ck_assert_int_eq(mr_ckpt_part_recover_trainer(&lane), MR_FATE_SEALED);
    ck_assert_uint_eq(serve(), 0);
    drop_lane();
}
END_TEST

START_TEST(what_a_successor_reads)
{

    make_lane(0);
    char id[MR_CKPT_PART_UPLOAD_ID];
    uint32_t method;
    ck_assert(!mr_ckpt_part_get_upload(&lane, &method, id));
    char long_id[MR_CKPT_PART_UPLOAD_ID + 1];
    memset(long_id, 'x', sizeof long_id - 1);
    long_id[sizeof long_id - 1] = '\0';
    ck_assert(!mr_ckpt_part_set_upload(&lane, 1, long_id));
    ck_assert(!mr_ckpt_part_get_upload(&lane, &method, id));
    ck_assert(mr_ckpt_part_set_upload(&lane, 2, "upload-id"));
    ck_assert(mr_ckpt_part_get_upload(&lane, &method, id));
    ck_assert_uint_eq(method, 2);
    ck_assert_str_eq(id, "upload-id");
    ck_assert(!mr_ckpt_part_complete_sent(&lane));
    mr_ckpt_part_set_complete_sent(&lane);
    ck_assert(mr_ckpt_part_complete_sent(&lane));
    char text[MR_CKPT_PART_TEXT];
    uint32_t code, crc;
    uint64_t generation;
    ck_assert_int_eq(mr_ckpt_part_result(&lane, &code, text, &generation, &crc), MR_CKPT_PART_UNDECIDED);
    mr_ckpt_part_finish(&lane, MR_CKPT_PART_FAILED, MR_E_DENIED, "no permission", 0, 0);
    mr_ckpt_part_finish(&lane, MR_CKPT_PART_DONE, 0, "", 3, 4); /* the first one stays */
    ck_assert_int_eq(mr_ckpt_part_result(&lane, &code, text, &generation, &crc), MR_CKPT_PART_FAILED);
    ck_assert_uint_eq(code, MR_E_DENIED);
    ck_assert_str_eq(text, "no permission");
    drop_lane();
}
END_TEST

START_TEST(damaged_headers_are_refused)
{
    const size_t size = mr_ckpt_part_size(SLOTS);

    make_lane(0);
    struct mr_ckpt_part_shared *shared = segment;
    struct mr_ckpt_lane other;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, sizeof *shared - 1, SLOTS * PART_BYTES), -1);
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size - 1, SLOTS * PART_BYTES), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES - 1), -1);
    shared->arena_offset = UINT64_MAX - 10;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    shared->arena_offset = 0;
    shared->part_bytes = UINT64_MAX / 2;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    shared->part_bytes = 0;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    shared->part_bytes = PART_BYTES;
    for (uint32_t slots = 0; slots < 200; slots++) {
        if (slots == 2 || slots == SLOTS)
            continue;
        shared->slots = slots;
        ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    }
    shared->slots = SLOTS;
    shared->version = 9;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    shared->version = MR_CKPT_PART_VERSION;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), 0);
    shared->magic = 1;
    ck_assert_int_eq(mr_ckpt_part_attach(&other, segment, size, SLOTS * PART_BYTES), -1);
    drop_lane();
}
END_TEST

START_TEST(garbage_words)
{
    uint64_t random = 88172645463325252u;

    make_lane(0);
    char text[MR_CKPT_PART_TEXT], id[MR_CKPT_PART_UPLOAD_ID];
    for (unsigned round = 0; round < 20000; round++) {
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            atomic_store(&lane.tickets[slot].word, random);
            lane.tickets[slot].length = random * 3;
        }
        atomic_store(&lane.shared->fate, (uint32_t)(random >> 20) % 5);
        lane.shared->parts = (uint32_t)random;
        lane.shared->bytes = random;
        uint64_t bytes;
        uint32_t parts;
        if (mr_ckpt_part_totals(&lane, &parts, &bytes) == 0)
            ck_assert(parts <= MR_CKPT_PARTS_MAX && bytes <= (uint64_t)parts * PART_BYTES);
        struct mr_ckpt_part_record record;
        uint64_t number, held, length;
        while (mr_ckpt_part_take(&lane, &number, &held, &length)) {
            ck_assert_uint_le(length, PART_BYTES);
            ck_assert_uint_le(mr_ckpt_part_offset(&lane, mr_ckpt_part_slot(&lane, number)) + length,
                              SLOTS * PART_BYTES);
            record = (struct mr_ckpt_part_record){.length = length};
            mr_ckpt_part_done(&lane, number, held, &record);
            mr_ckpt_part_record_get(&lane, number, &record);
        }
        uint64_t filling;
        if (mr_ckpt_part_fill(&lane, random, &filling))
            mr_ckpt_part_publish(&lane, random, filling, random);
        uint64_t generation;
        uint32_t code, crc;
        mr_ckpt_part_result(&lane, &code, text, &generation, &crc);
        uint32_t method;
        mr_ckpt_part_get_upload(&lane, &method, id);
        mr_ckpt_part_abort(&lane);
        mr_ckpt_part_recover_worker(&lane);
        mr_ckpt_part_recover_trainer(&lane);
    }
    drop_lane();
}
END_TEST

/* ---- both ends as threads: for ThreadSanitizer ---- */

#define STREAM_PARTS 3000u
static unsigned char arena[SLOTS * PART_BYTES];

static void *worker_thread(void *arg)
{
    uint32_t parts = 0, seen_parts = 0;
    uint64_t bytes;

    while (mr_ckpt_part_fate(&lane) != MR_FATE_SEALED || mr_ckpt_part_totals(&lane, &parts, &bytes) ||
           seen_parts < parts) {
        struct mr_ckpt_part_record record = {0};
        uint64_t number, held;
        if (!mr_ckpt_part_take(&lane, &number, &held, &record.length)) {
            sched_yield();
            continue;
        }
        for (uint64_t i = 0; i < record.length; i++)
            record.crc32c =
                record.crc32c * 31 + arena[mr_ckpt_part_offset(&lane, mr_ckpt_part_slot(&lane, number)) + i];
        mr_ckpt_part_done(&lane, number, held, &record);
        mr_ckpt_part_wake_trainer(&lane);
        seen_parts++;
    }
    mr_ckpt_part_finish(&lane, MR_CKPT_PART_DONE, 0, "", 1, 2);
    mr_ckpt_part_wake_trainer(&lane);
    return arg;
}

static bool filled(uint64_t number, uint64_t length)
{
    uint64_t filling;

    if (!mr_ckpt_part_fill(&lane, number, &filling))
        return false;
    memset(arena + mr_ckpt_part_offset(&lane, mr_ckpt_part_slot(&lane, number)), (int)(number * 7), length);
    mr_ckpt_part_publish(&lane, number, filling, length);
    return true;
}

START_TEST(both_ends)
{
    uint64_t length = 64;

    make_lane(UINT32_MAX - 3);
    pthread_t thread;
    pthread_create(&thread, NULL, worker_thread, NULL);
    for (uint64_t number = 0; number < STREAM_PARTS;) {
        uint32_t seen = mr_ckpt_part_seq(&lane);
        mr_ckpt_part_set_want(&lane, number + 1);
        if (filled(number, length))
            number++;
        else
            mr_ckpt_part_wait(&lane, seen, 100);
    }
    ck_assert_int_eq(mr_ckpt_part_seal(&lane, STREAM_PARTS, STREAM_PARTS * length), MR_FATE_SEALED);
    uint64_t generation;
    uint32_t code, crc;
    for (;;) {
        uint32_t seen = mr_ckpt_part_seq(&lane);
        mr_ckpt_part_set_want(&lane, MR_CKPT_PART_WANT_OUTCOME);
        if (mr_ckpt_part_result(&lane, &code, NULL, &generation, &crc) == MR_CKPT_PART_DONE)
            break;
        mr_ckpt_part_wait(&lane, seen, 100);
    }
    pthread_join(thread, NULL);
    for (uint64_t number = 0; number < STREAM_PARTS; number++) {
        struct mr_ckpt_part_record record;
        uint32_t sum = 0;
        ck_assert(mr_ckpt_part_record_get(&lane, number, &record));
        for (uint64_t i = 0; i < length; i++)
            sum = sum * 31 + (unsigned char)(number * 7);
        ck_assert_uint_eq(record.crc32c, sum);
    }
    drop_lane();
}
END_TEST

START_TEST(over_a_descriptor)
{
    struct mr_ckpt_part_format format = {.slots = 2, .part_bytes = PART_BYTES};
    struct mr_ckpt_lane mapped;
    uint64_t size = mr_ckpt_part_size(2);
    int fd = mr_segment_new(MR_BACKING_MEMFD, "checkpoint lane", size, false);
    void *at = mr_segment_map(fd, size, true, &size);

    ck_assert_int_eq(mr_ckpt_part_map(&mapped, fd, 2 * PART_BYTES), -1); /* not formatted yet */
    mr_ckpt_part_format(at, &format);
    ck_assert_int_eq(mr_ckpt_part_map(&mapped, fd, 2 * PART_BYTES), 0);
    mr_ckpt_part_unmap(&mapped);
    mr_segment_unmap(at, size);
    close(fd);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("ckpt_part");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, life_of_a_part);
    tcase_add_test(tc, a_promise_needs_a_worker);
    tcase_add_test(tc, an_abort_needs_no_worker);
    tcase_add_test(tc, abort_empties_every_slot);
    tcase_add_test(tc, recovery);
    tcase_add_test(tc, what_a_successor_reads);
    tcase_add_test(tc, damaged_headers_are_refused);
    tcase_add_test(tc, garbage_words);
    tcase_add_test(tc, both_ends);
    tcase_add_test(tc, over_a_descriptor);
    return mr_suite_run("ckpt_part", tc);
}
