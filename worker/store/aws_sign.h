/* aws_sign.h - Signature Version 4 of a request to a service of AWS that is not S3
 * (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html). */
#ifndef MR_WORKER_STORE_AWS_SIGN_H
#define MR_WORKER_STORE_AWS_SIGN_H

#include <stddef.h>

#include "worker/store/text.h"

struct mr_aws_sign {
    const char *access_key_id, *secret_access_key, *session_token; /* the last may be NULL */
    const char *region;
    const char *service; /* NULL: the first label of the host */
    const char *method, *url, *body;
    size_t body_length;
    const char *date; /* "20260102T030405Z" */
};

/*
 * Adds the value of the Authorization line: the request must have the headers Host, X-Amz-Date (date), and
 * X-Amz-Security-Token where there is one. 0, or -1 with mr_error: DENIED for a URL without a host.
 */
int mr_aws_sign(struct mr_text *to, const struct mr_aws_sign *request);
/* The value of the Host line for url. Returns out. */
const char *mr_aws_sign_host(const char *url, char *out, size_t size);
/* Now, as date. */
#define MR_AWS_DATE_SIZE 20
void mr_aws_sign_date(char out[MR_AWS_DATE_SIZE]);

#endif
