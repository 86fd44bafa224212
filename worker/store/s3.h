/* s3.h - the options of an s3 store besides its bucket; versions of its objects. */
#ifndef MR_WORKER_STORE_S3_H
#define MR_WORKER_STORE_S3_H

#include <stdbool.h>
#include <stdint.h>

enum mr_s3_addressing { MR_S3_ADDRESSING_AUTO, MR_S3_ADDRESSING_PATH, MR_S3_ADDRESSING_VIRTUAL };
enum mr_s3_checksums { MR_S3_CHECKSUMS_AUTO, MR_S3_CHECKSUMS_ALWAYS, MR_S3_CHECKSUMS_NEVER };
enum mr_s3_encryption {
    MR_S3_ENCRYPTION_NONE,
    MR_S3_ENCRYPTION_AES256,
    MR_S3_ENCRYPTION_KMS,
    MR_S3_ENCRYPTION_KMS_DSSE
};

/* Strings may be NULL or "". */
struct mr_s3_options {
    const char *region;  /* else what the environment and the AWS files say, else us-east-1 */
    const char *profile; /* of the AWS files */
    enum mr_s3_addressing addressing;
    enum mr_s3_checksums checksums; /* AUTO: sent to AWS only, and requested everywhere */
    enum mr_s3_encryption encryption;
    const char *kms_key_id;
    const char *customer_key_file; /* 32 bytes: SSE-C */
    bool requester_pays;
    bool cleartext; /* as in mr_aws_options */
};

/* The version of an object with this ETag, with or without its quotes: FNV-1a of the bytes between the quotes, mixed
 * (mr_mix64), without the highest bit; 1 if that is 0. So no version is 0 or negative. */
uint64_t mr_s3_generation(const char *etag);

/* The URL of the service: the configured endpoint (NULL or "": none), else what the environment and the AWS files name;
 * *endpoint NULL: AWS's own. 0, or -1 with mr_error. The caller frees it. */
int mr_s3_endpoint(const char *configured, const char *profile, char **endpoint);

#endif
