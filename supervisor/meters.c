/* meters.c - see meters.h. What lies behind a client's descriptor may change at any time: only counters are read of it,
 * one by one. */
#include "supervisor/meters.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "supervisor/run_impl.h"

#define METERS_MAX 64u /* of one client: a training has a few loaders */
#define STRETCH_NS (5 * MR_SECOND_NS)
#define MOST       0.5 /* share of checks at which a reader waits: a loop that gets nothing waits for its samples */

static struct mr_metered_at read_now(const struct mr_supervisor *s, const struct mr_metered *each)
{
    struct mr_metered_at now = {.at_ns = mr_clock_mono_ns()};

    mr_batches_count(s, each->client, &now.batches);
    mr_meter_read(&each->meter, &now.sums);
    mr_node_read(&s->board->node, &now.node);
    return now;
}

/* Unmaps those of one client, or (NULL) those that have ended. */
static void meters_let_go(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (struct mr_metered **at = &s->meters.first; *at;) {
        struct mr_metered *each = *at;
        if (client ? each->client != client : !mr_meter_has_ended(&each->meter)) {
            at = &each->next;
            continue;
        }
        *at = each->next;
        mr_meter_close(&each->meter);
        free(each);
    }
}

int mr_meters_add(struct mr_supervisor *s, const struct mr_client_peer *client, int fd)
{
    unsigned count = 0;

    meters_let_go(s, NULL); /* those that have ended no longer count */
    for (const struct mr_metered *each = s->meters.first; each; each = each->next)
        count += each->client == client;
    if (count >= METERS_MAX) {
        mr_error_set(MR_E_USAGE, "the counters of a loader are one too many of this process");
        return -1;
    }
    struct mr_metered *made = calloc(1, sizeof *made);
    if (!made) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the counters of a loader");
        return -1;
    }
    if (mr_meter_map(&made->meter, fd) != 0) {
        free(made);
        return -1;
    }
    made->client = client;
    made->number = s->meters.made++;
    made->older = made->newer = read_now(s, made);
    made->next = s->meters.first;
    s->meters.first = made;
    return 0;
}

void mr_meters_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    meters_let_go(s, client);
}

/* Adds the wait of a loop that waits now, which its counters do not have yet: since it asked, or since the stretch
 * began. Not for the first batch of an iteration: workers start, and what readers wait for says more. */
static void add_wait(const struct mr_metered_at *now, double reader_waits, struct mr_metered *each)
{
    struct mr_meter_sums *sums = &each->stretch;
    int64_t since = now->sums.asked > each->older.at_ns ? now->sums.asked : each->older.at_ns;

    if (now->sums.asked == 0 || now->sums.given == 0 || now->at_ns - since < MR_SECOND_NS)
        return;
    uint64_t waited = (uint64_t)(now->at_ns - since);
    sums->wait += waited;
    sums->late += waited;
    *(reader_waits > MOST ? &sums->store : &sums->transform) += waited;
    if (sums->batches == 0)
        sums->batches = 1;
}

void mr_meters_look(struct mr_supervisor *s, double reader_waits)
{
    meters_let_go(s, NULL);
    for (struct mr_metered *each = s->meters.first; each; each = each->next) {
        struct mr_metered_at now = read_now(s, each);
        if (now.at_ns - each->newer.at_ns >= STRETCH_NS) {
            each->older = each->newer;
            each->newer = now;
        }
        struct mr_node node = now.node;
        struct mr_batch_counts batches = now.batches;
        each->stretch = now.sums;
        mr_meter_since(&each->stretch, &each->older.sums);
        mr_node_since(&node, &each->older.node);
        mr_batch_since(&batches, &each->older.batches);
        add_wait(&now, reader_waits, each);
        mr_verdict_find(&each->stretch, &node, &batches, &each->verdict);
    }
}

const struct mr_metered *mr_meters_slowest(const struct mr_supervisor *s, unsigned *loops)
{
    const struct mr_metered *slowest = NULL;

    *loops = 0;
    for (const struct mr_metered *each = s->meters.first; each; each = each->next) {
        if (each->stretch.batches == 0)
            continue;
        ++*loops;
        if (!slowest || mr_verdict_wait_share(&each->stretch) > mr_verdict_wait_share(&slowest->stretch))
            slowest = each;
    }
    return slowest;
}

void mr_meters_close(struct mr_supervisor *s)
{
    while (s->meters.first)
        meters_let_go(s, s->meters.first->client);
}
