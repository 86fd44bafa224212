/*
 * lane.h - one consumer's ordered stream: a control segment with a window of W tickets, and every legal step on it.
 *
 * The functions here are the transition table of README.md and nothing else: no policy (which ticket, when, how
 * much) lives in this file. consumer.h and producer.h hold the policy. All are lock-free, never block, and are
 * safe against a SIGKILL between any two instructions of any participant; tests/crash single-steps them.
 *
 * Roles: consumer (one process, the lane owner), producers (fetch workers, by slot), supervisor (closes and recovers).
 */
#ifndef MR_SHM_RING_LANE_H
#define MR_SHM_RING_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/ring/counters.h"
#include "shm/ring/ticket.h"

#define MR_LANE_MAGIC      UINT64_C(0x6d696c6c6c616e65) /* "milllane" */
#define MR_LANE_VERSION    3u
#define MR_LANE_WINDOW_MIN 4u
#define MR_LANE_WINDOW_MAX 65536u
#define MR_LANE_BLOCK      32u /* tickets that share a home producer: number div 32 */
#define MR_FAIL_TEXT       176u
#define MR_POISON_TEXT     124u

/* What a ticket asks for. Written by the consumer before the word becomes PENDING; atomics (relaxed) because a producer
 * may peek at it before its claim, to estimate the size. Only what is read after the claim counts. */
struct mr_request_shared {
    _Atomic uint32_t dataset;
    _Atomic uint32_t flags;  /* MR_REQUEST_* */
    _Atomic uint64_t object; /* position in the data set's index */
    _Atomic uint64_t offset; /* bytes */
    _Atomic uint64_t length; /* bytes; 0: to the object's end */
    _Atomic uint32_t cell;   /* objects div `cell` of one number are neighbours that are wanted together; 0: none */
    uint32_t reserved;
};

#define MR_REQUEST_ALONE   1u /* not in a composed download: what the store says of the object is wanted, too */
#define MR_REQUEST_PATIENT 2u /* more of its cell is posted soon: not begun while it is far from being taken */

/* What a producer found. Plain fields: written only by the producer whose FILLING the word is, read only under HELD
 * (consumer), by the same producer, or by recovery of that slot (with the word read again afterwards). */
struct mr_descriptor {
    uint64_t extent_offset; /* in the arena of slot `arena` */
    uint64_t extent_length; /* bytes that belong to this ticket there; 0: no extent (FAILED, or an empty object) */
    uint64_t length;        /* payload bytes, <= extent_length */
    uint64_t generation;
    uint32_t crc32c;
    uint32_t arena;    /* producer slot */
    uint32_t flags;    /* MR_DESC_* */
    uint32_t code;     /* FAILED: enum mr_code */
    uint32_t division; /* of the memory: which arenas the slots' numbers mean (board.h) */
    uint32_t reserved;
};
#define MR_DESC_RESERVE    1u  /* delivered from the reserve extent: next() copies it out */
#define MR_DESC_UNVERIFIED 2u  /* the store had no checksum to compare with */
#define MR_DESC_POISON     4u  /* only in the copy that mr_lane_take makes: FAILED by the supervisor */
#define MR_DESC_DAMAGED    8u  /* only there: the descriptor contradicts itself; reported as failed, CORRUPT */
#define MR_DESC_GZIP       16u /* stored with Content-Encoding: gzip, as the store said when it gave the bytes */

/* 448 bytes = 7 cache lines (an odd number: words of neighbours fall into different cache sets): word and request /
 * descriptor / producer's failure text / supervisor's. Only the process that is named as owner of the FAILED word has
 * written the text that goes with it. */
struct mr_ticket {
    _Alignas(64) _Atomic uint64_t word;
    struct mr_request_shared request;
    uint8_t reserved0[16];
    _Alignas(64) struct mr_descriptor desc;
    uint8_t reserved1[8];
    /* FAILED by a producer: why; readers bound it themselves. After what they know (mr_index_describe): ": reason". */
    char fail_text[MR_FAIL_TEXT + 16];
    uint32_t poison_code;             /* FAILED by MR_OWNER_SUPERVISOR, which is also the only writer of both: */
    char poison_text[MR_POISON_TEXT]; /* written while it saw PENDING, read under a HELD that was that FAILED */
};
_Static_assert(sizeof(struct mr_ticket) == 448, "seven cache lines");
_Static_assert(offsetof(struct mr_ticket, desc) == 64, "descriptor line");
_Static_assert(offsetof(struct mr_ticket, poison_code) == 320, "supervisor's lines");

/* The control segment. Fixed-width fields, no pointers; the ticket table follows at sizeof(struct mr_lane_shared). */
struct mr_lane_shared {
    /* constant after creation (mr_lane_restate writes the same again); magic is stored last, with release */
    _Atomic uint64_t magic;
    uint32_t version;
    uint32_t window; /* W, a power of two */
    uint64_t size;   /* of the segment, bytes */
    uint32_t lane;   /* the lane's index: partition (lane + block) mod P */
    uint32_t owner;  /* the consumer's owner index */
    uint32_t dataset;
    uint32_t first_lap; /* tests start near the wrap; 0 otherwise */
    uint32_t division;  /* of the memory when it was opened: its tickets lie in those arenas and in no others */
    uint8_t reserved0[20];
    /* consumer's line: only the consumer stores, producers load */
    _Alignas(64) _Atomic uint64_t want; /* number + 1 of the ticket that the consumer waits for, 0: none */
    _Atomic uint64_t posted;            /* hint: one past the highest number posted (or skipped) */
    _Atomic uint64_t taken;             /* hint: every lower number has been taken or skipped */
    uint8_t reserved1[40];
    /* publishers' line: any producer or the supervisor adds, the consumer futex-waits */
    _Alignas(64) _Atomic uint32_t seq;
    uint8_t reserved2[60];
    /* closing line: set once, 0 -> 1, by the owner or (after its pidfd is readable) the supervisor */
    _Alignas(64) _Atomic uint32_t closed;
    uint8_t reserved3[60];
    /* supervisor's line: rewritten at each lane open and close */
    _Alignas(64) _Atomic uint64_t quota_bytes;
    uint8_t reserved4[56];
    /* the consumer's counters: only it adds; the supervisor reads them for `stat` */
    _Alignas(64) struct mr_counters counters;
};
_Static_assert(sizeof(struct mr_lane_shared) == 320 + MR_COUNTERS_BYTES, "five cache lines and the counters");
_Static_assert(offsetof(struct mr_lane_shared, want) == 64, "consumer's line");
_Static_assert(offsetof(struct mr_lane_shared, seq) == 128, "publishers' line");
_Static_assert(offsetof(struct mr_lane_shared, closed) == 192, "closing line");
_Static_assert(offsetof(struct mr_lane_shared, quota_bytes) == 256, "supervisor's line");

/* A process's own handle. window, mask and the rest are copied and range-checked at map: a segment that is corrupted
 * later can give wrong values but no access out of bounds. */
struct mr_lane {
    struct mr_lane_shared *shared;
    struct mr_ticket *tickets;
    size_t size;                  /* mapped bytes */
    uint32_t window, mask, shift; /* W, W-1, log2 W */
    uint32_t lane, owner, dataset, first_lap, division;
    uint32_t ahead; /* of W, posted by the consumer at first: it finds how many (ahead.h); 0: all */
};

struct mr_request {
    uint32_t dataset, flags;
    uint64_t object, offset, length;
    uint32_t cell;
};

/* Bytes of a control segment with that window. */
size_t mr_lane_size(uint32_t window);
/* Smallest legal window >= wanted: a power of two within MIN..MAX. */
uint32_t mr_lane_window_round(uint64_t wanted);
/* Supervisor: fills a zeroed segment of mr_lane_size bytes. quota_bytes may be changed later. */
void mr_lane_format(void *segment, uint32_t window, uint32_t lane, uint32_t owner, uint32_t dataset,
                    uint64_t quota_bytes, uint32_t first_lap, uint32_t division);
/* Supervisor: writes again, from its own handle, what never changes in the header: before another worker maps the lane,
 * whose reader may have damaged it by a wild store. */
void mr_lane_restate(const struct mr_lane *lane);
/* Maps fd read-write and checks magic, version, window and length against the file: 0 or -1 (CORRUPT, NO_MEMORY). Does
 * not keep fd. */
int mr_lane_map(struct mr_lane *lane, int fd);
/* Same over memory that the caller owns (tests, the crash harness). */
int mr_lane_attach(struct mr_lane *lane, void *segment, size_t size);
void mr_lane_unmap(struct mr_lane *lane);

/* Ticket numbers live modulo 2^32 * W; the first number of a lane is first_lap * W. */
static inline uint32_t mr_lane_slot(const struct mr_lane *lane, uint64_t number)
{
    return (uint32_t)number & lane->mask;
}
static inline uint32_t mr_lane_lap(const struct mr_lane *lane, uint64_t number)
{
    return (uint32_t)(number >> lane->shift);
}
/* The number that (slot, lap) stand for. */
static inline uint64_t mr_lane_number(const struct mr_lane *lane, uint32_t slot, uint32_t lap)
{
    return (uint64_t)lap << lane->shift | slot;
}
/* a - b as a signed distance, right across the wrap. */
static inline int64_t mr_lane_distance(const struct mr_lane *lane, uint64_t a, uint64_t b)
{
    unsigned unused = 32 - lane->shift;
    return (int64_t)((a - b) << unused) >> unused;
}
static inline uint64_t mr_lane_load(const struct mr_lane *lane, uint32_t slot)
{
    return atomic_load_explicit(&lane->tickets[slot & lane->mask].word, memory_order_acquire);
}
/* A number brought into its range of 32 + log2 W bits: use it after each addition. */
static inline uint64_t mr_lane_wrap(const struct mr_lane *lane, uint64_t number)
{
    return number & ((UINT64_C(1) << (32 + lane->shift)) - 1);
}
/* The partition: which of P producers is at home in the block of a ticket that has no cell. */
static inline unsigned mr_lane_home(const struct mr_lane *lane, uint64_t number, unsigned producers)
{
    return producers ? (unsigned)((lane->lane + number / MR_LANE_BLOCK) % producers) : 0;
}
bool mr_lane_is_closed(const struct mr_lane *lane);

/* ---- consumer ---- */

/* EMPTY or RELEASED -> PENDING, lap = number div W. The caller holds its process-local lock that also guards close, and
 * knows the slot to be EMPTY or RELEASED. false: the slot is not free (or the lane is closed): nothing was written. */
bool mr_lane_post(struct mr_lane *lane, uint64_t number, const struct mr_request *request);
/* READY or FAILED with this number -> HELD. On true *word is the HELD word (pass it to release) and *desc a checked
 * copy: failed is set when the ticket was FAILED. false: not there yet. want is not touched. */
bool mr_lane_take(struct mr_lane *lane, uint64_t number, uint64_t *word, struct mr_descriptor *desc, bool *failed);
/* Why a ticket that take() reported as failed has failed: bounded and NUL-terminated. Call it while it is HELD. */
void mr_lane_fail_reason(const struct mr_lane *lane, uint32_t slot, const struct mr_descriptor *desc,
                         char text[MR_FAIL_TEXT + 16]);
/* HELD (exactly `word`) -> RELEASED; when the lane is closed, on to EMPTY. Any thread, no lock. false: the word was not
 * that any more (a bug of the caller, or the supervisor has closed the lane of an owner it saw die). */
bool mr_lane_release(struct mr_lane *lane, uint32_t slot, uint64_t word);

/* ---- producer ---- */

/* What the slot's ticket asks for, read without owning it: to estimate a size. */
void mr_lane_peek_request(const struct mr_lane *lane, uint32_t slot, struct mr_request *request);
/* PENDING (exactly `word`) -> FILLING by producer; then reads the request again into *request. */
bool mr_lane_claim(struct mr_lane *lane, uint32_t slot, uint64_t word, unsigned producer, uint64_t *filling,
                   struct mr_request *request);
/* FILLING (ours) -> PENDING; EMPTY when the lane is closed. */
void mr_lane_give_back(struct mr_lane *lane, uint32_t slot, uint64_t filling);
/* The descriptor of a ticket that is FILLING and ours, written before the transfer starts so that recovery never needs
 * it for FILLING words and a READY word always finds it complete. Plain stores. */
void mr_lane_describe(struct mr_lane *lane, uint32_t slot, const struct mr_descriptor *desc);
/* FILLING (ours) -> READY, then the second look at `closed`. *ready is the READY word, for take-back. The caller wakes
 * the consumer (mr_wake_consumer) afterwards. */
void mr_lane_publish(struct mr_lane *lane, uint32_t slot, uint64_t filling, uint64_t *ready);
/* FILLING (ours) -> FAILED with code and text; the descriptor's extent length becomes 0 first. Caller wakes. */
void mr_lane_fail(struct mr_lane *lane, uint32_t slot, uint64_t filling, uint32_t code, const char *text);
/* A published descriptor as its own producer may read it after a restart; the caller reads the word again afterwards.
 */
void mr_lane_peek_descriptor(const struct mr_lane *lane, uint32_t slot, struct mr_descriptor *desc);
/* READY by us (exactly `ready`) -> PENDING: the extent is ours again. false: the consumer was faster. */
bool mr_lane_take_back(struct mr_lane *lane, uint32_t slot, uint64_t ready);

/* ---- owner or supervisor ---- */

/* `closed` stored, seq_cst fence, then PENDING, READY, FAILED, RELEASED -> EMPTY; with owner_dead (supervisor, once the
 * owner's pidfd is readable) HELD too. FILLING words are emptied by their producer's second look or by recovery.
 * Idempotent. */
void mr_lane_close(struct mr_lane *lane, bool owner_dead);
/* Every word EMPTY: quota and owner index may be used again, the segment dropped. */
bool mr_lane_is_empty(const struct mr_lane *lane);

/* ---- supervisor, after the producer's pidfd is readable ---- */

/* FILLING by producer -> PENDING with attempt + 1 (EMPTY in a closed lane). Idempotent; returns how many. */
unsigned mr_lane_recover(struct mr_lane *lane, unsigned producer);
/* PENDING (exactly `word`) -> FAILED by MR_OWNER_SUPERVISOR: poison, or the data set has failed. Text beyond
 * MR_POISON_TEXT - 1 bytes is cut. Caller wakes the consumer. */
bool mr_lane_poison(struct mr_lane *lane, uint32_t slot, uint64_t word, uint32_t code, const char *text);

#endif
