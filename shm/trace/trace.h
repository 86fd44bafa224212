/*
 * trace.h - spans of time for `millrace trace`: a ring that every process of a run writes to while a client reads it.
 *
 * The supervisor makes the segment (a memfd) and hands it to workers and clients; each process attaches it once. While
 * no client reads, `on` is 0 and a span costs one load. Many write, one reads: a slot is a record and its `turn`, which
 * counts how often the slot was filled (odd) and emptied (even). A writer takes a position by a CAS of `head`, only if
 * the slot there is empty, fills the record, and publishes it; a full ring loses the record and counts it, and never
 * makes a writer wait. A writer that dies between the two leaves a slot that stays empty: the reader passes over it
 * after a second. Pairing labels (T = trace):
 *   T0 _format  magic (release)               -> T1 _attach, _map: version, slots
 *   T2 _emit    turn to odd (release, a CAS)  -> T3 _read: the record
 *   T4 _read    turn to even (release)        -> T5 _emit: the slot may be written again
 *   T6 _attach  the process's own pointer     -> T7 _is_on, _emit: the mapping (within one process)
 *
 * None of this blocks. A writer that was stopped for more than a second between T5 and T2 may write into a record that
 * is another one's by then: that record's values are wrong, and the reader checks what it prints.
 */
#ifndef MR_SHM_TRACE_TRACE_H
#define MR_SHM_TRACE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_TRACE_MAGIC   UINT64_C(0x6d696c6c74726163) /* "milltrac" */
#define MR_TRACE_VERSION 1u
#define MR_TRACE_SLOTS   32768u /* records; a power of two */
#define MR_TRACE_TEXT    64

/* What a span is; the fields of a record that it uses beside pid, tid, begin and end. */
enum mr_span {
    MR_SPAN_NONE,
    MR_SPAN_REQUEST,   /* worker: an HTTP request. text: "GET" and the end of the URL; bytes; code: the status */
    MR_SPAN_TICKET,    /* reader: from the post of a sample's ticket until it was taken. object, dataset, bytes */
    MR_SPAN_READ,      /* reader: it waits for a sample. object, dataset, bytes */
    MR_SPAN_TRANSFORM, /* DataLoader worker: one sample. object */
    MR_SPAN_SAMPLES,   /* a batch's samples, read and transformed. number: the worker; likewise the next three */
    MR_SPAN_EXTENT,    /* it waits for memory for the batch */
    MR_SPAN_COLLATE,
    MR_SPAN_PACK,
    MR_SPAN_WAIT,   /* loop: it waits for a batch. number: the rank; code: the worker that made it; object: the epoch */
    MR_SPAN_STEP,   /* loop: from one batch until it asks for the next. number: the rank; object: the epoch */
    MR_SPAN_DEVICE, /* the thread that copies: one batch to the device. bytes */
    MR_SPAN_SAVE,   /* trainer: a checkpoint object, from its open to its close. text: the URI; bytes */
    MR_SPAN_UPLOAD, /* write worker: from when it has the checkpoint until its end. text: the URI; bytes, if sent
                     * whole; code: enum mr_ckpt_part_outcome */
    MR_SPAN_KINDS
};

/* A span; the clock is CLOCK_MONOTONIC. */
struct mr_trace_record {
    uint32_t kind; /* enum mr_span */
    uint32_t code;
    uint32_t pid, tid;
    int64_t begin_ns, end_ns;
    uint64_t object, bytes;
    uint32_t dataset, number;
    char text[MR_TRACE_TEXT]; /* NUL-terminated; cut at its front to fit */
};

struct mr_trace_slot {
    _Atomic uint32_t turn; /* to odd by the writer that has its position (T2), to even by the reader (T4) */
    uint32_t reserved;
    struct mr_trace_record record;
};

struct mr_trace_shared {
    _Atomic uint64_t magic;  /* T0, T1 */
    uint32_t version, slots; /* by the supervisor; like id constant from T0 on */
    uint64_t id;             /* of this ring and no other */
    /* 1 by the supervisor, 0 by it or by the reader at its end; relaxed: it orders nothing */
    _Alignas(64) _Atomic uint32_t on;
    /* The next position. Written by writers, with a CAS; relaxed: `turn` says what may be written. A hint to the
     * reader. */
    _Alignas(64) _Atomic uint64_t head;
    _Atomic uint64_t lost;              /* records that found the ring full: writers add to it, relaxed */
    _Alignas(64) _Atomic uint64_t tail; /* the reader's, for the one after it; relaxed */
    _Alignas(64) struct mr_trace_slot slot[MR_TRACE_SLOTS];
};

/* ---- supervisor ---- */

/* Formats a segment of zeroes, before another process maps it. */
void mr_trace_format(struct mr_trace_shared *shared);
/* All write from now on: its memory is there. No other client may be reading. */
void mr_trace_begin(struct mr_trace_shared *shared);
/* Supervisor, or the reader. */
void mr_trace_end(struct mr_trace_shared *shared);

/* ---- writers ---- */

/* This process writes to that ring from now on; the descriptor stays the caller's. Attaching a ring twice is harmless;
 * another ring takes its place, and the old one stays mapped: a thread may be writing there. 0 or -1 (CORRUPT, IO). A
 * forked child has it, too. */
int mr_trace_attach(int fd);

extern struct mr_trace_shared *_Atomic mr_trace_attached; /* NULL: none */

static inline bool mr_trace_is_on(void)
{
    struct mr_trace_shared *trace = atomic_load_explicit(&mr_trace_attached, memory_order_acquire); /* T7 */

    return trace && atomic_load_explicit(&trace->on, memory_order_relaxed) != 0;
}
/* Any thread. pid, tid are filled in; `text` (NULL: none) is cut at its front. Writes nothing while no client reads. */
void mr_trace_emit(const struct mr_trace_record *span, const char *text);

/* ---- the reader ---- */

struct mr_trace_reader {
    struct mr_trace_shared *shared;
    uint64_t at;
    int64_t stuck_ns;      /* since when the record at `at` is not published; 0 */
    uint64_t lost, passed; /* lost: when it began. passed: slots of writers that never published */
};

/* Maps it; the descriptor stays the caller's. 0 or -1 (CORRUPT, IO). */
int mr_trace_reader_open(struct mr_trace_reader *reader, int fd);
/* True: *record is the next one. Its text is terminated and its kind is one of enum mr_span; other values may be
 * anything. */
bool mr_trace_read(struct mr_trace_reader *reader, int64_t now_ns, struct mr_trace_record *record);
/* Records that were lost since it was opened. */
uint64_t mr_trace_reader_lost(const struct mr_trace_reader *reader);
void mr_trace_reader_close(struct mr_trace_reader *reader);

#endif
