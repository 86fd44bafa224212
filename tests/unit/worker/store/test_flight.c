/* test_flight.c - how many requests are in flight, found over simulated stores: each request takes a latency, and a share
 * of what the bottleneck can do. */
#include <check.h>
#include <stdlib.h>

#include "base/clock.h"
#include "tests/unit/suite.h"
#include "worker/store/flight.h"

#define SLOTS 1024

/* A request waits for the latency, and then its turn at the bottleneck, which does one after the other. */
struct store {
    int64_t latency_ns, each_ns; /* each_ns: of the bottleneck, a request */
    double noise;                /* of both: a share up or down */
    unsigned busy_above;         /* in flight: answers 503; 0: never */
    /* the state */
    int64_t now_ns, free_ns, done_ns[SLOTS], sent_ns[SLOTS];
    unsigned in_flight, slots; /* slots: none behind has been used */
    uint64_t draws, answers, refused;
    double limits; /* their sum over the answers */
};

static int64_t noisy(struct store *store, int64_t ns)
{
    double draw = (double)(mr_mix64(store->draws++) % 2001) / 1000 - 1;
    return (int64_t)((double)ns * (1 + draw * store->noise));
}

static void send_some(struct store *store, const struct mr_flight *flight, unsigned wanted)
{
    for (unsigned i = 0; i < SLOTS && store->in_flight < mr_flight_limit(flight) && store->in_flight < wanted; i++) {
        if (store->done_ns[i])
            continue;
        int64_t there_ns = store->now_ns + noisy(store, store->latency_ns);
        store->free_ns = (store->free_ns > there_ns ? store->free_ns : there_ns) + noisy(store, store->each_ns);
        store->sent_ns[i] = store->now_ns;
        store->done_ns[i] = store->free_ns;
        store->in_flight++;
        store->slots = i + 1 > store->slots ? i + 1 : store->slots;
    }
}

/* For so long, with so many requests that could be sent; answers a second of the second half. */
static double run(struct store *store, struct mr_flight *flight, int64_t seconds, unsigned wanted, uint64_t bytes)
{
    int64_t end_ns = store->now_ns + seconds * MR_SECOND_NS, half_ns = end_ns - seconds * MR_SECOND_NS / 2;
    uint64_t second_half = 0;
    store->limits = 0;
    for (;;) {
        send_some(store, flight, wanted);
        unsigned next = SLOTS;
        for (unsigned i = 0; i < store->slots; i++)
            if (store->done_ns[i] && (next == SLOTS || store->done_ns[i] < store->done_ns[next]))
                next = i;
        store->now_ns = store->done_ns[next] > store->now_ns ? store->done_ns[next] : store->now_ns;
        if (store->now_ns >= end_ns)
            break;
        bool full = store->in_flight >= mr_flight_limit(flight),
             busy = store->busy_above && store->in_flight > store->busy_above;
        store->done_ns[next] = 0;
        store->in_flight--;
        if (busy) {
            store->refused++;
            mr_flight_busy(flight, store->now_ns, store->sent_ns[next]);
            continue;
        }
        mr_flight_good(flight, store->now_ns, bytes, full);
        store->answers++;
        if (store->now_ns >= half_ns) {
            second_half++;
            store->limits += flight->limit;
        }
    }
    store->limits = second_half ? store->limits / (double)second_half : 0;
    return (double)second_half / ((double)seconds / 2);
}

/* Latency, the bottleneck, noise: what is found is within a tenth of the best fixed number. */
START_TEST(as_good_as_the_best_fixed_number)
{
    static const struct {
        int64_t latency_us, each_us;
    } stores[] = {{100, 35}, {100, 300}, {5000, 35}, {5000, 75}, {20000, 75}, {20000, 1000}, {100000, 500}, {2000, 20}};
    static const unsigned fixed[] = {4, 8, 16, 32, 64, 128, 256};
    static const double noises[] = {0, 0.3};

    for (unsigned i = 0; i < 16; i++) {
        struct store model = {.latency_ns = stores[i / 2].latency_us * 1000,
                              .each_ns = stores[i / 2].each_us * 1000,
                              .noise = noises[i % 2]};
        double best = 0;
        struct mr_flight flight;
        for (unsigned k = 0; k < sizeof fixed / sizeof *fixed; k++) {
            struct store store = model;
            mr_flight_init(&flight, fixed[k], 0);
            double rate = run(&store, &flight, 4, SLOTS, 100000);
            best = rate > best ? rate : best;
        }
        struct store store = model;
        mr_flight_init(&flight, 0, 0);
        double found = run(&store, &flight, 30, SLOTS, 100000);
        ck_assert_msg(found > 0.9 * best,
                      "%lld us, %lld us each, noise %.1f: %.0f a second, and %.0f is possible; limit %.0f",
                      (long long)stores[i / 2].latency_us, (long long)stores[i / 2].each_us, model.noise, found, best,
                      store.limits);
    }
}
END_TEST

/* Where the bottleneck is near, few are enough, and more than a few hundred are never let out. */
START_TEST(few_where_few_are_enough)
{
    struct mr_flight flight;
    struct store near = {.latency_ns = 100000, .each_ns = 300000, .noise = 0.2};
    mr_flight_init(&flight, 0, 0);
    run(&near, &flight, 60, SLOTS, 100000);
    ck_assert_msg(near.limits < 32, "%.0f in flight", near.limits);
    struct store far = {.latency_ns = MR_SECOND_NS, .each_ns = 1000};
    mr_flight_init(&flight, 0, 0);
    run(&far, &flight, 120, SLOTS, 1000);
    ck_assert_msg(far.limits > 150 && far.limits <= MR_FLIGHT_MOST, "%.0f in flight", far.limits);
    mr_flight_init(&flight, 0, 24);
    run(&far, &flight, 60, SLOTS, 1000);
    ck_assert_uint_le(mr_flight_limit(&flight), 24);
}
END_TEST

/* Nobody waits for more: nothing is learnt, and nothing is grown. */
START_TEST(not_more_than_is_asked_for)
{
    struct mr_flight flight;
    struct store store = {.latency_ns = 20 * MR_MILLISECOND_NS, .each_ns = 10000};
    mr_flight_init(&flight, 0, 0);
    run(&store, &flight, 30, 8, 100000);
    ck_assert_uint_le(mr_flight_limit(&flight), MR_FLIGHT_FIRST);
    double rate = run(&store, &flight, 30, SLOTS, 100000); /* then somebody does */
    ck_assert_msg(rate > 8000, "%.0f a second", rate);
}
END_TEST

/* A store that refuses what is above a number: few are refused, and it is kept busy. */
START_TEST(a_store_that_refuses)
{
    static const unsigned above[] = {2, 10, 50};
    for (unsigned i = 0; i < 3; i++) {
        struct mr_flight flight;
        struct store store = {
            .latency_ns = 5 * MR_MILLISECOND_NS, .each_ns = 10000, .busy_above = above[i], .noise = 0.1};
        mr_flight_init(&flight, 0, 0);
        double rate = run(&store, &flight, 60, SLOTS, 100000), possible = above[i] / 0.005;
        ck_assert_msg(rate > 0.6 * possible, "%u: %.0f a second of %.0f", above[i], rate, possible);
        ck_assert_msg(store.refused < store.answers / 50, "%llu of %llu are refused", (unsigned long long)store.refused,
                      (unsigned long long)store.answers);
    }
}
END_TEST

START_TEST(a_number_stays_a_number)
{
    struct mr_flight flight;
    struct store store = {.latency_ns = 20 * MR_MILLISECOND_NS, .each_ns = 10000};
    mr_flight_init(&flight, 7, 0);
    run(&store, &flight, 10, SLOTS, 100000);
    ck_assert_uint_eq(mr_flight_limit(&flight), 7);
    mr_flight_busy(&flight, store.now_ns, store.now_ns);
    ck_assert_uint_eq(mr_flight_limit(&flight), 3);
    mr_flight_busy(&flight, store.now_ns, store.now_ns - 1); /* of the same burst */
    ck_assert_uint_eq(mr_flight_limit(&flight), 3);
    for (unsigned i = 0; i < 200; i++)
        mr_flight_good(&flight, store.now_ns, 0, true);
    ck_assert_uint_eq(mr_flight_limit(&flight), 7);
    for (unsigned i = 1; i < 20; i++)
        mr_flight_busy(&flight, store.now_ns + i, store.now_ns + i);
    ck_assert_uint_eq(mr_flight_limit(&flight), 1);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("flight");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, as_good_as_the_best_fixed_number);
    tcase_add_test(tc, few_where_few_are_enough);
    tcase_add_test(tc, not_more_than_is_asked_for);
    tcase_add_test(tc, a_store_that_refuses);
    tcase_add_test(tc, a_number_stays_a_number);
    return mr_suite_run("flight", tc);
}
