/* limit.c - see limit.h. */
#include "supervisor/limit.h"

#include <stdio.h>

#include "base/clock.h"
#include "supervisor/run_impl.h"

#define WAITING_LITTLE   0.1                     /* below this share of the time a reader counts as never waiting */
#define RECENT           0.3                     /* weight of the last second */
#define COMPUTING        0.9                     /* share of a core, from which a fetch worker has no time left */
#define LOOK_NS          (MR_SECOND_NS * 9 / 10) /* the heartbeat may come more often */
#define CONNECTIONS_MANY 16 /* set in the configuration: if bytes come slowly over so many, the store is the cause */

/* Objects that are looked up for one reader (ranged) do not count. */
static bool is_listing(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && !s->datasets[i]->ranged &&
            (s->datasets[i]->state == MR_DATASET_NEW || s->datasets[i]->state == MR_DATASET_LISTING))
            return true;
    return false;
}

/* Over the open lanes. */
struct readers {
    unsigned open, windows; /* tickets that there may be */
    double waiting;         /* their mean share of waiting */
    double most;            /* that of the one that waits most, of those of data sets: a loop waits for one of them */
    unsigned sums[16];      /* tickets in each state */
};

/* Its objects are looked up for one reader: a file's. */
static bool is_looked_up(const struct mr_supervisor *s, const struct mr_registered_lane *entry)
{
    const struct mr_dataset *dataset = entry->lane.dataset < MR_DATASETS_MAX ? s->datasets[entry->lane.dataset] : NULL;
    return dataset && dataset->ranged;
}

static struct readers sum_readers(const struct mr_supervisor *s)
{
    struct readers readers = {0};

    for (unsigned i = 0; i < s->lanes.used; i++) {
        const struct mr_registered_lane *entry = s->lanes.slots[i];
        if (!entry || entry->state != MR_LANE_OPEN)
            continue;
        unsigned counts[16];
        readers.open++;
        readers.waiting += entry->waiting;
        if (!is_looked_up(s, entry) && entry->waiting > readers.most)
            readers.most = entry->waiting;
        readers.windows += mr_lanes_ahead(entry);
        mr_lanes_count_states(&entry->lane, counts);
        for (unsigned j = 0; j < 16; j++)
            readers.sums[j] += counts[j];
    }
    if (readers.open > 0)
        readers.waiting /= readers.open;
    return readers;
}

/* At least half of the arenas is in use, or it is not known. */
static bool arenas_fill(const struct mr_supervisor *s)
{
    return mr_fetch_workers_sum(s, MR_WC_ARENA_FREE_BYTES) <= mr_fetch_workers_sum(s, MR_WC_ARENA_BYTES) / 2;
}

/* ---- the cause ---- */

/* Requests wait: for their first byte, or for the rest. */
static enum mr_cause slower_half(const struct mr_limit *limit)
{
    return limit->body_ns > limit->first_ns ? MR_CAUSE_BANDWIDTH : MR_CAUSE_LATENCY;
}

/* Samples that were asked for and that no worker is downloading yet: is there no room, or no free connection? */
static enum mr_cause cause_of_pending(const struct mr_supervisor *s, const struct readers *readers)
{
    const unsigned *sums = readers->sums;
    const struct mr_limit *limit = &s->limit;
    uint64_t set = s->config.fetch.connections;

    if (sums[MR_READY] + sums[MR_HELD] > sums[MR_FILLING] + sums[MR_PENDING] && arenas_fill(s))
        return MR_CAUSE_MEMORY;
    if (mr_fetch_workers_sum(s, MR_WC_REQUEST_RATE) > 0)
        return MR_CAUSE_THROTTLED;
    if (limit->cpu > COMPUTING)
        return MR_CAUSE_FETCH_CPU;
    bool body = slower_half(limit) == MR_CAUSE_BANDWIDTH;
    if (set > 0 && !(body && mr_fetch_workers_sum(s, MR_WC_LIMIT) >= CONNECTIONS_MANY))
        return MR_CAUSE_CONNECTIONS;
    return slower_half(limit);
}

/* The cause for which readers wait. */
static enum mr_cause cause_of(const struct mr_supervisor *s, const struct readers *readers)
{
    const unsigned *sums = readers->sums;

    if (sums[MR_PENDING] > 0)
        return cause_of_pending(s, readers);
    /* Their share of the arena is full before their windows are; or, of a file, they want no more. */
    if (sums[MR_FILLING] + sums[MR_READY] + sums[MR_HELD] + sums[MR_FAILED] < readers->windows / 4 * 3 &&
        arenas_fill(s))
        return MR_CAUSE_MEMORY;
    return s->config.lanes.window > 0 || s->limit.first_ns + s->limit.body_ns == 0 ? MR_CAUSE_WINDOW
                                                                                   : slower_half(&s->limit);
}

/* ---- once a second ---- */

/* The counters' values; what matters is how they have grown since the last look. */
static struct mr_limit_sums read_now(const struct mr_supervisor *s)
{
    struct mr_limit_sums now = {
        .answers = mr_fetch_workers_sum(s, MR_WC_ANSWERS),
        .first_ns = mr_fetch_workers_sum(s, MR_WC_FIRST_BYTE_NS),
        .body_ns = mr_fetch_workers_sum(s, MR_WC_BODY_NS),
        .bytes = mr_fetch_workers_sum(s, MR_WC_BYTES),
        .cpu_ns = mr_fetch_workers_sum(s, MR_WC_CPU_NS),
    };

    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        if (mr_child_has_process(&s->fetch_workers.workers[i]))
            now.delay_ns += mr_machine_delay_ns(s->fetch_workers.workers[i].pid);
    for (unsigned i = 0; i < s->write_workers.count; i++)
        now.saved_bytes += mr_counter_get(s->write_workers.workers[i].counters, MR_WC_PART_BYTES);
    return now;
}

static void blend(double *value, double now)
{
    *value += (*value == 0 ? 1 : RECENT) * (now - *value);
}

/* Updates what is known about requests (first byte, body, bytes a second, CPU of a worker) from the counters' growth
 * since the last look. Rates are smoothed, so one slow second does not change the named cause. */
static void look_at_requests(struct mr_supervisor *s, int64_t passed_ns)
{
    struct mr_limit *limit = &s->limit;
    struct mr_limit_sums now = read_now(s), last = limit->last;
    unsigned workers = 0;

    limit->last = now;
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        workers += mr_child_has_process(&s->fetch_workers.workers[i]);
    double answers = (double)mr_counter_grown(now.answers, last.answers);
    if (answers > 0) {
        blend(&limit->first_ns, (double)mr_counter_grown(now.first_ns, last.first_ns) / answers);
        blend(&limit->body_ns, (double)mr_counter_grown(now.body_ns, last.body_ns) / answers);
    }
    limit->bytes_s = (double)mr_counter_grown(now.bytes, last.bytes) / (double)passed_ns * (double)MR_SECOND_NS;
    uint64_t used = now.cpu_ns + now.delay_ns, before = last.cpu_ns + last.delay_ns;
    if (workers > 0 && used >= before) /* else one of them is new */
        blend(&limit->cpu, (double)(used - before) / (double)passed_ns / workers);
    limit->saving = now.saved_bytes > last.saved_bytes;
}

static void set_gauges(struct mr_supervisor *s, const struct readers *readers)
{
    struct mr_counters *node = &s->board->node;

    mr_counter_set(node, MR_NC_REQUEST_RATE, mr_fetch_workers_sum(s, MR_WC_REQUEST_RATE));
    mr_counter_set(node, MR_NC_CONNECTIONS, mr_fetch_workers_sum(s, MR_WC_LIMIT));
    mr_counter_set(node, MR_NC_WINDOW, readers->open > 0 ? readers->windows / readers->open : 0);
    mr_counter_set(node, MR_NC_FIRST_US, (uint64_t)(s->limit.first_ns / 1e3));
    mr_counter_set(node, MR_NC_BYTES_S, (uint64_t)s->limit.bytes_s);
}

/* Charges the readers' waiting of the last period to the one cause found now; saves are counted beside it. */
static void count_waits(struct mr_supervisor *s, const struct readers *readers, int64_t passed_ns)
{
    struct mr_counters *node = &s->board->node;

    if (readers->open == 0 && is_listing(s))
        mr_counter_add(node, MR_NC_LISTING_NS, (uint64_t)passed_ns);
    if (readers->open == 0)
        return;
    uint64_t waited = (uint64_t)(readers->waiting * (double)passed_ns);
    mr_counter_add(node, MR_NC_LISTING_NS + (unsigned)(cause_of(s, readers) - MR_CAUSE_LISTING), waited);
    if (s->limit.saving)
        mr_counter_add(node, MR_NC_SAVING_NS, waited);
}

void mr_limit_look(struct mr_supervisor *s)
{
    int64_t now_ns = mr_clock_mono_ns(), passed_ns = now_ns - s->limit.looked_ns;

    if (s->limit.looked_ns != 0 && passed_ns < LOOK_NS)
        return;
    struct readers readers = sum_readers(s);
    if (s->limit.looked_ns != 0) {
        look_at_requests(s, passed_ns);
        count_waits(s, &readers, passed_ns);
    } else {
        s->limit.last = read_now(s);
    }
    s->limit.looked_ns = now_ns;
    set_gauges(s, &readers);
    if (s->meters.first) /* only the verdicts on loaders use what the machine is short of */
        mr_machine_look(s, now_ns);
    else
        s->machine.looked_ns = 0;
    mr_meters_look(s, readers.most);
}

/* ---- the verdict of the node ---- */

/* The verdict of the loop that waits most. false: there is no loop. */
static bool find_loop(const struct mr_supervisor *s, struct mr_limit_verdict *verdict)
{
    unsigned loops;
    const struct mr_metered *slowest = mr_meters_slowest(s, &loops);

    if (!slowest)
        return false;
    const struct mr_verdict *found = &slowest->verdict;
    verdict->stage = found->stage == MR_STAGE_NONE ? "step" : mr_stage_name(found->stage);
    verdict->cause = mr_cause_name(found->cause);
    if (found->stage == MR_STAGE_NONE)
        snprintf(verdict->text, sizeof verdict->text, "the training: %s", found->text);
    else if (loops > 1)
        snprintf(verdict->text, sizeof verdict->text, "rank %u's %s: %s", slowest->stretch.rank, verdict->stage,
                 found->text);
    else
        snprintf(verdict->text, sizeof verdict->text, "the %s: %s", verdict->stage, found->text);
    return true;
}

void mr_limit_find(const struct mr_supervisor *s, struct mr_limit_verdict *verdict)
{
    struct readers readers = sum_readers(s);
    char why[MR_VERDICT_TEXT];
    struct mr_node node;

    *verdict = (struct mr_limit_verdict){.stage = "idle", .cause = mr_cause_name(MR_CAUSE_NONE)};
    if (find_loop(s, verdict))
        return;
    mr_node_read(&s->board->node, &node);
    if (readers.open == 0 && is_listing(s)) {
        verdict->stage = "listing";
        verdict->cause = mr_cause_name(MR_CAUSE_LISTING);
        mr_verdict_node_text(MR_CAUSE_LISTING, &node, why, sizeof why);
        snprintf(verdict->text, sizeof verdict->text, "the listing: %s", why);
    } else if (readers.open == 0) {
        snprintf(verdict->text, sizeof verdict->text, "nothing: no reader is open");
    } else if (readers.waiting < WAITING_LITTLE) {
        verdict->stage = "step";
        snprintf(verdict->text, sizeof verdict->text, "the training: readers wait for data %.0f%% of the time",
                 100 * readers.waiting);
    } else {
        enum mr_cause cause = cause_of(s, &readers);
        verdict->stage = mr_stage_name(MR_STAGE_STORE);
        verdict->cause = mr_cause_name(cause);
        mr_verdict_node_text(cause, &node, why, sizeof why);
        snprintf(verdict->text, sizeof verdict->text, "the store (%s): readers wait %.0f%% of the time; %s",
                 verdict->cause, 100 * readers.waiting, why);
    }
}
