/* s3_copy.h - what CopyObject and UploadPartCopy have in common: the source that a header names. */
#ifndef MR_DEVSTORE_S3_COPY_H
#define MR_DEVSTORE_S3_COPY_H

#include "devstore/api.h"
#include "devstore/s3_sums.h"

/*
 * Gives take the bytes of x-amz-copy-source, those of x-amz-copy-source-range if there is one. 0, or -1 with the reply.
 */
int mr_s3_copy_bytes(const struct mr_api *api, const struct mr_request *request, const char *source,
                     int (*take)(void *cls, const void *bytes, size_t length), void *cls, struct mr_reply *reply);
/* <ROOT> with ETag, time and checksum. */
void mr_s3_copy_result(const struct mr_api *api, struct mr_text *out, const char *root, const char *etag,
                       int64_t microseconds, enum mr_s3_algorithm algorithm, const char *sum);

#endif
