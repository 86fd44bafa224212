/* s3_bucket.c - ListBuckets, CreateBucket, HeadBucket, GetBucketLocation and CreateSession. */
#include <string.h>

#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

/* Its continuation token is the name of the last bucket of the page before. */
static void list(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    const char *prefix = mr_request_query(request, "prefix"), *name, *last = NULL;
    const char *token = mr_request_query(request, "continuation-token");
    struct mr_text *out = &reply->body;
    unsigned most;
    if (mr_s3_page(request, "max-buckets", &most, reply) < 0)
        return;
    mr_xml_begin(out, "ListAllMyBucketsResult");
    mr_text_puts(out, "<Owner><ID>devstore</ID><DisplayName>devstore</DisplayName></Owner><Buckets>");
    for (name = token ? token : ""; (name = mr_buckets_next(api->buckets, name));) {
        if (prefix && strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        if (most-- == 0)
            break;
        mr_text_puts(out, "<Bucket>");
        mr_xml_put(out, "Name", name);
        mr_xml_time(out, "CreationDate", mr_bucket_created_us(mr_buckets_find(api->buckets, name)));
        mr_xml_put(out, "BucketRegion", mr_s3_region(api->s3));
        mr_text_puts(out, "</Bucket>");
        last = name;
    }
    mr_text_puts(out, "</Buckets>");
    if (prefix)
        mr_xml_put(out, "Prefix", prefix);
    if (name && last)
        mr_xml_put(out, "ContinuationToken", last);
    mr_text_puts(out, "</ListAllMyBucketsResult>");
    mr_s3_xml(reply);
}

static void create(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    if (mr_buckets_create(api->buckets, request->bucket, NULL) == 0)
        mr_reply_header(reply, "Location", "/%s", request->bucket);
    else if (mr_error_code() == MR_E_EXISTS)
        mr_s3_error(reply, request, "BucketAlreadyOwnedByYou");
    else if (mr_error_code() == MR_E_USAGE)
        mr_s3_error(reply, request, "InvalidBucketName");
    else
        mr_reply_from_error(reply, request);
}

/* us-east-1 has no name here. */
static void put_location(const struct mr_api *api, struct mr_reply *reply)
{
    const char *region = mr_s3_region(api->s3);
    mr_xml_begin(&reply->body, "LocationConstraint");
    mr_xml_text(&reply->body, strcmp(region, "us-east-1") == 0 ? "" : region);
    mr_text_puts(&reply->body, "</LocationConstraint>");
    mr_s3_xml(reply);
}

void mr_s3_buckets(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    if (!request->bucket) {
        list(api, request, reply);
        return;
    }
    if (strcmp(request->method, "PUT") == 0) {
        create(api, request, reply);
        return;
    }
    if (!mr_api_bucket(api, request, reply))
        return;
    mr_reply_header(reply, "x-amz-bucket-region", "%s", mr_s3_region(api->s3));
    if (strcmp(request->method, "GET") == 0)
        put_location(api, reply);
    else
        mr_s3_xml(reply);
}

void mr_s3_session(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    if (!mr_api_bucket(api, request, reply))
        return;
    if (!mr_s3_is_express(request->bucket)) {
        mr_s3_error_said(reply, request, "InvalidRequest",
                         "CreateSession is for directory buckets: names end in --x-s3");
        return;
    }
    struct mr_s3_session_key key;
    int64_t until = mr_s3_now(api->s3) + (int64_t)api->s3->session_s;
    struct mr_text *out = &reply->body;
    mr_s3_session_make(api->s3, until, &key);
    mr_xml_begin(out, "CreateSessionResult");
    mr_text_puts(out, "<Credentials>");
    mr_xml_put(out, "SessionToken", key.token);
    mr_xml_put(out, "SecretAccessKey", key.secret);
    mr_xml_put(out, "AccessKeyId", key.id);
    mr_xml_time(out, "Expiration", until * 1000000);
    mr_text_puts(out, "</Credentials></CreateSessionResult>");
    mr_s3_xml(reply);
}
