/*
 * index_image.h - the layout of an index image: its header and the columns of its blocks. README.md has the picture.
 *
 * For the files of this folder alone. index_file.h is the saved file around an image, which compresses it and puts
 * hashes and what was listed in front.
 *
 *     header | strings | block 0 | block 1 | ... | directory
 *
 * strings: bucket, endpoint and prefixes, each with its NUL. directory: 64-bit offsets of the blocks and of their end.
 * A block holds MR_INDEX_BLOCK objects (the last one fewer) and refers to nothing outside of itself:
 *
 *     block header | sizes | versions | bitmap of those with a crc32c | crc32c | names
 *
 * sizes and versions: entries x width bytes, to be added to the block's base. crc32c: as crc_mode says. names: each is
 * varint(bytes shared with the name before it), varint(bytes that follow), those bytes. No padding anywhere; nothing
 * is aligned. Little-endian.
 *
 * An index of samples (shards.h) has its shards between the last block and the directory. There an entry's version is
 * its offset in the shard, and its name, the key, is in no order.
 */
#ifndef MR_SHM_INDEX_INDEX_IMAGE_H
#define MR_SHM_INDEX_INDEX_IMAGE_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "shm/index/index.h"

#define MR_INDEX_MAGIC        UINT64_C(0x3158444e494c4c4d) /* "MLLINDX1" */
#define MR_INDEX_IMAGE_FORMAT 1                            /* of the layout below */
#define MR_INDEX_IMAGE_SHARDS 2                            /* of the same with shards: see struct mr_index_header */
#define MR_INDEX_BLOCK        64                           /* objects a block: one 64-bit word of bitmap */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "images are little-endian and read in place");

struct mr_index_header {
    uint64_t magic;  /* written last */
    uint32_t format; /* MR_INDEX_IMAGE_FORMAT */
    uint32_t header_bytes;
    uint64_t length; /* of the whole image */
    uint64_t count;
    uint64_t total_bytes;
    uint64_t max_size;
    uint64_t blocks;
    uint64_t strings_bytes; /* the strings follow the header */
    uint64_t data;          /* offset of block 0, which follows the strings */
    uint64_t directory;     /* offset; follows the last block or the shards, and the image ends with it */
    int64_t created_wall_ns;
    uint32_t scheme;
    uint32_t version_kind; /* enum mr_index_version_kind */
    uint32_t max_name;
    uint32_t prefix_count;
    uint64_t dropped[8];
    uint8_t digest[MR_INDEX_DIGEST_BYTES];
    uint64_t shards; /* MR_INDEX_IMAGE_SHARDS: offset of the shards, which follow the last block; else 0 */
    uint64_t shard_count;
    uint64_t reserved[5]; /* 0 */
};
static_assert(sizeof(struct mr_index_header) == 256, "the header is 256 bytes");
/* A shard: rows in ascending order of names, then all names, each with its NUL. The entries' versions are offsets. */
struct mr_index_shard_row {
    uint64_t first; /* number of its first sample */
    uint64_t size, version;
    uint64_t name; /* where its name begins among them */
    uint64_t name_length;
};
static_assert(sizeof(struct mr_index_shard_row) == 40, "rows have no padding");

static_assert(MR_DROP_KINDS <= 8, "dropped kinds fit the header");

enum mr_index_crc_mode { MR_CRC_NONE, MR_CRC_ALL, MR_CRC_SOME, MR_CRC_MODES }; /* SOME: with bitmap, 0 where absent */

#define MR_INDEX_BLOCK_HEADER 20 /* the struct without its padding */

struct mr_index_block_header {
    uint64_t size_base;
    uint64_t version_base;
    uint8_t size_width; /* 0..8 */
    uint8_t version_width;
    uint8_t crc_mode;
    uint8_t entries;
};

/* Writes all of it, however little pwrite takes at a time: 0, or -1 (IO). Blocks. In index_build.c. */
int mr_index_write_at(int fd, const void *data, size_t length, uint64_t offset);

/* By bytes; if one is a prefix of the other, the shorter comes first. */
static inline int mr_index_compare_names(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* Checks the header's digest against the image: SHA-256 over the SHA-256 of each block, and of the shards if there are
 * any. 0 or -1 (CORRUPT, NO_MEMORY). */
int mr_index_check_digest(const struct mr_index *index);

#endif
