#include "devstore/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "devstore/api.h"
#include "devstore/compress.h"
#include "devstore/counts.h"
#include "devstore/faults.h"
#include "devstore/pace.h"
#include "devstore/s3.h"
#include "devstore/stream.h"
#include "devstore/timers.h"

/* Per connection: for headers, and the piece in which uploads are read. MHD clears it after each request, so not
 * more. */
#define CONNECTION_MEMORY  (64u << 10)
#define DESCRIPTORS_OWN    10u /* beside those that are open at the start: listings, uploads that are joined */
#define DESCRIPTORS_THREAD 4u  /* of MHD */
/* An idle connection is closed after this. It also bounds the life of a connection whose client left in the middle of
 * its headers: the edge-triggered loop does not always notice an end of stream that arrives with data. */
#define IDLE_S 300u

struct ds_serve {
    struct ds_serve_options options;
    struct MHD_Daemon *daemon;
    struct ds_timers *timers;
    struct ds_pace upload, download; /* of all connections together */
};

enum phase { CALL_NEW, CALL_BODY, CALL_WAITED };

/* One request in progress; MHD runs its callbacks on one thread at a time. */
struct call {
    struct ds_serve *serve;
    struct MHD_Connection *connection;
    enum phase phase;
    int64_t start_ns;
    char *uri;
    struct ds_request request;
    struct ds_reply reply;
    bool answered; /* the reply is made: what is left of the body is dropped */
    struct ds_upload *upload;
    const struct ds_fault *fault;
    struct ds_pace pace; /* of the upload */
};

static const char *find_header(void *cls, const char *name)
{
    struct call *call = cls;
    return MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
}

struct walk {
    void (*visit)(void *cls, const char *name, const char *value);
    void *cls;
};

static enum MHD_Result walk_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    const struct walk *walk = cls;
    (void)kind;
    walk->visit(walk->cls, name, value ? value : "");
    return MHD_YES;
}

static void each_header(void *cls, void (*visit)(void *visit_cls, const char *name, const char *value), void *visit_cls)
{
    struct walk walk = {.visit = visit, .cls = visit_cls};
    MHD_get_connection_values(((struct call *)cls)->connection, MHD_HEADER_KIND, walk_header, &walk);
}

/* MHD's first callback of a request: here the target is still as it was sent, before MHD decodes it. */
static void *serve_begin(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->serve = cls;
    call->connection = connection;
    call->uri = strdup(uri);
    ds_reply_init(&call->reply);
    ds_pace_init(&call->pace, call->serve->options.upload_rate);
    return call;
}

/* Written before the reply is sent: a client that has the reply finds its line. */
static void log_line(const struct call *call)
{
    char line[4096 + 64];
    const struct ds_reply *reply = &call->reply;
    int n = snprintf(line, sizeof line, "%s %.4000s %u %" PRIu64 "\n", call->request.method, call->uri, reply->status,
                     reply->length);
    if (n > 0 && write(call->serve->options.log_fd, line, (size_t)n) < 0)
        mr_log_warning("cannot write the request log");
}

static void serve_end(void *cls, struct MHD_Connection *connection, void **context,
                      enum MHD_RequestTerminationCode code)
{
    struct call *call = *context;
    (void)cls, (void)connection, (void)code;
    if (!call)
        return;
    ds_upload_destroy(call->upload);
    ds_pace_close(&call->pace);
    ds_reply_close(&call->reply);
    ds_request_close(&call->request);
    free(call->uri);
    free(call);
    *context = NULL;
}

/* Called when the headers are there: may answer the request already (a fault, a refusal). 0, or -1 without memory. */
static int serve_start(struct call *call, const char *method)
{
    const struct ds_api *api = call->serve->options.api;
    call->start_ns = mr_clock_mono_ns();
    if (!call->uri || ds_request_init(&call->request, method, call->uri) < 0)
        return -1;
    call->request.secure = call->serve->options.key != NULL;
    call->request.header = find_header;
    call->request.header_cls = call;
    call->phase = CALL_BODY;
    call->request.each_header = each_header;
    ds_s3_claim(api, &call->request);
    call->request.fault = call->fault = ds_faults_draw(api->faults, &call->request, false);
    call->request.changed = call->fault && call->fault->kind == MR_FAULT_CHANGED;
    uint64_t length = 0;
    if (call->fault && ds_fault_answers(call->fault)) {
        ds_fault_reply(call->fault, &call->request, &call->reply);
        call->answered = true;
    } else if (ds_api_refuse(api, &call->request, &call->reply)) {
        call->answered = true;
    } else if (ds_op_uploads(call->request.op)) {
        const char *header = find_header(call, "Content-Length");
        if (header && ds_parse_u64(header, &length) < 0)
            length = 0;
        call->upload = ds_upload_new(api, &call->request, length, &call->reply);
        call->answered = !call->upload;
    }
    return 0;
}

/* Once the reply is made, bytes of the body are dropped. */
static void take_body(struct call *call, const char *bytes, size_t length)
{
    if (call->answered)
        return;
    if (call->upload) {
        ds_upload_write(call->upload, bytes, length);
        return;
    }
    if (length > MR_BODY_MAX - call->request.body.length) {
        ds_reply_error(&call->reply, &call->request, 413, NULL, "The body is over 10 MiB.");
        call->answered = true;
        return;
    }
    ds_text_append(&call->request.body, bytes, length);
}

static void statistics(struct ds_serve *serve, const struct ds_request *request, struct ds_reply *reply)
{
    const struct ds_api *api = serve->options.api;
    if (strcmp(request->method, "DELETE") == 0) {
        ds_counts_reset(api->counts);
        ds_faults_forget_hits(api->faults);
        reply->status = 204;
        return;
    }
    ds_text_puts(&reply->body, "{");
    ds_counts_write(api->counts, &reply->body);
    ds_text_puts(&reply->body, ",\"faults\":");
    ds_faults_statistics(api->faults, &reply->body);
    ds_text_puts(&reply->body, "}\n");
    ds_reply_header(reply, "Content-Type", "application/json");
}

/* Makes the reply, unless it was made before the end of the body. */
static void answer(struct call *call)
{
    struct ds_request *request = &call->request;
    struct ds_reply *reply = &call->reply;
    if (call->answered)
        return;
    call->answered = true;
    if (request->body.failed)
        ds_reply_error(reply, request, 500, NULL, "out of memory");
    else if (call->upload)
        ds_upload_finish(call->upload, reply);
    else if (request->op == MR_OP_ADMIN && strcmp(request->tail, "stats") == 0)
        statistics(call->serve, request, reply);
    else if (request->op == MR_OP_ADMIN && strcmp(request->tail, "touch") == 0 && strcmp(request->method, "POST") == 0)
        ds_api_touch(call->serve->options.api, request, reply);
    else if (request->op == MR_OP_ADMIN)
        ds_reply_error(reply, request, 404, NULL, "No such administrative call.");
    else
        ds_api_answer(call->serve->options.api, request, reply);
    if (reply->body.failed)
        ds_reply_error(reply, request, 500, NULL, "out of memory");
}

static void release_object(void *cls)
{
    ds_object_unref(cls);
}

/* A response from several pieces of memory. Takes the object out of the reply. NULL: no memory. */
static struct MHD_Response *scattered(struct ds_reply *reply)
{
    const struct ds_object *object = reply->object;
    uint64_t skip = reply->first, left = reply->length;
    struct MHD_IoVec *vector = calloc(object->n_pieces, sizeof *vector);
    if (!vector)
        return NULL;
    unsigned n = 0;
    for (size_t i = 0; i < object->n_pieces && left > 0; i++) {
        const struct ds_piece *piece = &object->pieces[i];
        if (skip >= piece->length) {
            skip -= piece->length;
            continue;
        }
        uint64_t take = piece->length - skip < left ? piece->length - skip : left;
        vector[n++] = (struct MHD_IoVec){.iov_base = piece->data + skip, .iov_len = take};
        left -= take;
        skip = 0;
    }
    struct MHD_Response *response = MHD_create_response_from_iovec(vector, n, release_object, reply->object);
    free(vector);
    if (response)
        reply->object = NULL;
    return response;
}

/* A response that sends the reply's bytes without a copy in user space. Takes them out of the reply. NULL: no
 * memory. */
static struct MHD_Response *make_response(struct ds_reply *reply)
{
    struct MHD_Response *response = NULL;
    struct ds_object *object = reply->object;
    if (!object) {
        response = MHD_create_response_from_buffer(reply->body.length, reply->body.data ? reply->body.data : "",
                                                   reply->body.data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (response)
            memset(&reply->body, 0, sizeof reply->body);
    } else if (reply->length == 0) {
        response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    } else if (object->path) {
        response = MHD_create_response_from_fd_at_offset64(reply->length, reply->fd, reply->first);
        if (response)
            reply->fd = -1;
    } else if (object->n_pieces == 1) {
        response = MHD_create_response_from_buffer_with_free_callback_cls(
            reply->length, (void *)(object->pieces->data + reply->first), release_object, object);
        if (response)
            reply->object = NULL;
    } else {
        response = scattered(reply);
    }
    return response;
}

/* The statistics and the log. */
static void serve_count(struct call *call)
{
    struct ds_serve *serve = call->serve;
    const struct ds_reply *reply = &call->reply;
    struct ds_counts *counts = serve->options.api->counts;
    ds_counts_request(counts, call->request.op, reply->status, false);
    ds_counts_add(&counts->bytes_out, reply->length);
    if (serve->options.log_fd >= 0)
        log_line(call);
}

/* Whether these are more pieces than one sendmsg takes. */
static bool many_pieces(const struct ds_object *object)
{
    return object && !object->path && object->n_pieces > 1000;
}

static void add_s3_headers(const struct call *call, struct MHD_Response *response)
{
    char text[40];
    snprintf(text, sizeof text, "%016" PRIX64, call->request.id);
    MHD_add_response_header(response, "x-amz-request-id", text);
    MHD_add_response_header(response, "x-amz-id-2", text);
    ds_http_date(ds_s3_now(call->serve->options.api->s3) * 1000000, text);
    MHD_add_response_header(response, MHD_HTTP_HEADER_DATE, text);
}

/* Counts, logs and queues the reply. MHD_NO: the connection is closed. */
static enum MHD_Result send_reply(struct call *call)
{
    struct ds_serve *serve = call->serve;
    struct ds_reply *reply = &call->reply;
    const struct ds_fault *fault = call->fault && ds_fault_in_body(call->fault) ? call->fault : NULL;
    bool limited = serve->options.download_rate > 0 || serve->options.download_total > 0;
    const char *accepted = serve->options.compress ? ds_request_header(&call->request, "Accept-Encoding") : NULL;
    if (accepted && strstr(accepted, "gzip"))
        ds_compress(reply);
    if (!reply->object)
        reply->length = reply->body.length;
    if (fault && fault->kind == MR_FAULT_RESET && reply->length == 0) { /* an answer without a body is lost entirely */
        serve_count(call);
        ds_stream_reset(call->connection);
        return MHD_NO;
    }
    struct MHD_Response *response;
    if (reply->length > 0 && (fault || limited || reply->chunked || many_pieces(reply->object)))
        response = ds_stream_response(serve->timers, call->connection, reply, serve->options.download_rate,
                                      &serve->download, fault);
    else
        response = make_response(reply);
    if (!response)
        return MHD_NO;
    for (int i = 0; i < reply->n_headers; i++)
        MHD_add_response_header(response, reply->headers[i].name, reply->headers[i].value);
    if (call->request.s3)
        add_s3_headers(call, response);
    serve_count(call);
    enum MHD_Result result = MHD_queue_response(call->connection, reply->status, response);
    MHD_destroy_response(response);
    return result;
}

/* Whether the upload's bandwidth is used up; then its connection is suspended, and MHD offers the bytes again. */
static bool must_wait(struct call *call)
{
    if (!call->upload)
        return false;
    int64_t now = mr_clock_mono_ns(), own = ds_pace_ready(&call->pace), all = ds_pace_ready(&call->serve->upload);
    int64_t ready_ns = own > all ? own : all;
    return ready_ns > now && ds_timers_suspend(call->serve->timers, call->connection, ready_ns) == 0;
}

static void charge(struct call *call, uint64_t bytes)
{
    int64_t now = mr_clock_mono_ns();
    if (!call->upload)
        return;
    ds_pace_charge(&call->pace, now, bytes);
    ds_pace_charge(&call->serve->upload, now, bytes);
}

/* MHD calls it when the headers are there, for each piece of the body, at its end, and again after each resume. */
static enum MHD_Result serve_handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                    const char *version, const char *upload_data, size_t *upload_data_size,
                                    void **context)
{
    struct call *call = *context;
    (void)url, (void)version;
    if (!call)
        return MHD_NO;
    if (call->phase == CALL_NEW)
        return serve_start(call, method) < 0 ? MHD_NO : MHD_YES;
    if (*upload_data_size > 0) {
        if (must_wait(call))
            return MHD_YES;
        charge(call, *upload_data_size);
        take_body(call, upload_data, *upload_data_size);
        ds_counts_add(&call->serve->options.api->counts->bytes_in, *upload_data_size); /* then they are kept */
        *upload_data_size = 0;
        return MHD_YES;
    }
    struct ds_serve *serve = cls;
    if (call->phase == CALL_BODY) {
        call->phase = CALL_WAITED;
        int64_t latency_ns = serve->options.latency_ns[call->request.op];
        if (latency_ns > 0 && ds_timers_suspend(serve->timers, connection, call->start_ns + latency_ns) == 0)
            return MHD_YES; /* MHD calls again after the resume */
    }
    answer(call);
    return send_reply(call);
}

static void count_connection(void *cls, struct MHD_Connection *connection, void **context,
                             enum MHD_ConnectionNotificationCode code)
{
    struct ds_serve *serve = cls;
    struct ds_counts *counts = serve->options.api->counts;
    (void)connection, (void)context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        atomic_fetch_add_explicit(&counts->connections, 1, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&counts->connections, 1, memory_order_relaxed);
}

static size_t leave_encoded(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls, (void)connection;
    return strlen(text);
}

static void log_message(void *cls, const char *fmt, va_list args)
{
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = 0;
    mr_log_debug("microhttpd: %s", line);
}

/* How many connections the descriptor limit, which is raised first, has room for: each needs its socket, and most an
 * open file. With one that cannot be accepted MHD would spin. 0 with mr_error: none. `next`: the lowest free descriptor,
 * and so about how many are open. */
static unsigned connection_limit(unsigned threads, unsigned next)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 400;
    limit.rlim_cur = limit.rlim_max < 262144 ? limit.rlim_max : 262144;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    unsigned others = next + DESCRIPTORS_OWN + DESCRIPTORS_THREAD * threads;
    if (limit.rlim_cur < others + 2 * threads) {
        mr_error_set(MR_E_NO_MEMORY, "%llu descriptors may be open, and %u are the least that it needs: ulimit -n",
                     (unsigned long long)limit.rlim_cur, others + 2 * threads);
        return 0;
    }
    return ((unsigned)limit.rlim_cur - others) / 2;
}

struct ds_serve *ds_serve_new(const struct ds_serve_options *options)
{
    struct ds_serve *serve = calloc(1, sizeof *serve);
    if (!serve) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the server");
        close(options->listen_fd);
        return NULL;
    }
    int next = dup(options->listen_fd);
    unsigned connections = next < 0 ? 0 : connection_limit(options->threads, (unsigned)next);
    if (next < 0)
        mr_error_set_errno(errno, "cannot start the HTTP server");
    else
        close(next);
    if (connections == 0) {
        close(options->listen_fd);
        free(serve);
        return NULL;
    }
    serve->options = *options;
    ds_pace_init(&serve->upload, options->upload_total);
    ds_pace_init(&serve->download, options->download_total);
    serve->timers = ds_timers_new();
    if (!serve->timers) {
        close(options->listen_fd);
        free(serve);
        return NULL;
    }
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)options->key},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)options->certificate},
                                   {MHD_OPTION_END, 0, NULL}};
    serve->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (options->key ? MHD_USE_TLS : 0),
        0, NULL, NULL, serve_handle, serve, MHD_OPTION_EXTERNAL_LOGGER, log_message, NULL, MHD_OPTION_LISTEN_SOCKET,
        options->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, options->threads > 1 ? options->threads : 0,
        MHD_OPTION_CONNECTION_LIMIT, connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_URI_LOG_CALLBACK, serve_begin, serve,
        MHD_OPTION_UNESCAPE_CALLBACK, leave_encoded, NULL, MHD_OPTION_NOTIFY_COMPLETED, serve_end, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, count_connection, serve, options->key ? MHD_OPTION_ARRAY : MHD_OPTION_END, tls,
        MHD_OPTION_END);
    if (!serve->daemon) {
        mr_error_set(MR_E_IO, "cannot start the HTTP server");
        close(options->listen_fd);
        ds_timers_destroy(serve->timers);
        free(serve);
        return NULL;
    }
    return serve;
}

void ds_serve_destroy(struct ds_serve *serve)
{
    if (!serve)
        return;
    ds_timers_drain(serve->timers); /* MHD must not be stopped with suspended connections */
    MHD_stop_daemon(serve->daemon);
    ds_timers_destroy(serve->timers);
    ds_pace_close(&serve->upload);
    ds_pace_close(&serve->download);
    free(serve);
}
