#include "worker/fetch/fetch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/index/index.h"
#include "shm/memory/segment.h"
#include "shm/ring/producer.h"
#include "worker/fetch/datasets.h"
#include "worker/fetch/job.h"
#include "worker/link.h"
#include "worker/net.h"

#define STEP_MS   100
#define FINISH_MS 2000 /* for what must be deleted at the end; the supervisor kills after 3 s */

struct fetcher {
    struct mr_link link;
    struct mr_net net;
    struct mr_producer *producer; /* NULL until ARENA */
    void *arena;
    uint64_t arena_bytes;
    struct mr_datasets datasets;
    struct mr_temporaries *temporaries;
    struct mr_jobs *jobs;  /* NULL until ARENA */
    struct mr_lane *early; /* lanes that came before ARENA: after a restart, all that are open */
    unsigned early_count;
    bool solo;     /* a job that must be alone is running */
    bool draining; /* DRAIN came */
    bool bad;      /* a message or the loop failed: leave with status 1 */
    int64_t last_sweep_ns;
    int64_t since_ns; /* start of the current busy or idle stretch */
};

static int size_of_request(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    struct fetcher *f = arg;
    struct mr_index_entry entry;
    return mr_datasets_look(&f->datasets, request, &entry, NULL, bytes);
}

static bool join_requests(void *arg, const struct mr_request *first, const struct mr_request *next)
{
    struct fetcher *f = arg;
    return mr_datasets_join(&f->datasets, first, next);
}

/* ---- lanes and the arena ---- */

static int add_lane(struct fetcher *f, struct mr_msg_in *msg)
{
    struct mr_lane lane;
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = mr_lane_map(&lane, fd);
    close(fd);
    if (rc != 0)
        return -1;
    if (f->producer)
        return mr_producer_add_lane(f->producer, &lane);
    struct mr_lane *early = realloc(f->early, (f->early_count + 1) * sizeof *early);
    if (!early) {
        mr_lane_unmap(&lane);
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u lanes", f->early_count + 1);
        return -1;
    }
    f->early = early;
    f->early[f->early_count++] = lane;
    return 0;
}

/* Maps it, with all its pages allocated and in the page tables. */
static int map_arena(struct fetcher *f, int fd, uint64_t bytes, bool fresh)
{
    bool huge = f->link.config.memory.huge_pages == MR_HUGE_PAGES_AUTO && mr_segment_huge_possible();
    if (fresh && !huge && mr_segment_reserve(fd, "the arena", bytes) != 0)
        return -1;
    void *at = mr_segment_map(fd, bytes, 1, NULL);
    if (!at)
        return -1;
    if (fresh && huge && mr_segment_reserve_huge(fd, at, "the arena", bytes) != 0) {
        mr_segment_unmap(at, bytes);
        return -1;
    }
    if (!huge)
        mr_segment_populate(at, bytes);
    f->arena = at;
    return 0;
}

static int open_arena(struct fetcher *f, struct mr_msg_in *msg)
{
    uint64_t bytes, reserve;
    bool fresh;
    if (f->producer || mr_msg_get_u64(msg, "bytes", &bytes) != 0 || mr_msg_get_u64(msg, "reserve", &reserve) != 0 ||
        mr_msg_get_bool(msg, "fresh", &fresh) != 0) {
        mr_error_set(MR_E_PROTOCOL, "a bad ARENA message");
        return -1;
    }
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = map_arena(f, fd, bytes, fresh);
    close(fd);
    if (rc != 0 && mr_error_code() == MR_E_NO_MEMORY) {
        mr_log_error("%s", mr_error_text());
        return mr_link_say_failed(&f->link, UINT64_MAX, UINT64_MAX); /* the supervisor falls back or gives up */
    }
    if (rc != 0)
        return -1;
    f->arena_bytes = bytes;
    struct mr_producer_options options = {
        .slot = f->link.slot,
        .board = f->link.board,
        .line = f->link.line,
        .arena = f->arena,
        .arena_bytes = bytes,
        .reserve_bytes = reserve,
        .size = size_of_request,
        .size_arg = f,
        .join = join_requests,
    };
    f->producer = mr_producer_new(&options);
    f->jobs = f->producer ? mr_jobs_new(f->producer, &f->datasets) : NULL;
    if (!f->jobs)
        return -1;
    for (unsigned i = 0; i < f->early_count; i++) {
        if (mr_producer_add_lane(f->producer, &f->early[i]) != 0)
            return -1;
    }
    f->early_count = 0;
    free(f->early);
    f->early = NULL;
    return mr_link_say(&f->link, MR_MSG_ARENA_READY);
}

/* ---- the loop ---- */

static unsigned in_flight(const struct fetcher *f)
{
    return f->jobs ? mr_jobs_in_flight(f->jobs) : 0;
}

static uint64_t job_bytes(const struct fetcher *f)
{
    uint64_t most = f->link.config.fetch.compose_max_bytes;
    return most < f->arena_bytes / 4 ? most : f->arena_bytes / 4;
}

/* Claims and starts as much as may be in flight. */
static void start_jobs(struct fetcher *f)
{
    struct mr_job job;
    if (!f->producer || f->draining)
        return;
    f->solo = f->solo && in_flight(f) > 0;
    while (!f->solo && mr_transfer_free(f->net.engine) > 0) {
        unsigned tickets = mr_datasets_compose(&f->datasets) ? (unsigned)f->link.config.fetch.compose_max_objects : 1;
        if (mr_producer_next_job(f->producer, tickets, job_bytes(f), in_flight(f), &job) <= 0)
            return;
        f->solo = job.solo;
        mr_jobs_start(f->jobs, &job);
        f->solo = f->solo && in_flight(f) > 0;
    }
}

static void drop_lane(struct fetcher *f, uint64_t lane)
{
    struct mr_msg_out *msg;
    if (f->producer && !mr_producer_drop_lane(f->producer, (uint32_t)lane))
        return; /* a claim of ours is still in it: the supervisor repeats DROP_LANE */
    if ((msg = mr_msg_new(MR_MSG_DROPPED))) {
        mr_msg_put_u64(msg, "lane", lane);
        if (mr_msg_send(f->link.socket, msg) != 0)
            f->bad = true;
    }
}

static int handle(struct fetcher *f, struct mr_msg_in *msg)
{
    uint64_t value;
    switch (msg->type) {
    case MR_MSG_ARENA:
        return open_arena(f, msg);
    case MR_MSG_DATASET:
        return mr_datasets_add(&f->datasets, msg);
    case MR_MSG_DROP_DATASET:
        return mr_datasets_drop(&f->datasets, msg);
    case MR_MSG_LANE:
        return add_lane(f, msg);
    case MR_MSG_DROP_LANE:
        if (mr_msg_get_u64(msg, "lane", &value) != 0)
            return -1;
        if (f->jobs)
            mr_jobs_give_back(f->jobs, false);
        drop_lane(f, value);
        return 0;
    case MR_MSG_DRAIN:
        f->draining = true;
        return 0;
    case MR_MSG_LOG_LEVEL:
        if (mr_msg_get_u64(msg, "level", &value) != 0)
            return -1;
        mr_log_set_level(value <= MR_LOG_DEBUG ? (enum mr_log_level)value : MR_LOG_INFO);
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "the supervisor sent a message of type %d to a fetch worker", (int)msg->type);
        return -1;
    }
}

static void read_messages(struct fetcher *f)
{
    struct mr_msg_in msg;
    int rc;
    while ((rc = mr_msg_recv(f->link.socket, &msg)) == 1) {
        if (handle(f, &msg) != 0) {
            mr_log_error("%s", mr_error_text());
            f->bad = true;
        }
        mr_msg_close(&msg);
    }
    if (rc < 0) {
        if (mr_error_code() != MR_E_GONE)
            mr_log_error("%s", mr_error_text());
        f->bad = true;
    }
}

static void set_counter(struct fetcher *f, unsigned which, uint64_t *last, uint64_t now)
{
    mr_counter_add(f->link.counters, which, now - *last);
    *last = now;
}

/* Of any bucket: the limits are learnt from all of them, and their configuration is one. */
static void set_stalls(struct fetcher *f)
{
    unsigned ms[2];
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        if (!f->datasets.items[i].open)
            continue;
        mr_transfer_stall_ms(f->net.engine, f->datasets.items[i].store, ms);
        mr_counter_set(f->link.counters, MR_WC_FIRST_MS, ms[0]);
        mr_counter_set(f->link.counters, MR_WC_STALL_MS, ms[1]);
        return;
    }
}

static void copy_counters(struct fetcher *f)
{
    static struct mr_transfer_counters last;
    static struct mr_producer_stats before;
    const struct mr_transfer_counters *now = mr_transfer_counters(f->net.engine);
    set_counter(f, MR_WC_REQUESTS, &last.requests, now->requests);
    set_counter(f, MR_WC_BYTES, &last.bytes, now->bytes);
    set_counter(f, MR_WC_OBJECTS, &last.objects, now->objects + (f->jobs ? mr_jobs_more_objects(f->jobs) : 0));
    set_counter(f, MR_WC_RETRIES, &last.retries, now->retries);
    set_counter(f, MR_WC_RESUMES, &last.resumes, now->resumes);
    set_counter(f, MR_WC_STALLS, &last.stalls, now->stalls);
    set_counter(f, MR_WC_CRC_FAILURES, &last.crc_errors, now->crc_errors);
    set_counter(f, MR_WC_UNVERIFIED, &last.unverified, now->unverified);
    set_counter(f, MR_WC_THROTTLED, &last.busy, now->busy);
    set_counter(f, MR_WC_EGRESS_LIMITED, &last.egress, now->egress);
    set_stalls(f);
    set_counter(f, MR_WC_CLASS_A, &last.class_a, now->class_a);
    set_counter(f, MR_WC_CLASS_B, &last.class_b, now->class_b);
    set_counter(f, MR_WC_FREE_OPERATIONS, &last.deletes, now->deletes);
    if (f->producer) {
        struct mr_producer_stats stats;
        mr_producer_stats(f->producer, &stats);
        set_counter(f, MR_WC_JOBS, &before.jobs, stats.jobs);
        set_counter(f, MR_WC_JOB_TICKETS, &before.tickets, stats.tickets);
        set_counter(f, MR_WC_STOLEN, &before.stolen_blocks, stats.stolen_blocks);
        set_counter(f, MR_WC_TAKE_BACKS, &before.take_backs, stats.take_backs);
        set_counter(f, MR_WC_RESERVE_USES, &before.reserve_uses, stats.reserve_uses);
        set_counter(f, MR_WC_GIVE_BACKS, &before.give_backs, stats.give_backs);
        set_counter(f, MR_WC_NO_ROOM, &before.no_room, stats.no_room);
        mr_counter_set(f->link.counters, MR_WC_ARENA_BYTES, f->arena_bytes);
        mr_counter_set(f->link.counters, MR_WC_ARENA_FREE_BYTES, mr_producer_free_bytes(f->producer));
    }
    mr_counter_set(f->link.counters, MR_WC_IN_FLIGHT, mr_transfer_in_flight(f->net.engine));
    mr_counter_set(f->link.counters, MR_WC_LIMIT, mr_transfer_limit(f->net.engine));
}

/* Time with something in flight is busy, the rest idle. */
static void account_time(struct fetcher *f, bool was_busy)
{
    int64_t now = mr_http_now_ns(f->net.http);
    if (now > f->since_ns) {
        mr_counter_add(f->link.counters, was_busy ? MR_WC_BUSY_NS : MR_WC_IDLE_NS, (uint64_t)(now - f->since_ns));
        f->since_ns = now;
    }
    if (now - f->last_sweep_ns >= STEP_MS * MR_MILLISECOND_NS) {
        f->last_sweep_ns = now;
        copy_counters(f);
        if (f->jobs) {
            mr_jobs_give_back(f->jobs, false);
            mr_jobs_step(f->jobs, now);
        }
        mr_datasets_step(&f->datasets);
        mr_temporaries_step(f->temporaries, now);
    }
}

static int step(struct fetcher *f)
{
    start_jobs(f);
    bool was_busy = in_flight(f) > 0;
    bool slept = false;
    if (f->producer && !f->draining && !f->solo && mr_transfer_free(f->net.engine) > 0) {
        if (mr_producer_sleep(f->producer) != 0)
            return 0; /* a ticket came between the scan and going to sleep */
        slept = true;
    }
    int woken = mr_http_step(f->net.http, STEP_MS, f->link.wait_fd);
    if (slept)
        mr_producer_awake(f->producer);
    if (woken < 0)
        return -1;
    if (woken > 0) {
        mr_link_drain_wakeups(&f->link);
        read_messages(f);
    }
    account_time(f, was_busy);
    return 0;
}

static int init_temporaries(struct fetcher *f)
{
    struct mr_maker maker = {.slot = f->link.slot, .start = (uint32_t)f->link.generation};
    snprintf(maker.run, sizeof maker.run, "%s", f->link.board->run_id);
    f->temporaries = mr_temporaries_new(&f->net, f->link.counters, &maker);
    f->datasets = (struct mr_datasets){.net = &f->net, .link = &f->link, .temporaries = f->temporaries};
    return f->temporaries ? 0 : -1;
}

/* The end: tickets go back at once; temporary objects are waited for, since nobody else may come to delete them. */
static void finish(struct fetcher *f)
{
    int64_t until = mr_clock_mono_ns() + FINISH_MS * MR_MILLISECOND_NS;
    if (f->jobs)
        mr_jobs_give_back(f->jobs, true);
    while (f->jobs && mr_jobs_composing(f->jobs) && mr_clock_mono_ns() < until) {
        if (mr_http_step(f->net.http, STEP_MS, -1) < 0)
            break;
    }
    mr_temporaries_finish(f->temporaries);
    while (mr_temporaries_busy(f->temporaries) && mr_clock_mono_ns() < until) {
        if (mr_http_step(f->net.http, STEP_MS, -1) < 0)
            break;
        mr_temporaries_step(f->temporaries, mr_clock_mono_ns());
    }
    copy_counters(f);
    mr_temporaries_destroy(f->temporaries);
}

int mr_fetch_main(unsigned slot)
{
    struct fetcher *f = calloc(1, sizeof *f);
    if (!f)
        return 1;
    if (mr_link_init(&f->link, "fetch", slot) != 0)
        goto failed;
    if (mr_net_init(&f->net, &f->link.config) != 0) {
        mr_link_say_failed(&f->link, UINT64_MAX, UINT64_MAX);
        goto failed;
    }
    if (init_temporaries(f) != 0 || mr_link_say(&f->link, MR_MSG_READY) != 0)
        goto failed;
    f->since_ns = mr_clock_mono_ns();
    while (!f->bad && !f->draining) {
        if (step(f) != 0)
            goto failed;
    }
    finish(f);
    return f->bad ? 1 : 0; /* mappings and sockets go with the process */
failed:
    mr_log_error("%s", mr_error_text());
    return mr_error_code() == MR_E_CONFIG || mr_error_code() == MR_E_DENIED ? 2 : 1;
}
