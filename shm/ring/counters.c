#include "shm/ring/counters.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"

_Static_assert(sizeof(struct mr_counters) == MR_COUNTERS_BYTES, "a block is MR_COUNTERS_BYTES");
_Static_assert(offsetof(struct mr_counters, role) == 8, "layout");
_Static_assert(offsetof(struct mr_counters, generation) == 16, "layout");
_Static_assert(offsetof(struct mr_counters, started_mono_ns) == 24, "layout");
_Static_assert(offsetof(struct mr_counters, values) == 64, "layout");
_Static_assert(MR_WC_COUNT <= MR_COUNTERS_SLOTS && MR_CC_COUNT <= MR_COUNTERS_SLOTS, "values fit the block");

static const struct mr_counter_label worker_labels[] = {
    {"requests", "requests", "HTTP requests sent, repeats included", false},
    {"fetched_bytes", "bytes", "Bytes of objects received", false},
    {"fetched_objects", "objects", "Objects verified and published", false},
    {"failed_objects", "objects", "Objects given up after all repeats", false},
    {"retries", "requests", "Requests repeated after an error", false},
    {"resumes", "requests", "Streams taken up again at the byte that they had reached", false},
    {"stalls", "requests", "Streams broken off because nothing came", false},
    {"crc_failures", "objects", "Bodies whose crc32c or length was wrong", false},
    {"unverified_objects", "objects", "Objects published without a checksum of the store's to hold them against",
     false},
    {"throttled", "requests", "Answers of status 429 and 503", false},
    {"stolen_blocks", "blocks", "Blocks served for another worker", false},
    {"take_backs", "tickets", "Tickets taken back from READY to make room for a lane's head", false},
    {"reserve_uses", "tickets", "Tickets served from the reserve extent", false},
    {"give_backs", "tickets", "Tickets claimed and given back", false},
    {"jobs", "jobs", "Groups of tickets that one request served", false},
    {"job_tickets", "tickets", "Tickets in those groups", false},
    {"no_room", "waits", "Times that no ticket could start because the arena was full", false},
    {"list_pages", "pages", "Pages of listings received", false},
    {"listed_objects", "objects", "Objects put into an index", false},
    {"dropped_folder", "objects", "Folder markers left out of an index", false},
    {"dropped_temporary", "objects", "Temporary objects left out of an index", false},
    {"dropped_class", "objects", "Objects left out of an index for their storage class", false},
    {"dropped_special", "objects", "Files left out of an index because they are not regular", false},
    {"dropped_no_shard", "objects", "Objects left out of an index of shards because they are none", false},
    {"dropped_damaged", "shards", "Shards whose rest is damaged and left out of an index", false},
    {"busy_ns", "ns", "Time spent working", false},
    {"idle_ns", "ns", "Time spent waiting for work or for the network", false},
    {"egress_limited", "requests", "Answers of status 429 about the egress bandwidth of the project", false},
    {"arena_bytes", "bytes", "Size of the arena", true},
    {"arena_free_bytes", "bytes", "Bytes of the arena that nothing is in", true},
    {"class_a_operations", "requests", "Requests that the store bills as class A: compose, insert, list", false},
    {"class_b_operations", "requests", "Requests that the store bills as class B: get, metadata, permissions", false},
    {"free_operations", "requests", "Requests that the store does not bill: delete", false},
    {"composites", "objects", "Temporary composed objects made", false},
    {"composed_objects", "objects", "Objects that came out of composed ones", false},
    {"compose_fallbacks", "jobs", "Groups of objects that were downloaded one by one because composing failed", false},
    {"slices_repeated", "objects",
     "Objects that were wrong in a composed one, samples in a window, and were downloaded alone", false},
    {"composites_removed", "objects", "Temporary composed objects of this run that were deleted", false},
    {"orphans_removed", "objects", "Temporary composed objects of dead runs that were deleted", false},
    {"in_flight", "requests", "Requests under way", true},
    {"connection_limit", "requests", "Requests that may be under way: less than the connections after 503", true},
    {"stall_first_ms", "ms", "Time after which a download without an answer counts as stalled", true},
    {"stall_ms", "ms", "Time after which a download that has begun counts as stalled", true},
    {"temporary_objects", "objects", "Temporary composed objects in use or waiting for their deletion", true},
    {"list_jobs", "jobs", "Ranges of names listed to their end, and indexes put together or loaded", false},
    {"stored_parts", "parts", "Parts of checkpoints stored", false},
    {"stored_part_bytes", "bytes", "Bytes of those parts", false},
    {"uploads_done", "uploads", "Checkpoint objects stored and verified", false},
    {"uploads_failed", "uploads", "Checkpoint objects that could not be stored", false},
    {"uploads_aborted", "uploads", "Checkpoint objects given up before they were whole", false},
    {"uploads", "uploads", "Checkpoint objects being written", true},
    {"arena_backed_bytes", "bytes", "Memory that the arena has: as much as was used, where memory.arena_bytes is auto",
     true},
    {"connection_phase", "phase",
     "How connection_limit is found: 0 a number, 1 growing, 2 held, 3 trying more, 4 trying fewer", true},
    {"request_rate", "requests/s",
     "Requests a second that the store takes, as its 429 and SlowDown say, while that holds some up; 0: nothing is "
     "held up",
     true},
    {"answers", "requests", "Downloads whose answer came to its end", false},
    {"first_byte_ns", "ns", "Time of those until the answer began, together", false},
    {"body_ns", "ns", "Time of those from then to the end, together", false},
    {"cpu_ns", "ns", "CPU time of the worker's process", true},
};
_Static_assert(sizeof(worker_labels) / sizeof(worker_labels[0]) == MR_WC_COUNT, "a label for each worker counter");

static const struct mr_counter_label consumer_labels[] = {
    {"samples", "samples", "Samples delivered", false},
    {"sample_bytes", "bytes", "Bytes of samples delivered", false},
    {"copies", "samples", "Samples copied out of shared memory because too much of it was held", false},
    {"copied_bytes", "bytes", "Bytes of those samples", false},
    {"waits", "waits", "Times that the next sample was not ready", false},
    {"wait_ns", "ns", "Time spent waiting for samples", false},
    {"skipped_samples", "samples", "Unreadable samples left out of their batch", false},
    {"replaced_samples", "samples", "Unreadable samples replaced by others", false},
    {"ahead", "samples", "Samples that the reader asks for before it takes them", true},
};
_Static_assert(sizeof(consumer_labels) / sizeof(consumer_labels[0]) == MR_CC_COUNT,
               "a label for each consumer counter");

static const struct mr_counter_label loop_labels[] = {
    {"batches", "batches", "Batches that the training loop was given, without the first of each iteration", false},
    {"first_ns", "ns", "Time until the first batch of each iteration: starting workers, listing", false},
    {"step_ns", "ns", "Time that the loop had a batch and did not ask for the next one", false},
    {"wait_ns", "ns", "Time that the loop waited for a batch", false},
    {"late_ns", "ns", "Of that, until the batch was made", false},
    {"transport_ns", "ns", "Of that, for a batch that was made, on its way", false},
    {"device_ns", "ns", "Of that, for the copy to the device", false},
    {"save_ns", "ns", "Time of its steps that the loop spent in calls of checkpoints", false},
    {"epoch", "epoch", "The epoch that is iterated", true},
    {"rank", "rank", "Its rank", true},
    {"world", "ranks", "Ranks of the job", true},
    {"workers", "processes", "DataLoader workers; 0: batches are made in the loop's own process", true},
    {"cores", "cores", "Cores that its process may use", true},
    {"sharers", "ranks", "Ranks of this node, which share its cores", true},
    {"given", "batches", "Batches of this iteration that the loop was given", true},
    {"asked_ns", "ns", "Since when it has been waiting for a batch (monotonic clock); 0: it is not", true},
};
_Static_assert(sizeof(loop_labels) / sizeof(loop_labels[0]) == MR_LC_COUNT, "a label for each loop counter");

static const struct mr_counter_label loader_labels[] = {
    {"batches", "batches", "Batches made, without the first of each iteration", false},
    {"store_ns", "ns", "Time spent waiting for samples", false},
    {"transform_ns", "ns", "Time spent in transforms, and in decoding", false},
    {"extent_ns", "ns", "Time spent waiting for memory for a batch", false},
    {"collate_ns", "ns", "Time spent collating", false},
    {"pack_ns", "ns", "Time spent packing and pickling", false},
    {"cpu_ns", "ns", "CPU time of the process while it made batches", false},
    {"thread_cpu_ns", "ns", "Of that, of the thread that makes them", false},
    {"delay_ns", "ns", "Time that this thread could have run, and no core was free", false},
    {"idle_ns", "ns", "Time between two batches", false},
    {"queue_ns", "ns", "Time that batches were ready before the loop took them", false},
};
_Static_assert(sizeof(loader_labels) / sizeof(loader_labels[0]) == MR_DC_COUNT, "a label for each loader counter");

static const struct mr_counter_label node_labels[] = {
    {"wait_listing_ns", "ns", "Time that readers waited for a listing", false},
    {"wait_memory_ns", "ns", "Time that readers waited because the memory for samples was full", false},
    {"wait_throttled_ns", "ns", "Time that readers waited because the store refused requests", false},
    {"wait_connections_ns", "ns", "Time that readers waited because all connections that may be were in use", false},
    {"wait_latency_ns", "ns", "Time that readers waited for the first byte of answers", false},
    {"wait_bandwidth_ns", "ns", "Time that readers waited for the bytes of answers", false},
    {"wait_window_ns", "ns", "Time that readers waited, and all that they may ask for was on its way", false},
    {"wait_fetch_cpu_ns", "ns", "Time that readers waited because fetch workers had no time left", false},
    {"wait_saving_ns", "ns", "Time that readers waited while a checkpoint was uploaded, whatever else they waited for",
     false},
    {"watched_ns", "ns", "Time that the machine was watched", false},
    {"others_cpu_ns", "ns", "CPU time that processes outside of this job used meanwhile", false},
    {"quota_ns", "ns", "Time that the cgroup's CPU quota stopped processes", false},
    {"swapped_pages", "pages", "Pages that the machine read from swap", false},
    {"cores", "cores", "Cores that this job may use", true},
    {"request_rate", "requests/s", "Requests a second that the store takes; 0: it refuses none", true},
    {"connections", "connections", "Requests that may be under way", true},
    {"window", "samples", "Samples that a reader asks for ahead, on average", true},
    {"first_byte_us", "us", "Time until answers begin, on average of the last seconds", true},
    {"fetched_bytes_s", "bytes/s", "Bytes that came in the last second", true},
};
_Static_assert(sizeof(node_labels) / sizeof(node_labels[0]) == MR_NC_COUNT, "a label for each node counter");

static const struct {
    const char *name;
    const struct mr_counter_label *labels;
    unsigned count;
} roles[] = {
    [MR_ROLE_LIST] = {"list", worker_labels, MR_WC_COUNT},
    [MR_ROLE_FETCH] = {"fetch", worker_labels, MR_WC_COUNT},
    [MR_ROLE_CONSUMER] = {"consumer", consumer_labels, MR_CC_COUNT},
    [MR_ROLE_WRITE] = {"write", worker_labels, MR_WC_COUNT},
    [MR_ROLE_LOOP] = {"loop", loop_labels, MR_LC_COUNT},
    [MR_ROLE_LOADER] = {"loader", loader_labels, MR_DC_COUNT},
    [MR_ROLE_NODE] = {"node", node_labels, MR_NC_COUNT},
};
_Static_assert(sizeof(roles) / sizeof(roles[0]) == MR_COUNTER_ROLES, "a table for each role");

static bool role_known(unsigned role)
{
    return role > 0 && role < MR_COUNTER_ROLES;
}

void mr_counters_init(struct mr_counters *block, enum mr_counter_role role, uint32_t slot)
{
    atomic_store_explicit(&block->magic, 0, memory_order_relaxed);
    block->role = (uint32_t)role;
    block->slot = slot;
    atomic_store_explicit(&block->generation, 0, memory_order_relaxed);
    atomic_store_explicit(&block->pid, 0, memory_order_relaxed);
    atomic_store_explicit(&block->started_mono_ns, 0, memory_order_relaxed);
    memset(block->reserved, 0, sizeof(block->reserved));
    for (unsigned i = 0; i < MR_COUNTERS_SLOTS; i++)
        atomic_store_explicit(&block->values[i], 0, memory_order_relaxed);
    /* C0, supervisor: everything above is visible to a reader that sees the magic. Pairs with C1 in
     * mr_counters_read. */
    atomic_store_explicit(&block->magic, MR_COUNTERS_MAGIC, memory_order_release);
}

void mr_counters_adopt(struct mr_counters *block, uint32_t generation, int32_t pid, int64_t now_mono_ns)
{
    /* Relaxed: a reader that sees one of the three new and the others old shows a mixed line once. */
    atomic_store_explicit(&block->generation, generation, memory_order_relaxed);
    atomic_store_explicit(&block->pid, pid, memory_order_relaxed);
    atomic_store_explicit(&block->started_mono_ns, now_mono_ns, memory_order_relaxed);
}

int mr_counters_read(const struct mr_counters *block, struct mr_counters_snapshot *out)
{
    /* C1, reader: pairs with C0 in mr_counters_init. */
    uint64_t magic = atomic_load_explicit(&block->magic, memory_order_acquire);
    if (magic != MR_COUNTERS_MAGIC) {
        mr_error_set(MR_E_CORRUPT, "no counter block here: magic %016llx", (unsigned long long)magic);
        return -1;
    }
    uint32_t role = block->role;
    if (!role_known(role)) {
        mr_error_set(MR_E_CORRUPT, "counter block of an unknown role %u", role);
        return -1;
    }
    memset(out, 0, sizeof(*out));
    out->role = (enum mr_counter_role)role;
    out->slot = block->slot;
    out->generation = atomic_load_explicit(&block->generation, memory_order_relaxed);
    out->pid = atomic_load_explicit(&block->pid, memory_order_relaxed);
    out->started_mono_ns = atomic_load_explicit(&block->started_mono_ns, memory_order_relaxed);
    out->count = roles[role].count;
    for (unsigned i = 0; i < out->count; i++)
        out->values[i] = atomic_load_explicit(&block->values[i], memory_order_relaxed);
    return 0;
}

const struct mr_counter_label *mr_counter_labels(unsigned role, unsigned *count)
{
    *count = role_known(role) ? roles[role].count : 0;
    return role_known(role) ? roles[role].labels : NULL;
}

const char *mr_counter_role_name(unsigned role)
{
    return role_known(role) ? roles[role].name : "unknown";
}
