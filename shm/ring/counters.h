/*
 * counters.h - what a process has done, in shared memory: an enum and a table of labels of equal length.
 *
 * A block of counters has one process that writes it (its owner) and any number that read it: the supervisor, `top` and
 * `stat`, also after the owner's death. A reader needs no lock: each value is one relaxed 64-bit load, and two of them
 * need not be consistent. A value only grows, unless its label marks it as a gauge.
 *
 * A block is MR_COUNTERS_BYTES at a 64-byte border of any shared mapping. The supervisor makes it (mr_counters_init)
 * before its owner starts; a restarted worker continues in the same block (mr_counters_adopt), so nothing is lost.
 */
#ifndef MR_SHM_RING_COUNTERS_H
#define MR_SHM_RING_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Workers: list, fetch and write. Append only, and to the table in counters.c in the same order. */
enum mr_worker_counter {
    MR_WC_REQUESTS,
    MR_WC_BYTES,
    MR_WC_OBJECTS,
    MR_WC_FAILED,
    MR_WC_RETRIES,
    MR_WC_RESUMES,
    MR_WC_STALLS,
    MR_WC_CRC_FAILURES,
    MR_WC_UNVERIFIED,
    MR_WC_THROTTLED,
    MR_WC_STOLEN,
    MR_WC_TAKE_BACKS,
    MR_WC_RESERVE_USES,
    MR_WC_GIVE_BACKS,
    MR_WC_JOBS,
    MR_WC_JOB_TICKETS,
    MR_WC_NO_ROOM,
    MR_WC_LIST_PAGES,
    MR_WC_LISTED,
    MR_WC_DROPPED_FOLDER, /* the six in the order of enum mr_index_drop */
    MR_WC_DROPPED_TEMPORARY,
    MR_WC_DROPPED_CLASS,
    MR_WC_DROPPED_SPECIAL,
    MR_WC_DROPPED_NO_SHARD,
    MR_WC_DROPPED_DAMAGED,
    MR_WC_BUSY_NS,
    MR_WC_IDLE_NS,
    MR_WC_EGRESS_LIMITED,
    MR_WC_ARENA_BYTES,      /* gauge */
    MR_WC_ARENA_FREE_BYTES, /* gauge */
    MR_WC_CLASS_A,          /* billed operations: docs/compose.md */
    MR_WC_CLASS_B,
    MR_WC_FREE_OPERATIONS,
    MR_WC_COMPOSITES,
    MR_WC_COMPOSED_OBJECTS,
    MR_WC_COMPOSE_FALLBACKS,
    MR_WC_SLICES_REPEATED,
    MR_WC_COMPOSITES_REMOVED,
    MR_WC_ORPHANS_REMOVED,
    MR_WC_IN_FLIGHT,         /* gauge */
    MR_WC_LIMIT,             /* gauge */
    MR_WC_FIRST_MS,          /* gauge */
    MR_WC_STALL_MS,          /* gauge */
    MR_WC_TEMPORARY_OBJECTS, /* gauge */
    MR_WC_LIST_JOBS,
    MR_WC_PARTS,
    MR_WC_PART_BYTES,
    MR_WC_UPLOADS_DONE,
    MR_WC_UPLOADS_FAILED,
    MR_WC_UPLOADS_ABORTED,
    MR_WC_UPLOADS,            /* gauge */
    MR_WC_ARENA_BACKED_BYTES, /* gauge */
    MR_WC_LIMIT_PHASE,        /* gauge: how the limit on requests in flight is found, enum mr_flight_phase */
    MR_WC_REQUEST_RATE,       /* gauge */
    MR_WC_ANSWERS,
    MR_WC_FIRST_BYTE_NS,
    MR_WC_BODY_NS,
    MR_WC_CPU_NS, /* gauge: a worker that starts again begins at 0 */
    MR_WC_COUNT
};

/* Consumers: one block a lane. */
enum mr_consumer_counter {
    MR_CC_SAMPLES,
    MR_CC_BYTES,
    MR_CC_COPIES,
    MR_CC_COPIED_BYTES,
    MR_CC_WAITS,
    MR_CC_WAIT_NS,
    MR_CC_SKIPPED,
    MR_CC_REPLACED,
    MR_CC_AHEAD, /* gauge */
    MR_CC_COUNT
};

/* Training loops (shm/meter/meter.h): one block a loader. "The first batch" of an iteration is counted apart. */
enum mr_loop_counter {
    MR_LC_BATCHES,
    MR_LC_FIRST_NS,
    MR_LC_STEP_NS,
    MR_LC_WAIT_NS,
    MR_LC_LATE_NS,
    MR_LC_TRANSPORT_NS,
    MR_LC_DEVICE_NS,
    MR_LC_SAVE_NS,
    MR_LC_EPOCH,   /* gauge, as are those that follow */
    MR_LC_RANK,    /* gauge */
    MR_LC_WORLD,   /* gauge */
    MR_LC_WORKERS, /* gauge */
    MR_LC_CORES,   /* gauge */
    MR_LC_SHARERS, /* gauge */
    MR_LC_GIVEN,   /* gauge */
    MR_LC_ASKED,   /* gauge: CLOCK_MONOTONIC in ns, while it waits for a batch; 0 */
    MR_LC_COUNT
};

/* DataLoader workers, or the loop's own process where there are none: one block each. */
enum mr_loader_counter {
    MR_DC_BATCHES,
    MR_DC_STORE_NS,
    MR_DC_TRANSFORM_NS,
    MR_DC_EXTENT_NS,
    MR_DC_COLLATE_NS,
    MR_DC_PACK_NS,
    MR_DC_CPU_NS,
    MR_DC_THREAD_NS,
    MR_DC_DELAY_NS,
    MR_DC_IDLE_NS,
    MR_DC_QUEUE_NS,
    MR_DC_COUNT
};

/* The node: one block, on the board (shm/meter/verdict.h), written by the supervisor. The first ones in the order of
 * enum mr_cause. */
enum mr_node_counter {
    MR_NC_LISTING_NS,
    MR_NC_MEMORY_NS,
    MR_NC_THROTTLED_NS,
    MR_NC_CONNECTIONS_NS,
    MR_NC_LATENCY_NS,
    MR_NC_BANDWIDTH_NS,
    MR_NC_WINDOW_NS,
    MR_NC_FETCH_CPU_NS,
    MR_NC_SAVING_NS,
    MR_NC_WATCHED_NS,
    MR_NC_OTHERS_CPU_NS,
    MR_NC_QUOTA_NS,
    MR_NC_SWAPPED_PAGES,
    MR_NC_CORES,        /* gauge */
    MR_NC_REQUEST_RATE, /* gauge */
    MR_NC_CONNECTIONS,  /* gauge */
    MR_NC_WINDOW,       /* gauge */
    MR_NC_FIRST_US,     /* gauge */
    MR_NC_BYTES_S,      /* gauge */
    MR_NC_COUNT
};

/* Whose block it is; the role selects the table that labels the values. */
enum mr_counter_role {
    MR_ROLE_LIST = 1,
    MR_ROLE_FETCH,
    MR_ROLE_CONSUMER,
    MR_ROLE_WRITE,
    MR_ROLE_LOOP,
    MR_ROLE_LOADER,
    MR_ROLE_NODE,
    MR_COUNTER_ROLES
};

#define MR_COUNTERS_BYTES 1024
#define MR_COUNTERS_SLOTS 120
#define MR_COUNTERS_MAGIC UINT64_C(0x31544e434c4c494d) /* "MILLCNT1" */

/*
 * Written by the supervisor before the owner exists, and again only between the death of an owner and the start of the
 * next; `values` by the owner. `magic` is stored last (C0) and read first (C1).
 */
struct mr_counters {
    _Atomic uint64_t magic;
    uint32_t role;               /* enum mr_counter_role */
    uint32_t slot;               /* the worker's slot; the lane's number for a consumer */
    _Atomic uint32_t generation; /* how often the slot was started */
    _Atomic int32_t pid;         /* of the last owner, also after its death */
    _Atomic int64_t started_mono_ns;
    uint64_t reserved[4];
    _Atomic uint64_t values[MR_COUNTERS_SLOTS];
};

/* A label: the Prometheus name is millrace_<name>. */
struct mr_counter_label {
    const char *name; /* "fetched_bytes": lower case, with its unit where it has one */
    const char *unit; /* "objects", "bytes", "ns", ... */
    const char *help; /* one sentence, no newline */
    bool gauge;       /* the value as it is now: it may fall */
};

/* A reader's copy. */
struct mr_counters_snapshot {
    enum mr_counter_role role;
    uint32_t slot;
    uint32_t generation;
    int32_t pid;
    int64_t started_mono_ns;
    unsigned count; /* values that the role has */
    uint64_t values[MR_COUNTERS_SLOTS];
};

/* Supervisor: an empty block. */
void mr_counters_init(struct mr_counters *block, enum mr_counter_role role, uint32_t slot);
/* Supervisor, before a slot's process starts, or the process itself as its first act: who owns it now. */
void mr_counters_adopt(struct mr_counters *block, uint32_t generation, int32_t pid, int64_t now_mono_ns);

/* Owner, any of its threads. */
static inline void mr_counter_add(struct mr_counters *block, unsigned which, uint64_t n)
{
    if (which < MR_COUNTERS_SLOTS)
        atomic_fetch_add_explicit(&block->values[which], n, memory_order_relaxed);
}

/* Owner: a gauge. Relaxed: it stands for itself, and readers order nothing by it. */
static inline void mr_counter_set(struct mr_counters *block, unsigned which, uint64_t value)
{
    if (which < MR_COUNTERS_SLOTS)
        atomic_store_explicit(&block->values[which], value, memory_order_relaxed);
}

/* Any process. */
static inline uint64_t mr_counter_get(const struct mr_counters *block, unsigned which)
{
    return which < MR_COUNTERS_SLOTS ? atomic_load_explicit(&block->values[which], memory_order_relaxed) : 0;
}

/* What a value that only grows has grown by; 0 where it began anew. */
static inline uint64_t mr_counter_grown(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

/* Any process, from a read-only mapping: 0, or -1 (CORRUPT) where there is no block. */
int mr_counters_read(const struct mr_counters *block, struct mr_counters_snapshot *out);

/* The labels of a role's values, and how many: NULL and 0 for a role out of range. Static. */
const struct mr_counter_label *mr_counter_labels(unsigned role, unsigned *count);
/* "list", "fetch", "consumer", "write", "loop", "loader", "node"; "unknown". */
const char *mr_counter_role_name(unsigned role);

#endif
