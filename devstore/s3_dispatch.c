/* Which requests are S3's, what each asks for, and which function answers it. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "devstore/s3.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_error.h"
#include "devstore/s3_sums.h"

/* ---- whose request it is ---- */

/* BUCKET.localhost and BUCKET.s3.localhost, with or without a port. */
static bool host_bucket(const struct ds_request *request, char bucket[256])
{
    static const char *const ends[] = {".s3.localhost", ".localhost"};
    const char *host = ds_request_header(request, "Host");
    size_t length = host ? strcspn(host, ":") : 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);
        if (length <= n || length - n >= 256 || strncasecmp(host + length - n, ends[i], n) != 0)
            continue;
        memcpy(bucket, host, length - n);
        bucket[length - n] = 0;
        return strcasecmp(bucket, "s3") != 0 && ds_utf8_valid(bucket, length - n);
    }
    return false;
}

static void look_for_header(void *cls, const char *name, const char *value)
{
    bool *found = cls;
    (void)value;
    *found |= strncasecmp(name, "x-amz-", 6) == 0;
}

/* Only S3's clients send such things. list-type=2 is not one of them: GCS's XML API has it too. */
static bool says_s3(const struct ds_request *request)
{
    const char *authorization = ds_request_header(request, "Authorization");
    bool found = authorization && strncmp(authorization, "AWS4-", 5) == 0;
    found |= ds_request_query(request, "X-Amz-Algorithm") || ds_request_query(request, "x-id");
    if (!found && request->each_header)
        request->each_header(request->header_cls, look_for_header, &found);
    return found;
}

/* ---- what it asks for ---- */

static void s3_dispatch_refuse(struct ds_request *request, const char *code)
{
    request->bad = (int)ds_s3_error_status(code);
    request->code = code;
    request->why = ds_s3_error_message(code);
}

static bool method_is(const struct ds_request *request, const char *method)
{
    return strcmp(request->method, method) == 0;
}

static void set_op(struct ds_request *request, bool allowed, enum ds_op op)
{
    if (allowed)
        request->op = op;
    else
        s3_dispatch_refuse(request, "MethodNotAllowed");
}

static bool asks_one_of(const struct ds_request *request, const char *const *names)
{
    for (; *names; names++) {
        if (ds_request_query(request, *names))
            return true;
    }
    return false;
}

static void route_bucket(struct ds_request *request)
{
    static const char *const others[] = {"accelerate",
                                         "acl",
                                         "analytics",
                                         "cors",
                                         "encryption",
                                         "inventory",
                                         "logging",
                                         "intelligent-tiering",
                                         "lifecycle",
                                         "metadataTable",
                                         "metrics",
                                         "policy",
                                         "notification",
                                         "object-lock",
                                         "ownershipControls",
                                         "policyStatus",
                                         "tagging",
                                         "publicAccessBlock",
                                         "replication",
                                         "requestPayment",
                                         "versioning",
                                         "website",
                                         "versions",
                                         "metadataConfiguration",
                                         NULL};
    bool get = method_is(request, "GET");
    if (asks_one_of(request, others))
        s3_dispatch_refuse(request, "NotImplemented");
    else if (method_is(request, "POST"))
        set_op(request, ds_request_query(request, "delete"), MR_OP_BATCH);
    else if (get && ds_request_query(request, "uploads"))
        request->op = MR_OP_UPLOADS;
    else if (get && ds_request_query(request, "session"))
        request->op = MR_OP_SESSION;
    else if (get && !ds_request_query(request, "location"))
        request->op = MR_OP_LIST;
    else if (method_is(request, "DELETE"))
        s3_dispatch_refuse(request, "NotImplemented");
    else
        set_op(request, get || method_is(request, "HEAD") || method_is(request, "PUT"), MR_OP_BUCKET);
}

static void route_object(struct ds_request *request)
{
    static const char *const others[] = {"acl",    "attributes", "legal-hold", "renameObject", "restore", "retention",
                                         "select", "tagging",    "torrent",    "versionId",    NULL};
    bool session = ds_request_query(request, "uploadId") != NULL;
    const char *version = ds_request_query(request, "versionId");
    if (ds_request_header(request, "x-amz-copy-source") ||
        (asks_one_of(request, others) && !(version && strcmp(version, "null") == 0)))
        s3_dispatch_refuse(request, "NotImplemented");
    else if (method_is(request, "GET"))
        request->op = session ? MR_OP_PARTS : MR_OP_GET;
    else if (method_is(request, "HEAD"))
        request->op = MR_OP_STAT;
    else if (method_is(request, "PUT") && session)
        request->op = MR_OP_PART;
    else if (method_is(request, "PUT"))
        request->op = MR_OP_UPLOAD;
    else if (method_is(request, "DELETE"))
        request->op = session ? MR_OP_ABORT : MR_OP_DELETE;
    else if (session)
        set_op(request, method_is(request, "POST"), MR_OP_COMPLETE);
    else
        set_op(request, method_is(request, "POST") && ds_request_query(request, "uploads"), MR_OP_INITIATE);
}

static char *decode(struct ds_request *request, const char *at, size_t length)
{
    char *text = ds_percent_decode(at, length, false);
    if (!text)
        s3_dispatch_refuse(request, "InvalidURI");
    else if (strlen(text) > MR_NAME_MAX)
        s3_dispatch_refuse(request, "KeyTooLongError");
    return text;
}

/* Parses the target again, by S3's rules. host: the bucket that the Host header names, or NULL. */
static void route(struct ds_request *request, const char *host)
{
    char **const places[] = {&request->bucket, &request->object, &request->to_bucket, &request->to_object,
                             &request->tail};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        free(*places[i]);
        *places[i] = NULL;
    }
    request->op = MR_OP_OTHER;
    request->bad = 0;
    const char *end = strchrnul(request->uri, '?'), *at = request->uri + 1;
    if (request->bad_query || *request->uri != '/') {
        s3_dispatch_refuse(request, "InvalidURI");
        return;
    }
    if (host) {
        request->bucket = strdup(host);
    } else {
        const char *slash = memchr(at, '/', (size_t)(end - at)), *stop = slash ? slash : end;
        if (stop > at)
            request->bucket = decode(request, at, (size_t)(stop - at));
        at = slash ? slash + 1 : end;
    }
    if (!request->bad && at < end)
        request->object = decode(request, at, (size_t)(end - at));
    if (request->bad)
        return;
    if (ds_request_query(request, "X-Amz-Algorithm")) /* a presigned URL */
        s3_dispatch_refuse(request, "NotImplemented");
    else if (request->object && !request->bucket)
        s3_dispatch_refuse(request, "InvalidBucketName");
    else if (request->object)
        route_object(request);
    else if (request->bucket)
        route_bucket(request);
    else
        set_op(request, method_is(request, "GET"), MR_OP_BUCKET);
}

bool ds_s3_claim(const struct ds_api *api, struct ds_request *request)
{
    char bucket[256];
    if (strncmp(request->uri, "/_devstore/", 11) == 0)
        return false;
    bool says = says_s3(request), named = host_bucket(request, bucket);
    if (!says && !(named && ds_buckets_find(api->buckets, bucket)) && !(api->s3->always && request->xml))
        return false;
    request->s3 = request->xml = true;
    request->id = mr_random64();
    route(request, named ? bucket : NULL);
    return true;
}

/* ---- before its body is read ---- */

static bool pays(const struct ds_request *request)
{
    const char *text = ds_request_header(request, "x-amz-request-payer");
    return text && strcmp(text, "requester") == 0;
}

int ds_s3_refuse(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = request->bucket ? ds_buckets_find(api->buckets, request->bucket) : NULL;
    if (request->bad)
        ds_s3_error_said(reply, request, request->code, "%s", request->why);
    else if (ds_s3_auth_check(api->s3, request, reply) < 0)
        return (int)reply->status;
    else if (ds_api_denied(api, request->op) ||
             (bucket && ds_bucket_settings(bucket)->requester_pays && !pays(request)))
        ds_s3_error(reply, request, "AccessDenied");
    else
        return 0;
    return (int)reply->status;
}

/* ---- its answer ---- */

/* Checks the sums that came with a body of XML. 0, or -1 with the reply. */
static int check_body(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *md5 = ds_request_header(request, "Content-MD5");
    const char *body = request->body.data ? request->body.data : "";
    size_t length = request->body.length;
    uint8_t sum[32];
    struct ds_s3_given given;
    if (request->auth && request->auth->chunked) {
        ds_s3_error(reply, request, "NotImplemented");
        return -1;
    }
    ds_s3_sha256(body, length, sum);
    if (request->auth && request->auth->has_hash && memcmp(sum, request->auth->hash, sizeof sum) != 0) {
        ds_s3_error(reply, request, "XAmzContentSHA256Mismatch");
        return -1;
    }
    /* CompleteMultipartUpload's checksum is the object's. */
    if (request->op == MR_OP_COMPLETE)
        return 0;
    if (ds_s3_given(api, request, &given, reply) < 0)
        return -1;
    struct ds_s3_sums sums;
    char text[MR_S3_SUM_MAX] = "", coded[25] = "";
    if (ds_s3_sums_init(&sums, 1u << given.algorithm) == 0 && given.algorithm) {
        ds_s3_sums_write(&sums, body, length);
        ds_s3_sums_raw(&sums, given.algorithm, sum);
        ds_s3_sum_to_text(given.algorithm, sum, text);
    }
    ds_s3_sums_close(&sums);
    EVP_Digest(body, length, sum, NULL, EVP_md5(), NULL);
    EVP_EncodeBlock((unsigned char *)coded, sum, 16);
    if (strcmp(text, given.text) == 0 && (!md5 || strcmp(md5, coded) == 0))
        return 0;
    ds_s3_error(reply, request, "BadDigest");
    return -1;
}

void ds_s3_answer(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply)
{
    static void (*const answers[MR_OP_COUNT])(const struct ds_api *, const struct ds_request *, struct ds_reply *) = {
        [MR_OP_LIST] = ds_s3_list,         [MR_OP_GET] = ds_s3_get,        [MR_OP_STAT] = ds_s3_get,
        [MR_OP_DELETE] = ds_s3_delete,     [MR_OP_BATCH] = ds_s3_batch,    [MR_OP_INITIATE] = ds_s3_initiate,
        [MR_OP_COMPLETE] = ds_s3_complete, [MR_OP_ABORT] = ds_api_abort,   [MR_OP_PARTS] = ds_s3_parts,
        [MR_OP_UPLOADS] = ds_s3_uploads,   [MR_OP_BUCKET] = ds_s3_buckets, [MR_OP_SESSION] = ds_s3_session,
    };
    bool has_body = strcmp(request->method, "POST") == 0 || strcmp(request->method, "PUT") == 0;
    if (has_body && check_body(api, request, reply) < 0)
        return;
    if (!answers[request->op])
        ds_s3_error(reply, request, "NotImplemented");
    else
        answers[request->op](api, request, reply);
}
