/*
 * index_build.h - makes index images (index.h) from names in ascending order, and one image of several.
 *
 * The image of a given sequence of objects is always the same bytes, apart from its header: how a listing was divided
 * among list workers does not show in it, nor in its digest.
 */
#ifndef MR_SHM_INDEX_INDEX_BUILD_H
#define MR_SHM_INDEX_INDEX_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/index.h"

/* Where the objects come from. Copied by mr_index_builder_new. */
struct mr_index_source {
    enum mr_scheme scheme;
    enum mr_index_version_kind version_kind;
    const char *bucket;          /* NULL is "" */
    const char *endpoint;        /* the base URL that was asked; NULL is "" */
    const char *const *prefixes; /* what was listed; none for an explicit list of names */
    uint32_t prefix_count;
    int64_t created_wall_ns; /* when the listing began */
};

struct mr_index_builder;

/*
 * fd: a memfd or file that is open for reading and writing; the image is written into it from offset 0 while it grows
 * and the file is cut to its length at the end; stays the caller's. Or -1: the image grows in memory.
 * NULL on failure: USAGE, NO_MEMORY.
 */
struct mr_index_builder *mr_index_builder_new(const struct mr_index_source *source, int fd);
void mr_index_builder_destroy(struct mr_index_builder *builder); /* NULL is allowed */

/*
 * The next object. Its name must be greater than the one before it: an error (PROTOCOL) names both. PROTOCOL too for
 * a name that is empty, longer than MR_INDEX_NAME_MAX or holds a NUL, and for sizes that add up to more than 2^63.
 * crc32c: ignored without has_crc32c. 0 or -1; after -1 the builder can only be destroyed.
 */
int mr_index_builder_add(struct mr_index_builder *builder, const char *name, size_t name_length, uint64_t size,
                         uint64_t version, uint32_t crc32c, bool has_crc32c);
/*
 * An index of samples (shards.h), in place of mr_index_builder_add: the next shard, whose name must be greater than the
 * one before it, and then its samples in ascending order of offsets, without overlap and within its size. Keys are as
 * names, in any order. 0 or -1 (PROTOCOL); after -1 the builder can only be destroyed.
 */
int mr_index_builder_shard(struct mr_index_builder *builder, const char *name, size_t name_length, uint64_t size,
                           uint64_t version);
int mr_index_builder_sample(struct mr_index_builder *builder, const char *key, size_t key_length, uint64_t offset,
                            uint64_t length, uint32_t crc32c, bool has_crc32c);
/* Counts names that were left out. */
void mr_index_builder_drop(struct mr_index_builder *builder, enum mr_index_drop kind, uint64_t names);
uint64_t mr_index_builder_count(const struct mr_index_builder *builder);

/*
 * Adds all objects of n attached images, in the order given, and their dropped counts: the ranges of one listing, which
 * must not overlap. PROTOCOL when a range begins at or before the last name of the one before it, or is of another
 * scheme, bucket, endpoint or version kind than the builder, or when some are of samples and others of objects. About
 * 0.1 us an object: not for a thread that must not wait.
 */
int mr_index_concat(struct mr_index_builder *builder, const struct mr_index *const ranges[], size_t n);

/*
 * Completes the image; the header's magic is written last. In memory: *image is malloc'ed and the caller's to free. In
 * a file: *image is set to NULL (image may be NULL). *length (may be NULL): bytes. Then only destroy. 0 or -1.
 */
int mr_index_builder_finish(struct mr_index_builder *builder, void **image, size_t *length);

#endif
