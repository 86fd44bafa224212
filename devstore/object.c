#include "devstore/object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "devstore/s3_info.h"

#define CRC_KNOWN (UINT64_C(1) << 32)

const char *const ds_attribute_names[MR_ATTR_COUNT] = {
    [MR_ATTR_CONTENT_TYPE] = "contentType",
    [MR_ATTR_CONTENT_ENCODING] = "contentEncoding",
    [MR_ATTR_CONTENT_DISPOSITION] = "contentDisposition",
    [MR_ATTR_CONTENT_LANGUAGE] = "contentLanguage",
    [MR_ATTR_CACHE_CONTROL] = "cacheControl",
    [MR_ATTR_CUSTOM_TIME] = "customTime",
    [MR_ATTR_STORAGE_CLASS] = "storageClass",
    [MR_ATTR_METADATA] = "metadata",
};

struct ds_blob *ds_blob_new(uint8_t *data)
{
    struct ds_blob *blob = malloc(sizeof *blob);
    if (!blob) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's bytes");
        return NULL;
    }
    atomic_init(&blob->refs, 1);
    blob->data = data;
    return blob;
}

struct ds_blob *ds_blob_ref(struct ds_blob *blob)
{
    if (blob)
        atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
    return blob;
}

static void blob_unref(struct ds_blob *blob)
{
    if (!blob || atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) != 1)
        return;
    free(blob->data);
    free(blob);
}

struct ds_object *ds_object_new(const char *name)
{
    return ds_object_new_n(name, strlen(name));
}

struct ds_object *ds_object_new_n(const char *name, size_t length)
{
    struct ds_object *object = calloc(1, sizeof *object + length + 1);
    if (!object) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
        return NULL;
    }
    atomic_init(&object->refs, 1);
    atomic_init(&object->crc, 0);
    object->metageneration = 1;
    memcpy(object->name, name, length);
    return object;
}

struct ds_object *ds_object_ref(struct ds_object *object)
{
    atomic_fetch_add_explicit(&object->refs, 1, memory_order_relaxed);
    return object;
}

void ds_object_unref(struct ds_object *object)
{
    if (!object || atomic_fetch_sub_explicit(&object->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < object->n_pieces; i++)
        blob_unref(object->pieces[i].owner);
    if (object->pieces != &object->one)
        free(object->pieces);
    for (size_t i = 0; i < MR_ATTR_COUNT; i++)
        free(object->attributes[i]);
    ds_s3_info_unref(object->s3);
    free(object->path);
    free(object);
}

void ds_object_set_piece(struct ds_object *object, const uint8_t *data, uint64_t length, struct ds_blob *owner)
{
    object->one = (struct ds_piece){.data = data, .length = length, .owner = owner};
    object->pieces = &object->one;
    object->n_pieces = 1;
    object->size = length;
}

int ds_object_set_attribute(struct ds_object *object, enum ds_attribute attribute, const char *value)
{
    char *copy = value ? strdup(value) : NULL;
    if (value && !copy) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
        return -1;
    }
    free(object->attributes[attribute]);
    object->attributes[attribute] = copy;
    return 0;
}

int ds_object_copy_attributes(struct ds_object *to, const struct ds_object *from)
{
    for (int i = 0; i < MR_ATTR_COUNT; i++) {
        if (ds_object_set_attribute(to, (enum ds_attribute)i, from->attributes[i]) < 0)
            return -1;
    }
    return 0;
}

struct ds_object *ds_object_stub(const struct ds_object *object)
{
    struct ds_object *stub = ds_object_new(object->name);
    if (!stub || ds_object_copy_attributes(stub, object) < 0) {
        ds_object_unref(stub);
        return NULL;
    }
    atomic_store_explicit(&stub->crc, atomic_load_explicit(&object->crc, memory_order_relaxed), memory_order_relaxed);
    stub->generation = object->generation;
    stub->metageneration = object->metageneration;
    stub->size = object->size;
    stub->created_us = object->created_us;
    stub->updated_us = object->updated_us;
    stub->component_count = object->component_count;
    stub->has_md5 = object->has_md5;
    memcpy(stub->md5, object->md5, sizeof stub->md5);
    stub->s3 = ds_s3_info_ref(object->s3);
    return stub;
}

struct ds_object *ds_object_copy_of(const struct ds_object *object)
{
    struct ds_object *copy = ds_object_stub(object);
    if (!copy)
        return NULL;
    copy->made_up = object->made_up;
    copy->mtime_ns = object->mtime_ns;
    copy->path = object->path ? strdup(object->path) : NULL;
    copy->pieces = object->n_pieces > 1 ? calloc(object->n_pieces, sizeof *copy->pieces) : &copy->one;
    if ((object->path && !copy->path) || !copy->pieces) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object");
        ds_object_unref(copy);
        return NULL;
    }
    for (size_t i = 0; i < object->n_pieces; i++) {
        copy->pieces[i] = object->pieces[i];
        ds_blob_ref(copy->pieces[i].owner);
        copy->n_pieces++;
    }
    return copy;
}

void ds_object_set_crc(struct ds_object *object, uint32_t crc)
{
    /* One word holds value and flag, so relaxed is enough: a thread that sees the flag sees the value. */
    atomic_store_explicit(&object->crc, CRC_KNOWN | crc, memory_order_relaxed);
}

static int crc_of_file(const struct ds_object *object, uint32_t *crc)
{
    enum { BLOCK = 1 << 18 };
    int rc = -1, fd = -1;
    uint32_t sum = 0;
    char *block = malloc(BLOCK);
    if (!block) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to read \"%s\"", object->path);
        return -1;
    }
    fd = ds_object_open(object);
    if (fd < 0)
        goto out;
    for (uint64_t at = 0; at < object->size;) {
        size_t n = object->size - at < BLOCK ? (size_t)(object->size - at) : BLOCK;
        if (ds_object_read(object, fd, at, block, n) < 0)
            goto out;
        sum = mr_crc32c(sum, block, n);
        at += n;
    }
    *crc = sum;
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    free(block);
    return rc;
}

int ds_object_crc(struct ds_object *object, uint32_t *crc)
{
    uint64_t known = atomic_load_explicit(&object->crc, memory_order_relaxed);
    if (known & CRC_KNOWN) {
        *crc = (uint32_t)known;
        return 0;
    }
    uint32_t sum = 0;
    if (object->path && crc_of_file(object, &sum) < 0)
        return -1;
    if (object->made_up)
        sum = object->made_up->crc(object->made_up, object->one.data, object->size);
    for (size_t i = 0; !object->path && !object->made_up && i < object->n_pieces; i++)
        sum = mr_crc32c(sum, object->pieces[i].data, object->pieces[i].length);
    ds_object_set_crc(object, sum);
    *crc = sum;
    return 0;
}

/* 0 if it is still the object's file, or -1 (CHANGED). */
static int same_file(const struct ds_object *object, const struct stat *st)
{
    if (st->st_mtim.tv_sec * MR_SECOND_NS + st->st_mtim.tv_nsec == object->mtime_ns &&
        (uint64_t)st->st_size == object->size && S_ISREG(st->st_mode))
        return 0;
    mr_error_set(MR_E_CHANGED, "\"%s\" was changed by another program", object->path);
    return -1;
}

int ds_object_check(const struct ds_object *object)
{
    struct stat st;
    if (stat(object->path, &st) < 0) {
        mr_error_set_errno(errno, "cannot stat \"%s\"", object->path);
        return -1;
    }
    return same_file(object, &st);
}

int ds_object_open(const struct ds_object *object)
{
    int fd = open(object->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot open \"%s\"", object->path);
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) < 0)
        mr_error_set_errno(errno, "cannot stat \"%s\"", object->path);
    else if (same_file(object, &st) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Copies bytes [offset, offset + length) of an object in memory, which must have them. */
static void copy_bytes(const struct ds_object *object, uint64_t offset, void *to, size_t length)
{
    char *out = to;
    for (size_t i = 0; i < object->n_pieces && length > 0; i++) {
        const struct ds_piece *piece = &object->pieces[i];
        if (offset >= piece->length) {
            offset -= piece->length;
            continue;
        }
        size_t n = piece->length - offset < length ? (size_t)(piece->length - offset) : length;
        memcpy(out, piece->data + offset, n);
        out += n;
        length -= n;
        offset = 0;
    }
}

int ds_object_read(const struct ds_object *object, int fd, uint64_t offset, void *to, size_t length)
{
    char *out = to;
    if (!object->path) {
        copy_bytes(object, offset, to, length);
        return 0;
    }
    while (length > 0) {
        ssize_t n = pread(fd, out, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            mr_error_set_errno(errno, "cannot read \"%s\"", object->path);
            return -1;
        }
        if (n == 0) {
            mr_error_set(MR_E_CHANGED, "\"%s\" became shorter while it was read", object->path);
            return -1;
        }
        out += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
    }
    return 0;
}
