/*
 * resumable.c - uploadType=resumable: a session, its bytes in chunks, the probe of what is kept, cancelling.
 * https://cloud.google.com/storage/docs/performing-resumable-uploads
 *
 * Bytes at an offset that has already been kept are ignored, as documented. A chunk that leaves a gap is answered 400:
 * no correct client sends one, so a test should see it at once.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/faults.h"
#include "devstore/resource.h"
#include "devstore/sessions.h"
#include "devstore/upload_impl.h"

/* Puts the address to which the client sends its chunks, with its parameters about the answer and the payer. */
static void put_location(const struct ds_request *request, const struct ds_session *session, struct ds_reply *reply)
{
    static const char *const kept[] = {"fields", "userProject", "prettyPrint", NULL};
    char base[300];
    ds_resource_base(request, base);
    struct ds_text url = {0};
    ds_text_printf(&url, "%s/upload/storage/v1/b/%s/o?uploadType=resumable&name=", base,
                   ds_bucket_name(session->bucket));
    ds_text_percent(&url, session->metadata.name);
    for (int i = 0; kept[i]; i++) {
        const char *value = ds_request_query(request, kept[i]);
        if (value) {
            ds_text_printf(&url, "&%s=", kept[i]);
            ds_text_percent(&url, value);
        }
    }
    ds_text_printf(&url, "&upload_id=%s", session->id);
    ds_reply_header(reply, "Location", "%s", url.data ? url.data : "");
    ds_reply_header(reply, "X-GUploader-UploadID", "%s", session->id);
    reply->body.failed |= url.failed;
    ds_text_close(&url);
}

/* Reads the request that begins a session. 0, or -1 with an error. */
static int read_start(const struct ds_request *request, struct ds_session *session)
{
    const char *name = ds_request_query(request, "name");
    const char *type = ds_request_header(request, "X-Upload-Content-Type");
    const char *length = ds_request_header(request, "X-Upload-Content-Length");
    struct ds_metadata *metadata = &session->metadata;
    if (request->body.length > 0 && ds_metadata_parse(metadata, request->body.data, request->body.length) < 0)
        return -1;
    if (name && ds_metadata_set_name(metadata, name) < 0)
        return -1;
    if (!metadata->name) {
        mr_error_set(MR_E_USAGE, "The object has no name: neither in the query nor in the metadata.");
        return -1;
    }
    if (type && !metadata->attributes[MR_ATTR_CONTENT_TYPE] &&
        ds_metadata_set(metadata, MR_ATTR_CONTENT_TYPE, type) < 0)
        return -1;
    if (length && (ds_parse_u64(length, &session->total) < 0 || session->total == UINT64_MAX)) {
        mr_error_set(MR_E_USAGE, "Invalid value for X-Upload-Content-Length: \"%.100s\"", length);
        return -1;
    }
    return 0;
}

/* The conditions are checked when the upload begins, and again by ds_bucket_put when it ends. 0 or -1 (CHANGED). */
static int check_now(const struct ds_session *session)
{
    struct ds_object *live = ds_bucket_get(session->bucket, session->metadata.name);
    unsigned failed =
        ds_conditions_fail(&session->conditions, live ? live->generation : 0, live ? live->metageneration : 0);
    ds_object_unref(live);
    if (failed)
        mr_error_set(MR_E_CHANGED, "At least one of the pre-conditions you specified did not hold.");
    return failed ? -1 : 0;
}

void ds_api_resumable(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_session *session = NULL;
    struct ds_conditions conditions;
    if (!bucket || ds_api_conditions(request, &conditions, reply) < 0)
        return;
    session = ds_session_new(bucket, false);
    if (!session)
        goto fail;
    session->conditions = conditions;
    if (read_start(request, session) < 0 || check_now(session) < 0)
        goto fail;
    uint64_t hint = session->total == UINT64_MAX ? 0 : session->total;
    if (ds_sink_open(&session->sink, ds_bucket_folder(bucket), hint, api->md5) < 0 ||
        ds_sessions_add(api->sessions, session) < 0)
        goto fail;
    put_location(request, session, reply);
    ds_session_unref(session);
    return;
fail:
    ds_reply_from_error(reply, request);
    ds_session_unref(session);
}

/* The session of the request, unless a fault makes it expire now; NULL: the reply says why not. */
static struct ds_session *resumable_find(const struct ds_api *api, const struct ds_request *request,
                                         struct ds_reply *reply)
{
    const char *id = ds_request_query(request, "upload_id");
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_session *session = bucket ? ds_sessions_find(api->sessions, id ? id : "", bucket, false) : NULL;
    if (!bucket)
        return NULL;
    if (!session) {
        ds_reply_error(reply, request, 404, NULL, "No such upload session.");
        return NULL;
    }
    pthread_mutex_lock(&session->lock);
    if (request->fault && request->fault->kind == MR_FAULT_EXPIRE && !session->result && !session->gone) {
        session->gone = true;
        session->writer = NULL;
        ds_session_drop_bytes(session);
    }
    bool gone = session->gone;
    pthread_mutex_unlock(&session->lock);
    if (gone) {
        ds_reply_error(reply, request, 410, NULL, "The upload session has expired.");
        ds_session_unref(session);
        return NULL;
    }
    return session;
}

void ds_api_cancel(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_session *session = resumable_find(api, request, reply);
    if (!session)
        return;
    pthread_mutex_lock(&session->lock);
    session->writer = NULL;
    if (!session->result)
        session->gone = true;
    ds_session_drop_bytes(session);
    pthread_mutex_unlock(&session->lock);
    ds_sessions_remove(api->sessions, session);
    ds_session_unref(session);
    reply->status = 499;
}

struct chunk {
    struct ds_upload base;
    const struct ds_api *api;
    const struct ds_request *request;
    struct ds_session *session;
    bool probe;
    uint64_t first, length;  /* of the chunk, as Content-Range has it; length UINT64_MAX: as much as comes */
    uint64_t total;          /* UINT64_MAX: not given */
    uint64_t came, keep_end; /* bytes of the body so far; the upload's bytes from keep_end on are not kept */
    bool failed;             /* the error is in failure */
    struct ds_reply failure;
};

/* "bytes a-b/N", with N or a-b as '*'. 0 or -1. */
static int parse_content_range(const char *text, struct chunk *chunk)
{
    char copy[80];
    if (strncmp(text, "bytes ", 6) != 0 || strlen(text) >= sizeof copy)
        return -1;
    memcpy(copy, text, strlen(text) + 1);
    char *range = copy + 6;
    char *slash = strchr(range, '/');
    if (!slash)
        return -1;
    *slash = 0;
    if (strcmp(slash + 1, "*") != 0 && (ds_parse_u64(slash + 1, &chunk->total) < 0 || chunk->total == UINT64_MAX))
        return -1;
    if (strcmp(range, "*") == 0) {
        chunk->probe = true;
        return 0;
    }
    char *dash = strchr(range, '-');
    if (!dash)
        return -1;
    *dash = 0;
    uint64_t last;
    if (ds_parse_u64(range, &chunk->first) < 0 || ds_parse_u64(dash + 1, &last) < 0 || last < chunk->first ||
        last == UINT64_MAX || (chunk->total != UINT64_MAX && last >= chunk->total))
        return -1;
    chunk->length = last - chunk->first + 1;
    return 0;
}

static bool is_last(const struct chunk *chunk)
{
    return chunk->length == UINT64_MAX || (chunk->total != UINT64_MAX && chunk->first + chunk->length == chunk->total);
}

/* Checks a chunk before its bytes are seen. The session's lock is held. 0, or -1 (USAGE). */
static int check_chunk(const struct chunk *chunk)
{
    const struct ds_session *session = chunk->session;
    if (session->total != UINT64_MAX && chunk->total != UINT64_MAX && session->total != chunk->total) {
        mr_error_set(MR_E_USAGE,
                     "Invalid request. The upload's size was said to be %" PRIu64 ", and now to be %" PRIu64 ".",
                     session->total, chunk->total);
        return -1;
    }
    if (chunk->probe)
        return 0;
    if (chunk->total < session->sink.size) {
        mr_error_set(MR_E_USAGE, "Invalid request. The upload is to have %" PRIu64 " bytes, and %" PRIu64 " are kept.",
                     chunk->total, session->sink.size);
        return -1;
    }
    if (!is_last(chunk) && chunk->length % MR_QUANTUM != 0) {
        mr_error_set(MR_E_USAGE,
                     "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, "
                     "except for the final request (it's recommended to be the exact multiple of 262144).  The "
                     "received request contained %" PRIu64 " bytes, which does not meet this requirement.",
                     chunk->length);
        return -1;
    }
    if (chunk->first > session->sink.size) {
        mr_error_set(MR_E_USAGE, "Invalid request. The chunk begins at byte %" PRIu64 ", and %" PRIu64 " are kept.",
                     chunk->first, session->sink.size);
        return -1;
    }
    return 0;
}

static void place_keep_less(struct chunk *chunk, uint64_t body_length)
{
    const struct ds_fault *fault = chunk->request->fault;
    uint64_t length = chunk->length == UINT64_MAX ? body_length : chunk->length;
    chunk->keep_end = UINT64_MAX;
    if (fault && fault->kind == MR_FAULT_KEEP_LESS && !chunk->probe && length > 0) {
        uint64_t keep = fault->has_arg && fault->bytes < length ? fault->bytes : length / 2;
        chunk->keep_end = (chunk->first + keep) / MR_QUANTUM * MR_QUANTUM;
    }
}

static void chunk_fail(struct chunk *chunk)
{
    chunk->failed = true;
    ds_reply_from_error(&chunk->failure, chunk->request);
}

/* Takes bytes that continue what is kept and pending. The lock is held. 0, or -1 with an error. */
static int resumable_keep(struct ds_session *session, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        size_t n = MR_QUANTUM - session->pending_length < length ? MR_QUANTUM - session->pending_length : length;
        memcpy(session->pending + session->pending_length, bytes, n);
        session->pending_length += n;
        bytes += n;
        length -= n;
        if (session->pending_length == MR_QUANTUM) {
            session->pending_length = 0;
            if (ds_sink_write(&session->sink, session->pending, MR_QUANTUM) < 0)
                return -1;
        }
    }
    return 0;
}

/* Ignores bytes that are kept already, and all bytes once a later request writes to the session. */
static void chunk_write(struct ds_upload *base, const void *bytes, size_t length)
{
    struct chunk *chunk = (struct chunk *)base;
    struct ds_session *session = chunk->session;
    const uint8_t *at = bytes;
    uint64_t begin = chunk->first + chunk->came, end = begin + length;
    chunk->came += length;
    if (chunk->failed || chunk->probe || chunk->came > chunk->length)
        return;
    pthread_mutex_lock(&session->lock);
    if (session->writer == chunk) {
        uint64_t have = session->sink.size + session->pending_length;
        if (end > chunk->keep_end)
            end = chunk->keep_end;
        if (end > have && resumable_keep(session, at + (have - begin), (size_t)(end - have)) < 0)
            chunk_fail(chunk);
    }
    pthread_mutex_unlock(&session->lock);
}

static void incomplete(const struct ds_session *session, struct ds_reply *reply)
{
    reply->status = 308;
    ds_reply_header(reply, "X-GUploader-UploadID", "%s", session->id);
    if (session->sink.size > 0)
        ds_reply_header(reply, "Range", "bytes=0-%" PRIu64, session->sink.size - 1);
}

/* Makes the object, now that all bytes are there. Even if that fails, the session takes no more. The lock is held. */
static int finalise(struct chunk *chunk)
{
    struct ds_session *session = chunk->session;
    int rc = -1;
    struct ds_object *object = ds_object_new(session->metadata.name);
    if (!object || ds_sink_write(&session->sink, session->pending, session->pending_length) < 0)
        goto out;
    session->pending_length = 0;
    if (ds_metadata_hash_header(&session->metadata, ds_request_header(chunk->request, "x-goog-hash")) < 0 ||
        ds_metadata_apply(&session->metadata, object) < 0 || ds_sink_fill(&session->sink, object) < 0 ||
        ds_metadata_check_sums(&session->metadata, session->sink.crc, object->has_md5 ? object->md5 : NULL) < 0 ||
        ds_sink_put(&session->sink, session->bucket, object, &session->conditions) < 0)
        goto out;
    session->result = ds_object_stub(object);
    rc = session->result ? 0 : -1;
out:
    session->gone = rc < 0;
    if (rc < 0)
        chunk_fail(chunk);
    ds_session_drop_bytes(session);
    ds_object_unref(object);
    return rc;
}

/* Whether this request ends the upload; -1 with an error: it contradicts itself. */
static int completes(struct chunk *chunk)
{
    struct ds_session *session = chunk->session;
    uint64_t have = session->sink.size + session->pending_length;
    if (chunk->probe)
        return chunk->total != UINT64_MAX && chunk->total == session->sink.size;
    if (chunk->length != UINT64_MAX && chunk->came != chunk->length) {
        mr_error_set(MR_E_USAGE, "Content-Range says %" PRIu64 " bytes, and %" PRIu64 " came.", chunk->length,
                     chunk->came);
        return -1;
    }
    if (session->total == UINT64_MAX)
        session->total = chunk->length == UINT64_MAX ? chunk->first + chunk->came : chunk->total;
    if (chunk->length == UINT64_MAX && chunk->first + chunk->came != session->total) {
        mr_error_set(MR_E_USAGE, "The upload's size was said to be %" PRIu64 ", and %" PRIu64 " bytes came.",
                     session->total, chunk->first + chunk->came);
        return -1;
    }
    return is_last(chunk) && have == session->total;
}

/* A request to a session whose object is made already gets that object's resource again. */
static void chunk_finish(struct ds_upload *base, struct ds_reply *reply)
{
    struct chunk *chunk = (struct chunk *)base;
    struct ds_session *session = chunk->session;
    pthread_mutex_lock(&session->lock);
    if (!chunk->failed && !session->result && (session->gone || session->writer != chunk)) {
        ds_reply_error(&chunk->failure, chunk->request, session->gone ? 410 : 503, NULL,
                       session->gone ? "The upload session has expired."
                                     : "Another request of the session came meanwhile.");
        chunk->failed = true;
    }
    int done = chunk->failed || session->result ? 0 : completes(chunk);
    if (done < 0)
        chunk_fail(chunk);
    else if (done)
        finalise(chunk);
    if (session->writer == chunk)
        session->pending_length = 0; /* what is less than a quantum is not kept */
    if (chunk->failed) {
        ds_reply_close(reply);
        *reply = chunk->failure;
        ds_reply_init(&chunk->failure);
    } else if (session->result) {
        ds_api_resource(chunk->request, session->bucket, session->result, reply);
    } else {
        incomplete(session, reply);
    }
    pthread_mutex_unlock(&session->lock);
}

/* Also of a chunk that was broken off: the session keeps its whole quanta. */
static void chunk_destroy(struct ds_upload *base)
{
    struct chunk *chunk = (struct chunk *)base;
    pthread_mutex_lock(&chunk->session->lock);
    if (chunk->session->writer == chunk) {
        chunk->session->writer = NULL;
        chunk->session->pending_length = 0;
    }
    pthread_mutex_unlock(&chunk->session->lock);
    ds_reply_close(&chunk->failure);
    ds_session_unref(chunk->session);
    free(chunk);
}

struct ds_upload *ds_upload_chunk_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                      struct ds_reply *reply)
{
    const char *range = ds_request_header(request, "Content-Range");
    struct ds_session *session = resumable_find(api, request, reply);
    struct chunk *chunk = session ? calloc(1, sizeof *chunk) : NULL;
    if (!chunk) {
        if (session)
            ds_reply_error(reply, request, 500, NULL, "out of memory");
        ds_session_unref(session);
        return NULL;
    }
    *chunk = (struct chunk){.base = {.write = chunk_write, .finish = chunk_finish, .destroy = chunk_destroy},
                            .api = api,
                            .request = request,
                            .session = session,
                            .length = UINT64_MAX,
                            .total = UINT64_MAX};
    ds_reply_init(&chunk->failure);
    bool bad = false;
    if (range && parse_content_range(range, chunk) < 0) {
        ds_reply_error(reply, request, 400, NULL, "Failed to parse Content-Range header.");
        bad = true;
    }
    place_keep_less(chunk, length);
    pthread_mutex_lock(&session->lock);
    if (!bad && !session->result && check_chunk(chunk) < 0) {
        ds_reply_from_error(reply, request);
        bad = true;
    }
    if (!bad && !session->result) {
        session->writer = chunk;
        session->pending_length = 0;
        if (chunk->total != UINT64_MAX)
            session->total = chunk->total;
    }
    pthread_mutex_unlock(&session->lock);
    if (bad) {
        chunk_destroy(&chunk->base);
        return NULL;
    }
    return &chunk->base;
}
