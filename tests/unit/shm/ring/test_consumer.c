/* test_consumer.c - the consumer's policy, rule by rule. Tickets are served by lane-level calls. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/ring/consumer_impl.h"
#include "shm/trace/trace.h"
#include "tests/ring/world.h"
#include "tests/unit/suite.h"

static struct world world;
static struct mr_consumer *consumer;
static struct mr_views *consumer_views; /* its own */
static struct mr_lane *lane;
static struct mr_delivery got;
static uint64_t next_offset; /* in arena 0: a fresh extent for each ticket */
static uint64_t fed;

static void set_up_ahead(uint32_t window, uint32_t ahead, uint64_t quota, uint32_t first_lap)
{
    world_init(&world, 2, 1 << 20, 4096);
    lane = &world.lanes[world_open_lane(&world, window, quota, first_lap)];
    struct mr_lane copy = *lane;
    copy.ahead = ahead;
    struct mr_views *views = world_views(&world);
    consumer = mr_consumer_new(&copy, views);
    ck_assert_ptr_nonnull(consumer);
    consumer_views = views;
    mr_views_unref(views); /* the consumer has its own */
    next_offset = 0;
    fed = 0;
}

static void set_up(uint32_t window, uint64_t quota, uint32_t first_lap)
{
    set_up_ahead(window, 0, quota, first_lap);
}

static void tear_down(void)
{
    mr_consumer_destroy(consumer);
    world_close(&world);
}

static void feed(unsigned count, uint64_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        struct mr_sample sample = {.request.object = fed, .bytes = bytes, .cookie = fed + 1000};
        ck_assert_int_eq(mr_consumer_feed(consumer, &sample, 1), 0);
        fed++;
    }
}

static enum mr_state state_at(uint32_t slot)
{
    return mr_word_state(mr_lane_load(lane, slot));
}

static unsigned count_state(enum mr_state state)
{
    unsigned n = 0;

    for (uint32_t slot = 0; slot < lane->window; slot++)
        n += state_at(slot) == state;
    return n;
}

/* Serves one PENDING slot: 64 bytes of its object. */
static void serve_slot(uint32_t slot, uint32_t flags)
{
    struct mr_request request;
    uint64_t filling;
    struct mr_descriptor desc = {
        .extent_offset = next_offset, .extent_length = 64, .length = 64, .flags = flags, .division = world.division};

    ck_assert(mr_lane_claim(lane, slot, mr_lane_load(lane, slot), 0, &filling, &request));
    world_fill((char *)world.arena[0] + next_offset, request.object, 64);
    next_offset = (next_offset + 64) % (1 << 20);
    mr_lane_describe(lane, slot, &desc);
    uint64_t ready;
    mr_lane_publish(lane, slot, filling, &ready);
    mr_wake_consumer(lane);
}

static void serve_all(void)
{
    for (uint32_t slot = 0; slot < lane->window; slot++)
        if (state_at(slot) == MR_PENDING)
            serve_slot(slot, 0);
}

static void expect(uint64_t object, bool copied)
{
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_OK);
    ck_assert_uint_eq(got.sample.request.object, object);
    ck_assert_uint_eq(got.sample.cookie, object + 1000);
    ck_assert_uint_eq(got.length, 64);
    ck_assert(got.copied == copied);
    ck_assert(world_matches(got.data, object, 64));
}

static void end(const struct mr_delivery *delivery)
{
    if (delivery->copied)
        free((void *)delivery->data);
    else
        mr_lease_release(consumer, delivery->slot, delivery->word, delivery->length);
}

START_TEST(samples_come_in_order)
{
    set_up(8, 1 << 20, 0);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_END);
    ck_assert_uint_eq(mr_consumer_window(consumer), 8);
    feed(30, 64);
    ck_assert_uint_eq(mr_consumer_backlog(consumer), 30);
    for (uint64_t i = 0; i < 30; i++) {
        for (uint32_t slot = lane->window; slot-- > 0;) /* served backwards */
            if (state_at(slot) == MR_PENDING)
                serve_slot(slot, 0);
        if (mr_consumer_next(consumer, 0, &got) == MR_NEXT_TIMEOUT) { /* the head was posted just now */
            serve_all();
            ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_OK);
        }
        ck_assert_uint_eq(got.sample.request.object, i);
        ck_assert(world_matches(got.data, i, 64));
        end(&got);
    }
    ck_assert_int_eq(mr_consumer_next(consumer, 100, &got), MR_NEXT_END);
    ck_assert_uint_eq(mr_consumer_backlog(consumer), 0);
    tear_down();
}
END_TEST

/* What is asked for doubles when it is waited for, once for all that was asked for then, and goes back when half of it
 * lies there ready. */
/* Its caller waits in slices, and looks at other things between them. */
START_TEST(a_wait_over_several_calls_is_one_span)
{
    struct mr_trace_reader reader;
    struct mr_trace_record record;
    unsigned spans[MR_SPAN_KINDS] = {0};
    int fd = mr_segment_new(MR_BACKING_MEMFD, "trace", sizeof(struct mr_trace_shared), true);

    ck_assert_int_ge(fd, 0);
    struct mr_trace_shared *shared = mr_segment_map(fd, sizeof *shared, true, NULL);
    ck_assert_ptr_nonnull(shared);
    mr_trace_format(shared);
    mr_trace_begin(shared);
    ck_assert_int_eq(mr_trace_attach(fd), 0);
    ck_assert_int_eq(mr_trace_reader_open(&reader, fd), 0);
    set_up(8, 1 << 20, 0);
    feed(2, 64);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(mr_consumer_next(consumer, 1, &got), MR_NEXT_TIMEOUT);
    serve_all();
    for (uint64_t i = 0; i < 2; i++) { /* the second one is there */
        expect(i, false);
        end(&got);
    }
    while (mr_trace_read(&reader, 1, &record))
        spans[record.kind]++;
    ck_assert_uint_eq(spans[MR_SPAN_READ], 1);
    ck_assert_uint_eq(spans[MR_SPAN_TICKET], 2);
    tear_down();
    mr_trace_reader_close(&reader);
    mr_segment_unmap(shared, sizeof *shared);
    close(fd);
}
END_TEST

START_TEST(it_looks_as_far_ahead_as_is_needed)
{
    set_up_ahead(64, 8, 1 << 20, UINT32_MAX - 1);
    feed(400, 64);
    unsigned asked = 0;
    for (uint64_t i = 0; i < 80; i++) { /* each one is served when it is waited for, and no other */
        ck_assert_int_eq(mr_consumer_next(consumer, 1, &got), MR_NEXT_TIMEOUT);
        unsigned now = count_state(MR_PENDING);
        ck_assert_uint_le(now, i < 8 ? 8 : i < 15 ? 16 : i < 30 ? 32 : 64);
        asked = now > asked ? now : asked;
        serve_slot(mr_lane_slot(lane, mr_lane_wrap(lane, ((uint64_t)lane->first_lap << lane->shift) + i)), 0);
        expect(i, false);
        end(&got);
    }
    ck_assert_uint_eq(asked, 64);
    ck_assert_uint_eq(mr_counter_get(&lane->shared->counters, MR_CC_AHEAD), 64);
    for (uint64_t i = 80; i < 400; i++) { /* now all is there before it is needed */
        serve_all();
        expect(i, false);
        end(&got);
    }
    ck_assert_uint_eq(mr_counter_get(&lane->shared->counters, MR_CC_AHEAD), 8);
    tear_down();
}
END_TEST

START_TEST(posting_goes_by_blocks)
{

    set_up(16, 1 << 20, 0); /* blocks of 4 */
    struct mr_sample samples[40];
    memset(samples, 0, sizeof samples);
    for (unsigned i = 0; i < 40; i++)
        samples[i] = (struct mr_sample){.request.object = i, .bytes = 64, .cookie = i + 1000};
    ck_assert_int_eq(mr_consumer_feed(consumer, samples, 40), 0);
    ck_assert_uint_eq(count_state(MR_PENDING), 16);
    serve_all();
    for (unsigned i = 0; i < 3; i++) {
        expect(i, false);
        end(&got);
    }
    ck_assert_uint_eq(count_state(MR_PENDING), 0); /* three free slots are no block */
    expect(3, false);
    end(&got);
    ck_assert_uint_eq(count_state(MR_PENDING), 0);
    expect(4, false); /* before it takes, it posts a block */
    struct mr_delivery held = got;
    ck_assert_uint_eq(count_state(MR_PENDING), 4);
    end(&held);
    tear_down();
}
END_TEST

START_TEST(kept_views_are_skipped_and_then_copied)
{

    set_up(4, 1 << 20, 0);
    feed(20, 64);
    struct mr_delivery held[3];
    for (uint64_t i = 0; i < 3; i++) {
        serve_all();
        expect(i, false);
        held[i] = got;
    }
    struct mr_delivery last;
    for (uint64_t i = 3; i < 20; i++) { /* one slot goes on; 3 of 4 are held */
        if (mr_consumer_next(consumer, 0, &last) == MR_NEXT_TIMEOUT) {
            serve_all();
            ck_assert_int_eq(mr_consumer_next(consumer, 0, &last), MR_NEXT_OK);
        }
        ck_assert_uint_eq(last.sample.request.object, i);
        ck_assert(last.copied);
        ck_assert(world_matches(last.data, i, 64));
        end(&last);
    }
    struct mr_consumer_stats stats;
    mr_consumer_stats(consumer, &stats);
    ck_assert_uint_eq(stats.held, 3);
    ck_assert_uint_eq(stats.copies, 17);
    ck_assert_uint_ge(stats.skipped_slots, 3 * 15);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(world_matches(held[i].data, i, 64));
        end(&held[i]);
    }
    mr_consumer_stats(consumer, &stats);
    ck_assert_uint_eq(stats.held, 0);
    ck_assert_uint_eq(stats.held_bytes, 0);
    ck_assert_uint_eq(stats.delivered, 20);
    tear_down();
}
END_TEST

START_TEST(what_comes_from_the_reserve_is_copied)
{
    set_up(8, 1 << 20, 0);
    feed(1, 64);
    serve_slot(0, MR_DESC_RESERVE);
    expect(0, true);
    ck_assert_int_eq(state_at(0), MR_RELEASED); /* at once */
    end(&got);
    tear_down();
}
END_TEST

START_TEST(over_the_quota_only_the_awaited_is_posted)
{
    set_up(16, 200, 0); /* three samples of 64 */
    feed(10, 64);
    ck_assert_uint_eq(count_state(MR_PENDING), 3);
    serve_all();
    expect(0, false);
    struct mr_delivery first = got;
    expect(1, false);
    struct mr_delivery second = got;
    expect(2, true); /* 192 of 200 would be held: more than 3/4 */
    end(&got);
    atomic_store(&lane->shared->quota_bytes, 0); /* another lane was opened */
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_TIMEOUT);
    ck_assert_uint_eq(count_state(MR_PENDING), 1);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_TIMEOUT);
    ck_assert_uint_eq(count_state(MR_PENDING), 1);
    serve_all();
    expect(3, true);
    end(&got);
    atomic_store(&lane->shared->quota_bytes, 1 << 20);
    end(&first);
    end(&second);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_TIMEOUT);
    ck_assert_uint_eq(count_state(MR_PENDING), 6);
    tear_down();
}
END_TEST

START_TEST(a_sample_over_the_quota_alone_still_comes)
{
    set_up(4, 10, 0);
    feed(2, 64);
    ck_assert_uint_eq(count_state(MR_PENDING), 0);
    for (uint64_t i = 0; i < 2; i++) {
        ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_TIMEOUT);
        serve_all();
        expect(i, true);
        end(&got);
    }
    tear_down();
}
END_TEST

START_TEST(failures_are_told)
{

    set_up(8, 1 << 20, 0);
    feed(3, 64);
    struct mr_request request;
    uint64_t filling;
    ck_assert(mr_lane_claim(lane, 0, mr_lane_load(lane, 0), 0, &filling, &request));
    mr_lane_fail(lane, 0, filling, MR_E_CHANGED, "it has changed");
    ck_assert(mr_lane_poison(lane, 1, mr_lane_load(lane, 1), MR_E_IO, "three deaths"));
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_FAILED);
    ck_assert_uint_eq(got.code, MR_E_CHANGED);
    ck_assert_str_eq(got.text, "it has changed");
    ck_assert_uint_eq(got.sample.cookie, 1000);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_FAILED);
    ck_assert_uint_eq(got.code, MR_E_IO);
    ck_assert_str_eq(got.text, "three deaths");
    ck_assert_uint_eq(count_state(MR_RELEASED), 2);
    tear_down();
}
END_TEST

START_TEST(descriptors_out_of_bounds_are_failures)
{
    static const struct mr_descriptor wrong[] = {
        {.extent_offset = 1 << 20, .extent_length = 64, .length = 64},
        {.extent_offset = UINT64_MAX - 10, .extent_length = 64, .length = 64},
        {.extent_offset = 0, .extent_length = UINT64_MAX, .length = 64},
        {.extent_offset = 0, .extent_length = 64, .length = 65},
        {.extent_offset = 0, .extent_length = 64, .length = 64, .arena = 2},
        {.extent_offset = 0, .extent_length = 64, .length = 64, .arena = UINT32_MAX},
    };

    set_up(8, 1 << 20, 0);
    feed(sizeof wrong / sizeof *wrong, 64);
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        serve_slot(i, 0);
        lane->tickets[i].desc = wrong[i];
        ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_FAILED);
        ck_assert_uint_eq(got.code, MR_E_CORRUPT);
        ck_assert_ptr_nonnull(strstr(got.text, "damaged"));
    }
    tear_down();
}
END_TEST

START_TEST(close_keeps_views)
{
    set_up(8, 1 << 20, 0);
    feed(20, 64);
    serve_slot(0, 0);
    serve_slot(1, 0);
    expect(0, false);
    struct mr_delivery view = got;
    mr_consumer_close(consumer);
    mr_consumer_close(consumer);
    ck_assert_int_eq(mr_consumer_next(consumer, 100, &got), MR_NEXT_END);
    ck_assert_int_eq(mr_consumer_feed(consumer, &view.sample, 1), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_uint_eq(mr_consumer_backlog(consumer), 0);
    ck_assert(!mr_lane_is_empty(lane));
    ck_assert_int_eq(state_at(0), MR_HELD);
    mr_consumer_ref(consumer);
    mr_consumer_destroy(consumer); /* the view keeps the rest */
    ck_assert(world_matches(view.data, 0, 64));
    end(&view);
    ck_assert(mr_lane_is_empty(lane));
    mr_consumer_unref(consumer);
    world_close(&world);
}
END_TEST

START_TEST(want_is_set_while_it_waits_only)
{
    set_up(8, 1 << 20, 0);
    feed(2, 64);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_TIMEOUT);
    ck_assert_int_eq(mr_consumer_next(consumer, 5, &got), MR_NEXT_TIMEOUT);
    ck_assert_uint_eq(atomic_load(&lane->shared->want), 0); /* it may be taken back now */
    tear_down();
}
END_TEST

static void *serve_later(void *arg)
{
    (void)arg;
    while (atomic_load(&lane->shared->want) != 1)
        usleep(100);
    serve_slot(1, 0);
    serve_slot(0, 0);
    return NULL;
}

START_TEST(a_publisher_wakes_the_waiting)
{

    set_up(8, 1 << 20, 0);
    feed(2, 64);
    pthread_t thread;
    pthread_create(&thread, NULL, serve_later, NULL);
    ck_assert_int_eq(mr_consumer_next(consumer, 30000, &got), MR_NEXT_OK);
    ck_assert_uint_eq(got.sample.request.object, 0);
    ck_assert_uint_eq(atomic_load(&lane->shared->want), 0);
    pthread_join(thread, NULL);
    end(&got);
    tear_down();
}
END_TEST

static uint64_t wakes; /* how many */

static bool was_woken(unsigned producer)
{
    struct pollfd fd = {.fd = world.eventfd[producer], .events = POLLIN};

    return poll(&fd, 1, 0) == 1 && read(fd.fd, &wakes, sizeof wakes) == sizeof wakes;
}

START_TEST(producers_are_woken_when_asleep)
{
    set_up(64, 1 << 20, 0); /* lane 0: numbers 0 to 31 are at home with 0, 32 to 63 with 1; blocks of 16 */
    while (was_woken(0) || was_woken(1)) {
    }
    feed(1, 64);
    ck_assert(!was_woken(0)); /* awake: no syscall */
    mr_wake_producer_asleep(world.line[0]);
    mr_wake_producer_asleep(world.line[1]);
    feed(1, 64);
    ck_assert(was_woken(0)); /* the home */
    ck_assert(!was_woken(1));
    feed(30, 64);
    ck_assert(was_woken(0));
    ck_assert(!was_woken(1));
    feed(1, 64);
    ck_assert(!was_woken(0));
    ck_assert(was_woken(1));
    ck_assert_int_eq(mr_consumer_next(consumer, 1, &got), MR_NEXT_TIMEOUT);
    ck_assert(was_woken(0)); /* a wanted head: anybody may serve it */
    ck_assert(was_woken(1));
    ck_assert_uint_eq(wakes, 2); /* and again when it is wanted no more: it may be taken back */
    serve_slot(0, 0);
    expect(0, false);
    ck_assert(!was_woken(0));
    end(&got);
    ck_assert(was_woken(0)); /* its memory */
    ck_assert(!was_woken(1));
    atomic_store(&world.board->producer[1].alive, 0);
    feed(1, 64);
    ck_assert(was_woken(0)); /* the home is dead */
    mr_consumer_close(consumer);
    ck_assert(was_woken(0));
    ck_assert(was_woken(1));
    tear_down();
}
END_TEST

/* Invariant 15. */
START_TEST(a_forked_child_changes_nothing)
{

    set_up(8, 1 << 20, 0);
    feed(4, 64);
    serve_slot(0, 0);
    serve_slot(1, 0);
    expect(0, false);
    struct mr_delivery view = got;
    pid_t child = fork();
    if (child == 0) {
        uint64_t before[8];
        bool right = mr_consumer_is_foreign(consumer);
        for (uint32_t slot = 0; slot < 8; slot++)
            before[slot] = mr_lane_load(lane, slot);
        right &= mr_consumer_next(consumer, 10, &got) == MR_NEXT_END;
        right &= mr_consumer_feed(consumer, &view.sample, 1) == -1 && mr_error_code() == MR_E_USAGE;
        right &= mr_consumer_backlog(consumer) == 0;
        right &= world_matches(view.data, 0, 64); /* the mapping is still there */
        end(&view);
        mr_consumer_close(consumer);
        mr_consumer_destroy(consumer);
        for (uint32_t slot = 0; slot < 8; slot++)
            right &= before[slot] == mr_lane_load(lane, slot);
        right &= atomic_load(&lane->shared->closed) == 0;
        /* and it may open a lane of its own */
        struct mr_lane own = world.lanes[world_open_lane(&world, 4, 100, 0)];
        struct mr_views *views = world_views(&world);
        consumer = mr_consumer_new(&own, views);
        mr_views_unref(views);
        right &= !mr_consumer_is_foreign(consumer) && mr_consumer_feed(consumer, &view.sample, 1) == 0;
        mr_consumer_destroy(consumer);
        _exit(right ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert(!mr_consumer_is_foreign(consumer));
    ck_assert_int_eq(state_at(0), MR_HELD);
    expect(1, false);
    end(&got);
    end(&view);
    tear_down();
}
END_TEST

START_TEST(numbers_wrap)
{
    set_up(4, 1 << 20, UINT32_MAX - 1);
    feed(60, 64);
    serve_all();
    expect(0, false);
    struct mr_delivery kept = got; /* skipped across the wrap, too */
    for (uint64_t i = 1; i < 60; i++) {
        if (mr_consumer_next(consumer, 0, &got) == MR_NEXT_TIMEOUT) {
            serve_all();
            ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_OK);
        }
        ck_assert_uint_eq(got.sample.request.object, i);
        ck_assert(world_matches(got.data, i, 64));
        end(&got);
    }
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_END);
    end(&kept);
    tear_down();
}
END_TEST

START_TEST(memory_of_another_division_is_refused)
{
    set_up(8, 1 << 20, 0);
    feed(4, 64);
    serve_slot(0, 0);
    world.division++;
    serve_slot(1, 0); /* whoever did that has another arena at this number */
    expect(0, false);
    end(&got);
    ck_assert_int_eq(mr_consumer_next(consumer, 0, &got), MR_NEXT_FAILED);
    ck_assert_uint_eq(got.code, MR_E_CORRUPT);
    ck_assert_ptr_nonnull(strstr(got.text, "divided anew"));
    /* A lane of that division, with the arenas of the last one. */
    struct mr_lane other = world.lanes[world_open_lane(&world, 8, 1 << 20, 0)];
    ck_assert_ptr_null(mr_consumer_new(&other, consumer_views));
    ck_assert_int_eq(mr_error_code(), MR_E_BUSY);
    tear_down();
}
END_TEST

START_TEST(addresses_are_found)
{
    set_up(4, 100, 0);
    struct mr_views *views = world_views(&world);
    ck_assert_int_eq(mr_views_find(views, world.arena[1]), 1);
    ck_assert_int_eq(mr_views_find(views, (char *)world.arena[0] + (1 << 20) - 1), 0);
    ck_assert_int_eq(mr_views_find(views, &views), -1);
    ck_assert_int_eq(mr_views_find(views, NULL), -1);
    mr_views_unref(views);
    ck_assert_ptr_null(mr_views_new(world.board, 0, 0, NULL));
    ck_assert_ptr_null(mr_views_new(world.board, 0, MR_PRODUCERS_MAX + 1, NULL));
    tear_down();
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("consumer");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, samples_come_in_order);
    tcase_add_test(tc, a_wait_over_several_calls_is_one_span);
    tcase_add_test(tc, it_looks_as_far_ahead_as_is_needed);
    tcase_add_test(tc, posting_goes_by_blocks);
    tcase_add_test(tc, kept_views_are_skipped_and_then_copied);
    tcase_add_test(tc, what_comes_from_the_reserve_is_copied);
    tcase_add_test(tc, over_the_quota_only_the_awaited_is_posted);
    tcase_add_test(tc, a_sample_over_the_quota_alone_still_comes);
    tcase_add_test(tc, failures_are_told);
    tcase_add_test(tc, descriptors_out_of_bounds_are_failures);
    tcase_add_test(tc, close_keeps_views);
    tcase_add_test(tc, want_is_set_while_it_waits_only);
    tcase_add_test(tc, a_publisher_wakes_the_waiting);
    tcase_add_test(tc, producers_are_woken_when_asleep);
    tcase_add_test(tc, a_forked_child_changes_nothing);
    tcase_add_test(tc, numbers_wrap);
    tcase_add_test(tc, memory_of_another_division_is_refused);
    tcase_add_test(tc, addresses_are_found);
    return mr_suite_run("consumer", tc);
}
