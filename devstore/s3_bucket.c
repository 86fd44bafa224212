/* s3_bucket.c - ListBuckets, CreateBucket, HeadBucket, GetBucketLocation and CreateSession. */
#include <string.h>

#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

/* The continuation token is the name of the last bucket of the page before. */
static void list(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *prefix = ds_request_query(request, "prefix"), *name, *last = NULL;
    const char *token = ds_request_query(request, "continuation-token");
    struct ds_text *out = &reply->body;
    unsigned most;
    if (ds_s3_page(request, "max-buckets", &most, reply) < 0)
        return;
    ds_xml_begin(out, "ListAllMyBucketsResult");
    ds_text_puts(out, "<Owner><ID>devstore</ID><DisplayName>devstore</DisplayName></Owner><Buckets>");
    for (name = token ? token : ""; (name = ds_buckets_next(api->buckets, name));) {
        if (prefix && strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        if (most-- == 0)
            break;
        ds_text_puts(out, "<Bucket>");
        ds_xml_put(out, "Name", name);
        ds_xml_time(out, "CreationDate", ds_bucket_created_us(ds_buckets_find(api->buckets, name)));
        ds_xml_put(out, "BucketRegion", ds_s3_region(api->s3));
        ds_text_puts(out, "</Bucket>");
        last = name;
    }
    ds_text_puts(out, "</Buckets>");
    if (prefix)
        ds_xml_put(out, "Prefix", prefix);
    if (name && last)
        ds_xml_put(out, "ContinuationToken", last);
    ds_text_puts(out, "</ListAllMyBucketsResult>");
    ds_s3_xml(reply);
}

static void create(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    if (ds_buckets_create(api->buckets, request->bucket, NULL) == 0)
        ds_reply_header(reply, "Location", "/%s", request->bucket);
    else if (mr_error_code() == MR_E_EXISTS)
        ds_s3_error(reply, request, "BucketAlreadyOwnedByYou");
    else if (mr_error_code() == MR_E_USAGE)
        ds_s3_error(reply, request, "InvalidBucketName");
    else
        ds_reply_from_error(reply, request);
}

/* us-east-1 has no name here. */
static void put_location(const struct ds_api *api, struct ds_reply *reply)
{
    const char *region = ds_s3_region(api->s3);
    ds_xml_begin(&reply->body, "LocationConstraint");
    ds_xml_text(&reply->body, strcmp(region, "us-east-1") == 0 ? "" : region);
    ds_text_puts(&reply->body, "</LocationConstraint>");
    ds_s3_xml(reply);
}

void ds_s3_buckets(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    if (!request->bucket) {
        list(api, request, reply);
        return;
    }
    if (strcmp(request->method, "PUT") == 0) {
        create(api, request, reply);
        return;
    }
    if (!ds_api_bucket(api, request, reply))
        return;
    ds_reply_header(reply, "x-amz-bucket-region", "%s", ds_s3_region(api->s3));
    if (strcmp(request->method, "GET") == 0)
        put_location(api, reply);
    else
        ds_s3_xml(reply);
}

void ds_s3_session(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    if (!ds_api_bucket(api, request, reply))
        return;
    if (!ds_s3_is_express(request->bucket)) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "CreateSession is for directory buckets: names end in --x-s3");
        return;
    }
    struct ds_s3_session_key key;
    int64_t until = ds_s3_now(api->s3) + (int64_t)api->s3->session_s;
    struct ds_text *out = &reply->body;
    ds_s3_session_make(api->s3, until, &key);
    ds_xml_begin(out, "CreateSessionResult");
    ds_text_puts(out, "<Credentials>");
    ds_xml_put(out, "SessionToken", key.token);
    ds_xml_put(out, "SecretAccessKey", key.secret);
    ds_xml_put(out, "AccessKeyId", key.id);
    ds_xml_time(out, "Expiration", until * 1000000);
    ds_text_puts(out, "</Credentials></CreateSessionResult>");
    ds_s3_xml(reply);
}
