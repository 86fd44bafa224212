/*
 * Inserts, composes and batches of deletes, with repeats. docs/retries.md has the rules; the short form:
 *
 *   with a precondition     repeated; once a response was lost, a refusal may be the echo of our own work: a look-up
 *   without one             repeated only if no byte of it reached the server (result->not_sent)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "worker/store/transfer_write_impl.h"

/* ---- what all new objects have in common ---- */

static const char *write_uri(const struct mr_write *write, char *out, size_t size)
{
    return mr_store_uri(write->base.store, out, size, write->base.strings.data, write->name_length);
}

/* After a 429 it was not. */
bool mr_write_may_be_done(const struct mr_store_result *result)
{
    return mr_code_retryable(result->code) && !result->not_sent && result->status != 429;
}

static bool is_as_sent(const struct mr_write *write, const struct mr_store_item *item)
{
    if (write->has_size && item->size != write->size)
        return false;
    return !write->has_crc32c || !item->has_crc32c || item->crc32c == write->crc32c;
}

/* Another phase of the same transfer, at once: its place in flight is free. */
static void next_phase(struct mr_write *write, struct mr_stream *stream, enum mr_write_phase phase)
{
    write->phase = phase;
    write->base.once = false; /* these can be repeated */
    stream->failures = 0;
    mr_stream_queue(stream, true);
}

static void succeed(struct mr_write *write, const struct mr_store_result *result, const struct mr_store_item *item)
{
    write->base.done.stat(write->base.arg, result, item);
    mr_transfer_end(&write->base);
}

void mr_write_undo(struct mr_stream *stream, const struct mr_store_item *item)
{
    struct mr_write *write = (struct mr_write *)stream->transfer;
    char sent[9];
    mr_crc32c_to_base64(write->crc32c, sent);
    char there[9];
    mr_crc32c_to_base64(item->crc32c, there);
    char uri[400];
    snprintf(write->text, sizeof write->text,
             "%s: the store has %llu bytes with crc32c %s where %llu bytes with crc32c %s were sent: what lies between "
             "here and the store damages data; generation %llu was deleted again",
             write_uri(write, uri, sizeof uri), (unsigned long long)item->size, item->has_crc32c ? there : "unknown",
             (unsigned long long)write->size, write->has_crc32c ? sent : "unknown",
             (unsigned long long)item->generation);
    write->refused = (struct mr_store_result){.code = MR_E_CORRUPT, .text = write->text, .status = 200};
    write->undo_generation = item->generation;
    write->base.engine->counters.crc_errors++;
    next_phase(write, stream, MR_WRITE_UNDO);
}

void mr_write_finish(struct mr_stream *stream, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_write *write = (struct mr_write *)stream->transfer;
    if (is_as_sent(write, item))
        succeed(write, result, item);
    else
        mr_write_undo(stream, item);
}

void mr_write_look(struct mr_stream *stream, const struct mr_store_result *refusal)
{
    struct mr_write *write = (struct mr_write *)stream->transfer;
    write->refused = *refusal;
    snprintf(write->text, sizeof write->text, "%s", refusal->text);
    write->refused.text = write->text;
    next_phase(write, stream, MR_WRITE_LOOK);
}

void mr_write_answer(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_stream *stream = arg;
    struct mr_write *write = (struct mr_write *)stream->transfer;
    bool refused = result->code == MR_E_CHANGED || result->code == MR_E_EXISTS;
    if (refused && (write->lost || (write->check_refusal && result->status == 412))) {
        mr_stream_landed(stream);
        mr_write_look(stream, result);
        return;
    }
    write->lost |= mr_write_may_be_done(result);
    if (mr_stream_end(stream, result) == 0)
        mr_write_finish(stream, result, item);
}

/* A repeat was refused: is the object the work of the request before it, whose response was lost? */
static void on_look(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_stream *stream = arg;
    struct mr_write *write = (struct mr_write *)stream->transfer;
    if (result->code == MR_E_NOT_FOUND) { /* so it was not the destination that was refused */
        mr_stream_landed(stream);
        mr_transfer_fail(&write->base, &write->refused);
        return;
    }
    if (mr_stream_end(stream, result) != 0)
        return;
    bool known = (write->has_crc32c && item->has_crc32c) || (write->takes_size_alone && write->has_size) ||
                 (write->made && write->made(write) == item->generation);
    if (write->lost && known && is_as_sent(write, item) && item->generation != write->generation_match) {
        succeed(write, result, item);
        return;
    }
    char uri[400];
    if (write->generation_match == 0) {
        write->refused.code = MR_E_EXISTS;
        snprintf(write->text, sizeof write->text, "%s: it exists already (generation %llu)",
                 write_uri(write, uri, sizeof uri), (unsigned long long)item->generation);
    }
    mr_transfer_fail(&write->base, &write->refused);
}

/* Fails the transfer with the reason for which the object was deleted, also if the delete failed. */
static void on_undone(void *arg, const struct mr_store_result *result)
{
    struct mr_stream *stream = arg;
    struct mr_write *write = (struct mr_write *)stream->transfer;
    bool done = result->code == MR_OK || result->code == MR_E_NOT_FOUND || result->code == MR_E_CHANGED;
    if (!done && mr_code_retryable(result->code)) {
        mr_stream_end(stream, result);
        return;
    }
    mr_stream_landed(stream);
    write->undone = done;
    mr_transfer_fail(&write->base, done ? &write->refused : result);
}

struct mr_store_call *mr_write_send(struct mr_stream *stream)
{
    struct mr_write *write = (struct mr_write *)stream->transfer;
    struct mr_store *store = write->base.store;
    struct mr_transfer_counters *counters = &write->base.engine->counters;
    const char *name = write->base.strings.data;
    switch (write->phase) {
    case MR_WRITE_LOOK:
        counters->class_b++;
        return mr_store_stat(store, name, write->name_length, 0, on_look, stream);
    case MR_WRITE_UNDO:
        counters->deletes++;
        return mr_store_delete(store, name, write->name_length, write->undo_generation, on_undone, stream);
    default:
        counters->class_a++;
        return write->send(stream);
    }
}

void mr_write_fail(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    struct mr_write *write = (struct mr_write *)transfer;
    bool damaged = write->phase == MR_WRITE_UNDO;
    if (damaged && !write->undone) { /* it is still there */
        size_t n = strlen(write->text);
        snprintf(write->text + n, sizeof write->text - n, " (that failed: %s)", result->text);
    }
    struct mr_store_result reported = damaged ? write->refused : *result;
    reported.maybe_done = write->lost;
    transfer->done.stat(transfer->arg, &reported, NULL);
}

void mr_write_string(struct mr_text *strings, const char *string, size_t length)
{
    mr_text_add(strings, string, length);
    mr_text_add(strings, "", 1);
}

void *mr_write_make(struct mr_transfer_engine *engine, struct mr_store *store, const struct mr_transfer_ops *ops,
                    size_t bytes, const char *name, size_t name_length, uint64_t generation_match, void *arg)
{
    struct mr_write *write = mr_transfer_make(engine, store, ops, bytes, arg);
    if (!write)
        return NULL;
    write->name_length = name_length;
    write->generation_match = generation_match;
    write->base.once = generation_match == MR_STORE_ANY;
    mr_write_string(&write->base.strings, name, name_length);
    return write;
}

/* ---- insert ---- */

struct insert {
    struct mr_write write; /* after the name: the content type */
    struct mr_store_insert_request request;
};

static struct mr_store_call *send_insert(struct mr_stream *stream)
{
    struct insert *insert = (struct insert *)stream->transfer;
    return mr_store_insert(insert->write.base.store, &insert->request, mr_write_answer, stream);
}

static uint64_t made_by_insert(struct mr_write *write)
{
    const struct mr_store_insert_request *request = &((struct insert *)write)->request;
    const struct mr_store_made by = {.body = request->body, .length = request->length};
    return mr_store_made(write->base.store, &by);
}

static const struct mr_transfer_ops write_ops = {mr_write_send, mr_write_fail, NULL};

struct mr_transfer *mr_transfer_insert(struct mr_transfer_engine *engine, struct mr_store *store,
                                       const struct mr_store_insert_request *request, mr_store_stat_fn *done, void *arg)
{
    struct insert *insert = mr_write_make(engine, store, &write_ops, sizeof *insert, request->name,
                                          request->name_length, request->generation_match, arg);
    if (!insert)
        return NULL;
    struct mr_write *write = &insert->write;
    if (request->content_type)
        mr_write_string(&write->base.strings, request->content_type, strlen(request->content_type));
    write->base.done.stat = done;
    write->send = send_insert;
    write->made = made_by_insert;
    write->lost = request->maybe_done;
    write->has_size = write->has_crc32c = true;
    write->size = request->length;
    write->crc32c = request->crc32c;
    insert->request = *request;
    insert->request.name = write->base.strings.data;
    insert->request.etag = NULL;
    if (request->content_type)
        insert->request.content_type = insert->request.name + request->name_length + 1;
    return mr_transfer_begin(&write->base);
}

/* ---- compose ---- */

struct compose {
    struct mr_write write; /* after the name: the content type, then the sources' names */
    struct mr_store_compose_request request;
    struct mr_store_name sources[MR_STORE_COMPOSE_MAX];
};

static struct mr_store_call *send_compose(struct mr_stream *stream)
{
    struct compose *compose = (struct compose *)stream->transfer;
    return mr_store_compose(compose->write.base.store, &compose->request, mr_write_answer, stream);
}

struct mr_transfer *mr_transfer_compose(struct mr_transfer_engine *engine, struct mr_store *store,
                                        const struct mr_store_compose_request *request, mr_store_stat_fn *done,
                                        void *arg)
{
    if (request->count == 0 || request->count > MR_STORE_COMPOSE_MAX) {
        mr_error_set(MR_E_USAGE, "%u objects to compose: 1 to %d are possible in one request", request->count,
                     MR_STORE_COMPOSE_MAX);
        return NULL;
    }
    struct compose *compose = mr_write_make(engine, store, &write_ops, sizeof *compose, request->name,
                                            request->name_length, request->generation_match, arg);
    if (!compose)
        return NULL;
    struct mr_write *write = &compose->write;
    struct mr_text *strings = &write->base.strings;
    size_t type_at = strings->length;
    if (request->content_type)
        mr_write_string(strings, request->content_type, strlen(request->content_type));
    mr_store_names_copy(compose->sources, request->sources, request->count,
                        strings); /* mr_transfer_begin reports a failure */
    write->base.done.stat = done;
    write->base.is_compose = true;
    write->send = send_compose;
    write->lost = request->maybe_done;
    write->check_refusal = request->generation_match == 0;
    write->takes_size_alone = true;
    write->has_size = request->has_size;
    write->has_crc32c = request->has_crc32c;
    write->size = request->size;
    write->crc32c = request->crc32c;
    compose->request = *request;
    compose->request.name = strings->data;
    compose->request.sources = compose->sources;
    if (request->content_type)
        compose->request.content_type = strings->data + type_at;
    return mr_transfer_begin(&write->base);
}

/* ---- a batch of deletes ---- */

struct batch {
    struct mr_transfer base; /* its strings: the names, each with its NUL */
    unsigned count, pending_count;
    unsigned sent; /* the first of `pending`: the request under way */
    struct mr_store_name names[MR_STORE_BATCH_MAX];
    struct batch_item {
        struct mr_store_result result;
        char *text; /* of result */
        bool lost;  /* a response about it */
    } items[MR_STORE_BATCH_MAX];
    unsigned pending[MR_STORE_BATCH_MAX];             /* items without a final result */
    struct mr_store_name request[MR_STORE_BATCH_MAX]; /* names of those sent */
};

static void close_batch(struct mr_transfer *transfer)
{
    struct batch *batch = (struct batch *)transfer;
    for (unsigned i = 0; i < batch->count; i++)
        free(batch->items[i].text);
}

static void set_result(struct batch_item *item, const struct mr_store_result *result)
{
    item->result = *result;
    free(item->text);
    item->text = result->text[0] ? strdup(result->text) : NULL;
    item->result.text = item->text ? item->text : "";
}

static void report_batch(struct batch *batch)
{
    static const struct mr_store_result good = {.code = MR_OK, .text = "", .status = 200};
    struct mr_store_result each[MR_STORE_BATCH_MAX];
    for (unsigned i = 0; i < batch->count; i++)
        each[i] = batch->items[i].result;
    batch->base.done.batch(batch->base.arg, &good, each);
}

/* Whether it no longer exists. After a lost response: our delete was done, or another process did what we were asked
 * to. */
static bool is_gone(const struct mr_store_result *result)
{
    return result->code == MR_E_NOT_FOUND || result->code == MR_E_CHANGED;
}

/* Takes item n's result. true: it has to be sent again. */
static bool take_answer(struct batch *batch, unsigned n, const struct mr_store_result *result)
{
    static const struct mr_store_result good = {.code = MR_OK, .text = "", .status = 204};
    struct batch_item *item = &batch->items[n];
    set_result(item, item->lost && is_gone(result) ? &good : result);
    item->lost |= mr_write_may_be_done(result);
    return mr_code_retryable(result->code) && (mr_store_is_generation(batch->names[n].generation) || result->not_sent);
}

/* Takes the results of the request's names; those to be sent again are the first of `pending` then. Returns how many:
 * 0, and why in *worst. */
static unsigned take_answers(struct batch *batch, const struct mr_store_result *result,
                             const struct mr_store_result *each, struct mr_store_result *worst)
{
    unsigned again = 0;
    for (unsigned i = 0; i < batch->sent; i++) {
        unsigned n = batch->pending[i];
        const struct mr_store_result *one = each ? &each[i] : result;
        if (!take_answer(batch, n, one))
            continue;
        unsigned longest_ms = one->retry_after_ms > worst->retry_after_ms ? one->retry_after_ms : worst->retry_after_ms;
        if (worst->code == MR_OK || (one->rate_limited && !worst->rate_limited))
            *worst = *one;
        worst->retry_after_ms = longest_ms;
        batch->pending[again++] = n;
    }
    unsigned unsent = batch->pending_count - batch->sent;
    memmove(&batch->pending[again], &batch->pending[batch->sent], unsent * sizeof batch->pending[0]);
    batch->pending_count = again + unsent;
    return again;
}

/* A request of which names are refused, because there are too many a second, has shown how many are taken at once: the
 * next ones of this engine carry no more. Each that was full, and done as a whole, adds one. */
static void learn_size(struct batch *batch, unsigned done, bool names_refused)
{
    unsigned *most = &batch->base.engine->batch_most;
    unsigned fits = done > 0 ? done : (batch->sent + 1) / 2;
    if (names_refused && fits < *most)
        *most = fits;
    else if (!names_refused && done == batch->sent && done == *most && done < MR_STORE_BATCH_MAX)
        ++*most;
}

/* Sends again those that may succeed later, and those that had no room. A name that was lost and no longer exists counts
 * as deleted. */
static void on_batch(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct mr_stream *stream = arg;
    struct batch *batch = (struct batch *)stream->transfer;
    struct mr_store_result worst = {.code = MR_OK, .text = "", .status = 200};
    unsigned again = take_answers(batch, result, each, &worst);
    learn_size(batch, batch->sent - again, each && worst.rate_limited);
    if (again < batch->sent)
        mr_stream_progress(stream);
    if (mr_stream_end(stream, &worst) != 0) /* those that are left: again, or they keep their errors */
        return;
    if (batch->pending_count > 0) {
        mr_stream_queue(stream, true);
        return;
    }
    report_batch(batch);
    mr_transfer_end(&batch->base);
}

static struct mr_store_call *send_batch(struct mr_stream *stream)
{
    struct batch *batch = (struct batch *)stream->transfer;
    unsigned most = batch->base.engine->batch_most;
    batch->sent = batch->pending_count < most ? batch->pending_count : most;
    for (unsigned i = 0; i < batch->sent; i++)
        batch->request[i] = batch->names[batch->pending[i]];
    batch->base.engine->counters.deletes += batch->sent;
    return mr_store_delete_batch(batch->base.store, batch->request, batch->sent, on_batch, stream);
}

static void fail_batch(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    struct batch *batch = (struct batch *)transfer;
    for (unsigned i = 0; i < batch->pending_count; i++) {
        struct batch_item *item = &batch->items[batch->pending[i]];
        if (item->result.code != MR_OK)
            continue;
        const struct mr_store_name *name = &batch->names[batch->pending[i]];
        char uri[400], text[1200];
        mr_store_uri(transfer->store, uri, sizeof uri, name->name, name->name_length);
        snprintf(text, sizeof text, "%s: the deletion was not sent: %.700s", uri, result->text);
        struct mr_store_result unsent = *result;
        unsent.text = text;
        set_result(item, &unsent);
    }
    report_batch(batch);
}

static const struct mr_transfer_ops batch_ops = {send_batch, fail_batch, close_batch};

struct mr_transfer *mr_transfer_delete_batch(struct mr_transfer_engine *engine, struct mr_store *store,
                                             const struct mr_store_name *names, unsigned count, mr_store_batch_fn *done,
                                             void *arg)
{
    if (count == 0 || count > MR_STORE_BATCH_MAX) {
        mr_error_set(MR_E_USAGE, "%u objects to delete: 1 to %d are possible in one request", count,
                     MR_STORE_BATCH_MAX);
        return NULL;
    }
    struct batch *batch = mr_transfer_make(engine, store, &batch_ops, sizeof *batch, arg);
    if (!batch)
        return NULL;
    batch->base.done.batch = done;
    batch->count = batch->pending_count = count;
    mr_store_names_copy(batch->names, names, count, &batch->base.strings); /* mr_transfer_begin reports a failure */
    for (unsigned i = 0; i < count; i++) {
        batch->pending[i] = i;
        batch->items[i].result.text = "";
    }
    return mr_transfer_begin(&batch->base);
}

/* ---- what the bucket is ---- */

struct question {
    struct mr_transfer base; /* its strings: names of permissions, each with its NUL */
    const char *names[MR_STORE_PERMISSION_MAX];
    unsigned count; /* of names; 0: the question is what the bucket is */
};

static void on_bucket(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.bucket(transfer->arg, result, bucket);
    mr_transfer_end(transfer);
}

static void on_permissions(void *arg, const struct mr_store_result *result, unsigned granted)
{
    struct mr_transfer *transfer = ((struct mr_stream *)arg)->transfer;
    if (mr_stream_end(arg, result) != 0)
        return;
    transfer->done.permissions(transfer->arg, result, granted);
    mr_transfer_end(transfer);
}

static struct mr_store_call *send_question(struct mr_stream *stream)
{
    struct question *question = (struct question *)stream->transfer;
    question->base.engine->counters.class_b++;
    if (question->count == 0)
        return mr_store_bucket(question->base.store, on_bucket, stream);
    return mr_store_permissions(question->base.store, question->names, question->count, on_permissions, stream);
}

static void fail_question(struct mr_transfer *transfer, const struct mr_store_result *result)
{
    if (((struct question *)transfer)->count == 0)
        transfer->done.bucket(transfer->arg, result, NULL);
    else
        transfer->done.permissions(transfer->arg, result, 0);
}

static const struct mr_transfer_ops question_ops = {send_question, fail_question, NULL};

struct mr_transfer *mr_transfer_bucket(struct mr_transfer_engine *engine, struct mr_store *store,
                                       mr_store_bucket_fn *done, void *arg)
{
    struct question *question = mr_transfer_make(engine, store, &question_ops, sizeof *question, arg);
    if (!question)
        return NULL;
    question->base.done.bucket = done;
    return mr_transfer_begin(&question->base);
}

struct mr_transfer *mr_transfer_permissions(struct mr_transfer_engine *engine, struct mr_store *store,
                                            const char *const *names, unsigned count, mr_store_permissions_fn *done,
                                            void *arg)
{
    if (count == 0 || count > MR_STORE_PERMISSION_MAX) {
        mr_error_set(MR_E_USAGE, "%u permissions: 1 to %d can be asked for", count, MR_STORE_PERMISSION_MAX);
        return NULL;
    }
    struct question *question = mr_transfer_make(engine, store, &question_ops, sizeof *question, arg);
    if (!question)
        return NULL;
    struct mr_text *strings = &question->base.strings;
    for (unsigned i = 0; i < count; i++)
        mr_write_string(strings, names[i], strlen(names[i]));
    question->base.done.permissions = done;
    question->count = count;
    size_t at = 0;
    for (unsigned i = 0; i < count && !strings->failed; i++) {
        question->names[i] = strings->data + at;
        at += strlen(names[i]) + 1;
    }
    return mr_transfer_begin(&question->base);
}
