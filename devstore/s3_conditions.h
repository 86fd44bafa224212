/* s3_conditions.h - If-Match and the like, for reads and for writes. */
#ifndef MR_DEVSTORE_S3_CONDITIONS_H
#define MR_DEVSTORE_S3_CONDITIONS_H

#include "devstore/api.h"

struct ds_bucket;

/* For reads. 0, or -1 with the reply: 412 or 304. */
int ds_s3_check_read(const struct ds_request *request, const char *etag, struct ds_reply *reply);
/* Refuses a write with conditions that S3 does not have: 0, or -1 with the reply. */
int ds_s3_check_write(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
/*
 * The conditions for a write of request->object, as generations: the live object is looked at now, and ds_bucket_put
 * then requires that it is still the same. 0, or -1 with the reply: 412, or 404 where there is none.
 */
int ds_s3_write_conditions(const struct ds_api *api, const struct ds_request *request, struct ds_bucket *bucket,
                           struct ds_conditions *conditions, struct ds_reply *reply);
/* The reply to a write that ds_bucket_put refused, from this thread's error. */
void ds_s3_write_failed(const struct ds_request *request, struct ds_reply *reply);

#endif
