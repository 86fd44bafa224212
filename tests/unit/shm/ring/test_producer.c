/* test_producer.c - the producer's policy, rule by rule. Lanes are driven by lane-level calls. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "shm/ring/producer_impl.h"
#include "tests/ring/world.h"
#include "tests/unit/suite.h"

#define PAGE ((uint64_t)MR_ARENA_PAGE)
#define ALL  UINT64_MAX

static struct world world;
static struct mr_producer *producers[3];
static struct mr_job job;

static void add_lane(struct mr_producer *producer, unsigned index)
{
    struct mr_lane lane = world.lanes[index];

    ck_assert_int_eq(mr_producer_add_lane(producer, &lane), 0);
}

/* Arenas of a reserve of reserve_pages and `pages` more; two lanes of `window`, seen by all producers. */
static void set_up(unsigned count, unsigned reserve_pages, unsigned pages, uint32_t window)
{
    world_init(&world, count, (reserve_pages + pages) * PAGE, reserve_pages * PAGE);
    for (unsigned i = 0; i < 2; i++)
        world_open_lane(&world, window, 1 << 30, 0);
    for (unsigned i = 0; i < count; i++) {
        producers[i] = world_producer(&world, i);
        for (unsigned k = 0; k < 2; k++)
            add_lane(producers[i], k);
    }
}

static void tear_down(void)
{
    for (unsigned i = 0; i < world.producers; i++)
        mr_producer_destroy(producers[i]);
    world_close(&world);
}

static void post_flagged(unsigned lane, uint64_t number, uint64_t bytes, uint32_t flags)
{
    struct mr_request request = {.object = number, .length = bytes, .flags = flags};

    ck_assert(mr_lane_post(&world.lanes[lane], number, &request));
    atomic_store(&world.lanes[lane].shared->posted, number + 1);
}

static void post(unsigned lane, uint64_t number, uint64_t bytes)
{
    post_flagged(lane, number, bytes, 0);
}

static enum mr_state state_of(unsigned lane, uint64_t number)
{
    return mr_word_state(mr_lane_load(&world.lanes[lane], mr_lane_slot(&world.lanes[lane], number)));
}

static int next_job(unsigned producer, unsigned tickets, uint64_t bytes)
{
    return mr_producer_next_job(producers[producer], tickets, bytes, 0, &job);
}

static void publish_job(unsigned producer)
{
    for (unsigned i = 0; i < job.count; i++)
        mr_producer_publish(producers[producer], &job.claims[i], job.claims[i].bytes, 1, 2, 0);
}

static uint64_t take(unsigned lane, uint64_t number, struct mr_descriptor *desc, bool *failed)
{
    uint64_t word;

    ck_assert(mr_lane_take(&world.lanes[lane], number, &word, desc, failed));
    atomic_store(&world.lanes[lane].shared->taken, number + 1);
    return word;
}

static void consume(unsigned lane, uint64_t number)
{
    struct mr_descriptor desc;
    bool failed;
    uint64_t word = take(lane, number, &desc, &failed);

    ck_assert(mr_lane_release(&world.lanes[lane], mr_lane_slot(&world.lanes[lane], number), word));
}

START_TEST(a_job_is_consecutive_and_contiguous)
{
    set_up(1, 4, 100, 64);
    for (uint64_t n = 0; n < 40; n++)
        post(0, n, 1000 + n);
    ck_assert_int_eq(next_job(0, 5, ALL), 1);
    ck_assert_uint_eq(job.count, 5);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_uint_eq(job.claims[i].number, i);
        ck_assert_uint_eq(job.claims[i].request.object, i);
        ck_assert_uint_eq(job.claims[i].bytes, 1000 + i);
        ck_assert(!job.claims[i].reserve);
        if (i)
            ck_assert_ptr_eq(job.claims[i].dest, (char *)job.claims[i - 1].dest + job.claims[i - 1].bytes);
    }
    ck_assert_int_eq(next_job(0, 32, 3000), 1); /* 1005 + 1006 <= 3000 < 3 of them */
    ck_assert_uint_eq(job.count, 2);
    ck_assert_int_eq(next_job(0, 32, 10), 1); /* one may always be larger */
    ck_assert_uint_eq(job.count, 1);
    ck_assert_int_eq(next_job(0, 100, ALL), 1);
    ck_assert_uint_eq(job.count, 32);
    ck_assert_int_eq(next_job(0, 100, ALL), 0);
    tear_down();
}
END_TEST

START_TEST(a_job_shrinks_to_what_fits)
{
    set_up(1, 2, 5, 16);
    for (uint64_t n = 0; n < 8; n++)
        post(0, n, 2 * PAGE);
    ck_assert_int_eq(next_job(0, 8, ALL), 1);
    ck_assert_uint_eq(job.count, 2);          /* 4 of 5 pages */
    ck_assert_int_eq(next_job(0, 8, ALL), 0); /* not the head: the reserve is not for it */
    publish_job(0);
    ck_assert_int_eq(next_job(0, 8, ALL), 1); /* now it is */
    ck_assert_uint_eq(job.count, 1);
    ck_assert(job.claims[0].reserve);
    ck_assert_int_eq(next_job(0, 8, ALL), 0);
    publish_job(0);
    ck_assert_int_eq(next_job(0, 8, ALL), 0); /* a head, but nobody waits for it */
    tear_down();
}
END_TEST

START_TEST(blocks_have_homes)
{
    set_up(2, 1, 200, 256);
    for (uint64_t n = 0; n < 128; n++)
        post(0, n, 100);
    ck_assert_int_eq(next_job(0, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 0);
    ck_assert_uint_eq(job.count, 32);
    ck_assert_int_eq(next_job(0, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 64); /* its own, before its neighbour's */
    ck_assert_int_eq(next_job(1, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 32);
    ck_assert_int_eq(next_job(1, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 96);
    ck_assert_int_eq(next_job(0, 32, ALL), 0);
    ck_assert_int_eq(next_job(1, 32, ALL), 0);
    tear_down();
}
END_TEST

START_TEST(stealing_is_near_the_head_or_from_the_dead)
{

    set_up(2, 1, 200, 256);
    for (uint64_t n = 0; n < 128; n++)
        post(0, n, 100);
    ck_assert_int_eq(next_job(1, 32, ALL), 1); /* 32.. is its own */
    ck_assert_int_eq(next_job(1, 32, ALL), 1); /* 96.. */
    ck_assert_int_eq(next_job(1, 2, ALL), 1);  /* stolen: the head's block */
    ck_assert_uint_eq(job.claims[0].number, 0);
    ck_assert_int_eq(next_job(1, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 2);
    ck_assert_uint_eq(job.count, 30);          /* no further than the block */
    ck_assert_int_eq(next_job(1, 32, ALL), 0); /* 64.. is two jobs from the head */
    atomic_store(&world.board->producer[0].alive, 0);
    ck_assert_int_eq(next_job(1, 32, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 64);
    struct mr_producer_stats stats;
    mr_producer_stats(producers[1], &stats);
    ck_assert_uint_eq(stats.stolen_blocks, 3);
    tear_down();
}
END_TEST

START_TEST(nearest_to_its_head_first)
{
    set_up(1, 1, 100, 64);
    for (uint64_t n = 0; n < 8; n++)
        post(0, n, 100);
    ck_assert_int_eq(next_job(0, 3, ALL), 1); /* lane 0: 0 to 2 in flight, 3 is three from its head */
    ck_assert_uint_eq(job.claims[0].number, 0);
    for (uint64_t n = 0; n < 2; n++)
        post(1, n, 100);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    ck_assert_ptr_ne(job.claims[0].lane, NULL);
    ck_assert_int_eq(state_of(1, 0), MR_FILLING);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    ck_assert_int_eq(state_of(1, 1), MR_FILLING); /* one from its head */
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    ck_assert_int_eq(state_of(0, 3), MR_FILLING);
    tear_down();
}
END_TEST

/* The smallest arena. Lane 1's ticket lies READY in the reserve when lane 0's consumer waits. */
static void fill_up(struct mr_descriptor *desc)
{

    set_up(1, 1, 1, 8);
    post(0, 0, PAGE);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    publish_job(0);
    bool failed;
    take(0, 0, desc, &failed); /* a view that is kept */
    post(1, 0, PAGE);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    ck_assert(job.claims[0].reserve);
    publish_job(0);
    post(0, 1, PAGE);
    ck_assert_int_eq(next_job(0, 1, ALL), 0); /* nobody waits for it */
}

START_TEST(taking_back_for_a_wanted_head)
{
    struct mr_descriptor desc;

    fill_up(&desc);
    atomic_store(&world.lanes[0].shared->want, 2);
    atomic_store(&world.lanes[1].shared->want, 1); /* its consumer asks for what lies in the reserve */
    ck_assert_int_eq(next_job(0, 1, ALL), 0);
    ck_assert_int_eq(state_of(1, 0), MR_READY);
    atomic_store(&world.lanes[1].shared->want, 0);
    ck_assert_int_eq(next_job(0, 4, ALL), 1);
    ck_assert_int_eq(state_of(1, 0), MR_PENDING);
    ck_assert_int_eq(state_of(0, 1), MR_FILLING);
    publish_job(0);
    bool failed;
    take(0, 1, &desc, &failed);
    ck_assert_uint_eq(desc.flags, MR_DESC_RESERVE);
    ck_assert(mr_lane_release(&world.lanes[0], 1, mr_lane_load(&world.lanes[0], 1)));
    atomic_store(&world.lanes[0].shared->want, 0);
    ck_assert_int_eq(next_job(0, 1, ALL), 1); /* the one that was taken back */
    ck_assert_int_eq(state_of(1, 0), MR_FILLING);
    struct mr_producer_stats stats;
    mr_producer_stats(producers[0], &stats);
    ck_assert_uint_eq(stats.take_backs, 1);
    ck_assert_uint_eq(stats.reserve_uses, 3);
    tear_down();
}
END_TEST

START_TEST(poisonous_tickets_run_alone)
{
    set_up(1, 1, 50, 16);
    for (uint64_t n = 0; n < 3; n++)
        post(0, n, 100);
    atomic_store(&world.lanes[0].tickets[1].word, mr_word(MR_PENDING, 0, 2, 0));
    ck_assert_int_eq(next_job(0, 8, ALL), 1);
    ck_assert_uint_eq(job.count, 1); /* a job ends before it */
    ck_assert(!job.solo);
    struct mr_job first = job;
    ck_assert_int_eq(next_job(0, 8, ALL), 0); /* it waits for the other, and nothing passes it */
    mr_producer_publish(producers[0], &first.claims[0], 100, 0, 0, 0);
    ck_assert_int_eq(mr_producer_next_job(producers[0], 8, ALL, 1, &job), 0); /* the caller still has a transfer */
    ck_assert_int_eq(next_job(0, 8, ALL), 1);
    ck_assert(job.solo);
    ck_assert_uint_eq(job.count, 1);
    ck_assert_uint_eq(job.claims[0].number, 1);
    first = job;
    ck_assert_int_eq(next_job(0, 8, ALL), 0); /* nothing beside it */
    ck_assert_int_eq(mr_producer_sleep(producers[0]), 0);
    mr_producer_awake(producers[0]);
    mr_producer_fail(producers[0], &first.claims[0], MR_E_IO, "once more");
    ck_assert_int_eq(next_job(0, 8, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 2);
    tear_down();
}
END_TEST

START_TEST(sizes_that_cannot_be_had_fail_the_ticket)
{

    set_up(1, 2, 6, 16);
    post_flagged(0, 0, 100, WORLD_NO_SIZE);
    post(0, 1, 2 * PAGE + 1);
    post(0, 2, 0); /* the world's own size for it */
    ck_assert_int_eq(next_job(0, 8, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 2);
    struct mr_descriptor desc;
    bool failed;
    take(0, 0, &desc, &failed);
    ck_assert(failed);
    ck_assert_uint_eq(desc.code, MR_E_NOT_FOUND);
    char text[MR_FAIL_TEXT + 16];
    mr_lane_fail_reason(&world.lanes[0], 0, &desc, text);
    ck_assert_ptr_nonnull(strstr(text, "not in the index"));
    take(0, 1, &desc, &failed);
    ck_assert(failed);
    ck_assert_uint_eq(desc.code, MR_E_CONFIG);
    mr_lane_fail_reason(&world.lanes[0], 1, &desc, text);
    ck_assert_ptr_nonnull(strstr(text, "arena_bytes"));
    struct mr_producer_stats stats;
    mr_producer_stats(producers[0], &stats);
    ck_assert_uint_eq(stats.refused, 2);
    tear_down();
}
END_TEST

START_TEST(more_bytes_than_room_is_no_delivery)
{

    set_up(1, 1, 4, 8);
    post(0, 0, 100);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    mr_producer_publish(producers[0], &job.claims[0], 101, 0, 0, 0);
    struct mr_descriptor desc;
    bool failed;
    take(0, 0, &desc, &failed);
    ck_assert(failed);
    ck_assert_uint_eq(desc.code, MR_E_INTERNAL);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 5 * PAGE);
    tear_down();
}
END_TEST

START_TEST(given_back_and_claimed_again)
{
    set_up(1, 1, 4, 8);
    post(0, 0, 100);
    post(0, 1, 100);
    ck_assert_int_eq(next_job(0, 2, ALL), 1);
    mr_producer_give_back(producers[0], &job.claims[1]);
    mr_producer_give_back(producers[0], &job.claims[0]);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 5 * PAGE);
    ck_assert_int_eq(next_job(0, 2, ALL), 1);
    ck_assert_uint_eq(job.count, 2);
    ck_assert(!mr_producer_claim_is_stale(&job.claims[0]));
    mr_lane_close(&world.lanes[0], false);
    ck_assert(mr_producer_claim_is_stale(&job.claims[0]));
    mr_producer_give_back(producers[0], &job.claims[0]);
    mr_producer_publish(producers[0], &job.claims[1], 100, 1, 2, 0);
    ck_assert(mr_lane_is_empty(&world.lanes[0]));
    tear_down();
}
END_TEST

START_TEST(memory_returns_when_the_last_of_a_job_is_released)
{
    set_up(1, 1, 8, 16);
    for (uint64_t n = 0; n < 4; n++)
        post(0, n, 100);
    ck_assert_int_eq(next_job(0, 4, ALL), 1);
    publish_job(0);
    for (uint64_t n = 0; n < 4; n++) {
        ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 8 * PAGE); /* they share a page */
        consume(0, n);
    }
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 9 * PAGE);
    tear_down();
}
END_TEST

START_TEST(a_restart_keeps_what_is_named)
{

    set_up(1, 1, 8, 16);
    for (uint64_t n = 0; n < 6; n++)
        post(0, n, PAGE / 2);
    post(1, 0, PAGE);
    ck_assert_int_eq(next_job(0, 4, ALL), 1); /* two pages: 0 HELD, 1 READY, 2 released, 3 READY */
    publish_job(0);
    struct mr_descriptor desc;
    bool failed;
    take(0, 0, &desc, &failed);
    take(0, 1, &desc, &failed);
    ck_assert(mr_lane_release(&world.lanes[0], 1, mr_lane_load(&world.lanes[0], 1)));
    ck_assert_int_eq(next_job(0, 1, ALL), 1); /* lane 1: READY, then in a closed lane HELD */
    publish_job(0);
    take(1, 0, &desc, &failed);
    mr_lane_close(&world.lanes[1], false);
    ck_assert_int_eq(next_job(0, 1, ALL), 1); /* 4: FILLING when it dies */
    /* 5: an old descriptor under a HELD that was FAILED by the supervisor names nothing */
    world.lanes[0].tickets[5].desc = (struct mr_descriptor){.extent_offset = 3 * PAGE, .extent_length = PAGE};
    uint64_t poisoned = mr_lane_load(&world.lanes[0], 5);
    ck_assert(mr_lane_poison(&world.lanes[0], 5, poisoned, MR_E_IO, "poison"));
    atomic_store(&world.lanes[0].tickets[5].word, mr_word(MR_HELD, 0, MR_ATTEMPT_POISON, 0));

    mr_producer_destroy(producers[0]);
    ck_assert_uint_eq(mr_lane_recover(&world.lanes[0], 0), 1);
    ck_assert_uint_eq(mr_lane_recover(&world.lanes[1], 0), 0);
    producers[0] = world_producer(&world, 0);
    for (unsigned k = 0; k < 2; k++)
        add_lane(producers[0], k);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), (9 - 3) * PAGE);
    ck_assert(mr_lane_release(&world.lanes[1], 0, mr_lane_load(&world.lanes[1], 0)));
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), (9 - 2) * PAGE);
    ck_assert_int_eq(next_job(0, 4, ALL), 1); /* 4 again, attempt 1 */
    ck_assert_uint_eq(mr_word_attempt(job.claims[0].filling), 1);
    tear_down();
}
END_TEST

START_TEST(memory_of_another_division_is_not_adopted)
{
    set_up(1, 1, 8, 16);
    post(0, 0, PAGE);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    publish_job(0);
    mr_producer_destroy(producers[0]);
    world.division++;
    producers[0] = world_producer(&world, 0);
    for (unsigned k = 0; k < 2; k++)
        add_lane(producers[0], k);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 9 * PAGE);
    tear_down();
}
END_TEST

START_TEST(lanes_are_dropped_when_nothing_is_left)
{

    set_up(1, 1, 8, 16);
    post(0, 0, 100);
    post(0, 1, 100);
    ck_assert(!mr_producer_drop_lane(producers[0], 0)); /* open */
    ck_assert_int_eq(next_job(0, 2, ALL), 1);
    mr_producer_publish(producers[0], &job.claims[0], 100, 0, 0, 0);
    struct mr_descriptor desc;
    bool failed;
    uint64_t word = take(0, 0, &desc, &failed);
    mr_lane_close(&world.lanes[0], false);
    ck_assert(!mr_producer_drop_lane(producers[0], 0)); /* a claim */
    mr_producer_give_back(producers[0], &job.claims[1]);
    ck_assert(!mr_producer_drop_lane(producers[0], 0)); /* a view */
    ck_assert(mr_lane_release(&world.lanes[0], 0, word));
    ck_assert(mr_producer_drop_lane(producers[0], 0));
    ck_assert(!mr_producer_drop_lane(producers[0], 0));
    ck_assert_uint_eq(producers[0]->lane_count, 1);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 9 * PAGE);
    tear_down();
}
END_TEST

START_TEST(sleep_sees_work_whatever_the_hints_say)
{
    set_up(1, 1, 8, 16);
    ck_assert_int_eq(mr_producer_sleep(producers[0]), 0);
    ck_assert_uint_eq(atomic_load(&world.line[0]->asleep), 1);
    mr_producer_awake(producers[0]);
    ck_assert_uint_eq(atomic_load(&world.line[0]->asleep), 0);
    post(0, 0, 100);
    ck_assert_int_eq(mr_producer_sleep(producers[0]), 1);
    ck_assert_uint_eq(atomic_load(&world.line[0]->asleep), 0);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    publish_job(0);
    /* another producer's ticket comes back below all hints */
    post(0, 1, 100);
    post(0, 2, 100);
    ck_assert_int_eq(next_job(0, 2, ALL), 1);
    publish_job(0);
    ck_assert_int_eq(next_job(0, 2, ALL), 0);
    atomic_store(&world.lanes[0].tickets[1].word, mr_word(MR_PENDING, 0, 0, 0));
    for (int i = 0; i < 1000 && !mr_producer_sleep(producers[0]); i++) {
        mr_producer_awake(producers[0]);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    ck_assert_int_eq(next_job(0, 2, ALL), 1);
    ck_assert_uint_eq(job.claims[0].number, 1);
    tear_down();
}
END_TEST

/* A wild consumer writes PENDING over our FILLING: the extent is not given to anybody else. */
START_TEST(a_ticket_in_flight_is_not_claimed_again)
{
    set_up(1, 1, 8, 16);
    post(0, 0, 100);
    ck_assert_int_eq(next_job(0, 1, ALL), 1);
    struct mr_job first = job;
    atomic_store(&world.lanes[0].tickets[0].word, mr_word(MR_PENDING, 0, 0, 0));
    ck_assert_int_eq(next_job(0, 1, ALL), 0);
    ck_assert_int_eq(mr_producer_sleep(producers[0]), 0);
    mr_producer_publish(producers[0], &first.claims[0], 100, 0, 0, 0); /* its CAS fails */
    ck_assert_int_eq(state_of(0, 0), MR_PENDING);
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 9 * PAGE);
    tear_down();
}
END_TEST

START_TEST(numbers_wrap)
{
    world_init(&world, 1, 9 * PAGE, PAGE);
    world_open_lane(&world, 8, 1 << 30, UINT32_MAX);
    producers[0] = world_producer(&world, 0);
    add_lane(producers[0], 0);
    uint64_t n = (uint64_t)UINT32_MAX << 3;
    for (int i = 0; i < 40; i++, n = mr_lane_wrap(&world.lanes[0], n + 1)) {
        struct mr_request request = {.object = n, .length = 100};
        ck_assert(mr_lane_post(&world.lanes[0], n, &request));
        atomic_store(&world.lanes[0].shared->posted, mr_lane_wrap(&world.lanes[0], n + 1));
        ck_assert_int_eq(next_job(0, 4, ALL), 1);
        ck_assert_uint_eq(job.claims[0].number, n);
        publish_job(0);
        consume(0, n);
        atomic_store(&world.lanes[0].shared->taken, mr_lane_wrap(&world.lanes[0], n + 1));
    }
    ck_assert_uint_eq(mr_producer_free_bytes(producers[0]), 9 * PAGE);
    tear_down();
}
END_TEST

START_TEST(wrong_options)
{
    world_init(&world, 1, 4 * PAGE, PAGE);
    ck_assert_ptr_null(mr_producer_new(&(struct mr_producer_options){.slot = 1, .board = world.board}));
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_ptr_null(mr_producer_new(&(struct mr_producer_options){
        .slot = 0, .board = world.board, .arena_bytes = PAGE, .reserve_bytes = 2 * PAGE}));
    mr_producer_destroy(NULL);
    world_close(&world);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("producer");
    tcase_add_test(tc, a_job_is_consecutive_and_contiguous);
    tcase_add_test(tc, a_job_shrinks_to_what_fits);
    tcase_add_test(tc, blocks_have_homes);
    tcase_add_test(tc, stealing_is_near_the_head_or_from_the_dead);
    tcase_add_test(tc, nearest_to_its_head_first);
    tcase_add_test(tc, taking_back_for_a_wanted_head);
    tcase_add_test(tc, poisonous_tickets_run_alone);
    tcase_add_test(tc, sizes_that_cannot_be_had_fail_the_ticket);
    tcase_add_test(tc, more_bytes_than_room_is_no_delivery);
    tcase_add_test(tc, given_back_and_claimed_again);
    tcase_add_test(tc, memory_returns_when_the_last_of_a_job_is_released);
    tcase_add_test(tc, a_restart_keeps_what_is_named);
    tcase_add_test(tc, memory_of_another_division_is_not_adopted);
    tcase_add_test(tc, lanes_are_dropped_when_nothing_is_left);
    tcase_add_test(tc, sleep_sees_work_whatever_the_hints_say);
    tcase_add_test(tc, a_ticket_in_flight_is_not_claimed_again);
    tcase_add_test(tc, numbers_wrap);
    tcase_add_test(tc, wrong_options);
    return mr_suite_run("producer", tc);
}
