/*
 * batch.h - batches on their way from DataLoader workers to the training process, through memory that both have mapped.
 *
 * A batch arena belongs to one loader of one rank: a memfd of the training process, which its workers inherit or are
 * sent. Each worker has a lane of it, and each lane W slots. A slot is one batch: the worker writes into it, and sends
 * slot and word through torch's queue, with the order and the small rest; the trainer takes it, and gives it back when
 * the last view of it is dropped.
 *
 *               reserve              publish             take                release (last view)
 *     EMPTY -----------> FILLING ---------> READY ----------> HELD ---------------------------------> EMPTY
 *                (worker)   |      (worker)   |    (trainer)         (trainer)
 *                           +-----------------+--> EMPTY: nothing to send (worker); recovery of a dead worker
 *
 * A slot has addresses of its own for `slot_bytes`, and pages for its extent, which only grows (mr_batch_grow), to the
 * largest batch that the slot has carried. So there is no allocator, and memory that was written once stays warm. All
 * extents together stay below `limit_bytes`.
 *
 * The lap of the word counts how often the slot was reserved. A message that names another lap is from a worker that
 * has died, and is dropped. A worker counts its own views of a slot too, and does not reserve it under them. The
 * trainer holds at most three quarters of a lane (mr_batch_holds_many); beyond that it copies, so that a worker that
 * waits for a slot gets one although the loop keeps every batch (tests/model/batches.pml).
 *
 * The functions are the table and nothing else: none but mr_batch_grow and mr_batch_wait blocks, and all are safe
 * against a SIGKILL between any two instructions of either end (tests/crash/batches.c). The memory has no name: it is
 * freed once the trainer and its workers have exited, whatever state it was in. Pairing labels (B = batch):
 *   B0 publish  word READY (release)    -> B1 take (acquire): length, the bytes
 *   B2 release  word EMPTY (release)    -> B3 reserve (acquire): the bytes may be written again
 *      (recovery ends with the same release)
 *   B4 release  word, fence, `want`     <-> B5 the worker's `want`, fence, words: whichever comes second sees the other
 *   B6 grow     own claim, fence, all claims <-> the same in another lane: of two one at least sees the other's
 */
#ifndef MR_SHM_RING_BATCH_H
#define MR_SHM_RING_BATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/ring/ticket.h"
#include "shm/ring/wake.h"

#define MR_BATCH_MAGIC     UINT64_C(0x6d696c6c62617463) /* "millbatc" */
#define MR_BATCH_VERSION   1u
#define MR_BATCH_LANES_MAX 1024u
#define MR_BATCH_SLOTS_MIN 2u
#define MR_BATCH_SLOTS_MAX 64u
#define MR_BATCH_ALIGN     64u /* of what lies in a slot */

struct mr_batch_slot {
    _Alignas(64) _Atomic uint64_t word;
    uint64_t length;         /* bytes written: by the worker while FILLING, read under HELD */
    _Atomic uint64_t extent; /* bytes that have pages: by the lane's worker alone, relaxed; B0 orders it */
    _Atomic uint64_t claim;  /* the same, or what it grows to; by the worker and recovery; any process sums it up */
    uint8_t reserved[32];
};

/* What a lane's two ends count (relaxed; each value stands alone). */
struct mr_batch_counts {
    uint64_t batches;      /* published */
    uint64_t bytes;        /* of these */
    uint64_t beside;       /* tensors, arrays and bytes that found no room, and went through torch's queue */
    uint64_t waited_ns;    /* by the worker, for a slot */
    uint64_t copies;       /* taken as private copies, since the loop held three quarters */
    uint64_t held;         /* batches that the loop still held when it took one, summed up over all takes */
    uint64_t memory_bytes; /* that have pages or are about to: not a count, but the sum of the claims */
};

struct mr_batch_lane_shared {
    /* the worker's line */
    _Alignas(64) _Atomic uint32_t want; /* 1 while it waits for a slot; recovery clears it */
    _Atomic uint64_t batches, bytes, beside, waited_ns;
    uint8_t reserved0[24];
    /* the trainer's line */
    _Alignas(64) _Atomic uint32_t seq; /* counts the wakes */
    _Atomic uint64_t copies;
    _Atomic uint64_t held; /* what the loop held, of any lane, at each take from this one */
    uint8_t reserved1[40];
};

/* The segment: this, then `lanes` lanes, then lanes * slots slots, and from memory_offset on the slots' memory. */
struct mr_batch_shared {
    /* constant after creation; magic is stored last, with release */
    _Alignas(64) _Atomic uint64_t magic;
    uint32_t version;
    uint32_t lanes, slots; /* slots: of each lane */
    uint32_t first_lap;    /* tests start near the wrap; 0 otherwise */
    uint64_t size;         /* of the segment: addresses, not pages */
    uint64_t memory_offset, slot_bytes;
    uint64_t limit_bytes;   /* of all extents together */
    _Atomic uint32_t ended; /* 1: the trainer has unmapped it (relaxed); the supervisor, which counts it, should too */
    _Atomic uint32_t held;  /* slots that are HELD; by the trainer, relaxed */
};
_Static_assert(sizeof(struct mr_batch_slot) == 64 && sizeof(struct mr_batch_lane_shared) == 128 &&
                   sizeof(struct mr_batch_shared) == 64,
               "each writer on its own line");

/* A process's own handle; what bounds an access is copied and checked at attach. */
struct mr_batch_arena {
    struct mr_batch_shared *shared;
    struct mr_batch_lane_shared *lane_lines;
    struct mr_batch_slot *slot_lines;
    int fd;
    uint32_t lanes, slots;
    uint64_t size, memory_offset, slot_bytes, limit_bytes;
};

struct mr_batch_format {
    uint32_t lanes, slots, first_lap;
    uint64_t slot_bytes, limit_bytes; /* slot_bytes: of addresses; rounded up to pages */
};

/* Bytes in front of the slots' memory, and of the whole segment. */
uint64_t mr_batch_head_bytes(uint32_t lanes, uint32_t slots);
uint64_t mr_batch_size(const struct mr_batch_format *format);
/* Fills a zeroed segment of mr_batch_size bytes. */
void mr_batch_format(void *segment, const struct mr_batch_format *format);

/* Trainer: makes the memory and maps it. Slots have fewer addresses than asked for if all together would exceed 4 TiB,
 * or if the process has no more (RLIMIT_AS). 0, or -1 (USAGE, NO_MEMORY, IO). */
int mr_batch_new(struct mr_batch_arena *arena, const struct mr_batch_format *format);
/* For a worker that did not inherit the mapping. Takes over fd, which stays the caller's on error. 0 or -1 (CORRUPT,
 * PROTOCOL, NO_MEMORY). */
int mr_batch_map(struct mr_batch_arena *arena, int fd);
/* Of memory that is mapped already; the caller keeps it, and fd. */
int mr_batch_attach(struct mr_batch_arena *arena, void *segment, uint64_t size, int fd);
/* The trainer, before it closes the arena for good: sets `ended`. */
void mr_batch_end(struct mr_batch_arena *arena);
static inline bool mr_batch_has_ended(const struct mr_batch_arena *arena)
{
    return atomic_load_explicit(&arena->shared->ended, memory_order_relaxed) != 0;
}
/* Unmaps it and closes the descriptor. */
void mr_batch_close(struct mr_batch_arena *arena);

static inline struct mr_batch_slot *mr_batch_slot_at(const struct mr_batch_arena *arena, uint32_t lane, uint32_t slot)
{
    return &arena->slot_lines[(size_t)lane * arena->slots + slot];
}
/* The slot's memory. */
static inline unsigned char *mr_batch_memory(const struct mr_batch_arena *arena, uint32_t lane, uint32_t slot)
{
    return (unsigned char *)arena->shared + arena->memory_offset +
           ((uint64_t)lane * arena->slots + slot) * arena->slot_bytes;
}
/* Bytes that may be written. */
static inline uint64_t mr_batch_extent(const struct mr_batch_arena *arena, uint32_t lane, uint32_t slot)
{
    uint64_t extent = atomic_load_explicit(&mr_batch_slot_at(arena, lane, slot)->extent, memory_order_relaxed);

    return extent < arena->slot_bytes ? extent : arena->slot_bytes; /* whatever a damaged segment says */
}
/* Bytes of all slots that have pages or are about to. */
uint64_t mr_batch_bytes(const struct mr_batch_arena *arena);
/* Adds what all lanes have counted to *counts. */
void mr_batch_count(const struct mr_batch_arena *arena, struct mr_batch_counts *counts);
/* Turns *counts into what was counted since `before`; 0 for a value that is less now, as after the end of an arena that
 * was counted too. memory_bytes, which is not a count, stays. */
void mr_batch_since(struct mr_batch_counts *counts, const struct mr_batch_counts *before);

/* ---- worker: of its own lane ---- */

/* The EMPTY slot with the largest extent, of those not in `viewed` (bit n: slot n) -> FILLING. false: none. */
bool mr_batch_reserve(struct mr_batch_arena *arena, uint32_t lane, uint64_t viewed, uint32_t *slot, uint64_t *filling);
/* Pages for the first `bytes` bytes of a slot that is FILLING (ours). false: they do not fit the slot, the limit, or
 * the memory that is free. Takes 0.05 to 0.3 s a GiB. */
bool mr_batch_grow(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t bytes);
/* FILLING (ours) -> READY with `length` bytes (at most the extent). Returns the word for the message. */
uint64_t mr_batch_publish(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t filling,
                          uint64_t length);
/* FILLING or READY (ours, and no message was sent) -> EMPTY. */
void mr_batch_withdraw(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t word);

/* mr_batch_reserve for a worker that will wait. false: `want` is set, and every slot that is given back from now on
 * changes `seq`; mr_batch_wait for that, then call it again. true: `want` is clear. */
bool mr_batch_reserve_or_want(struct mr_batch_arena *arena, uint32_t lane, uint64_t viewed, uint32_t *slot,
                              uint64_t *filling, uint32_t *seen);
/* Blocks until `seq` differs from `seen`, a wake, a signal, or timeout_ms. */
enum mr_wake_result mr_batch_wait(struct mr_batch_arena *arena, uint32_t lane, uint32_t seen, unsigned timeout_ms);

/* ---- trainer ---- */

/* READY, if its word is exactly the one that the message names -> HELD. *length is checked against the slot's extent.
 * false: the message is from a worker that has died, or the slot is damaged. */
bool mr_batch_take(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t ready, uint64_t *held,
                   uint64_t *length);
/* The trainer holds three quarters of the lane (of a lane of fewer than 8 slots: all but one): what it takes beyond
 * that it copies out, and releases at once. */
bool mr_batch_holds_many(const struct mr_batch_arena *arena, uint32_t lane);
/* HELD (ours) -> EMPTY, and wakes the worker if it waits. From any thread. */
void mr_batch_release(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t held);
/* The lane's worker has exited: FILLING and READY -> EMPTY. What is HELD stays valid. Idempotent. */
void mr_batch_recover(struct mr_batch_arena *arena, uint32_t lane);

#endif
