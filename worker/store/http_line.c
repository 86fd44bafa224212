/* Connections of our own: made by libcurl (CURLOPT_CONNECT_ONLY), used by one call after another, and closed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/store/http_impl.h"

#define IDLE_MOST_NS (118 * MR_SECOND_NS) /* libcurl's own limit: older ones have often been dropped on the way */

/* ---- the list: most recently used first ---- */

static void link_first(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    line->previous = NULL;
    line->next = http->first_line;
    *(line->next ? &line->next->previous : &http->last_line) = line;
    http->first_line = line;
}

static void unlink_line(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    *(line->previous ? &line->previous->next : &http->first_line) = line->next;
    *(line->next ? &line->next->previous : &http->last_line) = line->previous;
}

/* ---- connecting ---- */

static int on_timer(CURLM *multi, long timeout_ms, void *arg)
{
    struct mr_http_line *line = arg;
    (void)multi;
    line->due_ns = timeout_ms < 0 ? -1 : line->http->now_ns + timeout_ms * MR_MILLISECOND_NS;
    return 0;
}

void mr_http_set_connection(struct mr_http *http, CURL *easy)
{
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(easy, CURLOPT_USERAGENT, MR_HTTP_AGENT);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)http->connect_timeout_ms);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's response is not the server's */
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, mr_http_open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, http);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, mr_http_close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, http);
    if (http->proxy)
        curl_easy_setopt(easy, CURLOPT_PROXY, http->proxy);
    if (http->ca_bundle)
        curl_easy_setopt(easy, CURLOPT_CAINFO, http->ca_bundle);
}

/* libcurl's handles are made once: a server that closes each connection does not cost new ones each time. 0, or -1 (no
 * memory). */
static int make_handles(struct mr_http_line *line)
{
    line->multi = curl_multi_init();
    line->easy = curl_easy_init();
    if (!line->multi || !line->easy)
        return -1;
    curl_multi_setopt(line->multi, CURLMOPT_SOCKETFUNCTION, mr_http_on_line_socket);
    curl_multi_setopt(line->multi, CURLMOPT_SOCKETDATA, line);
    curl_multi_setopt(line->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(line->multi, CURLMOPT_TIMERDATA, line);
    mr_http_set_connection(line->http, line->easy);
    curl_easy_setopt(line->easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(line->easy, CURLOPT_BUFFERSIZE,
                     (long)line->http->buffer_bytes); /* most that libcurl 7 receives at once */
    curl_easy_setopt(line->easy, CURLOPT_SHARE, line->http->share);
    curl_easy_setopt(line->easy, CURLOPT_ERRORBUFFER, line->curl_text);
    return 0;
}

/* Closes the connection as well. */
static void drop_handles(struct mr_http_line *line)
{
    if (line->easy)
        curl_easy_cleanup(line->easy);
    if (line->multi)
        curl_multi_cleanup(line->multi);
    line->easy = NULL;
    line->multi = NULL;
    mr_http_forget_line(line);
}

static void spare(struct mr_http_line *line)
{
    line->next = line->http->spare_lines;
    line->http->spare_lines = line;
}

/* A line with handles, not connected. NULL: no memory. */
static struct mr_http_line *http_line_take_line(struct mr_http *http)
{
    struct mr_http_line *line = http->spare_lines;
    if (line)
        http->spare_lines = line->next;
    else if (!(line = calloc(1, sizeof *line)))
        return NULL;
    line->http = http;
    if (line->easy || make_handles(line) == 0)
        return line;
    drop_handles(line);
    spare(line);
    return NULL;
}

/* NULL: no memory. */
static struct mr_http_line *open_line(struct mr_http *http, const struct mr_http_call *call)
{
    struct mr_http_line *line = http_line_take_line(http);
    if (!line)
        return NULL;
    line->fd = -1;
    line->due_ns = http->now_ns;
    line->tls = call->lines[4] == 's';
    line->call = NULL;
    line->used = line->more = false;
    free(line->place);
    line->place = strndup(call->lines, call->place_length);
    if (!line->place || curl_easy_setopt(line->easy, CURLOPT_URL, line->place) != CURLE_OK ||
        curl_multi_add_handle(line->multi, line->easy) != CURLM_OK) {
        spare(line);
        return NULL;
    }
    link_first(line);
    http->connecting++;
    http->line_count++;
    return line;
}

void mr_http_line_close(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    unlink_line(line);
    http->line_count--;
    if (line->call)
        line->call->line = NULL;
    else if (line->fd >= 0)
        http->idle_lines--;
    http->connecting -= line->fd < 0;
    int fd = line->fd;
    curl_multi_remove_handle(line->multi, line->easy); /* closes the connection, through close_socket */
    if (fd >= 0 && http->fds[fd].line)
        drop_handles(line); /* it did not */
    mr_http_forget_line(line);
    spare(line);
}

void mr_http_lines_close(struct mr_http *http)
{
    while (http->first_line)
        mr_http_line_close(http->first_line);
    while (http->spare_lines) {
        struct mr_http_line *line = http->spare_lines;
        http->spare_lines = line->next;
        drop_handles(line);
        free(line->place);
        free(line->head);
        free(line);
    }
}

/* ---- calls ---- */

void mr_http_queue(struct mr_http *http, struct mr_http_call *call)
{
    call->queued = true;
    call->next_start = NULL;
    *(http->last_start ? &http->last_start->next_start : &http->first_start) = call;
    http->last_start = call;
}

void mr_http_unqueue(struct mr_http *http, struct mr_http_call *call)
{
    struct mr_http_call **at = &http->first_start, *before = NULL;
    while (*at != call) {
        before = *at;
        at = &before->next_start;
    }
    *at = call->next_start;
    if (http->last_start == call)
        http->last_start = before;
    call->queued = false;
}

static struct mr_http_line *find_idle(struct mr_http *http, const struct mr_http_call *call)
{
    for (struct mr_http_line *line = http->first_line; line; line = line->next)
        if (!line->call && line->fd >= 0 && http->now_ns - line->idle_ns <= IDLE_MOST_NS &&
            strncmp(line->place, call->lines, call->place_length) == 0 && !line->place[call->place_length])
            return line;
    return NULL;
}

static void close_oldest_idle(struct mr_http *http)
{
    struct mr_http_line *line = http->last_line;
    while (line && (line->call || line->fd < 0))
        line = line->previous;
    if (line)
        mr_http_line_close(line);
}

/*
 * An idle connection on which nothing has arrived, or a new one. Bytes after a response would be taken for part of the
 * next one. An event announces them, but not within the step in which the connection becomes idle, and not those that
 * TLS has read already.
 */
struct mr_http_line *mr_http_line_get(struct mr_http *http, const struct mr_http_call *call)
{
    struct mr_http_line *line;
    char byte;
    size_t got;
    while (!call->fresh && (line = find_idle(http, call))) {
        if (curl_easy_recv(line->easy, &byte, 1, &got) == CURLE_AGAIN) {
            http->idle_lines--;
            return line;
        }
        mr_http_line_close(line);
    }
    if (http->line_count >= http->idle_most) /* their descriptors count too */
        close_oldest_idle(http);
    return open_line(http, call);
}

void mr_http_line_release(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    if (!line->call->keeps) {
        mr_http_line_close(line);
        return;
    }
    line->call->line = NULL;
    line->call = NULL;
    line->used = true;
    line->more = false;
    line->idle_ns = http->now_ns;
    unlink_line(line);
    link_first(line);
    http->idle_lines++;
    if (http->idle_lines > http->idle_most)
        close_oldest_idle(http);
}
