/* The rules of a verdict, one by one: which stage, which cause, what to try. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "shm/meter/verdict.h"
#include "tests/unit/suite.h"

#define MS     UINT64_C(1000000)
#define SECOND (1000 * MS)

static struct mr_meter_sums sums;
static struct mr_node node;
static struct mr_batch_counts batches;
static struct mr_verdict found;

/* 100 batches in 10 s: 60 ms of step and 40 ms of waiting each, for workers that are late. */
static void setup(void)
{
    sums = (struct mr_meter_sums){.batches = 100,
                                  .made = 100,
                                  .step = 6 * SECOND,
                                  .wait = 4 * SECOND,
                                  .late = 4 * SECOND,
                                  .store = SECOND / 100,
                                  .transform = SECOND / 100,
                                  .collate = SECOND / 100,
                                  .workers = 2,
                                  .cores = 8};
    batches = (struct mr_batch_counts){.batches = 100, .held = 100};
    node = (struct mr_node){.watched = 10 * SECOND, .cores = 8, .connections = 16, .window = 64};
}

static void expect(enum mr_stage stage, enum mr_cause cause, const char *part)
{
    mr_verdict_find(&sums, &node, &batches, &found);
    ck_assert_str_eq(mr_stage_name(found.stage), mr_stage_name(stage));
    ck_assert_str_eq(mr_cause_name(found.cause), mr_cause_name(cause));
    ck_assert_msg(strstr(found.text, part) != NULL, "'%s' lacks '%s'", found.text, part);
}

START_TEST(test_nothing_waits)
{
    sums.transform = 100 * SECOND; /* slow, and ready in time */
    sums.wait = sums.late = SECOND / 4;
    expect(MR_STAGE_NONE, MR_CAUSE_NONE, "nothing waits");
    sums.batches = 0;
    expect(MR_STAGE_NONE, MR_CAUSE_NONE, "too few steps");
}
END_TEST

/* What the supervisor has counted names the cause, and says numbers. */
START_TEST(test_the_store)
{
    sums.store = 10 * SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_NONE, "millrace top");
    node.waits[MR_CAUSE_WINDOW] = SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_WINDOW, "lanes.window = 128");
    node.waits[MR_CAUSE_CONNECTIONS] = 2 * SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_CONNECTIONS, "fetch.connections = 32");
    node.waits[MR_CAUSE_LATENCY] = 3 * SECOND;
    node.first_us = 80000;
    expect(MR_STAGE_STORE, MR_CAUSE_LATENCY, "answers after 80 ms");
    node.waits[MR_CAUSE_BANDWIDTH] = 4 * SECOND;
    node.bytes_s = 3 << 20;
    expect(MR_STAGE_STORE, MR_CAUSE_BANDWIDTH, "gives 3.0 MiB/s");
    node.waits[MR_CAUSE_SAVING] = 6 * SECOND; /* of all these 10 */
    expect(MR_STAGE_STORE, MR_CAUSE_SAVING, "checkpoint");
    node.waits[MR_CAUSE_THROTTLED] = 50 * SECOND; /* no checkpoint does that */
    node.waits[MR_CAUSE_SAVING] = 60 * SECOND;
    node.request_rate = 900;
    expect(MR_STAGE_STORE, MR_CAUSE_THROTTLED, "more than 900 requests");
    node.waits[MR_CAUSE_MEMORY] = 51 * SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_MEMORY, "memory.arena_bytes");
    node.waits[MR_CAUSE_LISTING] = 52 * SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_LISTING, "list.workers");
    node.waits[MR_CAUSE_FETCH_CPU] = 90 * SECOND;
    node.waits[MR_CAUSE_SAVING] = 0;
    expect(MR_STAGE_STORE, MR_CAUSE_FETCH_CPU, "fetch.workers");
    node.others = 12 * SECOND; /* it is the fetch workers that need a core, and not those that fit */
    expect(MR_STAGE_STORE, MR_CAUSE_FETCH_CPU, "fetch.workers");
    node.others = 40 * SECOND;
    expect(MR_STAGE_STORE, MR_CAUSE_NEIGHBOURS, "other processes use 4.0 of 8 cores");
}
END_TEST

/* A worker makes a batch in 200 ms, a step takes 60: 4 workers. */
START_TEST(test_too_few_workers)
{
    sums.transform = 20 * SECOND;
    sums.cpu = sums.thread = 19 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_WORKERS, "try num_workers=4");
    ck_assert_uint_eq(found.try_workers, 4);
    node.cores = 3; /* the quota is less than the affinity */
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_WORKERS, "try num_workers=3; it would take 4");
    node.cores = 2;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CORES, "there are 2 cores");
    ck_assert_uint_eq(found.try_workers, 0);
    sums.workers = 0;
    node.cores = 8;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_WORKERS, "in the loop's own process at 95% CPU");
    sums.transform = 0;
    sums.collate = 20 * SECOND;
    expect(MR_STAGE_COLLATE, MR_CAUSE_WORKERS, "try num_workers=4");
}
END_TEST

/* Nothing is known of the batch that the loop waits for: no advice. */
START_TEST(test_no_batch_was_made)
{
    sums.made = 0;
    sums.step = 0;
    sums.transform = 4 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_NONE, "not made yet");
    ck_assert_uint_eq(found.try_workers, 0);
}
END_TEST

/* It sleeps: more workers than cores help. */
START_TEST(test_blocked)
{
    sums.transform = 60 * SECOND;
    sums.cpu = sums.thread = SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_BLOCKED, "try num_workers=10");
    sums.transform = 6000 * SECOND;
    sums.cpu = sums.thread = 10 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_BLOCKED, "try num_workers=64");
}
END_TEST

/* Threads of a worker that together get one core. */
START_TEST(test_the_interpreters_lock)
{
    sums.transform = 20 * SECOND;
    sums.cpu = 19 * SECOND;
    sums.thread = 4 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_GIL, "(the GIL)");
    sums.cpu = 60 * SECOND; /* they get three: native code */
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_WORKERS, "num_workers");
}
END_TEST

/* Workers that could run, and have no core. */
START_TEST(test_no_core_is_free)
{
    sums.transform = 20 * SECOND;
    sums.cpu = sums.thread = 8 * SECOND;
    sums.delay = 11 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CORES, "there are 8 cores");
    sums.workers = 16;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CROWD, "16 workers share 8 cores: num_workers=8");
    node.others = 12 * SECOND; /* too little to keep 16 workers from 8 cores */
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CROWD, "num_workers=8");
    sums.workers = 8;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_NEIGHBOURS, "other processes use 1.2 of 8 cores");
    sums.workers = 16;
    node.others = 40 * SECOND; /* half of the cores, for 10 s */
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_NEIGHBOURS, "other processes use 4.0 of 8 cores");
    node.swapped = 5000;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_SWAP, "500 pages a second");
    node.quota = 3 * SECOND;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_QUOTA, "stops them 30% of the time");
}
END_TEST

START_TEST(test_transport_device_extent)
{
    sums.late = 0;
    sums.transport = 4 * SECOND;
    expect(MR_STAGE_TRANSPORT, MR_CAUSE_PICKLE, "tensors in place of objects");
    batches.beside = 2; /* of 100 batches: it is not about them */
    expect(MR_STAGE_TRANSPORT, MR_CAUSE_PICKLE, "tensors in place of objects");
    batches.beside = 12;
    expect(MR_STAGE_TRANSPORT, MR_CAUSE_ROOM, "12 tensors did not fit");
    batches.held = 410;
    expect(MR_STAGE_TRANSPORT, MR_CAUSE_KEPT, "keeps batches (4.1 in shared memory");
    sums.delay = SECOND; /* the loop had no core to take them */
    sums.workers = 12;
    expect(MR_STAGE_TRANSPORT, MR_CAUSE_CROWD, "num_workers=8");
    sums.transport = 0;
    sums.device = 4 * SECOND;
    expect(MR_STAGE_DEVICE, MR_CAUSE_COPY, "device 40 ms");
    sums.late = 4 * SECOND;
    sums.device = 0;
    sums.extent = 10 * SECOND;
    expect(MR_STAGE_EXTENT, MR_CAUSE_KEPT, "clone()");
}
END_TEST

/* A checkpoint in the loop is none of its waits for batches. */
START_TEST(test_checkpoints)
{
    sums.wait = sums.late = 0;
    sums.save = SECOND;
    expect(MR_STAGE_CHECKPOINT, MR_CAUSE_SAVE, "10 ms of it (17%) in calls of checkpoints");
    sums.save = SECOND / 10;
    expect(MR_STAGE_NONE, MR_CAUSE_NONE, "nothing waits");
}
END_TEST

/* The ranks of a node share its cores; one that is pinned has its own. */
START_TEST(test_ranks_share_the_cores)
{
    sums.transform = 20 * SECOND;
    sums.cpu = sums.thread = 18 * SECOND;
    sums.cores = node.cores = 32;
    sums.workers = 4;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_WORKERS, "try num_workers=");
    sums.sharers = 8;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CORES, "there are 4 of the node's 32 cores, which has 8 ranks: a lighter");
    sums.delay = 12 * SECOND;
    sums.cpu = sums.thread = 8 * SECOND;
    sums.workers = 16;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CROWD,
           "16 workers share 4 of the node's 32 cores, which has 8 ranks: num_workers=4");
    sums.cores = 4;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CROWD, "16 workers share 4 cores: num_workers=4");
    sums.cores = 2;
    sums.sharers = 100;
    expect(MR_STAGE_TRANSFORM, MR_CAUSE_CROWD, "num_workers=1");
}
END_TEST

/* Without a supervisor, and with numbers that another process made up. */
START_TEST(test_garbage)
{
    for (unsigned i = 0; i < 200; i++) {
        uint64_t *values = (uint64_t *)&sums;
        for (unsigned k = 0; k < 19; k++)
            values[k] = UINT64_C(0x9e3779b97f4a7c15) * (i * 19 + k + 1) >> (k * 7 + i) % 64;
        sums.workers = (uint32_t)values[3];
        sums.cores = (uint32_t)values[4];
        mr_verdict_find(&sums, i % 2 ? &node : NULL, i % 3 ? &batches : NULL, &found);
        ck_assert_uint_lt(strlen(found.text), sizeof found.text);
        ck_assert_uint_gt(strlen(found.text), 0);
    }
    ck_assert_str_eq(mr_stage_name((enum mr_stage)99), "unknown");
    ck_assert_str_eq(mr_cause_name((enum mr_cause)99), "unknown");
}
END_TEST

/* The board's block has the causes in the order of the enum. */
START_TEST(test_the_nodes_block)
{
    struct mr_counters *block = calloc(1, sizeof *block);
    struct mr_node before, now;
    mr_counters_init(block, MR_ROLE_NODE, 0);
    mr_counter_add(block, MR_NC_LISTING_NS, 1);
    mr_counter_add(block, MR_NC_SAVING_NS, 9);
    mr_counter_add(block, MR_NC_QUOTA_NS, 7);
    mr_node_read(block, &before);
    ck_assert_uint_eq(before.waits[MR_CAUSE_LISTING], 1);
    ck_assert_uint_eq(before.waits[MR_CAUSE_SAVING], 9);
    ck_assert_uint_eq(MR_NC_SAVING_NS - MR_NC_LISTING_NS, MR_CAUSE_SAVING - MR_CAUSE_LISTING);
    mr_counter_add(block, MR_NC_LISTING_NS, 5);
    mr_node_read(block, &now);
    mr_node_since(&now, &before);
    ck_assert_uint_eq(now.waits[MR_CAUSE_LISTING], 5);
    ck_assert_uint_eq(now.waits[MR_CAUSE_SAVING] + now.quota, 0);
    free(block);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("rules");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, test_nothing_waits);
    tcase_add_test(tcase, test_the_store);
    tcase_add_test(tcase, test_too_few_workers);
    tcase_add_test(tcase, test_no_batch_was_made);
    tcase_add_test(tcase, test_blocked);
    tcase_add_test(tcase, test_the_interpreters_lock);
    tcase_add_test(tcase, test_no_core_is_free);
    tcase_add_test(tcase, test_ranks_share_the_cores);
    tcase_add_test(tcase, test_transport_device_extent);
    tcase_add_test(tcase, test_checkpoints);
    tcase_add_test(tcase, test_garbage);
    tcase_add_test(tcase, test_the_nodes_block);
    return mr_suite_run("verdict", tcase);
}
