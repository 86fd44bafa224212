/*
 * listing.c - see listing.h. Every name of a data set lies in exactly one range, from the start of a listing to its
 * end: a cut divides a range, and a range whose worker dies waits again as a whole. CONCAT is sent when no range is
 * left, and in the ranges' order.
 */
#include "supervisor/listing.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bar.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "base/size.h"
#include "supervisor/run_impl.h"

#define INDEXES_A_MESSAGE 30u
#define SHOW_EVERY_MS     500   /* on a terminal */
#define LOG_EVERY_MS      10000 /* elsewhere */
#define LINGER_MS         10000 /* with nothing to do */

/* What a list worker works on: child->job points to a range (list) or a data set (concat). */
static bool is_concat(const struct mr_child *child)
{
    const struct mr_supervisor *s = child->supervisor;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->concat == child)
            return true;
    return false;
}

static struct mr_name_range *range_of(const struct mr_child *child)
{
    return child->job && !is_concat(child) ? child->job : NULL;
}

static struct mr_dataset *dataset_of(const struct mr_name_range *range)
{
    return range->owner;
}

/* ---- ranges ---- */

/* The data set if it is being listed. */
static struct mr_dataset *listed(struct mr_supervisor *s, unsigned i)
{
    struct mr_dataset *dataset = s->datasets[i];
    return dataset && dataset->state <= MR_DATASET_LISTING && !dataset->indexed ? dataset : NULL;
}

/* The same, and no saved index is looked for. */
static struct mr_dataset *in_ranges(struct mr_supervisor *s, unsigned i)
{
    struct mr_dataset *dataset = listed(s, i);
    return dataset && dataset->load == MR_LOAD_NO ? dataset : NULL;
}

/* A data set for which a saved index is to be looked for. */
static struct mr_dataset *next_load(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = listed(s, i);
        if (dataset && dataset->load == MR_LOAD_WANTED && !mr_dataset_adopt(dataset))
            return dataset;
    }
    return NULL;
}

static struct mr_name_range *next_waiting(struct mr_supervisor *s)
{
    struct mr_name_range *range = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX && !range; i++)
        range = in_ranges(s, i) ? mr_name_ranges_waiting(&s->datasets[i]->ranges) : NULL;
    return range;
}

/* A data set whose ranges are all listed. */
static struct mr_dataset *next_complete(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = in_ranges(s, i);
        if (dataset && !dataset->concat && mr_name_ranges_complete(&dataset->ranges))
            return dataset;
    }
    return NULL;
}

/* Ranges that will be available without another cut. */
static unsigned promised(struct mr_supervisor *s)
{
    unsigned n = 0;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        n += in_ranges(s, i) ? mr_name_ranges_promised(&s->datasets[i]->ranges) : 0;
    return n;
}

/* The range that has given the most so far and may be cut. */
static struct mr_name_range *busiest(struct mr_supervisor *s)
{
    struct mr_name_range *best = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = in_ranges(s, i);
        struct mr_name_range *range = dataset && dataset->names < 0 ? mr_name_ranges_busiest(&dataset->ranges) : NULL;
        if (range && !((struct mr_child *)range->worker)->draining && (!best || range->objects > best->objects))
            best = range;
    }
    return best;
}

/* Gives the range to an idle worker; it is the worker's job until RANGE_DONE or its death. */
static void send_range(struct mr_child *child, struct mr_name_range *range)
{
    struct mr_dataset *dataset = dataset_of(range);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_RANGE);
    mr_msg_put_u64(out, "dataset", dataset->number);
    mr_msg_put_u64(out, "range", range->id);
    mr_msg_put_str(out, "uri", range->uri);
    mr_msg_put_str(out, "start", range->start);
    mr_msg_put_bool(out, "has_end", range->end != NULL);
    mr_msg_put_str(out, "end", range->end ? range->end : "");
    mr_msg_put_bool(out, "ranged", dataset->ranged);
    mr_msg_put_bool(out, "shards", dataset->shards);
    mr_msg_put_bool(out, "checksums", dataset->checksums);
    if (dataset->names >= 0)
        mr_msg_put_fd(out, dataset->names);
    mr_name_range_begin(range, child);
    child->job = range;
    mr_child_send(child, out);
    mr_dataset_begun(dataset);
}

/* All ranges are done: sends their indexes to one worker, in the order of the names, in as many messages as their
 * descriptors need. */
static void send_concat(struct mr_child *child, struct mr_dataset *dataset)
{
    struct mr_name_range *range = dataset->ranges.first;
    dataset->concat = child;
    child->job = dataset;
    while (range) {
        struct mr_msg_out *out = mr_msg_new(MR_MSG_CONCAT);
        mr_dataset_put(dataset, out);
        mr_msg_put_u64(out, "requests", dataset->ranges.requests);
        mr_msg_put_u64(out, "stale", dataset->stale);
        mr_msg_put_bool(out, "replace", dataset->replace || dataset->ranged); /* nothing of it is kept */
        for (unsigned i = 0; i < INDEXES_A_MESSAGE && range; i++, range = range->next)
            mr_msg_put_fd(out, range->index);
        mr_msg_put_bool(out, "more", range != NULL);
        mr_child_send(child, out);
    }
}

static void send_load(struct mr_child *child, struct mr_dataset *dataset)
{
    const struct mr_dataset *base = mr_dataset_base(dataset);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_INDEX_LOAD);
    mr_dataset_put(dataset, out);
    if (dataset->wanted[0] != '\0' && base && base->indexed)
        mr_msg_put_fd(out, base->index);
    mr_dataset_begun(dataset);
    dataset->load = MR_LOAD_RUNNING;
    dataset->concat = child;
    child->job = dataset;
    mr_child_send(child, out);
}

static void send_split(struct mr_name_range *range)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_SPLIT);
    mr_msg_put_u64(out, "range", range->id);
    mr_msg_put_u64(out, "level", range->level);
    range->splitting = true;
    mr_child_send(range->worker, out);
}

/* ---- dispatch ---- */

static bool any_listing(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (listed(s, i))
            return true;
    return false;
}

/* The first idle worker, or NULL; *idle: how many there are. */
static struct mr_child *idle_worker(struct mr_supervisor *s, unsigned *idle)
{
    struct mr_child *first = NULL;
    *idle = 0;
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        struct mr_child *child = &s->listing.workers[i];
        if (child->state != MR_CHILD_RUNNING || child->job || child->draining)
            continue;
        first = first ? first : child;
        ++*idle;
    }
    return first;
}

/* Workers that will ask for work soon. */
static unsigned coming_workers(const struct mr_supervisor *s)
{
    unsigned coming = 0;
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        const struct mr_child *child = &s->listing.workers[i];
        coming += child->state == MR_CHILD_STARTING || child->state == MR_CHILD_WAITING;
    }
    return coming;
}

/* One more process, if a slot is left. */
static bool start_worker(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        struct mr_child *child = &s->listing.workers[i];
        if (child->state == MR_CHILD_FREE) {
            mr_child_start(child);
            return true;
        }
    }
    return false;
}

/* A client that opens a file opens another one soon, and a worker that is there has its connections and its token. */
static void expect_more(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (listed(s, i) && s->datasets[i]->ranged) {
            mr_events_start(&s->events, &s->listing.linger, LINGER_MS);
            return;
        }
}

static void linger_due(struct mr_timer *timer)
{
    (void)timer; /* it is not active any more, and settle comes next */
}

/* Drains every worker without a job, except one while `linger` is active. */
static void end_workers(struct mr_supervisor *s)
{
    unsigned idle;
    const struct mr_child *stays = s->listing.linger.active ? idle_worker(s, &idle) : NULL;
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        struct mr_child *child = &s->listing.workers[i];
        if (!child->job && child != stays)
            mr_child_drain(child, false);
    }
}

/* ---- progress ---- */

static void listing_show(struct mr_listing *listing, const char *text)
{
    /* The cursor goes back to the line's start, so that the next log line is written over it. */
    char line[400];
    snprintf(line, sizeof line, "\r%-*s\r", (int)listing->shown, text);
    mr_log_show(line);
    listing->shown = (unsigned)strlen(text);
}

/* What all its ranges have found so far. */
static struct mr_name_range sum_of(const struct mr_dataset *dataset, unsigned *workers)
{
    struct mr_name_range sum = {0};
    for (const struct mr_name_range *range = dataset->ranges.first; range; range = range->next) {
        *workers += range->worker != NULL;
        sum.objects += range->objects;
        sum.bytes += range->bytes;
        sum.shards += range->shards;
        sum.shards_done += range->shards_done;
        sum.shard_bytes += range->shard_bytes;
        sum.passed += range->passed;
    }
    return sum;
}

/* Of names the count so far, as the total is unknown; of shards it is known. */
static void progress_text(const struct mr_dataset *dataset, bool bar, char *text, size_t size)
{
    unsigned workers = 0;
    const struct mr_name_range sum = sum_of(dataset, &workers);
    double seconds = (double)(mr_clock_mono_ns() - dataset->opened_ns) / 1e9;
    char bytes[32], line[48] = "", left[32];
    mr_size_text((double)sum.bytes, bytes);
    if (sum.shards == 0) {
        snprintf(text, size, "%llu objects so far, %s, %.0f/s, %llu requests, %u workers",
                 (unsigned long long)sum.objects, bytes, seconds > 0 ? (double)sum.objects / seconds : 0,
                 (unsigned long long)dataset->ranges.requests, workers);
        return;
    }
    double share = sum.shard_bytes > 0 ? (double)sum.passed / (double)sum.shard_bytes : 0;
    mr_bar_left(left, sizeof left, share > 0 ? seconds * (1 - share) / share : 0);
    if (bar)
        mr_bar_put(line, sizeof line, share);
    snprintf(text, size, "%s%s%llu of %llu shards, %llu samples, %s, %llu requests%s%s", line, bar ? "  " : "",
             (unsigned long long)sum.shards_done, (unsigned long long)sum.shards, (unsigned long long)sum.objects,
             bytes, (unsigned long long)dataset->ranges.requests, left[0] ? ", " : "", left);
}

static void log_progress(struct mr_listing *listing, const struct mr_dataset *dataset)
{
    char text[200], line[300];
    progress_text(dataset, listing->terminal, text, sizeof text);
    if (!listing->terminal) {
        mr_log_info("listing %.40s: %s", mr_dataset_label(dataset), text);
        return;
    }
    /* What does not fit the line would remain when the next one is written over it. */
    unsigned columns = mr_bar_columns();
    size_t size = sizeof line < columns ? sizeof line : columns;
    if (text[0] == '[')
        snprintf(line, size, "%s  %.60s", text, mr_dataset_label(dataset));
    else
        snprintf(line, size, "listing %.40s: %s", mr_dataset_label(dataset), text);
    listing_show(listing, line);
}

static void progress_due(struct mr_timer *timer)
{
    struct mr_listing *listing = MR_CONTAINER_OF(timer, mr_listing, progress);
    struct mr_supervisor *s = listing->workers[0].supervisor;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (in_ranges(s, i) && s->datasets[i]->ranges.requests > 0) {
            log_progress(listing, s->datasets[i]);
            if (listing->terminal)
                break; /* there is one line */
        }
    mr_events_start(&s->events, timer, listing->terminal ? SHOW_EVERY_MS : LOG_EVERY_MS);
}

static void watch_progress(struct mr_supervisor *s, bool listing)
{
    struct mr_listing *l = &s->listing;
    if (listing && !l->progress.active && l->worker_count > 0 && mr_log_level_now() >= MR_LOG_INFO) {
        mr_events_start(&s->events, &l->progress, l->terminal ? SHOW_EVERY_MS : LOG_EVERY_MS);
    } else if (!listing) {
        mr_events_stop(&s->events, &l->progress);
        if (l->shown > 0)
            listing_show(l, "");
    }
}

/* Gives the next piece of work to an idle worker; false: there is none. */
static bool give_work(struct mr_supervisor *s, struct mr_child *child)
{
    struct mr_dataset *load = next_load(s);
    struct mr_dataset *complete = load ? NULL : next_complete(s);
    struct mr_name_range *waiting = load || complete ? NULL : next_waiting(s);
    if (load)
        send_load(child, load);
    else if (complete)
        send_concat(child, complete);
    else if (waiting)
        send_range(child, waiting);
    return load || complete || waiting;
}

/* True when a worker was given work, or started. */
static bool dispatch(struct mr_supervisor *s)
{
    if (s->state > MR_SUP_RUNNING)
        return false;
    watch_progress(s, any_listing(s));
    if (!any_listing(s)) {
        end_workers(s);
        return false;
    }
    expect_more(s);
    bool changed = false;
    struct mr_child *child;
    unsigned idle;
    while ((child = idle_worker(s, &idle)) && give_work(s, child))
        changed = true;
    if (!child) {
        bool work = next_load(s) || next_complete(s) || next_waiting(s) || busiest(s);
        return (work && coming_workers(s) == 0 && start_worker(s)) || changed;
    }
    struct mr_name_range *busy;
    while (idle > promised(s) && (busy = busiest(s)))
        send_split(busy);
    return changed;
}

/* ---- settle ---- */

/* What the slot's process worked on waits again. */
static void give_back(struct mr_child *child)
{
    struct mr_name_range *range = range_of(child);
    if (range) {
        mr_name_range_give_back(range);
    } else if (child->job) {
        struct mr_dataset *dataset = child->job;
        dataset->concat = NULL;
        dataset->load = dataset->load == MR_LOAD_RUNNING ? MR_LOAD_WANTED : dataset->load;
    }
    child->job = NULL;
}

/* Kills that come from outside do not count, but a listing for which there is no memory would begin anew for ever. */
static void count_oom_kill(struct mr_child *child)
{
    if (child->end.signal != SIGKILL || !mr_oom_just_now(&child->supervisor->oom))
        return;
    child->idle_starts++;
    child->fail_code = MR_E_NO_MEMORY;
    snprintf(child->fail_text, sizeof child->fail_text,
             "list worker %u was killed %sbecause the memory limit was reached: lower memory.arena_bytes or "
             "list.workers, or raise the limit",
             child->slot, child->idle_starts > 1 ? "again and again " : "");
    mr_log_limited(&child->oom_logged, MR_LOG_ERROR, "%s", child->fail_text);
}

/* The slot cannot work: what is being listed fails with its text. */
static void fail_listed(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (listed(s, i))
            mr_dataset_fail(s->datasets[i], child->fail_code, child->fail_text);
    child->state = MR_CHILD_FREE; /* the next data set is another attempt */
    child->idle_starts = 0;
}

static bool settle_workers(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        struct mr_child *child = &s->listing.workers[i];
        if (child->state == MR_CHILD_ENDED) {
            count_oom_kill(child);
            give_back(child);
        }
        changed |= mr_child_settle(child);
        if (mr_child_has_rested(child) && child->state == MR_CHILD_FAILED) {
            fail_listed(child);
            changed = true;
        }
    }
    return changed;
}

/* Stops listing data sets that have failed: their workers end, and their ranges are freed. */
static bool listing_let_go(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->listing.worker_count; i++) {
        struct mr_child *child = &s->listing.workers[i];
        struct mr_name_range *range = range_of(child);
        const struct mr_dataset *dataset = range ? dataset_of(range) : child->job;
        if (!dataset || dataset->state != MR_DATASET_FAILED)
            continue;
        child->job = NULL;
        mr_child_drain(child, false);
        changed = true;
    }
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (!dataset || dataset->state != MR_DATASET_FAILED || (!dataset->concat && !dataset->ranges.first))
            continue;
        dataset->concat = NULL;
        mr_name_ranges_clear(&dataset->ranges);
        changed = true;
    }
    return changed;
}

bool mr_listing_settle(struct mr_supervisor *s)
{
    bool changed = settle_workers(s);
    changed |= listing_let_go(s);
    return dispatch(s) || changed;
}

bool mr_listing_any(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        if (mr_child_has_process(&s->listing.workers[i]))
            return true;
    return false;
}

void mr_listing_renew(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->listing.linger); /* settle ends the workers that have nothing to do */
}

void mr_listing_drain(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        mr_child_drain(&s->listing.workers[i], false);
}

void mr_listing_kill(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        mr_child_kill(&s->listing.workers[i]);
}

/* ---- messages ---- */

/* The range that the message names, if this worker has it. NULL with *rc set: 0 if it is merely late. */
static struct mr_name_range *named_range(struct mr_child *child, const struct mr_msg_in *in, int *rc)
{
    uint64_t id;
    *rc = mr_msg_get_u64(in, "range", &id);
    struct mr_name_range *range = range_of(child);
    return *rc == 0 && range && range->id == id && dataset_of(range)->state != MR_DATASET_FAILED ? range : NULL;
}

static int page_came(struct mr_child *child, const struct mr_msg_in *in)
{
    int rc;
    struct mr_name_range *range = named_range(child, in, &rc);
    if (!range)
        return rc;
    uint64_t objects, pages;
    if (mr_msg_get_u64(in, "objects", &objects) != 0 || mr_msg_get_u64(in, "pages", &pages) != 0 ||
        mr_msg_get_u64(in, "bytes", &range->bytes) != 0 || mr_msg_get_u64(in, "shards", &range->shards) != 0 ||
        mr_msg_get_u64(in, "shards_done", &range->shards_done) != 0 ||
        mr_msg_get_u64(in, "shard_bytes", &range->shard_bytes) != 0 ||
        mr_msg_get_u64(in, "passed", &range->passed) != 0)
        return -1;
    mr_name_range_page(&dataset_of(range)->ranges, range, objects, pages);
    mr_dataset_progress(dataset_of(range));
    return 0;
}

/* The worker's answer to SPLIT: where the range was cut, and the rest becomes a range of its own, or that it cannot be
 * cut. */
static int split_came(struct mr_child *child, const struct mr_msg_in *in)
{
    int rc;
    struct mr_name_range *range = named_range(child, in, &rc);
    if (!range || !range->splitting)
        return rc;
    bool none;
    if (mr_msg_get_bool(in, "none", &none) != 0)
        return -1;
    if (none) {
        mr_name_range_uncut(range);
        return 0;
    }
    const char *mid;
    uint64_t level, deepest;
    if (mr_msg_get_str(in, "mid", &mid) != 0 || mr_msg_get_u64(in, "level", &level) != 0 ||
        mr_msg_get_u64(in, "deepest", &deepest) != 0)
        return -1;
    if (level > MR_INDEX_NAME_MAX || deepest > MR_INDEX_NAME_MAX) {
        mr_error_set(MR_E_PROTOCOL, "a range was cut after the end of its names");
        return -1;
    }
    if (!mr_name_range_cut(&dataset_of(range)->ranges, range, ++child->supervisor->listing.last_range, mid, level,
                           deepest))
        return -1;
    return 0;
}

/* Takes over the range's index; the worker is idle afterwards. */
static int range_done(struct mr_child *child, struct mr_msg_in *in)
{
    int rc;
    struct mr_name_range *range = named_range(child, in, &rc);
    if (!range)
        return rc;
    uint64_t objects;
    if (mr_msg_get_u64(in, "objects", &objects) != 0 || (range->index = mr_msg_take_fd(in, 0)) < 0)
        return -1;
    mr_name_range_done(&dataset_of(range)->ranges, range, objects);
    child->job = NULL;
    mr_dataset_progress(dataset_of(range));
    return 0;
}

/* The data set that the message names, if this worker has its index to make or to load. NULL with *rc set: 0 if it is
 * merely late. */
static struct mr_dataset *named_concat(struct mr_child *child, const struct mr_msg_in *in, int *rc)
{
    uint64_t number;
    *rc = mr_msg_get_u64(in, "dataset", &number);
    struct mr_dataset *dataset = *rc == 0 && number < MR_DATASETS_MAX ? child->supervisor->datasets[number] : NULL;
    return dataset && child->job == dataset && dataset->state != MR_DATASET_FAILED ? dataset : NULL;
}

static int index_done(struct mr_child *child, struct mr_msg_in *in)
{
    int rc;
    struct mr_dataset *dataset = named_concat(child, in, &rc);
    if (!dataset)
        return rc;
    if (mr_dataset_indexed(dataset, in) != 0)
        return -1;
    child->job = NULL;
    dataset->concat = NULL;
    dataset->load = MR_LOAD_NO;
    return 0;
}

static int index_missing(struct mr_child *child, const struct mr_msg_in *in)
{
    int rc;
    struct mr_dataset *dataset = named_concat(child, in, &rc);
    if (!dataset)
        return rc;
    uint64_t stale;
    if (mr_msg_get_u64(in, "stale", &stale) != 0)
        return -1;
    child->job = NULL;
    dataset->concat = NULL;
    mr_dataset_not_saved(dataset, stale);
    return 0;
}

/* FAILED with a data set ends that data set and frees the worker; without one it is about the process. */
static int failed(struct mr_child *child, const struct mr_msg_in *in)
{
    if (!mr_msg_has(in, "dataset"))
        return 0; /* about the worker: its exit status decides */
    uint64_t number, code;
    const char *text;
    if (mr_msg_get_u64(in, "dataset", &number) != 0 || mr_msg_get_u64(in, "code", &code) != 0 ||
        mr_msg_get_str(in, "text", &text) != 0)
        return -1;
    struct mr_dataset *dataset = number < MR_DATASETS_MAX ? child->supervisor->datasets[number] : NULL;
    struct mr_name_range *range = range_of(child);
    bool ours = range ? dataset_of(range) == dataset : child->job == dataset;
    if (!dataset || !ours)
        return 0; /* it has failed or was closed already, and this worker is about to be drained */
    if (range)
        range->worker = NULL;
    else
        dataset->concat = NULL;
    child->job = NULL;
    mr_dataset_fail(dataset, code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_INTERNAL, text);
    return 0;
}

static int message(struct mr_child *child, struct mr_msg_in *in)
{
    switch (in->type) {
    case MR_MSG_RANGE_PAGE:
        return page_came(child, in);
    case MR_MSG_RANGE_SPLIT:
        return split_came(child, in);
    case MR_MSG_RANGE_DONE:
        return range_done(child, in);
    case MR_MSG_INDEX_DONE:
        return index_done(child, in);
    case MR_MSG_INDEX_MISSING:
        return index_missing(child, in);
    case MR_MSG_FAILED:
        return failed(child, in);
    default:
        mr_error_set(MR_E_PROTOCOL, "a list worker does not send messages of type %d", (int)in->type);
        return -1;
    }
}

static void listing_setup(struct mr_child *child, struct mr_msg_out *out)
{
    (void)child;
    (void)out;
}

static const struct mr_child_role list_role = {.name = "list",
                                               .counters = MR_ROLE_LIST,
                                               .first_counter = MR_WC_LIST_JOBS, /* a page is lost with its range */
                                               .last_counter = MR_WC_LIST_JOBS,
                                               .setup = listing_setup,
                                               .message = message};

int mr_listing_init(struct mr_supervisor *s)
{
    struct mr_listing *listing = &s->listing;
    listing->progress.run = progress_due;
    listing->linger.run = linger_due;
    listing->terminal = isatty(STDERR_FILENO) && !s->is_private; /* of a private supervisor, Python shows it */
    unsigned wanted =
        s->config.list.workers < MR_LIST_WORKERS_MAX ? (unsigned)s->config.list.workers : MR_LIST_WORKERS_MAX;
    while (listing->worker_count < wanted) {
        struct mr_child *child = &listing->workers[listing->worker_count++];
        if (mr_child_init(child, s, &list_role, listing->worker_count - 1) != 0)
            return -1;
    }
    return 0;
}

void mr_listing_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->listing.progress);
    mr_events_stop(&s->events, &s->listing.linger);
    if (s->listing.shown > 0)
        listing_show(&s->listing, "");
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        mr_child_close(&s->listing.workers[i]);
    s->listing.worker_count = 0;
}
