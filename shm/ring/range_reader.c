#include "shm/ring/range_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "shm/memory/fork_mark.h"

#define NONE UINT64_MAX

/* Bytes that are here: a view, or a copy (consumer NULL). */
struct kept {
    uint64_t offset; /* NONE: a free place */
    const unsigned char *data;
    uint64_t length;
    struct mr_consumer *consumer; /* of the view: the lane may be closed by now */
    uint32_t slot;
    uint64_t word;
    uint32_t crc32c;
    uint64_t used; /* when, in reads */
    bool passed;   /* a read has taken the last byte: a reader that goes forward is done with it */
};

/* Bytes that were asked for. */
struct asked {
    uint64_t offset, length;
};

struct mr_range_reader {
    struct mr_range_source source;
    char *label;
    uint64_t mark; /* fork_mark.h */
    uint64_t blocks;
    struct mr_consumer *consumer;      /* NULL: no lane */
    struct asked fed[MR_RANGE_WINDOW]; /* not arrived yet, in order: a ring */
    unsigned first, count;
    struct kept kept[MR_RANGE_KEEP];
    uint64_t clock;
    uint64_t run_start, run_end; /* what reads that follow each other have asked for */
    uint32_t *crcs;              /* of a block's bytes that have arrived */
    uint64_t *arrived;           /* how many: in order, from its start */
    uint64_t missing;            /* blocks that are not complete */
    bool gzip;                   /* as the store said with a block */
    bool corrupt;                /* the crc32c of the whole is not the store's */
    uint32_t crc;                /* then: of the whole */
};

struct mr_range_reader *mr_range_reader_new(const struct mr_range_source *source)
{
    uint64_t mark = mr_fork_mark();
    struct mr_range_reader *reader = mark ? calloc(1, sizeof *reader) : NULL;
    if (reader) {
        reader->source = *source;
        reader->mark = mark;
        reader->blocks = source->size / source->block_bytes + (source->size % source->block_bytes != 0);
        reader->missing = reader->blocks;
        for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
            reader->kept[i].offset = NONE;
        reader->label = strdup(source->label);
        reader->crcs = calloc(reader->blocks + 1, sizeof *reader->crcs);
        reader->arrived = calloc(reader->blocks + 1, sizeof *reader->arrived);
        if (reader->label && reader->crcs && reader->arrived)
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

/* ---- what is here ---- */

/* Releases the view or frees the copy; the place is free afterwards. */
static void range_reader_let_go(struct kept *kept)
{
    if (kept->offset == NONE)
        return;
    if (kept->consumer)
        mr_lease_release(kept->consumer, kept->slot, kept->word, kept->length);
    else
        free((void *)(uintptr_t)kept->data);
    kept->offset = NONE;
}

static struct kept *range_reader_find(struct mr_range_reader *reader, uint64_t at)
{
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++) {
        struct kept *kept = &reader->kept[i];
        if (kept->offset != NONE && at >= kept->offset && at - kept->offset < kept->length)
            return kept;
    }
    return NULL;
}

/* A place for more, emptied: a free one, else the least recently used of those passed, else the least recently used. */
static struct kept *place(struct mr_range_reader *reader)
{
    struct kept *oldest = &reader->kept[0];
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++) {
        struct kept *kept = &reader->kept[i];
        if (kept->offset == NONE)
            return kept;
        if (kept->passed != oldest->passed ? kept->passed : kept->used < oldest->used)
            oldest = kept;
    }
    range_reader_let_go(oldest);
    return oldest;
}

static uint64_t length_of(const struct mr_range_reader *reader, uint64_t block)
{
    uint64_t left = reader->source.size - block * reader->source.block_bytes;
    return left < reader->source.block_bytes ? left : reader->source.block_bytes;
}

/* ---- checksums ---- */

static int range_reader_corrupt(const struct mr_range_reader *reader)
{
    mr_error_set(MR_E_CORRUPT, "%s: its bytes have crc32c %08x and the store says %08x: do not use what was read",
                 reader->label, reader->crc, reader->source.crc32c);
    return -1;
}

/* Once every block has arrived. 0, or -1 (CORRUPT), which every later read repeats. */
static int compare_whole(struct mr_range_reader *reader)
{
    uint32_t whole = 0;
    for (uint64_t i = 0; i < reader->blocks; i++)
        whole = mr_crc32c_combine(whole, reader->crcs[i], length_of(reader, i));
    reader->crc = whole;
    reader->corrupt = whole != reader->source.crc32c;
    return reader->corrupt ? range_reader_corrupt(reader) : 0;
}

/* Counts bytes that came, if they are the next of their block or all of it. 0, or -1 (CORRUPT). */
static int count_bytes(struct mr_range_reader *reader, uint64_t offset, uint64_t length, uint32_t crc)
{
    uint64_t block = offset / reader->source.block_bytes, within = offset % reader->source.block_bytes;
    uint64_t whole = length_of(reader, block), *arrived = &reader->arrived[block];
    if (*arrived == whole) {
        if (length != whole || within != 0 || reader->crcs[block] == crc)
            return 0;
        mr_error_set(MR_E_CORRUPT, "%s: the %llu bytes at %llu are others than when they were read before",
                     reader->label, (unsigned long long)length, (unsigned long long)offset);
        return -1;
    }
    if ((within != *arrived && within != 0) || length > whole - within || within + length <= *arrived)
        return 0;
    reader->crcs[block] = within == 0 ? crc : mr_crc32c_combine(reader->crcs[block], crc, length);
    *arrived = within + length;
    if (*arrived < whole || --reader->missing > 0 || !reader->source.has_crc32c)
        return 0;
    return compare_whole(reader);
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

void mr_range_reader_rest(struct mr_range_reader *reader)
{
    drop_lane(reader);
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
        range_reader_let_go(&reader->kept[i]);
}

/* Whether a range that was asked for and has not arrived holds `at`. */
static bool is_fed(const struct mr_range_reader *reader, uint64_t at)
{
    for (unsigned i = 0; i < reader->count; i++) {
        const struct asked *asked = &reader->fed[(reader->first + i) % MR_RANGE_WINDOW];
        if (at >= asked->offset && at - asked->offset < asked->length)
            return true;
    }
    return false;
}

/* Asks for one range and remembers it, so that its delivery can be matched. Room in `fed` is the caller's duty. */
static int feed(struct mr_range_reader *reader, uint64_t offset, uint64_t length)
{
    struct mr_sample sample = {.request = {.dataset = reader->source.dataset,
                                           .object = reader->source.object,
                                           .offset = offset,
                                           .length = length},
                               .bytes = length,
                               .cookie = offset};
    if (mr_consumer_feed(reader->consumer, &sample, 1) != 0)
        return -1;
    reader->fed[(reader->first + reader->count++) % MR_RANGE_WINDOW] = (struct asked){offset, length};
    return 0;
}

static uint64_t min_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How far to ask beyond `at`, depending on how much has been read up to there since the last seek. */
static uint64_t ahead_of(const struct mr_range_reader *reader, uint64_t at)
{
    uint64_t block_bytes = reader->source.block_bytes, first = min_of(MR_RANGE_FIRST, block_bytes);
    uint64_t run = at - reader->run_start, most = MR_RANGE_WINDOW * block_bytes;
    if (run == 0)
        return at == 0 ? first : 0;
    return run >= most / 4 ? most : 4 * run > first ? 4 * run : first;
}

/* The length of the next request, which begins at `from`: bytes up to `until` are to be asked for, and the read wants
 * those before `end`. ahead > 0: the reader goes forward. Requests then end with blocks, so that the checksums of
 * blocks become known, and several are in flight. */
static uint64_t request_length(const struct mr_range_reader *reader, uint64_t from, uint64_t until, uint64_t end,
                               uint64_t ahead)
{
    uint64_t block_bytes = reader->source.block_bytes, block_left = block_bytes - from % block_bytes;
    if (!reader->source.exact)
        return min_of(block_left, reader->source.size - from);
    if (ahead == 0 && until - from <= block_bytes)
        return until - from;
    uint64_t part = ahead / 4 > MR_RANGE_FIRST ? ahead / 4 : MR_RANGE_FIRST;
    if (from < end && end - from > part)
        part = end - from;
    if (until - from < part + part / 2) /* no small remainder */
        part = until - from;
    return min_of(min_of(part, until - from), block_left);
}

/* Asks for `at`, unless that was done, and for what comes after it: up to `end`, where the read ends, and ahead. */
static int range_reader_ask(struct mr_range_reader *reader, uint64_t at, uint64_t end)
{
    uint64_t ahead = ahead_of(reader, at), until = at + ahead > end ? at + ahead : end, from = at;
    if (until > reader->source.size)
        until = reader->source.size;
    if (reader->count > 0) {
        const struct asked *last = &reader->fed[(reader->first + reader->count - 1) % MR_RANGE_WINDOW];
        from = last->offset + last->length;
    } else if (!reader->source.exact) {
        from -= at % reader->source.block_bytes;
    }
    while (from < until && reader->count < MR_RANGE_WINDOW) {
        const struct kept *kept = range_reader_find(reader, from);
        uint64_t length = kept ? kept->offset + kept->length - from : request_length(reader, from, until, end, ahead);
        if (!kept && feed(reader, from, length) != 0)
            return -1;
        from += length;
        if (from > reader->run_end)
            reader->run_end = from;
    }
    return 0;
}

/* Takes the next delivery: it is what is needed, or no longer of use. */
static enum mr_range_result range_reader_take(struct mr_range_reader *reader, uint64_t at, unsigned timeout_ms)
{
    struct mr_delivery delivery;
    enum mr_next next = mr_consumer_next(reader->consumer, timeout_ms, &delivery);
    if (next == MR_NEXT_TIMEOUT || next == MR_NEXT_SIGNAL)
        return MR_RANGE_WAIT;
    if (next == MR_NEXT_END) { /* cannot be: it was fed */
        mr_error_set(MR_E_INTERNAL, "%s: the lane has ended", reader->label);
        return MR_RANGE_FAILED;
    }
    struct asked asked = reader->fed[reader->first];
    reader->first = (reader->first + 1) % MR_RANGE_WINDOW;
    reader->count--;
    bool wanted = at >= asked.offset && at - asked.offset < asked.length;
    if (next == MR_NEXT_FAILED) {
        if (!wanted)
            return MR_RANGE_OK; /* when it is needed it is asked for again */
        mr_error_set(delivery.code > MR_OK && delivery.code < MR_E_COUNT ? (enum mr_code)delivery.code : MR_E_INTERNAL,
                     "%s%s", delivery.text[0] == ':' ? reader->label : "", delivery.text);
        return MR_RANGE_FAILED;
    }
    reader->gzip = reader->gzip || delivery.desc_flags & MR_DESC_GZIP;
    struct kept got = {.offset = asked.offset,
                       .data = delivery.data,
                       .length = delivery.length,
                       .consumer = delivery.copied ? NULL : reader->consumer,
                       .slot = delivery.slot,
                       .word = delivery.word,
                       .crc32c = delivery.crc32c,
                       .used = reader->clock};
    int rc = 0;
    if (got.length != asked.length || delivery.sample.cookie != asked.offset) {
        mr_error_set(MR_E_CORRUPT, "%s: %llu bytes at %llu were asked for, and %llu came", reader->label,
                     (unsigned long long)asked.length, (unsigned long long)asked.offset,
                     (unsigned long long)got.length);
        rc = wanted ? -1 : 0;
    } else {
        rc = count_bytes(reader, got.offset, got.length, delivery.crc32c);
    }
    if (rc == 0 && wanted)
        *place(reader) = got;
    else
        range_reader_let_go(&got);
    return rc == 0 ? MR_RANGE_OK : MR_RANGE_FAILED;
}

/* One step towards `at`, of a read that ends before `end`. */
static enum mr_range_result bring(struct mr_range_reader *reader, uint64_t at, uint64_t end, unsigned timeout_ms)
{
    if (!is_fed(reader, at)) {
        if (reader->consumer && reader->count > 0)
            drop_lane(reader); /* what is in flight lies elsewhere */
        if (at != reader->run_end)
            reader->run_start = reader->run_end = at;
    }
    if (!reader->consumer)
        return MR_RANGE_LANE;
    if (range_reader_ask(reader, at, end) != 0)
        return MR_RANGE_FAILED;
    return range_reader_take(reader, at, timeout_ms);
}

/* ---- reading ---- */

enum mr_range_result mr_range_reader_read(struct mr_range_reader *reader, uint64_t offset, void *dest, uint64_t length,
                                          unsigned timeout_ms, uint64_t *got)
{
    uint64_t size = reader->source.size;
    *got = 0;
    if (!mr_fork_mark_is(reader->mark)) {
        mr_error_set(MR_E_USAGE, "%s: this reader was opened before a fork: open it in the process that reads",
                     reader->label);
        return MR_RANGE_FAILED;
    }
    if (reader->corrupt) {
        range_reader_corrupt(reader);
        return MR_RANGE_FAILED;
    }
    reader->clock++;
    if (offset >= size)
        return MR_RANGE_OK;
    if (length > size - offset)
        length = size - offset;
    while (*got < length) {
        uint64_t at = offset + *got;
        struct kept *kept = range_reader_find(reader, at);
        if (!kept) {
            enum mr_range_result result = bring(reader, at, offset + length, timeout_ms);
            if (result != MR_RANGE_OK)
                return result;
            continue;
        }
        /* It may be its turn only now, if it was read before what precedes it (an end that was looked at first). */
        if (count_bytes(reader, kept->offset, kept->length, kept->crc32c) != 0)
            return MR_RANGE_FAILED;
        uint64_t within = at - kept->offset, left = kept->length - within;
        uint64_t part = left < length - *got ? left : length - *got;
        memcpy((char *)dest + *got, kept->data + within, part);
        *got += part;
        kept->used = reader->clock;
        kept->passed = part == left && at + part < size; /* a zip file's directory, at its end, is read again */
        if (part == reader->source.block_bytes)          /* what was read in one go is not read again */
            range_reader_let_go(kept);
    }
    return MR_RANGE_OK;
}

void mr_range_reader_destroy(struct mr_range_reader *reader)
{
    if (!reader)
        return;
    drop_lane(reader);
    for (unsigned i = 0; i < MR_RANGE_KEEP; i++)
        range_reader_let_go(&reader->kept[i]);
    free(reader->label);
    free(reader->crcs);
    free(reader->arrived);
    free(reader);
}
