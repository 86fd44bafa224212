/* Many deletes in one request, or one by one where that is not possible. Facts: docs/protocols.md, "S3". */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/auth_call.h"
#include "worker/store/s3_impl.h"

/* Copies the names to call->name. 0, or -1: no memory; mr_error is not set. */
static int batch_init(struct s3_call *call, const struct mr_store_name *names, unsigned count)
{
    struct s3_batch *batch = &call->batch;
    *batch = (struct s3_batch){
        .count = count,
        .names = calloc(count, sizeof *batch->names),
        .each = calloc(count, sizeof *batch->each),
        .answered = calloc(count, sizeof *batch->answered),
        .texts = calloc(count, sizeof *batch->texts),
    };
    if (!batch->names || !batch->each || !batch->texts || !batch->answered)
        return -1;
    return mr_store_names_copy(batch->names, names, count, &call->name);
}

/* Keeps a result, its text as an offset: words moves while it grows. */
static void take_result(struct s3_batch *batch, unsigned i, const struct mr_store_result *result)
{
    batch->each[i] = *result;
    batch->each[i].text = "";
    batch->answered[i] = true;
    if (!result->text[0])
        return;
    batch->texts[i] = batch->words.length + 1;
    mr_text_add(&batch->words, result->text, strlen(result->text) + 1);
}

/* Every delete has its result: calls back and gives the call back. */
static void s3_batch_finish(struct s3_call *call)
{
    struct s3_batch *batch = &call->batch;
    for (unsigned i = 0; i < batch->count; i++) { /* only now: the words' memory moved while it grew */
        if (batch->texts[i])
            batch->each[i].text =
                batch->words.failed ? "no memory for its message" : batch->words.data + batch->texts[i] - 1;
    }
    struct mr_store_result result = {.code = MR_OK, .text = "", .status = 200};
    call->kind = S3_BATCH;
    call->done.batch(call->arg, &result, batch->each);
    mr_s3_give(call);
}

static void fail_all(struct s3_call *call, struct s3_answer *answer)
{
    call->kind = S3_BATCH;
    call->done.batch(call->arg, &answer->result, NULL);
    mr_s3_give(call);
}

/* ---- one by one ---- */

static int next_single(struct s3_call *call);

static void on_single(void *arg, const struct mr_store_result *result)
{
    struct s3_call *call = arg;
    call->single->owner = NULL;
    call->single = NULL;
    take_result(&call->batch, call->batch.next++, result);
    if (call->batch.next == call->batch.count) {
        s3_batch_finish(call);
    } else if (next_single(call) != 0) {
        struct s3_answer answer = {.result = {.text = ""}};
        mr_s3_refuse(call, &answer);
        fail_all(call, &answer);
    }
}

static int next_single(struct s3_call *call)
{
    const struct mr_store_name *name = &call->batch.names[call->batch.next];
    call->single = (struct s3_call *)mr_s3_delete(call->base.store, name->name, name->name_length, name->generation,
                                                  on_single, call);
    if (!call->single)
        return -1;
    call->single->owner = call;
    return 0;
}

/* ---- in one request ---- */

static void put_name(struct mr_text *to, const struct mr_store_name *name)
{
    mr_text_puts(to, "<Object><Key>");
    mr_text_put_xml(to, name->name, name->name_length);
    mr_text_puts(to, "</Key>");
    if (mr_store_is_generation(name->generation)) {
        mr_text_puts(to, "<ETag>");
        mr_text_put_xml(to, name->etag, strlen(name->etag));
        mr_text_puts(to, "</ETag>");
    }
    mr_text_puts(to, "</Object>");
}

/* The first name from `from` on, cyclically, that is equal and has no result yet; -1: none. So results are found in
 * order, and a name that occurs twice gets both. */
static int s3_batch_find(const struct s3_batch *batch, const char *name, unsigned from)
{
    for (unsigned k = 0; k < batch->count; k++) {
        unsigned i = (from + k) % batch->count;
        if (!batch->answered[i] && strcmp(batch->names[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static void take_error(struct s3_call *call, unsigned i, const char *word, const char *message)
{
    struct s3_batch *batch = &call->batch;
    char uri[400], text[900];
    enum mr_code code = mr_s3_code(call, 400, word);
    mr_store_uri(call->base.store, uri, sizeof uri, batch->names[i].name, batch->names[i].name_length);
    snprintf(text, sizeof text, "%s: %.60s: %.300s", uri, word, message);
    struct mr_store_result result = {.code = code, .text = text, .status = code == MR_E_CHANGED ? 412 : 400};
    if (strcmp(word, "SlowDown") == 0) { /* as where the whole request is answered so */
        result.status = 503;
        result.rate_limited = true;
    }
    take_result(batch, i, &result);
}

/* <Deleted><Key> and <Error><Key><Code><Message> of a DeleteResult. A name without either gets NET. */
static void take_answers(struct s3_call *call, struct mr_xml *xml)
{
    static const struct mr_store_result good = {.code = MR_OK, .text = "", .status = 204};
    struct s3_batch *batch = &call->batch;
    const char *key = "", *word = "", *message = "";
    struct mr_xml_leaf leaf;
    unsigned next = 0;
    for (size_t n = 0; mr_xml_leaf(xml, n, &leaf); n++) {
        if (leaf.depth == 2) {
            key = strcmp(leaf.name, "Key") == 0 ? leaf.text : key;
            word = strcmp(leaf.name, "Code") == 0 ? leaf.text : word;
            message = strcmp(leaf.name, "Message") == 0 ? leaf.text : message;
            continue;
        }
        int i = s3_batch_find(batch, key, next);
        if (i >= 0 && strcmp(leaf.name, "Deleted") == 0)
            take_result(batch, (unsigned)i, &good);
        else if (i >= 0 && strcmp(leaf.name, "Error") == 0)
            take_error(call, (unsigned)i, word, message);
        next = i >= 0 ? (unsigned)i + 1 : next;
        key = word = message = "";
    }
    struct mr_store_result lost = {
        .code = MR_E_NET, .text = "the answer to a batch of deletes has no word about it", .status = 200};
    for (unsigned i = 0; i < batch->count; i++) {
        if (!batch->answered[i])
            take_result(batch, i, &lost);
    }
}

/* If the endpoint has no batches, that is remembered, and the deletes are sent one by one. */
static void on_batch(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_store_result *result = &answer->result;
    int status = result->status;
    if ((status == 404 && strcmp(answer->word, "NoSuchBucket") != 0) || status == 405 || status == 501) {
        mr_s3_store(call)->no_batch = true;
        if (next_single(call) == 0)
            return;
        mr_s3_refuse(call, answer);
    }
    struct mr_xml *xml = result->code == MR_OK ? mr_s3_xml(call, answer, "DeleteResult") : NULL;
    if (!xml) {
        fail_all(call, answer);
        return;
    }
    take_answers(call, xml);
    mr_xml_destroy(xml);
    s3_batch_finish(call);
}

/* The request needs a checksum: MD5, which every server but directory buckets knows, if this machine allows it; else
 * CRC32C. */
static void put_checksum(struct s3_call *call)
{
    unsigned char md5[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    struct mr_text text = {0};
    if (!mr_s3_store(call)->zone[0] && EVP_Digest(call->head.data, call->head.length, md5, &n, EVP_md5(), NULL) == 1) {
        mr_auth_put_base64(&text, md5, n, false);
        mr_s3_line(call, "Content-MD5: ", text.data ? text.data : "");
        call->lines.failed |= text.failed;
        mr_text_close(&text);
        return;
    }
    struct mr_checksum sum = {MR_CHECKSUM_CRC32C, 0};
    char crc[MR_CHECKSUM_TEXT_SIZE];
    mr_checksum_add(&sum, call->head.data, call->head.length);
    mr_s3_line(call, "x-amz-checksum-crc32c: ", mr_checksum_to_base64(&sum, crc));
}

static int send_batch(struct s3_call *call)
{
    struct mr_http_request http = {.method = "POST"};
    struct mr_text *body = &call->head;
    mr_text_puts(body, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (unsigned i = 0; i < call->batch.count; i++) {
        put_name(body, &call->batch.names[i]);
        http.fresh_connection |= !mr_store_is_generation(call->batch.names[i].generation);
    }
    mr_text_puts(body, "</Delete>");
    mr_s3_target(call, "?delete");
    mr_s3_line(call, "Content-Type: ", "application/xml");
    if (!body->failed)
        put_checksum(call);
    mr_s3_body(call, &http, body->data, body->length, true);
    return mr_s3_send(call, &http, on_batch);
}

/* Whether one request can do. A name with a version whose ETag is not known has to be looked up and is sent by itself.
 * So are names that XML cannot contain. */
static bool can_be_one(const struct s3_call *call)
{
    for (unsigned i = 0; i < call->batch.count; i++) {
        const struct mr_store_name *name = &call->batch.names[i];
        if (mr_store_is_generation(name->generation) && (!name->etag || !name->etag[0]))
            return false;
        for (size_t at = 0; at < name->name_length; at++)
            if ((unsigned char)name->name[at] < 0x20)
                return false;
    }
    return !mr_s3_store(call)->no_batch;
}

struct mr_store_call *mr_s3_delete_batch(struct mr_store *base, const struct mr_store_name *names, unsigned count,
                                         mr_store_batch_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_BATCH, "", 0, arg);
    if (!call)
        return NULL;
    int rc = -1;
    call->done.batch = done;
    if (batch_init(call, names, count) != 0)
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u deletes in s3://%s", count, base->bucket);
    else
        rc = can_be_one(call) ? send_batch(call) : next_single(call);
    if (rc == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}
