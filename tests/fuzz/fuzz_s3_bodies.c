/*
 * fuzz_s3_bodies.c - two bodies that S3's clients send: aws-chunked, and the list of a DeleteObjects.
 *
 * The first byte says which. The decoder comes to the same end however the bytes are cut into pieces, and gives out as
 * many as the chunks announced. A list deletes what it names, and nothing where it is refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devstore/api.h"
#include "devstore/bucket.h"
#include "devstore/s3.h"
#include "devstore/s3_chunked.h"
#include "devstore/sessions.h"
#include "fuzz.h"

struct decoded {
    uint64_t bytes, hash;
    unsigned chunks;
};

static int take(void *cls, const void *bytes, size_t length)
{
    struct decoded *decoded = cls;
    for (size_t i = 0; i < length; i++)
        decoded->hash = (decoded->hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    decoded->bytes += length;
    return 0;
}

static int end_chunk(void *cls, const char *signature)
{
    struct decoded *decoded = cls;
    if (strlen(signature) > 64)
        abort();
    decoded->chunks++;
    return 0;
}

/* 1: it is a whole body; 0: more is needed; -1: it is malformed. */
static int decode(const char *bytes, size_t size, size_t piece, bool is_signed, struct decoded *decoded)
{
    struct ds_s3_chunked chunked = {.is_signed = is_signed, .data = take, .chunk = end_chunk, .cls = decoded};
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < size; at += piece)
        rc = ds_s3_chunked_write(&chunked, bytes + at, size - at < piece ? size - at : piece);
    if (rc == 0 && chunked.state == MR_S3_CHUNK_DONE) {
        rc = 1;
        char *value = ds_s3_chunked_trailer(&chunked, "x-amz-checksum-crc32");
        if (chunked.total != decoded->bytes || (value && strchr(value, '\n')))
            abort();
        free(value);
    }
    ds_s3_chunked_close(&chunked);
    return rc;
}

static void fuzz_chunked(const char *bytes, size_t size, bool is_signed)
{
    struct decoded whole = {0}, pieces = {0};
    int first = decode(bytes, size, size ? size : 1, is_signed, &whole);
    int second = decode(bytes, size, 3, is_signed, &pieces);
    if (first != second ||
        (first >= 0 && (whole.bytes != pieces.bytes || whole.hash != pieces.hash || whole.chunks != pieces.chunks)))
        abort();
}

/* Any sum: ds_s3_answer compares it, which this goes around. */
static const char *find_header(void *cls, const char *name)
{
    (void)cls;
    return strcmp(name, "Content-MD5") == 0 ? "x" : NULL;
}

static size_t count(struct ds_bucket *bucket)
{
    struct ds_object *objects[8];
    size_t n = ds_bucket_range(bucket, "", false, "", objects, 8);
    for (size_t i = 0; i < n; i++)
        ds_object_unref(objects[i]);
    return n;
}

static void fuzz_delete(const char *bytes, size_t size)
{
    static struct ds_s3_settings settings;
    struct ds_buckets *buckets = ds_buckets_new(NULL, true, NULL);
    struct ds_conditions none = {0};
    if (!buckets || ds_buckets_create(buckets, "bucket", NULL) < 0)
        abort();
    struct ds_bucket *bucket = ds_buckets_find(buckets, "bucket");
    for (int i = 0; i < 3; i++) {
        struct ds_object *object = ds_object_new((const char *[]){"a", "b&c", "d"}[i]);
        if (!object || ds_bucket_put(bucket, object, NULL, &none) < 0)
            abort();
        ds_object_unref(object);
    }
    struct ds_api api = {.buckets = buckets, .page_max = 10, .s3 = &settings};
    struct ds_request request;
    struct ds_reply reply;
    if (ds_request_init(&request, "POST", "/bucket?delete&x-id=DeleteObjects") < 0 || !ds_s3_claim(&api, &request))
        abort();
    request.header = find_header;
    ds_text_append(&request.body, bytes, size);
    ds_reply_init(&reply);
    ds_s3_batch(&api, &request, &reply);
    if (reply.status != 200 && (reply.status != 400 || count(bucket) != 3))
        abort();
    if (!ds_utf8_valid(reply.body.data, reply.body.length))
        abort();
    ds_reply_close(&reply);
    ds_request_close(&request);
    ds_buckets_destroy(buckets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *bytes = (const char *)data + 1;
    if (*data == 'd')
        fuzz_delete(bytes, size - 1);
    else
        fuzz_chunked(bytes, size - 1, *data == 's');
    return 0;
}

static const char *const inputs[] = {
    "u4\r\ndata\r\n3\r\nabc\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:00\r\n\r\n",
    "u0\r\n\r\n",
    "s4;chunk-signature=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\ndata\r\n"
    "0;chunk-signature=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n\r\n",
    "d<?xml version=\"1.0\"?><Delete xmlns=\"x\"><Object><Key>a</Key></Object><Object><Key>b&amp;c</Key>"
    "<ETag>\"x\"</ETag></Object><Quiet>true</Quiet></Delete>",
    "d<Delete><Object><Key>&#x64;</Key><VersionId>null</VersionId></Object><Object><Key>e&#10; "
    "</Key></Object></Delete>",
};

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    return mr_fuzz_text_seed(inputs, sizeof inputs / sizeof *inputs, n, data);
}
