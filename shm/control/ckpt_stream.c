/* ckpt_stream.c - see ckpt_stream.h. */
#include "shm/control/ckpt_stream.h"

#include "base/error.h"
#include "shm/memory/prefault.h"
#include "shm/ring/wake.h"

#define PREFAULT_AFTER ((uint64_t)8 << 20) /* a smaller object is not worth a thread */
#define PREFAULT_SLOTS 2u                  /* slots that it runs ahead of the copying */
#define MIB            (1024.0 * 1024.0)

void mr_ckpt_stream_init(struct mr_ckpt_stream *stream, struct mr_ckpt_writer *writer)
{
    *stream = (struct mr_ckpt_stream){.writer = writer};
}

void mr_ckpt_stream_close(struct mr_ckpt_stream *stream)
{
    mr_prefault_destroy(stream->prefault);
    stream->prefault = NULL;
    stream->prefault_tried = true;
}

bool mr_ckpt_stream_has_ended(const struct mr_ckpt_stream *stream)
{
    const struct mr_ckpt_lane *lane = &stream->writer->lane;

    /* Pairs with mr_ckpt_part_finish. The fate alone would do, if the worker aborts before it finishes. */
    return mr_ckpt_part_fate(lane) == MR_FATE_ABORTED ||
           atomic_load_explicit(&lane->shared->outcome, memory_order_acquire) != MR_CKPT_PART_UNDECIDED;
}

static void wake_worker(const struct mr_ckpt_stream *stream)
{
    mr_wake_producer(stream->writer->line, stream->writer->eventfd);
}

/* The pages of the slots that come next, into this process's page tables, by a thread: a fault at each page would cost
 * several times the copy. */
static void prefault_ahead(struct mr_ckpt_stream *stream, uint64_t coming)
{
    const struct mr_ckpt_writer *writer = stream->writer;
    uint64_t part = writer->lane.part_bytes, slots = stream->number + PREFAULT_SLOTS;

    if (!stream->prefault && !stream->prefault_tried && stream->bytes + coming >= PREFAULT_AFTER) {
        stream->prefault_tried = true; /* without it everything works, slower */
        stream->prefault =
            mr_prefault_new(writer->arena, writer->lane.arena_offset, writer->lane.slots * part, writer->touched);
    }
    if (stream->prefault)
        mr_prefault_ahead(stream->prefault, (slots < writer->lane.slots ? slots : writer->lane.slots) * part);
}

/* Claims the next part's place in the arena. MR_PUSH_WAIT: all parts are in use, and the worker frees one by storing
 * it. */
static enum mr_push begin_part(struct mr_ckpt_stream *stream)
{
    struct mr_ckpt_writer *writer = stream->writer;
    struct mr_ckpt_lane *lane = &writer->lane;

    if (stream->number >= MR_CKPT_PARTS_MAX) {
        mr_error_set(MR_E_IO,
                     "a checkpoint file has at most %u parts, and this one has filled as many of %.1f MiB: raise "
                     "checkpoint.part_bytes, and checkpoint.arena_bytes with it, which must have room for eight parts "
                     "of each writer",
                     MR_CKPT_PARTS_MAX, (double)lane->part_bytes / MIB);
        return MR_PUSH_TOO_MANY;
    }
    if (!mr_ckpt_part_fill(lane, stream->number, &stream->word))
        return mr_ckpt_stream_has_ended(stream) ? MR_PUSH_ENDED : MR_PUSH_WAIT;
    stream->filling = true;
    stream->used = 0;
    stream->at = writer->arena + mr_ckpt_part_offset(lane, mr_ckpt_part_slot(lane, stream->number));
    return MR_PUSH_DONE;
}

static void end_part(struct mr_ckpt_stream *stream)
{
    mr_ckpt_part_publish(&stream->writer->lane, stream->number, stream->word, stream->used);
    stream->filling = false;
    stream->number++;
    wake_worker(stream);
}

enum mr_push mr_ckpt_stream_push(struct mr_ckpt_stream *stream, const void *data, size_t length, size_t *taken)
{
    const unsigned char *from = data;
    uint64_t part = stream->writer->lane.part_bytes;

    *taken = 0;
    if (mr_ckpt_stream_has_ended(stream))
        return MR_PUSH_ENDED;
    while (*taken < length) {
        if (*taken >= MR_CKPT_STREAM_PUSH_MAX)
            return MR_PUSH_MORE;
        if (!stream->filling) {
            enum mr_push got = begin_part(stream);
            if (got != MR_PUSH_DONE)
                return got;
        }
        prefault_ahead(stream, length - *taken);
        uint64_t step = part - stream->used;
        if (step > length - *taken)
            step = length - *taken;
        memcpy(stream->at + stream->used, from + *taken, step);
        *taken += step;
        stream->used += step;
        stream->bytes += step;
        if (stream->used == part)
            end_part(stream);
    }
    return MR_PUSH_DONE;
}

/* The slot of part `number` is free, or never will be. */
static bool slot_is_free(const struct mr_ckpt_stream *stream)
{
    const struct mr_ckpt_lane *lane = &stream->writer->lane;
    enum mr_state state = mr_word_state(mr_ckpt_part_load(lane, mr_ckpt_part_slot(lane, stream->number)));

    return state == MR_EMPTY || state == MR_RELEASED || mr_ckpt_stream_has_ended(stream);
}

enum mr_wake_result mr_ckpt_stream_wait(struct mr_ckpt_stream *stream, unsigned timeout_ms)
{
    struct mr_ckpt_lane *lane = &stream->writer->lane;
    uint32_t seen = mr_ckpt_part_seq(lane);
    mr_ckpt_part_set_want(lane, stream->number + 1); /* W1 */
    enum mr_wake_result result = slot_is_free(stream) ? MR_WAKE_CHANGED : mr_ckpt_part_wait(lane, seen, timeout_ms);
    mr_ckpt_part_set_want(lane, 0);
    return result;
}

enum mr_fate mr_ckpt_stream_seal(struct mr_ckpt_stream *stream)
{
    struct mr_ckpt_lane *lane = &stream->writer->lane;
    if (stream->filling) /* there is a byte in it */
        end_part(stream);
    enum mr_fate fate = mr_ckpt_part_seal(lane, (uint32_t)stream->number, stream->bytes);
    wake_worker(stream);
    return fate;
}

enum mr_wake_result mr_ckpt_stream_wait_worker(struct mr_ckpt_stream *stream, unsigned timeout_ms)
{
    struct mr_ckpt_lane *lane = &stream->writer->lane;
    uint32_t seen = mr_ckpt_part_seq(lane);
    mr_ckpt_part_set_want(lane, MR_CKPT_PART_WANT_WORKER); /* W1 */
    enum mr_wake_result result =
        mr_ckpt_part_is_adopted(lane) ? MR_WAKE_CHANGED : mr_ckpt_part_wait(lane, seen, timeout_ms);
    mr_ckpt_part_set_want(lane, 0);
    return result;
}

enum mr_fate mr_ckpt_stream_abort(struct mr_ckpt_stream *stream)
{
    struct mr_ckpt_lane *lane = &stream->writer->lane;
    if (stream->filling)
        mr_ckpt_part_unfill(lane, stream->number, stream->word);
    stream->filling = false;
    enum mr_fate fate = mr_ckpt_part_abort(lane);
    wake_worker(stream);
    return fate;
}

static bool is_decided(const struct mr_ckpt_lane *lane)
{
    uint32_t code, crc32c;
    uint64_t generation;
    return mr_ckpt_part_result(lane, &code, NULL, &generation, &crc32c) != MR_CKPT_PART_UNDECIDED;
}

enum mr_wake_result mr_ckpt_stream_wait_outcome(struct mr_ckpt_stream *stream, unsigned timeout_ms)
{
    struct mr_ckpt_lane *lane = &stream->writer->lane;
    uint32_t seen = mr_ckpt_part_seq(lane);
    enum mr_wake_result result = MR_WAKE_CHANGED;
    mr_ckpt_part_set_want(lane, MR_CKPT_PART_WANT_OUTCOME); /* W1 */
    if (!is_decided(lane))
        result = mr_ckpt_part_wait(lane, seen, timeout_ms);
    mr_ckpt_part_set_want(lane, 0);
    if (is_decided(lane))
        return MR_WAKE_CHANGED;
    return result == MR_WAKE_SIGNAL ? MR_WAKE_SIGNAL : MR_WAKE_TIMEOUT; /* woken for something else: wait again */
}

uint64_t mr_ckpt_stream_stored(const struct mr_ckpt_stream *stream)
{
    struct mr_ckpt_part_record record;
    uint64_t stored = 0;

    for (uint64_t number = 0; number < stream->number; number++) {
        if (mr_ckpt_part_record_get(&stream->writer->lane, number, &record))
            stored += record.length;
    }
    return stored;
}
