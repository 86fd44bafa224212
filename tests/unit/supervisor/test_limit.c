/* What limits the readers, from what the lanes and the fetch workers show. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "shm/meter/meter.h"
#include "shm/ring/board.h"
#include "supervisor/limit.h"
#include "supervisor/run_impl.h"
#include "tests/unit/suite.h"

#define WINDOW 16u

static struct mr_supervisor *s;
static struct mr_registered_lane lanes[2];
static void *segments[2];

static void setup(void)
{
    s = calloc(1, sizeof *s);
    s->board = calloc(1, sizeof *s->board);
    for (unsigned i = 0; i < 2; i++) {
        /* A segment starts at a page. */
        segments[i] = aligned_alloc(4096, (mr_lane_size(WINDOW) + 4095) / 4096 * 4096);
        memset(segments[i], 0, mr_lane_size(WINDOW));
        mr_lane_format(segments[i], WINDOW, i, i + 1, 0, 0, 0, 0);
        lanes[i] = (struct mr_registered_lane){.fd = -1, .state = MR_LANE_OPEN};
        ck_assert_int_eq(mr_lane_attach(&lanes[i].lane, segments[i], mr_lane_size(WINDOW)), 0);
        s->lanes.slots[i] = &lanes[i];
    }
    s->lanes.used = 2;
}

static void teardown(void)
{
    for (unsigned i = 0; i < 2; i++)
        free(segments[i]);
    free(s->board);
    free(s);
}

/* So many tickets of each state in both lanes, whose readers wait for that share of the time. */
static void set(double waiting, unsigned pending, unsigned filling, unsigned ready, unsigned held)
{
    for (unsigned i = 0; i < 2; i++) {
        unsigned slot = 0;
        for (unsigned k = 0; k < WINDOW; k++)
            atomic_store(&lanes[i].lane.tickets[k].word, 0);
        const unsigned counts[] = {pending, filling, ready, held};
        const enum mr_state states[] = {MR_PENDING, MR_FILLING, MR_READY, MR_HELD};
        for (unsigned j = 0; j < 4; j++)
            for (unsigned k = 0; k < counts[j]; k++)
                atomic_store(&lanes[i].lane.tickets[slot++].word, mr_word(states[j], 1, 0, 0));
        ck_assert_uint_le(slot, WINDOW);
        lanes[i].waiting = waiting;
    }
}

static void expect(const char *stage, const char *cause, const char *part)
{
    struct mr_limit_verdict found;
    s->limit.looked_ns = 0; /* a second has passed */
    mr_limit_look(s);
    mr_limit_find(s, &found);
    ck_assert_str_eq(found.stage, stage);
    ck_assert_str_eq(found.cause, cause);
    ck_assert_msg(strstr(found.text, part) != NULL, "'%s' lacks '%s'", found.text, part);
}

START_TEST(test_nobody_reads)
{
    struct mr_dataset dataset = {.state = MR_DATASET_LISTING};
    s->lanes.used = 0;
    expect("idle", "none", "no reader");
    s->datasets[3] = &dataset;
    expect("listing", "listing", "list.workers");
    dataset.state = MR_DATASET_READY;
    expect("idle", "none", "no reader");
    s->lanes.used = 2;
    lanes[0].state = lanes[1].state = MR_LANE_LINGERING;
    expect("idle", "none", "no reader");
}
END_TEST

START_TEST(test_stages)
{
    set(0.05, 16, 0, 0, 0);
    expect("step", "none", "5%");
    set(0.8, 12, 4, 0, 0);
    expect("store", "latency", "80%");
    set(0.8, 2, 2, 6, 6);
    expect("store", "memory", "fills the memory");
    set(0.8, 0, 5, 0, 1);
    expect("store", "memory", "memory.arena_bytes");
    set(0.8, 0, 12, 2, 2);
    expect("store", "window", "lanes.window = 32");
}
END_TEST

/* One fetch worker, whose counters the caller sets and frees. */
static struct mr_counters *add_arenas(void)
{
    struct mr_counters *block = calloc(1, sizeof *block);
    s->fetch_workers.count = 1;
    s->fetch_workers.workers[0].counters = block;
    mr_counter_set(block, MR_WC_ARENA_BYTES, 1000);
    return block;
}

/* Samples wait in memory that is mostly free: there is room, so it is not memory that limits. */
START_TEST(test_room_in_the_arenas)
{
    struct mr_counters *block = add_arenas();
    set(0.8, 2, 2, 6, 6);
    mr_counter_set(block, MR_WC_ARENA_FREE_BYTES, 900);
    expect("store", "latency", "lanes.window");
    mr_counter_set(block, MR_WC_REQUEST_RATE, 2000);
    expect("store", "throttled", "more than 2000 requests");
    mr_counter_set(block, MR_WC_ARENA_FREE_BYTES, 100);
    expect("store", "memory", "fills the memory");
    free(block);
}
END_TEST

/* A file's reader asks for less than its lane may take, and memory is mostly free. */
START_TEST(test_few_are_asked_for)
{
    struct mr_counters *block = add_arenas();
    set(0.8, 0, 5, 0, 1);
    mr_counter_set(block, MR_WC_ARENA_FREE_BYTES, 100);
    expect("store", "memory", "memory.arena_bytes");
    mr_counter_set(block, MR_WC_ARENA_FREE_BYTES, 900);
    expect("store", "window", "lanes.window");
    free(block);
}
END_TEST

/* Of eight workers whose batches come in turn, seven are ready while the loop waits for the one that reads. */
START_TEST(test_a_loop_that_gets_nothing)
{
    struct mr_meter meter = {0};
    struct mr_dataset looked_up = {.ranged = true};
    struct mr_client_peer trainer = {.pid = getpid()};
    ck_assert_int_eq(mr_meter_new(&meter, 2, 0, 1), 0);
    mr_meter_begin(&meter, 0, 8, 1);
    ck_assert_int_eq(mr_meters_add(s, &trainer, meter.fd), 0);
    struct mr_metered *loop = s->meters.first;
    set(0, 16, 0, 0, 0);
    lanes[1].waiting = 0.9;
    for (int given = 0; given < 3; given++) {
        int64_t now_ns = mr_clock_mono_ns();
        loop->older.at_ns = now_ns - 10 * MR_SECOND_NS;
        loop->newer.at_ns = now_ns;
        mr_meter_ask(&meter, now_ns - 3 * MR_SECOND_NS);
        s->limit.looked_ns = 0;
        mr_limit_look(s);
        ck_assert_int_eq(loop->stretch.store > 0, given == 1);
        ck_assert_int_eq(loop->stretch.transform > 0, given == 2);
        mr_meter_take(&meter, now_ns, now_ns, 0, 0, &(struct mr_meter_times){.worker = 0});
        if (given == 1)
            s->datasets[0] = &looked_up; /* who waits is another's reader, of a file */
    }
    mr_meter_begin(&meter, 1, 8, 1); /* workers start again */
    mr_meter_ask(&meter, mr_clock_mono_ns() - 3 * MR_SECOND_NS);
    s->limit.looked_ns = 0;
    mr_limit_look(s);
    ck_assert_uint_eq(loop->stretch.wait, 0);
    mr_meters_close(s);
    mr_meter_close(&meter);
}
END_TEST

/* One reader that waits and one that does not: their mean counts. */
START_TEST(test_mean)
{
    set(0, 16, 0, 0, 0);
    lanes[1].waiting = 0.5;
    expect("store", "latency", "25%");
    lanes[1].waiting = 0.1;
    expect("step", "none", "5%");
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("limit");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_nobody_reads);
    tcase_add_test(tcase, test_stages);
    tcase_add_test(tcase, test_room_in_the_arenas);
    tcase_add_test(tcase, test_few_are_asked_for);
    tcase_add_test(tcase, test_a_loop_that_gets_nothing);
    tcase_add_test(tcase, test_mean);
    return mr_suite_run("supervisor_limit", tcase);
}
