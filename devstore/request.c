#include "devstore/request.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/error.h"
#include "devstore/xml.h"

const char *const ds_op_names[MR_OP_COUNT] = {
    [MR_OP_LIST] = "list",           [MR_OP_GET] = "get",
    [MR_OP_STAT] = "stat",           [MR_OP_UPLOAD] = "upload",
    [MR_OP_COMPOSE] = "compose",     [MR_OP_COPY] = "copy",
    [MR_OP_DELETE] = "delete",       [MR_OP_BATCH] = "batch",
    [MR_OP_BUCKET] = "bucket",       [MR_OP_IAM] = "iam",
    [MR_OP_ADMIN] = "admin",         [MR_OP_OTHER] = "other",
    [MR_OP_RESUMABLE] = "resumable", [MR_OP_CHUNK] = "chunk",
    [MR_OP_CANCEL] = "cancel",       [MR_OP_INITIATE] = "initiate",
    [MR_OP_PART] = "part",           [MR_OP_COMPLETE] = "complete",
    [MR_OP_ABORT] = "abort",         [MR_OP_PARTS] = "parts",
    [MR_OP_UPLOADS] = "uploads",     [MR_OP_SESSION] = "session",
};

bool ds_op_uploads(enum ds_op op)
{
    return op == MR_OP_UPLOAD || op == MR_OP_CHUNK || op == MR_OP_PART;
}

#define SEGMENTS 12

/* The raw path between its slashes. */
struct path {
    int n; /* SEGMENTS + 1: more than that */
    struct {
        const char *at;
        size_t length;
    } part[SEGMENTS];
};

/* The segments point into the target, and stay encoded. */
static void request_split(const char *at, const char *end, struct path *path)
{
    path->n = 0;
    for (at += at < end && *at == '/';;) {
        const char *slash = memchr(at, '/', (size_t)(end - at));
        const char *stop = slash ? slash : end;
        if (path->n == SEGMENTS) {
            path->n++;
            return;
        }
        path->part[path->n].at = at;
        path->part[path->n++].length = (size_t)(stop - at);
        if (!slash)
            return;
        at = slash + 1;
    }
}

static bool is(const struct path *path, int i, const char *word)
{
    return i < path->n && path->part[i].length == strlen(word) && memcmp(path->part[i].at, word, strlen(word)) == 0;
}

static void request_refuse(struct ds_request *request, int status, const char *why)
{
    request->bad = status;
    request->why = why;
}

static bool method_is(const struct ds_request *request, const char *method)
{
    return strcmp(request->method, method) == 0;
}

static bool reading(const struct ds_request *request)
{
    return method_is(request, "GET") || method_is(request, "HEAD");
}

/* The caller frees the text, also where the request is refused because it is too long. NULL: refused. */
static char *decode(struct ds_request *request, const char *at, size_t length)
{
    char *text = ds_percent_decode(at, length, false);
    if (!text)
        request_refuse(request, 400, "The path is not percent-encoded UTF-8.");
    else if (strlen(text) > MR_NAME_MAX)
        request_refuse(request, 400, "The name is over 1024 bytes.");
    return text;
}

static void set_op(struct ds_request *request, bool allowed, enum ds_op op)
{
    if (allowed)
        request->op = op;
    else
        request_refuse(request, 405, "Method not allowed.");
}

/* moveTo/o/OBJECT from segment `at` */
static void route_move(struct ds_request *request, const struct path *path, int at)
{
    request->move = true;
    request->to_bucket = strdup(request->bucket);
    request->to_object = decode(request, path->part[at + 2].at, path->part[at + 2].length);
    if (!request->to_bucket)
        request_refuse(request, 500, "out of memory");
    if (!request->bad)
        set_op(request, method_is(request, "POST"), MR_OP_COPY);
}

/* copyTo/b/BUCKET/o/OBJECT from segment `at` */
static void route_copy(struct ds_request *request, const struct path *path, int at)
{
    if (!is(path, at + 1, "b") || !is(path, at + 3, "o")) {
        request_refuse(request, 404, "Not Found");
        return;
    }
    request->to_bucket = decode(request, path->part[at + 2].at, path->part[at + 2].length);
    if (!request->bad)
        request->to_object = decode(request, path->part[at + 4].at, path->part[at + 4].length);
    if (!request->bad)
        set_op(request, method_is(request, "POST"), MR_OP_COPY);
}

static void route_object(struct ds_request *request, const struct path *path, int at, bool media)
{
    const char *alt = ds_request_query(request, "alt");
    request->object = decode(request, path->part[at].at, path->part[at].length);
    if (request->bad)
        return;
    if (!*request->object)
        request_refuse(request, 400, "The object's name is empty.");
    else if (path->n == at + 2 && is(path, at + 1, "compose"))
        set_op(request, method_is(request, "POST"), MR_OP_COMPOSE);
    else if (path->n == at + 6 && is(path, at + 1, "copyTo"))
        route_copy(request, path, at + 1);
    else if (path->n == at + 4 && is(path, at + 1, "moveTo") && is(path, at + 2, "o"))
        route_move(request, path, at + 1);
    else if (path->n != at + 1)
        request_refuse(request, 404, "Not Found"); /* slashes in names must be encoded: as the real service answers */
    else if (reading(request))
        request->op = media || (alt && strcmp(alt, "media") == 0) ? MR_OP_GET : MR_OP_STAT;
    else
        set_op(request, method_is(request, "DELETE"), MR_OP_DELETE);
}

/* upload/storage/v1/b/BUCKET/o */
static void route_upload(struct ds_request *request)
{
    const char *type = ds_request_query(request, "uploadType");
    bool session = ds_request_query(request, "upload_id") != NULL;
    if (session && method_is(request, "DELETE"))
        request->op = MR_OP_CANCEL;
    else if (session)
        set_op(request, method_is(request, "PUT") || method_is(request, "POST"), MR_OP_CHUNK);
    else if (type && strcmp(type, "resumable") == 0)
        set_op(request, method_is(request, "POST") || method_is(request, "PUT"), MR_OP_RESUMABLE);
    else
        set_op(request, method_is(request, "POST") || method_is(request, "PUT"), MR_OP_UPLOAD);
}

/* storage/v1/b... from segment `at`; media, upload: it followed download/ or upload/ */
static void route_storage(struct ds_request *request, const struct path *path, int at, bool media, bool upload)
{
    int left = path->n - at - 3; /* segments after the b */
    if (left < 0 || path->n > SEGMENTS || !is(path, at, "storage") || !is(path, at + 1, "v1") ||
        !is(path, at + 2, "b")) {
        request_refuse(request, 404, "Not Found");
        return;
    }
    at += 3;
    if (left > 0)
        request->bucket = decode(request, path->part[at].at, path->part[at].length);
    if (request->bad)
        return;
    if (upload && left == 2 && is(path, at + 1, "o"))
        route_upload(request);
    else if (!upload && left >= 3 && is(path, at + 1, "o"))
        route_object(request, path, at + 2, media);
    else if (upload || media)
        request_refuse(request, 404, "Not Found");
    else if (left == 0)
        set_op(request, reading(request) || method_is(request, "POST"), MR_OP_BUCKET);
    else if (left == 1)
        set_op(request, reading(request), MR_OP_BUCKET);
    else if (left == 2 && is(path, at + 1, "o"))
        set_op(request, reading(request), MR_OP_LIST);
    else if (left == 3 && is(path, at + 1, "iam") && is(path, at + 2, "testPermissions"))
        set_op(request, reading(request), MR_OP_IAM);
    else
        request_refuse(request, 404, "Not Found");
}

/* /bucket */
static void route_xml_bucket(struct ds_request *request)
{
    if (reading(request) && ds_request_query(request, "uploads"))
        request->op = MR_OP_UPLOADS;
    else
        set_op(request, reading(request), MR_OP_LIST);
}

static void route_xml_object(struct ds_request *request)
{
    bool session = ds_request_query(request, "uploadId") != NULL;
    if (reading(request))
        request->op = session ? MR_OP_PARTS : MR_OP_GET;
    else if (method_is(request, "PUT"))
        request->op = session ? MR_OP_PART : MR_OP_UPLOAD;
    else if (method_is(request, "DELETE"))
        request->op = session ? MR_OP_ABORT : MR_OP_DELETE;
    else if (session)
        set_op(request, method_is(request, "POST"), MR_OP_COMPLETE);
    else
        set_op(request, method_is(request, "POST") && ds_request_query(request, "uploads"), MR_OP_INITIATE);
}

/* /bucket/object, slashes as they are */
static void route_xml(struct ds_request *request, const struct path *path, const char *end)
{
    request->xml = true;
    if (path->n < 1 || path->part[0].length == 0) {
        request_refuse(request, 404, "Not Found");
        return;
    }
    request->bucket = decode(request, path->part[0].at, path->part[0].length);
    if (request->bad)
        return;
    if (path->n < 2 || path->part[1].at == end) {
        route_xml_bucket(request);
        return;
    }
    request->object = decode(request, path->part[1].at, (size_t)(end - path->part[1].at));
    if (!request->bad)
        route_xml_object(request);
}

/* On an error the request is refused, and keeps the parameters that were read before. */
static void parse_query(struct ds_request *request, const char *at)
{
    while (*at) {
        const char *end = strchrnul(at, '&');
        const char *equals = memchr(at, '=', (size_t)(end - at));
        const char *key_end = equals ? equals : end;
        if (end > at) {
            if (request->n_query == MR_QUERY_MAX) {
                request_refuse(request, 400, "Too many query parameters.");
                request->bad_query = true;
                return;
            }
            char *key = ds_percent_decode(at, (size_t)(key_end - at), true);
            char *value = equals ? ds_percent_decode(equals + 1, (size_t)(end - equals - 1), true) : strdup("");
            if (!key || !value) {
                request_refuse(request, 400, "The query is not percent-encoded UTF-8.");
                request->bad_query = true;
                free(key); /* so that no half parameter is found before the request is refused */
                free(value);
                return;
            }
            request->query[request->n_query].key = key;
            request->query[request->n_query++].value = value;
        }
        at = *end ? end + 1 : end;
    }
}

static void route(struct ds_request *request)
{
    const char *end = strchrnul(request->uri, '?');
    if (*end)
        parse_query(request, end + 1);
    if (request->bad)
        return;
    struct path path;
    request_split(request->uri, end, &path);
    if (is(&path, 0, "_devstore") && path.n == 2) {
        set_op(request, reading(request) || method_is(request, "POST") || method_is(request, "DELETE"), MR_OP_ADMIN);
        request->tail = strndup(path.part[1].at, path.part[1].length);
    } else if (is(&path, 0, "batch")) {
        if (path.n == 3 && is(&path, 1, "storage") && is(&path, 2, "v1"))
            set_op(request, method_is(request, "POST"), MR_OP_BATCH);
        else
            request_refuse(request, 404, "Not Found");
    } else if (is(&path, 0, "download")) {
        route_storage(request, &path, 1, true, false);
    } else if (is(&path, 0, "upload")) {
        route_storage(request, &path, 1, false, true);
    } else if (is(&path, 0, "storage")) {
        route_storage(request, &path, 0, false, false);
    } else {
        route_xml(request, &path, end);
    }
}

int ds_request_init(struct ds_request *request, const char *method, const char *uri)
{
    memset(request, 0, sizeof *request);
    request->op = MR_OP_OTHER;
    request->method = strdup(method);
    request->uri = strdup(uri);
    if (!request->method || !request->uri) {
        ds_request_close(request);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request");
        return -1;
    }
    route(request);
    return 0;
}

void ds_request_close(struct ds_request *request)
{
    free(request->method);
    free(request->uri);
    free(request->bucket);
    free(request->object);
    free(request->to_bucket);
    free(request->to_object);
    free(request->tail);
    free(request->auth);
    for (int i = 0; i < request->n_query; i++) {
        free(request->query[i].key);
        free(request->query[i].value);
    }
    ds_text_close(&request->body);
    memset(request, 0, sizeof *request);
}

const char *ds_request_query(const struct ds_request *request, const char *key)
{
    for (int i = 0; i < request->n_query; i++) {
        if (strcmp(request->query[i].key, key) == 0)
            return request->query[i].value;
    }
    return NULL;
}

const char *ds_request_header(const struct ds_request *request, const char *name)
{
    return request->header ? request->header(request->header_cls, name) : NULL;
}

void ds_reply_init(struct ds_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    reply->status = 200;
    reply->fd = -1;
}

/* Leaves an empty reply, as ds_reply_init does. */
void ds_reply_close(struct ds_reply *reply)
{
    for (int i = 0; i < reply->n_headers; i++)
        free(reply->headers[i].value);
    ds_text_close(&reply->body);
    ds_object_unref(reply->object);
    if (reply->fd >= 0)
        close(reply->fd);
    ds_reply_init(reply);
}

/* A header above MR_REPLY_HEADERS, or without memory, is silently left out. */
void ds_reply_header(struct ds_reply *reply, const char *name, const char *fmt, ...)
{
    if (reply->n_headers == MR_REPLY_HEADERS)
        return;
    va_list args;
    va_start(args, fmt);
    char *value;
    int n = vasprintf(&value, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    reply->headers[reply->n_headers].name = name;
    reply->headers[reply->n_headers++].value = value;
}

void ds_reply_header_named(struct ds_reply *reply, const char *name, const char *value)
{
    size_t length = strlen(value) + 1, name_length = strlen(name) + 1;
    char *both = reply->n_headers < MR_REPLY_HEADERS ? malloc(length + name_length) : NULL;
    if (!both)
        return;
    memcpy(both, value, length);
    memcpy(both + length, name, name_length);
    reply->headers[reply->n_headers].name = both + length;
    reply->headers[reply->n_headers++].value = both;
}

static const struct {
    unsigned status;
    const char *phrase, *reason, *xml;
} statuses[] = {
    {200, "OK", "", ""},
    {204, "No Content", "", ""},
    {206, "Partial Content", "", ""},
    {304, "Not Modified", "notModified", "NotModified"},
    {308, "Resume Incomplete", "", ""},
    {400, "Bad Request", "invalid", "InvalidArgument"},
    {401, "Unauthorized", "authError", "AuthenticationRequired"},
    {403, "Forbidden", "forbidden", "AccessDenied"},
    {404, "Not Found", "notFound", "NoSuchKey"},
    {405, "Method Not Allowed", "methodNotAllowed", "MethodNotAllowed"},
    {408, "Request Timeout", "requestTimeout", "RequestTimeout"},
    {409, "Conflict", "conflict", "BucketAlreadyExists"},
    {410, "Gone", "gone", "Gone"},
    {411, "Length Required", "lengthRequired", "MissingContentLength"},
    {412, "Precondition Failed", "conditionNotMet", "PreconditionFailed"},
    {413, "Payload Too Large", "uploadTooLarge", "EntityTooLarge"},
    {416, "Requested Range Not Satisfiable", "requestedRangeNotSatisfiable", "InvalidRange"},
    {429, "Too Many Requests", "rateLimitExceeded", "SlowDown"},
    {499, "Client Closed Request", "", "RequestCancelled"},
    {500, "Internal Server Error", "backendError", "InternalError"},
    {501, "Not Implemented", "notImplemented", "NotImplemented"},
    {502, "Bad Gateway", "backendError", "InternalError"},
    {503, "Service Unavailable", "backendError", "ServiceUnavailable"},
    {504, "Gateway Timeout", "backendError", "InternalError"},
    {0, "Error", "error", "Error"},
};

/* An unknown status has the last entry. */
static size_t status_index(unsigned status)
{
    size_t i = 0;
    while (statuses[i].status && statuses[i].status != status)
        i++;
    return i;
}

const char *ds_status_phrase(unsigned status)
{
    return statuses[status_index(status)].phrase;
}

const char *ds_status_code(unsigned status)
{
    return statuses[status_index(status)].xml;
}

static void error_body(struct ds_text *body, bool xml, unsigned status, const char *reason, const char *message)
{
    if (xml) {
        ds_text_printf(body, "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code><Message>",
                       reason ? reason : statuses[status_index(status)].xml);
        ds_xml_text(body, message);
        ds_text_puts(body, "</Message></Error>");
        return;
    }
    ds_text_printf(body, "{\"error\":{\"code\":%u,\"message\":", status);
    ds_text_json_string(body, message);
    ds_text_puts(body, ",\"errors\":[{\"message\":");
    ds_text_json_string(body, message);
    ds_text_puts(body, ",\"domain\":\"global\",\"reason\":");
    ds_text_json_string(body, reason ? reason : statuses[status_index(status)].reason);
    ds_text_puts(body, "}]}}");
}

/* Body and Content-Type of an error of S3's, under the reply's status. */
static void s3_error_body(struct ds_reply *reply, const struct ds_request *request, const char *code,
                          const char *message)
{
    char id[20];
    snprintf(id, sizeof id, "%016" PRIX64, request->id);
    ds_reply_header(reply, "Content-Type", "application/xml");
    ds_text_puts(&reply->body, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    ds_xml_put(&reply->body, "Code", code);
    ds_xml_put(&reply->body, "Message", message);
    if (request->object)
        ds_xml_put(&reply->body, "Key", request->object);
    if (request->bucket)
        ds_xml_put(&reply->body, "BucketName", request->bucket);
    ds_xml_put(&reply->body, "RequestId", id);
    ds_text_puts(&reply->body, "</Error>");
}

void ds_reply_error(struct ds_reply *reply, const struct ds_request *request, unsigned status, const char *reason,
                    const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char message[2048];
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    size_t length = strlen(message);
    while (length > 0 && !ds_utf8_valid(message, length)) /* cut in the middle of a character */
        message[--length] = 0;
    bool close_after = reply->close;
    ds_reply_close(reply);
    reply->close = close_after;
    reply->status = status;
    if (status == 304)
        return;
    if (request->s3) { /* JSON's reasons begin in lower case: they are not codes */
        bool is_code = reason && *reason >= 'A' && *reason <= 'Z';
        s3_error_body(reply, request, is_code ? reason : statuses[status_index(status)].xml, message);
        return;
    }
    ds_reply_header(reply, "Content-Type", "%s",
                    request->xml ? "application/xml; charset=UTF-8" : "application/json; charset=UTF-8");
    error_body(&reply->body, request->xml, status, reason, message);
}

void ds_reply_from_error(struct ds_reply *reply, const struct ds_request *request)
{
    unsigned status = 500;
    switch (mr_error_code()) {
    case MR_E_NOT_FOUND:
        status = 404;
        break;
    case MR_E_CHANGED:
        status = 412;
        break;
    case MR_E_EXISTS:
        status = 409;
        break;
    case MR_E_USAGE:
    case MR_E_PROTOCOL:
        status = 400;
        break;
    default:
        break;
    }
    ds_reply_error(reply, request, status, NULL, "%s", mr_error_text());
}
