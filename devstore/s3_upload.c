/* s3_upload.c - PutObject and UploadPart: bytes that go to an object or a part as they arrive. */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/metadata.h"
#include "devstore/multipart_impl.h"
#include "devstore/s3.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_chunked.h"
#include "devstore/s3_conditions.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"
#include "devstore/sink.h"
#include "devstore/upload_impl.h"
#include "devstore/xml.h"

struct upload {
    struct ds_upload base;
    const struct ds_api *api;
    const struct ds_request *request;
    struct ds_bucket *bucket;
    struct ds_session *session;  /* of a part; NULL: a whole object */
    unsigned number;             /* of the part */
    struct ds_metadata metadata; /* and the Content-MD5 */
    struct ds_sink sink;
    struct ds_s3_given given;
    enum ds_s3_algorithm kept; /* of the checksum that is stored */
    struct ds_s3_sums sums;
    uint8_t raw[MR_S3_ALGORITHMS][32]; /* their results */
    struct ds_s3_chunked chunked;
    struct ds_s3_sums chunk; /* the SHA-256 of a chunk, if it is signed */
    uint64_t expected;       /* bytes of an aws-chunked body, decoded */
    bool is_chunked, failed;
    struct ds_reply failure;
};

/* Keeps the first failure, which finish sends. Returns -1. */
static int s3_upload_fail(struct upload *upload, const char *code)
{
    if (!upload->failed)
        ds_s3_error(&upload->failure, upload->request, code);
    upload->failed = true;
    return -1;
}

/* The same from this thread's error. */
static int fail_from_error(struct upload *upload)
{
    if (mr_error_code() == MR_E_DENIED)
        return s3_upload_fail(upload, "SignatureDoesNotMatch");
    if (!upload->failed && mr_error_code() == MR_E_USAGE)
        ds_s3_error_said(&upload->failure, upload->request, "InvalidRequest", "%s", mr_error_text());
    else if (!upload->failed)
        ds_reply_from_error(&upload->failure, upload->request);
    upload->failed = true;
    return -1;
}

static int take_data(void *cls, const void *bytes, size_t length)
{
    struct upload *upload = cls;
    ds_s3_sums_write(&upload->sums, bytes, length);
    ds_s3_sums_write(&upload->chunk, bytes, length);
    return ds_sink_write(&upload->sink, bytes, length);
}

/* The end of a signed chunk. */
static int take_chunk(void *cls, const char *signature)
{
    struct upload *upload = cls;
    uint8_t hash[32];
    ds_s3_sums_raw(&upload->chunk, MR_S3_SHA256, hash);
    ds_s3_sums_close(&upload->chunk);
    if (ds_s3_sums_init(&upload->chunk, 1u << MR_S3_SHA256) < 0)
        return -1;
    return ds_s3_auth_chunk(upload->request->auth, hash, false, signature);
}

static void write_bytes(struct ds_upload *base, const void *bytes, size_t length)
{
    struct upload *upload = (struct upload *)base;
    if (upload->failed)
        return;
    if ((upload->is_chunked ? ds_s3_chunked_write(&upload->chunked, bytes, length) : take_data(upload, bytes, length)) <
        0)
        fail_from_error(upload);
}

static void destroy(struct ds_upload *base)
{
    struct upload *upload = (struct upload *)base;
    ds_sink_close(&upload->sink);
    ds_metadata_close(&upload->metadata);
    ds_s3_sums_close(&upload->sums);
    ds_s3_sums_close(&upload->chunk);
    ds_s3_chunked_close(&upload->chunked);
    ds_reply_close(&upload->failure);
    ds_session_unref(upload->session);
    free(upload);
}

/* Its signature covers the lines in front of it. */
static int check_trailer_signature(struct upload *upload)
{
    static const char name[] = "x-amz-trailer-signature";
    const char *text = upload->chunked.trailer.data ? upload->chunked.trailer.data : "";
    const char *at = strcasestr(text, name);
    char *signature = ds_s3_chunked_trailer(&upload->chunked, name);
    uint8_t hash[32];
    int rc = 0;
    ds_s3_sha256(text, at ? (size_t)(at - text) : strlen(text), hash);
    if (ds_s3_auth_chunk(upload->request->auth, hash, true, signature ? signature : "") < 0)
        rc = fail_from_error(upload);
    free(signature);
    return rc;
}

/* Checks the end of an aws-chunked body: it is complete, and its trailer has the sum that was announced. */
static int finish_chunked(struct upload *upload)
{
    const struct ds_s3_auth *auth = upload->request->auth;
    if (upload->chunked.state != MR_S3_CHUNK_DONE || upload->chunked.total != upload->expected)
        return s3_upload_fail(upload, "IncompleteBody");
    if (auth->signed_chunks && auth->trailer && check_trailer_signature(upload) < 0)
        return -1;
    if (!upload->given.in_trailer)
        return 0;
    char *sum = ds_s3_chunked_trailer(&upload->chunked, ds_s3_sum_headers[upload->given.algorithm]);
    uint8_t raw[32];
    int rc = sum ? ds_s3_sum_from_text(upload->given.algorithm, sum, raw) : -1;
    if (rc == 0)
        memcpy(upload->given.text, sum, strlen(sum) + 1);
    free(sum);
    return rc < 0 ? s3_upload_fail(upload, "MalformedTrailerError") : 0;
}

/* Compares the sums that the client gave, and fills upload->raw. 0, or -1 with the failure. */
static int check_sums(struct upload *upload, const struct ds_object *object)
{
    char text[MR_S3_SUM_MAX];
    const struct ds_s3_auth *auth = upload->request->auth;
    for (int i = 1; i < MR_S3_ALGORITHMS; i++) {
        if (upload->sums.wanted & 1u << i)
            ds_s3_sums_raw(&upload->sums, (enum ds_s3_algorithm)i, upload->raw[i]);
    }
    if (auth->has_hash && memcmp(upload->raw[MR_S3_SHA256], auth->hash, sizeof auth->hash) != 0)
        return s3_upload_fail(upload, "XAmzContentSHA256Mismatch");
    if (upload->metadata.has_md5 && (!object->has_md5 || memcmp(object->md5, upload->metadata.md5, 16) != 0))
        return s3_upload_fail(upload, "BadDigest");
    if (!upload->given.algorithm)
        return 0;
    ds_s3_sum_to_text(upload->given.algorithm, upload->raw[upload->given.algorithm], text);
    if (strcmp(text, upload->given.text) == 0)
        return 0;
    return s3_upload_fail(upload, "BadDigest");
}

static void put_sum(const struct upload *upload, const char *sum, struct ds_reply *reply)
{
    if (upload->api->s3->ignore_checksums)
        return;
    ds_reply_header(reply, ds_s3_sum_headers[upload->kept], "%s", sum);
    if (!upload->session)
        ds_reply_header(reply, "x-amz-checksum-type", "FULL_OBJECT");
}

/* 0, or -1 with the failure. */
static int store_object(struct upload *upload, struct ds_object *object, const char *sum, struct ds_reply *reply)
{
    struct ds_conditions conditions;
    char etag[48];
    if (ds_metadata_apply(&upload->metadata, object) < 0 || !(object->s3 = ds_s3_info_new(0)))
        return fail_from_error(upload);
    object->s3->algorithm = upload->kept;
    memcpy(object->s3->sum, sum, MR_S3_SUM_MAX);
    if (ds_s3_write_conditions(upload->api, upload->request, upload->bucket, &conditions, &upload->failure) < 0)
        return -1;
    if (ds_sink_put(&upload->sink, upload->bucket, object, &conditions) < 0) {
        ds_s3_write_failed(upload->request, &upload->failure);
        return -1;
    }
    ds_s3_etag(object, false, etag);
    ds_reply_header(reply, "ETag", "\"%s\"", etag);
    put_sum(upload, sum, reply);
    return 0;
}

/* Takes object, on failure too. 0, or -1 with the failure. */
static int store_part(struct upload *upload, struct ds_object *object, const char *sum, struct ds_reply *reply)
{
    char etag[33];
    if (ds_sink_give(&upload->sink, object) < 0) {
        ds_object_unref(object);
        return fail_from_error(upload);
    }
    if (ds_multipart_add(upload->session, upload->number, object, sum, etag) < 0)
        return s3_upload_fail(upload, mr_error_code() == MR_E_NOT_FOUND ? "NoSuchUpload" : "InternalError");
    ds_reply_header(reply, "ETag", "\"%s\"", etag);
    put_sum(upload, sum, reply);
    return 0;
}

/* Makes the object or the part. 0, or -1 with the failure. */
static int store(struct upload *upload, struct ds_reply *reply)
{
    char sum[MR_S3_SUM_MAX] = "";
    if (upload->is_chunked && finish_chunked(upload) < 0)
        return -1;
    struct ds_object *object = ds_object_new(upload->request->object);
    if (!object || ds_sink_fill(&upload->sink, object) < 0) {
        ds_object_unref(object);
        return fail_from_error(upload);
    }
    int rc = check_sums(upload, object);
    ds_s3_sum_to_text(upload->kept, upload->raw[upload->kept], sum);
    if (rc == 0 && upload->session)
        return store_part(upload, object, sum, reply);
    if (rc == 0)
        rc = store_object(upload, object, sum, reply);
    ds_object_unref(object);
    return rc;
}

static void s3_upload_finish(struct ds_upload *base, struct ds_reply *reply)
{
    struct upload *upload = (struct upload *)base;
    if (upload->failed || store(upload, reply) < 0) {
        ds_reply_close(reply);
        *reply = upload->failure;
        ds_reply_init(&upload->failure);
    }
}

/* Reads the headers about the body. 0, or -1 with the reply. */
static int read_headers(struct upload *upload, struct ds_reply *reply)
{
    const struct ds_request *request = upload->request;
    const char *decoded = ds_request_header(request, "x-amz-decoded-content-length");
    const char *md5 = ds_request_header(request, "Content-MD5");
    if (ds_s3_given(upload->api, request, &upload->given, reply) < 0)
        return -1;
    if (ds_metadata_md5_header(&upload->metadata, md5) < 0) {
        ds_s3_error(reply, request, "InvalidDigest");
        return -1;
    }
    if (md5 && ds_s3_is_express(request->bucket)) {
        ds_s3_error_said(reply, request, "InvalidRequest", "Content-MD5 is not supported by directory buckets");
        return -1;
    }
    upload->is_chunked = request->auth && request->auth->chunked;
    if (upload->is_chunked ? !decoded || ds_parse_u64(decoded, &upload->expected) < 0
                           : !ds_request_header(request, "Content-Length")) {
        ds_s3_error(reply, request, "MissingContentLength");
        return -1;
    }
    if (!upload->session)
        upload->kept = upload->given.algorithm ? upload->given.algorithm : MR_S3_CRC64NVME;
    else
        upload->kept = upload->session->algorithm;
    if (upload->session && upload->given.algorithm && upload->session->announced &&
        upload->given.algorithm != upload->kept) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s",
                         ds_s3_algorithm_names[upload->kept], ds_s3_algorithm_names[upload->given.algorithm]);
        return -1;
    }
    return 0;
}

static int open_sinks(struct upload *upload, uint64_t length)
{
    const struct ds_s3_auth *auth = upload->request->auth;
    unsigned wanted = 1u << upload->kept | 1u << upload->given.algorithm;
    if (auth && auth->has_hash)
        wanted |= 1u << MR_S3_SHA256;
    bool signed_chunks = upload->is_chunked && auth && auth->signed_chunks;
    upload->chunked = (struct ds_s3_chunked){.is_signed = signed_chunks, .data = take_data, .cls = upload};
    upload->chunked.chunk = signed_chunks ? take_chunk : NULL;
    if (ds_s3_sums_init(&upload->chunk, signed_chunks ? 1u << MR_S3_SHA256 : 0) < 0 ||
        ds_s3_sums_init(&upload->sums, wanted) < 0)
        return -1;
    bool md5 = upload->api->md5 || upload->metadata.has_md5;
    return ds_sink_open(&upload->sink, ds_bucket_folder(upload->bucket), upload->is_chunked ? upload->expected : length,
                        md5);
}

struct ds_upload *ds_s3_upload_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                   struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct upload *upload = bucket ? calloc(1, sizeof *upload) : NULL;
    if (!upload) {
        if (bucket)
            ds_s3_error(reply, request, "InternalError");
        return NULL;
    }
    upload->base = (struct ds_upload){.write = write_bytes, .finish = s3_upload_finish, .destroy = destroy};
    upload->api = api;
    upload->request = request;
    upload->bucket = bucket;
    upload->sink.fd = -1;
    ds_reply_init(&upload->failure);
    if (request->op == MR_OP_PART && (ds_multipart_number(request, &upload->number, reply) < 0 ||
                                      !(upload->session = ds_multipart_find(api, request, reply))))
        goto fail;
    if (ds_s3_check_write(api, request, reply) < 0 || read_headers(upload, reply) < 0)
        goto fail;
    if (ds_xml_metadata(request, &upload->metadata) < 0 || open_sinks(upload, length) < 0) {
        ds_reply_from_error(reply, request);
        goto fail;
    }
    return &upload->base;
fail:
    destroy(&upload->base);
    return NULL;
}
