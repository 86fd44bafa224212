/* test_rate.c - how many requests a second a store takes, found by workers that know nothing of each other, over simulated
 * stores that refuse what comes above a rate. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/suite.h"
#include "worker/store/rate.h"

#define WORKERS   4u
#define IN_FLIGHT 64u
#define STEP_NS   (MR_MILLISECOND_NS / 2) /* as late as a timer may be */

enum kind {
    BUCKET, /* tokens, of which a tenth of a second's may be saved up */
    SAVING, /* the same, a second's */
    SECOND, /* so many in each second of the clock */
};

struct store {
    enum kind kind;
    double most; /* requests a second; 0: it is out of order, and refuses all */
    int64_t latency_ns;
    /* the state */
    double tokens;
    int64_t filled_ns;
};

static int64_t now_ns;
static uint64_t draws;

static bool takes(struct store *store)
{
    if (store->kind == SECOND) {
        if (now_ns / MR_SECOND_NS != store->filled_ns / MR_SECOND_NS)
            store->tokens = store->most;
    } else {
        double room = store->kind == BUCKET ? store->most / 10 : store->most;
        store->tokens += store->most * (double)(now_ns - store->filled_ns) / (double)MR_SECOND_NS;
        store->tokens = store->tokens > room ? room : store->tokens;
    }
    store->filled_ns = now_ns;
    if (store->tokens < 1)
        return false;
    store->tokens -= 1;
    return true;
}

/* One worker: requests under way, those that wait to be sent again, and as many new ones as it likes. */
struct worker {
    struct mr_rate rate;
    struct request {
        int64_t sent_ns, done_ns, again_ns; /* 0: not */
        bool good;
    } requests[IN_FLIGHT];
    unsigned good, refused;
};

static struct worker workers[WORKERS];

static void answer(struct worker *worker, struct request *request)
{
    if (request->good) {
        worker->good++;
        mr_rate_good(&worker->rate, now_ns);
        request->again_ns = now_ns; /* a new one */
    } else {
        worker->refused++;
        mr_rate_refused(&worker->rate, now_ns, request->sent_ns);
        request->again_ns = now_ns + (int64_t)(mr_mix64(draws++) % MR_SECOND_NS);
    }
    request->done_ns = 0;
}

static void step(struct store *store, struct worker *worker)
{
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        if (worker->requests[i].done_ns && worker->requests[i].done_ns <= now_ns)
            answer(worker, &worker->requests[i]);
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        struct request *request = &worker->requests[i];
        if (request->done_ns || request->again_ns > now_ns)
            continue;
        if (mr_rate_due_ns(&worker->rate, now_ns) > now_ns)
            break;
        mr_rate_sent(&worker->rate, now_ns);
        *request = (struct request){.sent_ns = now_ns, .done_ns = now_ns + store->latency_ns};
        request->good = takes(store);
    }
}

struct sums {
    double good, refused, least; /* a second; of the worker that got the least */
};

static struct sums run(struct store *store, unsigned seconds)
{
    int64_t end_ns = now_ns + (int64_t)seconds * MR_SECOND_NS;
    struct sums sums = {.least = 1e9};
    for (unsigned k = 0; k < WORKERS; k++)
        workers[k].good = workers[k].refused = 0;
    for (unsigned first = 0; now_ns < end_ns; now_ns += STEP_NS, first++)
        for (unsigned k = 0; k < WORKERS; k++)
            step(store, &workers[(first + k) % WORKERS]);
    for (unsigned k = 0; k < WORKERS; k++) {
        double good = (double)workers[k].good / seconds;
        sums.good += good;
        sums.refused += (double)workers[k].refused / seconds;
        sums.least = good < sums.least ? good : sums.least;
    }
    return sums;
}

static void begin(void)
{
    memset(workers, 0, sizeof workers);
    now_ns = 1000 * MR_SECOND_NS;
    draws = 0;
    for (unsigned k = 0; k < WORKERS; k++)
        mr_rate_init(&workers[k].rate, now_ns);
}

static const struct {
    enum kind kind;
    double most;
    unsigned latency_ms;
} stores[] = {
    {BUCKET, 200, 1},  {BUCKET, 200, 20},  {BUCKET, 2000, 1}, {BUCKET, 2000, 20}, {SAVING, 200, 20},
    {SAVING, 2000, 5}, {SAVING, 5500, 20}, {SECOND, 200, 5},  {SECOND, 2000, 20}, {SECOND, 5000, 1},
};

static struct store store_of(unsigned i)
{
    return (struct store){stores[i].kind, stores[i].most, stores[i].latency_ms * MR_MILLISECOND_NS, 0, now_ns};
}

/* Within a tenth of what the store takes, and under one in a hundred refused; nobody gets less than a quarter of his part. */
START_TEST(what_the_store_takes)
{
    begin();
    struct store store = store_of((unsigned)_i);
    run(&store, 60);
    struct sums sums = run(&store, 120);
    ck_assert_msg(sums.good > 0.9 * store.most, "store %d: %.0f a second of %.0f", _i, sums.good, store.most);
    ck_assert_msg(sums.refused < 0.01 * sums.good, "store %d: %.1f refused, %.0f not", _i, sums.refused, sums.good);
    ck_assert_msg(sums.least * WORKERS > sums.good / 4, "store %d: %.1f of %.0f", _i, sums.least, sums.good);
}
END_TEST

/* What may be sent follows what the store takes, up and down. */
START_TEST(another_rate)
{
    begin();
    struct store store = store_of(3);
    run(&store, 60);
    store.most = 500;
    run(&store, 10);
    struct sums low = run(&store, 60);
    ck_assert_msg(low.good > 0.9 * store.most, "%.0f a second", low.good);
    ck_assert_msg(low.refused < 0.01 * low.good, "%.1f refused", low.refused);
    store.most = 4000;
    run(&store, 60);
    struct sums high = run(&store, 60);
    ck_assert_msg(high.good > 0.9 * store.most, "%.0f a second", high.good);
}
END_TEST

/* A store that was out of order gets as much as before soon after, and hardly anything meanwhile. */
START_TEST(out_of_order)
{
    begin();
    struct store store = store_of(3);
    run(&store, 60);
    double most = store.most;
    store.most = 0;
    run(&store, 5);
    struct sums meanwhile = run(&store, 30);
    ck_assert_msg(meanwhile.refused < 5 * WORKERS, "%.1f refused a second", meanwhile.refused);
    store.most = most;
    run(&store, 15);
    struct sums after = run(&store, 20);
    ck_assert_msg(after.good > 0.8 * most, "%.0f a second", after.good);
}
END_TEST

/* One in a thousand is no rate. */
START_TEST(one_in_a_thousand)
{
    struct mr_rate rate;
    mr_rate_init(&rate, 0);
    for (int64_t i = 1; i < 1000000; i++) {
        int64_t at_ns = i * MR_MILLISECOND_NS;
        ck_assert_int_eq(mr_rate_due_ns(&rate, at_ns), 0);
        mr_rate_sent(&rate, at_ns);
        if (i % 1000 == 999)
            mr_rate_refused(&rate, at_ns, at_ns);
        else
            mr_rate_good(&rate, at_ns);
    }
    ck_assert(rate.limit == 0);
}
END_TEST

/* What was never reached does not grow: it is not known whether the store would take it. */
START_TEST(grows_only_where_it_limits)
{
    begin();
    struct store store = store_of(3);
    run(&store, 60);
    double limit = workers[0].rate.limit;
    for (unsigned i = 0; i < 600; i++) { /* one in a second */
        now_ns += MR_SECOND_NS;
        ck_assert_int_eq(mr_rate_due_ns(&workers[0].rate, now_ns), 0);
        mr_rate_sent(&workers[0].rate, now_ns);
        mr_rate_good(&workers[0].rate, now_ns);
    }
    ck_assert_msg(workers[0].rate.limit <= limit * 2, "%.0f and %.0f", workers[0].rate.limit, limit);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("rate");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, what_the_store_takes, 0, sizeof stores / sizeof *stores);
    tcase_add_test(tc, another_rate);
    tcase_add_test(tc, out_of_order);
    tcase_add_test(tc, one_in_a_thousand);
    tcase_add_test(tc, grows_only_where_it_limits);
    return mr_suite_run("rate", tc);
}
