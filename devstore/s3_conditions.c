#include "devstore/s3_conditions.h"

#include <string.h>

#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"

int ds_s3_check_read(const struct ds_request *request, const char *etag, struct ds_reply *reply)
{
    const char *match = ds_request_header(request, "If-Match"), *none = ds_request_header(request, "If-None-Match");
    if (match && !ds_s3_etag_listed(match, etag)) {
        ds_s3_error(reply, request, "PreconditionFailed");
        ds_s3_error_add(reply, "Condition", "If-Match");
        return -1;
    }
    if (!none || !ds_s3_etag_listed(none, etag))
        return 0;
    ds_s3_error(reply, request, "NotModified");
    ds_reply_header(reply, "ETag", "\"%s\"", etag);
    return -1;
}

int ds_s3_check_write(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *none = ds_request_header(request, "If-None-Match");
    if (!none || api->s3->ignore_conditions || (strcmp(none, "*") == 0 && !ds_request_header(request, "If-Match")))
        return 0;
    ds_s3_error(reply, request, "NotImplemented");
    return -1;
}

int ds_s3_write_conditions(const struct ds_api *api, const struct ds_request *request, struct ds_bucket *bucket,
                           struct ds_conditions *conditions, struct ds_reply *reply)
{
    const char *match = ds_request_header(request, "If-Match"), *none = ds_request_header(request, "If-None-Match");
    memset(conditions, 0, sizeof *conditions);
    if ((!match && !none) || api->s3->ignore_conditions)
        return 0;
    struct ds_object *live = ds_bucket_get(bucket, request->object);
    char etag[48] = "";
    if (live)
        ds_s3_etag(live, false, etag);
    conditions->has = MR_IF_GENERATION;
    conditions->generation = live ? live->generation : 0;
    ds_object_unref(live);
    if (match && !live) {
        ds_s3_error(reply, request, "NoSuchKey");
        return -1;
    }
    if (match ? ds_s3_etag_listed(match, etag) : !live)
        return 0;
    ds_s3_error(reply, request, "PreconditionFailed");
    ds_s3_error_add(reply, "Condition", match ? "If-Match" : "If-None-Match");
    return -1;
}

void ds_s3_write_failed(const struct ds_request *request, struct ds_reply *reply)
{
    if (mr_error_code() == MR_E_CHANGED) /* another writer was faster */
        ds_s3_error(reply, request, "PreconditionFailed");
    else
        ds_reply_from_error(reply, request);
}
