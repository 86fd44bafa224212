#include "worker/store/http.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/process.h"
#include "worker/store/headers.h"
#include "worker/store/http_impl.h"
#include "worker/store/text.h"

#define COLLECT_MAX (UINT64_C(64) << 20)
#define SEND_SMALL  (64L << 10)
#define SEND_BUFFER (512L << 10) /* libcurl's, while it sends */

/* ---- curl's callbacks ---- */

static size_t on_header(char *line, size_t unit, size_t count, void *arg)
{
    mr_http_head_line(arg, line, unit * count);
    return unit * count;
}

/* For a body of several pieces, or a long one. */
static size_t on_read(char *to, size_t unit, size_t count, void *arg)
{
    struct mr_http_call *call = arg;
    size_t room = unit * count;
    call->moved_ns = call->http->now_ns; /* what was read before has been sent */
    call->active_ns = mr_http_ran_ns(call->http) - call->started_ran_ns;
    size_t put = 0;
    while (put < room && call->body_piece < call->body_count) {
        const struct mr_http_piece *piece = &call->body[call->body_piece];
        uint64_t left = piece->length - call->body_at;
        size_t n = left < room - put ? (size_t)left : room - put;
        if (n > 0)
            memcpy(to + put, (const char *)piece->data + call->body_at, n);
        put += n;
        call->body_at += n;
        if (call->body_at == piece->length) {
            call->body_piece++;
            call->body_at = 0;
        }
    }
    return put;
}

/* libcurl starts over on another connection, always from the beginning. */
static int on_rewind(void *arg, curl_off_t offset, int origin)
{
    struct mr_http_call *call = arg;
    if (offset != 0 || origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    call->body_piece = 0;
    call->body_at = 0;
    return CURL_SEEKFUNC_OK;
}

/* There is a connection, and the request is about to be sent on it. */
static int on_send(void *arg, char *far_ip, char *near_ip, int far_port, int near_port)
{
    struct mr_http_call *call = arg;
    (void)far_ip, (void)near_ip, (void)far_port, (void)near_port;
    if (call->once && call->sent > 0) {
        call->sink_code = MR_E_NET;
        snprintf(call->sink_text, sizeof call->sink_text, "the connection ended before an answer came");
        return CURL_PREREQFUNC_ABORT;
    }
    call->sent++;
    return CURL_PREREQFUNC_OK;
}

static size_t on_body(char *data, size_t unit, size_t count, void *arg)
{
    size_t length = unit * count;
    return mr_http_take_body(arg, data, length) == 0 ? length : length == 0 ? 1 : 0;
}

/* ---- calls ---- */

/*
 * An easy handle of libcurl 7.83 to 7.88 keeps a pointer to the last header line of its last response, which it has
 * freed. If the next response begins with a folded line (one that begins with a blank), it writes there. Such a handle
 * serves one request only.
 */
static bool easy_remembers(void)
{
    unsigned version = curl_version_info(CURLVERSION_NOW)->version_num;
    return version >= 0x075300 && version < 0x080000;
}

static void call_free(struct mr_http_call *call)
{
    if (call->easy)
        curl_easy_cleanup(call->easy);
    free(call->collected);
    free(call->lines);
    free(call->location);
    free(call);
}

/* Sets the options that are the same for every request, once per easy handle. 0, or -1 (no memory). */
static int make_easy(struct mr_http *http, struct mr_http_call *call)
{
    CURL *easy = curl_easy_init();
    if (!easy)
        return -1;
    call->easy = easy;
    mr_http_set_connection(http, easy);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)http->buffer_bytes);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* an object's name may be "a/../b" */
    curl_easy_setopt(easy, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->curl_text);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(easy, CURLOPT_READDATA, call);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_rewind);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, call);
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_send);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, call);
    return 0;
}

/* From the pool, or a new one. own: it needs no easy handle. NULL: no memory. */
static struct mr_http_call *take_call(struct mr_http *http, bool own)
{
    struct mr_http_call *call = http->pool;
    if (call)
        http->pool = call->next;
    else
        call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->http = http;
    call->own = own;
    if (own || call->easy || make_easy(http, call) == 0)
        return call;
    call_free(call);
    return NULL;
}

/* Puts the request's lines in front of the list that all requests share, which libcurl only reads. 0, or -1 (no
 * memory). */
static int set_lines(struct mr_http_call *call, const struct mr_http_request *request)
{
    size_t needed = 0;
    struct curl_slist *shared = call->http->lines[request->plain][request->identity];
    for (unsigned i = 0; i < request->header_count; i++)
        needed += strlen(request->headers[i]) + 1;
    if (needed > call->lines_size) {
        char *lines = realloc(call->lines, needed);
        if (!lines)
            return -1;
        call->lines = lines;
        call->lines_size = needed;
    }
    char *at = call->lines;
    for (unsigned i = 0; i < request->header_count; i++) {
        size_t n = strlen(request->headers[i]) + 1;
        memcpy(at, request->headers[i], n);
        call->nodes[i].data = at;
        call->nodes[i].next = i + 1 < request->header_count ? &call->nodes[i + 1] : shared;
        at += n;
    }
    curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, request->header_count ? &call->nodes[0] : shared);
    return 0;
}

static void set_body(struct mr_http_call *call, const struct mr_http_request *request)
{
    CURL *easy = call->easy;
    call->body_count = request->body_count;
    call->body_length = call->body_piece = 0;
    call->body_at = 0;
    for (unsigned i = 0; i < request->body_count; i++) {
        call->body[i] = request->body[i];
        call->body_length += request->body[i].length;
    }
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    /* A small body in one piece is sent in one packet with the header lines. */
    bool in_one = request->body_count == 1 && call->body_length <= SEND_SMALL;
    const void *small = call->body_length ? request->body[0].data : "";
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, in_one ? small : NULL);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_length);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, call->body_length > SEND_SMALL ? SEND_BUFFER : SEND_SMALL);
}

/*
 * Sets the URL, and its path and query once more as they are to be sent: libcurl 7.88 takes the URL apart, and if there
 * is no memory for the query it sends the request without it, so that a part of an upload would become the object
 * itself. A proxy without a tunnel needs the whole URL. 0, or -1 (no memory).
 */
static int set_url(struct mr_http_call *call, const struct mr_http_request *request)
{
    const char *authority = strstr(request->url, "://");
    const char *path = authority ? strchr(authority + 3, '/') : NULL;
    bool tls = strncmp(request->url, "https:", 6) == 0;
    if (call->http->plain_proxy && !tls && !request->direct)
        path = NULL;
    return curl_easy_setopt(call->easy, CURLOPT_URL, request->url) == CURLE_OK &&
                   curl_easy_setopt(call->easy, CURLOPT_REQUEST_TARGET, path) == CURLE_OK
               ? 0
               : -1;
}

static int set_method(struct mr_http_call *call, const struct mr_http_request *request)
{
    CURL *easy = call->easy;
    const char *method = request->method;
    curl_easy_setopt(easy, CURLOPT_NOBODY, 0L);
    if (request->body_count > 0)
        set_body(call, request);
    else
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    if (request->body_count == 0 && strcmp(method, "HEAD") == 0) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
        method = NULL;
    } else if (request->body_count == 0 && strcmp(method, "GET") == 0) {
        method = NULL;
    }
    return curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK ? 0 : -1;
}

static int set_request(struct mr_http_call *call, const struct mr_http_request *request)
{
    CURL *easy = call->easy;
    if (set_url(call, request) != 0 || set_lines(call, request) != 0 || set_method(call, request) != 0)
        return -1;
    char range[48];
    if (request->has_range)
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)request->range_first,
                 (unsigned long long)request->range_last);
    if (curl_easy_setopt(easy, CURLOPT_RANGE, request->has_range ? range : NULL) != CURLE_OK)
        return -1;
    curl_easy_setopt(easy, CURLOPT_NOPROXY, request->direct ? "*" : NULL); /* NULL: as in the environment */
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, request->fresh_connection ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, request->plain ? 1L : 0L);
    return 0;
}

/* Sets the timer that checks calls for stalls, which are found late by an eighth of the limit, half a second at
 * most. */
static void watch(struct mr_http *http, const struct mr_http_call *call)
{
    int64_t ns = (call->first_limit_ns < call->stall_limit_ns ? call->first_limit_ns : call->stall_limit_ns) / 8;
    if (call->stall_limit_ns == 0)
        return;
    if (ns < 5 * MR_MILLISECOND_NS)
        ns = 5 * MR_MILLISECOND_NS;
    if (ns > 500 * MR_MILLISECOND_NS)
        ns = 500 * MR_MILLISECOND_NS;
    if (!http->watch.armed || http->watch.due_ns > http->now_ns + ns)
        mr_http_timer_set(http, &http->watch, http->now_ns + ns);
}

static void activate(struct mr_http *http, struct mr_http_call *call)
{
    call->previous = NULL;
    call->next = http->active;
    if (http->active)
        http->active->previous = call;
    http->active = call;
    http->in_flight++;
}

struct mr_http_call *mr_http_start(struct mr_http *http, const struct mr_http_request *request)
{
    if (request->header_count > MR_HTTP_MAX_HEADERS) {
        mr_error_set(MR_E_USAGE, "a request has %u header lines; at most %d are possible", request->header_count,
                     MR_HTTP_MAX_HEADERS);
        return NULL;
    }
    if (request->body_count > MR_HTTP_MAX_PIECES) {
        mr_error_set(MR_E_USAGE, "a body has %u pieces; at most %d are possible", request->body_count,
                     MR_HTTP_MAX_PIECES);
        return NULL;
    }
    bool own = mr_http_is_own(http, request);
    struct mr_http_call *call = take_call(http, own);
    if (!call)
        goto no_memory;
    mr_http_read_clock(http, 0);
    call->sink = request->sink;
    call->room = request->room;
    call->line = NULL;
    call->fresh = request->fresh_connection;
    call->done = request->done;
    call->arg = request->arg;
    call->collect_max = request->collect_max ? request->collect_max : COLLECT_MAX;
    call->received = call->body_length = 0;
    call->started_ns = call->moved_ns = http->now_ns;
    call->started_ran_ns = call->first_ran_ns = mr_http_ran_ns(http);
    call->moved_received = 0;
    call->drip_end_ns = http->now_ns + request->drip_ms * MR_MILLISECOND_NS;
    call->first_ns = call->gap_ns = call->active_ns = 0;
    call->stall_limit_ns = request->stall_timeout_ms * MR_MILLISECOND_NS;
    call->first_limit_ns = request->first_timeout_ms && request->stall_timeout_ms
                               ? request->first_timeout_ms * MR_MILLISECOND_NS
                               : call->stall_limit_ns;
    call->status = 0;
    call->head_ended = call->cut = false;
    memset(&call->headers, 0, sizeof call->headers);
    call->collected_length = 0;
    call->sink_code = MR_OK;
    call->curl_text[0] = 0;
    call->sent = 0;
    call->once = request->once;
    mr_http_trace_begin(call, request);
    if (own ? mr_http_write_request(call, request) != 0
            : set_request(call, request) != 0 || curl_multi_add_handle(http->multi, call->easy) != CURLM_OK) {
        mr_http_call_recycle(http, call);
        goto no_memory;
    }
    activate(http, call);
    if (own)
        mr_http_queue(http, call);
    watch(http, call);
    return call;
no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for a request to %.200s", request->url);
    return NULL;
}

void mr_http_cancel(struct mr_http *http, struct mr_http_call *call)
{
    mr_http_call_deactivate(http, call);
    mr_http_call_recycle(http, call);
}

/* ---- completion ---- */

static void ended(struct mr_http *http, struct mr_http_call *call, CURLcode curl)
{
    if ((curl == CURLE_OK || call->cut) && call->head_ended)
        mr_http_finish(http, call, MR_OK, "");
    else if (curl == CURLE_OK) /* libcurl takes this for a complete response without a body */
        mr_http_finish(http, call, MR_E_NET, "the connection ended within the head of the answer");
    else if ((curl == CURLE_WRITE_ERROR || curl == CURLE_ABORTED_BY_CALLBACK) && call->sink_code != MR_OK)
        mr_http_finish(http, call, call->sink_code, call->sink_text);
    else
        mr_http_finish_curl(http, call, curl, call->curl_text);
}

void mr_http_drain(struct mr_http *http)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(http->multi, &left))) {
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode curl = message->data.result; /* message is invalid once its handle is removed */
        char *private = NULL;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private);
        ended(http, (struct mr_http_call *)(void *)private, curl);
    }
}

static int64_t limit_of(const struct mr_http_call *call)
{
    return call->first_ns ? call->stall_limit_ns : call->first_limit_ns;
}

/* done callbacks may change the list of calls, so the search for the next stalled one starts over each time. */
static struct mr_http_call *stalled(struct mr_http *http)
{
    for (struct mr_http_call *call = http->active; call; call = call->next) {
        int64_t limit = limit_of(call);
        if (limit && http->now_ns - call->moved_ns >= limit)
            return call;
    }
    return NULL;
}

static void end_stalled(struct mr_http *http, struct mr_http_call *call)
{
    char text[96];
    long long ms = (long long)(limit_of(call) / MR_MILLISECOND_NS);
    if (call->first_ns)
        snprintf(text, sizeof text, "it stalled: less than %u bytes came in %lld ms", MR_HTTP_MOVE_BYTES, ms);
    else
        snprintf(text, sizeof text, "it stalled: no answer began in %lld ms", ms);
    mr_http_finish(http, call, MR_E_TIMEOUT, text);
}

/* Ends stalled calls. If the process was suspended, all calls get that time back first. */
static void run_watch(struct mr_http_timer *timer)
{
    struct mr_http *http = MR_CONTAINER_OF(timer, mr_http, watch);
    struct mr_http_call *call;
    int64_t late_ns = http->now_ns - timer->due_ns;
    if (late_ns >= MR_HTTP_PAUSE_NS) { /* this process did not run: what arrived meanwhile has not been read yet */
        for (call = http->active; call; call = call->next)
            call->moved_ns += late_ns;
    }
    while ((call = stalled(http)))
        end_stalled(http, call);
    for (call = http->active; call; call = call->next)
        watch(http, call);
}

/* ---- life ---- */

static void global_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
    /* libcurl allocates a receive buffer for each request. Left alone, malloc gives its pages back to the kernel each
     * time and the next request faults them in again: a tenth of the cost of a 100 KiB object. */
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

static int add_header(struct curl_slist **to, const char *line)
{
    struct curl_slist *list = curl_slist_append(*to, line);
    if (!list) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a header line");
        return -1;
    }
    *to = list;
    return 0;
}

/* Header lines that the body and its checks depend on. */
static bool http_is_ours(const char *line, size_t length)
{
    static const char *const names[] = {"Accept-Encoding", "Content-Length", "Expect", "Range", "Transfer-Encoding"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (length == strlen(names[i]) && strncasecmp(line, names[i], length) == 0)
            return true;
    }
    return false;
}

/* Makes the lists of header lines that requests share. -1 with mr_error. */
static int set_headers(struct mr_http *http, const struct mr_http_options *options)
{
    for (unsigned i = 0; i < 4; i++) {
        struct curl_slist **lines = &http->lines[i / 2][i % 2];
        if (add_header(lines, i % 2 ? "Accept-Encoding: identity" : "Accept-Encoding: gzip") ||
            add_header(lines, "Expect:"))
            return -1;
    }
    for (unsigned i = 0; i < options->header_count; i++) {
        const char *line = options->headers[i], *colon = strchr(line, ':');
        if (!colon || colon == line || strpbrk(line, "\r\n")) {
            mr_error_set(MR_E_CONFIG, "[http] headers: \"%.*s\" is not a line of the form Name: value",
                         (int)strcspn(line, ":\r\n"), line); /* a value may be secret: not shown */
            return -1;
        }
        if (http_is_ours(line, (size_t)(colon - line))) {
            mr_error_set(MR_E_CONFIG, "[http] headers: \"%.*s\" cannot be set: downloads depend on it",
                         (int)(colon - line), line);
            return -1;
        }
        if (add_header(&http->lines[false][false], line) || add_header(&http->lines[false][true], line))
            return -1;
    }
    return 0;
}

struct mr_http *mr_http_new(const struct mr_http_options *options)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    struct mr_http *http = calloc(1, sizeof *http);
    if (!http)
        goto no_memory;
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    http->extra_fd = -1;
    http->curl_due_ns = -1;
    http->now_ns = mr_clock_mono_ns();
    http->watch.run = run_watch;
    http->connect_timeout_ms = options->connect_timeout_ms ? options->connect_timeout_ms : 10000;
    http->buffer_bytes = options->buffer_bytes ? options->buffer_bytes : 512u << 10;
    http->multi = curl_multi_init();
    if (http->epoll_fd < 0) {
        mr_error_set_errno(errno, "cannot make an epoll descriptor");
        goto fail;
    }
    http->plain_proxy =
        options->proxy ? options->proxy[0] != '\0' : getenv("http_proxy") || getenv("all_proxy") || getenv("ALL_PROXY");
    if (!http->multi || mr_text_dup(&http->proxy, options->proxy) || mr_text_dup(&http->ca_bundle, options->ca_bundle))
        goto no_memory;
    if (options->ca_bundle && access(options->ca_bundle, R_OK) != 0) {
        mr_error_set(MR_E_CONFIG, "[http] ca_bundle: cannot read \"%s\": %s", options->ca_bundle, strerror(errno));
        goto fail;
    }
    if (set_headers(http, options) != 0)
        goto fail;
    http->easy_once = easy_remembers();
    http->idle_most = options->connections ? options->connections : 16;
    http->share = curl_share_init();
    if (!http->share)
        goto no_memory;
    curl_share_setopt(http->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
    curl_share_setopt(http->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    curl_multi_setopt(http->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)http->idle_most);
    curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, mr_http_on_socket);
    curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
    curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, mr_http_on_curl_timer);
    curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
    return http;
no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for an HTTP client");
fail:
    mr_http_destroy(http);
    return NULL;
}

void mr_http_destroy(struct mr_http *http)
{
    if (!http)
        return;
    while (http->active)
        mr_http_cancel(http, http->active);
    mr_http_lines_close(http);
    free(http->scratch);
    if (http->share)
        curl_share_cleanup(http->share);
    while (http->pool) {
        struct mr_http_call *call = http->pool;
        http->pool = call->next;
        call_free(call);
    }
    if (http->multi)
        curl_multi_cleanup(http->multi); /* closes the connections, through close_socket */
    for (unsigned i = 0; i < 4; i++)
        curl_slist_free_all(http->lines[i / 2][i % 2]);
    if (http->epoll_fd >= 0)
        close(http->epoll_fd);
    free(http->fds);
    free(http->proxy);
    free(http->ca_bundle);
    free(http);
}
