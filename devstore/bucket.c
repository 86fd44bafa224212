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

struct mr_bucket {
    struct mr_bucket *next; /* by name */
    struct mr_names *names; /* synthetic: what lies over it, tombstones included */
    struct mr_synthetic *synthetic;
    char *folder;
    struct mr_bucket_settings settings;
    int64_t created_us;
    uint64_t last_generation;
    pthread_rwlock_t lock; /* names and last_generation */
    char name[];
};

struct mr_buckets {
    pthread_rwlock_t lock; /* the list; its nodes stay */
    struct mr_bucket *first;
    char *root;
    bool memory;
    struct mr_bucket_settings settings;
};

void mr_bucket_settings_init(struct mr_bucket_settings *settings)
{
    *settings =
        (struct mr_bucket_settings){.storage_class = "STANDARD", .location = "DEVSTORE", .location_type = "region"};
}

static void bucket_destroy(struct mr_bucket *bucket)
{
    if (!bucket)
        return;
    mr_names_destroy(bucket->names);
    mr_synthetic_destroy(bucket->synthetic);
    free(bucket->folder);
    pthread_rwlock_destroy(&bucket->lock);
    free(bucket);
}

/* The documented rules, less the ones about dots and "goog"; they also keep the name a harmless path component. */
static int check_name(const char *name)
{
    size_t length = strlen(name);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.");
    if (length < 3 || length > 222 || good != length || strchr("-_.", name[0]) || strchr("-_.", name[length - 1])) {
        mr_error_set(MR_E_USAGE,
                     "\"%s\" is no bucket name: 3 to 222 of a-z 0-9 - _ . and a letter or digit at either end", name);
        return -1;
    }
    return 0;
}

/* Takes synthetic and folder. NULL: no memory. */
static struct mr_bucket *bucket_new(const char *name, struct mr_synthetic *synthetic, char *folder,
                                    const struct mr_bucket_settings *settings)
{
    struct mr_bucket *bucket = calloc(1, sizeof *bucket + strlen(name) + 1);
    if (!bucket) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for bucket \"%s\"", name);
        mr_synthetic_destroy(synthetic);
        free(folder);
        return NULL;
    }
    memcpy(bucket->name, name, strlen(name) + 1);
    bucket->synthetic = synthetic;
    bucket->folder = folder;
    bucket->settings = *settings;
    bucket->created_us = mr_clock_wall_ns() / 1000;
    pthread_rwlock_init(&bucket->lock, NULL);
    bucket->names = mr_names_new();
    if (!bucket->names) {
        bucket_destroy(bucket);
        return NULL;
    }
    return bucket;
}

/* The place of the name in the list: the link to the bucket of that name or to the first one after it. */
static struct mr_bucket **place(struct mr_buckets *buckets, const char *name)
{
    struct mr_bucket **link = &buckets->first;
    while (*link && strcmp((*link)->name, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Takes bucket. 0, or -1 (EXISTS). */
static int insert(struct mr_buckets *buckets, struct mr_bucket *bucket)
{
    if (!bucket)
        return -1;
    pthread_rwlock_wrlock(&buckets->lock);
    struct mr_bucket **link = place(buckets, bucket->name);
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

static int scanned(void *cls, struct mr_object *object)
{
    struct mr_bucket *bucket = cls;
    /* A name both as plain file and in the side folder: fts decides which wins, but one of them does for good. */
    if (mr_names_put(bucket->names, object) < 0) {
        mr_object_unref(object);
        return -1;
    }
    if (object->generation > bucket->last_generation)
        bucket->last_generation = object->generation;
    return 0;
}

static int scan_bucket(struct mr_buckets *buckets, const char *name)
{
    char *folder;
    if (asprintf(&folder, "%s/%s", buckets->root, name) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for bucket \"%s\"", name);
        return -1;
    }
    struct stat st;
    if (stat(folder, &st) < 0 || !S_ISDIR(st.st_mode) || check_name(name) < 0) {
        free(folder); /* a file, or a folder like .git: no bucket */
        return 0;
    }
    struct mr_bucket *bucket = bucket_new(name, NULL, folder, &buckets->settings);
    if (!bucket)
        return -1;
    bucket->created_us = st.st_ctim.tv_sec * INT64_C(1000000);
    if (mr_folder_scan(folder, scanned, bucket) < 0) {
        bucket_destroy(bucket);
        return -1;
    }
    if (buckets->memory) { /* the files are read, never written */
        free(bucket->folder);
        bucket->folder = NULL;
    }
    return insert(buckets, bucket);
}

static int scan_root(struct mr_buckets *buckets)
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

struct mr_buckets *mr_buckets_new(const char *root, bool memory, const struct mr_bucket_settings *settings)
{
    struct mr_buckets *buckets = calloc(1, sizeof *buckets);
    if (!buckets)
        goto no_memory;
    pthread_rwlock_init(&buckets->lock, NULL);
    buckets->memory = memory;
    if (settings)
        buckets->settings = *settings;
    else
        mr_bucket_settings_init(&buckets->settings);
    buckets->root = root ? strdup(root) : NULL;
    if (root && !buckets->root)
        goto no_memory;
    if (root && scan_root(buckets) < 0)
        goto fail;
    return buckets;
no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for the buckets");
fail:
    mr_buckets_destroy(buckets);
    return NULL;
}

void mr_buckets_destroy(struct mr_buckets *buckets)
{
    if (!buckets)
        return;
    for (struct mr_bucket *bucket = buckets->first, *next; bucket; bucket = next) {
        next = bucket->next;
        bucket_destroy(bucket);
    }
    pthread_rwlock_destroy(&buckets->lock);
    free(buckets->root);
    free(buckets);
}

int mr_buckets_add_synthetic(struct mr_buckets *buckets, const char *name, struct mr_synthetic *synthetic)
{
    if (check_name(name) < 0) {
        mr_synthetic_destroy(synthetic);
        return -1;
    }
    return insert(buckets, bucket_new(name, synthetic, NULL, &buckets->settings));
}

const struct mr_bucket_settings *mr_buckets_settings(const struct mr_buckets *buckets)
{
    return &buckets->settings;
}

int mr_buckets_create(struct mr_buckets *buckets, const char *name, const struct mr_bucket_settings *settings)
{
    if (check_name(name) < 0)
        return -1;
    if (mr_buckets_find(buckets, name)) {
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

struct mr_bucket *mr_buckets_find(struct mr_buckets *buckets, const char *name)
{
    pthread_rwlock_rdlock(&buckets->lock);
    struct mr_bucket *bucket = *place(buckets, name);
    pthread_rwlock_unlock(&buckets->lock);
    return bucket && strcmp(bucket->name, name) == 0 ? bucket : NULL;
}

const char *mr_buckets_next(struct mr_buckets *buckets, const char *name)
{
    pthread_rwlock_rdlock(&buckets->lock);
    struct mr_bucket *bucket = *place(buckets, name);
    if (bucket && strcmp(bucket->name, name) == 0)
        bucket = bucket->next;
    pthread_rwlock_unlock(&buckets->lock);
    return bucket ? bucket->name : NULL;
}

const char *mr_bucket_name(const struct mr_bucket *bucket)
{
    return bucket->name;
}

const struct mr_bucket_settings *mr_bucket_settings(const struct mr_bucket *bucket)
{
    return &bucket->settings;
}

int64_t mr_bucket_created_us(const struct mr_bucket *bucket)
{
    return bucket->created_us;
}

const char *mr_bucket_folder(const struct mr_bucket *bucket)
{
    return bucket->folder;
}

unsigned mr_conditions_fail(const struct mr_conditions *conditions, uint64_t generation, uint64_t metageneration)
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

static int check_conditions(const struct mr_conditions *conditions, const struct mr_object *object)
{
    if (!mr_conditions_fail(conditions, object ? object->generation : 0, object ? object->metageneration : 0))
        return 0;
    mr_error_set(MR_E_CHANGED, "At least one of the pre-conditions you specified did not hold.");
    return -1;
}

/* The live object under the lock, as a new reference, or NULL. */
static struct mr_object *lookup(struct mr_bucket *bucket, const char *name)
{
    struct mr_object *object = mr_names_count(bucket->names) ? mr_names_find(bucket->names, name) : NULL;
    if (object)
        return object->deleted ? NULL : mr_object_ref(object);
    if (bucket->synthetic) {
        object = mr_synthetic_object(bucket->synthetic, mr_synthetic_seek(bucket->synthetic, name, false));
        if (object && strcmp(object->name, name) == 0)
            return object;
        mr_object_unref(object);
    }
    return NULL;
}

struct mr_object *mr_bucket_get(struct mr_bucket *bucket, const char *name)
{
    pthread_rwlock_rdlock(&bucket->lock);
    struct mr_object *object = lookup(bucket, name);
    pthread_rwlock_unlock(&bucket->lock);
    if (!object)
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
    return object;
}

/* mr_bucket_range in a synthetic bucket: what is made up, merged with what lies over it. */
static size_t range_over_synthetic(struct mr_bucket *bucket, const char *key, bool after, struct mr_object **out,
                                   size_t most)
{
    uint64_t index = mr_synthetic_seek(bucket->synthetic, key, after);
    struct mr_object *over = mr_names_next(bucket->names, key, after), *made = NULL;
    size_t n = 0;
    while (n < most) {
        if (!made)
            made = mr_synthetic_object(bucket->synthetic, index);
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
            mr_object_unref(made);
            made = NULL;
            index++;
        }
        if (!over->deleted)
            out[n++] = mr_object_ref(over);
        over = mr_names_next(bucket->names, over->name, true);
    }
    mr_object_unref(made);
    return n;
}

size_t mr_bucket_range(struct mr_bucket *bucket, const char *key, bool after, const char *end, struct mr_object **out,
                       size_t most)
{
    pthread_rwlock_rdlock(&bucket->lock);
    size_t n = bucket->synthetic ? range_over_synthetic(bucket, key, after, out, most)
                                 : mr_names_range(bucket->names, key, after, out, most);
    pthread_rwlock_unlock(&bucket->lock);
    while (n > 0 && *end && strcmp(out[n - 1]->name, end) >= 0)
        mr_object_unref(out[--n]);
    return n;
}

/* Generations are microseconds of the clock, as GCS's are, and grow even if it does not. */
static uint64_t next_generation(struct mr_bucket *bucket)
{
    uint64_t now = (uint64_t)(mr_clock_wall_ns() / 1000);
    bucket->last_generation = now > bucket->last_generation ? now : bucket->last_generation + 1;
    return bucket->last_generation;
}

int mr_bucket_put(struct mr_bucket *bucket, struct mr_object *object, const char *temporary,
                  const struct mr_conditions *conditions)
{
    int rc = -1;
    pthread_rwlock_wrlock(&bucket->lock);
    struct mr_object *live = lookup(bucket, object->name);
    if (check_conditions(conditions, live) < 0)
        goto out;
    object->generation = next_generation(bucket);
    object->created_us = object->updated_us = (int64_t)object->generation;
    if (temporary && mr_folder_commit(bucket->folder, temporary, object, live ? live->path : NULL) < 0)
        goto out;
    if (mr_names_put(bucket->names, mr_object_ref(object)) < 0) {
        mr_object_unref(object);
        goto out;
    }
    rc = 0;
out:
    pthread_rwlock_unlock(&bucket->lock);
    mr_object_unref(live);
    return rc;
}

/* Removes the name, or hides it where a synthetic object would show. The lock is held for writing. */
static int drop(struct mr_bucket *bucket, const char *name)
{
    if (!bucket->synthetic) {
        mr_names_remove(bucket->names, name);
        return 0;
    }
    struct mr_object *tombstone = mr_object_new(name);
    if (!tombstone)
        return -1;
    tombstone->deleted = true;
    if (mr_names_put(bucket->names, tombstone) < 0) {
        mr_object_unref(tombstone);
        return -1;
    }
    return 0;
}

int mr_bucket_delete(struct mr_bucket *bucket, const char *name, uint64_t generation,
                     const struct mr_conditions *conditions)
{
    int rc = -1;
    pthread_rwlock_wrlock(&bucket->lock);
    struct mr_object *live = lookup(bucket, name);
    if (!live || (generation && live->generation != generation)) {
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
        goto out;
    }
    if (check_conditions(conditions, live) < 0 || drop(bucket, name) < 0)
        goto out;
    if (live->path && bucket->folder)
        mr_folder_remove(bucket->folder, live->path);
    rc = 0;
out:
    pthread_rwlock_unlock(&bucket->lock);
    mr_object_unref(live);
    return rc;
}

int mr_bucket_touch(struct mr_bucket *bucket, const char *name, uint64_t *generation)
{
    int rc = -1;
    struct mr_object *copy = NULL;
    pthread_rwlock_wrlock(&bucket->lock);
    struct mr_object *live = lookup(bucket, name);
    if (!live) {
        mr_error_set(MR_E_NOT_FOUND, "No such object: %s/%s", bucket->name, name);
        goto out;
    }
    copy = mr_object_copy_of(live);
    if (!copy)
        goto out;
    copy->generation = next_generation(bucket);
    copy->metageneration = 1;
    copy->created_us = copy->updated_us = (int64_t)copy->generation;
    if (copy->path && bucket->folder && mr_folder_stamp(copy) < 0)
        goto out;
    rc = mr_names_put(bucket->names, mr_object_ref(copy));
    if (rc < 0)
        mr_object_unref(copy);
    *generation = copy->generation;
out:
    pthread_rwlock_unlock(&bucket->lock);
    mr_object_unref(live);
    mr_object_unref(copy);
    return rc;
}

struct mr_object *mr_bucket_refresh(struct mr_bucket *bucket, struct mr_object *stale)
{
    pthread_rwlock_wrlock(&bucket->lock);
    struct mr_object *live = lookup(bucket, stale->name);
    if (live && live == stale) { /* else somebody else replaced it already */
        mr_object_unref(live);
        live = mr_folder_object(stale->name, stale->path);
        if (!live) {
            mr_names_remove(bucket->names, stale->name);
        } else if (mr_names_put(bucket->names, mr_object_ref(live)) < 0) {
            mr_object_unref(live);
            mr_object_unref(live);
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
