/*
 * s3_sums.h - the checksums that S3 knows: of bytes as they arrive, combined from those of parts, and as headers.
 * https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
 */
#ifndef MR_DEVSTORE_S3_SUMS_H
#define MR_DEVSTORE_S3_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/request.h"

struct ds_api;

enum ds_s3_algorithm {
    MR_S3_NONE,
    MR_S3_CRC32,
    MR_S3_CRC32C,
    MR_S3_CRC64NVME,
    MR_S3_SHA1,
    MR_S3_SHA256,
    MR_S3_ALGORITHMS
};
#define MR_S3_SUM_MAX 56 /* bytes of one as text: the base64 of a SHA-256, "-10000" and a NUL */

/* "CRC32C", "x-amz-checksum-crc32c" and "ChecksumCRC32C"; of NONE "". */
extern const char *const ds_s3_algorithm_names[MR_S3_ALGORITHMS];
extern const char *const ds_s3_sum_headers[MR_S3_ALGORITHMS];
extern const char *const ds_s3_sum_elements[MR_S3_ALGORITHMS];
/* By any of these names, in any case; NONE: it is not such a name. */
enum ds_s3_algorithm ds_s3_algorithm(const char *name);
/* Raw bytes of one. */
size_t ds_s3_sum_size(enum ds_s3_algorithm algorithm);

struct evp_md_ctx_st;

struct ds_s3_sums {
    unsigned wanted; /* a bit for each algorithm */
    uint32_t crc32, crc32c;
    uint64_t crc64;
    struct evp_md_ctx_st *sha1, *sha256;
};
/* 0, or -1: no memory. Close it in either case. */
int ds_s3_sums_init(struct ds_s3_sums *sums, unsigned wanted);
void ds_s3_sums_write(struct ds_s3_sums *sums, const void *bytes, size_t length);
/* The sum of all that was written; raw has room for 32 bytes. Of a SHA it can be asked for only once. */
void ds_s3_sums_raw(struct ds_s3_sums *sums, enum ds_s3_algorithm algorithm, uint8_t *raw);
void ds_s3_sums_close(struct ds_s3_sums *sums);

void ds_s3_sum_to_text(enum ds_s3_algorithm algorithm, const uint8_t *raw, char text[MR_S3_SUM_MAX]);
/* 0, or -1: it is not the base64 of such a sum. */
int ds_s3_sum_from_text(enum ds_s3_algorithm algorithm, const char *text, uint8_t *raw);
/* CRCs only: the sum of a followed by b becomes a. */
void ds_s3_sum_join(enum ds_s3_algorithm algorithm, uint8_t *a, const uint8_t *b, uint64_t length_b);

/* The sum that a request's headers give of its body, if any. */
struct ds_s3_given {
    enum ds_s3_algorithm algorithm; /* NONE: none */
    bool in_trailer;                /* it comes after the body */
    char text[MR_S3_SUM_MAX];
};
/* 0, or -1 with the reply: it is malformed, or there are two. A store that ignores sums finds none. */
int ds_s3_given(const struct ds_api *api, const struct ds_request *request, struct ds_s3_given *given,
                struct ds_reply *reply);

#endif
