/* verdict.c - see verdict.h. */
#include "shm/meter/verdict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

#define HEALTHY      0.05 /* share of its time that a loop waits; below it nothing is named */
#define MUCH         0.25 /* share of what workers do, from which it explains why they are slow */
#define COMPUTING    0.6  /* share of a core: a worker that has less waits for something */
#define ONE_CORE     1.15 /* threads of a process that hold one lock do not get further */
#define WORKERS_MOST 64   /* that are advised */
#define SWAPPED_MUCH 50   /* pages a second */
#define BESIDE       0.05 /* tensors a batch that found no room; a few of a loader's start are nothing */
#define KEPT         1.2  /* batches in their memory that a loop has when it takes one: more than the one before */
#define SECOND       1e9

static const char *const stages[MR_STAGE_COUNT] = {
    [MR_STAGE_NONE] = "none",       [MR_STAGE_STORE] = "store",           [MR_STAGE_TRANSFORM] = "transform",
    [MR_STAGE_COLLATE] = "collate", [MR_STAGE_EXTENT] = "extent",         [MR_STAGE_TRANSPORT] = "transport",
    [MR_STAGE_DEVICE] = "device",   [MR_STAGE_CHECKPOINT] = "checkpoint",
};

static const char *const causes[MR_CAUSE_COUNT] = {
    [MR_CAUSE_NONE] = "none",
    [MR_CAUSE_LISTING] = "listing",
    [MR_CAUSE_MEMORY] = "memory",
    [MR_CAUSE_THROTTLED] = "throttled",
    [MR_CAUSE_CONNECTIONS] = "connections",
    [MR_CAUSE_LATENCY] = "latency",
    [MR_CAUSE_BANDWIDTH] = "bandwidth",
    [MR_CAUSE_WINDOW] = "window",
    [MR_CAUSE_FETCH_CPU] = "fetch_cpu",
    [MR_CAUSE_SAVING] = "saving",
    [MR_CAUSE_WORKERS] = "workers",
    [MR_CAUSE_CORES] = "cores",
    [MR_CAUSE_CROWD] = "crowd",
    [MR_CAUSE_NEIGHBOURS] = "neighbours",
    [MR_CAUSE_QUOTA] = "quota",
    [MR_CAUSE_SWAP] = "swap",
    [MR_CAUSE_GIL] = "gil",
    [MR_CAUSE_BLOCKED] = "blocked",
    [MR_CAUSE_KEPT] = "kept",
    [MR_CAUSE_ROOM] = "room",
    [MR_CAUSE_PICKLE] = "pickle",
    [MR_CAUSE_COPY] = "copy",
    [MR_CAUSE_SAVE] = "save",
};

const char *mr_stage_name(enum mr_stage stage)
{
    return (unsigned)stage < MR_STAGE_COUNT ? stages[stage] : "unknown";
}

const char *mr_cause_name(enum mr_cause cause)
{
    return (unsigned)cause < MR_CAUSE_COUNT ? causes[cause] : "unknown";
}

/* ---- the node ---- */

void mr_node_read(const struct mr_counters *block, struct mr_node *node)
{
    *node = (struct mr_node){
        .watched = mr_counter_get(block, MR_NC_WATCHED_NS),
        .others = mr_counter_get(block, MR_NC_OTHERS_CPU_NS),
        .quota = mr_counter_get(block, MR_NC_QUOTA_NS),
        .swapped = mr_counter_get(block, MR_NC_SWAPPED_PAGES),
        .cores = (uint32_t)mr_counter_get(block, MR_NC_CORES),
        .request_rate = mr_counter_get(block, MR_NC_REQUEST_RATE),
        .connections = mr_counter_get(block, MR_NC_CONNECTIONS),
        .window = mr_counter_get(block, MR_NC_WINDOW),
        .first_us = mr_counter_get(block, MR_NC_FIRST_US),
        .bytes_s = mr_counter_get(block, MR_NC_BYTES_S),
    };
    for (unsigned i = MR_CAUSE_NONE + 1; i < MR_NODE_CAUSES; i++)
        node->waits[i] = mr_counter_get(block, MR_NC_LISTING_NS + i - MR_CAUSE_LISTING);
}

void mr_node_since(struct mr_node *node, const struct mr_node *before)
{
    for (unsigned i = 0; i < MR_NODE_CAUSES; i++)
        node->waits[i] = mr_counter_grown(node->waits[i], before->waits[i]);
    node->watched = mr_counter_grown(node->watched, before->watched);
    node->others = mr_counter_grown(node->others, before->others);
    node->quota = mr_counter_grown(node->quota, before->quota);
    node->swapped = mr_counter_grown(node->swapped, before->swapped);
}

void mr_verdict_node_text(enum mr_cause cause, const struct mr_node *node, char *text, size_t size)
{
    unsigned long long connections = node->connections, window = node->window, rate = node->request_rate;
    char speed[32];

    switch (cause) {
    case MR_CAUSE_LISTING:
        snprintf(text, size,
                 "the bucket is being listed, and reading begins when that is done: try more list.workers, or "
                 "a saved index (`millrace index`)");
        break;
    case MR_CAUSE_MEMORY:
        snprintf(text, size,
                 "what readers have not taken yet fills the memory for samples: try twice memory.arena_bytes, or "
                 "\"auto\"");
        break;
    case MR_CAUSE_THROTTLED:
        snprintf(
            text, size,
            "the store refuses more than %llu requests a second (429, SlowDown): larger objects or tar shards, more "
            "prefixes, or time for it to scale",
            rate);
        break;
    case MR_CAUSE_CONNECTIONS:
        snprintf(text, size, "all %llu connections are in use: try fetch.connections = %llu, or leave it out",
                 connections, connections * 2);
        break;
    case MR_CAUSE_LATENCY:
        snprintf(text, size,
                 "the store answers after %.3g ms, and %llu samples are asked for ahead: try lanes.window = %llu, or "
                 "data nearer to this machine",
                 (double)node->first_us / 1e3, window, window * 2);
        break;
    case MR_CAUSE_BANDWIDTH:
        snprintf(text, size,
                 "the store or the network gives %s/s, over %llu connections: data nearer to this machine, or a faster "
                 "network",
                 mr_size_text((double)node->bytes_s, speed), connections);
        break;
    case MR_CAUSE_WINDOW:
        snprintf(text, size, "all %llu samples that may be asked for ahead are on their way: try lanes.window = %llu",
                 window, window * 2);
        break;
    case MR_CAUSE_FETCH_CPU:
        snprintf(
            text, size,
            "the fetch workers compute, or wait for a core, all the time: one more (fetch.workers) where a core is "
            "free");
        break;
    case MR_CAUSE_SAVING:
        snprintf(text, size,
                 "a checkpoint is being uploaded meanwhile: save less often, or with fewer "
                 "checkpoint.workers");
        break;
    default:
        snprintf(text, size, "objects were not there yet: `millrace top` names what they wait for");
        break;
    }
}

/* What readers have waited for most; NONE where the node has counted nothing. */
static enum mr_cause node_cause(const struct mr_node *node)
{
    enum mr_cause most = MR_CAUSE_NONE;
    uint64_t all = 0;

    for (unsigned i = MR_CAUSE_LISTING; i < MR_CAUSE_SAVING; i++) {
        all += node->waits[i];
        if (node->waits[i] > node->waits[most])
            most = (enum mr_cause)i;
    }
    bool of_store = most == MR_CAUSE_BANDWIDTH || most == MR_CAUSE_LATENCY || most == MR_CAUSE_CONNECTIONS ||
                    most == MR_CAUSE_FETCH_CPU || most == MR_CAUSE_WINDOW;
    return of_store && node->waits[MR_CAUSE_SAVING] * 2 > all ? MR_CAUSE_SAVING : most;
}

/* ---- stages ---- */

double mr_verdict_wait_share(const struct mr_meter_sums *sums)
{
    uint64_t all = sums->step + sums->wait;

    return all > 0 ? (double)sums->wait / (double)all : 0;
}

static double busy_of(const struct mr_meter_sums *sums)
{
    return (double)(sums->store + sums->transform + sums->extent + sums->collate + sums->pack);
}

/* A late batch is attributed to what its workers did meanwhile, all batches of the stretch together. */
static void find_waits(const struct mr_meter_sums *sums, struct mr_verdict *verdict)
{
    double batches = sums->batches > 0 ? (double)sums->batches : 1, busy = busy_of(sums);
    double late = busy > 0 ? (double)sums->late / busy / batches : 0;

    verdict->waits[MR_STAGE_STORE] = late * (double)sums->store;
    verdict->waits[MR_STAGE_TRANSFORM] = late * (double)sums->transform;
    verdict->waits[MR_STAGE_EXTENT] = late * (double)sums->extent;
    verdict->waits[MR_STAGE_COLLATE] = late * (double)sums->collate;
    verdict->waits[MR_STAGE_TRANSPORT] = late * (double)sums->pack + (double)sums->transport / batches;
    verdict->waits[MR_STAGE_DEVICE] = (double)sums->device / batches;
    verdict->waits[MR_STAGE_CHECKPOINT] = (double)sums->save / batches;
}

/* The stage with the largest wait, or none while the loop waits for a small share of its time. */
static enum mr_stage find_stage(const struct mr_meter_sums *sums, const struct mr_verdict *verdict)
{
    enum mr_stage most = MR_STAGE_NONE;
    uint64_t all = sums->step + sums->wait;

    if (sums->batches == 0 || all == 0)
        return MR_STAGE_NONE;
    if (sums->save > sums->wait && (double)sums->save >= HEALTHY * (double)all)
        return MR_STAGE_CHECKPOINT;
    if (mr_verdict_wait_share(sums) < HEALTHY)
        return MR_STAGE_NONE;
    for (unsigned i = MR_STAGE_STORE; i < MR_STAGE_CHECKPOINT; i++)
        if (most == MR_STAGE_NONE || verdict->waits[i] > verdict->waits[most])
            most = (enum mr_stage)i;
    return most;
}

/* ---- workers ---- */

struct work {
    double cpu, delay; /* while workers waited neither for samples nor for memory: cores, and waiting for one */
    double other;      /* share of a core that other threads of a worker had */
    uint64_t batches;  /* that they made */
    uint32_t wanted;   /* workers that would make a batch in the time of a step */
    uint32_t workers, cores;
    uint32_t share;      /* of the cores, what is left for this rank beside the node's others */
    char cores_text[96]; /* what the workers share, for people */
};

/* The workers' work per batch. CPU and delay are shares of the working time, so they can be compared with a core. */
static struct work work_of(const struct mr_meter_sums *sums, const struct mr_node *node)
{
    struct work work = {.batches = sums->made, .workers = sums->workers, .cores = sums->cores > 0 ? sums->cores : 1};
    uint32_t sharers = sums->sharers > 1 ? sums->sharers : 1, all = node->cores > 0 ? node->cores : work.cores;
    uint64_t threads = sums->cpu > sums->thread ? sums->cpu - sums->thread : 0;

    double working = (double)(sums->transform + sums->collate + sums->pack);
    if (working > 0) {
        work.cpu = (double)sums->cpu / working;
        work.delay = fmin((double)sums->delay / working, 1);
        work.other = sums->workers > 0 ? (double)threads / working : 0; /* inline, others are the loop's */
    }
    double own = (double)sums->step;
    double wanted = own > 0 ? ceil(busy_of(sums) / own - 0.01) : 1e6;
    work.wanted = (uint32_t)fmin(wanted, 1e6);
    if (work.wanted <= sums->workers)
        work.wanted = sums->workers + 1;
    /* Ranks that are pinned have cores of their own, so that more of them are not fewer for each. */
    work.share = all / sharers < work.cores ? all / sharers : work.cores;
    if (work.share < 1)
        work.share = 1;
    snprintf(work.cores_text, sizeof work.cores_text, "%u cores", work.share);
    if (work.share < work.cores)
        snprintf(work.cores_text, sizeof work.cores_text, "%u of the node's %u cores, which has %u ranks", work.share,
                 all, sharers);
    return work;
}

/* Other processes have more than this share of the cores. */
static bool others_have(double share, const struct work *work, const struct mr_node *node)
{
    return node->watched > 0 && (double)node->others > share * (double)node->watched * work->cores;
}

/* Why workers make no progress although they have work: the machine's part. */
static enum mr_cause starved(const struct work *work, const struct mr_node *node)
{
    double watched = (double)node->watched;

    if (watched > 0 && (double)node->quota > MUCH / 2 * watched)
        return MR_CAUSE_QUOTA;
    if (watched > 0 && (double)node->swapped > SWAPPED_MUCH * watched / SECOND)
        return MR_CAUSE_SWAP;
    if (work->delay < MUCH)
        return MR_CAUSE_NONE;
    /* If the workers alone would fit the cores, less is enough: only other processes can be what they wait for. */
    bool fit = work->workers * (work->cpu + work->delay) <= work->share + 0.01;
    if (others_have(fit ? MUCH / 2 : MUCH, work, node))
        return MR_CAUSE_NEIGHBOURS;
    return work->workers > work->share ? MR_CAUSE_CROWD : MR_CAUSE_CORES;
}

static enum mr_cause find_worker_cause(const struct work *work, const struct mr_node *node)
{
    enum mr_cause machine = starved(work, node);

    if (machine != MR_CAUSE_NONE)
        return machine;
    if (work->other > MUCH && work->cpu < ONE_CORE && work->cpu > COMPUTING)
        return MR_CAUSE_GIL;
    if (work->cpu + work->delay < COMPUTING)
        return MR_CAUSE_BLOCKED;
    return (double)(work->workers > 0 ? work->workers + 1 : 1) * fmin(work->cpu, 1) <= work->share + 0.01
               ? MR_CAUSE_WORKERS
               : MR_CAUSE_CORES;
}

/* How many workers to try: as many as the step needs, at most as many as have something to do. */
static uint32_t workers_to_try(enum mr_cause cause, const struct work *work)
{
    uint32_t room =
        cause == MR_CAUSE_WORKERS ? (uint32_t)((double)work->share / fmax(work->cpu, COMPUTING)) : WORKERS_MOST;
    uint32_t count = work->wanted < room ? work->wanted : room;

    if (cause == MR_CAUSE_CROWD)
        return work->share;
    if (cause != MR_CAUSE_WORKERS && cause != MR_CAUSE_BLOCKED)
        return 0;
    return count > work->workers ? count : work->workers + 1;
}

/* Writes what to try for the cause, with try_workers where that is another number of workers. */
static void worker_remedy(const char *slow, const struct work *work, const struct mr_node *node,
                          struct mr_verdict *verdict)
{
    char *text = verdict->remedy;
    uint32_t number = verdict->try_workers = workers_to_try(verdict->cause, work);

    switch (verdict->cause) {
    case MR_CAUSE_QUOTA:
        snprintf(text, MR_VERDICT_REMEDY,
                 "the cgroup's CPU quota stops them %.0f%% of the time: a larger quota (%u cores now), or "
                 "a lighter %s",
                 fmin(100 * (double)node->quota / (double)node->watched, 100), work->cores, slow);
        break;
    case MR_CAUSE_SWAP:
        snprintf(text, MR_VERDICT_REMEDY,
                 "memory is swapped in, %.0f pages a second: fewer workers, smaller batches, or more "
                 "memory",
                 (double)node->swapped / (double)node->watched * SECOND);
        break;
    case MR_CAUSE_NEIGHBOURS:
        snprintf(text, MR_VERDICT_REMEDY,
                 "other processes use %.1f of %u cores: stop them, or reserve cores for this job",
                 (double)node->others / (double)node->watched, work->cores);
        break;
    case MR_CAUSE_CROWD:
        snprintf(text, MR_VERDICT_REMEDY,
                 "%u workers share %s: num_workers=%u does as much with less memory; then a lighter "
                 "%s, or larger machines",
                 work->workers, work->cores_text, number, slow);
        break;
    case MR_CAUSE_GIL:
        snprintf(text, MR_VERDICT_REMEDY,
                 "its threads wait for one another (the GIL): use one thread a worker, and "
                 "more workers");
        break;
    case MR_CAUSE_BLOCKED:
        snprintf(text, MR_VERDICT_REMEDY,
                 "it computes %.0f%% of the time, and waits for something else (a disk, the network, a sleep): try "
                 "num_workers=%u, unless all of them wait for one lock",
                 100 * work->cpu, number);
        break;
    case MR_CAUSE_WORKERS:
        snprintf(text, MR_VERDICT_REMEDY, "try num_workers=%u", number);
        if (number < work->wanted)
            snprintf(text + strlen(text), MR_VERDICT_REMEDY - strlen(text),
                     "; it would take %u workers, and there are %s: a lighter %s too, or larger machines", work->wanted,
                     work->cores_text, slow);
        break;
    default:
        snprintf(text, MR_VERDICT_REMEDY,
                 "it would take %u workers, and there are %s: a lighter %s, or larger machines", work->wanted,
                 work->cores_text, slow);
        break;
    }
}

/* ---- the verdict ---- */

/* Tensors had to go through the queue. Of the batches that the loop keeps, only those in their memory are counted. */
static void find_room_cause(const struct mr_batch_counts *batches, struct mr_verdict *verdict)
{
    double kept = batches->batches > 0 ? (double)batches->held / (double)batches->batches : 0;

    verdict->cause = kept >= KEPT ? MR_CAUSE_KEPT : MR_CAUSE_ROOM;
    if (verdict->cause == MR_CAUSE_KEPT)
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "the loop keeps batches (%.1f in shared memory, when it takes the next), and new ones find no room: "
                 "keep copies (`clone()`) of what it needs, or try twice memory.batch_bytes",
                 kept);
    else
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "%llu tensors did not fit the memory of batches: try twice memory.batch_bytes, or smaller batches",
                 (unsigned long long)batches->beside);
}

/* The cause within the stage that was found, and its remedy. What the machine was short of comes before what the job
 * could do better: it explains both. */
static void find_cause(const struct work *work, const struct mr_node *node, const struct mr_batch_counts *batches,
                       struct mr_verdict *verdict)
{
    enum mr_stage stage = verdict->stage;

    switch (stage) {
    case MR_STAGE_STORE:
        verdict->cause = node_cause(node);
        mr_verdict_node_text(verdict->cause, node, verdict->remedy, MR_VERDICT_REMEDY);
        if (verdict->cause == MR_CAUSE_FETCH_CPU && others_have(MUCH, work, node)) {
            verdict->cause = MR_CAUSE_NEIGHBOURS;
            worker_remedy(stages[stage], work, node, verdict);
        }
        break;
    case MR_STAGE_TRANSFORM:
    case MR_STAGE_COLLATE:
        if (work->batches == 0) {
            snprintf(verdict->remedy, MR_VERDICT_REMEDY, "the batch that it waits for is not made yet");
            break;
        }
        verdict->cause = find_worker_cause(work, node);
        worker_remedy(stages[stage], work, node, verdict);
        break;
    case MR_STAGE_EXTENT:
        verdict->cause = MR_CAUSE_KEPT;
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "the loop keeps batches, and their memory with them: keep copies (`clone()`) of what it needs");
        break;
    case MR_STAGE_TRANSPORT:
        verdict->cause = starved(work, node); /* the loop takes what is there only when it has a core */
        if (verdict->cause != MR_CAUSE_NONE && verdict->cause != MR_CAUSE_CORES) {
            worker_remedy(stages[stage], work, node, verdict);
            break;
        }
        if ((double)batches->beside > BESIDE * (double)batches->batches) {
            find_room_cause(batches, verdict);
            break;
        }
        verdict->cause = MR_CAUSE_PICKLE;
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "packing and unpickling: try smaller batches or types (uint8), and tensors in place of objects");
        break;
    case MR_STAGE_DEVICE:
        verdict->cause = MR_CAUSE_COPY;
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "the copy to the device: smaller types (uint8, converted there), or fewer other copies beside it");
        break;
    case MR_STAGE_CHECKPOINT:
        verdict->cause = MR_CAUSE_SAVE;
        snprintf(verdict->remedy, MR_VERDICT_REMEDY,
                 "the loop stands in calls of checkpoints: save with wait=False, or less often");
        break;
    default:
        break;
    }
}

static const char *ms(double ns, char text[24])
{
    snprintf(text, 24, ns < 0.1 * SECOND ? "%.3g" : "%.0f", ns / 1e6);
    return text;
}

/* "store 12, collate 3": of the other stages, the rare ones where they are something. */
static void tell_others(const struct mr_verdict *verdict, char *text, size_t size)
{
    static const enum mr_stage order[] = {MR_STAGE_STORE,  MR_STAGE_TRANSFORM, MR_STAGE_COLLATE,
                                          MR_STAGE_EXTENT, MR_STAGE_TRANSPORT, MR_STAGE_DEVICE};
    size_t at = 0;
    char number[24];

    text[0] = '\0';
    for (unsigned i = 0; i < sizeof order / sizeof order[0]; i++) {
        bool rare = order[i] == MR_STAGE_EXTENT || order[i] == MR_STAGE_DEVICE;
        if (order[i] == verdict->stage || (rare && verdict->waits[order[i]] == 0) || at >= size)
            continue;
        at += (size_t)snprintf(text + at, size - at, "%s%s %s", at > 0 ? ", " : "", stages[order[i]],
                               ms(verdict->waits[order[i]], number));
    }
}

/* The line of the log. Times are per batch. */
static void write_text(const struct mr_meter_sums *sums, const struct work *work, struct mr_verdict *verdict)
{
    double batches = (double)sums->batches;
    double step = (double)(sums->step + sums->wait) / batches, wait = (double)sums->wait / batches;
    char numbers[4][24], head[96], where[64] = "", others[128];

    snprintf(head, sizeof head, "step %s ms, waited %s ms (%.0f%%)", ms(step, numbers[0]), ms(wait, numbers[1]),
             100 * mr_verdict_wait_share(sums));
    if (verdict->stage == MR_STAGE_NONE) {
        snprintf(verdict->text, sizeof verdict->text, "%s: nothing waits", head);
        return;
    }
    if (verdict->stage == MR_STAGE_CHECKPOINT) {
        double save = verdict->waits[MR_STAGE_CHECKPOINT];
        snprintf(verdict->text, sizeof verdict->text,
                 "step %s ms, %s ms of it (%.0f%%) in calls of checkpoints; waited %s ms for batches; "
                 "without checkpoints %s ms; %s",
                 ms(step, numbers[0]), ms(save, numbers[1]), 100 * save / step, ms(wait, numbers[2]),
                 ms(fmax(step - save, 0), numbers[3]), verdict->remedy);
        return;
    }
    if (verdict->stage == MR_STAGE_TRANSFORM || verdict->stage == MR_STAGE_COLLATE) {
        if (work->workers == 0)
            snprintf(where, sizeof where, " in the loop's own process at %.0f%% CPU", 100 * work->cpu);
        else
            snprintf(where, sizeof where, " in %u worker%s at %.0f%% CPU", work->workers, work->workers > 1 ? "s" : "",
                     100 * work->cpu);
    }
    tell_others(verdict, others, sizeof others);
    snprintf(verdict->text, sizeof verdict->text, "%s: %s %s ms%s; %s; without waiting %s ms; %s", head,
             stages[verdict->stage], ms(verdict->waits[verdict->stage], numbers[2]), where, others,
             ms(step - wait, numbers[3]), verdict->remedy);
}

void mr_verdict_find(const struct mr_meter_sums *sums, const struct mr_node *node,
                     const struct mr_batch_counts *batches, struct mr_verdict *verdict)
{
    static const struct mr_node unknown;
    static const struct mr_batch_counts none;
    struct mr_meter_sums of = *sums;

    node = node ? node : &unknown;
    *verdict = (struct mr_verdict){0};
    if (sums->batches == 0) {
        snprintf(verdict->text, sizeof verdict->text, "too few steps to say what they wait for");
        return;
    }
    if (node->cores > 0 && node->cores < of.cores)
        of.cores = node->cores; /* the quota is less than the affinity */
    find_waits(&of, verdict);
    verdict->stage = find_stage(&of, verdict);
    struct work work = work_of(&of, node);
    find_cause(&work, node, batches ? batches : &none, verdict);
    write_text(&of, &work, verdict);
}
