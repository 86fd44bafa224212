/*
 * shards.h - an index whose entries are ranges of objects: samples in tar shards.
 *
 * Its image (index_image.h) has a table of the shards, ascending by name, with the number of each one's first sample.
 * Entries are in the order of shards and, in a shard, of offsets; an entry's name is the sample's key, which need be
 * neither ascending nor unique. The digest covers the shards' names, sizes and versions.
 *
 * An entry of 0 bytes is not a sample, which has at least a header: it stands for the rest of a shard that is damaged
 * there or cut, is the shard's last, and its name says what is wrong. Reading it is an error; on_error decides what
 * follows from it.
 *
 * mr_index_locate is for readers that serve both kinds. All functions are safe from any number of threads.
 */
#ifndef MR_SHM_INDEX_SHARDS_H
#define MR_SHM_INDEX_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/index.h"

struct mr_index_shard {
    const char *name; /* of the object, without the bucket; points into the image, NUL-terminated */
    size_t name_length;
    uint64_t size, version;
    uint64_t first, count; /* its samples: entries first .. first + count - 1 */
};

/* 0: an index of whole objects. In index.c. */
uint64_t mr_index_shard_count(const struct mr_index *index);
/* Shard n of the table. 0, or -1: USAGE past the end, CORRUPT. */
int mr_index_shard(const struct mr_index *index, uint64_t n, struct mr_index_shard *shard);
/* The shard of sample i. 0, or -1: USAGE, CORRUPT. Binary search. */
int mr_index_shard_of(const struct mr_index *index, uint64_t i, struct mr_index_shard *shard);
/* The shard of this name: 0, or -1: NOT_FOUND, CORRUPT. Binary search. */
int mr_index_find_shard(const struct mr_index *index, const char *name, size_t length, struct mr_index_shard *shard);

/* Where the bytes of an entry lie. */
struct mr_index_range {
    uint64_t offset;      /* in the object; 0 in an index of objects */
    uint64_t object_size; /* of all of it */
    uint64_t first;       /* the entries of one object have this in common: the number of its first one */
    bool damaged;         /* the rest of a shard: see above */
};

/*
 * As mr_index_get, of either kind: size and crc32c are the entry's; version, and name (NULL: not wanted), are those of
 * the object that holds it. 0, or -1: USAGE, CORRUPT.
 */
int mr_index_locate(const struct mr_index *index, uint64_t i, struct mr_index_entry *entry, char *name,
                    struct mr_index_range *range);
/* For messages, malloc'ed: "gs://bucket/name", or of a sample "sample KEY, which begins at byte N of its shard:
 * gs://bucket/shard". *uri, which may be NULL: where the object's URI begins in it. NULL with mr_error. */
char *mr_index_describe(const struct mr_index *index, uint64_t i, const char **uri);

#endif
