/* s3_error.h - S3's errors: an XML body, and a status and a message that follow from the code. */
#ifndef MR_DEVSTORE_S3_ERROR_H
#define MR_DEVSTORE_S3_ERROR_H

#include "devstore/request.h"

/* The status of a code, or 0 where it is none of S3's. */
unsigned ds_s3_error_status(const char *code);
/* S3's message for the code; "" where it is none of S3's. */
const char *ds_s3_error_message(const char *code);
/* Replaces what is in the reply by the error, with S3's message. */
void ds_s3_error(struct ds_reply *reply, const struct ds_request *request, const char *code);
/* The same with a message. */
void ds_s3_error_said(struct ds_reply *reply, const struct ds_request *request, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds one more element to the body of an error. */
void ds_s3_error_add(struct ds_reply *reply, const char *name, const char *value);

#endif
