/* Upload parts, with repeats. The rules: upload_parts.h; docs/retries.md, "Writes". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/transfer_write_impl.h"
#include "worker/store/upload_parts.h"

/* ---- requests that can be repeated as they are ---- */

enum verb { BEGIN, PART, ABORT, LIST };

struct simple {
    struct mr_transfer base; /* its strings: what the requests point to, each with its NUL */
    enum verb verb;
    size_t name_length;
    const char *name, *id, *content_type, *from_name; /* of a list: name is the prefix, id where to continue */
    struct mr_upload_part_request part;
};

static void transfer_parts_on_begin(void *arg, const struct mr_store_result *result, const char *id)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.parts_begin(transfer->arg, result, id);
    mr_transfer_end(transfer);
}

static void transfer_parts_on_part(void *arg, const struct mr_store_result *result, const char *etag)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.part(transfer->arg, result, etag);
    mr_transfer_end(transfer);
}

static void on_abort(void *arg, const struct mr_store_result *result)
{
    static const struct mr_store_result good = {.code = MR_OK, .text = "", .status = 204};
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (result->code == MR_E_NOT_FOUND)
        result = &good;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.remove(transfer->arg, result);
    mr_transfer_end(transfer);
}

static void transfer_parts_on_list(void *arg, const struct mr_store_result *result,
                                   const struct mr_store_pending_page *page)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.pending(transfer->arg, result, page);
    mr_transfer_end(transfer);
}

static struct mr_store_call *send_simple(struct mr_stream *stream)
{
    struct simple *simple = (struct simple *)stream->transfer;
    struct mr_store *store = simple->base.store;
    struct mr_transfer_counters *counters = &simple->base.engine->counters;
    if (simple->verb == ABORT)
        counters->deletes++;
    else
        counters->class_a++;
    switch (simple->verb) {
    case BEGIN:
        return mr_store_parts_begin(store, simple->name, simple->name_length, simple->content_type,
                                    transfer_parts_on_begin, stream);
    case PART:
        return mr_upload_part_send(store, &simple->part, transfer_parts_on_part, stream);
    case ABORT:
        return mr_store_parts_abort(store, simple->name, simple->name_length, simple->id, on_abort, stream);
    default:
        return mr_store_parts_list(store, simple->name, simple->from_name, simple->id, transfer_parts_on_list, stream);
    }
}

static void fail_simple(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    switch (((struct simple *)transfer)->verb) {
    case BEGIN:
        transfer->done.parts_begin(transfer->arg, result, NULL);
        break;
    case PART:
        transfer->done.part(transfer->arg, result, NULL);
        break;
    case ABORT:
        transfer->done.remove(transfer->arg, result);
        break;
    case LIST:
        transfer->done.pending(transfer->arg, result, NULL);
        break;
    }
}

static const struct mr_transfer_ops simple_ops = {send_simple, fail_simple, NULL};

/* Copies the strings (id, content type, the name to continue from); NULL stays NULL. If that fails, mr_transfer_begin
 * reports it. */
static struct simple *simple_new(struct mr_transfer_engine *engine, struct mr_store *store, enum verb verb,
                                 const char *name, size_t name_length, const char *const strings[3], void *arg)
{
    struct simple *simple = mr_transfer_make(engine, store, &simple_ops, sizeof *simple, arg);
    if (!simple)
        return NULL;
    struct mr_text *all = &simple->base.strings;
    const char **const to[3] = {&simple->id, &simple->content_type, &simple->from_name};
    simple->verb = verb;
    simple->name_length = name_length;
    mr_write_string(all, name ? name : "", name_length);
    for (int i = 0; i < 3; i++) {
        if (strings[i])
            mr_write_string(all, strings[i], strlen(strings[i]));
    }
    if (all->failed)
        return simple; /* mr_transfer_begin reports it */
    const char *at = all->data;
    simple->name = name ? at : NULL;
    at += name_length + 1;
    for (int i = 0; i < 3; i++) {
        *to[i] = strings[i] ? at : NULL;
        at += strings[i] ? strlen(at) + 1 : 0;
    }
    return simple;
}

struct mr_transfer *mr_transfer_parts_begin(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                            size_t name_length, const char *content_type, mr_store_parts_begin_fn *done,
                                            void *arg)
{
    const char *const strings[3] = {NULL, content_type, NULL};
    struct simple *simple = simple_new(engine, store, BEGIN, name, name_length, strings, arg);
    if (!simple)
        return NULL;
    simple->base.done.parts_begin = done;
    return mr_transfer_begin(&simple->base);
}

struct mr_transfer *mr_transfer_part_send(struct mr_transfer_engine *engine, struct mr_store *store,
                                          const struct mr_upload_part_request *request, mr_upload_part_fn *done,
                                          void *arg)
{
    const char *const strings[3] = {request->id, NULL, NULL};
    struct simple *simple = simple_new(engine, store, PART, request->name, request->name_length, strings, arg);
    if (!simple)
        return NULL;
    simple->base.done.part = done;
    simple->part = *request;
    simple->part.name = simple->name;
    simple->part.id = simple->id;
    return mr_transfer_begin(&simple->base);
}

struct mr_transfer *mr_transfer_parts_abort(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                            size_t name_length, const char *id, mr_store_delete_fn *done, void *arg)
{
    const char *const strings[3] = {id, NULL, NULL};
    struct simple *simple = simple_new(engine, store, ABORT, name, name_length, strings, arg);
    if (!simple)
        return NULL;
    simple->base.done.remove = done;
    return mr_transfer_begin(&simple->base);
}

struct mr_transfer *mr_transfer_parts_list(struct mr_transfer_engine *engine, struct mr_store *store,
                                           const char *prefix, const char *from_name, const char *from_id,
                                           mr_store_parts_list_fn *done, void *arg)
{
    const char *const strings[3] = {from_id, NULL, from_name};
    struct simple *simple = simple_new(engine, store, LIST, prefix, prefix ? strlen(prefix) : 0, strings, arg);
    if (!simple)
        return NULL;
    simple->base.done.pending = done;
    return mr_transfer_begin(&simple->base);
}

/* ---- complete ---- */

struct complete {
    struct mr_write write; /* after the name: the upload's id */
    struct mr_store_complete_request request;
    struct mr_upload_part *parts;
    bool asked_before;   /* and the response was lost */
    bool completed;      /* by a response of the store */
    uint64_t generation; /* from that response; 0: it had none */
};

/* Fails the transfer: the new object was replaced by item, or removed (NULL), by another process. */
static void fail_replaced(struct complete *complete, const struct mr_store_item *item)
{
    struct mr_transfer *transfer = &complete->write.base;
    char uri[400], text[600];
    mr_store_uri(transfer->store, uri, sizeof uri, complete->request.name, complete->request.name_length);
    if (item)
        snprintf(text, sizeof text,
                 "%s: it was written, and replaced by another writer at once: generation %llu is there", uri,
                 (unsigned long long)item->generation);
    else
        snprintf(text, sizeof text, "%s: it was written, and removed by another writer at once", uri);
    mr_transfer_fail(transfer, &(struct mr_store_result){.code = MR_E_CHANGED, .text = text, .status = 200});
}

static bool is_made_by(struct complete *complete, const struct mr_store_item *item)
{
    const struct mr_store_made by = {.parts = complete->request.parts, .count = complete->request.count};
    uint64_t made = mr_store_made(complete->write.base.store, &by);
    return made && item && item->generation == made;
}

/* The look-up after a response that reports success, or in place of one that was lost. */
static void on_checked(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_stream *stream = arg;
    struct complete *complete = (struct complete *)stream->transfer;
    struct mr_write *write = &complete->write;
    /* If the store keeps no checksum, the generation that was made tells. A folder's of a call that failed is not
     * known, and an object of the same size may be another writer's. */
    bool made = !complete->completed ? is_made_by(complete, item)
                                     : item && (!complete->generation || item->generation == complete->generation);
    bool same = item && item->size == write->size && (item->has_crc32c ? item->crc32c == write->crc32c : made);
    if (!complete->completed && (result->code == MR_E_NOT_FOUND || (result->code == MR_OK && !same))) {
        mr_stream_landed(stream); /* it was not done */
        write->lost = false;
        if (write->refused.code != MR_OK)
            mr_transfer_fail(&write->base, &write->refused);
        else
            mr_stream_queue(stream, true);
        return;
    }
    if (result->code == MR_E_NOT_FOUND) { /* the upload became an object: what is missing is that */
        mr_stream_landed(stream);
        fail_replaced(complete, NULL);
        return;
    }
    if (mr_stream_end(stream, result) != 0 || !item)
        return;
    if (same)
        mr_write_finish(stream, result, item);
    else if (complete->generation && item->generation == complete->generation)
        mr_write_undo(stream, item); /* it is ours, and damaged. By its size alone it could be another writer's */
    else
        fail_replaced(complete, item);
}

/* What a request is told whose predecessor, the response to which was lost, has completed the upload: it no longer
 * exists, or an object has the name. */
static bool may_be_completed(enum mr_code code)
{
    return code == MR_E_NOT_FOUND || code == MR_E_EXISTS || code == MR_E_CHANGED;
}

/* Success is followed by a look-up, and so is a refusal after a response was lost. */
static void transfer_parts_on_complete(void *arg, const struct mr_store_result *result, uint64_t generation)
{
    struct mr_stream *stream = arg;
    struct complete *complete = (struct complete *)stream->transfer;
    struct mr_write *write = &complete->write;
    if (result->code == MR_OK) {
        complete->completed = true;
        complete->generation = generation;
        mr_stream_end(stream, result);
        mr_stream_queue(stream, true); /* to look it up */
        return;
    }
    if (complete->asked_before && may_be_completed(result->code)) {
        mr_stream_landed(stream);
        snprintf(write->text, sizeof write->text, "%s", result->text);
        write->refused = *result;
        write->refused.text = write->text;
        write->lost = true;
        mr_stream_queue(stream, true);
        return;
    }
    write->lost |= mr_write_may_be_done(result);
    complete->asked_before |= write->lost;
    mr_stream_end(stream, result);
}

/* Once the upload was completed, or a response was lost, a look-up takes the place of the request. */
static struct mr_store_call *send_complete(struct mr_stream *stream)
{
    struct complete *complete = (struct complete *)stream->transfer;
    struct mr_write *write = &complete->write;
    if (complete->completed || write->lost) {
        write->base.engine->counters.class_a--; /* it was counted as a request that writes */
        write->base.engine->counters.class_b++;
        return mr_store_stat(write->base.store, complete->request.name, write->name_length, 0, on_checked, stream);
    }
    return mr_store_parts_complete(write->base.store, &complete->request, transfer_parts_on_complete, stream);
}

static void close_complete(struct mr_transfer *transfer)
{
    free(((struct complete *)transfer)->parts);
}

static const struct mr_transfer_ops complete_ops = {mr_write_send, mr_write_fail, close_complete};

struct mr_transfer *mr_transfer_parts_complete(struct mr_transfer_engine *engine, struct mr_store *store,
                                               const struct mr_store_complete_request *request, mr_store_stat_fn *done,
                                               void *arg)
{
    struct complete *complete = mr_write_make(engine, store, &complete_ops, sizeof *complete, request->name,
                                              request->name_length, MR_STORE_ANY, arg);
    if (!complete)
        return NULL;
    struct mr_write *write = &complete->write;
    mr_write_string(&write->base.strings, request->id, strlen(request->id));
    write->base.done.stat = done;
    write->base.once = false; /* an upload is completed once, however often that is requested */
    write->send = send_complete;
    write->lost = complete->asked_before = request->maybe_done;
    write->has_size = write->has_crc32c = true;
    write->size = request->size;
    write->crc32c = request->crc32c;
    complete->request = *request;
    complete->request.name = write->base.strings.data;
    complete->request.id = write->base.strings.failed ? NULL : complete->request.name + request->name_length + 1;
    complete->parts = malloc((request->count + 1) * sizeof *complete->parts);
    if (!complete->parts) {
        mr_transfer_end(&write->base);
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u upload parts", request->count);
        return NULL;
    }
    memcpy(complete->parts, request->parts, request->count * sizeof *complete->parts);
    complete->request.parts = complete->parts;
    return mr_transfer_begin(&write->base);
}
