/*
 * shards.h - the samples of tar shards, found by ranged reads of their headers, into an index of samples.
 *
 * Many shards are read at once, each through one window of bytes. The first window has 256 KiB. Where the next header
 * lies 64 KiB or more behind the window, the bytes between are left out ("hop": about one small request a member); where
 * members are smaller, windows of 1 MiB follow each other ("stream"), and each sample that has passed whole gets its
 * crc32c. Shards are added to the index in order, so that one that is slow holds up a bounded number of others.
 *
 * Where the first shard that is not known by its first window has a sidecar (sidecar.h), those of the others are looked
 * for too, and members are taken from there: then a shard is its first window, its sidecar and a few headers.
 *
 * A shard that a cached index has in the same version is not read. One that is damaged, or cut, ends with an entry that
 * cannot be read (shm/index/shards.h), and a warning; what is no plain tar archive at all is an error. Asynchronous, on
 * the worker's loop.
 */
#ifndef MR_WORKER_LIST_SHARDS_H
#define MR_WORKER_LIST_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/index_build.h"
#include "worker/list/index_cache.h"
#include "worker/net.h"

struct mr_shards;

struct mr_shards_options { /* borrowed; must outlive the reading */
    struct mr_net *net;
    struct mr_store *store;
    struct mr_index_builder *builder; /* gets the shards and samples */
    const struct mr_index_source *source;
    bool checksums; /* of all samples: every byte is read */
    /* More is known, or all is. failed: mr_error says why, and there is no further call. False: mr_shards_destroy has
     * been called, as it may after any failure and at the end. */
    bool (*progress)(void *arg, bool done, bool failed);
    void *arg;
};

/* NULL: NO_MEMORY. */
struct mr_shards *mr_shards_new(const struct mr_shards_options *options);
/* Cancels what is under way. NULL is allowed. */
void mr_shards_destroy(struct mr_shards *shards);
/* A shard, in ascending order of names. 0 or -1 (NO_MEMORY). */
int mr_shards_add(struct mr_shards *shards, const char *name, uint64_t size, uint64_t version);
/* Ends in ".tar". -1 with mr_error (USAGE): it is a compressed archive, which has no samples to be read as ranges. */
int mr_shards_is_one(const char *name, bool *is_shard);
/* Begins to read; progress is called from the loop. 0; 1: there is nothing to read, and progress is not called; -1.
 * identity: whose cached indexes may know shards. */
int mr_shards_start(struct mr_shards *shards, const struct mr_index_identity *identity, const struct mr_config *config);

struct mr_shards_counts {
    uint64_t samples, bytes, largest;  /* in the index so far */
    uint64_t requests, known;          /* GETs; shards that were not read */
    uint64_t skipped, bad, unverified; /* members of no sample; samples marked __bad__; samples without crc32c */
    uint64_t damaged;                  /* shards whose rest is not read */
    uint64_t sidecars;                 /* shards whose members are known by a sidecar */
    uint64_t shards, shards_done, shard_bytes;
    uint64_t passed; /* of shard_bytes: read, or left out */
};
const struct mr_shards_counts *mr_shards_counts(const struct mr_shards *shards);

#endif
