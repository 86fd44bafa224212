/*
 * ckpt_part.h - the ring in the other direction: a trainer's bytes on their way to a write worker (a checkpoint).
 *
 * A checkpoint lane belongs to one checkpoint writer (one object that is being written) and one write-worker slot. The
 * trainer is the producer: it fills slot n mod W with checkpoint part n and makes it READY; the worker takes it,
 * uploads it, records the store's answer here and gives the slot back. Memory is W parts, however large the object is.
 *
 *               fill              publish             take               done
 *     EMPTY -----------> FILLING ---------> READY ----------> HELD -----------------> RELEASED ----> EMPTY
 *     RELEASED (trainer)          (trainer)        (worker)     |   (worker: record, then the word)
 *                |                            <-----------------+
 *                |                     recovery of a dead worker: attempt + 1
 *                +---> EMPTY: recovery of a dead trainer; and every state in an aborted lane
 *
 * `fate` decides whether the object will exist:
 *
 *                adopt (worker)            seal (trainer, after its last part is READY)
 *     OPEN ----------------------> ADOPTED -----------------> SEALED
 *       |  <----------------------   |
 *       |    recovery of a worker    |
 *       +----------------------------+--> ABORTED: trainer, worker or supervisor
 *
 * Each change is one CAS: with a plain flag a promise can be lost between a worker's load and its abort. A seal needs
 * ADOPTED, since the supervisor tells a trainer of its lane before it tells the worker: if it dies between the two,
 * no process is left that knows the lane (tests/model/ckpt_parts.pml). A sealed lane is finished whatever happens to
 * the trainer; an open one of a dead trainer or of a dead supervisor is aborted. What a worker's successor needs to
 * continue or abort the upload lies here: upload id, each part's answer (stored before its word leaves HELD),
 * complete_sent (stored before the request).
 *
 * The functions are the table and nothing else: they never block and are safe against a SIGKILL between any two
 * instructions of any participant (tests/crash/ckpt_parts.c single-steps them). Pairing labels (P = part):
 *   P0 publish  word READY (seq_cst)      -> P1 take: length, the bytes in the arena
 *   P2 done     record, then the word     -> P3 fill, in_use: the memory may be written again; P4 the worker that
 *                                              completes: the record
 *      (unfill and recovery of a trainer end with the same release: P3)
 *   P5 seal     totals, then fate SEALED  -> P6 a load of SEALED: the totals
 *      (nothing else is ordered by the fate: adopt and its recovery say only who lives)
 *   P7 a change of a word, fence, fate read  <->  P8 fate ABORTED, fence, words swept: whichever comes second sees the
 *      other, so that no word stays in an aborted lane
 */
#ifndef MR_SHM_RING_CKPT_PART_H
#define MR_SHM_RING_CKPT_PART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "shm/ring/ticket.h"
#include "shm/ring/wake.h"

#define MR_CKPT_PART_MAGIC     UINT64_C(0x6d696c6c70617274) /* "millpart" */
#define MR_CKPT_PART_VERSION   3u
#define MR_CKPT_PART_SLOTS_MIN 2u
#define MR_CKPT_PART_SLOTS_MAX 64u
#define MR_CKPT_PARTS_MAX      10000u /* of one object: the limit of XML multipart uploads */
#define MR_CKPT_PART_UPLOAD_ID 1024u
#define MR_CKPT_PART_TEXT      480u

/* ADOPTED is open too, and a worker has the lane: mr_ckpt_part_fate gives OPEN for both. */
enum mr_fate { MR_FATE_OPEN, MR_FATE_SEALED, MR_FATE_ABORTED, MR_FATE_ADOPTED };
/* How a writer ended; stored last, by its worker or, when none will run again, the supervisor. */
enum mr_ckpt_part_outcome { MR_CKPT_PART_UNDECIDED, MR_CKPT_PART_DONE, MR_CKPT_PART_FAILED, MR_CKPT_PART_GONE };

/* What the store answered for a part. Written by the worker whose HELD the part is, before the word leaves HELD. */
struct mr_ckpt_part_record {
    _Atomic uint32_t stored; /* 1: the fields below are complete (release; P2, P4) */
    uint32_t crc32c;
    uint64_t length;
    uint64_t generation; /* of a temporary object, where parts are such; 0: an upload's part */
    char etag[MR_ETAG_SIZE];
};

struct mr_ckpt_part_ticket {
    _Alignas(64) _Atomic uint64_t word;
    uint64_t length; /* payload bytes: written by the trainer while FILLING, read under HELD */
    uint8_t reserved[48];
};

/* The control segment: this, then `slots` tickets, then MR_CKPT_PARTS_MAX records. */
struct mr_ckpt_part_shared {
    /* constant after creation; magic is stored last, with release */
    _Atomic uint64_t magic;
    uint32_t version;
    uint32_t slots;         /* W, a power of two */
    uint64_t size;          /* of the segment, bytes */
    uint64_t part_bytes;    /* memory of a slot */
    uint64_t arena_offset;  /* slot i lies at arena_offset + i * part_bytes of the checkpoint arena */
    uint32_t lane, trainer; /* the lane's index; the trainer's owner index */
    uint32_t worker;        /* slot of the write worker that serves it */
    uint32_t first_lap;     /* tests start near the wrap; 0 otherwise */
    uint8_t reserved0[8];
    /* trainer's line */
    _Alignas(64) _Atomic uint64_t want; /* what the trainer waits for, 0: nothing */
    uint8_t reserved1[56];
    /* line of those that wake the trainer */
    _Alignas(64) _Atomic uint32_t seq;
    uint8_t reserved2[60];
    /* the fate; the totals are written by the trainer before SEALED and constant after */
    _Alignas(64) _Atomic uint32_t fate; /* enum mr_fate */
    uint32_t parts;
    uint64_t bytes;
    uint8_t reserved3[48];
    /* the worker's: how far the upload is, for its successor */
    _Alignas(64) _Atomic uint32_t upload_known; /* 1: method and upload_id are complete (release) */
    uint32_t method;                            /* the write role's own enum */
    _Atomic uint32_t complete_sent;             /* 1: stored before the request that makes the object appear */
    _Atomic uint32_t outcome;                   /* enum mr_ckpt_part_outcome, stored last (release) */
    uint32_t code;                              /* FAILED: enum mr_code */
    uint32_t crc32c;                            /* DONE: of the whole object */
    uint64_t generation;                        /* DONE */
    uint8_t reserved4[32];
    char upload_id[MR_CKPT_PART_UPLOAD_ID];
    char text[MR_CKPT_PART_TEXT]; /* FAILED: why, and what to do */
    uint8_t reserved5[32];
};
_Static_assert(sizeof(struct mr_ckpt_part_ticket) == 64, "a cache line");
_Static_assert(sizeof(struct mr_ckpt_part_shared) % 64 == 0, "the tickets begin at a cache line");
_Static_assert(offsetof(struct mr_ckpt_part_shared, want) == 64 && offsetof(struct mr_ckpt_part_shared, seq) == 128 &&
                   offsetof(struct mr_ckpt_part_shared, fate) == 192 &&
                   offsetof(struct mr_ckpt_part_shared, upload_known) == 256,
               "each writer on its own line");

/* A process's own handle; what bounds an access is copied and checked at attach. */
struct mr_ckpt_lane {
    struct mr_ckpt_part_shared *shared;
    struct mr_ckpt_part_ticket *tickets;
    struct mr_ckpt_part_record *records;
    size_t size;
    uint32_t slots, mask, shift;
    uint32_t lane, trainer, worker, first_lap;
    uint64_t part_bytes, arena_offset;
};

struct mr_ckpt_part_format {
    uint32_t slots, lane, trainer, worker, first_lap;
    uint64_t part_bytes, arena_offset;
};

/* Bytes of a control segment with that many slots. */
size_t mr_ckpt_part_size(uint32_t slots);
/* Supervisor: fills a zeroed segment of mr_ckpt_part_size bytes. */
void mr_ckpt_part_format(void *segment, const struct mr_ckpt_part_format *format);
/* Maps fd read-write and checks it: 0 or -1 (CORRUPT, PROTOCOL, NO_MEMORY). Does not keep fd. arena_bytes: of the
 * checkpoint arena, in which the slots must lie. */
int mr_ckpt_part_map(struct mr_ckpt_lane *lane, int fd, uint64_t arena_bytes);
int mr_ckpt_part_attach(struct mr_ckpt_lane *lane, void *segment, size_t size, uint64_t arena_bytes);
void mr_ckpt_part_unmap(struct mr_ckpt_lane *lane);

static inline uint32_t mr_ckpt_part_slot(const struct mr_ckpt_lane *lane, uint64_t number)
{
    return (uint32_t)number & lane->mask;
}
/* Where the part's bytes lie in the checkpoint arena. */
static inline uint64_t mr_ckpt_part_offset(const struct mr_ckpt_lane *lane, uint32_t slot)
{
    return lane->arena_offset + (uint64_t)(slot & lane->mask) * lane->part_bytes;
}
static inline uint64_t mr_ckpt_part_load(const struct mr_ckpt_lane *lane, uint32_t slot)
{
    return atomic_load_explicit(&lane->tickets[slot & lane->mask].word, memory_order_acquire);
}
enum mr_fate mr_ckpt_part_fate(const struct mr_ckpt_lane *lane);

/* ---- trainer ---- */

/* EMPTY or RELEASED -> FILLING, for part `number`; *filling is the word. false: the slot is in use, or the lane is
 * aborted. */
bool mr_ckpt_part_fill(struct mr_ckpt_lane *lane, uint64_t number, uint64_t *filling);
/* FILLING (ours) -> READY with `length` bytes (at most part_bytes), then the second look. The caller wakes the
 * worker. */
void mr_ckpt_part_publish(struct mr_ckpt_lane *lane, uint64_t number, uint64_t filling, uint64_t length);
/* FILLING (ours) -> EMPTY: nothing was put into it. */
void mr_ckpt_part_unfill(struct mr_ckpt_lane *lane, uint64_t number, uint64_t filling);
/* All `parts` parts are READY or beyond: ADOPTED -> SEALED. Returns the fate: SEALED is a promise; OPEN: no worker has
 * the lane yet, seal again once mr_ckpt_part_is_adopted. */
enum mr_fate mr_ckpt_part_seal(struct mr_ckpt_lane *lane, uint32_t parts, uint64_t bytes);

/* What a seal waits for: a worker has the lane, or its fate is decided. */
bool mr_ckpt_part_is_adopted(const struct mr_ckpt_lane *lane);

/*
 * Sleeping, as in wake.h: the trainer reads `seq`, stores `want` (number + 1 of the part that it wants to fill, or one
 * of those below), checks again, waits. A process that adopts or ends the lane, or gives a slot back, loads `want`
 * afterwards. The worker sleeps on its eventfd with `asleep` in its producer line; after publish, seal and abort the
 * trainer calls mr_wake_producer.
 */
#define MR_CKPT_PART_WANT_OUTCOME UINT64_MAX
#define MR_CKPT_PART_WANT_WORKER  (UINT64_MAX - 1)
uint32_t mr_ckpt_part_seq(const struct mr_ckpt_lane *lane);
void mr_ckpt_part_set_want(struct mr_ckpt_lane *lane, uint64_t want); /* 0 clears it */
/* As mr_wake_wait. */
enum mr_wake_result mr_ckpt_part_wait(struct mr_ckpt_lane *lane, uint32_t seen, unsigned timeout_ms);
/* Worker after adopt, done and finish; any process after abort; the supervisor after any death. */
void mr_ckpt_part_wake_trainer(struct mr_ckpt_lane *lane);

/* ---- any process ---- */

/* OPEN or ADOPTED -> ABORTED, then the sweep. Returns the fate; SEALED is not changed. Idempotent. */
enum mr_fate mr_ckpt_part_abort(struct mr_ckpt_lane *lane);
/* In an aborted lane: READY and RELEASED -> EMPTY. Idempotent. */
void mr_ckpt_part_sweep(struct mr_ckpt_lane *lane);
/* Every word EMPTY or RELEASED: nothing of the memory is in use. */
bool mr_ckpt_part_is_at_rest(const struct mr_ckpt_lane *lane);
/* The slot's memory holds bytes of a part. false (acquire, P3): this lane's trainer may write it again. In a sealed
 * lane it does not, and the slot stays free, so the supervisor may give its memory to another lane. */
bool mr_ckpt_part_in_use(const struct mr_ckpt_lane *lane, uint32_t slot);
/* What the trainer sealed: 0, or -1 (CORRUPT) when the totals are impossible. Only after mr_ckpt_part_fate gave
 * SEALED. */
int mr_ckpt_part_totals(const struct mr_ckpt_lane *lane, uint32_t *parts, uint64_t *bytes);

/* ---- worker ---- */

/* OPEN -> ADOPTED, once this process would finish the lane if the supervisor died now. Idempotent. The caller wakes the
 * trainer. */
void mr_ckpt_part_adopt(struct mr_ckpt_lane *lane);
/* The READY part with the lowest number -> HELD; false: there is none. *length is checked against part_bytes. */
bool mr_ckpt_part_take(struct mr_ckpt_lane *lane, uint64_t *number, uint64_t *held, uint64_t *length);
/* Records the store's answer, then HELD (ours) -> RELEASED -> EMPTY. number: the position in the object, under
 * MR_CKPT_PARTS_MAX. The caller wakes the trainer. */
void mr_ckpt_part_done(struct mr_ckpt_lane *lane, uint64_t number, uint64_t held,
                       const struct mr_ckpt_part_record *record);
/* HELD (ours) -> READY, for another worker (drain), or EMPTY in an aborted lane. */
void mr_ckpt_part_put_back(struct mr_ckpt_lane *lane, uint64_t number, uint64_t held);
/* The recorded answer of a part, copied: false when there is none. */
bool mr_ckpt_part_record_get(const struct mr_ckpt_lane *lane, uint64_t number, struct mr_ckpt_part_record *record);
/* How the object is uploaded, stored before the first part is: for the successor of a worker that dies. false: the id
 * does not fit. */
bool mr_ckpt_part_set_upload(struct mr_ckpt_lane *lane, uint32_t method, const char *id);
/* false: nothing was begun. id: MR_CKPT_PART_UPLOAD_ID bytes. */
bool mr_ckpt_part_get_upload(const struct mr_ckpt_lane *lane, uint32_t *method, char *id);
/* Before the request that makes the object appear. */
void mr_ckpt_part_set_complete_sent(struct mr_ckpt_lane *lane);
bool mr_ckpt_part_complete_sent(const struct mr_ckpt_lane *lane);
/* Stores the outcome; the first one stays. The caller wakes the trainer. */
void mr_ckpt_part_finish(struct mr_ckpt_lane *lane, enum mr_ckpt_part_outcome outcome, uint32_t code, const char *text,
                         uint64_t generation, uint32_t crc32c);
/* UNDECIDED while it runs. text: MR_CKPT_PART_TEXT bytes, may be NULL. */
enum mr_ckpt_part_outcome mr_ckpt_part_result(const struct mr_ckpt_lane *lane, uint32_t *code, char *text,
                                              uint64_t *generation, uint32_t *crc32c);

/* ---- supervisor, after the pidfd is readable ---- */

/* ADOPTED -> OPEN; HELD by a dead worker -> READY with attempt + 1, in an aborted lane EMPTY. Idempotent; returns how
 * many were HELD. */
unsigned mr_ckpt_part_recover_worker(struct mr_ckpt_lane *lane);
/* FILLING by a dead trainer -> EMPTY, and an open lane is aborted. Idempotent; returns the fate. */
enum mr_fate mr_ckpt_part_recover_trainer(struct mr_ckpt_lane *lane);

#endif
