/*
 * ckpt_stream.h - copies a trainer's bytes, in order, into the slots of a checkpoint lane: when a slot is filled, when
 * it is published, and how the trainer waits. No Python here: python/src/writer.c releases the GIL around it.
 *
 * For one thread at a time. A slot is filled only when there is a byte for it, and published when it is full, so that a
 * part which is shorter than the others is the last one; seal publishes what is left.
 */
#ifndef MR_SHM_CONTROL_CKPT_STREAM_H
#define MR_SHM_CONTROL_CKPT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shm/control/client.h"
#include "shm/ring/ckpt_part.h"

/* mr_ckpt_stream_push returns after this many bytes at the latest, so that its caller can check signals. */
#define MR_CKPT_STREAM_PUSH_MAX ((size_t)256 << 20)

struct mr_prefault;

struct mr_ckpt_stream {
    struct mr_ckpt_writer *writer; /* borrowed, and stays where it is */
    struct mr_prefault *prefault;  /* NULL: not begun, or not needed */
    bool prefault_tried;
    bool filling; /* `word` is the word of part `number` */
    uint64_t word;
    uint64_t number;   /* of the part that is being filled, or comes next */
    unsigned char *at; /* its memory */
    uint64_t used;     /* bytes in it */
    uint64_t bytes;    /* all that were taken */
};

enum mr_push {
    MR_PUSH_DONE,     /* everything was taken */
    MR_PUSH_MORE,     /* PUSH_MAX bytes were taken: call again */
    MR_PUSH_WAIT,     /* no slot is free: mr_ckpt_stream_wait, then call again */
    MR_PUSH_ENDED,    /* the lane is aborted or its outcome is decided: nothing more is taken */
    MR_PUSH_TOO_MANY, /* MR_CKPT_PARTS_MAX parts are full: mr_error names the setting to raise */
};

void mr_ckpt_stream_init(struct mr_ckpt_stream *stream, struct mr_ckpt_writer *writer);
/* Ends the thread that prefaults, if there is one; changes no word. Not in a forked child: the thread is not there. */
void mr_ckpt_stream_close(struct mr_ckpt_stream *stream);

/* Copies from data what there is room for; *taken bytes of it. Never blocks, except for the copying. */
enum mr_push mr_ckpt_stream_push(struct mr_ckpt_stream *stream, const void *data, size_t length, size_t *taken);
/* The same for a few bytes that fit the part that is being filled without making it full: false otherwise. */
static inline bool mr_ckpt_stream_put(struct mr_ckpt_stream *stream, const void *data, size_t length)
{
    if (!stream->filling || length >= stream->writer->lane.part_bytes - stream->used)
        return false;
    memcpy(stream->at + stream->used, data, length);
    stream->used += length;
    stream->bytes += length;
    return true;
}
/* Nothing more will be taken: the lane is aborted, or its outcome is decided. Two loads. */
bool mr_ckpt_stream_has_ended(const struct mr_ckpt_stream *stream);
/* Waits for the slot that push wants: CHANGED means push again. Blocks. */
enum mr_wake_result mr_ckpt_stream_wait(struct mr_ckpt_stream *stream, unsigned timeout_ms);
/* Publishes the rest and promises the object: SEALED, or ABORTED when another process was first. OPEN: no write worker
 * has the lane yet; mr_ckpt_stream_wait_worker, then call again. */
enum mr_fate mr_ckpt_stream_seal(struct mr_ckpt_stream *stream);
/* Waits until a write worker has the lane, or its fate is decided: CHANGED means seal again. Blocks. */
enum mr_wake_result mr_ckpt_stream_wait_worker(struct mr_ckpt_stream *stream, unsigned timeout_ms);
/* The object shall not appear. Returns the fate: SEALED stays. */
enum mr_fate mr_ckpt_stream_abort(struct mr_ckpt_stream *stream);
/* Waits until the outcome is decided, once sealed or aborted: CHANGED means that it is. Blocks. */
enum mr_wake_result mr_ckpt_stream_wait_outcome(struct mr_ckpt_stream *stream, unsigned timeout_ms);
/* Bytes of the parts that the store has confirmed. Reads the record of each part. */
uint64_t mr_ckpt_stream_stored(const struct mr_ckpt_stream *stream);

#endif
