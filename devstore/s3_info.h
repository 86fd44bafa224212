/*
 * s3_info.h - what S3 reports of an object and GCS does not: the ETag of a multipart upload, its parts, the checksum
 * that came with it. Never changed once it is made; the copies of an object share it. An object that no S3 client made
 * has none: its ETag is its MD5, or derived from its generation, and its checksum is its crc32c.
 */
#ifndef MR_DEVSTORE_S3_INFO_H
#define MR_DEVSTORE_S3_INFO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/s3_sums.h"

struct ds_object;

struct ds_s3_part_info {
    uint64_t end; /* the byte after it */
    char sum[MR_S3_SUM_MAX];
};

struct ds_s3_info {
    atomic_uint refs;
    char etag[48]; /* without quotes; "": the MD5, or what is derived from the generation */
    enum ds_s3_algorithm algorithm;
    bool composite; /* the checksum is one of the parts' checksums */
    char sum[MR_S3_SUM_MAX];
    size_t n_parts; /* 0: it was no multipart upload */
    struct ds_s3_part_info parts[];
};

/* Of one reference, all zero. NULL: no memory. */
struct ds_s3_info *ds_s3_info_new(size_t n_parts);
struct ds_s3_info *ds_s3_info_ref(struct ds_s3_info *info); /* NULL gives NULL */
void ds_s3_info_unref(struct ds_s3_info *info);             /* NULL is allowed */

/* ---- s3_etag.c ---- */

/* The object's ETag without quotes. changed: a different one (a fault). */
void ds_s3_etag(const struct ds_object *object, bool changed, char etag[48]);
/* Whether the list of an If-Match header, or any ETag that a client sends, names this one; "*" names any. */
bool ds_s3_etag_listed(const char *list, const char *etag);
/* The object's checksum: its algorithm, or NONE with an error (its file changed). May read the file once. */
enum ds_s3_algorithm ds_s3_object_sum(struct ds_object *object, char text[MR_S3_SUM_MAX], bool *composite);

#endif
