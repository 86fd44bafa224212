#include "fault_s3.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checksum.h"

struct reply {
    int status;
    char extra[1024];
    char body[200000];
    size_t length;
    const struct s3_object *object; /* its bytes are the body */
    uint64_t first, size;           /* of them */
};

/* ---- objects ---- */

void fault_s3_init(struct fault_s3 *s3)
{
    memset(s3, 0, sizeof *s3);
    pthread_mutex_init(&s3->lock, NULL);
}

static void drop_upload(struct s3_upload *upload)
{
    for (unsigned i = 0; i < S3_PARTS; i++)
        free(upload->part[i]);
    memset(upload, 0, sizeof *upload);
}

void fault_s3_close(struct fault_s3 *s3)
{
    for (unsigned i = 0; i < S3_OBJECTS; i++)
        free(s3->objects[i].data);
    for (unsigned i = 0; i < sizeof s3->uploads / sizeof *s3->uploads; i++)
        drop_upload(&s3->uploads[i]);
    pthread_mutex_destroy(&s3->lock);
}

struct s3_object *fault_s3_find(struct fault_s3 *s3, const char *name)
{
    for (unsigned i = 0; i < S3_OBJECTS; i++)
        if (s3->objects[i].data && strcmp(s3->objects[i].name, name) == 0)
            return &s3->objects[i];
    return NULL;
}

static void md5(const void *data, size_t length, unsigned char out[16])
{
    unsigned n = 16;
    if (EVP_Digest(data, length, out, &n, EVP_md5(), NULL) != 1)
        abort();
}

static void set_etag(char out[64], const unsigned char sum[16], unsigned parts)
{
    char hex[33];
    for (unsigned i = 0; i < 16; i++)
        snprintf(hex + (size_t)2 * i, 3, "%02x", sum[i]);
    if (parts)
        snprintf(out, 64, "\"%s-%u\"", hex, parts);
    else
        snprintf(out, 64, "\"%s\"", hex);
}

struct s3_object *fault_s3_put(struct fault_s3 *s3, const char *name, const void *data, uint64_t size)
{
    struct s3_object *object = fault_s3_find(s3, name);
    for (unsigned i = 0; !object && i < S3_OBJECTS; i++)
        if (!s3->objects[i].data)
            object = &s3->objects[i];
    unsigned char *copy = malloc(size + 1), sum[16];
    if (!object || !copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    free(object->data);
    *object = (struct s3_object){.data = copy, .size = size};
    snprintf(object->name, sizeof object->name, "%s", name);
    md5(copy, size, sum);
    sum[0] ^= s3->express ? (unsigned char)++s3->begun : 0; /* drawn, as it were */
    set_etag(object->etag, sum, 0);
    return object;
}

static void drop(struct s3_object *object)
{
    free(object->data);
    object->data = NULL;
}

void fault_s3_remove(struct fault_s3 *s3, const char *name)
{
    struct s3_object *object = fault_s3_find(s3, name);
    if (object)
        drop(object);
}

unsigned fault_s3_uploads(const struct fault_s3 *s3)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sizeof s3->uploads / sizeof *s3->uploads; i++)
        count += s3->uploads[i].used;
    return count;
}

static struct s3_upload *find_upload(struct fault_s3 *s3, const char *id)
{
    for (unsigned i = 0; i < sizeof s3->uploads / sizeof *s3->uploads; i++)
        if (s3->uploads[i].used && id && strcmp(s3->uploads[i].id, id) == 0)
            return &s3->uploads[i];
    return NULL;
}

/* ---- answers ---- */

static void put(struct reply *reply, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void put(struct reply *reply, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(reply->body, sizeof reply->body, fmt, ap);
    va_end(ap);
    reply->status = status;
    reply->length = n > 0 && (size_t)n < sizeof reply->body ? (size_t)n : 0;
    reply->object = NULL;
}

static void put_error(struct reply *reply, int status, const char *code, const char *more)
{
    put(reply, status, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>the server's words</Message>%s</Error>",
        code, more);
}

static void put_status(struct reply *reply, int status)
{
    const char *code = status == 503   ? "SlowDown"
                       : status == 500 ? "InternalError"
                       : status == 403 ? "AccessDenied"
                       : status == 404 ? "NoSuchKey"
                       : status == 409 ? "ConditionalRequestConflict"
                       : status == 412 ? "PreconditionFailed"
                       : status == 501 ? "NotImplemented"
                                       : "InvalidRequest";
    put_error(reply, status, code, "");
}

static void describe(struct reply *reply, const struct s3_object *object)
{
    snprintf(reply->extra, sizeof reply->extra, "ETag: %s\r\n%s", object->etag, object->checksum);
}

/* If-Match, If-None-Match. */
static bool is_refused(const struct fault_s3 *s3, const struct fault_request *request, const struct s3_object *object)
{
    if (s3->ignores_match)
        return false;
    if (fault_header(request, "If-None-Match"))
        return object != NULL;
    const char *match = fault_header(request, "If-Match");
    return match && (!object || strcmp(match, object->etag) != 0);
}

/* ---- operations ---- */

/* The CRC32C that came, for those who ask later. */
static bool keep_checksum(const struct fault_request *request, struct s3_object *object)
{
    const char *sent = fault_header(request, "x-amz-checksum-crc32c");
    struct mr_checksum sum = {MR_CHECKSUM_CRC32C, 0};
    char text[MR_CHECKSUM_TEXT_SIZE];
    if (!sent)
        return true;
    mr_checksum_add(&sum, object->data, object->size);
    mr_checksum_to_base64(&sum, text);
    snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc32c: %s\r\n", text);
    return strcmp(sent, text) == 0;
}

static void insert(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request, const char *name)
{
    if (is_refused(s3, request, fault_s3_find(s3, name))) {
        put_error(reply, 412, "PreconditionFailed", "");
        return;
    }
    struct s3_object *object = fault_s3_put(s3, name, request->body, request->body_length);
    if (!keep_checksum(request, object)) {
        free(object->data);
        object->data = NULL;
        put_error(reply, 400, "BadDigest", "");
        return;
    }
    put(reply, 200, "%s", "");
    describe(reply, object);
}

static void look(struct reply *reply, const struct fault_s3 *s3, const struct fault_request *request,
                 const struct s3_object *object)
{
    unsigned long long first = 0, last = 0;
    const char *range = fault_header(request, "Range");
    if (!object) {
        put_error(reply, 404, "NoSuchKey", "");
        return;
    }
    if (is_refused(s3, request, object)) {
        put_error(reply, 412, "PreconditionFailed", "");
        return;
    }
    describe(reply, object);
    reply->status = 200;
    reply->object = object;
    reply->size = object->size;
    if (!range || sscanf(range, "bytes=%llu-%llu", &first, &last) != 2)
        return;
    if (first >= object->size) {
        put_error(reply, 416, "InvalidRange", "");
        return;
    }
    last = last < object->size ? last : object->size - 1;
    reply->status = 206;
    reply->first = first;
    reply->size = last - first + 1;
    size_t n = strlen(reply->extra);
    snprintf(reply->extra + n, sizeof reply->extra - n, "Content-Range: bytes %llu-%llu/%llu\r\n", first, last,
             (unsigned long long)object->size);
}

/* Names of a page of a directory bucket, the greatest first; a token is the number of those that were given before. */
static bool list_backwards(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request,
                           const char *prefix, struct s3_object **found, unsigned *count)
{
    if (fault_query(request, "start-after") || (prefix[0] && prefix[strlen(prefix) - 1] != '/')) {
        put_error(reply, 400, "InvalidArgument", "");
        return false;
    }
    const char *token = fault_query(request, "continuation-token");
    unsigned given = token ? (unsigned)atoi(token + 1) : 0;
    for (unsigned i = 0; i < *count / 2; i++) {
        struct s3_object *one = found[i];
        found[i] = found[*count - 1 - i];
        found[*count - 1 - i] = one;
    }
    memmove(found, found + given, (*count - given) * sizeof *found);
    *count -= given;
    snprintf(s3->next, sizeof s3->next, "+%u", given + s3->page);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct s3_object *const *)a)->name, (*(struct s3_object *const *)b)->name);
}

static void list(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request)
{
    struct s3_object *found[S3_OBJECTS];
    unsigned count = 0, page = s3->page ? s3->page : 1000;
    char prefix[512] = "", after[512] = "";
    if (fault_query(request, "prefix"))
        snprintf(prefix, sizeof prefix, "%s", fault_query(request, "prefix"));
    const char *token = fault_query(request, "continuation-token"), *start = fault_query(request, "start-after");
    if ((token || start) && !s3->express)
        snprintf(after, sizeof after, "%s", token ? token : start);
    for (unsigned i = 0; i < S3_OBJECTS; i++)
        if (s3->objects[i].data && strncmp(s3->objects[i].name, prefix, strlen(prefix)) == 0 &&
            strcmp(s3->objects[i].name, after) > 0)
            found[count++] = &s3->objects[i];
    qsort(found, count, sizeof *found, by_name);
    if (s3->express && !list_backwards(s3, reply, request, prefix, found, &count))
        return;
    put(reply, 200, "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>");
    for (unsigned i = 0; i < count && i < page; i++) {
        reply->length += (size_t)sprintf(reply->body + reply->length, "<Contents><Key>");
        for (const char *at = found[i]->name; *at; at++)
            reply->length += (size_t)sprintf(reply->body + reply->length, "%%%02X", (unsigned char)*at);
        reply->length += (size_t)sprintf(
            reply->body + reply->length,
            "</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>%s</ETag><Size>%llu</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>",
            found[i]->etag, (unsigned long long)found[i]->size);
    }
    bool more = count > page;
    reply->length +=
        (size_t)sprintf(reply->body + reply->length, "<IsTruncated>%s</IsTruncated>%s%s%s</ListBucketResult>",
                        more ? "true" : "false", more ? "<NextContinuationToken>" : "",
                        !more         ? ""
                        : s3->express ? s3->next
                                      : found[page - 1]->name,
                        more ? "</NextContinuationToken>" : "");
}

static void begin(struct fault_s3 *s3, struct reply *reply, const char *name)
{
    for (unsigned i = 0; i < sizeof s3->uploads / sizeof *s3->uploads; i++) {
        struct s3_upload *upload = &s3->uploads[i];
        if (upload->used)
            continue;
        upload->used = true;
        snprintf(upload->name, sizeof upload->name, "%s", name);
        snprintf(upload->id, sizeof upload->id, "id/%u+", ++s3->begun);
        put(reply, 200, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>",
            upload->id);
        return;
    }
    put_error(reply, 500, "InternalError", "");
}

static void take_part(struct reply *reply, const struct fault_request *request, struct s3_upload *upload)
{
    const char *number = fault_query(request, "partNumber");
    unsigned n = number ? (unsigned)atoi(number) : 0;
    unsigned char sum[16];
    char etag[64];
    if (n == 0 || n > S3_PARTS) {
        put_error(reply, 400, "InvalidArgument", "");
        return;
    }
    free(upload->part[n - 1]);
    upload->part[n - 1] = malloc(request->body_length + 1);
    if (!upload->part[n - 1])
        abort();
    memcpy(upload->part[n - 1], request->body, request->body_length);
    upload->size[n - 1] = request->body_length;
    md5(request->body, request->body_length, sum);
    set_etag(etag, sum, 0);
    put(reply, 200, "%s", "");
    snprintf(reply->extra, sizeof reply->extra, "ETag: %s\r\n", etag);
}

static void complete(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request,
                     struct s3_upload *upload)
{
    static unsigned char whole[4 << 20];
    unsigned char sums[S3_PARTS * 16], sum[16];
    uint64_t size = 0;
    unsigned count = 0;
    if (is_refused(s3, request, fault_s3_find(s3, upload->name))) {
        put_error(reply, 412, "PreconditionFailed", "");
        return;
    }
    for (; count < S3_PARTS && upload->part[count]; count++) {
        memcpy(whole + size, upload->part[count], upload->size[count]);
        size += upload->size[count];
        md5(upload->part[count], upload->size[count], sums + (size_t)16 * count);
    }
    struct s3_object *object = fault_s3_put(s3, upload->name, whole, size);
    md5(sums, (size_t)16 * count, sum);
    set_etag(object->etag, sum, count);
    if (s3->no_etag_of_parts)
        snprintf(object->etag, sizeof object->etag, "\"opaque-%u\"", s3->begun);
    drop_upload(upload);
    if (!keep_checksum(request, object)) {
        put_error(reply, 400, "BadDigest", "");
        return;
    }
    put(reply, 200, "  \n <CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>",
        object->etag);
}

static void list_uploads(struct fault_s3 *s3, struct reply *reply)
{
    put(reply, 200, "<ListMultipartUploadsResult><EncodingType>url</EncodingType>");
    for (unsigned i = 0; i < sizeof s3->uploads / sizeof *s3->uploads; i++)
        if (s3->uploads[i].used)
            reply->length += (size_t)sprintf(reply->body + reply->length,
                                             "<Upload><Key>%s</Key><UploadId>%s</UploadId>"
                                             "<Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>",
                                             s3->uploads[i].name, s3->uploads[i].id);
    reply->length += (size_t)sprintf(reply->body + reply->length, "</ListMultipartUploadsResult>");
}

/* <Key> and <ETag> of each <Object>. */
static void batch(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request,
                  const struct bucket_step *step)
{
    const char *at = request->body;
    unsigned n = 0, all = 0;
    for (const char *one = at; (one = strstr(one, "<Key>")); one++)
        all++;
    put(reply, 200, "<DeleteResult>");
    for (; (at = strstr(at, "<Key>")); n++) {
        char name[256], etag[64] = "";
        at += strlen("<Key>");
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "<"), at);
        const char *match = strstr(at, "<ETag>"), *end = strstr(at, "</Object>");
        if (match && match < end)
            snprintf(etag, sizeof etag, "%.*s", (int)strcspn(match + 6, "<"), match + 6);
        if (step->fault == LEAVE_OUT && n + 1 == all)
            break;
        struct s3_object *object = fault_s3_find(s3, name);
        const char *error = step->fault == PART_STATUS && n == 0 ? (step->status == 503 ? "SlowDown" : "InternalError")
                            : object && etag[0] && strcmp(object->etag, etag) != 0 ? "PreconditionFailed"
                                                                                   : NULL;
        if (!error && object)
            drop(object);
        reply->length +=
            (size_t)(error ? sprintf(reply->body + reply->length,
                                     "<Error><Key>%s</Key><Code>%s</Code><Message>no</Message></Error>", name, error)
                           : sprintf(reply->body + reply->length, "<Deleted><Key>%s</Key></Deleted>", name));
    }
    reply->length += (size_t)sprintf(reply->body + reply->length, "</DeleteResult>");
}

/* ---- one request ---- */

static enum bucket_op op_of(const struct fault_request *request)
{
    bool put_it = strcmp(request->method, "PUT") == 0, post = strcmp(request->method, "POST") == 0;
    bool remove = strcmp(request->method, "DELETE") == 0;
    if (strstr(request->target, "uploadId="))
        return put_it ? OP_PART : post ? OP_COMPLETE : remove ? OP_ABORT : OP_PROBE;
    if (strstr(request->target, "?uploads"))
        return post ? OP_INITIATE : OP_UPLOADS;
    if (strstr(request->target, "?delete"))
        return OP_BATCH;
    if (strstr(request->target, "?list-type=2"))
        return OP_LIST;
    if (strstr(request->target, "?session"))
        return OP_SESSION;
    return put_it ? OP_INSERT : remove ? OP_DELETE : strcmp(request->method, "HEAD") == 0 ? OP_STAT : OP_GET;
}

static void name_of(const struct fault_request *request, char out[256])
{
    const char *at = strchr(request->target + 1, '/'); /* behind the bucket */
    at = at ? at + 1 : "";
    size_t length = strcspn(at, "?"), to = 0;
    for (size_t i = 0; i < length && to + 1 < 256; i++) {
        unsigned byte;
        if (at[i] == '%' && sscanf(at + i + 1, "%2x", &byte) == 1) {
            out[to++] = (char)byte;
            i += 2;
        } else {
            out[to++] = at[i];
        }
    }
    out[to] = 0;
}

static void make_session(struct fault_s3 *s3, struct reply *reply, const struct fault_request *request)
{
    const char *mode = fault_header(request, "x-amz-create-session-mode");
    char until[40];
    time_t end = time(NULL) + (time_t)s3->session_s + (time_t)s3->clock_off_s;
    struct tm tm;
    if (s3->read_only && (!mode || strcmp(mode, "ReadOnly") != 0)) {
        put_error(reply, 403, "AccessDenied", "");
        return;
    }
    strftime(until, sizeof until, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    s3->session++;
    put(reply, 200,
        "<CreateSessionResult><Credentials><SessionToken>TOKEN%u</SessionToken><SecretAccessKey>of-%u</SecretAccessKey>"
        "<AccessKeyId>SESSION%u</AccessKeyId><Expiration>%s</Expiration></Credentials></CreateSessionResult>",
        s3->session, s3->session, s3->session, until);
}

/* What a directory bucket has against a request; true: answered. */
static bool is_out_of_session(const struct fault_s3 *s3, struct reply *reply, const struct fault_request *request)
{
    const char *token = fault_header(request, "x-amz-s3session-token");
    unsigned session = token ? (unsigned)strtoul(token + strspn(token, "TOKEN"), NULL, 10) : 0;
    const char *signature = fault_header(request, "Authorization");
    char scope[8192], key[32];
    snprintf(scope, sizeof scope, "%s", signature ? signature : "");
    snprintf(key, sizeof key, "=SESSION%u/", session);
    bool of_session = op_of(request) != OP_SESSION;
    if (fault_header(request, "Content-MD5"))
        put_error(reply, 400, "InvalidRequest", "");
    else if (!strstr(scope, "/s3express/aws4_request") || (token != NULL) != of_session ||
             (of_session && (!strstr(scope, key) || !strstr(scope, "x-amz-s3session-token"))))
        put_error(reply, 403, "SignatureDoesNotMatch", "");
    else if (of_session && session < s3->session_from)
        put_error(reply, 400, "ExpiredToken", "");
    else
        return false;
    return true;
}

static void perform(struct fault_s3 *s3, enum bucket_op op, struct reply *reply, const struct fault_request *request,
                    const struct bucket_step *step)
{
    char name[256];
    name_of(request, name);
    struct s3_object *object = fault_s3_find(s3, name);
    struct s3_upload *upload = find_upload(s3, fault_query(request, "uploadId"));
    if ((op == OP_PART || op == OP_COMPLETE || op == OP_ABORT || op == OP_PROBE) && !upload) {
        put_error(reply, 404, "NoSuchUpload", "");
        return;
    }
    switch (op) {
    case OP_SESSION:
        make_session(s3, reply, request);
        break;
    case OP_LIST:
        list(s3, reply, request);
        break;
    case OP_UPLOADS:
        list_uploads(s3, reply);
        break;
    case OP_BATCH:
        if (s3->no_batch)
            put_error(reply, 501, "NotImplemented", "");
        else
            batch(s3, reply, request, step);
        break;
    case OP_INSERT:
        insert(s3, reply, request, name);
        break;
    case OP_INITIATE:
        begin(s3, reply, name);
        break;
    case OP_PART:
        take_part(reply, request, upload);
        break;
    case OP_COMPLETE:
        complete(s3, reply, request, upload);
        break;
    case OP_PROBE:
        put(reply, 200, "<ListPartsResult></ListPartsResult>");
        break;
    case OP_ABORT:
        drop_upload(upload);
        put(reply, 204, "%s", "");
        break;
    case OP_DELETE:
        if (is_refused(s3, request, object)) {
            put_error(reply, 412, "PreconditionFailed", "");
        } else {
            if (object)
                drop(object);
            put(reply, 204, "%s", "");
        }
        break;
    default:
        look(reply, s3, request, object);
        break;
    }
}

/* What is wrong with the signature; true: answered. */
static bool is_denied(const struct fault_s3 *s3, struct reply *reply, const struct fault_request *request)
{
    const char *signature = fault_header(request, "Authorization");
    char words[1024], more[200];
    snprintf(words, sizeof words, "%s", signature ? signature : "");
    if (s3->express && is_out_of_session(s3, reply, request))
        return true;
    if (s3->keys && !strstr(words, s3->keys)) {
        put_error(reply, 400, "ExpiredToken", "");
        return true;
    }
    if (s3->region && signature && !strstr(words, s3->region)) {
        snprintf(more, sizeof more, "<Region>%s</Region>", s3->region);
        put_error(reply, 400, "AuthorizationHeaderMalformed", more);
        snprintf(reply->extra, sizeof reply->extra, "x-amz-bucket-region: %s\r\n", s3->region);
        return true;
    }
    const char *date = fault_header(request, "x-amz-date");
    struct tm tm = {0};
    if (!s3->clock_off_s || !date || !strptime(date, "%Y%m%dT%H%M%SZ", &tm))
        return false;
    int64_t off_s = (int64_t)timegm(&tm) - ((int64_t)time(NULL) + s3->clock_off_s);
    if (off_s > -900 && off_s < 900)
        return false;
    put_error(reply, 403, "RequestTimeTooSkewed", "");
    return true;
}

static void send_reply(const struct fault_s3 *s3, struct fault_conn *conn, const struct fault_request *request,
                       const struct reply *reply, const struct bucket_step *step)
{
    char date[64];
    time_t now = time(NULL) + (time_t)s3->clock_off_s;
    struct tm tm;
    strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &tm));
    uint64_t size = reply->object ? reply->size : reply->length, part = size;
    const void *body = reply->object ? (const void *)(reply->object->data + reply->first) : reply->body;
    if (step->fault == SHORT_ANSWER || step->fault == RESET_AFTER || step->fault == STALL_IN_BODY)
        part /= 2;
    if (step->fault == SHORTER && size)
        part = --size;
    size += step->fault == LONGER;
    fault_printf(conn, "HTTP/1.1 %d Status\r\n%s%sContent-Length: %llu\r\n\r\n", reply->status, date, reply->extra,
                 (unsigned long long)size);
    if (strcmp(request->method, "HEAD") == 0)
        return;
    unsigned char *copy = malloc(part + 1);
    if (!copy)
        abort();
    memcpy(copy, body, part);
    if (step->fault == WRONG_CRC && reply->object)
        copy[part / 2] ^= 1;
    fault_send(conn, copy, part);
    if (step->fault == LONGER)
        fault_send(conn, "x", 1);
    free(copy);
}

/* How the connection goes on: true: it is kept. */
static bool answer(struct fault_s3 *s3, struct fault_conn *conn, const struct fault_request *request,
                   struct reply *reply, enum bucket_op op, const struct bucket_step *step)
{
    bool reads = op == OP_GET || op == OP_STAT;
    switch (step->fault) {
    case RESET_BEFORE:
        fault_reset(conn);
        return false;
    case RESET_AFTER:
        if (op == OP_GET)
            send_reply(s3, conn, request, reply, step);
        fault_wait(conn, 50);
        fault_reset(conn);
        return false;
    case STALL_IN_HEAD:
        fault_printf(conn, "HTTP/1.1 200 OK\r\n");
        fault_wait(conn, 30000);
        return false;
    case STALL_IN_BODY:
        send_reply(s3, conn, request, reply, step);
        fault_wait(conn, 30000);
        return false;
    case STALL_AFTER:
        fault_wait(conn, 30000);
        return false;
    case CLOSE_BEFORE:
        return false;
    case RESET_IN_HEAD:
        fault_printf(conn, "HTTP/1.1 200 OK\r\nContent-Le");
        fault_wait(conn, 50);
        fault_reset(conn);
        return false;
    case NO_HTTP:
        fault_printf(conn, "220 this is no web server\r\n");
        return false;
    case OTHER_VERSION:
        snprintf(reply->extra, sizeof reply->extra, "ETag: \"another\"\r\n");
        break;
    case SHORT_ANSWER:
        if (op == OP_STAT)
            fault_printf(conn, "HTTP/1.1 200 OK\r\nConte");
        else
            send_reply(s3, conn, request, reply, step);
        return false;
    case GARBAGE:
        if (!reads) {
            put(reply, 200, "no XML");
            reply->extra[0] = 0;
        }
        break;
    case ERROR_IN_200:
        put(reply, 200, " \n<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>later</Message></Error>",
            step->extra ? step->extra : "InternalError");
        break;
    case DONE_STATUS:
        put_status(reply, step->status);
        break;
    default:
        break;
    }
    send_reply(s3, conn, request, reply, step);
    return true;
}

static void damage(struct s3_object *object)
{
    static const unsigned char sum[16] = {1, 2, 3};
    if (!object || !object->size)
        return;
    object->data[0] ^= 1;
    set_etag(object->etag, sum, 0);
    if (object->checksum[0])
        snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc32c: AAAAAA==\r\n");
}

bool fault_s3_handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    static const struct bucket_step none;
    struct fault_s3 *s3 = arg;
    struct reply *reply = calloc(1, sizeof *reply);
    enum bucket_op op = op_of(request);
    const struct bucket_step *step = &none;
    if (!reply)
        abort();
    pthread_mutex_lock(&s3->lock);
    unsigned n = s3->count[op]++;
    for (unsigned i = 0, seen = 0; i < s3->steps; i++)
        if (s3->script[i].op == op && seen++ == n)
            step = &s3->script[i];
    snprintf(s3->last_head[op], sizeof s3->last_head[op], "%s", request->head);
    s3->matches += op == OP_GET && strstr(request->head, "If-Match: ");
    snprintf(s3->last_target[op], sizeof s3->last_target[op], "%s", request->target);
    snprintf(s3->last_body[op], sizeof s3->last_body[op], "%s", request->body ? request->body : "");
    char name[256];
    name_of(request, name);
    if (step->fault == ANSWER_STATUS)
        put_status(reply, step->status);
    else if (step->fault != RESET_BEFORE && step->fault != ERROR_IN_200 && !is_denied(s3, reply, request))
        perform(s3, op, reply, request, step);
    if (step->fault == WRONG_CRC && op != OP_GET)
        damage(fault_s3_find(s3, name));
    if (step->fault == DONE_TWICE)
        fault_s3_put(s3, name, "another's", 9);
    const struct s3_object *made = step->fault == REPLACED ? fault_s3_find(s3, name) : NULL;
    if (made) {
        char *other = calloc(1, made->size + 1); /* a byte more */
        if (!other)
            abort();
        fault_s3_put(s3, name, other, made->size + 1);
        free(other);
    }
    struct s3_object copy = {0};
    if (reply->object) { /* it may go while it is sent */
        copy = *reply->object;
        copy.data = malloc(copy.size + 1);
        if (!copy.data)
            abort();
        memcpy(copy.data, reply->object->data, copy.size);
        reply->object = &copy;
    }
    pthread_mutex_unlock(&s3->lock);
    bool keep = step->fault == DONE_TWICE ? (fault_reset(conn), false) : answer(s3, conn, request, reply, op, step);
    free(copy.data);
    free(reply);
    return keep;
}
