#include "devstore/s3_conditions.h"

#include <string.h>

#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"

int mr_s3_check_read(const struct mr_request *request, const char *etag, struct mr_reply *reply)
{
    const char *match = mr_request_header(request, "If-Match"), *none = mr_request_header(request, "If-None-Match");
    if (match && !mr_s3_etag_listed(match, etag)) {
        mr_s3_error(reply, request, "PreconditionFailed");
        mr_s3_error_add(reply, "Condition", "If-Match");
        return -1;
    }
    if (!none || !mr_s3_etag_listed(none, etag))
        return 0;
    mr_s3_error(reply, request, "NotModified");
    mr_reply_header(reply, "ETag", "\"%s\"", etag);
    return -1;
}

int mr_s3_check_write(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    const char *none = mr_request_header(request, "If-None-Match");
    if (!none || api->s3->ignore_conditions || (strcmp(none, "*") == 0 && !mr_request_header(request, "If-Match")))
        return 0;
    mr_s3_error(reply, request, "NotImplemented");
    return -1;
}

int mr_s3_write_conditions(const struct mr_api *api, const struct mr_request *request, struct mr_bucket *bucket,
                           struct mr_conditions *conditions, struct mr_reply *reply)
{
    const char *match = mr_request_header(request, "If-Match"), *none = mr_request_header(request, "If-None-Match");
    memset(conditions, 0, sizeof *conditions);
    if ((!match && !none) || api->s3->ignore_conditions)
        return 0;
    struct mr_object *live = mr_bucket_get(bucket, request->object);
    char etag[48] = "";
    if (live)
        mr_s3_etag(live, false, etag);
    conditions->has = MR_IF_GENERATION;
    conditions->generation = live ? live->generation : 0;
    mr_object_unref(live);
    if (match && !live) {
        mr_s3_error(reply, request, "NoSuchKey");
        return -1;
    }
    if (match ? mr_s3_etag_listed(match, etag) : !live)
        return 0;
    mr_s3_error(reply, request, "PreconditionFailed");
    mr_s3_error_add(reply, "Condition", match ? "If-Match" : "If-None-Match");
    return -1;
}

void mr_s3_write_failed(const struct mr_request *request, struct mr_reply *reply)
{
    if (mr_error_code() == MR_E_CHANGED) /* somebody else was faster */
        mr_s3_error(reply, request, "PreconditionFailed");
    else
        mr_reply_from_error(reply, request);
}
