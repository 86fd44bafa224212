/*
 * aws_sign.h - Signature Version 4 for requests to AWS services, and to all stores that speak S3
 * (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html).
 *
 * The URL is signed as it is: its path and query must be encoded already, and are not normalised, as S3 requires.
 */
#ifndef MR_WORKER_STORE_AWS_SIGN_H
#define MR_WORKER_STORE_AWS_SIGN_H

#include <stddef.h>
#include <stdint.h>

#include "worker/store/text.h"

/* Caches the signing key of a day and region, and buffers. To be used by one thread. */
struct mr_aws_signer;

/* NULL with mr_error (NO_MEMORY). */
struct mr_aws_signer *mr_aws_signer_new(void);
/* Overwrites what it has cached. NULL is allowed. */
void mr_aws_signer_destroy(struct mr_aws_signer *signer);

struct mr_aws_sign {
    const char *access_key_id, *secret_access_key, *session_token; /* the last may be NULL */
    const char *region;
    const char *service; /* NULL: the first label of the host */
    const char *method, *url, *body;
    size_t body_length;
    const char *payload;      /* the value of x-amz-content-sha256; NULL: the body's SHA-256 is computed */
    const char *const *lines; /* "Name: value": signed besides Host, X-Amz-Date and X-Amz-Security-Token */
    unsigned line_count;
    const char *date;             /* "20260102T030405Z" */
    struct mr_aws_signer *signer; /* NULL: nothing is cached */
};

/*
 * Appends the value of the Authorization header. The request must have the headers Host, X-Amz-Date (date), lines, and
 * X-Amz-Security-Token if there is one. 0, or -1 with mr_error: DENIED for a URL without a host, USAGE for more lines
 * or parameters than there is room for.
 */
int mr_aws_sign(struct mr_text *to, const struct mr_aws_sign *request);
/* The SHA-256 of a body, in hex, as payload. */
#define MR_AWS_PAYLOAD_SIZE 65
int mr_aws_payload(const void *const *pieces, const size_t *lengths, unsigned count, char out[MR_AWS_PAYLOAD_SIZE]);
/* The value of the Host header for url. Returns out. */
const char *mr_aws_sign_host(const char *url, char *out, size_t size);
/* Now, as date. */
#define MR_AWS_DATE_SIZE 20
void mr_aws_sign_date(char out[MR_AWS_DATE_SIZE]);
/* The time offset_s after now, as date. */
void mr_aws_sign_date_at(int64_t offset_s, char out[MR_AWS_DATE_SIZE]);

#endif
