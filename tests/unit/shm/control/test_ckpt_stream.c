/* test_ckpt_stream.c - the trainer's bytes in order through a checkpoint lane, with a thread that plays the write
 * worker; and the thread that prefaults. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/ckpt_stream.h"
#include "shm/memory/prefault.h"
#include "shm/ring/wake.h"
#include "tests/unit/suite.h"

#define PART  4096u
#define SLOTS 4u

static struct mr_ckpt_writer writer;
static struct mr_ckpt_stream stream;
static struct mr_ckpt_lane worker_lane; /* the worker's own handle */
static struct mr_producer_line *line;
static void *segment;

static void *shared_memory(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

static void setup_of(uint32_t slots, uint64_t part)
{
    struct mr_ckpt_part_format format = {
        .slots = slots, .lane = 1, .trainer = 9, .worker = 2, .part_bytes = part, .arena_offset = part};
    uint64_t arena_bytes = (slots + 1) * part; /* the first part's memory is a neighbour's */

    segment = shared_memory(mr_ckpt_part_size(slots));
    mr_ckpt_part_format(segment, &format);
    line = shared_memory(MR_PRODUCER_LINE_BYTES);
    writer = (struct mr_ckpt_writer){.arena = shared_memory(arena_bytes), .line = line};
    writer.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    writer.touched = calloc(arena_bytes / MR_PREFAULT_CHUNK + 1, 1);
    ck_assert_int_eq(mr_ckpt_part_attach(&writer.lane, segment, mr_ckpt_part_size(slots), arena_bytes), 0);
    ck_assert_int_eq(mr_ckpt_part_attach(&worker_lane, segment, mr_ckpt_part_size(slots), arena_bytes), 0);
    mr_ckpt_part_adopt(&worker_lane);
    mr_ckpt_stream_init(&stream, &writer);
}

static void setup(void)
{
    setup_of(SLOTS, PART);
}

static void teardown(void)
{
    uint64_t arena_bytes = (writer.lane.slots + 1) * writer.lane.part_bytes;

    mr_ckpt_stream_close(&stream);
    munmap(segment, mr_ckpt_part_size(writer.lane.slots));
    munmap(writer.arena, arena_bytes);
    munmap(line, MR_PRODUCER_LINE_BYTES);
    close(writer.eventfd);
    free(writer.touched);
}

/* The byte at a place of the object. */
static unsigned char byte_at(uint64_t place)
{
    return (unsigned char)(place * 7 + place / 251);
}

struct worker {
    unsigned char *object; /* what was uploaded */
    size_t room;
    uint32_t fail_at; /* aborts and fails instead of taking this part; UINT32_MAX never */
    uint32_t failed;
};

static bool serve_one(struct worker *w)
{
    struct mr_ckpt_part_record record = {0};
    uint64_t number, held;

    if (!mr_ckpt_part_take(&worker_lane, &number, &held, &record.length))
        return false;
    if (number == w->fail_at) {
        mr_ckpt_part_abort(&worker_lane);
        mr_ckpt_part_put_back(&worker_lane, number, held);
        mr_ckpt_part_finish(&worker_lane, MR_CKPT_PART_FAILED, MR_E_DENIED, "no permission to write there", 0, 0);
        w->failed = 1;
    } else {
        ck_assert_uint_le(number * worker_lane.part_bytes + record.length, w->room);
        memcpy(w->object + number * worker_lane.part_bytes,
               writer.arena + mr_ckpt_part_offset(&worker_lane, mr_ckpt_part_slot(&worker_lane, number)),
               record.length);
        mr_ckpt_part_done(&worker_lane, number, held, &record);
    }
    mr_ckpt_part_wake_trainer(&worker_lane);
    return true;
}

/* As the write worker sleeps: asleep, another look, its eventfd. */
static void *run_worker(void *arg)
{
    struct worker *w = arg;
    uint64_t bytes;
    uint32_t parts;

    for (;;) {
        if (serve_one(w))
            continue;
        enum mr_fate fate = mr_ckpt_part_fate(&worker_lane);
        if (fate == MR_FATE_ABORTED)
            break;
        if (fate == MR_FATE_SEALED && mr_ckpt_part_is_at_rest(&worker_lane) && !serve_one(w)) {
            ck_assert_int_eq(mr_ckpt_part_totals(&worker_lane, &parts, &bytes), 0);
            mr_ckpt_part_finish(&worker_lane, MR_CKPT_PART_DONE, 0, "", 77, 88);
            break;
        }
        mr_wake_producer_asleep(line);
        if (!serve_one(w)) {
            struct pollfd wait = {.fd = writer.eventfd, .events = POLLIN};
            poll(&wait, 1, 100);
            uint64_t count;
            if (read(writer.eventfd, &count, sizeof count) < 0)
                count = 0;
        }
        mr_wake_producer_awake(line);
    }
    if (!w->failed && mr_ckpt_part_fate(&worker_lane) == MR_FATE_ABORTED)
        mr_ckpt_part_finish(&worker_lane, MR_CKPT_PART_FAILED, MR_E_IO, "aborted by the trainer", 0, 0);
    mr_ckpt_part_wake_trainer(&worker_lane);
    return NULL;
}

/* As python/src/writer.c does: the last answer. */
static enum mr_push write_all(uint64_t *place, size_t length)
{
    unsigned char *data = malloc(length ? length : 1);
    size_t at = 0;

    for (size_t i = 0; i < length; i++)
        data[i] = byte_at(*place + i);
    enum mr_push got;
    for (;;) {
        size_t taken = 0;
        if (mr_ckpt_stream_put(&stream, data + at, length - at)) {
            got = MR_PUSH_DONE;
            taken = length - at;
        } else {
            got = mr_ckpt_stream_push(&stream, data + at, length - at, &taken);
        }
        *place += taken;
        at += taken;
        if (got == MR_PUSH_DONE || got == MR_PUSH_ENDED || got == MR_PUSH_TOO_MANY)
            break;
        if (got == MR_PUSH_WAIT)
            mr_ckpt_stream_wait(&stream, 100);
    }
    free(data);
    return got;
}

static enum mr_ckpt_part_outcome outcome(uint32_t *code)
{

    while (mr_ckpt_stream_wait_outcome(&stream, 100) != MR_WAKE_CHANGED) {
    }
    uint32_t crc32c;
    uint64_t generation;
    return mr_ckpt_part_result(&writer.lane, code, NULL, &generation, &crc32c);
}

static void round_trip(const size_t *sizes, size_t count)
{
    struct worker w = {.room = 1 << 20, .fail_at = UINT32_MAX};
    uint64_t place = 0;

    w.object = calloc(w.room, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, run_worker, &w);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(write_all(&place, sizes[i]), MR_PUSH_DONE);
    ck_assert_uint_eq(stream.bytes, place);
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_SEALED);
    uint32_t code;
    ck_assert_int_eq(outcome(&code), MR_CKPT_PART_DONE);
    pthread_join(thread, NULL);
    uint64_t bytes;
    uint32_t parts;
    ck_assert_int_eq(mr_ckpt_part_totals(&writer.lane, &parts, &bytes), 0);
    ck_assert_uint_eq(bytes, place);
    ck_assert_uint_eq(parts, (place + PART - 1) / PART);
    ck_assert_uint_eq(mr_ckpt_stream_stored(&stream), place);
    for (uint64_t i = 0; i < place; i++)
        ck_assert_uint_eq(w.object[i], byte_at(i));
    free(w.object);
}

START_TEST(bytes_arrive_in_order)
{
    static const size_t small[] = {0, 1, 8, 0, 63, PART - 72, 1}, large[] = {10 * PART + 5, 3, 20 * PART, PART - 8},
                        exact[] = {PART}, two[] = {PART, PART}, one[] = {1}, none[] = {0};

    switch (_i) {
    case 0:
        round_trip(small, 7);
        break;
    case 1:
        round_trip(large, 4);
        break;
    case 2:
        round_trip(exact, 1);
        break;
    case 3:
        round_trip(two, 2);
        break;
    case 4:
        round_trip(one, 1);
        break;
    case 5:
        round_trip(none, 1);
        break; /* sealed with no part at all */
    }
}
END_TEST

START_TEST(random_sizes)
{
    size_t total = 0;

    srand(7);
    size_t sizes[100];
    for (size_t i = 0; i < 100; i++) {
        sizes[i] = (size_t)rand() % (i % 3 ? 200 : 3 * PART);
        total += sizes[i];
    }
    ck_assert_uint_lt(total, 1 << 20);
    round_trip(sizes, 100);
}
END_TEST

START_TEST(waits_for_a_slot_and_only_fills_for_a_byte)
{
    struct worker w = {.room = 1 << 20, .fail_at = UINT32_MAX};
    unsigned char *data = calloc(1, (SLOTS + 1) * PART);

    w.object = calloc(w.room, 1);
    size_t taken;
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, SLOTS * PART, &taken), MR_PUSH_DONE);
    ck_assert(!stream.filling); /* full parts are published, and no slot is taken for what may not come */
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, 0, &taken), MR_PUSH_DONE);
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, 1, &taken), MR_PUSH_WAIT);
    ck_assert_uint_eq(taken, 0);
    ck_assert_int_eq(mr_ckpt_stream_wait(&stream, 1), MR_WAKE_TIMEOUT);
    ck_assert_uint_eq(mr_ckpt_stream_stored(&stream), 0);
    ck_assert(serve_one(&w));
    ck_assert_uint_eq(mr_ckpt_stream_stored(&stream), PART);
    ck_assert_int_eq(mr_ckpt_stream_wait(&stream, 1000), MR_WAKE_CHANGED);
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, 1, &taken), MR_PUSH_DONE);
    ck_assert(stream.filling);
    ck_assert_uint_eq(stream.used, 1);
    ck_assert(!mr_ckpt_stream_put(&stream, data, PART - 1)); /* would make it full: push publishes it */
    ck_assert(mr_ckpt_stream_put(&stream, data, PART - 2));
    free(data);
    free(w.object);
}
END_TEST

START_TEST(a_failed_upload_ends_it)
{
    struct worker w = {.room = 1 << 20, .fail_at = 6};
    uint64_t place = 0;

    w.object = calloc(w.room, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, run_worker, &w);
    ck_assert_int_eq(write_all(&place, 200 * PART), MR_PUSH_ENDED); /* it waits for a slot that never gets free */
    ck_assert(mr_ckpt_stream_has_ended(&stream));
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_ABORTED);
    uint32_t code;
    ck_assert_int_eq(outcome(&code), MR_CKPT_PART_FAILED);
    ck_assert_uint_eq(code, MR_E_DENIED);
    pthread_join(thread, NULL);
    ck_assert(mr_ckpt_part_is_at_rest(&writer.lane));
    free(w.object);
}
END_TEST

START_TEST(abort_gives_everything_back)
{
    struct worker w = {.room = 1 << 20, .fail_at = UINT32_MAX};
    uint64_t place = 0;

    w.object = calloc(w.room, 1);
    ck_assert_int_eq(write_all(&place, PART + 100), MR_PUSH_DONE);
    ck_assert_int_eq(mr_ckpt_stream_abort(&stream), MR_FATE_ABORTED);
    ck_assert(mr_ckpt_part_is_at_rest(&writer.lane));
    ck_assert_int_eq(write_all(&place, 1), MR_PUSH_ENDED);
    pthread_t thread;
    pthread_create(&thread, NULL, run_worker, &w);
    uint32_t code;
    ck_assert_int_eq(outcome(&code), MR_CKPT_PART_FAILED);
    pthread_join(thread, NULL);
    free(w.object);
}
END_TEST

START_TEST(a_promise_is_not_aborted)
{
    uint64_t place = 0;

    ck_assert_int_eq(write_all(&place, 100), MR_PUSH_DONE);
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_SEALED);
    ck_assert_int_eq(mr_ckpt_stream_abort(&stream), MR_FATE_SEALED);
    ck_assert_int_eq(mr_ckpt_stream_wait_outcome(&stream, 1), MR_WAKE_TIMEOUT);
}
END_TEST

static void *adopt_when_it_is_waited_for(void *unused)
{
    (void)unused;
    while (atomic_load(&worker_lane.shared->want) != MR_CKPT_PART_WANT_WORKER)
        sched_yield();
    mr_ckpt_part_adopt(&worker_lane);
    mr_ckpt_part_wake_trainer(&worker_lane);
    return NULL;
}

START_TEST(a_promise_waits_for_its_worker)
{
    uint64_t place = 0;

    mr_ckpt_part_recover_worker(&worker_lane); /* the one of the setup has died */
    ck_assert_int_eq(write_all(&place, 100), MR_PUSH_DONE);
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_OPEN);
    ck_assert_int_eq(mr_ckpt_stream_wait_worker(&stream, 1), MR_WAKE_TIMEOUT);
    pthread_t thread;
    pthread_create(&thread, NULL, adopt_when_it_is_waited_for, NULL);
    while (mr_ckpt_stream_wait_worker(&stream, 10000) != MR_WAKE_CHANGED) {
    }
    pthread_join(thread, NULL);
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_SEALED);
    uint64_t bytes;
    uint32_t parts;
    ck_assert_int_eq(mr_ckpt_part_totals(&worker_lane, &parts, &bytes), 0);
    ck_assert_uint_eq(parts, 1);
    ck_assert_uint_eq(bytes, 100);
}
END_TEST

START_TEST(too_many_parts)
{
    struct worker w = {.fail_at = UINT32_MAX};
    unsigned char data[64] = {0};

    teardown();
    setup_of(64, sizeof data);
    w.room = (size_t)MR_CKPT_PARTS_MAX * sizeof data;
    w.object = calloc(w.room, 1);
    size_t taken;
    for (uint32_t i = 0; i < MR_CKPT_PARTS_MAX; i++) {
        ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, sizeof data, &taken), MR_PUSH_DONE);
        ck_assert(serve_one(&w));
    }
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, 0, &taken), MR_PUSH_DONE);
    ck_assert_int_eq(mr_ckpt_stream_push(&stream, data, 1, &taken), MR_PUSH_TOO_MANY);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "checkpoint.part_bytes"));
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_SEALED); /* exactly so many are allowed */
    free(w.object);
}
END_TEST

static unsigned resident(unsigned char *at, size_t bytes)
{
    unsigned char pages[8192];
    unsigned count = 0;

    ck_assert_uint_le(bytes / 4096, sizeof pages);
    ck_assert_int_eq(mincore(at, bytes, pages), 0);
    for (size_t i = 0; i < bytes / 4096; i++)
        count += pages[i] & 1;
    return count;
}

START_TEST(prefault_touches_its_range_and_no_other)
{
    const uint64_t chunk = MR_PREFAULT_CHUNK, offset = chunk + 8192, bytes = 2 * chunk;
    unsigned char *arena = shared_memory(8 * chunk);
    _Atomic uint8_t touched[9] = {0};
    struct mr_prefault *prefault = mr_prefault_new(arena, offset, bytes, touched);

    if (madvise(arena, 4096, 23 /* MADV_POPULATE_WRITE */) != 0) { /* before Linux 5.14 it does nothing */
        mr_prefault_destroy(prefault);
        munmap(arena, 8 * chunk);
        return;
    }
    ck_assert_ptr_nonnull(prefault);
    mr_prefault_ahead(prefault, bytes);
    mr_prefault_ahead(prefault, 1); /* not back */
    while (resident(arena + offset, bytes) < bytes / 4096)
        usleep(1000);
    mr_prefault_destroy(prefault);
    ck_assert_uint_eq(resident(arena, offset), 1); /* the page above */
    ck_assert_uint_eq(resident(arena + offset + bytes, 8 * chunk - offset - bytes), 0);
    ck_assert_uint_eq(touched[1], 0); /* half of it is a neighbour's */
    ck_assert_uint_eq(touched[2], 1);
    ck_assert_uint_eq(touched[3], 0);
    mr_prefault_destroy(mr_prefault_new(arena, offset, bytes, touched)); /* at once, while it waits */
    mr_prefault_destroy(NULL);
    munmap(arena, 8 * chunk);
}
END_TEST

START_TEST(large_objects_are_prefaulted)
{
    struct worker w = {.fail_at = UINT32_MAX};
    uint64_t place = 0;

    teardown();
    setup_of(4, (uint64_t)4 << 20);
    w.room = 24 << 20;
    w.object = calloc(w.room, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, run_worker, &w);
    ck_assert_int_eq(write_all(&place, 100), MR_PUSH_DONE);
    ck_assert_ptr_null(stream.prefault);
    ck_assert_int_eq(write_all(&place, 20 << 20), MR_PUSH_DONE);
    ck_assert_ptr_nonnull(stream.prefault);
    ck_assert_int_eq(mr_ckpt_stream_seal(&stream), MR_FATE_SEALED);
    uint32_t code;
    ck_assert_int_eq(outcome(&code), MR_CKPT_PART_DONE);
    pthread_join(thread, NULL);
    for (uint64_t i = 0; i < place; i += 61)
        ck_assert_uint_eq(w.object[i], byte_at(i));
    free(w.object);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("ckpt_stream");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, bytes_arrive_in_order, 0, 6);
    tcase_add_test(tests, random_sizes);
    tcase_add_test(tests, waits_for_a_slot_and_only_fills_for_a_byte);
    tcase_add_test(tests, a_failed_upload_ends_it);
    tcase_add_test(tests, abort_gives_everything_back);
    tcase_add_test(tests, a_promise_is_not_aborted);
    tcase_add_test(tests, a_promise_waits_for_its_worker);
    tcase_add_test(tests, too_many_parts);
    tcase_add_test(tests, prefault_touches_its_range_and_no_other);
    tcase_add_test(tests, large_objects_are_prefaulted);
    return mr_suite_run("ckpt_stream", tests);
}
