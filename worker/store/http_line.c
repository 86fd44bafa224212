/* Connections of our own: made by libcurl (CURLOPT_CONNECT_ONLY), taken by one call after the other, dropped. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "shm/base/clock.h"
#include "worker/store/http_impl.h"

#define IDLE_MOST_NS (118 * MR_SECOND_NS) /* libcurl's own limit: older ones have often been forgotten on the way */

/* ---- the list: what was used last comes first ---- */

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

/* libcurl's handles are made once: a server that ends each connection does not cost new ones each time. */
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

/* Closes what is connected, too. */
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

/* With handles, and nothing connected. NULL: no memory. */
static struct mr_http_line *take_line(struct mr_http *http)
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
    struct mr_http_line *line = take_line(http);
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
        drop_handles(line); /* it has not */
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

/* The line, and its call with libcurl's error. */
static void fail(struct mr_http_line *line, CURLcode curl)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    char text[CURL_ERROR_SIZE];
    memcpy(text, line->curl_text, sizeof text);
    mr_http_line_close(line);
    mr_http_finish_curl(http, call, curl, text);
}

/* Whether libcurl has connected it: then the request goes out. */
static void go_on_connecting(struct mr_http_line *line, curl_socket_t fd, int mask)
{
    int running, left;
    line->due_ns = fd == CURL_SOCKET_TIMEOUT ? -1 : line->due_ns;
    curl_multi_socket_action(line->multi, fd, mask, &running);
    CURLMsg *message = curl_multi_info_read(line->multi, &left);
    if (!message || message->msg != CURLMSG_DONE)
        return;
    CURLcode curl = message->data.result;
    curl_socket_t socket = CURL_SOCKET_BAD;
    if (curl == CURLE_OK)
        curl = curl_easy_getinfo(line->easy, CURLINFO_ACTIVESOCKET, &socket);
    if (curl == CURLE_OK && socket == CURL_SOCKET_BAD)
        curl = CURLE_COULDNT_CONNECT;
    if (curl != CURLE_OK) {
        fail(line, curl);
        return;
    }
    line->due_ns = -1;
    line->fd = socket;
    line->http->connecting--;
    mr_http_watch_line(line, false);
    mr_http_send(line);
}

/* ---- the loop ---- */

void mr_http_line_event(struct mr_http_line *line, curl_socket_t fd, unsigned events)
{
    bool failed = events & (EPOLLERR | EPOLLHUP); /* found out by reading or writing */
    if (line->fd < 0) {
        int mask =
            (events & EPOLLIN || failed ? CURL_CSELECT_IN : 0) | (events & EPOLLOUT || failed ? CURL_CSELECT_OUT : 0);
        go_on_connecting(line, fd, mask);
    } else if (!line->call) {
        mr_http_line_close(line); /* its end, or bytes that nobody has asked for */
    } else if (line->call->text_at < line->call->text_length && (events & EPOLLOUT || failed)) {
        mr_http_send(line);
    } else {
        mr_http_receive(line);
    }
}

int64_t mr_http_lines_due_ns(const struct mr_http *http)
{
    if (http->more || http->first_start)
        return 0;
    int64_t due = -1;
    for (const struct mr_http_line *line = http->first_line; line && http->connecting > 0; line = line->next)
        if (line->due_ns >= 0 && (due < 0 || line->due_ns < due))
            due = line->due_ns;
    return due;
}

/* Callbacks may close any line, so the search begins anew after each; a line has one turn a round. */
static struct mr_http_line *next_due(const struct mr_http *http)
{
    for (struct mr_http_line *line = http->first_line; line; line = line->next)
        if (line->round != http->round && (line->more || (line->due_ns >= 0 && line->due_ns <= http->now_ns)))
            return line;
    return NULL;
}

void mr_http_lines_run(struct mr_http *http)
{
    if (!http->more && http->connecting == 0)
        return;
    struct mr_http_line *line;
    http->more = false;
    http->round++;
    while ((line = next_due(http))) {
        line->round = http->round;
        if (line->fd < 0)
            go_on_connecting(line, CURL_SOCKET_TIMEOUT, 0);
        else
            mr_http_receive(line);
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
 * An idle one on which nothing has come, or a new one. Bytes behind an answer would be taken for the next one's: an event
 * tells of them, but not within the step in which a connection becomes idle, and not of what TLS has read already.
 */
static struct mr_http_line *get_line(struct mr_http *http, const struct mr_http_call *call)
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

/* Those that callbacks start meanwhile go out in the next step. */
void mr_http_lines_start(struct mr_http *http)
{
    const struct mr_http_call *last = http->last_start;
    struct mr_http_call *call;
    for (bool more = true; more && (call = http->first_start);) {
        more = call != last;
        mr_http_unqueue(http, call);
        struct mr_http_line *line = get_line(http, call);
        if (!line) {
            mr_http_finish(http, call, MR_E_NO_MEMORY, "no memory for a connection");
            continue;
        }
        line->call = call;
        line->begun = false;
        line->head_length = line->head_at = 0;
        line->curl_text[0] = '\0';
        call->line = line;
        call->text_at = call->place_length;
        if (line->fd >= 0)
            mr_http_send(line);
    }
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
