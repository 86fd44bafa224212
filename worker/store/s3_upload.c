/*
 * Objects of any size through the session calls of store.h: a multipart upload whose parts are the chunks, since S3 has
 * no resumable sessions. Facts: docs/protocols.md, "S3".
 *
 * The session's name is the upload's id. What it keeps is known here, from the responses to its parts: a chunk whose
 * response was lost is sent again as the same part, which it replaces.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "worker/store/s3_impl.h"

struct s3_session {
    struct s3_session *next;
    char *id, *name;
    struct mr_upload_part *parts;
    unsigned count, size;
    uint64_t kept;
    uint32_t crc32c;
};

/* Where the session is linked; NULL there: it is not known. */
static struct s3_session **s3_upload_find(struct s3_store *store, const char *id)
{
    struct s3_session **at = &store->sessions;
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return at;
}

static void s3_upload_forget(struct s3_store *store, const char *id)
{
    struct s3_session **at = s3_upload_find(store, id), *session = *at;
    if (!session)
        return;
    *at = session->next;
    free(session->id);
    free(session->name);
    free(session->parts);
    free(session);
}

void mr_s3_sessions_close(struct s3_store *store)
{
    while (store->sessions)
        s3_upload_forget(store, store->sessions->id);
}

static uint64_t made_by_session(struct s3_store *store, const char *id)
{
    const struct s3_session *session = *s3_upload_find(store, id);
    char etag[MR_ETAG_SIZE];
    if (!session || mr_s3_etag_of_parts(session->parts, session->count, etag) != 0)
        return 0;
    return mr_s3_generation(etag);
}

uint64_t mr_s3_made(struct mr_store *base, const struct mr_store_made *by)
{
    struct s3_store *store = (struct s3_store *)base;
    if (store->zone[0]) /* a directory bucket's ETags are random */
        return 0;
    return by->session ? made_by_session(store, by->session) : mr_s3_generation_of(by);
}

/* ---- begin ---- */

static int remember(struct s3_call *call, const char *id)
{
    struct s3_store *store = mr_s3_store(call);
    struct s3_session *session = calloc(1, sizeof *session);
    if (session) {
        session->id = strdup(id);
        session->name = strdup(call->name.data);
    }
    if (session && session->id && session->name) {
        session->next = store->sessions;
        store->sessions = session;
        return 0;
    }
    if (session) {
        free(session->id);
        free(session->name);
    }
    free(session);
    mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
    return -1;
}

static void s3_upload_on_begin(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK)
        xml = mr_s3_xml(call, answer, "InitiateMultipartUploadResult");
    const char *id = xml ? mr_xml_text(xml, "UploadId") : "";
    bool good = answer->result.code == MR_OK;
    if (good && (!id[0] || strlen(id) >= MR_STORE_NAME_MAX)) {
        mr_error_set(MR_E_PROTOCOL, "an upload without a usable id was begun");
        good = false;
    } else if (good) {
        good = remember(call, id) == 0;
    }
    if (xml && !good)
        mr_s3_refuse(call, answer);
    call->done.begin(call->arg, &answer->result, good ? id : NULL);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_upload_begin(struct mr_store *base, const struct mr_store_upload_request *request,
                                         mr_store_begin_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_BEGIN, request->name, request->name_length, arg);
    if (!call)
        return NULL;
    call->done.begin = done;
    if (mr_s3_send_begin(call, request->content_type, s3_upload_on_begin) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- send ---- */

static void s3_upload_fail(struct s3_call *call, struct s3_answer *answer)
{
    call->done.upload(call->arg, &answer->result, NULL);
    mr_s3_give(call);
}

static void s3_upload_refuse(struct s3_call *call, struct s3_answer *answer)
{
    mr_s3_refuse(call, answer);
    s3_upload_fail(call, answer);
}

/* Reports the object that the upload has become. The store compared each part when it came. What is under the name now
 * is not looked up: it may be another writer's by then, and would be compared with what was sent. */
static void s3_upload_on_complete(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_store *store = mr_s3_store(call);
    struct mr_xml *xml = NULL;
    if (answer->result.code == MR_OK)
        xml = mr_s3_xml(call, answer, "CompleteMultipartUploadResult");
    if (!xml) {
        s3_upload_fail(call, answer);
        return;
    }
    const char *etag = mr_xml_text(xml, "ETag");
    const struct mr_store_item item = {.name = call->name.data,
                                       .name_length = call->name.length,
                                       .size = (*s3_upload_find(store, call->session.data))->kept,
                                       .generation = etag[0] ? mr_s3_generation(etag) : 0,
                                       .storage_class = "",
                                       .etag = etag};
    const struct mr_store_uploaded state = {.kept = item.size, .item = &item};
    s3_upload_forget(store, call->session.data);
    call->done.upload(call->arg, &answer->result, &state);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

static int s3_upload_complete(struct s3_call *call)
{
    struct s3_session *session = *s3_upload_find(mr_s3_store(call), call->session.data);
    mr_s3_put_parts(call, session->parts, session->count);
    return mr_s3_send_complete(call, session->id, session->kept, session->crc32c, s3_upload_on_complete);
}

/* The session keeps the call's chunk, to which the store has responded. -1 with mr_error. */
static int add_part(struct s3_session *session, const struct s3_call *call, const char *etag)
{
    if (session->count == session->size) {
        unsigned size = session->size ? 2 * session->size : 16;
        struct mr_upload_part *parts = realloc(session->parts, size * sizeof *parts);
        if (!parts) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for an upload's parts");
            return -1;
        }
        session->parts = parts;
        session->size = size;
    }
    struct mr_upload_part *part = &session->parts[session->count++];
    part->number = session->count;
    part->crc32c = (uint32_t)call->sum.value;
    snprintf(part->etag, sizeof part->etag, "%s", etag);
    session->crc32c = mr_crc32c_combine(session->crc32c, (uint32_t)call->sum.value, call->chunk.length);
    session->kept += call->chunk.length;
    return 0;
}

static void on_sent(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_session *session = *s3_upload_find(mr_s3_store(call), call->session.data);
    const char *etag = mr_s3_part_etag(call, answer);
    if (!etag) {
        s3_upload_fail(call, answer);
    } else if (add_part(session, call, etag) != 0) {
        s3_upload_refuse(call, answer);
    } else if (call->chunk.total != MR_STORE_ANY) { /* it was the last one */
        call->kind = S3_COMPLETE;
        if (mr_s3_resolve(call, s3_upload_complete, s3_upload_fail) != 0)
            s3_upload_refuse(call, answer);
    } else {
        struct mr_store_uploaded state = {.kept = session->kept};
        call->done.upload(call->arg, &answer->result, &state);
        mr_s3_give(call);
    }
}

/* The response to a probe: what the session keeps, if the upload still exists. */
static void on_probed(struct s3_call *call, struct s3_answer *answer)
{
    const struct s3_session *session = *s3_upload_find(mr_s3_store(call), call->session.data);
    struct mr_store_uploaded state = {.kept = session->kept};
    call->done.upload(call->arg, &answer->result, answer->result.code == MR_OK ? &state : NULL);
    mr_s3_give(call);
}

static int probe(struct s3_call *call)
{
    mr_s3_target(call, "?max-parts=1");
    mr_s3_parameter(call, "&uploadId=", call->session.data);
    return mr_s3_send(call, &(struct mr_http_request){0}, on_probed);
}

/* The chunk must begin where the session ends. 0, or -1 with mr_error. */
static int send(struct s3_call *call, const struct s3_session *session, const struct mr_store_chunk *chunk)
{
    if (chunk->probe)
        return probe(call);
    if (chunk->offset != session->kept) {
        mr_error_set(MR_E_USAGE, "the parts of an upload to S3 are sent one after the other");
        return -1;
    }
    if (session->count >= MR_UPLOAD_PARTS_MAX) {
        char uri[400];
        mr_error_set(MR_E_USAGE,
                     "%s: an upload to S3 has %u parts at most, which are %llu bytes where the size is not known "
                     "before: write a file, and copy that",
                     mr_store_uri(call->base.store, uri, sizeof uri, call->name.data, call->name.length),
                     MR_UPLOAD_PARTS_MAX, (unsigned long long)session->kept);
        return -1;
    }
    if (chunk->length == 0) { /* all parts are there */
        call->kind = S3_COMPLETE;
        return mr_s3_resolve(call, s3_upload_complete, s3_upload_fail);
    }
    call->sum = (struct mr_checksum){MR_CHECKSUM_CRC32C, mr_crc32c(0, chunk->data, chunk->length)};
    return mr_s3_send_part(call, session->id, session->count + 1, chunk->data, chunk->length, on_sent);
}

struct mr_store_call *mr_s3_upload_send(struct mr_store *base, const struct mr_store_chunk *chunk,
                                        mr_store_upload_fn *done, void *arg)
{
    struct s3_store *store = (struct s3_store *)base;
    const struct s3_session *session = *s3_upload_find(store, chunk->session);
    if (!session) {
        mr_error_set(MR_E_USAGE, "no such upload was begun here");
        return NULL;
    }
    struct s3_call *call = mr_s3_take(store, S3_PART, chunk->upload->name, chunk->upload->name_length, arg);
    if (!call)
        return NULL;
    call->done.upload = done;
    call->generation_match = chunk->upload->generation_match;
    call->chunk = *chunk;
    mr_text_clear(&call->session);
    mr_text_puts(&call->session, chunk->session);
    call->name.failed |= call->session.failed; /* mr_s3_send reports it */
    if (send(call, session, chunk) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- drop ---- */

static void on_dropped(struct s3_call *call, struct s3_answer *answer)
{
    (void)answer; /* one that stays is found by `millrace clean` */
    mr_s3_give(call);
}

void mr_s3_upload_drop(struct mr_store *base, const char *id)
{
    struct s3_store *store = (struct s3_store *)base;
    const struct s3_session *session = *s3_upload_find(store, id);
    struct s3_call *call = session ? mr_s3_take(store, S3_ABORT, session->name, strlen(session->name), NULL) : NULL;
    if (!call)
        return;
    mr_s3_target(call, "?");
    mr_s3_parameter(call, "uploadId=", id);
    s3_upload_forget(store, id);
    if (mr_s3_send(call, &(struct mr_http_request){.method = "DELETE"}, on_dropped) != 0)
        mr_s3_give(call);
}
