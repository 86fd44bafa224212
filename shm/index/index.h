/*
 * index.h - the listing of a data set, as one read-only memory image that every process of a node maps.
 *
 * An image is position-independent (offsets only), so it can lie in a memfd, a shared-memory file or plain memory.
 * It holds names in strictly ascending byte order (memcmp; a prefix sorts first), and for each object its size, its
 * version (below) and, where the store has it, its crc32c. index_build.h makes images; README.md has the layout.
 *
 * An explicit list of names is sorted too: an index has no order of its own, the plan (plan.h) gives the order.
 *
 * Trust: attach checks the header against the image's length, and every access checks the offsets that it follows.
 * A damaged image gives MR_E_CORRUPT or wrong values, never an access outside of it. The image must not change or
 * shrink while it is attached: the process that makes the descriptor seals it, or keeps it to itself.
 *
 * All functions are safe from any number of threads; none blocks, except for page faults.
 */
#ifndef MR_SHM_INDEX_INDEX_H
#define MR_SHM_INDEX_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/uri.h"

#define MR_INDEX_NAME_MAX     4096                    /* bytes of a name: GCS and S3 allow 1024, PATH_MAX is 4096 */
#define MR_INDEX_NAME_SIZE    (MR_INDEX_NAME_MAX + 1) /* a buffer for any name and its NUL */
#define MR_INDEX_DIGEST_BYTES 32
#define MR_INDEX_DIGEST_SIZE  65 /* a buffer for the digest as text: 64 hex digits and a NUL */
#define MR_INDEX_MAX_COUNT    (UINT64_C(1) << 48)

/* What an object's version is, by its store: a later request is compared with it, to notice that the object changed.
 * The formats of the image and of a saved file have numbers of their own (MR_INDEX_IMAGE_FORMAT,
 * MR_INDEX_FILE_VERSION). */
enum mr_index_version_kind {
    MR_INDEX_GENERATION, /* GCS: the object's generation */
    MR_INDEX_ETAG,       /* S3: 64 bits of a hash of the ETag */
    MR_INDEX_MTIME,      /* file: the modification time in ns */
    MR_INDEX_VERSION_KINDS
};

/* Why a listed name is not in the index: dropped names are counted, never silently lost. */
enum mr_index_drop {
    MR_DROP_FOLDER,    /* an empty object whose name ends in a slash */
    MR_DROP_TEMPORARY, /* under the temporary prefix of composed objects */
    MR_DROP_CLASS,     /* in a storage class that the configuration excludes */
    MR_DROP_SPECIAL,   /* file: not a regular file */
    MR_DROP_NO_SHARD,  /* shards are wanted, and its name does not end as theirs */
    MR_DROP_DAMAGED,   /* the rest of a shard that is damaged: not the shard's other samples */
    MR_DROP_KINDS
};

/* An attached image: this process's private handle. The fields are for index.c; use the functions and `info`. */
struct mr_index_info {
    uint64_t count;       /* objects */
    uint64_t total_bytes; /* the sum of their sizes */
    uint64_t max_size;    /* the largest of them; 0 without objects */
    uint64_t dropped[MR_DROP_KINDS];
    int64_t created_wall_ns; /* when the listing began, CLOCK_REALTIME */
    enum mr_scheme scheme;
    enum mr_index_version_kind version_kind; /* of every entry's version */
    uint32_t max_name;                       /* bytes of the longest name */
    uint32_t prefix_count;
    uint8_t digest[MR_INDEX_DIGEST_BYTES];
    const char *bucket; /* these point into the image; never NULL */
    const char *endpoint;
};

struct mr_index {
    struct mr_index_info info;
    const unsigned char *image;
    size_t length;
    uint64_t blocks;
    uint64_t directory; /* offset of the block directory */
    uint64_t data;      /* offset of the first block */
    const char *prefixes;
    bool mapped; /* close unmaps it */
};

struct mr_index_entry {
    uint64_t size;    /* bytes */
    uint64_t version; /* of the kind in mr_index_info.version_kind */
    uint32_t crc32c;  /* 0 without has_crc32c */
    bool has_crc32c;
    uint32_t name_length; /* 0 where no name was asked for */
};

/*
 * Attaches an image in memory, which stays the caller's and must outlive the handle. 0, or -1 (CORRUPT). O(1): the
 * blocks are not read; mr_index_verify does that.
 */
int mr_index_attach(struct mr_index *index, const void *image, size_t length);
/* Maps the whole file read-only and attaches it. The descriptor stays the caller's and may be closed. */
int mr_index_map(struct mr_index *index, int fd);
/* Unmaps what mr_index_map mapped. Safe on a zeroed handle and twice. */
void mr_index_close(struct mr_index *index);

/*
 * Object i (0 <= i < info.count). `name` is a buffer of MR_INDEX_NAME_SIZE bytes for the full object name (without
 * the bucket; NUL-terminated; names hold no NUL), or NULL: without it the call is O(1), with it up to one block of
 * 64 front-coded names is decoded. 0, or -1: USAGE past the end, CORRUPT.
 */
int mr_index_get(const struct mr_index *index, uint64_t i, struct mr_index_entry *entry, char *name);
/* Of an index of objects: the first whose name is not before this one, or the count; *is_there: it is that very name. 0
 * or -1 (CORRUPT). Binary search. */
int mr_index_lower_bound(const struct mr_index *index, const char *name, size_t length, uint64_t *i, bool *is_there);
/* The number of the object of this name: 0, or -1: NOT_FOUND, CORRUPT. Binary search. */
int mr_index_find(const struct mr_index *index, const char *name, size_t length, uint64_t *i);
/* Prefix n (0 <= n < info.prefix_count) that the listing was asked for; NULL past the end. Points into the image. */
const char *mr_index_prefix(const struct mr_index *index, uint32_t n);

/*
 * Reads the whole image: order of the names, sums, maxima, digest. 0, or -1 (CORRUPT). About 0.05 us an object: for
 * images that come from a file or another node.
 */
int mr_index_verify(const struct mr_index *index);

/* The digest as 64 lower-case hex digits. */
void mr_index_digest_text(const uint8_t digest[MR_INDEX_DIGEST_BYTES], char out[MR_INDEX_DIGEST_SIZE]);
/* The reverse: 0, or -1 (USAGE) for anything but 64 hex digits. */
int mr_index_digest_parse(const char *text, uint8_t digest[MR_INDEX_DIGEST_BYTES]);
/* "generation", "etag", "mtime"; "folder", "temporary", "class", "special"; "unknown" for a value out of range. */
const char *mr_index_version_kind_name(unsigned kind);
const char *mr_index_drop_name(unsigned kind);

/*
 * A walk over the objects in order: each name costs only its own suffix. The iterator borrows the index.
 *     mr_index_iter_init(&it, index, 0);
 *     while ((rc = mr_index_iter_next(&it, &entry)) > 0)
 *         use(it.name, entry.size);
 */
struct mr_index_iter {
    const struct mr_index *index;
    uint64_t next; /* the number of the object that comes next */
    uint64_t at;   /* offset of its coded name, when it is not the first of its block */
    uint32_t name_length;
    bool primed; /* `at` and `name` are those of object next - 1 */
    char name[MR_INDEX_NAME_SIZE];
};

void mr_index_iter_init(struct mr_index_iter *it, const struct mr_index *index, uint64_t first);
/* 1 with an entry and it->name, 0 at the end, -1 (CORRUPT). */
int mr_index_iter_next(struct mr_index_iter *it, struct mr_index_entry *entry);

#endif
