/*
 * stat.c - see stat.h. Only reads: the state of the modules and counters in shared memory, which may change meanwhile.
 * Text of other processes is made valid UTF-8 before it goes into JSON.
 */
#include "supervisor/stat.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "supervisor/run_impl.h"

#define WAITS_NS (2 * MR_SECOND_NS) /* one that waits for a checkpoint writer asks again within this time */

static const char *const supervisor_states[] = {"starting", "running", "draining", "stopping"};
static const char *const dataset_states[] = {"free", "new", "listing", "ready", "failed"};
static const char *const child_states[] = {"none", "starting", "running", "ended", "waiting", "failed"};
static const char *const lane_states[] = {"open", "closed", "dropping"};

void mr_stat_log(struct mr_supervisor *s)
{
    char saves[80] = "";
    uint64_t objects = mr_fetch_workers_sum(s, MR_WC_OBJECTS), bytes = mr_fetch_workers_sum(s, MR_WC_BYTES),
             uploaded = 0;
    int64_t now_ns = mr_clock_mono_ns();
    double seconds = (double)(now_ns - s->metrics.logged_ns) / 1e9;
    struct mr_limit_verdict limit;
    mr_limit_find(s, &limit);
    for (unsigned i = 0; i < s->write_workers.count; i++)
        uploaded += mr_counter_get(s->write_workers.workers[i].counters, MR_WC_PART_BYTES);
    if (s->ckpt_lanes.open > 0 && seconds > 0)
        snprintf(saves, sizeof saves, "; %u checkpoints under way, %.1f MiB/s", s->ckpt_lanes.open,
                 (double)(uploaded - s->metrics.uploaded) / 1048576 / seconds);
    if (seconds > 0)
        mr_log_info("%.0f objects/s, %.1f MiB/s, %u readers; limited by %s%s",
                    (double)mr_counter_grown(objects, s->metrics.objects) / seconds,
                    (double)mr_counter_grown(bytes, s->metrics.bytes) / 1048576 / seconds, s->lanes.open, limit.text,
                    saves);
    s->metrics.logged_ns = now_ns;
    s->metrics.objects = objects;
    s->metrics.bytes = bytes;
    s->metrics.uploaded = uploaded;
}

/* ---- JSON ---- */

static json_t *datasets_json(const struct mr_supervisor *s)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        const struct mr_dataset *dataset = s->datasets[i];
        if (!dataset)
            continue;
        const struct mr_board_dataset *board = &s->board->dataset[i];
        json_t *item = json_pack("{s:i, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "dataset", (int)i, "name",
                                 mr_json_from_text(mr_dataset_label(dataset)), "state", dataset_states[dataset->state],
                                 "objects", (json_int_t)dataset->objects, "bytes", (json_int_t)dataset->bytes,
                                 "largest_bytes", (json_int_t)dataset->largest, "listed",
                                 (json_int_t)atomic_load_explicit(&board->listed, memory_order_relaxed), "requests",
                                 (json_int_t)dataset->ranges.requests, "index_bytes", (json_int_t)dataset->index_bytes,
                                 "digest", dataset->digest);
        if (dataset->ranged) /* a checkpoint that a client reads */
            json_object_set_new(item, "block_bytes", json_integer((json_int_t)dataset->block_bytes));
        if (dataset->compose[0] != '\0')
            json_object_set_new(item, "compose", mr_json_from_text(dataset->compose));
        json_t *dropped = json_object();
        for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
            json_object_set_new(dropped, mr_index_drop_name(kind), json_integer((json_int_t)dataset->dropped[kind]));
        json_object_set_new(item, "dropped", dropped);
        json_object_set_new(item, "saved_index", mr_json_from_text(dataset->from));
        if (dataset->state == MR_DATASET_FAILED)
            json_object_set_new(item, "error", mr_json_from_text(board->text));
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *counters_json(const struct mr_counters *block, unsigned role)
{
    struct mr_counters_snapshot values;
    unsigned count;
    const struct mr_counter_label *labels = mr_counter_labels(role, &count);
    json_t *counters = json_object();
    if (mr_counters_read(block, &values) == 0)
        for (unsigned i = 0; i < count; i++)
            json_object_set_new(counters, labels[i].name, json_integer((json_int_t)values.values[i]));
    return counters;
}

static json_t *lanes_json(const struct mr_supervisor *s)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < s->lanes.used; i++) {
        const struct mr_registered_lane *entry = s->lanes.slots[i];
        if (!entry)
            continue;
        const struct mr_lane_shared *shared = entry->lane.shared;
        unsigned counts[16];
        mr_lanes_count_states(&entry->lane, counts);
        json_array_append_new(
            list,
            json_pack("{s:i, s:i, s:i, s:s, s:i, s:I, s:f, s:i, s:i, s:i, s:i, s:i, s:o}", "lane", (int)i, "dataset",
                      (int)entry->lane.dataset, "pid", entry->client ? (int)entry->client->pid : 0, "state",
                      lane_states[entry->state], "window", (int)mr_lanes_ahead(entry), "quota_bytes",
                      (json_int_t)atomic_load_explicit(&shared->quota_bytes, memory_order_relaxed), "waiting_ratio",
                      entry->waiting, "pending", (int)counts[MR_PENDING], "filling", (int)counts[MR_FILLING], "ready",
                      (int)counts[MR_READY], "held", (int)counts[MR_HELD], "failed", (int)counts[MR_FAILED], "counters",
                      counters_json(&shared->counters, MR_ROLE_CONSUMER)));
    }
    return list;
}

static json_t *worker_json(const struct mr_child *child)
{
    return json_pack("{s:s, s:i, s:i, s:s, s:i, s:o}", "role", child->role->name, "slot", (int)child->slot, "pid",
                     (int)child->pid, "state", child->is_stopped ? "stopped" : child_states[child->state], "starts",
                     (int)child->generation, "counters", counters_json(child->counters, child->role->counters));
}

static json_t *workers_json(const struct mr_supervisor *s)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        if (s->listing.workers[i].generation > 0)
            json_array_append_new(list, worker_json(&s->listing.workers[i]));
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        json_array_append_new(list, worker_json(&s->fetch_workers.workers[i]));
    for (unsigned i = 0; i < s->write_workers.count; i++)
        json_array_append_new(list, worker_json(&s->write_workers.workers[i]));
    return list;
}

/* The outcome as far as there is one, else the fate. */
static const char *writer_state(const struct mr_ckpt_entry *entry)
{
    uint32_t code, crc32c;
    uint64_t generation;
    switch (mr_ckpt_part_result(&entry->lane, &code, NULL, &generation, &crc32c)) {
    case MR_CKPT_PART_DONE:
        return "saved";
    case MR_CKPT_PART_FAILED:
        return "failed";
    case MR_CKPT_PART_GONE:
        return "aborted";
    default:
        break;
    }
    switch (mr_ckpt_part_fate(&entry->lane)) {
    case MR_FATE_OPEN:
        return "open";
    case MR_FATE_SEALED:
        return "sealed";
    default:
        return "aborted";
    }
}

static json_t *writers_json(const struct mr_supervisor *s)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++) {
        const struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry)
            continue;
        uint64_t stored, total;
        mr_ckpt_entry_progress(entry, &stored, &total);
        json_array_append_new(list, json_pack("{s:i, s:o, s:i, s:s, s:i, s:b, s:i, s:I, s:I, s:I, s:f}", "writer",
                                              (int)i, "uri", mr_json_from_text(entry->uri), "pid", (int)entry->pid,
                                              "state", writer_state(entry), "worker", (int)entry->lane.worker,
                                              "adopted", mr_ckpt_part_is_adopted(&entry->lane), "parts",
                                              (int)entry->lane.slots, "part_bytes", (json_int_t)entry->lane.part_bytes,
                                              "stored_bytes", (json_int_t)stored, "total_bytes", (json_int_t)total,
                                              "age_s", (double)(mr_clock_mono_ns() - entry->opened_ns) / 1e9));
    }
    return list;
}

/* Clients that wait for a checkpoint writer: BUSY is answered at once, and they ask again. */
static unsigned waiting_savers(const struct mr_supervisor *s)
{
    unsigned count = 0;
    for (const struct mr_client_peer *client = s->clients.first; client; client = client->next)
        count += client->refused_ns != 0 && mr_clock_mono_ns() - client->refused_ns < WAITS_NS;
    return count;
}

static json_t *checkpoint_json(const struct mr_supervisor *s)
{
    return json_pack("{s:I, s:I, s:i, s:i, s:i, s:o}", "arena_bytes", (json_int_t)s->write_workers.arena_bytes,
                     "arena_free_bytes", (json_int_t)mr_ckpt_lanes_free_bytes(s), "open", (int)s->ckpt_lanes.open,
                     "waiting", (int)waiting_savers(s), "lost", (int)s->ckpt_lanes.lost, "writers", writers_json(s));
}

/* Also of slots that a later division has no use for: what they have done was billed. */
static uint64_t sum_counter(const struct mr_supervisor *s, enum mr_worker_counter which)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        sum += s->fetch_workers.workers[i].counters ? mr_counter_get(s->fetch_workers.workers[i].counters, which) : 0;
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        sum += s->listing.workers[i].counters ? mr_counter_get(s->listing.workers[i].counters, which) : 0;
    for (unsigned i = 0; i < s->write_workers.count; i++)
        sum += mr_counter_get(s->write_workers.workers[i].counters, which);
    return sum;
}

/* What the store bills, and what came of composing, over all workers. */
static json_t *operations_json(const struct mr_supervisor *s)
{
    uint64_t composites = sum_counter(s, MR_WC_COMPOSITES), composed = sum_counter(s, MR_WC_COMPOSED_OBJECTS);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I}", "class_a",
                     (json_int_t)sum_counter(s, MR_WC_CLASS_A), "class_b", (json_int_t)sum_counter(s, MR_WC_CLASS_B),
                     "free", (json_int_t)sum_counter(s, MR_WC_FREE_OPERATIONS), "composites", (json_int_t)composites,
                     "composed_objects", (json_int_t)composed, "objects_a_compose",
                     composites > 0 ? (double)composed / (double)composites : 0.0, "temporary_objects",
                     (json_int_t)sum_counter(s, MR_WC_TEMPORARY_OBJECTS), "composites_removed",
                     (json_int_t)sum_counter(s, MR_WC_COMPOSITES_REMOVED), "orphans_removed",
                     (json_int_t)sum_counter(s, MR_WC_ORPHANS_REMOVED));
}

static json_t *batches_json(const struct mr_supervisor *s)
{
    struct mr_batch_counts counts;
    unsigned arenas = mr_batches_count(s, NULL, &counts);
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "arenas", (int)arenas, "memory_bytes",
                     (json_int_t)counts.memory_bytes, "limit_bytes",
                     (json_int_t)mr_config_batch_bytes(&s->config, mr_memory_limit_bytes()), "batches",
                     (json_int_t)counts.batches, "bytes", (json_int_t)counts.bytes, "beside", (json_int_t)counts.beside,
                     "copies", (json_int_t)counts.copies, "waited_s", (double)counts.waited_ns / 1e9);
}

static json_t *loaders_json(const struct mr_meter *meter)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < meter->blocks; i++)
        json_array_append_new(list, json_pack("{s:i, s:o}", "loader", (int)i, "counters",
                                              counters_json(&meter->loaders[i], MR_ROLE_LOADER)));
    return list;
}

/* Of each loader: its counters, and of the last seconds what it waits for. */
static json_t *loops_json(const struct mr_supervisor *s)
{
    json_t *list = json_array();
    for (const struct mr_metered *each = s->meters.first; each; each = each->next) {
        const struct mr_meter_sums *sums = &each->stretch;
        const struct mr_verdict *verdict = &each->verdict;
        double batches = sums->batches > 0 ? (double)sums->batches : 1;
        json_t *waits = json_object();
        for (unsigned stage = MR_STAGE_STORE; stage < MR_STAGE_COUNT; stage++)
            json_object_set_new(waits, mr_stage_name(stage), json_real(verdict->waits[stage] / 1e6));
        json_array_append_new(
            list,
            json_pack("{s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:s, s:i, s:s, s:o, s:o, s:o}", "loop",
                      (json_int_t)each->number, "pid", each->client ? (int)each->client->pid : 0, "rank",
                      (int)sums->rank, "world", (int)sums->world, "epoch", (int)sums->epoch, "num_workers",
                      (int)sums->workers, "batches", (int)sums->batches, "step_ms",
                      (double)(sums->step + sums->wait) / batches / 1e6, "wait_ratio", mr_verdict_wait_share(sums),
                      "stage", mr_stage_name(verdict->stage), "cause", mr_cause_name(verdict->cause), "try_workers",
                      (int)verdict->try_workers, "text", verdict->text, "waits_ms", waits, "counters",
                      counters_json(each->meter.loop, MR_ROLE_LOOP), "loaders", loaders_json(&each->meter)));
    }
    return list;
}

char *mr_stat_json(const struct mr_supervisor *s)
{
    struct mr_limit_verdict limit;
    mr_limit_find(s, &limit);
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:s, s:f, s:{s:I, s:i, s:I, s:I, s:b}, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                  "s:{s:s, s:s, s:s}}",
                  "version", MR_VERSION, "run_id", s->run_id, "pid", (int)getpid(), "state",
                  supervisor_states[s->state], "uptime_s", (double)(mr_clock_mono_ns() - s->started_ns) / 1e9, "memory",
                  "arena_bytes", (json_int_t)s->fetch_workers.arena_bytes, "arenas", (int)s->fetch_workers.count,
                  "reserve_bytes", (json_int_t)s->fetch_workers.reserve_bytes, "backed_bytes",
                  (json_int_t)sum_counter(s, MR_WC_ARENA_BACKED_BYTES), "grows", s->config.memory.arena_bytes == 0,
                  "datasets", datasets_json(s), "lanes", lanes_json(s), "workers", workers_json(s), "operations",
                  operations_json(s), "batches", batches_json(s), "checkpoint", checkpoint_json(s), "loops",
                  loops_json(s), "node", counters_json(&s->board->node, MR_ROLE_NODE), "limit", "stage", limit.stage,
                  "cause", limit.cause, "text", limit.text);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text)
        mr_error_set(MR_E_NO_MEMORY, "no memory for the statistics");
    return text;
}
