/* What each connection of our own does next: it connects, sends its call's request, receives the response. */
#include <sys/epoll.h>

#include "worker/store/http_impl.h"

/* ---- connecting ---- */

/* Lets libcurl go on connecting. Once connected, sends the request; on failure, ends the call. */
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
        mr_http_line_fail(line, curl);
        return;
    }
    line->due_ns = -1;
    line->fd = socket;
    line->http->connecting--;
    mr_http_watch_line(line, false);
    mr_http_send(line);
}

/* ---- turns ---- */

void mr_http_line_event(struct mr_http_line *line, curl_socket_t fd, unsigned events)
{
    bool failed = events & (EPOLLERR | EPOLLHUP); /* found out by reading or writing */
    if (line->fd < 0) {
        int mask =
            (events & EPOLLIN || failed ? CURL_CSELECT_IN : 0) | (events & EPOLLOUT || failed ? CURL_CSELECT_OUT : 0);
        go_on_connecting(line, fd, mask);
    } else if (!line->call) {
        mr_http_line_close(line); /* its end, or unsolicited bytes */
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

/* Callbacks may close any line, so the search starts over after each; a line has one turn per round. */
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

/* Calls that callbacks start meanwhile are sent in the next step. */
void mr_http_lines_start(struct mr_http *http)
{
    const struct mr_http_call *last = http->last_start;
    struct mr_http_call *call;
    for (bool more = true; more && (call = http->first_start);) {
        more = call != last;
        mr_http_unqueue(http, call);
        struct mr_http_line *line = mr_http_line_get(http, call);
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
