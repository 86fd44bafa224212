/*
 * object.h - one generation of one object: its metadata and where its bytes are.
 *
 * An object never changes once it is in a bucket, except for two things that are safe to race on: the reference count
 * and the crc32c, which is computed when it is first needed. A new upload is a new object; readers of the old one keep
 * their reference and the old bytes.
 */
#ifndef MR_DEVSTORE_OBJECT_H
#define MR_DEVSTORE_OBJECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_NAME_MAX 1024 /* bytes of an object name: GCS's limit */

/* Bytes in memory that several objects may share (a composite points into its sources). */
struct ds_blob {
    atomic_uint refs;
    uint8_t *data; /* malloc'ed, owned */
};
/* Takes data, which must be from malloc. NULL when there is no memory: data is still the caller's. */
struct ds_blob *ds_blob_new(uint8_t *data);
struct ds_blob *ds_blob_ref(struct ds_blob *blob); /* NULL gives NULL */

struct ds_piece {
    const uint8_t *data;
    uint64_t length;
    struct ds_blob *owner; /* NULL: the bytes outlive every object (a synthetic bucket's slab) */
};

/* What a client may set about an object; each is NULL or a string. METADATA holds the text of a JSON object. */
enum ds_attribute {
    MR_ATTR_CONTENT_TYPE,
    MR_ATTR_CONTENT_ENCODING,
    MR_ATTR_CONTENT_DISPOSITION,
    MR_ATTR_CONTENT_LANGUAGE,
    MR_ATTR_CACHE_CONTROL,
    MR_ATTR_CUSTOM_TIME,
    MR_ATTR_STORAGE_CLASS,
    MR_ATTR_METADATA,
    MR_ATTR_COUNT
};
extern const char *const ds_attribute_names[MR_ATTR_COUNT]; /* as in the JSON resource: "contentType", ... */

/* Where made-up bytes come from: the first member of struct ds_synthetic. It outlives the objects. crc: of an object's
 * bytes. */
struct ds_made_up {
    uint32_t (*crc)(const struct ds_made_up *of, const uint8_t *data, uint64_t size);
};

struct ds_s3_info;

struct ds_object {
    atomic_uint refs;
    atomic_uint_fast64_t crc; /* bit 32: known; low half: the crc32c */
    uint64_t generation, metageneration, size;
    int64_t created_us, updated_us; /* since 1970 */
    unsigned component_count;       /* 0: not a composite */
    bool has_md5;                   /* of what was uploaded in one piece by us; a file found at start has none */
    uint8_t md5[16];
    struct ds_s3_info *s3;            /* what only S3 reports of it; NULL: nothing */
    const struct ds_made_up *made_up; /* knows the crc32c of its one piece; otherwise NULL */
    bool deleted;                     /* a tombstone: hides a synthetic object of this name */
    char *attributes[MR_ATTR_COUNT];
    /* The bytes: path != NULL is a file, otherwise the pieces in order. */
    char *path;
    int64_t mtime_ns; /* of the file, when it was opened first: another value means that another program changed it */
    struct ds_piece *pieces; /* &one or malloc'ed */
    size_t n_pieces;
    struct ds_piece one;
    char name[];
};

/* A new object of one reference with no bytes. NULL: no memory. */
struct ds_object *ds_object_new(const char *name);
struct ds_object *ds_object_new_n(const char *name, size_t length);
struct ds_object *ds_object_ref(struct ds_object *object);
void ds_object_unref(struct ds_object *object); /* NULL is allowed */
/* Sets the bytes to one piece; takes over the caller's reference to owner. */
void ds_object_set_piece(struct ds_object *object, const uint8_t *data, uint64_t length, struct ds_blob *owner);
/* A copy of the value; NULL removes. 0, or -1 (NO_MEMORY). */
int ds_object_set_attribute(struct ds_object *object, enum ds_attribute attribute, const char *value);
/* A copy of everything but the bytes: enough to describe it. NULL: no memory. */
struct ds_object *ds_object_stub(const struct ds_object *object);
/* A copy with the same bytes, under the same generation. NULL: no memory. */
struct ds_object *ds_object_copy_of(const struct ds_object *object);
int ds_object_copy_attributes(struct ds_object *to, const struct ds_object *from);

void ds_object_set_crc(struct ds_object *object, uint32_t crc);
/* The crc32c, computed and kept on first use (this reads the whole file). 0 or -1 with an error. May block on disk. */
int ds_object_crc(struct ds_object *object, uint32_t *crc);

/* 0 while an object's file is as it was when mtime_ns was taken; otherwise -1 (CHANGED, NOT_FOUND). Only for objects
 * with a path. */
int ds_object_check(const struct ds_object *object);
/*
 * Opens an object's file for reading: a descriptor, or -1 with CHANGED when the file is no longer the one that was
 * looked at, NOT_FOUND when it no longer exists. Only for objects with a path.
 */
int ds_object_open(const struct ds_object *object);
/* Reads bytes of any object into a buffer. fd: from ds_object_open, or -1 for one in memory. 0 or -1. */
int ds_object_read(const struct ds_object *object, int fd, uint64_t offset, void *to, size_t length);

#endif
