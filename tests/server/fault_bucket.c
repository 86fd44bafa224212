#include "fault_bucket.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checksum.h"

#define ANY UINT64_MAX

struct reply {
    int status;
    char extra[1024];
    char body[100000];
    size_t length;
};

/* ---- objects ---- */

void fault_bucket_init(struct fault_bucket *bucket)
{
    memset(bucket, 0, sizeof *bucket);
    pthread_mutex_init(&bucket->lock, NULL);
    bucket->generation = 1000;
}

void fault_bucket_close(struct fault_bucket *bucket)
{
    for (unsigned i = 0; i < BUCKET_OBJECTS; i++)
        free(bucket->objects[i].data);
    for (unsigned i = 0; i < 16; i++) {
        free(bucket->sessions[i].data);
        for (unsigned p = 0; p < 64; p++)
            free(bucket->sessions[i].part[p]);
    }
    pthread_mutex_destroy(&bucket->lock);
}

struct bucket_object *fault_bucket_find(struct fault_bucket *bucket, const char *name)
{
    for (unsigned i = 0; i < BUCKET_OBJECTS; i++) {
        if (bucket->objects[i].data && strcmp(bucket->objects[i].name, name) == 0)
            return &bucket->objects[i];
    }
    return NULL;
}

uint64_t fault_bucket_put(struct fault_bucket *bucket, const char *name, const void *data, uint64_t size)
{
    struct bucket_object *object = fault_bucket_find(bucket, name);
    for (unsigned i = 0; !object && i < BUCKET_OBJECTS; i++) {
        if (!bucket->objects[i].data)
            object = &bucket->objects[i];
    }
    if (!object)
        abort();
    unsigned char *copy = malloc(size + 1);
    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    free(object->data);
    object->data = copy;
    snprintf(object->name, sizeof object->name, "%s", name);
    object->size = size;
    object->crc = mr_crc32c(0, copy, size);
    object->created_s = time(NULL);
    object->generation = ++bucket->generation;
    return object->generation;
}

static void drop(struct bucket_object *object)
{
    free(object->data);
    object->data = NULL;
}

void fault_bucket_remove(struct fault_bucket *bucket, const char *name)
{
    struct bucket_object *object = fault_bucket_find(bucket, name);
    if (object)
        drop(object);
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
}

static void put_error(struct reply *reply, int status)
{
    put(reply, status, "{\"error\":{\"code\":%d,\"message\":\"the script says %d\"}}", status, status);
}

static void put_object(struct reply *reply, const struct bucket_object *object)
{
    char crc[9];
    mr_crc32c_to_base64(object->crc, crc);
    put(reply, 200, "{\"name\":\"%s\",\"size\":\"%llu\",\"generation\":\"%llu\",\"crc32c\":\"%s\"}", object->name,
        (unsigned long long)object->size, (unsigned long long)object->generation, crc);
    snprintf(reply->extra, sizeof reply->extra, "x-goog-generation: %llu\r\nx-goog-hash: crc32c=%s\r\n",
             (unsigned long long)object->generation, crc);
}

/* ifGenerationMatch in a target, ANY where there is none. */
static uint64_t match_of(const char *target)
{
    const char *at = strstr(target, "ifGenerationMatch=");
    return at ? strtoull(at + strlen("ifGenerationMatch="), NULL, 10) : ANY;
}

static bool matches(const struct bucket_object *object, uint64_t match)
{
    return match == ANY || (match == 0 ? !object : object && object->generation == match);
}

static void decode(char *out, size_t size, const char *text, size_t length)
{
    size_t at = 0;
    for (size_t i = 0; i < length && at + 1 < size; i++) {
        unsigned byte;
        if (text[i] == '%' && sscanf(text + i + 1, "%2x", &byte) == 1) {
            out[at++] = (char)byte;
            i += 2;
        } else {
            out[at++] = text[i];
        }
    }
    out[at] = 0;
}

/* ---- operations ---- */

static void make(struct fault_bucket *bucket, const struct bucket_step *step, struct reply *reply, const char *name,
                 const void *data, uint64_t size, uint64_t match)
{
    if (!matches(fault_bucket_find(bucket, name), match)) {
        put_error(reply, 412);
        return;
    }
    fault_bucket_put(bucket, name, data, size);
    struct bucket_object *object = fault_bucket_find(bucket, name);
    if (step->fault == WRONG_CRC)
        object->crc ^= 1;
    put_object(reply, object);
    if (step->fault == DONE_TWICE)
        fault_bucket_put(bucket, name, "other", 5);
    if (step->fault == REPLACED && size < SIZE_MAX) {
        char *other = calloc(1, size + 1);
        if (!other)
            abort();
        fault_bucket_put(bucket, name, other, size + 1);
        free(other);
    }
}

static void do_insert(struct fault_bucket *bucket, const struct bucket_step *step, const struct fault_request *request,
                      struct reply *reply)
{
    char boundary[80] = "";
    const char *type = fault_header(request, "Content-Type"), *at = type ? strstr(type, "boundary=") : NULL;
    if (!at || sscanf(at + 9, "%79s", boundary) != 1) {
        put_error(reply, 400);
        return;
    }
    char name[256];
    snprintf(name, sizeof name, "%s", fault_query(request, "name"));
    const char *json = strstr(request->body, "\"crc32c\":\"");
    const char *second = strstr(request->body + 3, boundary);
    const char *data = second ? strstr(second, "\r\n\r\n") : NULL;
    size_t tail = strlen(boundary) + 8; /* CR LF -- boundary -- CR LF */
    char crc[16] = "";
    if (!json || !data || sscanf(json + 10, "%8s", crc) != 1) {
        put_error(reply, 400);
        return;
    }
    data += 4;
    uint64_t size = request->body_length - (size_t)(data - request->body) - tail;
    char sent[9];
    mr_crc32c_to_base64(mr_crc32c(0, data, size), sent);
    if (strcmp(sent, crc) != 0)
        put_error(reply, 400);
    else
        make(bucket, step, reply, name, data, size, match_of(request->target));
}

static void do_delete(struct fault_bucket *bucket, const char *name, const char *target, struct reply *reply)
{
    struct bucket_object *object = fault_bucket_find(bucket, name);
    uint64_t match = match_of(target);
    if (!object) {
        put_error(reply, 404);
    } else if (!matches(object, match)) {
        put_error(reply, 412);
    } else {
        drop(object);
        reply->status = 204;
    }
}

/* "/storage/v1/b/bucket/o/<name>[/compose][?...]" */
static int name_of(const char *target, char *name, size_t size)
{
    const char *at = strstr(target, "/o/");
    if (!at)
        return -1;
    at += 3;
    size_t length = strcspn(at, "?");
    if (length > 8 && memcmp(at + length - 8, "/compose", 8) == 0)
        length -= 8;
    decode(name, size, at, length);
    return 0;
}

static void do_batch(struct fault_bucket *bucket, const struct bucket_step *step, const struct fault_request *request,
                     struct reply *reply)
{
    unsigned parts = 0;
    for (const char *p = request->body; (p = strstr(p, "<millrace+")); p++)
        parts++;
    size_t at = 0;
    unsigned id, count = 0;
    for (const char *p = request->body; (p = strstr(p, "<millrace+")); p++) {
        char target[1500];
        const char *line = strstr(p, "DELETE ");
        if (sscanf(p, "<millrace+%u>", &id) != 1 || !line || sscanf(line, "DELETE %1499s", target) != 1)
            abort();
        count++;
        char name[256];
        struct reply one = {0};
        if (step->fault == PART_STATUS && count == 1)
            put_error(&one, step->status);
        else if (name_of(target, name, sizeof name) == 0)
            do_delete(bucket, name, target, &one);
        if (step->fault == LEAVE_OUT && count == parts)
            break;
        at += (size_t)snprintf(reply->body + at, sizeof reply->body - at,
                               "--b_1\r\nContent-Type: application/http\r\nContent-ID: <response-millrace+%u>\r\n\r\n"
                               "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n%s\r\n",
                               id, one.status, one.length, one.length ? one.body : "");
    }
    at += (size_t)snprintf(reply->body + at, sizeof reply->body - at, "--b_1--\r\n");
    reply->status = 200;
    reply->length = at;
    snprintf(reply->extra, sizeof reply->extra, "Content-Type: multipart/mixed; boundary=b_1\r\n");
}

static void do_compose(struct fault_bucket *bucket, const struct bucket_step *step, const struct fault_request *request,
                       struct reply *reply)
{
    static unsigned char whole[1 << 20];
    char target[256];
    name_of(request->target, target, sizeof target);
    char name[256];
    uint64_t size = 0;
    for (const char *p = request->body; (p = strstr(p, "{\"name\":\"")); p++) {
        size_t n = strcspn(p + 9, "\"");
        snprintf(name, sizeof name, "%.*s", (int)n, p + 9);
        unsigned long long generation = 0;
        sscanf(p + 9 + n, "\",\"generation\":%llu", &generation);
        struct bucket_object *source = fault_bucket_find(bucket, name);
        if (!source || (generation && source->generation != generation)) {
            put_error(reply, source ? 412 : 404);
            return;
        }
        memcpy(whole + size, source->data, source->size);
        size += source->size;
    }
    make(bucket, step, reply, target, whole, size, match_of(request->target));
}

/* ---- resumable sessions ---- */

static struct bucket_session *session_new(struct fault_bucket *bucket, const char *name, uint64_t match)
{
    for (unsigned i = 0; i < 16; i++) {
        struct bucket_session *session = &bucket->sessions[i];
        if (session->used)
            continue;
        session->used = true;
        session->match = match;
        snprintf(session->name, sizeof session->name, "%s", name);
        return session;
    }
    abort();
}

static struct bucket_session *session_of(struct fault_bucket *bucket, const char *target, const char *key)
{
    const char *at = strstr(target, key);
    unsigned n = at ? (unsigned)strtoul(at + strlen(key), NULL, 10) : 99;
    return n < 16 && bucket->sessions[n].used && !bucket->sessions[n].gone ? &bucket->sessions[n] : NULL;
}

static void do_begin(struct fault_bucket *bucket, const struct fault_request *request, struct reply *reply)
{
    const char *name = fault_query(request, "name");
    uint64_t match = match_of(request->target);
    if (!matches(fault_bucket_find(bucket, name), match)) {
        put_error(reply, 412);
        return;
    }
    struct bucket_session *session = session_new(bucket, name, match);
    reply->status = 200;
    snprintf(reply->extra, sizeof reply->extra,
             "Location: http://elsewhere.example/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=%u\r\n",
             (unsigned)(session - bucket->sessions));
}

static void tell_kept(const struct bucket_session *session, struct reply *reply)
{
    reply->status = 308;
    if (session->size)
        snprintf(reply->extra, sizeof reply->extra, "Range: bytes=0-%llu\r\n", (unsigned long long)session->size - 1);
}

static void do_chunk(struct fault_bucket *bucket, const struct bucket_step *step, const struct fault_request *request,
                     struct reply *reply)
{
    struct bucket_session *session = session_of(bucket, request->target, "upload_id=");
    const char *range = fault_header(request, "Content-Range");
    uint64_t length = request->body_length;
    if (!session || step->fault == FORGET) {
        if (session)
            session->gone = true;
        put_error(reply, step->fault == FORGET ? step->status : 404);
        return;
    }
    if (session->finished) {
        struct bucket_object *object = fault_bucket_find(bucket, session->name);
        if (object)
            put_object(reply, object);
        else
            put_error(reply, 404);
        return;
    }
    unsigned long long first = 0, last = 0, total = ANY;
    bool has_bytes = range && sscanf(range, "bytes %llu-%llu/%llu", &first, &last, &total) >= 2;
    if (!has_bytes && (!range || sscanf(range, "bytes */%llu", &total) != 1))
        total = ANY;
    if (has_bytes &&
        (last - first + 1 != length || first > session->size || (total == ANY && length % (256u << 10) != 0))) {
        put_error(reply, 400);
        return;
    }
    uint64_t kept = length;
    if (step->fault == KEEP_LESS || step->fault == KEEP_THEN_RESET)
        kept = step->after;
    if (has_bytes) {
        session->data = realloc(session->data, first + kept + 1);
        memcpy(session->data + first, request->body, kept);
        session->size = first + kept;
    }
    if (step->fault == FORGET_BYTES)
        session->size = step->after;
    if (session->size != total) {
        tell_kept(session, reply);
        return;
    }
    make(bucket, step, reply, session->name, session->data, session->size, session->match);
    session->finished = reply->status == 200 ? bucket->generation : 0;
}

/* ---- XML multipart ---- */

static void do_initiate(struct fault_bucket *bucket, const char *name, struct reply *reply)
{
    struct bucket_session *session = session_new(bucket, name, ANY);
    put(reply, 200,
        "<?xml version='1.0' encoding='UTF-8'?>\n<InitiateMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/"
        "2006-03-01/'><Bucket>bucket</Bucket><Key>%s</Key><UploadId>%u</UploadId></InitiateMultipartUploadResult>",
        name, (unsigned)(session - bucket->sessions));
}

static void do_part(struct fault_bucket *bucket, const struct fault_request *request, struct reply *reply)
{
    struct bucket_session *session = session_of(bucket, request->target, "uploadId=");
    const char *number = fault_query(request, "partNumber");
    unsigned n = number ? (unsigned)strtoul(number, NULL, 10) : 0;
    char crc[9];
    mr_crc32c_to_base64(mr_crc32c(0, request->body, request->body_length), crc);
    char line[40];
    snprintf(line, sizeof line, "crc32c=%s", crc);
    const char *hash = fault_header(request, "x-goog-hash");
    if (!session || n == 0 || n >= 64 || !hash || strcmp(hash, line) != 0) {
        put(reply, session ? 400 : 404, "<Error><Code>BadDigest</Code><Message>the part is refused</Message></Error>");
        return;
    }
    free(session->part[n]);
    session->part[n] = malloc(request->body_length + 1);
    memcpy(session->part[n], request->body, request->body_length);
    session->part_size[n] = request->body_length;
    reply->status = 200;
    snprintf(reply->extra, sizeof reply->extra, "ETag: \"part-%u-%s\"\r\nx-goog-hash: %s\r\n", n, crc, line);
}

static void do_complete(struct fault_bucket *bucket, const struct bucket_step *step,
                        const struct fault_request *request, struct reply *reply)
{
    struct bucket_session *session = session_of(bucket, request->target, "uploadId=");
    unsigned char *whole = malloc(1);
    if (!session) {
        put(reply, 404, "<Error><Code>NoSuchUpload</Code><Message>no such upload</Message></Error>");
        free(whole);
        return;
    }
    uint64_t size = 0;
    for (const char *p = request->body; (p = strstr(p, "<PartNumber>")); p++) {
        unsigned n = (unsigned)strtoul(p + 12, NULL, 10);
        if (n == 0 || n >= 64 || !session->part[n]) {
            put(reply, 400, "<Error><Code>InvalidPart</Code><Message>part %u is missing</Message></Error>", n);
            free(whole);
            return;
        }
        char crc[9];
        mr_crc32c_to_base64(mr_crc32c(0, session->part[n], session->part_size[n]), crc);
        char etag[60];
        snprintf(etag, sizeof etag, "part-%u-%s", n, crc);
        if (!strstr(p, etag)) {
            put(reply, 400, "<Error><Code>InvalidPart</Code><Message>another etag</Message></Error>");
            free(whole);
            return;
        }
        whole = realloc(whole, size + session->part_size[n] + 1);
        memcpy(whole + size, session->part[n], session->part_size[n]);
        size += session->part_size[n];
    }
    make(bucket, step, reply, session->name, whole, size, ANY);
    session->gone = true;
    put(reply, 200,
        "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><Location>x</Location><Bucket>bucket</Bucket>"
        "<Key>%s</Key><ETag>\"e\"</ETag></CompleteMultipartUploadResult>",
        session->name);
    free(whole);
}

static void do_uploads(struct fault_bucket *bucket, const struct fault_request *request, struct reply *reply)
{
    char started[40] = "2026-01-02T03:04:05.678Z";
    time_t now = time(NULL);
    if (bucket->started_now)
        strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%S.000Z", gmtime(&now));
    const char *marker = fault_query(request, "upload-id-marker");
    unsigned from = marker ? (unsigned)strtoul(marker, NULL, 10) + 1 : 0, n = 0, i;
    char list[20000] = "";
    for (i = from; i < 16 && n < 3; i++) {
        const struct bucket_session *session = &bucket->sessions[i];
        if (!session->used || session->gone)
            continue;
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at,
                 "<Upload><Key>%s</Key><UploadId>%u</UploadId><Initiated>%s</Initiated></Upload>", session->name, i,
                 started);
        n++;
    }
    put(reply, 200,
        "<?xml version='1.0' encoding='UTF-8'?><ListMultipartUploadsResult><Bucket>bucket</Bucket>%s"
        "<IsTruncated>%s</IsTruncated><NextKeyMarker>k&amp;%u</NextKeyMarker><NextUploadIdMarker>%u</"
        "NextUploadIdMarker>"
        "</ListMultipartUploadsResult>",
        list, i < 16 ? "true" : "false", i - 1, i - 1);
}

/* ---- listing: all of a prefix, in order ---- */

static void put_date(const struct fault_bucket *bucket, struct reply *reply)
{
    struct tm tm;
    time_t now = time(NULL) + bucket->clock_off_s;
    strftime(reply->extra, sizeof reply->extra, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &tm));
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct bucket_object *const *)a)->name, (*(struct bucket_object *const *)b)->name);
}

static void do_list(struct fault_bucket *bucket, const struct fault_request *request, struct reply *reply)
{
    const struct bucket_object *found[BUCKET_OBJECTS];
    const char *prefix = fault_query(request, "prefix");
    unsigned count = 0;
    size_t at = (size_t)snprintf(reply->body, sizeof reply->body, "{\"kind\":\"storage#objects\",\"items\":[");
    for (unsigned i = 0; i < BUCKET_OBJECTS; i++)
        if (bucket->objects[i].data &&
            strncmp(bucket->objects[i].name, prefix ? prefix : "", strlen(prefix ? prefix : "")) == 0)
            found[count++] = &bucket->objects[i];
    qsort(found, count, sizeof *found, by_name);
    for (unsigned i = 0; i < count; i++) {
        char crc[9];
        time_t seconds = (time_t)found[i]->created_s;
        mr_crc32c_to_base64(found[i]->crc, crc);
        char created[40];
        struct tm tm;
        strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%S.000Z", gmtime_r(&seconds, &tm));
        at += (size_t)snprintf(reply->body + at, sizeof reply->body - at,
                               "%s{\"name\":\"%s\",\"size\":\"%llu\",\"generation\":\"%llu\",\"crc32c\":\"%s\","
                               "\"storageClass\":\"STANDARD\",\"timeCreated\":\"%s\"}",
                               i ? "," : "", found[i]->name, (unsigned long long)found[i]->size,
                               (unsigned long long)found[i]->generation, crc, created);
    }
    at += (size_t)snprintf(reply->body + at, sizeof reply->body - at, "]}");
    if (at >= sizeof reply->body)
        abort();
    reply->status = 200;
    reply->length = at;
    put_date(bucket, reply);
}

/* ---- dispatch ---- */

static enum bucket_op op_of(const struct fault_request *request)
{
    const char *target = request->target, *method = request->method;
    bool is_put = strcmp(method, "PUT") == 0, is_post = strcmp(method, "POST") == 0,
         is_get = strcmp(method, "GET") == 0;
    if (strncmp(target, "/batch/", 7) == 0)
        return OP_BATCH;
    if (strncmp(target, "/upload/", 8) == 0) {
        const char *range = fault_header(request, "Content-Range");
        if (is_post)
            return strstr(target, "uploadType=multipart") ? OP_INSERT : OP_BEGIN;
        if (!is_put)
            return OP_DROP;
        return range && strcmp(range, "bytes */*") == 0 ? OP_PROBE : OP_CHUNK;
    }
    if (strncmp(target, "/storage/", 9) == 0) {
        if (strstr(target, "/iam/"))
            return OP_PERMISSIONS;
        if (is_post)
            return OP_COMPOSE;
        if (strstr(target, "/o/"))
            return is_get ? OP_STAT : OP_DELETE;
        if (strstr(target, "/o?"))
            return OP_LIST;
        return OP_BUCKET;
    }
    if (is_get)
        return OP_UPLOADS;
    if (is_put)
        return OP_PART;
    if (!is_post)
        return OP_ABORT;
    return strstr(target, "uploadId=") ? OP_COMPLETE : OP_INITIATE;
}

static void act(struct fault_bucket *bucket, enum bucket_op op, const struct bucket_step *step,
                const struct fault_request *request, struct reply *reply)
{
    char name[256] = "";
    struct bucket_object *object;
    struct bucket_session *session;
    switch (op) {
    case OP_INSERT:
        do_insert(bucket, step, request, reply);
        break;
    case OP_DELETE:
        name_of(request->target, name, sizeof name);
        do_delete(bucket, name, request->target, reply);
        break;
    case OP_BATCH:
        do_batch(bucket, step, request, reply);
        break;
    case OP_COMPOSE:
        do_compose(bucket, step, request, reply);
        break;
    case OP_STAT:
        name_of(request->target, name, sizeof name);
        object = fault_bucket_find(bucket, name);
        if (object)
            put_object(reply, object);
        else
            put_error(reply, 404);
        break;
    case OP_BUCKET:
        put(reply, 200,
            "{\"name\":\"bucket\",\"location\":\"US-EAST1\",\"locationType\":\"region\",\"storageClass\":\"NEARLINE\","
            "\"hierarchicalNamespace\":{\"enabled\":true},\"versioning\":{\"enabled\":false},"
            "\"billing\":{\"requesterPays\":true},\"softDeletePolicy\":{\"retentionDurationSeconds\":\"604800\","
            "\"effectiveTime\":\"x\"},\"autoclass\":{\"enabled\":true},\"labels\":{\"a\":[1,2,{}]}}");
        break;
    case OP_PERMISSIONS:
        put(reply, 200, "{\"kind\":\"x\",\"permissions\":[\"storage.objects.create\",\"storage.objects.get\"]}");
        break;
    case OP_BEGIN:
        do_begin(bucket, request, reply);
        break;
    case OP_CHUNK:
    case OP_PROBE:
        do_chunk(bucket, step, request, reply);
        break;
    case OP_DROP:
    case OP_ABORT:
        session = session_of(bucket, request->target, op == OP_DROP ? "upload_id=" : "uploadId=");
        reply->status = op == OP_DROP ? 499 : session ? 204 : 404;
        if (session)
            session->gone = true;
        break;
    case OP_INITIATE:
        decode(name, sizeof name, request->target + strlen("/bucket/"), strcspn(request->target + 8, "?"));
        do_initiate(bucket, name, reply);
        break;
    case OP_PART:
        do_part(bucket, request, reply);
        break;
    case OP_COMPLETE:
        do_complete(bucket, step, request, reply);
        break;
    case OP_LIST:
        do_list(bucket, request, reply);
        break;
    default:
        do_uploads(bucket, request, reply);
        break;
    }
}

static const struct bucket_step *step_of(const struct fault_bucket *bucket, enum bucket_op op, unsigned n)
{
    static const struct bucket_step well;
    for (unsigned i = 0; i < bucket->steps; i++) {
        if (bucket->script[i].op == op && n-- == 0)
            return &bucket->script[i];
    }
    return &well;
}

static bool answer(struct fault_conn *conn, const struct bucket_step *step, struct reply *reply)
{
    switch (step->fault) {
    case RESET_BEFORE:
    case RESET_AFTER:
    case KEEP_THEN_RESET:
    case DONE_TWICE:
        fault_reset(conn);
        return false;
    case STALL_AFTER:
        fault_wait(conn, 30000);
        return false;
    case SHORT_ANSWER:
        fault_printf(conn, "HTTP/1.1 200 X\r\nContent-Length: %zu\r\n\r\n", reply->length + 2);
        fault_send(conn, reply->body, reply->length / 2);
        return false;
    case GARBAGE:
        fault_answer(conn, 200, "", "<<<>>>{", 7);
        return true;
    case DONE_STATUS:
        put_error(reply, step->status);
        snprintf(reply->extra, sizeof reply->extra, "%s", step->extra ? step->extra : "");
        break;
    default:
        break;
    }
    fault_answer(conn, reply->status, reply->extra, reply->body, reply->length);
    return true;
}

bool fault_bucket_handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    struct fault_bucket *bucket = arg;
    enum bucket_op op = op_of(request);
    struct reply *reply = calloc(1, sizeof *reply);
    if (!reply)
        abort();
    pthread_mutex_lock(&bucket->lock);
    const struct bucket_step *step = step_of(bucket, op, bucket->count[op]++);
    bucket->seen_on_conn[op] = request->on_conn;
    snprintf(bucket->last_head[op], sizeof bucket->last_head[op], "%s", request->head);
    snprintf(bucket->last_target[op], sizeof bucket->last_target[op], "%s", request->target);
    snprintf(bucket->last_body[op], sizeof bucket->last_body[op], "%s", request->body);
    if (step->fault == ANSWER_STATUS) {
        put_error(reply, step->status);
        snprintf(reply->extra, sizeof reply->extra, "%s", step->extra ? step->extra : "");
    } else if (step->fault != RESET_BEFORE) {
        act(bucket, op, step, request, reply);
    }
    pthread_mutex_unlock(&bucket->lock);
    bool keep = answer(conn, step, reply);
    free(reply);
    return keep;
}
