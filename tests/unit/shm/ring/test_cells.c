/* test_cells.c - neighbours in one request: what a job of a cell takes, and when it begins. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring/producer_impl.h"
#include "tests/ring/world.h"
#include "tests/unit/suite.h"

#define LARGEST 4000u
#define APART   (LARGEST + WORLD_GAP) /* of two neighbours in the stored object */
#define BYTES   1000u
#define GAP     (APART - BYTES)

static struct world world;
static struct mr_producer *producers[2];
static struct mr_job job;
static uint64_t posted[2];

/* Two lanes of `window`; arenas of so many pages beside the reserve. */
static void set_up(unsigned count, uint32_t window, unsigned pages, uint64_t gap_bytes)
{
    world_init(&world, count, (1 + pages) * (uint64_t)MR_ARENA_PAGE, LARGEST);
    world.gap_bytes = gap_bytes;
    for (unsigned l = 0; l < 2; l++) {
        world_open_lane(&world, window, 1 << 30, 0);
        posted[l] = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        producers[i] = world_producer(&world, i);
        for (unsigned l = 0; l < 2; l++) {
            struct mr_lane lane = world.lanes[l];
            ck_assert_int_eq(mr_producer_add_lane(producers[i], &lane), 0);
        }
    }
}

static void tear_down(void)
{
    for (unsigned i = 0; i < world.producers; i++)
        mr_producer_destroy(producers[i]);
    world_close(&world);
}

static void post(unsigned lane, uint64_t object, uint32_t cell, uint32_t flags)
{
    struct mr_request request = {.object = object, .length = BYTES, .cell = cell, .flags = flags};

    ck_assert(mr_lane_post(&world.lanes[lane], posted[lane]++, &request));
}

/* What was posted is told. */
static void tell(unsigned lane)
{
    atomic_store(&world.lanes[lane].shared->posted, posted[lane]);
}

static unsigned next_job(unsigned producer)
{
    return mr_producer_next_job(producers[producer], 1, UINT64_MAX, 0, &job) ? job.count : 0;
}

static void publish_job(unsigned producer)
{
    for (unsigned i = 0; i < job.count; i++)
        mr_producer_publish(producers[producer], &job.claims[i], BYTES, 1, 2, 0);
}

/* The claims are these objects, as far apart in memory as in the stored object. */
static void assert_job(unsigned count, const uint64_t *objects)
{
    ck_assert_uint_eq(job.count, count);
    for (unsigned i = 0; i < count; i++) {
        ck_assert_uint_eq(job.claims[i].request.object, objects[i]);
        ck_assert_int_eq((char *)job.claims[i].dest - (char *)job.claims[0].dest, (objects[i] - objects[0]) * APART);
    }
}

START_TEST(a_cell_is_one_job_whatever_the_order)
{
    static const uint64_t order[] = {3, 9, 1, 0, 8, 2, 7};

    set_up(1, 16, 64, GAP);
    for (unsigned i = 0; i < 7; i++)
        post(0, order[i], 5, 0);
    tell(0);
    next_job(0);
    assert_job(4, (uint64_t[]){0, 1, 2, 3}); /* of objects 0 to 4 */
    publish_job(0);
    next_job(0);
    assert_job(3, (uint64_t[]){7, 8, 9});
    publish_job(0);
    ck_assert_uint_eq(next_job(0), 0);
    tear_down();
}
END_TEST

/* Its consumer is in the middle of the post: the words are there, and the hint is not. */
START_TEST(a_cell_that_is_being_posted)
{
    set_up(1, 16, 64, GAP);
    for (uint64_t i = 0; i < 5; i++)
        post(0, i, 6, MR_REQUEST_PATIENT);
    next_job(0);
    assert_job(5, (uint64_t[]){0, 1, 2, 3, 4});
    publish_job(0);
    post(0, 5, 6, MR_REQUEST_PATIENT);
    post(0, 6, 6, MR_REQUEST_PATIENT);
    post(0, 7, 6, MR_REQUEST_PATIENT);
    ck_assert_uint_eq(next_job(0), 0); /* the consumer is far from them, and more comes */
    tear_down();
}
END_TEST

START_TEST(all_lanes_give_to_it)
{
    set_up(1, 16, 64, GAP);
    for (uint64_t i = 0; i < 6; i++)
        post(i % 2, i, 6, 0);
    tell(0);
    tell(1);
    next_job(0);
    assert_job(6, (uint64_t[]){0, 1, 2, 3, 4, 5});
    ck_assert_ptr_ne(job.claims[0].lane, job.claims[1].lane);
    publish_job(0);
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t word;
        struct mr_descriptor desc;
        bool failed;
        ck_assert(mr_lane_take(&world.lanes[i % 2], i / 2, &word, &desc, &failed));
        ck_assert(mr_lane_release(&world.lanes[i % 2], (uint32_t)i / 2, word));
        /* the memory is that of all: it goes with the last */
        ck_assert_int_eq(mr_producer_free_bytes(producers[0]) == world.arena_bytes, i == 5);
    }
    tear_down();
}
END_TEST

START_TEST(gaps)
{
    set_up(1, 16, 64, GAP + APART); /* one neighbour may lack */
    post(0, 0, 100, 0);
    post(0, 2, 100, 0);
    post(0, 5, 100, 0);
    tell(0);
    next_job(0);
    assert_job(2, (uint64_t[]){0, 2});
    next_job(0);
    assert_job(1, (uint64_t[]){5});
    tear_down();
}
END_TEST

START_TEST(a_sample_that_is_asked_for_twice)
{
    set_up(1, 16, 64, GAP);
    post(0, 1, 100, 0);
    post(0, 0, 100, 0);
    post(0, 1, 100, 0);
    tell(0);
    next_job(0);
    assert_job(2, (uint64_t[]){0, 1});
    next_job(0);
    assert_job(1, (uint64_t[]){1});
    tear_down();
}
END_TEST

START_TEST(others_are_not_taken)
{
    set_up(1, 16, 64, GAP);
    post(0, 0, 100, 0);
    post(0, 1, 0, 0);                       /* of no cell */
    post(0, 2 | UINT64_C(1) << 32, 100, 0); /* of another stored object: its cell is another, too */
    post(0, 3, 100, 0);
    tell(0);
    ck_assert_uint_eq(next_job(0), 1); /* 3 is too far */
    ck_assert_uint_eq(next_job(0), 1);
    ck_assert_uint_eq(next_job(0), 1);
    ck_assert_uint_eq(next_job(0), 1);
    tear_down();
}
END_TEST

/* Claimed and not published: it has killed two producers already. */
START_TEST(what_kills_is_alone)
{
    set_up(1, 16, 64, GAP);
    for (uint64_t i = 0; i < 3; i++)
        post(0, i, 100, 0);
    for (unsigned death = 0; death < 2; death++) {
        uint64_t filling;
        struct mr_request request;
        ck_assert(mr_lane_claim(&world.lanes[0], 1, mr_lane_load(&world.lanes[0], 1), 0, &filling, &request));
        ck_assert_uint_eq(mr_lane_recover(&world.lanes[0], 0), 1);
    }
    tell(0);
    ck_assert_uint_eq(next_job(0), 1);
    ck_assert_uint_eq(job.claims[0].number, 0);
    publish_job(0);
    ck_assert_uint_eq(next_job(0), 1);
    ck_assert_uint_eq(job.claims[0].number, 1);
    ck_assert(job.solo);
    tear_down();
}
END_TEST

START_TEST(as_much_as_there_is_room_for)
{
    set_up(1, 32, 2, GAP); /* two pages: two objects and a gap */
    for (uint64_t i = 0; i < 8; i++)
        post(0, i, 100, 0);
    tell(0);
    ck_assert_uint_ge(next_job(0), 2);
    ck_assert_uint_lt(job.count, 8);
    tear_down();
}
END_TEST

/* A request for more than cell_bytes is divided, around the ticket that is next. */
START_TEST(no_more_bytes_than_a_job_may_have)
{
    set_up(1, 32, 64, GAP);
    for (uint64_t i = 0; i < 20; i++)
        post(0, (i + 10) % 20, 100, 0);
    tell(0);
    unsigned jobs = 0, tickets = 0;
    for (unsigned count; (count = next_job(0)) > 0; jobs++) {
        ck_assert_uint_le((count - 1) * APART + BYTES, 8 * LARGEST);
        if (jobs == 0)
            ck_assert_uint_eq(job.claims[0].request.object, 10);
        tickets += count;
    }
    ck_assert_uint_eq(tickets, 20);
    ck_assert_uint_le(jobs, 4);
    tear_down();
}
END_TEST

/* What is patient begins once it is in the nearer half of what is posted, with all of its cell. */
START_TEST(patience)
{
    struct mr_descriptor desc;
    bool failed;
    uint64_t word;

    set_up(1, 32, 64, GAP);
    for (uint64_t i = 0; i < 16; i++)
        post(0, i, 8, MR_REQUEST_PATIENT);
    tell(0);
    ck_assert_uint_eq(next_job(0), 8);
    publish_job(0);
    ck_assert_uint_eq(next_job(0), 0); /* 8 is not nearer than half of 16 */
    ck_assert(mr_lane_take(&world.lanes[0], 0, &word, &desc, &failed));
    atomic_store(&world.lanes[0].shared->taken, 1);
    ck_assert_uint_eq(next_job(0), 8);
    ck_assert_uint_eq(job.claims[0].number, 8);
    publish_job(0);
    /* And at once where its consumer waits for it. */
    for (uint64_t i = 16; i < 24; i++)
        post(0, i, 8, MR_REQUEST_PATIENT);
    tell(0);
    ck_assert_uint_eq(next_job(0), 0);
    atomic_store(&world.lanes[0].shared->want, 17);
    ck_assert_uint_eq(next_job(0), 8);
    tear_down();
}
END_TEST

/* A cell is at home with one producer, and another helps where it has nothing of its own. */
START_TEST(a_cell_is_not_divided_among_producers)
{
    set_up(2, 32, 64, GAP);
    for (uint64_t i = 0; i < 16; i++)
        post(0, i % 2 * 8 + i / 2, 8, 0); /* 0, 8, 1, 9, ...: cells 1 and 2 of the numbering that home goes by */
    tell(0);
    next_job(0);
    assert_job(8, (uint64_t[]){8, 9, 10, 11, 12, 13, 14, 15});
    next_job(1);
    assert_job(8, (uint64_t[]){0, 1, 2, 3, 4, 5, 6, 7});
    for (uint64_t i = 32; i < 40; i++)
        post(1, i, 8, 0); /* at home with 1 */
    tell(1);
    ck_assert_uint_eq(next_job(0), 8);
    tear_down();
}
END_TEST

START_TEST(what_another_has_leaves_a_gap)
{
    uint64_t filling;
    struct mr_request request;

    set_up(2, 32, 64, GAP + APART);
    for (uint64_t i = 0; i < 6; i++)
        post(0, i, 8, 0);
    tell(0);
    ck_assert_uint_eq(next_job(1), 6); /* the cell is at home with 1 */
    for (unsigned i = 0; i < 6; i++)
        mr_producer_give_back(producers[1], &job.claims[i]);
    ck_assert(mr_lane_claim(&world.lanes[0], 2, mr_lane_load(&world.lanes[0], 2), 0, &filling, &request));
    ck_assert_uint_eq(next_job(1), 5);
    assert_job(5, (uint64_t[]){0, 1, 3, 4, 5});
    tear_down();
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("cells");
    tcase_add_test(tcase, a_cell_is_one_job_whatever_the_order);
    tcase_add_test(tcase, a_cell_that_is_being_posted);
    tcase_add_test(tcase, all_lanes_give_to_it);
    tcase_add_test(tcase, gaps);
    tcase_add_test(tcase, a_sample_that_is_asked_for_twice);
    tcase_add_test(tcase, others_are_not_taken);
    tcase_add_test(tcase, what_kills_is_alone);
    tcase_add_test(tcase, as_much_as_there_is_room_for);
    tcase_add_test(tcase, no_more_bytes_than_a_job_may_have);
    tcase_add_test(tcase, patience);
    tcase_add_test(tcase, a_cell_is_not_divided_among_producers);
    tcase_add_test(tcase, what_another_has_leaves_a_gap);
    return mr_suite_run("cells", tcase);
}
