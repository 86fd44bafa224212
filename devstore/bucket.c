#include "devstore/bucket.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "devstore/folder.h"
#include "devstore/names.h"
#include "devstore/synthetic.h"

struct ds_bucket {
    struct ds_bucket *next; /* by name */
    struct ds_names *names; /* synthetic: what lies over it, tombstones included */
    struct ds_synthetic *synthetic;
    char *folder;
    struct ds_bucket_settings settings;
    int64_t created_us;
    uint64_t last_generation;
    pthread_rwlock_t lock; /* names and last_generation */
    char name[];
};

struct ds_buckets {
    pthread_rwlock_t lock; /* the list; its nodes stay */
    struct ds_bucket *first;
    char *root;
    bool memory;
    struct ds_bucket_settings settings;
};

void ds_bucket_settings_init(struct ds_bucket_settings *settings)
{
    *settings =
        (struct ds_bucket_settings){.storage_class = "STANDARD", .location = "DEVSTORE", .location_type = "region"};
}

static void bucket_destroy(struct ds_bucket *bucket)
{
    if (!bucket)
        return;
    ds_names_destroy(bucket->names);
    ds_synthetic_destroy(bucket->synthetic);
    free(bucket->folder);
    pthread_rwlock_destroy(&bucket->lock);
    free(bucket);
}

/* The documented rules, without those about dots and "goog"; they also make the name a harmless path component. */
static int bucket_check_name(const char *name)
{
    size_t length = strlen(name);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.");
    if (length < 3 || length > 222 || good != length || strchr("-_.", name[0]) || strchr("-_.", name[length - 1])) {
        mr_error_set(MR_E_USAGE,
                     "\"%s\" is not a bucket name: 3 to 222 of a-z 0-9 - _ . and a letter or digit at either end",
                     name);
        return -1;
    }
    return 0;
}

/* Takes synthetic and folder, on failure too. NULL: no memory. */
static struct ds_bucket *bucket_new(const char *name, struct ds_synthetic *synthetic, char *folder,
                                    const struct ds_bucket_settings *settings)
{
    struct ds_bucket *bucket = calloc(1, sizeof *bucket + strlen(name) + 1);
    if (!bucket) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for bucket \"%s\"", name);
        ds_synthetic_destroy(synthetic);
        free(folder);
        return NULL;
    }
    memcpy(bucket->name, name, strlen(name) + 1);
    bucket->synthetic = synthetic;
    bucket->folder = folder;
    bucket->settings = *settings;
    bucket->created_us = mr_clock_wall_ns() / 1000;
    pthread_rwlock_init(&bucket->lock, NULL);
    bucket->names = ds_names_new();
    if (!bucket->names) {
        bucket_destroy(bucket);
        return NULL;
    }
    return bucket;
}

/* The place of the name in the list: the link to the bucket of that name or to the first one after it. */
static struct ds_bucket **place(struct ds_buckets *buckets, const char *name)
{
    struct ds_bucket **link = &buckets->first;
    while (*link && strcmp((*link)->name, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Takes bucket, on failure too; NULL fails. 0, or -1 (EXISTS). */
static int insert(struct ds_buckets *buckets, struct ds_bucket *bucket)
{
    if (!bucket)
        return -1;
    pthread_rwlock_wrlock(&buckets->lock);
    struct ds_bucket **link = place(buckets, bucket->name);
    int rc = -1;
    if (*link && strcmp((*link)->name, bucket->name) == 0) {
        mr_error_set(MR_E_EXISTS, "bucket \"%s\" exists", bucket->name);
        bucket_destroy(bucket);
    } else {
        bucket->next = *link;
        *link = bucket;
        rc = 0;
    }
    pthread_rwlock_unlock(&buckets->lock);
    return rc;
}

/* Called for each object that the scan finds, which it takes. 0, or -1 to stop. */
static int scanned(void *cls, struct ds_object *object)
{
    struct ds_bucket *bucket = cls;
    /* A name may be both a plain file and in the side folder: the order of fts decides which one wins. */
    if (ds_names_put(bucket->names, object) < 0) {
        ds_object_unref(object);
        return -1;
    }
    if (object->generation > bucket->last_generation)
        bucket->last_generation = object->generation;
    return 0;
}

/* 0 also where this is not a bucket, which is skipped. */
static int scan_bucket(struct ds_buckets *buckets, const char *name)
{
    char *folder;
    if (asprintf(&folder, "%s/%s", buckets->root, name) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for bucket \"%s\"", name);
        return -1;
    }
    struct stat st;
    if (stat(folder, &st) < 0 || !S_ISDIR(st.st_mode) || bucket_check_name(name) < 0) {
        free(folder); /* a file, or a folder like .git: no bucket */
        return 0;
    }
    struct ds_bucket *bucket = bucket_new(name, NULL, folder, &buckets->settings);
    if (!bucket)
        return -1;
    bucket->created_us = st.st_ctim.tv_sec * INT64_C(1000000);
    if (ds_folder_scan(folder, scanned, bucket) < 0) {
        bucket_destroy(bucket);
        return -1;
    }
    if (buckets->memory) { /* the files are read, never written */
        free(bucket->folder);
        bucket->folder = NULL;
    }
    return insert(buckets, bucket);
}

static int scan_root(struct ds_buckets *buckets)
{
    DIR *dir = opendir(buckets->root);
    if (!dir) {
        mr_error_set_errno(errno, "cannot read folder \"%s\"", buckets->root);
        return -1;
    }
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(dir));)
        rc = scan_bucket(buckets, entry->d_name);
    closedir(dir);
    return rc;
}

struct ds_buckets *ds_buckets_new(const char *root, bool memory, const struct ds_bucket_settings *settings)
{
    struct ds_buckets *buckets = calloc(1, sizeof *buckets);
    if (!buckets)
        goto no_memory;
    pthread_rwlock_init(&buckets->lock, NULL);
    buckets->memory = memory;
    if (settings)
        buckets->settings = *settings;
    else
        ds_bucket_settings_init(&buckets->settings);
    buckets->root = root ? strdup(root) : NULL;
    if (root && !buckets->root)
        goto no_memory;
    if (root && scan_root(buckets) < 0)
        goto fail;
    return buckets;
no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for the buckets");
fail:
    ds_buckets_destroy(buckets);
    return NULL;
}

void ds_buckets_destroy(struct ds_buckets *buckets)
{
    if (!buckets)
        return;
    for (struct ds_bucket *bucket = buckets->first, *next; bucket; bucket = next) {
        next = bucket->next;
        bucket_destroy(bucket);
    }
    pthread_rwlock_destroy(&buckets->lock);
    free(buckets->root);
    free(buckets);
}

int ds_buckets_add_synthetic(struct ds_buckets *buckets, const char *name, struct ds_synthetic *synthetic)
{
    if (bucket_check_name(name) < 0) {
        ds_synthetic_destroy(synthetic);
        return -1;
    }
    return insert(buckets, bucket_new(name, synthetic, NULL, &buckets->settings));
}

const struct ds_bucket_settings *ds_buckets_settings(const struct ds_buckets *buckets)
{
    return &buckets->settings;
}

int ds_buckets_create(struct ds_buckets *buckets, const char *name, const struct ds_bucket_settings *settings)
{
    if (bucket_check_name(name) < 0)
        return -1;
    if (ds_buckets_find(buckets, name)) {
        mr_error_set(MR_E_EXISTS, "bucket \"%s\" exists", name);
        return -1;
    }
    char *folder = NULL;
    if (buckets->root && !buckets->memory) {
        if (asprintf(&folder, "%s/%s", buckets->root, name) < 0) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for bucket \"%s\"", name);
            return -1;
        }
        if (mkdir(folder, 0777) < 0 && errno != EEXIST) {
            mr_error_set_errno(errno, "cannot create \"%s\"", folder);
            free(folder);
            return -1;
        }
    }
    return insert(buckets, bucket_new(name, NULL, folder, settings ? settings : &buckets->settings));
}

struct ds_bucket *ds_buckets_find(struct ds_buckets *buckets, const char *name)
{
    pthread_rwlock_rdlock(&buckets->lock);
    struct ds_bucket *bucket = *place(buckets, name);
    pthread_rwlock_unlock(&buckets->lock);
    return bucket && strcmp(bucket->name, name) == 0 ? bucket : NULL;
}

const char *ds_buckets_next(struct ds_buckets *buckets, const char *name)
{
    pthread_rwlock_rdlock(&buckets->lock);
    struct ds_bucket *bucket = *place(buckets, name);
    if (bucket && strcmp(bucket->name, name) == 0)
        bucket = bucket->next;
    pthread_rwlock_unlock(&buckets->lock);
    return bucket ? bucket->name : NULL;
}

const char *ds_bucket_name(const struct ds_bucket *bucket)
{
    return bucket->name;
}

const struct ds_bucket_settings *ds_bucket_settings(const struct ds_bucket *bucket)
{
    return &bucket->settings;
}

int64_t ds_bucket_created_us(const struct ds_bucket *bucket)
{
    return bucket->created_us;
}

const char *ds_bucket_folder(const struct ds_bucket *bucket)
{
    return bucket->folder;
}

unsigned ds_conditions_fail(const struct ds_conditions *conditions, uint64_t generation, uint64_t metageneration)
{
    if ((conditions->has & MR_IF_GENERATION) && generation != conditions->generation)
        return MR_IF_GENERATION;
    if ((conditions->has & MR_IF_METAGENERATION) && metageneration != conditions->metageneration)
        return MR_IF_METAGENERATION;
    if ((conditions->has & MR_IF_NOT_GENERATION) && generation == conditions->not_generation)
        return MR_IF_NOT_GENERATION;
    if ((conditions->has & MR_IF_NOT_METAGENERATION) && metageneration == conditions->not_metageneration)
        return MR_IF_NOT_METAGENERATION;
    return 0;
}

/* object NULL: there is none. 0 or -1 (CHANGED). */
static int check_conditions(const struct ds_conditions *conditions, const struct ds_object *object)
{
    if (!ds_conditions_fail(conditions, object ? object->generation : 0, object ? object->metageneration : 0))
        return 0;
    mr_error_set(MR_E_CHANGED, "At least one of the pre-conditions you specified did not hold.");
    return -1;
}

/* The lock is held. The live object as a new reference, or NULL. */
static struct ds_object *lookup(struct ds_bucket *bucket, const char *name)
{
    struct ds_object *object = ds_names_count(bucket->names) ? ds_names_find(bucket->names, name) : NULL;
    if (object)
        return object->deleted ? NULL : ds_object_ref(object);
    if (bucket->synthetic) {
        object = ds_synthetic_object(bucket->synthetic, ds_synthetic_seek(bucket->synthetic, name, false));
        if (object && strcmp(object->name, name) == 0)
            return object;
        ds_object_unref(object);
    }
    return NULL;
}

struct ds_object *ds_bucket_get(struct ds_bucket *bucket, const char *name)
{
    pthread_rwlock_rdlock(&bucket->lock);
    struct ds_object *object = lookup(bucket, name);
    pthread_rwlock_unlock(&bucket->lock);
    if (!object)
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
    return object;
}

/* ds_bucket_range in a synthetic bucket: what is made up, merged with what lies over it. */
static size_t range_over_synthetic(struct ds_bucket *bucket, const char *key, bool after, struct ds_object **out,
                                   size_t most)
{
    uint64_t index = ds_synthetic_seek(bucket->synthetic, key, after);
    struct ds_object *over = ds_names_next(bucket->names, key, after), *made = NULL;
    size_t n = 0;
    while (n < most) {
        if (!made)
            made = ds_synthetic_object(bucket->synthetic, index);
        if (!made && !over)
            break;
        int order = !over ? 1 : !made ? -1 : strcmp(over->name, made->name);
        if (order > 0) {
            out[n++] = made;
            made = NULL;
            index++;
            continue;
        }
        if (order == 0) {
            ds_object_unref(made);
            made = NULL;
            index++;
        }
        if (!over->deleted)
            out[n++] = ds_object_ref(over);
        over = ds_names_next(bucket->names, over->name, true);
    }
    ds_object_unref(made);
    return n;
}

size_t ds_bucket_range(struct ds_bucket *bucket, const char *key, bool after, const char *end, struct ds_object **out,
                       size_t most)
{
    pthread_rwlock_rdlock(&bucket->lock);
    size_t n = bucket->synthetic ? range_over_synthetic(bucket, key, after, out, most)
                                 : ds_names_range(bucket->names, key, after, out, most);
    pthread_rwlock_unlock(&bucket->lock);
    while (n > 0 && *end && strcmp(out[n - 1]->name, end) >= 0)
        ds_object_unref(out[--n]);
    return n;
}

/* The lock is held for writing. Generations are microseconds of the clock, as GCS's are, and grow even if it does
 * not. */
static uint64_t next_generation(struct ds_bucket *bucket)
{
    uint64_t now = (uint64_t)(mr_clock_wall_ns() / 1000);
    bucket->last_generation = now > bucket->last_generation ? now : bucket->last_generation + 1;
    return bucket->last_generation;
}

int ds_bucket_put(struct ds_bucket *bucket, struct ds_object *object, const char *temporary,
                  const struct ds_conditions *conditions)
{
    int rc = -1;
    pthread_rwlock_wrlock(&bucket->lock);
    struct ds_object *live = lookup(bucket, object->name);
    if (check_conditions(conditions, live) < 0)
        goto out;
    object->generation = next_generation(bucket);
    object->created_us = object->updated_us = (int64_t)object->generation;
    if (temporary && ds_folder_commit(bucket->folder, temporary, object, live ? live->path : NULL) < 0)
        goto out;
    if (ds_names_put(bucket->names, ds_object_ref(object)) < 0) {
        ds_object_unref(object);
        goto out;
    }
    rc = 0;
out:
    pthread_rwlock_unlock(&bucket->lock);
    ds_object_unref(live);
    return rc;
}

/* Removes the name, or hides it where a synthetic object would show. The lock is held for writing. */
static int bucket_drop(struct ds_bucket *bucket, const char *name)
{
    if (!bucket->synthetic) {
        ds_names_remove(bucket->names, name);
        return 0;
    }
    struct ds_object *tombstone = ds_object_new(name);
    if (!tombstone)
        return -1;
    tombstone->deleted = true;
    if (ds_names_put(bucket->names, tombstone) < 0) {
        ds_object_unref(tombstone);
        return -1;
    }
    return 0;
}

int ds_bucket_delete(struct ds_bucket *bucket, const char *name, uint64_t generation,
                     const struct ds_conditions *conditions)
{
    int rc = -1;
    pthread_rwlock_wrlock(&bucket->lock);
    struct ds_object *live = lookup(bucket, name);
    if (!live || (generation && live->generation != generation)) {
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
        goto out;
    }
    if (check_conditions(conditions, live) < 0 || bucket_drop(bucket, name) < 0)
        goto out;
    if (live->path && bucket->folder)
        ds_folder_remove(bucket->folder, live->path);
    rc = 0;
out:
    pthread_rwlock_unlock(&bucket->lock);
    ds_object_unref(live);
    return rc;
}

int ds_bucket_touch(struct ds_bucket *bucket, const char *name, uint64_t *generation)
{
    int rc = -1;
    struct ds_object *copy = NULL;
    pthread_rwlock_wrlock(&bucket->lock);
    struct ds_object *live = lookup(bucket, name);
    if (!live) {
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
        goto out;
    }
    copy = ds_object_copy_of(live);
    if (!copy)
        goto out;
    copy->generation = next_generation(bucket);
    copy->metageneration = 1;
    copy->created_us = copy->updated_us = (int64_t)copy->generation;
    if (copy->path && bucket->folder && ds_folder_stamp(copy) < 0)
        goto out;
    rc = ds_names_put(bucket->names, ds_object_ref(copy));
    if (rc < 0)
        ds_object_unref(copy);
    *generation = copy->generation;
out:
    pthread_rwlock_unlock(&bucket->lock);
    ds_object_unref(live);
    ds_object_unref(copy);
    return rc;
}

struct ds_object *ds_bucket_refresh(struct ds_bucket *bucket, struct ds_object *stale)
{
    pthread_rwlock_wrlock(&bucket->lock);
    struct ds_object *live = lookup(bucket, stale->name);
    if (live && live == stale) { /* otherwise it was replaced meanwhile */
        ds_object_unref(live);
        live = ds_folder_object(stale->name, stale->path);
        if (!live) {
            ds_names_remove(bucket->names, stale->name);
        } else if (ds_names_put(bucket->names, ds_object_ref(live)) < 0) {
            ds_object_unref(live);
            ds_object_unref(live);
            live = NULL;
        } else if (live->generation > bucket->last_generation) {
            bucket->last_generation = live->generation;
        }
    }
    pthread_rwlock_unlock(&bucket->lock);
    if (!live)
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, stale->name);
    return live;
}
