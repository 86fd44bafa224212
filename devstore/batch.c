/* batch.c - POST /batch/storage/v1: a multipart/mixed of requests, each answered by the same functions as outside a
 * batch. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/counts.h"
#include "devstore/faults.h"
#include "devstore/mime.h"

static const char answer_boundary[] = "batch_millrace_devstore";

/* One call: its request line, headers and body are the part's body. */
struct call_text {
    char *method, *target;
    const char *headers, *body;
    size_t headers_length, body_length;
};

/* 0, or -1: no request. The text points into the part, but method and target are for the caller to free in either
 * case. */
static int split_call(const struct ds_mime_part *part, struct call_text *text)
{
    const char *newline = memchr(part->body, '\n', part->body_length);
    const char *line_end = newline ? newline : part->body + part->body_length;
    size_t line = (size_t)(line_end - part->body);
    const char *space = memchr(part->body, ' ', line);
    memset(text, 0, sizeof *text);
    if (!space)
        return -1;
    const char *target = space + 1, *stop = memchr(target, ' ', (size_t)(line_end - target));
    if (!stop)
        stop = line_end;
    while (stop > target && stop[-1] == '\r')
        stop--;
    text->method = strndup(part->body, (size_t)(space - part->body));
    text->target = strndup(target, (size_t)(stop - target));
    text->headers = newline ? newline + 1 : line_end;
    text->headers_length = part->body_length - (size_t)(text->headers - part->body);
    size_t head, rest;
    if (ds_mime_head(text->headers, text->headers_length, &head, &rest) == 0) {
        text->body = text->headers + rest;
        text->body_length = text->headers_length - rest;
        text->headers_length = head;
    }
    /* An absolute target stands for its path. */
    const char *scheme = text->target ? strstr(text->target, "://") : NULL;
    const char *path = scheme ? strchr(scheme + 3, '/') : NULL;
    if (path)
        memmove(text->target, path, strlen(path) + 1);
    return text->method && text->target ? 0 : -1;
}

/* Finds only what calls for metadata read: Host, for links, which is the outer request's. */
static const char *find_header(void *cls, const char *name)
{
    const struct ds_request *outer = cls;
    return strcmp(name, "Host") == 0 ? ds_request_header(outer, name) : NULL;
}

static void answer_call(const struct ds_api *api, const struct ds_request *outer, const struct ds_mime_part *part,
                        struct ds_reply *reply, ds_api_answer_fn *answer)
{
    struct call_text text;
    struct ds_request request;
    if (split_call(part, &text) < 0 || ds_request_init(&request, text.method, text.target) < 0) {
        ds_reply_error(reply, outer, 400, NULL, "A part of the batch holds no request.");
        goto out;
    }
    request.header = find_header;
    request.header_cls = (void *)outer;
    ds_text_append(&request.body, text.body, text.body ? text.body_length : 0);
    const struct ds_fault *fault = ds_faults_draw(api->faults, &request, true);
    if (fault)
        ds_fault_reply(fault, &request, reply);
    else if (request.op == MR_OP_GET || ds_op_uploads(request.op) || request.op == MR_OP_BATCH ||
             request.op == MR_OP_ADMIN)
        ds_reply_error(reply, &request, 400, NULL, "Media and batches are not allowed in a batch.");
    else
        answer(api, &request, reply);
    ds_counts_request(api->counts, request.op, reply->status, true);
    ds_request_close(&request);
out:
    free(text.method);
    free(text.target);
}

static void write_answer(struct ds_text *out, const struct ds_mime_part *part, const struct ds_reply *reply)
{
    char *id = ds_mime_header(part->headers, part->headers_length, "Content-ID");
    ds_text_printf(out, "--%s\r\nContent-Type: application/http\r\n", answer_boundary);
    if (id && !ds_utf8_valid(id, strlen(id))) { /* not echoed */
        free(id);
        id = NULL;
    }
    if (id && id[0] == '<')
        ds_text_printf(out, "Content-ID: <response-%s\r\n", id + 1);
    else if (id)
        ds_text_printf(out, "Content-ID: response-%s\r\n", id);
    ds_text_printf(out, "\r\nHTTP/1.1 %u %s\r\n", reply->status, ds_status_phrase(reply->status));
    for (int i = 0; i < reply->n_headers; i++)
        ds_text_printf(out, "%s: %s\r\n", reply->headers[i].name, reply->headers[i].value);
    ds_text_printf(out, "Content-Length: %zu\r\n\r\n", reply->body.length);
    ds_text_append(out, reply->body.data, reply->body.length);
    ds_text_puts(out, "\r\n");
    free(id);
}

void ds_api_batch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply,
                  ds_api_answer_fn *answer)
{
    char boundary[MR_BOUNDARY_MAX + 1];
    const char *body = request->body.data ? request->body.data : "";
    if (ds_mime_boundary(ds_request_header(request, "Content-Type"), boundary) < 0) {
        ds_reply_from_error(reply, request);
        return;
    }
    struct ds_mime_part part;
    size_t at = 0;
    int calls = 0, more = -1;
    /* Counted before the first one is done: a batch that is refused has changed nothing. */
    while ((more = ds_mime_next(body, request->body.length, boundary, &at, &part)) == 1)
        calls++;
    if (more < 0) {
        ds_reply_from_error(reply, request);
        return;
    }
    if (calls == 0 || calls > MR_BATCH_CALLS) {
        ds_reply_error(reply, request, 400, NULL, "A batch has 1 to %d calls; this one has %d.", MR_BATCH_CALLS, calls);
        return;
    }
    struct ds_text out = {0};
    for (at = 0; ds_mime_next(body, request->body.length, boundary, &at, &part) == 1;) {
        struct ds_reply one;
        ds_reply_init(&one);
        answer_call(api, request, &part, &one, answer);
        write_answer(&out, &part, &one);
        ds_reply_close(&one);
    }
    ds_text_printf(&out, "--%s--\r\n", answer_boundary);
    ds_reply_header(reply, "Content-Type", "multipart/mixed; boundary=%s", answer_boundary);
    reply->body = out;
}
