/*
 * range_reader.h - one object, read by offset through a lane: which ranges of it to ask for, and which to keep.
 *
 * A read elsewhere asks for what it wants and no more: for exactly those bytes if the source is `exact`, else for the
 * blocks of block_bytes that they lie in. A read that continues where the last request ended also asks for what comes
 * next: four times as much as has been read since the last seek, at least MR_RANGE_FIRST bytes (as the first read
 * at the object's start does), at most MR_RANGE_WINDOW blocks, in requests of at most a block. A read elsewhere makes
 * what is in flight useless: the reader then asks for a new lane, and the workers drop what the old one asked for.
 *
 * What was read in part is kept, the MR_RANGE_KEEP most recent ones, so that many small reads near each other (a zip
 * file's directory, headers) fetch it once. Those that were read to their end are dropped first; a block that one read
 * took whole returns to the arena at once.
 *
 * The whole object's crc32c is combined from those of what came, which the fetch workers have computed, and compared
 * once every block has come: as one range, or as ranges in order.
 *
 * One thread at a time. A forked child's reader is inert, as its lanes are.
 */
#ifndef MR_SHM_RING_RANGE_READER_H
#define MR_SHM_RING_RANGE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/ring/consumer.h"

#define MR_RANGE_WINDOW      12u        /* ranges in flight or READY */
#define MR_RANGE_KEEP        4u         /* of them kept after a read */
#define MR_RANGE_FIRST       (1u << 17) /* bytes that a reader which goes forward asks for at least */
#define MR_RANGE_LANE_WINDOW 32u        /* tickets of its lanes: those and what is kept, a power of two */

struct mr_range_reader;

struct mr_range_source {
    const char *label; /* for errors; copied */
    uint32_t dataset;
    uint64_t object;      /* its number in the index */
    uint64_t size;        /* bytes */
    uint64_t block_bytes; /* of the largest request; not 0 */
    bool exact;           /* requests begin where a read does, not at a block */
    uint32_t crc32c;
    bool has_crc32c;
};

enum mr_range_result {
    MR_RANGE_OK,     /* all that there is */
    MR_RANGE_WAIT,   /* not yet, after timeout_ms, or a signal came: check what else may end the wait, and call again */
    MR_RANGE_LANE,   /* give it a lane (mr_range_reader_give) and call again */
    MR_RANGE_FAILED, /* mr_error: what its requests failed with, CORRUPT, NO_MEMORY, USAGE in a forked child */
};

/* NULL: NO_MEMORY. */
struct mr_range_reader *mr_range_reader_new(const struct mr_range_source *source);
/* Closes its lane and releases its blocks. NULL is allowed. */
void mr_range_reader_destroy(struct mr_range_reader *reader);
/* The object is stored with Content-Encoding: gzip. Known once any of its bytes have been read. */
bool mr_range_reader_is_gzip(const struct mr_range_reader *reader);
/* A lane of MR_RANGE_LANE_WINDOW tickets or more, just opened; taken over. */
void mr_range_reader_give(struct mr_range_reader *reader, struct mr_consumer *consumer);
/* Gives back its lane and all that it keeps, where it is not read for a while: its next read asks for a lane. */
void mr_range_reader_rest(struct mr_range_reader *reader);
/*
 * Bytes [offset, offset + length) into dest. *got: how many of them are there, also where the result is not OK:
 * continue after them. OK with fewer than length only at the object's end. timeout_ms 0: takes only what has come.
 * Blocks: release the GIL.
 */
enum mr_range_result mr_range_reader_read(struct mr_range_reader *reader, uint64_t offset, void *dest, uint64_t length,
                                          unsigned timeout_ms, uint64_t *got);

#endif
