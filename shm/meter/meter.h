/*
 * meter.h - what a training loop waits for, in memory that the supervisor reads too.
 *
 * A meter belongs to one loader of one rank: a memfd of the training process, whose descriptor the supervisor is sent.
 * It has a block of counters (shm/ring/counters.h) for the loop, and one for each DataLoader worker. The workers
 * measure themselves and send the times with each batch, so that the training process alone writes: a reader needs no
 * lock, and sees values that need not be consistent. The memory ends with that process; `ended` says so earlier.
 * Pairing labels (M = meter):
 *   M0 _new  magic (release)  -> M1 _map (acquire): version, blocks, the blocks of counters
 *
 * None of the functions blocks, and none but _new and _map allocates.
 */
#ifndef MR_SHM_METER_METER_H
#define MR_SHM_METER_METER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/counters.h"

#define MR_METER_MAGIC       UINT64_C(0x6d696c6c6d657472) /* "millmetr" */
#define MR_METER_VERSION     2u
#define MR_METER_WORKERS_MAX 1024u

/* The segment: this, the loop's block, and a block for each worker (one where there are none). */
struct mr_meter_shared {
    _Atomic uint64_t magic; /* by the training process, last (M0); by the supervisor, first (M1) */
    uint32_t version;       /* this one and `blocks`: constant from M0 on */
    uint32_t blocks;        /* of workers */
    _Atomic uint32_t ended; /* 1: its process has unmapped it, and a reader should too; relaxed: it orders nothing */
    uint8_t reserved[44];
};

/* A process's own handle. */
struct mr_meter {
    struct mr_meter_shared *shared;
    struct mr_counters *loop, *loaders;
    uint64_t size;
    uint32_t blocks; /* as checked */
    int fd;          /* -1: mapped read-only */
    int64_t given;   /* the writer's: when the loop was given its last batch; 0: none yet */
    int64_t *packed; /* the writer's: when each worker had packed its last one */
};

/* Of one batch, by the process that made it; ns of CLOCK_MONOTONIC. */
struct mr_meter_times {
    uint32_t worker;
    int64_t began, fetched, reserved, collated, packed;
    int64_t sent;    /* the worker's queue began to send it: its thread had got the GIL */
    uint64_t waited; /* for samples, between began and fetched */
    uint64_t cpu;    /* of the process, between began and packed */
    uint64_t thread; /* of the thread that made it */
    uint64_t delay;  /* that this thread waited for a core */
};

/* The values of a meter, those of its workers summed up; ns. In the order of enum mr_loop_counter, up to its gauges,
 * and of enum mr_loader_counter. */
struct mr_meter_sums {
    union {
        struct {
            uint64_t batches, first, step, wait, late, transport, device, save;
        };
        uint64_t loop[MR_LC_EPOCH];
    };
    union {
        struct {
            uint64_t made, store, transform, extent, collate, pack, cpu, thread, delay, idle, queue;
        };
        uint64_t loaders[MR_DC_COUNT];
    };
    uint32_t epoch, rank, world, workers, cores, sharers; /* as they are now */
    uint64_t given;                                       /* batches of this iteration */
    int64_t asked;                                        /* since when the loop waits; 0 */
};

/* Training process. 0 or -1 (USAGE, NO_MEMORY, IO). */
int mr_meter_new(struct mr_meter *meter, uint32_t workers, uint32_t rank, uint32_t world);
/* Read-only, of a descriptor that stays the caller's. 0 or -1 (USAGE: it may shrink, or is of another
 * version; CORRUPT, IO). */
int mr_meter_map(struct mr_meter *meter, int fd);
/* Unmaps it; the process that made it says that it has ended. A meter of zeroes: nothing. */
void mr_meter_close(struct mr_meter *meter);
/* In a child of the process that made it: only what is the child's own. */
void mr_meter_close_in_child(struct mr_meter *meter);

/* An iteration begins. cores: that this process may use; sharers: ranks of this node, which share its cores. */
void mr_meter_begin(struct mr_meter *meter, uint32_t epoch, uint32_t cores, uint32_t sharers);
/* The loop wants its next batch, since now_ns; 0: it no longer wants one. */
void mr_meter_ask(struct mr_meter *meter, int64_t now_ns);
/* The loop has its batch. arrived_ns: when it was there to be copied to the device; 0: it was not copied. saved_ns: of
 * the time since the last batch, in calls of checkpoints. */
void mr_meter_take(struct mr_meter *meter, int64_t asked_ns, int64_t taken_ns, int64_t arrived_ns, uint64_t saved_ns,
                   const struct mr_meter_times *made);

/* The spans of a batch for `millrace trace`: by the thread that made it. */
void mr_meter_trace_made(const struct mr_meter_times *made);

/* Any process. */
static inline bool mr_meter_has_ended(const struct mr_meter *meter)
{
    return atomic_load_explicit(&meter->shared->ended, memory_order_relaxed) != 0;
}
void mr_meter_read(const struct mr_meter *meter, struct mr_meter_sums *sums);
/* What came since `before` was read. */
void mr_meter_since(struct mr_meter_sums *sums, const struct mr_meter_sums *before);

#endif
