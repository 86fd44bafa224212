/* test_range_reader.c - which blocks a reader asks for, keeps and lets go of. Tickets are served by lane-level
 * calls. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/error.h"
#include "shm/ring/range_reader.h"
#include "tests/ring/world.h"
#include "tests/unit/suite.h"

#define BLOCK  64u
#define SIZE   (40u * BLOCK + 10u)
#define BLOCKS 41u

static struct world world;
static struct mr_range_reader *reader;
static struct mr_lane *lane; /* its present one */
static unsigned char object[SIZE];
static unsigned char out[SIZE];
static uint64_t got;
static unsigned lanes, served;     /* opened; blocks served so far */
static unsigned times[BLOCKS + 1]; /* that a block was served */
static uint64_t next_offset;
static uint64_t asked_bytes; /* of what was served */
static bool exact;

static uint32_t whole_crc(void)
{
    for (unsigned i = 0; i < SIZE; i++)
        object[i] = (unsigned char)(i * 131 + i / 251);
    return mr_crc32c(0, object, SIZE);
}

static void set_up(uint32_t crc, bool has_crc)
{
    struct mr_range_source source = {.label = "gs://b/name",
                                     .dataset = 3,
                                     .object = 7,
                                     .size = SIZE,
                                     .block_bytes = BLOCK,
                                     .exact = exact,
                                     .crc32c = crc,
                                     .has_crc32c = has_crc};
    world_init(&world, 2, 1 << 20, 4096);
    memset(times, 0, sizeof times);
    lane = NULL;
    lanes = served = 0;
    next_offset = asked_bytes = 0;
    reader = mr_range_reader_new(&source);
    ck_assert_ptr_nonnull(reader);
}

static void tear_down(void)
{
    mr_range_reader_destroy(reader);
    exact = false;
    if (lane)
        ck_assert(mr_lane_is_empty(lane));
    world_close(&world);
}

static void give_lane(void)
{
    struct mr_views *views = world_views(&world);
    lane = &world.lanes[world_open_lane(&world, MR_RANGE_LANE_WINDOW, 1 << 20, 0)];
    struct mr_lane copy = *lane;
    struct mr_consumer *consumer = mr_consumer_new(&copy, views);
    ck_assert_ptr_nonnull(consumer);
    mr_views_unref(views);
    mr_range_reader_give(reader, consumer);
    lanes++;
}

static unsigned pending(void)
{
    unsigned n = 0;
    for (uint32_t slot = 0; lane && slot < lane->window; slot++)
        n += mr_word_state(mr_lane_load(lane, slot)) == MR_PENDING;
    return n;
}

/* The lowest number that is PENDING. */
static bool find_head(uint64_t *number, uint64_t *word)
{
    bool found = false;
    for (uint32_t slot = 0; slot < lane->window; slot++) {
        uint64_t seen = mr_lane_load(lane, slot), n = mr_lane_number(lane, slot, mr_word_lap(seen));
        if (mr_word_state(seen) != MR_PENDING || (found && mr_lane_distance(lane, n, *number) >= 0))
            continue;
        *number = n;
        *word = seen;
        found = true;
    }
    return found;
}

/* Serves the lowest PENDING number: its block. */
static uint64_t serve_one(void)
{
    uint64_t number = 0, word = 0;
    ck_assert(find_head(&number, &word));
    uint32_t slot = mr_lane_slot(lane, number);
    struct mr_request request;
    uint64_t filling;
    ck_assert(mr_lane_claim(lane, slot, word, 0, &filling, &request));
    ck_assert_uint_eq(request.dataset, 3);
    ck_assert_uint_eq(request.object, 7);
    ck_assert(exact || request.offset % BLOCK == 0);
    ck_assert_uint_ge(request.length, 1);
    ck_assert_uint_le(request.length, BLOCK);
    ck_assert_uint_le(request.offset + request.length, SIZE);
    struct mr_descriptor desc = {.extent_offset = next_offset,
                                 .extent_length = request.length,
                                 .length = request.length,
                                 .crc32c = mr_crc32c(0, object + request.offset, request.length)};
    memcpy((char *)world.arena[0] + next_offset, object + request.offset, request.length);
    next_offset = (next_offset + BLOCK) % (1 << 20);
    mr_lane_describe(lane, slot, &desc);
    uint64_t ready;
    mr_lane_publish(lane, slot, filling, &ready);
    mr_wake_consumer(lane);
    served++;
    asked_bytes += request.length;
    times[request.offset / BLOCK]++;
    return request.offset / BLOCK;
}

/* As a fetch worker would, and as the binding does. */
static enum mr_range_result read_at(uint64_t offset, uint64_t length)
{
    got = 0;
    uint64_t part;
    enum mr_range_result result;
    for (;;) {
        result = mr_range_reader_read(reader, offset + got, out + got, length - got, 0, &part);
        got += part;
        if (result == MR_RANGE_LANE)
            give_lane();
        else if (result == MR_RANGE_WAIT)
            serve_one();
        else
            return result;
    }
}

static void expect(uint64_t offset, uint64_t length)
{
    uint64_t left = offset < SIZE ? SIZE - offset : 0;
    ck_assert_int_eq(read_at(offset, length), MR_RANGE_OK);
    ck_assert_uint_eq(got, length < left ? length : left);
    ck_assert_mem_eq(out, object + (offset < SIZE ? offset : 0), got);
}

START_TEST(a_read_asks_for_what_it_covers)
{
    set_up(whole_crc(), true);
    uint64_t part;
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 5 * BLOCK, 0, &part), MR_RANGE_LANE);
    give_lane();
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 5 * BLOCK, 0, &part), MR_RANGE_WAIT);
    ck_assert_uint_eq(pending(), 5);
    ck_assert_uint_eq(part, 0);
    ck_assert_uint_eq(serve_one(), 0);
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 5 * BLOCK, 0, &part), MR_RANGE_WAIT);
    ck_assert_uint_eq(part, BLOCK);
    tear_down();
}
END_TEST

START_TEST(the_window_bounds_what_is_asked_for)
{
    set_up(whole_crc(), true);
    give_lane();
    uint64_t part;
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, SIZE, 0, &part), MR_RANGE_WAIT);
    ck_assert_uint_eq(pending(), MR_RANGE_WINDOW);
    expect(0, SIZE);
    ck_assert_uint_eq(served, BLOCKS);
    tear_down();
}
END_TEST

START_TEST(steps_forward_ask_for_more_each_time)
{
    for (unsigned way = 0; way < 2; way++) {
        exact = way == 1;
        set_up(whole_crc(), true);
        expect(0, 10);
        ck_assert_uint_eq(served + pending(), 1);
        expect(BLOCK, 10);
        ck_assert_uint_eq(served + pending(), 5);
        expect(2 * BLOCK, 10);
        ck_assert_uint_eq(served + pending(), 10);
        expect(3 * BLOCK, 10);
        ck_assert_uint_eq(served + pending(), 15);
        expect(20 * BLOCK, 10); /* elsewhere: a lane of its own, and nothing ahead */
        ck_assert_uint_eq(lanes, 2);
        ck_assert_uint_eq(pending(), 0);
        tear_down();
    }
}
END_TEST

START_TEST(exact_reads_elsewhere_ask_for_themselves)
{
    exact = true;
    set_up(whole_crc(), true);
    static const uint64_t places[] = {SIZE - 5, 700, 30, 800, 2 * BLOCK - 2, 1900, 1000};
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++) {
        expect(places[i], 5);
        bytes += got;
        ck_assert_uint_eq(served, i + 1); /* one request, also across the end of a block */
        ck_assert_uint_eq(asked_bytes, bytes);
        ck_assert_uint_eq(pending(), 0);
    }
    ck_assert_uint_eq(lanes, 1);
    expect(1005, 5); /* and from there on */
    ck_assert_uint_gt(served + pending(), sizeof places / sizeof places[0] + 1);
    tear_down();
}
END_TEST

START_TEST(ranges_in_order_have_the_checksum_of_the_whole)
{
    for (unsigned way = 0; way < 4; way++) {
        unsigned wrong = way % 2;
        exact = true;
        set_up(whole_crc() ^ wrong, true);
        expect(3, 4); /* counts for nothing */
        if (way >= 2)
            expect(SIZE - 8, 8); /* is kept, and counts when its turn comes */
        expect(0, 1);
        enum mr_range_result result = MR_RANGE_OK;
        for (unsigned at = 0; at < SIZE && result == MR_RANGE_OK; at += 9)
            result = read_at(at, 9);
        ck_assert_int_eq(result, wrong ? MR_RANGE_FAILED : MR_RANGE_OK);
        ck_assert(!wrong || mr_error_code() == MR_E_CORRUPT);
        tear_down();
    }
}
END_TEST

START_TEST(small_reads_near_each_other_fetch_a_block_once)
{
    set_up(whole_crc(), true);
    expect(SIZE - 22, 22); /* a zip file: its end, its start, its members */
    expect(0, 4);
    expect(SIZE - 40, 18);
    expect(10, 30);
    expect(3 * BLOCK + 5, 2);
    expect(SIZE - 22, 22);
    expect(5, 1);
    ck_assert_uint_eq(served, 4); /* the end takes two: it is 10 bytes into its last block */
    for (unsigned i = 0; i < BLOCKS; i++)
        ck_assert_uint_le(times[i], 1);
    tear_down();
}
END_TEST

START_TEST(the_block_that_was_not_used_for_longest_goes)
{
    set_up(whole_crc(), true);
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
        expect(2 * i * BLOCK, 1);
    expect(0, 1);
    expect(20 * BLOCK, 1); /* in place of block 2 */
    expect(0, 1);
    ck_assert_uint_eq(times[0], 1);
    expect(2 * BLOCK, 1);
    ck_assert_uint_eq(times[2], 2);
    tear_down();
}
END_TEST

START_TEST(blocks_that_were_passed_go_first)
{
    set_up(whole_crc(), true);
    expect(0, 4);
    expect(SIZE - 8, 8); /* as torch.load does: the directory at the end, which is needed to the last */
    for (unsigned at = 4; at < SIZE; at += 30)
        expect(at, 30);
    expect(SIZE - 8, 8);
    ck_assert_uint_eq(served, BLOCKS);
    tear_down();
}
END_TEST

START_TEST(a_block_that_was_read_in_one_go_is_let_go)
{
    set_up(whole_crc(), true);
    expect(0, 3 * BLOCK);
    for (uint32_t slot = 0; slot < lane->window; slot++)
        ck_assert_int_ne(mr_word_state(mr_lane_load(lane, slot)), MR_HELD);
    expect(3 * BLOCK, 5);
    uint64_t held = 0;
    for (uint32_t slot = 0; slot < lane->window; slot++)
        held += mr_word_state(mr_lane_load(lane, slot)) == MR_HELD;
    ck_assert_uint_eq(held, 1);
    tear_down();
}
END_TEST

START_TEST(the_end_of_the_object)
{
    set_up(whole_crc(), true);
    expect(SIZE - 5, 100);
    expect(SIZE, 1);
    expect(SIZE + 1000, 1);
    expect(UINT64_MAX, 1);
    expect(0, 0);
    tear_down();
}
END_TEST

START_TEST(many_random_reads)
{
    for (unsigned seed = 0; seed < 100; seed++) {
        exact = seed % 2 == 1;
        set_up(whole_crc(), true);
        srandom(seed);
        for (unsigned i = 0; i < 40; i++)
            expect((uint64_t)random() % (SIZE + 5), (uint64_t)random() % (random() % 4 ? 3 * BLOCK : SIZE));
        tear_down();
    }
}
END_TEST

START_TEST(the_whole_has_another_checksum)
{
    set_up(whole_crc() ^ 1, true);
    expect(10 * BLOCK, SIZE);
    expect(0, 9 * BLOCK);
    ck_assert_int_eq(read_at(0, SIZE), MR_RANGE_FAILED);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "gs://b/name"));
    ck_assert_int_eq(read_at(0, 1), MR_RANGE_FAILED);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    tear_down();
    set_up(1, false);
    expect(0, SIZE);
    tear_down();
}
END_TEST

START_TEST(a_block_that_comes_again_is_another)
{
    set_up(whole_crc(), true);
    expect(0, BLOCK);
    object[3] ^= 1;
    ck_assert_int_eq(read_at(0, 10), MR_RANGE_FAILED);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    tear_down();
}
END_TEST

static void fail_one(const char *text)
{
    uint64_t number = 0, word = 0;
    ck_assert(find_head(&number, &word));
    uint32_t slot = mr_lane_slot(lane, number);
    struct mr_request request;
    uint64_t filling;
    ck_assert(mr_lane_claim(lane, slot, word, 0, &filling, &request));
    mr_lane_fail(lane, slot, filling, MR_E_CHANGED, text);
}

START_TEST(a_failed_block_is_an_error_where_it_is_needed)
{
    set_up(whole_crc(), true);
    give_lane();
    uint64_t part;
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 4 * BLOCK, 0, &part), MR_RANGE_WAIT);
    serve_one();
    fail_one("replaced");
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 4 * BLOCK, 0, &part), MR_RANGE_FAILED);
    ck_assert_uint_eq(part, BLOCK);
    ck_assert_int_eq(mr_error_code(), MR_E_CHANGED);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "replaced"));
    expect(0, SIZE); /* a second look */
    ck_assert_uint_eq(lanes, 2);
    tear_down();
}
END_TEST

START_TEST(a_failed_block_that_nobody_needs_is_none)
{
    set_up(whole_crc(), true);
    give_lane();
    uint64_t part;
    ck_assert_int_eq(mr_range_reader_read(reader, 0, out, 4 * BLOCK, 0, &part), MR_RANGE_WAIT);
    fail_one("no matter");
    expect(BLOCK, 10); /* it was asked for already, behind the failed one */
    ck_assert_uint_eq(lanes, 1);
    expect(0, SIZE);
    tear_down();
}
END_TEST

START_TEST(a_forked_child_is_inert)
{
    set_up(whole_crc(), true);
    expect(3, 10);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        bool inert = read_at(3, 10) == MR_RANGE_FAILED && mr_error_code() == MR_E_USAGE;
        mr_range_reader_destroy(reader);
        _exit(inert ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect(0, SIZE);
    tear_down();
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("range_reader");
    tcase_add_test(tcase, a_read_asks_for_what_it_covers);
    tcase_add_test(tcase, the_window_bounds_what_is_asked_for);
    tcase_add_test(tcase, steps_forward_ask_for_more_each_time);
    tcase_add_test(tcase, exact_reads_elsewhere_ask_for_themselves);
    tcase_add_test(tcase, ranges_in_order_have_the_checksum_of_the_whole);
    tcase_add_test(tcase, small_reads_near_each_other_fetch_a_block_once);
    tcase_add_test(tcase, the_block_that_was_not_used_for_longest_goes);
    tcase_add_test(tcase, blocks_that_were_passed_go_first);
    tcase_add_test(tcase, a_block_that_was_read_in_one_go_is_let_go);
    tcase_add_test(tcase, the_end_of_the_object);
    tcase_add_test(tcase, many_random_reads);
    tcase_add_test(tcase, the_whole_has_another_checksum);
    tcase_add_test(tcase, a_block_that_comes_again_is_another);
    tcase_add_test(tcase, a_failed_block_is_an_error_where_it_is_needed);
    tcase_add_test(tcase, a_failed_block_that_nobody_needs_is_none);
    tcase_add_test(tcase, a_forked_child_is_inert);
    return mr_suite_run("range_reader", tcase);
}
