/*
 * fuzz_devstore.c - the development store's whole API without its HTTP library: request line, headers and body from the
 * input.
 *
 * Every request gets a status from 200 to 599 and, where it fails, an error body; whatever it did, the bucket stays
 * sorted and the object that was there is whole or gone.
 */
#include <stdlib.h>
#include <string.h>

#include "devstore/api.h"
#include "devstore/bucket.h"
#include "devstore/mime.h"
#include "devstore/request.h"
#include "devstore/s3.h"
#include "devstore/sessions.h"
#include "fuzz.h"

struct headers {
    const char *bytes;
    size_t length;
    char *found[32]; /* values that were looked up, freed at the end */
    int n;
};

static const char *find_header(void *cls, const char *name)
{
    struct headers *headers = cls;
    if (headers->n == 32)
        return NULL;
    char *value = ds_mime_header(headers->bytes, headers->length, name);
    if (value)
        headers->found[headers->n++] = value;
    return value;
}

/* Lines NAME: VALUE; no NUL is in them. */
static void each_header(void *cls, void (*visit)(void *visit_cls, const char *name, const char *value), void *visit_cls)
{
    const struct headers *headers = cls;
    char *text = strndup(headers->bytes, headers->length), *rest = text;
    for (char *line; (line = strsep(&rest, "\r\n"));) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon = 0;
        visit(visit_cls, line, colon + 1);
    }
    free(text);
}

/* Puts "x" and "y/z" into the bucket. */
static void fill(struct ds_bucket *bucket)
{
    static const char *const names[] = {"x", "y/z"};
    struct ds_conditions none = {0};
    for (int i = 0; i < 2; i++) {
        struct ds_object *object = ds_object_new(names[i]);
        uint8_t *data = malloc(100);
        memset(data, 'a' + i, 100);
        ds_object_set_piece(object, data, 100, ds_blob_new(data));
        if (ds_bucket_put(bucket, object, NULL, &none) < 0)
            abort();
        ds_object_unref(object);
    }
}

/* A resumable upload "0-r" and a multipart one "1-m" that has its part 1. */
static void open_sessions(const struct ds_api *api)
{
    struct ds_bucket *bucket = ds_buckets_find(api->buckets, "bucket");
    for (int multipart = 0; multipart < 2; multipart++) {
        struct ds_session *session = ds_session_new(bucket, multipart);
        if (ds_metadata_set_name(&session->metadata, "x") < 0 || ds_sessions_add(api->sessions, session) < 0)
            abort();
        strcpy(session->id, multipart ? "1-m" : "0-r");
        if (multipart) {
            struct ds_object *part = ds_object_new("x");
            uint8_t *data = calloc(1, 100);
            ds_object_set_piece(part, data, 100, ds_blob_new(data));
            if (ds_session_add_part(session, 1, part, "e1", "") < 0)
                abort();
        } else if (ds_sink_open(&session->sink, NULL, 0, true) < 0) {
            abort();
        }
        ds_session_unref(session);
    }
}

static void check_bucket(struct ds_bucket *bucket)
{
    char last[MR_NAME_MAX + 1] = "";
    for (struct ds_object *object; ds_bucket_range(bucket, last, true, "", &object, 1) == 1; ds_object_unref(object)) {
        if (strcmp(object->name, last) <= 0 || strlen(object->name) > MR_NAME_MAX ||
            !ds_utf8_valid(object->name, strlen(object->name)))
            abort();
        uint64_t sum = 0;
        for (size_t i = 0; i < object->n_pieces; i++)
            sum += object->pieces[i].length;
        if (sum != object->size)
            abort();
        memcpy(last, object->name, strlen(object->name) + 1);
    }
}

static void answer(const struct ds_api *api, struct ds_request *request, const char *body, size_t length,
                   struct ds_reply *reply)
{
    if (request->op == MR_OP_ADMIN || ds_api_refuse(api, request, reply))
        return;
    if (!ds_op_uploads(request->op)) {
        ds_text_append(&request->body, body, length);
        ds_api_answer(api, request, reply);
        return;
    }
    struct ds_upload *upload = ds_upload_new(api, request, length, reply);
    for (size_t at = 0; upload && at < length;) { /* in pieces, so that every border falls between two of them */
        size_t n = length - at < 7 ? length - at : 7;
        ds_upload_write(upload, body + at, n);
        at += n;
    }
    if (upload)
        ds_upload_finish(upload, reply);
    ds_upload_destroy(upload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size); /* the library gives no target with a NUL in it */
    char *newline = strchr(text, '\n'), *space = strchr(text, ' ');
    struct headers headers = {0};
    size_t head = 0, rest = 0;
    if (!newline || !space || space > newline)
        goto out;
    *newline = *space = 0;
    size_t line = (size_t)(newline + 1 - text);
    headers.bytes = (const char *)data + line;
    headers.length = size - line;
    if (ds_mime_head(headers.bytes, headers.length, &head, &rest) < 0)
        goto out;
    headers.length = head;
    struct ds_buckets *buckets = ds_buckets_new(NULL, true, NULL);
    if (!buckets || ds_buckets_create(buckets, "bucket", NULL) < 0)
        abort();
    fill(ds_buckets_find(buckets, "bucket"));
    struct ds_s3_settings settings = {.session_s = 300};
    struct ds_api api = {
        .buckets = buckets, .page_max = 2, .md5 = true, .sessions = ds_sessions_new(), .s3 = &settings};
    open_sessions(&api);
    struct ds_reply reply;
    ds_reply_init(&reply);
    struct ds_request request;
    if (ds_request_init(&request, text, space + 1) < 0)
        abort();
    request.header = find_header;
    request.header_cls = &headers;
    request.each_header = each_header;
    ds_s3_claim(&api, &request);
    answer(&api, &request, headers.bytes + rest, size - line - rest, &reply);
    if (reply.status < 200 || reply.status > 599 ||
        (reply.status >= 400 && reply.status != 499 && reply.body.length == 0))
        abort();
    if (reply.object && reply.first + reply.length > reply.object->size)
        abort();
    if (!ds_utf8_valid(reply.body.data ? reply.body.data : "", reply.body.length))
        abort();
    check_bucket(ds_buckets_find(buckets, "bucket"));
    ds_reply_close(&reply);
    ds_request_close(&request);
    ds_sessions_destroy(api.sessions);
    ds_buckets_destroy(buckets);
out:
    for (int i = 0; i < headers.n; i++)
        free(headers.found[i]);
    free(text);
    return 0;
}

static const char *const inputs[] = {
    "POST /storage/v1/b/bucket/o/x/moveTo/o/z%2F1\n\n",
    "GET /storage/v1/b/bucket\n\n",
    "GET /storage/v1/b/bucket/o/a%ff\n\n",
    "DELETE /upload/storage/v1/b/bucket/o?upload_id=0-r\n\n",
    "GET /bucket?uploads&prefix=x&max-uploads=1\n\n",
    "GET /admin/stat\n\n",
    "GET /a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z\n\n",
    "GET "
    "/bucket?a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&j=10&k=11&l=12&m=13&n=14&o=15&p=16&q=17&r=18&s=19&t=20&u=21&v=22\n\n",
    "GET /storage/v1/b/bucket/o?prefix=y&delimiter=/&maxResults=1&fields=items(name,size),nextPageToken,prefixes\n\n",
    "GET /storage/v1/b/bucket/o?startOffset=a&endOffset=z&pageToken=eS96&fields=items/name\nHost: x:1\n\n",
    "GET /download/storage/v1/b/bucket/o/y%2Fz?alt=media&ifGenerationNotMatch=5\nRange: bytes=10-19\n\n",
    "GET /bucket/y/z\nRange: bytes=-5\nx-goog-if-metageneration-match: 1\n\n",
    "DELETE /storage/v1/b/bucket/o/x?ifMetagenerationMatch=1\n\n",
    "POST /storage/v1/b/bucket/o/new/compose?ifGenerationMatch=0\n\n"
    "{\"sourceObjects\":[{\"name\":\"x\"},{\"name\":\"y/"
    "z\",\"generation\":\"7\"}],\"destination\":{\"contentType\":\"a/b\"}}",
    "POST /storage/v1/b/bucket/o/new/compose\n\n"
    "{\"sourceObjects\":[{\"name\":\"x\",\"objectPreconditions\":{}}],\"destination\":{\"metadata\":{\"a\":\"b\"}}}",
    "POST /upload/storage/v1/b/bucket/o?uploadType=multipart\nContent-Type: multipart/related; boundary=\"bb\"\n\n"
    "--bb\r\nContent-Type: "
    "application/json\r\n\r\n{\"name\":\"new\",\"crc32c\":\"qUnIRA==\"}\r\n--bb\r\n\r\ndata\r\n--bb--\r\n",
    "POST /upload/storage/v1/b/bucket/o?uploadType=media&name=new%20name\nx-goog-hash: crc32c=qUnIRA==\n\ndata",
    "POST /batch/storage/v1\nContent-Type: multipart/mixed; boundary=bb\n\n"
    "--bb\nContent-ID: <1>\n\nDELETE /storage/v1/b/bucket/o/x HTTP/1.1\n\n\n--bb\n\nGET "
    "http://h/storage/v1/b/bucket/o/x\n--bb--",
    "POST /storage/v1/b\n\n{\"name\":\"another-bucket\"}",
    "POST /upload/storage/v1/b/bucket/o?uploadType=resumable&name=n&ifGenerationMatch=0&fields=name\n"
    "X-Upload-Content-Length: 5\nX-Upload-Content-Type: a/b\n\n{\"crc32c\":\"qUnIRA==\"}",
    "PUT /upload/storage/v1/b/bucket/o?upload_id=0-r\nContent-Range: bytes 0-3/4\nx-goog-hash: crc32c=qUnIRA==\n\ndata",
    "POST /bucket/x?uploadId=1-m\n\n<?xml version='1.0'?>\n<CompleteMultipartUpload><Part>"
    "<PartNumber>1</PartNumber><ETag>&quot;e1&quot;</ETag></Part></CompleteMultipartUpload>",
    "PUT /bucket/x?uploadId=1-m&partNumber=2\nContent-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==\n\ndata",
    "POST /storage/v1/b/bucket/o/x/copyTo/b/bucket/o/n%2Fm?sourceGeneration=5\n\n{\"contentType\":\"c/d\"}",
    "GET /bucket?list-type=2&delimiter=/&max-keys=1&start-after=a&continuation-token=eA\n\n",
    "DELETE /bucket/x?uploadId=1-m\n\n",
    "GET /bucket/x?uploadId=1-m&max-parts=1&part-number-marker=0\n\n",
    "GET /storage/v1/b?fields=items(name,softDeletePolicy/retentionDurationSeconds)&prefix=b\n\n",
    "GET /bucket?list-type=2&delimiter=/&max-keys=1&start-after=a&encoding-type=url&fetch-owner=true\nx-amz-date: "
    "1\n\n",
    "GET /bucket?list-type=2&continuation-token=eA&prefix=y\nx-amz-date: 1\n\n",
    "GET /bucket?marker=x&delimiter=/&x-id=1\n\n",
    "GET /y/z?partNumber=1\nHost: bucket.s3.localhost:1\nx-amz-checksum-mode: ENABLED\nIf-None-Match: \"e\", "
    "W/\"f\"\n\n",
    "HEAD /bucket/x?x-id=HeadObject\nRange: bytes=10-19\nIf-Match: *\n\n",
    "PUT /bucket/n\nx-amz-meta-a: b\nx-amz-checksum-crc32c: qUnIRA==\nContent-MD5: jXd/OF09/siBXSD3SWAm3A==\n"
    "Content-Length: 4\nIf-None-Match: *\n\ndata",
    "PUT /bucket/n\nx-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\nx-amz-decoded-content-length: 4\n"
    "x-amz-trailer: x-amz-checksum-crc32\n\n4\r\ndata\r\n0\r\nx-amz-checksum-crc32:rfNt9w==\r\n\r\n",
    "POST /bucket/n?uploads\nx-amz-checksum-algorithm: SHA256\nx-amz-checksum-type: COMPOSITE\n\n",
    "POST /bucket/x?uploadId=1-m\nx-amz-mp-object-size: 100\nIf-Match: "
    "\"e\"\n\n<CompleteMultipartUpload><Part><ETag>e1</ETag>"
    "<PartNumber>1</PartNumber><ChecksumCRC32>x</ChecksumCRC32></Part></CompleteMultipartUpload>",
    "GET /bucket?uploads&max-uploads=1&key-marker=a&delimiter=/&x-id=1\n\n",
    "GET /bucket/x?uploadId=1-m&max-parts=1&x-id=1\n\n",
    "GET /?max-buckets=1&prefix=b&x-id=1\n\n",
    "GET /bucket/x\nAuthorization: AWS4-HMAC-SHA256 Credential=a/20200101/r/s3/aws4_request, SignedHeaders=host, "
    "Signature=0\n\n",
    "GET /storage/v1/b/bucket/iam/testPermissions?permissions=storage.objects.get&permissions=b\n\n",
};

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    if (n >= sizeof inputs / sizeof *inputs)
        return 0;
    *data = (uint8_t *)strdup(inputs[n]);
    return strlen(inputs[n]);
}
