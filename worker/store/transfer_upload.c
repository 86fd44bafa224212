/* Objects of any size through an upload session. The rules: transfer.h; docs/retries.md, "Uploads". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "worker/store/transfer_write_impl.h"

#define CHUNK_BYTES  (UINT64_C(16) << 20)
#define CHUNKS_MAX   9000
#define RESTARTS_MAX 3 /* sessions that may get lost */

/* START decides between an insert and a session; PROBE asks what the session has after a response was lost. */
enum step { START, CHUNK, PROBE };

struct upload {
    struct mr_write write; /* after the name: the content type */
    struct mr_transfer_upload_request request;
    struct mr_store_upload_request target;
    enum step step;
    char *session;
    unsigned restarts;
    bool last_sent; /* the chunk that ends the object was sent */
    /* What was read and is not known to be in the store, and one byte more, which shows whether a chunk is the last. */
    unsigned char *buffer;
    size_t chunk_size, filled;
    uint64_t offset;  /* of the buffer's first byte */
    bool ended;       /* the source has no more */
    uint32_t crc;     /* of all that was read */
    int64_t fd_start; /* -1: it cannot seek */
};

/* ---- the source ---- */

/* Returns how many bytes; 0: the end; -1 with mr_error. fd is read by position if it can seek, so that a restart can
 * read it again. */
static int64_t read_source(struct upload *upload, void *buffer, size_t size)
{
    const struct mr_transfer_upload_request *request = &upload->request;
    if (request->read)
        return request->read(upload->write.base.arg, buffer, size);
    ssize_t n;
    do {
        n = upload->fd_start < 0 ? read(request->fd, buffer, size)
                                 : pread(request->fd, buffer, size,
                                         (off_t)(upload->fd_start + (int64_t)(upload->offset + upload->filled)));
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        mr_error_set_errno(errno, "cannot read what is to be uploaded");
    return n;
}

static bool can_rewind(const struct upload *upload)
{
    return upload->request.read ? upload->request.rewind != NULL : upload->fd_start >= 0;
}

/* Reads as much from the source as the buffer takes; the time that it waits for it is not the store's. 0, or -1 with
 * mr_error. */
static int fill(struct upload *upload)
{
    uint64_t size = upload->request.size;
    while (!upload->ended && upload->filled < upload->chunk_size + 1) {
        uint64_t at = upload->offset + upload->filled;
        size_t room = upload->chunk_size + 1 - upload->filled;
        if (size != MR_STORE_ANY && room > size - at)
            room = at < size ? (size_t)(size - at) : 1; /* it has grown if there is another byte */
        int64_t n = read_source(upload, upload->buffer + upload->filled, room);
        if (n < 0)
            return -1;
        if ((uint64_t)n > room) {
            mr_error_set(MR_E_INTERNAL, "the source of an upload gave %lld bytes where %zu were asked for",
                         (long long)n, room);
            return -1;
        }
        if (n > 0 && at >= size) {
            mr_error_set(MR_E_CHANGED,
                         "what is to be uploaded has more than the %llu bytes that it had: it has changed",
                         (unsigned long long)size);
            return -1;
        }
        if (n == 0 && size != MR_STORE_ANY && at < size) {
            mr_error_set(MR_E_CHANGED, "what is to be uploaded ends after %llu of %llu bytes", (unsigned long long)at,
                         (unsigned long long)size);
            return -1;
        }
        upload->ended = n == 0;
        upload->crc = mr_crc32c(upload->crc, upload->buffer + upload->filled, (size_t)n);
        upload->filled += (size_t)n;
        upload->write.base.progress_ns = mr_http_ran_ns(upload->write.base.engine->http);
    }
    return 0;
}

/* ---- steps ---- */

static void send_next(struct upload *upload, struct mr_stream *stream, enum step step)
{
    upload->step = step;
    mr_stream_queue(stream, true);
}

static void fail_with(struct mr_stream *stream, enum mr_code code, int status, const char *what)
{
    struct mr_transfer *transfer = stream->transfer;
    const struct mr_write *write = (const struct mr_write *)transfer;
    char uri[400], text[900];
    snprintf(text, sizeof text, "%s: %s",
             mr_store_uri(transfer->store, uri, sizeof uri, transfer->strings.data, write->name_length), what);
    mr_transfer_fail(transfer, &(struct mr_store_result){.code = code, .text = text, .status = status});
}

/* The session is lost: starts over if the source can be read again, else the transfer fails. */
static void restart(struct upload *upload, struct mr_stream *stream, const struct mr_store_result *result)
{
    if (upload->write.lost) { /* or it ended because the object is complete */
        mr_write_look(stream, result);
        return;
    }
    if (!can_rewind(upload)) {
        fail_with(stream, MR_E_NET, result->status,
                  "the store lost the upload's session, and what is uploaded cannot be read a second time");
        return;
    }
    if (upload->restarts++ >= RESTARTS_MAX) {
        fail_with(stream, MR_E_NET, result->status, "the store lost the upload's session again and again");
        return;
    }
    if (upload->request.rewind && upload->request.rewind(upload->write.base.arg) != 0) {
        fail_with(stream, mr_error_code(), result->status, mr_error_text());
        return;
    }
    mr_store_upload_drop(upload->write.base.store, upload->session);
    free(upload->session);
    upload->session = NULL;
    upload->offset = upload->filled = 0;
    upload->crc = 0;
    upload->ended = upload->last_sent = false;
    upload->write.base.engine->counters.retries++;
    send_next(upload, stream, START);
}

static void transfer_upload_on_begin(void *arg, const struct mr_store_result *result, const char *session)
{
    struct mr_stream *stream = arg;
    struct upload *upload = (struct upload *)stream->transfer;
    if (mr_stream_end(stream, result) != 0)
        return;
    upload->session = strdup(session);
    if (upload->session)
        send_next(upload, stream, CHUNK);
    else
        fail_with(stream, MR_E_NO_MEMORY, 0, "no memory for an upload session");
}

/* After a chunk or a probe failed: probes the session, starts over, looks the object up, or fails. */
static void on_bad_chunk(struct upload *upload, struct mr_stream *stream, const struct mr_store_result *result)
{
    bool refused = result->code == MR_E_CHANGED || result->code == MR_E_EXISTS;
    if (result->status == 404 || result->status == 410 || (refused && upload->write.lost)) {
        mr_stream_landed(stream);
        if (refused)
            mr_write_look(stream, result);
        else
            restart(upload, stream, result);
        return;
    }
    if (upload->step == CHUNK && mr_code_retryable(result->code) && !result->not_sent)
        upload->step = PROBE;
    upload->write.lost |= upload->last_sent && mr_write_may_be_done(result);
    mr_stream_end(stream, result);
}

/* The session has the first `kept` bytes of the object. */
static void on_kept(struct upload *upload, struct mr_stream *stream, const struct mr_store_result *result,
                    uint64_t kept)
{
    uint64_t before = upload->offset;
    if (kept < before) {
        mr_stream_landed(stream);
        restart(upload, stream, result);
    } else if (kept > before) {
        mr_stream_end(stream, result);
        upload->filled -= (size_t)(kept - before);
        memmove(upload->buffer, upload->buffer + (kept - before), upload->filled);
        upload->offset = kept;
        if (upload->request.progress)
            upload->request.progress(upload->write.base.arg, kept);
        send_next(upload, stream, CHUNK);
    } else if (upload->step == PROBE) { /* no progress: the deadline is not extended */
        mr_stream_landed(stream);
        send_next(upload, stream, CHUNK);
    } else {
        char uri[400], text[500];
        snprintf(
            text, sizeof text, "%s: the upload session keeps nothing of what it is sent",
            mr_store_uri(upload->write.base.store, uri, sizeof uri, upload->target.name, upload->target.name_length));
        mr_stream_landed(stream);
        mr_stream_again(stream, &(struct mr_store_result){.code = MR_E_BUSY, .text = text, .status = 308});
    }
}

static void on_chunk(void *arg, const struct mr_store_result *result, const struct mr_store_uploaded *state)
{
    struct mr_stream *stream = arg;
    struct upload *upload = (struct upload *)stream->transfer;
    struct mr_write *write = &upload->write;
    if (result->code != MR_OK) {
        on_bad_chunk(upload, stream, result);
    } else if (state->item) {
        free(upload->session); /* it has done its work */
        upload->session = NULL;
        mr_stream_end(stream, result);
        if (upload->last_sent && upload->request.progress)
            upload->request.progress(write->base.arg, state->item->size);
        if (upload->last_sent)
            mr_write_finish(stream, result, state->item);
        else
            mr_write_undo(stream, state->item);
    } else if (state->kept > upload->offset + upload->filled) {
        mr_stream_landed(stream);
        fail_with(stream, MR_E_PROTOCOL, result->status, "the upload session has more bytes than it was sent");
    } else {
        on_kept(upload, stream, result, state->kept);
    }
}

static void expect_what_was_read(struct upload *upload)
{
    upload->write.has_size = upload->write.has_crc32c = true;
    upload->write.size = upload->offset + upload->filled;
    upload->write.crc32c = upload->crc;
}

/* If all of the source is in the buffer, it is an insert. */
static struct mr_store_call *transfer_upload_start(struct upload *upload, struct mr_stream *stream)
{
    const struct mr_store_upload_request *target = &upload->target;
    if (!upload->ended || upload->filled > upload->chunk_size) {
        upload->write.base.once = false; /* an unused session does no harm */
        return mr_store_upload_begin(upload->write.base.store, target, transfer_upload_on_begin, stream);
    }
    struct mr_store_insert_request insert = {
        .name = target->name,
        .name_length = target->name_length,
        .body = upload->buffer,
        .length = upload->filled,
        .crc32c = upload->crc,
        .content_type = target->content_type,
        .generation_match = target->generation_match,
    };
    expect_what_was_read(upload);
    return mr_store_insert(upload->write.base.store, &insert, mr_write_answer, stream);
}

static struct mr_store_call *send_step(struct mr_stream *stream)
{
    struct upload *upload = (struct upload *)stream->transfer;
    struct mr_store_chunk chunk = {
        .upload = &upload->target,
        .session = upload->session,
        .data = upload->buffer,
        .offset = upload->offset,
        .length = upload->chunk_size,
        .total = MR_STORE_ANY,
    };
    if (upload->step != PROBE && fill(upload) != 0) {
        char uri[400];
        mr_error_append("%s", mr_store_uri(upload->write.base.store, uri, sizeof uri, upload->target.name,
                                           upload->target.name_length));
        return NULL;
    }
    if (upload->step == START)
        return transfer_upload_start(upload, stream);
    if (upload->step == PROBE) {
        chunk.probe = true;
        chunk.offset += upload->filled; /* it cannot have more */
        chunk.length = 0;
    } else if (upload->filled <= upload->chunk_size) {
        chunk.length = upload->filled;
        chunk.total = upload->offset + upload->filled;
        upload->last_sent = true;
        expect_what_was_read(upload);
    }
    return mr_store_upload_send(upload->write.base.store, &chunk, on_chunk, stream);
}

static uint64_t made_by_upload(struct mr_write *write)
{
    const struct upload *upload = (const struct upload *)write;
    const struct mr_store_made by = {.session = upload->session, .body = upload->buffer, .length = upload->filled};
    return mr_store_made(write->base.store, &by);
}

/* ---- life ---- */

static void close_upload(struct mr_transfer *transfer)
{
    struct upload *upload = (struct upload *)transfer;
    if (upload->session)
        mr_store_upload_drop(transfer->store, upload->session);
    free(upload->session);
    free(upload->buffer);
}

static const struct mr_transfer_ops upload_ops = {mr_write_send, mr_write_fail, close_upload};

struct mr_transfer *mr_transfer_upload(struct mr_transfer_engine *engine,
                                       const struct mr_transfer_upload_request *request, mr_store_stat_fn *done,
                                       void *arg)
{
    uint64_t chunk = request->chunk_bytes ? request->chunk_bytes : CHUNK_BYTES;
    if (request->size != MR_STORE_ANY && request->size / chunk >= CHUNKS_MAX) /* S3 takes so many parts */
        chunk = (request->size / CHUNKS_MAX / MR_STORE_CHUNK + 1) * MR_STORE_CHUNK;
    if (chunk % MR_STORE_CHUNK != 0 || chunk > UINT64_C(1) << 30) {
        mr_error_set(MR_E_USAGE, "a chunk of %llu bytes: it must be a multiple of %u, and at most 1 GiB",
                     (unsigned long long)chunk, MR_STORE_CHUNK);
        return NULL;
    }
    struct upload *upload = mr_write_make(engine, request->store, &upload_ops, sizeof *upload, request->name,
                                          request->name_length, request->generation_match, arg);
    if (!upload)
        return NULL;
    struct mr_text *strings = &upload->write.base.strings;
    if (request->content_type)
        mr_write_string(strings, request->content_type, strlen(request->content_type));
    upload->write.base.done.stat = done;
    upload->write.send = send_step;
    upload->write.made = made_by_upload;
    upload->request = *request;
    upload->chunk_size = (size_t)chunk;
    upload->fd_start = request->read ? -1 : lseek(request->fd, 0, SEEK_CUR);
    /* A small object of a known size needs no buffer of a whole chunk. */
    size_t room = request->size < chunk ? (size_t)request->size : (size_t)chunk;
    upload->buffer = malloc(room + 1);
    if (!upload->buffer) {
        mr_transfer_end(&upload->write.base);
        mr_error_set(MR_E_NO_MEMORY, "no memory for an upload's chunk of %zu bytes", room);
        return NULL;
    }
    upload->target = (struct mr_store_upload_request){
        .name = strings->data,
        .name_length = request->name_length,
        .content_type = request->content_type && !strings->failed ? strings->data + request->name_length + 1 : NULL,
        .generation_match = request->generation_match,
    };
    return mr_transfer_begin(&upload->write.base);
}
