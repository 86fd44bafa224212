/* The registry of lanes: what becomes of tickets whose data set has failed. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring/wake.h"
#include "supervisor/run_impl.h"
#include "tests/unit/suite.h"

#define WINDOW 16u
#define TEXT   "its bucket is gone"

static struct mr_supervisor *s;
static struct mr_dataset datasets[2];
static struct mr_lane *lanes[2]; /* one of each data set */

static void setup(void)
{
    s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    s->board = calloc(1, sizeof *s->board);
    ck_assert_ptr_nonnull(s->board);
    ck_assert_int_eq(mr_events_init(&s->events), 0);
    mr_lanes_init(s);
    s->state = MR_SUP_RUNNING;
    s->config.lanes.max = 2;
    mr_lanes_set_quota(s, 1 << 20);
    for (uint32_t i = 0; i < 2; i++) {
        datasets[i] = (struct mr_dataset){.supervisor = s, .number = i, .state = MR_DATASET_READY};
        s->datasets[i] = &datasets[i];
        struct mr_registered_lane *entry = mr_lanes_open(s, NULL, i, WINDOW);
        ck_assert_ptr_nonnull(entry);
        lanes[i] = &entry->lane;
    }
}

static void teardown(void)
{
    mr_lanes_close(s);
    mr_events_close(&s->events);
    free(s->board);
    free(s);
}

/* Number 0 and 1 PENDING, 2 FILLING, 3 READY, 4 HELD, 5 PENDING, the others EMPTY. */
static void fill(struct mr_lane *lane)
{
    static const struct mr_descriptor descriptor = {.extent_length = 64, .length = 64};
    for (uint64_t number = 0; number < 6; number++)
        ck_assert(mr_lane_post(lane, number, &(struct mr_request){.dataset = lane->dataset, .object = number}));
    for (uint32_t slot = 2; slot < 5; slot++) {
        uint64_t filling, ready;
        struct mr_request request;
        ck_assert(mr_lane_claim(lane, slot, mr_lane_load(lane, slot), 0, &filling, &request));
        if (slot == 2)
            continue;
        mr_lane_describe(lane, slot, &descriptor);
        mr_lane_publish(lane, slot, filling, &ready);
    }
    uint64_t held;
    struct mr_descriptor taken;
    bool failed;
    ck_assert(mr_lane_take(lane, 4, &held, &taken, &failed));
    ck_assert(!failed);
}

/* Its reader is told why. */
static void check_failed(struct mr_lane *lane, uint64_t number)
{
    uint64_t word;
    struct mr_descriptor descriptor;
    bool failed;
    char text[MR_FAIL_TEXT + 16];
    ck_assert_msg(mr_lane_take(lane, number, &word, &descriptor, &failed), "number %u waits still", (unsigned)number);
    ck_assert(failed);
    ck_assert_uint_eq(descriptor.code, MR_E_NOT_FOUND);
    mr_lane_fail_reason(lane, mr_lane_slot(lane, number), &descriptor, text);
    ck_assert_str_eq(text, TEXT);
}

static void words_of(const struct mr_lane *lane, uint64_t words[WINDOW])
{
    for (uint32_t slot = 0; slot < WINDOW; slot++)
        words[slot] = mr_lane_load(lane, slot);
}

/* A fetch worker or the reader has the others, and brings them to an end; who reads another data set hears nothing. */
START_TEST(waiting_tickets_of_a_failed_data_set_fail)
{
    uint64_t before[2][WINDOW], after[2][WINDOW];
    uint32_t seq[2];
    for (unsigned i = 0; i < 2; i++) {
        fill(lanes[i]);
        words_of(lanes[i], before[i]);
        seq[i] = mr_wake_seq(lanes[i]);
    }
    mr_lanes_settle(s);
    words_of(lanes[0], after[0]);
    ck_assert_mem_eq(after[0], before[0], sizeof before[0]); /* nothing has failed yet */
    mr_dataset_fail(&datasets[0], MR_E_NOT_FOUND, TEXT);
    mr_lanes_settle(s);
    for (unsigned i = 0; i < 2; i++)
        words_of(lanes[i], after[i]);
    for (uint32_t slot = 0; slot < WINDOW; slot++) {
        if (mr_word_state(before[0][slot]) == MR_PENDING)
            ck_assert_int_eq(mr_word_state(after[0][slot]), MR_FAILED);
        else
            ck_assert_uint_eq(after[0][slot], before[0][slot]);
    }
    ck_assert_mem_eq(after[1], before[1], sizeof before[1]);
    ck_assert_uint_ne(mr_wake_seq(lanes[0]), seq[0]); /* the reader is woken, */
    ck_assert_uint_eq(mr_wake_seq(lanes[1]), seq[1]);
    check_failed(lanes[0], 0);
    check_failed(lanes[0], 1);
    check_failed(lanes[0], 5);
    seq[0] = mr_wake_seq(lanes[0]);
    mr_lanes_settle(s);
    ck_assert_uint_eq(mr_wake_seq(lanes[0]), seq[0]); /* and once */
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("lanes");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, waiting_tickets_of_a_failed_data_set_fail);
    return mr_suite_run("lanes", tcase);
}
