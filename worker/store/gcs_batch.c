/* Many deletes in one request, or one by one where the endpoint has no batches. Facts: docs/protocols.md, "Google Cloud
 * Storage". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/gcs_impl.h"
#include "worker/store/multipart.h"

/* Copies the names to call->name. 0, or -1: no memory; mr_error is not set. */
static int batch_init(struct gcs_call *call, const struct mr_store_name *names, unsigned count)
{
    struct gcs_batch *batch = &call->batch;
    *batch = (struct gcs_batch){
        .count = count,
        .names = calloc(count, sizeof *batch->names),
        .each = calloc(count, sizeof *batch->each),
        .texts = calloc(count, sizeof *batch->texts),
    };
    if (!batch->names || !batch->each || !batch->texts)
        return -1;
    return mr_store_names_copy(batch->names, names, count, &call->name);
}

/* Keeps a result, its text as an offset: words moves while it grows. */
static void take_result(struct gcs_batch *batch, unsigned i, const struct mr_store_result *result)
{
    batch->each[i] = *result;
    batch->each[i].text = "";
    if (!result->text[0])
        return;
    batch->texts[i] = batch->words.length + 1;
    mr_text_add(&batch->words, result->text, strlen(result->text) + 1);
}

/* Every delete has its result: calls back and gives the call back. */
static void gcs_batch_finish(struct gcs_call *call)
{
    struct gcs_batch *batch = &call->batch;
    for (unsigned i = 0; i < batch->count; i++) { /* only now: the words' memory moved while it grew */
        if (batch->texts[i])
            batch->each[i].text =
                batch->words.failed ? "no memory for its message" : batch->words.data + batch->texts[i] - 1;
    }
    struct mr_store_result result = {.code = MR_OK, .text = "", .status = 200};
    call->done.batch(call->arg, &result, batch->each);
    mr_gcs_give(call);
}

static void gcs_batch_fail(struct gcs_call *call, const struct mr_store_result *result)
{
    call->done.batch(call->arg, result, NULL);
    mr_gcs_give(call);
}

/* ---- one by one ---- */

static int send_next(struct gcs_call *call);

/* Keeps the result of one delete, worded as if it had been a call of its own. */
static void explain_one(struct gcs_call *call, unsigned i, const struct mr_http_result *http)
{
    struct gcs_call one = {.base = call->base, .kind = GCS_DELETE, .generation_match = call->batch.names[i].generation};
    one.name.data = (char *)call->batch.names[i].name;
    one.name.length = call->batch.names[i].name_length;
    struct gcs_answer answer;
    answer.http = http;
    mr_gcs_explain(&one, &answer);
    take_result(&call->batch, i, &answer.result);
}

static void on_single(struct gcs_call *call, struct gcs_answer *answer)
{
    explain_one(call, call->batch.next++, answer->http);
    if (call->batch.next == call->batch.count) {
        gcs_batch_finish(call);
    } else if (send_next(call) != 0) {
        answer->result = (struct mr_store_result){0};
        mr_gcs_refuse(call, answer);
        gcs_batch_fail(call, &answer->result);
    }
}

static int send_next(struct gcs_call *call)
{
    struct gcs_store *store = mr_gcs_store(call);
    const struct mr_store_name *name = &call->batch.names[call->batch.next];
    struct mr_http_request http = {.method = "DELETE", .fresh_connection = !mr_store_is_generation(name->generation)};
    call->line_count = 0;
    mr_text_clear(&call->lines);
    mr_text_clear(&store->url);
    mr_text_puts(&store->url, store->endpoint);
    mr_gcs_delete_url(store, &store->url, name);
    mr_text_add(&store->url, store->user_project.data ? store->user_project.data : "", store->user_project.length);
    return mr_gcs_send(call, &http, on_single);
}

/* ---- in one request ---- */

/* Keeps each part's result. A delete without a part gets NET. 0, or -1 with mr_error. */
static int take_parts(struct gcs_call *call, const struct mr_http_result *http)
{
    struct gcs_batch *batch = &call->batch;
    struct mr_multipart multipart;
    if (mr_multipart_init(&multipart, http->body, http->body_length) != 0)
        return -1;
    for (unsigned i = 0; i < batch->count; i++)
        batch->each[i].status = -1;
    struct mr_multipart_part part;
    for (unsigned n = 0; mr_multipart_next(&multipart, &part); n++) {
        unsigned i = part.id > 0 ? (unsigned)part.id - 1 : n;
        struct mr_http_result answer = {.status = part.status, .headers = part.headers, .location = "", .sent = 1};
        answer.body = part.body;
        answer.body_length = part.body_length;
        if (i < batch->count && batch->each[i].status == -1 && part.status != 0)
            explain_one(call, i, &answer);
    }
    struct mr_http_result missing = {.code = MR_E_NET, .text = "the batch's answer has no part for it", .sent = 1};
    for (unsigned i = 0; i < batch->count; i++) {
        if (batch->each[i].status == -1)
            explain_one(call, i, &missing);
    }
    return 0;
}

/* If the endpoint has no batches, that is remembered, and the deletes are sent one by one. */
static void on_batch(struct gcs_call *call, struct gcs_answer *answer)
{
    struct mr_store_result *result = &answer->result;
    if (result->status == 404 || result->status == 405 || result->status == 501) {
        mr_gcs_store(call)->no_batch = true;
        if (send_next(call) == 0)
            return;
        mr_gcs_refuse(call, answer);
    }
    if (result->code == MR_OK && take_parts(call, answer->http) != 0)
        mr_gcs_refuse(call, answer);
    if (result->code == MR_OK)
        gcs_batch_finish(call);
    else
        gcs_batch_fail(call, result);
}

static void batch_body(struct gcs_call *call)
{
    struct gcs_store *store = mr_gcs_store(call);
    char boundary[MR_GCS_BOUNDARY_SIZE];
    struct mr_text *body = &call->head;
    mr_gcs_boundary(boundary);
    char line[MR_GCS_BOUNDARY_SIZE + 64];
    for (unsigned i = 0; i < call->batch.count; i++) {
        snprintf(line, sizeof line, "--%s\r\n", boundary);
        mr_text_puts(body, line);
        mr_text_puts(body, "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n");
        snprintf(line, sizeof line, "Content-ID: <millrace+%u>\r\n\r\nDELETE ", i + 1);
        mr_text_puts(body, line);
        mr_gcs_delete_url(store, body, &call->batch.names[i]);
        mr_text_add(body, store->user_project.data ? store->user_project.data : "", store->user_project.length);
        mr_text_puts(body, " HTTP/1.1\r\n\r\n\r\n");
    }
    snprintf(line, sizeof line, "--%s--\r\n", boundary);
    mr_text_puts(body, line);
    snprintf(line, sizeof line, "multipart/mixed; boundary=%s", boundary);
    mr_gcs_line(call, "Content-Type: ", line);
    call->body[0] = (struct mr_http_piece){body->data, body->length};
}

struct mr_store_call *mr_gcs_delete_batch(struct mr_store *base, const struct mr_store_name *names, unsigned count,
                                          mr_store_batch_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_BATCH, arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {.method = "POST", .body = call->body, .body_count = 1};
    call->done.batch = done;
    int rc;
    if (batch_init(call, names, count) != 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u deletes in gs://%s", count, base->bucket);
        rc = -1;
    } else if (store->no_batch) {
        rc = send_next(call);
    } else {
        for (unsigned i = 0; i < count; i++)
            http.fresh_connection |= !mr_store_is_generation(names[i].generation);
        batch_body(call);
        mr_text_clear(&store->url);
        mr_text_puts(&store->url, store->endpoint);
        mr_text_puts(&store->url, "/batch/storage/v1");
        rc = mr_gcs_send(call, &http, on_batch);
    }
    if (rc == 0)
        return &call->base;
    mr_gcs_give(call);
    return NULL;
}
