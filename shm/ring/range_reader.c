#include "shm/ring/range_reader.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/checksum.h"
#include "shm/base/error.h"
#include "shm/memory/fork_mark.h"

#define NONE UINT64_MAX

/* A block that is here: a view, or a copy (consumer NULL). */
struct kept {
    uint64_t block; /* NONE: a free place */
    const unsigned char *data;
    uint64_t length;
    struct mr_consumer *consumer; /* of the view: the lane may be closed by now */
    uint32_t slot;
    uint64_t word;
    uint64_t used; /* when, in reads */
    bool passed;   /* a read went on to the next block: whoever reads forward is done with it */
};

struct mr_range_reader {
    struct mr_range_source source;
    char *label;
    uint64_t mark; /* fork_mark.h */
    uint64_t blocks;
    struct mr_consumer *consumer;  /* NULL: no lane */
    uint64_t fed[MR_RANGE_WINDOW]; /* blocks that were asked for and have not come, in order: a ring */
    unsigned first, count;
    struct kept kept[MR_RANGE_KEEP];
    uint64_t clock;
    uint64_t missed; /* the block that was needed last and was not kept; NONE */
    uint64_t ahead;  /* blocks to ask for after a read */
    uint32_t *crcs;  /* of the blocks that have come */
    unsigned char *come;
    uint64_t uncome;
    bool gzip;    /* as the store said with a block */
    bool corrupt; /* the crc32c of the whole is not the store's */
    uint32_t crc; /* then: of the whole */
};

struct mr_range_reader *mr_range_reader_new(const struct mr_range_source *source)
{
    uint64_t mark = mr_fork_mark();
    struct mr_range_reader *reader = mark ? calloc(1, sizeof *reader) : NULL;
    if (reader) {
        reader->source = *source;
        reader->mark = mark;
        reader->blocks = source->size / source->block_bytes + (source->size % source->block_bytes != 0);
        reader->uncome = reader->blocks;
        reader->missed = NONE;
        for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
            reader->kept[i].block = NONE;
        reader->label = strdup(source->label);
        reader->crcs = calloc(reader->blocks + 1, sizeof *reader->crcs);
        reader->come = calloc(reader->blocks + 1, 1);
        if (reader->label && reader->crcs && reader->come)
            return reader;
    }
    mr_range_reader_destroy(reader);
    if (mark)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a reader of %s", source->label);
    return NULL;
}

bool mr_range_reader_is_gzip(const struct mr_range_reader *reader)
{
    return reader->gzip;
}

/* ---- blocks that are here ---- */

static void let_go(struct kept *kept)
{
    if (kept->block == NONE)
        return;
    if (kept->consumer)
        mr_lease_release(kept->consumer, kept->slot, kept->word, kept->length);
    else
        free((void *)(uintptr_t)kept->data);
    kept->block = NONE;
}

static struct kept *find(struct mr_range_reader *reader, uint64_t block)
{
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
        if (reader->kept[i].block == block)
            return &reader->kept[i];
    return NULL;
}

/* A place for one more: a free one, else of the least recently used block that was passed, else of any such block. */
static struct kept *place(struct mr_range_reader *reader)
{
    struct kept *oldest = &reader->kept[0];
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++) {
        struct kept *kept = &reader->kept[i];
        if (kept->block == NONE)
            return kept;
        if (kept->passed != oldest->passed ? kept->passed : kept->used < oldest->used)
            oldest = kept;
    }
    let_go(oldest);
    return oldest;
}

static uint64_t length_of(const struct mr_range_reader *reader, uint64_t block)
{
    uint64_t left = reader->source.size - block * reader->source.block_bytes;
    return left < reader->source.block_bytes ? left : reader->source.block_bytes;
}

/* ---- checksums ---- */

static int corrupt(const struct mr_range_reader *reader)
{
    mr_error_set(MR_E_CORRUPT, "%s: its bytes have crc32c %08x and the store says %08x: do not use what was read",
                 reader->label, reader->crc, reader->source.crc32c);
    return -1;
}

/* 0, or -1 (CORRUPT). */
static int block_came(struct mr_range_reader *reader, uint64_t block, uint32_t crc)
{
    if (reader->come[block] && reader->crcs[block] != crc) {
        mr_error_set(MR_E_CORRUPT, "%s: block %llu has other bytes than when it was read before", reader->label,
                     (unsigned long long)block);
        return -1;
    }
    if (reader->come[block])
        return 0;
    reader->come[block] = 1;
    reader->crcs[block] = crc;
    if (--reader->uncome > 0 || !reader->source.has_crc32c)
        return 0;
    uint32_t whole = 0;
    for (uint64_t i = 0; i < reader->blocks; i++)
        whole = mr_crc32c_combine(whole, reader->crcs[i], length_of(reader, i));
    reader->crc = whole;
    reader->corrupt = whole != reader->source.crc32c;
    return reader->corrupt ? corrupt(reader) : 0;
}

/* ---- the lane ---- */

static void drop_lane(struct mr_range_reader *reader)
{
    mr_consumer_destroy(reader->consumer);
    reader->consumer = NULL;
    reader->first = reader->count = 0;
}

void mr_range_reader_give(struct mr_range_reader *reader, struct mr_consumer *consumer)
{
    drop_lane(reader);
    reader->consumer = consumer;
}

static bool is_fed(const struct mr_range_reader *reader, uint64_t block)
{
    for (unsigned i = 0; i < reader->count; i++)
        if (reader->fed[(reader->first + i) % MR_RANGE_WINDOW] == block)
            return true;
    return false;
}

static int feed(struct mr_range_reader *reader, uint64_t block)
{
    struct mr_sample sample = {.request = {.dataset = reader->source.dataset,
                                           .object = reader->source.object,
                                           .offset = block * reader->source.block_bytes,
                                           .length = length_of(reader, block)},
                               .bytes = length_of(reader, block),
                               .cookie = block};
    if (mr_consumer_feed(reader->consumer, &sample, 1) != 0)
        return -1;
    reader->fed[(reader->first + reader->count++) % MR_RANGE_WINDOW] = block;
    return 0;
}

/* Asks for `block`, unless that was done, and for what comes after it: up to block `last`. */
static int ask(struct mr_range_reader *reader, uint64_t block, uint64_t last)
{
    uint64_t from = block;
    if (reader->count > 0)
        from = reader->fed[(reader->first + reader->count - 1) % MR_RANGE_WINDOW] + 1;
    for (; from <= last && reader->count < MR_RANGE_WINDOW; from++)
        if (!find(reader, from) && feed(reader, from) != 0)
            return -1;
    return 0;
}

/* The next block that comes is the one that is needed, or of no use any more. */
static enum mr_range_result take(struct mr_range_reader *reader, uint64_t block, unsigned timeout_ms)
{
    struct mr_delivery delivery;
    enum mr_next next = mr_consumer_next(reader->consumer, timeout_ms, &delivery);
    if (next == MR_NEXT_TIMEOUT || next == MR_NEXT_SIGNAL)
        return MR_RANGE_WAIT;
    if (next == MR_NEXT_END) { /* cannot be: the block was fed */
        mr_error_set(MR_E_INTERNAL, "%s: the lane has ended", reader->label);
        return MR_RANGE_FAILED;
    }
    reader->first = (reader->first + 1) % MR_RANGE_WINDOW;
    reader->count--;
    bool wanted = delivery.sample.cookie == block;
    if (next == MR_NEXT_FAILED) {
        if (!wanted)
            return MR_RANGE_OK; /* when it is needed it is asked for again */
        mr_error_set(delivery.code > MR_OK && delivery.code < MR_E_COUNT ? (enum mr_code)delivery.code : MR_E_INTERNAL,
                     "%s", delivery.text);
        return MR_RANGE_FAILED;
    }
    reader->gzip = reader->gzip || delivery.desc_flags & MR_DESC_GZIP;
    struct kept got = {.block = delivery.sample.cookie,
                       .data = delivery.data,
                       .length = delivery.length,
                       .consumer = delivery.copied ? NULL : reader->consumer,
                       .slot = delivery.slot,
                       .word = delivery.word,
                       .used = reader->clock};
    int rc = block_came(reader, got.block, delivery.crc32c);
    if (rc == 0 && wanted && got.length != length_of(reader, block)) {
        mr_error_set(MR_E_CORRUPT, "%s: a block of %llu bytes came with %llu", reader->label,
                     (unsigned long long)length_of(reader, block), (unsigned long long)got.length);
        rc = -1;
    }
    if (rc == 0 && wanted)
        *place(reader) = got;
    else
        let_go(&got);
    return rc == 0 ? MR_RANGE_OK : MR_RANGE_FAILED;
}

/* How far to ask ahead, by what has been needed one after the other. */
static void note_miss(struct mr_range_reader *reader, uint64_t block)
{
    if (block == reader->missed)
        return;
    if (reader->missed == NONE || block != reader->missed + 1)
        reader->ahead = 0;
    else
        reader->ahead = reader->ahead == 0 ? 1 : 2 * reader->ahead;
    if (reader->ahead > MR_RANGE_WINDOW)
        reader->ahead = MR_RANGE_WINDOW;
    reader->missed = block;
}

/* One step towards `block`, of a read that ends in block `last`. */
static enum mr_range_result bring(struct mr_range_reader *reader, uint64_t block, uint64_t last, unsigned timeout_ms)
{
    note_miss(reader, block);
    if (reader->consumer && reader->count > 0 && !is_fed(reader, block))
        drop_lane(reader); /* what is in flight lies elsewhere */
    if (!reader->consumer)
        return MR_RANGE_LANE;
    last += reader->ahead;
    if (last >= reader->blocks)
        last = reader->blocks - 1;
    if (ask(reader, block, last) != 0)
        return MR_RANGE_FAILED;
    return take(reader, block, timeout_ms);
}

/* ---- reading ---- */

enum mr_range_result mr_range_reader_read(struct mr_range_reader *reader, uint64_t offset, void *dest, uint64_t length,
                                          unsigned timeout_ms, uint64_t *got)
{
    uint64_t size = reader->source.size, block_bytes = reader->source.block_bytes;
    *got = 0;
    if (!mr_fork_mark_is(reader->mark)) {
        mr_error_set(MR_E_USAGE, "%s: this reader was opened before a fork: open it in the process that reads",
                     reader->label);
        return MR_RANGE_FAILED;
    }
    if (reader->corrupt) {
        corrupt(reader);
        return MR_RANGE_FAILED;
    }
    reader->clock++;
    if (offset >= size)
        return MR_RANGE_OK;
    if (length > size - offset)
        length = size - offset;
    while (*got < length) {
        uint64_t at = offset + *got, block = at / block_bytes, within = at % block_bytes;
        struct kept *kept = find(reader, block);
        if (!kept) {
            enum mr_range_result result = bring(reader, block, (offset + length - 1) / block_bytes, timeout_ms);
            if (result != MR_RANGE_OK)
                return result;
            continue;
        }
        uint64_t part = kept->length - within < length - *got ? kept->length - within : length - *got;
        memcpy((char *)dest + *got, kept->data + within, part);
        *got += part;
        kept->used = reader->clock;
        kept->passed = within + part == block_bytes;
        if (part == block_bytes) /* nobody comes back to what was read in one go */
            let_go(kept);
    }
    return MR_RANGE_OK;
}

void mr_range_reader_destroy(struct mr_range_reader *reader)
{
    if (!reader)
        return;
    drop_lane(reader);
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
        let_go(&reader->kept[i]);
    free(reader->label);
    free(reader->crcs);
    free(reader->come);
    free(reader);
}
