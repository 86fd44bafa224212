/*
 * bucket.h - the buckets and the objects in them: what exists, in which generation, and the conditions for changing it.
 *
 * A bucket keeps its names in memory, in order. Behind it may be a folder (writes are files), nothing (writes stay in
 * memory), or objects made up from a seed (writes and deletes lie over them in memory). Every function may be called by
 * any thread. Buckets live until ds_buckets_destroy, so a pointer to one stays valid.
 */
#ifndef MR_DEVSTORE_BUCKET_H
#define MR_DEVSTORE_BUCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

struct ds_bucket;
struct ds_buckets;
struct ds_synthetic;

/* A bucket's properties; every bucket begins with the ones given to ds_buckets_new. */
struct ds_bucket_settings {
    char storage_class[32]; /* of the bucket, and of each object without one of its own */
    char location[64], location_type[32];
    uint64_t soft_delete_s; /* of the softDeletePolicy that it reports; deleted objects are not kept */
    bool hierarchical, versioning, requester_pays;
    bool zonal; /* as a Rapid bucket: objects cannot be composed */
};
/* STANDARD in one region, nothing switched on. */
void ds_bucket_settings_init(struct ds_bucket_settings *settings);

/* root: a folder whose folders are the buckets, or NULL. memory: never write to root. settings NULL: the
 * defaults. NULL with an error. Blocks: scans. */
struct ds_buckets *ds_buckets_new(const char *root, bool memory, const struct ds_bucket_settings *settings);
void ds_buckets_destroy(struct ds_buckets *buckets);
/* Takes synthetic, on failure too. 0 or -1 (EXISTS, USAGE for a bad name). */
int ds_buckets_add_synthetic(struct ds_buckets *buckets, const char *name, struct ds_synthetic *synthetic);
/* The settings that ds_buckets_new was given. */
const struct ds_bucket_settings *ds_buckets_settings(const struct ds_buckets *buckets);
/* An empty bucket. settings NULL: the common ones. 0 or -1 (EXISTS; USAGE for a bad name; IO). */
int ds_buckets_create(struct ds_buckets *buckets, const char *name, const struct ds_bucket_settings *settings);
/* NULL when there is none. */
struct ds_bucket *ds_buckets_find(struct ds_buckets *buckets, const char *name);
/* Names of all buckets in byte-wise order: the next one after `name` ("" for the first), or NULL. Borrowed. */
const char *ds_buckets_next(struct ds_buckets *buckets, const char *name);

const char *ds_bucket_name(const struct ds_bucket *bucket);
const struct ds_bucket_settings *ds_bucket_settings(const struct ds_bucket *bucket);
int64_t ds_bucket_created_us(const struct ds_bucket *bucket);
/* The folder that writes go to, or NULL for memory. */
const char *ds_bucket_folder(const struct ds_bucket *bucket);

/* ifGenerationMatch and the like; a bit of `has` for each that is given. */
enum { MR_IF_GENERATION = 1, MR_IF_NOT_GENERATION = 2, MR_IF_METAGENERATION = 4, MR_IF_NOT_METAGENERATION = 8 };
struct ds_conditions {
    unsigned has;
    uint64_t generation, not_generation, metageneration, not_metageneration;
};
/* 0 when they hold for a live object of these generations (0 and 0: there is none), otherwise the first bit that
 * fails. */
unsigned ds_conditions_fail(const struct ds_conditions *conditions, uint64_t generation, uint64_t metageneration);

/* A new reference to the live object, or NULL (NOT_FOUND). */
struct ds_object *ds_bucket_get(struct ds_bucket *bucket, const char *name);
/*
 * The first live objects whose names are >= (after: >) the key and, unless end is "", < end, in order, as new
 * references, at most `most`. Returns how many. All are seen at one moment.
 */
size_t ds_bucket_range(struct ds_bucket *bucket, const char *key, bool after, const char *end, struct ds_object **out,
                       size_t most);
/*
 * Makes object the live one of its name under a new generation. temporary: the file with its bytes, which is moved
 * (only where ds_bucket_folder is set), or NULL. 0, or -1: CHANGED when the conditions fail (the live object is
 * untouched), IO. The caller keeps its reference.
 */
int ds_bucket_put(struct ds_bucket *bucket, struct ds_object *object, const char *temporary,
                  const struct ds_conditions *conditions);
/* Deletes the live object; generation 0: any. 0, or -1: NOT_FOUND, CHANGED (conditions). */
int ds_bucket_delete(struct ds_bucket *bucket, const char *name, uint64_t generation,
                     const struct ds_conditions *conditions);
/* The same bytes under a new generation, as if they had been uploaded again. 0, or -1 (NOT_FOUND, IO). */
int ds_bucket_touch(struct ds_bucket *bucket, const char *name, uint64_t *generation);
/*
 * Looks again at the file of an object that ds_object_open found changed: a new reference to what is there now, under a
 * new generation, or NULL (NOT_FOUND) where the file no longer exists, and the name is removed.
 */
struct ds_object *ds_bucket_refresh(struct ds_bucket *bucket, struct ds_object *stale);

#endif
