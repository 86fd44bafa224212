/*
 * bucket.h - the buckets and the objects in them: what exists, in which generation, and the conditions for change.
 *
 * A bucket keeps its names in memory, in order. Behind it may be a folder (writes are files), nothing (writes stay in
 * memory), or objects made up from a seed (writes and deletes lie over them in memory). Every function may be
 * called by any thread. Buckets live until mr_buckets_destroy, so a pointer to one stays good.
 */
#ifndef MR_DEVSTORE_BUCKET_H
#define MR_DEVSTORE_BUCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

struct mr_bucket;
struct mr_buckets;
struct mr_synthetic;

/* A bucket's properties; every bucket begins with the ones given to mr_buckets_new. */
struct mr_bucket_settings {
    char storage_class[32]; /* of the bucket, and of each object without one of its own */
    char location[64], location_type[32];
    uint64_t soft_delete_s; /* of the softDeletePolicy that it tells; deleted objects are gone */
    bool hierarchical, versioning, requester_pays;
    bool zonal; /* as a Rapid bucket: objects cannot be composed */
};
/* STANDARD in one region, nothing switched on. */
void mr_bucket_settings_init(struct mr_bucket_settings *settings);

/* root: a folder whose folders are the buckets, or NULL. memory: never write to root. settings NULL: the
 * defaults. NULL with an error. Blocks: scans. */
struct mr_buckets *mr_buckets_new(const char *root, bool memory, const struct mr_bucket_settings *settings);
void mr_buckets_destroy(struct mr_buckets *buckets);
/* Takes synthetic, on failure too. 0 or -1 (EXISTS, USAGE for a bad name). */
int mr_buckets_add_synthetic(struct mr_buckets *buckets, const char *name, struct mr_synthetic *synthetic);
/* The settings that mr_buckets_new was given. */
const struct mr_bucket_settings *mr_buckets_settings(const struct mr_buckets *buckets);
/* An empty bucket. settings NULL: the common ones. 0 or -1 (EXISTS; USAGE for a bad name; IO). */
int mr_buckets_create(struct mr_buckets *buckets, const char *name, const struct mr_bucket_settings *settings);
/* NULL when there is none. */
struct mr_bucket *mr_buckets_find(struct mr_buckets *buckets, const char *name);
/* Names of all buckets in byte-wise order: the next one after `name` ("" for the first), or NULL. Borrowed. */
const char *mr_buckets_next(struct mr_buckets *buckets, const char *name);

const char *mr_bucket_name(const struct mr_bucket *bucket);
const struct mr_bucket_settings *mr_bucket_settings(const struct mr_bucket *bucket);
int64_t mr_bucket_created_us(const struct mr_bucket *bucket);
/* The folder that writes go to, or NULL for memory. */
const char *mr_bucket_folder(const struct mr_bucket *bucket);

/* ifGenerationMatch and its like; a bit of `has` for each that is asked for. */
enum { MR_IF_GENERATION = 1, MR_IF_NOT_GENERATION = 2, MR_IF_METAGENERATION = 4, MR_IF_NOT_METAGENERATION = 8 };
struct mr_conditions {
    unsigned has;
    uint64_t generation, not_generation, metageneration, not_metageneration;
};
/* 0 when they hold for a live object of these generations (0 and 0: there is none), else the first bit that fails. */
unsigned mr_conditions_fail(const struct mr_conditions *conditions, uint64_t generation, uint64_t metageneration);

/* A new reference to the live object, or NULL (NOT_FOUND). */
struct mr_object *mr_bucket_get(struct mr_bucket *bucket, const char *name);
/*
 * The first live objects whose names are >= (after: >) the key and, unless end is "", < end, in order: new references,
 * at most `most`; how many there are. What is there is seen at one moment.
 */
size_t mr_bucket_range(struct mr_bucket *bucket, const char *key, bool after, const char *end, struct mr_object **out,
                       size_t most);
/*
 * Makes object the live one of its name under a new generation. temporary: the file with its bytes, which is moved
 * (only where mr_bucket_folder is set), or NULL. 0, or -1: CHANGED when the conditions fail (the live object is
 * untouched), IO. The caller keeps its reference.
 */
int mr_bucket_put(struct mr_bucket *bucket, struct mr_object *object, const char *temporary,
                  const struct mr_conditions *conditions);
/* Deletes the live object; generation 0: whichever. 0, or -1: NOT_FOUND, CHANGED (conditions). */
int mr_bucket_delete(struct mr_bucket *bucket, const char *name, uint64_t generation,
                     const struct mr_conditions *conditions);
/* The same bytes under a new generation, as if they had been uploaded again. 0, or -1 (NOT_FOUND, IO). */
int mr_bucket_touch(struct mr_bucket *bucket, const char *name, uint64_t *generation);
/*
 * Looks again at the file of an object which mr_object_open found changed: a new reference to what is there now under a
 * new generation, or NULL with NOT_FOUND when it is gone (the name is removed).
 */
struct mr_object *mr_bucket_refresh(struct mr_bucket *bucket, struct mr_object *stale);

#endif
