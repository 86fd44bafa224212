#include "worker/fetch/fetch.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/index/index.h"
#include "shm/ring/producer.h"
#include "worker/fetch/datasets.h"
#include "worker/fetch/job.h"
#include "worker/role.h"

#define WINDOW_MOST_BYTES (16u << 20) /* of neighbours in one request, whatever their lanes ask for */
/* Between two of them, read and thrown away. A request of its own takes the CPU in which 100 KiB are read (by the table of
 * TLS in docs/performance.md), and on a line of 10 Gbit/s this takes 50 us, less than any store's answer. */
#define GAP_BYTES (64u << 10)
#define FINISH_MS 2000 /* for what must be deleted at the end; the supervisor kills after 3 s */

struct fetch_worker {
    struct mr_role role;
    struct mr_producer *producer; /* NULL until ARENA */
    struct mr_datasets datasets;
    struct mr_temporaries *temporaries;
    struct mr_jobs *jobs;  /* NULL until ARENA */
    struct mr_lane *early; /* lanes that came before ARENA: after a restart, all that are open */
    unsigned early_count;
    bool solo;                           /* a job that must be alone is running */
    bool short_of_memory;                /* which was said */
    bool none_started;                   /* the last job, for want of memory: not before other things had their turn */
    struct mr_log_limit refused_logged;  /* tickets that failed in the producer */
    struct mr_transfer_counters counted; /* in the counters so far */
    struct mr_producer_stats counted_stats;
};

static struct fetch_worker *worker_of(struct mr_role *role)
{
    return MR_CONTAINER_OF(role, fetch_worker, role);
}

static int size_of_request(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    struct fetch_worker *f = arg;
    struct mr_located found;
    if (mr_datasets_locate(&f->datasets, request, NULL, &found) != 0)
        return -1;
    *bytes = found.bytes;
    return 0;
}

static bool join_requests(void *arg, const struct mr_request *first, const struct mr_request *next)
{
    struct fetch_worker *f = arg;
    return mr_datasets_may_join(&f->datasets, first, next);
}

static bool place_of_request(void *arg, const struct mr_request *request, struct mr_place *place)
{
    struct fetch_worker *f = arg;
    return mr_datasets_place(&f->datasets, request, place);
}

/* ---- lanes and the arena ---- */

/* Lanes that come before the arena are kept and added once there is a producer. */
static int add_lane(struct fetch_worker *f, struct mr_msg_in *msg)
{
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    struct mr_lane lane;
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

static int back(void *arg, uint64_t offset, uint64_t bytes)
{
    struct fetch_worker *f = arg;
    if (mr_role_back(&f->role, offset, bytes) == 0)
        return 0;
    if (!f->short_of_memory)
        mr_log_warning("the arena stays as large as it is: %s", mr_error_text());
    f->short_of_memory = true;
    return -1;
}

/* Gives back what no lane needs. At the start too: a predecessor may have died just before it did. */
static void trim(struct fetch_worker *f)
{
    uint64_t offset, bytes;
    if (f->producer && mr_producer_trim(f->producer, &offset, &bytes))
        mr_role_unback(&f->role, offset, bytes);
}

static int arena_mapped(struct mr_role *role, struct mr_msg_in *msg)
{
    struct fetch_worker *f = worker_of(role);
    uint64_t reserve, division, largest, first;
    if (mr_msg_get_u64(msg, "reserve", &reserve) != 0 || mr_msg_get_u64(msg, "division", &division) != 0 ||
        mr_msg_get_u64(msg, "largest", &largest) != 0 || mr_msg_get_u64(msg, "first", &first) != 0) {
        mr_error_append("a bad ARENA message");
        return -1;
    }
    struct mr_producer_options options = {
        .slot = role->link.slot,
        .division = (uint32_t)division,
        .board = role->link.board,
        .line = role->link.line,
        .arena = role->arena,
        .arena_bytes = role->arena_bytes,
        .reserve_bytes = reserve,
        .back = role->arena_grows ? back : NULL,
        .back_arg = f,
        .reserve_backed_bytes = largest,
        .first_bytes = first,
        .size = size_of_request,
        .size_arg = f,
        .join = join_requests,
        .place = place_of_request,
        .cell_bytes = WINDOW_MOST_BYTES < role->arena_bytes / 4 ? WINDOW_MOST_BYTES : role->arena_bytes / 4,
        .gap_bytes = GAP_BYTES,
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
    trim(f);
    return 0;
}

/* ---- the loop ---- */

static unsigned in_flight(const struct fetch_worker *f)
{
    return f->jobs ? mr_jobs_in_flight(f->jobs) : 0;
}

static uint64_t job_bytes(const struct fetch_worker *f)
{
    uint64_t most = f->role.link.config.fetch.compose_max_bytes;
    return most < f->role.arena_bytes / 4 ? most : f->role.arena_bytes / 4;
}

/* Claims and starts as much as may be in flight. */
static void start_jobs(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    if (!f->producer || f->role.draining)
        return;
    f->solo = f->solo && in_flight(f) > 0;
    f->none_started = false;
    while (!f->none_started && !f->solo && mr_transfer_free(f->role.net.engine) > 0) {
        unsigned tickets =
            mr_datasets_any_composes(&f->datasets) ? (unsigned)f->role.link.config.fetch.compose_max_objects : 1;
        struct mr_job job;
        if (!mr_producer_next_job(f->producer, tickets, job_bytes(f), in_flight(f), &job))
            return;
        f->solo = job.solo;
        f->none_started = !mr_jobs_start(f->jobs, &job);
        f->solo = f->solo && in_flight(f) > 0;
    }
}

static void drop_lane(struct fetch_worker *f, uint64_t lane)
{
    if (f->jobs)
        mr_jobs_give_back(f->jobs, false);
    if (f->producer && !mr_producer_drop_lane(f->producer, (uint32_t)lane))
        return; /* a claim of ours is still in it: the supervisor repeats DROP_LANE */
    trim(f);
    mr_role_send(&f->role, MR_MSG_DROPPED, "lane", lane);
}

static int fetch_handle(struct mr_role *role, struct mr_msg_in *msg)
{
    struct fetch_worker *f = worker_of(role);
    uint64_t lane;
    switch (msg->type) {
    case MR_MSG_DATASET:
        return mr_datasets_add(&f->datasets, msg);
    case MR_MSG_DROP_DATASET:
        return mr_datasets_drop(&f->datasets, msg);
    case MR_MSG_LANE:
        return add_lane(f, msg);
    case MR_MSG_DROP_LANE:
        if (mr_msg_get_u64(msg, "lane", &lane) != 0)
            return -1;
        drop_lane(f, lane);
        return 0;
    default:
        return mr_role_unknown(role, msg);
    }
}

/* Of any bucket: the limits are learnt from all of them, and their configuration is one. */
static void set_stalls(struct fetch_worker *f)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        if (!f->datasets.items[i].open)
            continue;
        unsigned ms[2];
        mr_transfer_stall_ms(f->role.net.engine, f->datasets.items[i].store, ms);
        mr_counter_set(f->role.link.counters, MR_WC_FIRST_MS, ms[0]);
        mr_counter_set(f->role.link.counters, MR_WC_STALL_MS, ms[1]);
        return;
    }
}

static void count_producer(struct fetch_worker *f)
{
    struct mr_producer_stats stats;
    mr_producer_stats(f->producer, &stats);
    mr_role_count(&f->role, MR_WC_JOBS, &f->counted_stats.jobs, stats.jobs);
    mr_role_count(&f->role, MR_WC_JOB_TICKETS, &f->counted_stats.tickets, stats.tickets);
    mr_role_count(&f->role, MR_WC_STOLEN, &f->counted_stats.stolen_blocks, stats.stolen_blocks);
    mr_role_count(&f->role, MR_WC_TAKE_BACKS, &f->counted_stats.take_backs, stats.take_backs);
    mr_role_count(&f->role, MR_WC_RESERVE_USES, &f->counted_stats.reserve_uses, stats.reserve_uses);
    mr_role_count(&f->role, MR_WC_GIVE_BACKS, &f->counted_stats.give_backs, stats.give_backs);
    if (stats.refused > f->counted_stats.refused)
        mr_log_limited(&f->refused_logged, MR_LOG_WARNING,
                       "%llu samples failed before their download began: their readers are told why",
                       (unsigned long long)(stats.refused - f->counted_stats.refused));
    mr_role_count(&f->role, MR_WC_FAILED, &f->counted_stats.refused, stats.refused);
    mr_role_count(&f->role, MR_WC_NO_ROOM, &f->counted_stats.no_room, stats.no_room);
    mr_counter_set(f->role.link.counters, MR_WC_ARENA_FREE_BYTES, mr_producer_free_bytes(f->producer));
    mr_counter_set(f->role.link.counters, MR_WC_ARENA_BACKED_BYTES, mr_producer_backed_bytes(f->producer));
}

static void fetch_count(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    struct mr_transfer_counters *last = &f->counted;
    const struct mr_transfer_counters *now = mr_transfer_counters(role->net.engine);
    mr_role_count(role, MR_WC_BYTES, &last->bytes, now->bytes);
    mr_role_count(role, MR_WC_OBJECTS, &last->objects, now->objects + (f->jobs ? mr_jobs_more_objects(f->jobs) : 0));
    mr_role_count(role, MR_WC_RESUMES, &last->resumes, now->resumes);
    mr_role_count(role, MR_WC_UNVERIFIED, &last->unverified, now->unverified);
    mr_role_count(role, MR_WC_EGRESS_LIMITED, &last->egress, now->egress);
    mr_role_count(role, MR_WC_ANSWERS, &last->answers, now->answers);
    mr_role_count(role, MR_WC_FIRST_BYTE_NS, &last->first_ns, now->first_ns);
    mr_role_count(role, MR_WC_BODY_NS, &last->body_ns, now->body_ns);
    mr_counter_set(role->link.counters, MR_WC_CPU_NS, (uint64_t)mr_clock_cpu_ns());
    set_stalls(f);
    if (f->producer)
        count_producer(f);
}

static bool is_busy(struct mr_role *role)
{
    return in_flight(worker_of(role)) > 0;
}

static void tick(struct mr_role *role, int64_t now_ns)
{
    struct fetch_worker *f = worker_of(role);
    if (f->jobs) {
        mr_jobs_give_back(f->jobs, false);
        mr_jobs_step(f->jobs, now_ns);
    }
    mr_datasets_step(&f->datasets);
    mr_temporaries_step(f->temporaries, now_ns);
}

static enum mr_role_rest rest(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    if (!f->producer || role->draining || f->solo || f->none_started || mr_transfer_free(role->net.engine) == 0)
        return MR_ROLE_WAIT;
    return mr_producer_sleep(f->producer) ? MR_ROLE_AGAIN : MR_ROLE_SLEEP;
}

/* ---- life ---- */

static int fetch_init(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    struct mr_maker maker = mr_maker_of(role->link.board->run_id, role->link.slot, role->link.generation);
    f->temporaries = mr_temporaries_new(&role->net, role->link.counters, &maker);
    f->datasets = (struct mr_datasets){.net = &role->net, .link = &role->link, .temporaries = f->temporaries};
    return f->temporaries ? 0 : -1;
}

static bool is_composing(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    return f->jobs && mr_jobs_composing(f->jobs);
}

static bool is_cleaning_up(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    mr_temporaries_step(f->temporaries, mr_clock_mono_ns());
    return mr_temporaries_busy(f->temporaries);
}

/* The end: tickets go back at once; temporary objects are waited for, since there may be no other process to delete
 * them. */
static bool fetch_finish(struct mr_role *role)
{
    struct fetch_worker *f = worker_of(role);
    int64_t until_ns = mr_clock_mono_ns() + FINISH_MS * MR_MILLISECOND_NS;
    if (f->jobs)
        mr_jobs_give_back(f->jobs, true);
    mr_role_wait(role, is_composing, until_ns);
    mr_temporaries_finish(f->temporaries);
    mr_role_wait(role, is_cleaning_up, until_ns);
    mr_temporaries_destroy(f->temporaries);
    return false;
}

static const struct mr_role_ops ops = {
    .kind = {.role = "fetch", .is_woken = true},
    .init = fetch_init,
    .handle = fetch_handle,
    .arena_name = "the arena",
    .arena_populated = true,
    .arena_mapped = arena_mapped,
    .start = start_jobs,
    .rest = rest,
    .is_busy = is_busy,
    .tick = tick,
    .count = fetch_count,
    .finish = fetch_finish,
};

int mr_fetch_main(unsigned slot)
{
    struct fetch_worker *f = calloc(1, sizeof *f);
    return f ? mr_role_main(&f->role, &ops, slot) : 1;
}
