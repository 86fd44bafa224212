/* s3_conditions.h - If-Match and its like, on what is read and on what is written. */
#ifndef MR_DEVSTORE_S3_CONDITIONS_H
#define MR_DEVSTORE_S3_CONDITIONS_H

#include "devstore/api.h"

struct mr_bucket;

/* Of what is read. 0, or -1 with the reply: 412 or 304. */
int mr_s3_check_read(const struct mr_request *request, const char *etag, struct mr_reply *reply);
/* Whether a request that writes its object has conditions that are none: 0, or -1 with the reply. */
int mr_s3_check_write(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
/*
 * What must hold for a write of request->object, as generations: the live object is looked at now, and what
 * mr_bucket_put is given holds it to be the same then. 0, or -1 with the reply: 412, or 404 where there is none.
 */
int mr_s3_write_conditions(const struct mr_api *api, const struct mr_request *request, struct mr_bucket *bucket,
                           struct mr_conditions *conditions, struct mr_reply *reply);
/* The reply to a write that mr_bucket_put refused, from this thread's error. */
void mr_s3_write_failed(const struct mr_request *request, struct mr_reply *reply);

#endif
