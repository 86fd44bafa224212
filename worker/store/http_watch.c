/* Sockets that libcurl wants watched, in the epoll set; timers, ordered by when they are due. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/store/http_impl.h"

/* ---- epoll ---- */

/* Grows the table if need be, which moves it. NULL: no memory. */
static struct fd_state *fd_state(struct mr_http *http, int fd)
{
    if ((size_t)fd >= http->fd_count) {
        size_t count = ((size_t)fd + 64) & ~(size_t)63;
        struct fd_state *fds = realloc(http->fds, count * sizeof *fds);
        if (!fds)
            return NULL;
        memset(fds + http->fd_count, 0, (count - http->fd_count) * sizeof *fds);
        http->fds = fds;
        http->fd_count = count;
    }
    return &http->fds[fd];
}

int mr_http_fd_register(struct mr_http *http, int fd, unsigned events, bool had)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (events == 0)
        return epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    if (epoll_ctl(http->epoll_fd, had ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return epoll_ctl(http->epoll_fd, had ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

/* Never fails: libcurl 7.88 crashes after a callback that did. If there is no memory, or no room in the kernel, for a
 * watch, the socket is left to the next steps (mr_http_watch_again). */
static void watch_socket(struct mr_http *http, struct mr_http_line *line, curl_socket_t fd, int what)
{
    struct fd_state *state = fd_state(http, fd);
    unsigned wanted = 0;
    if (what != CURL_POLL_REMOVE)
        wanted = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
    if (!state) { /* no memory, and curl's own descriptor: ours have theirs since open_socket */
        mr_http_fd_register(http, fd, wanted, true);
        return;
    }
    state->line = line;
    state->wanted = (unsigned char)wanted;
    if (state->wanted == state->registered || (state->wanted == 0 && state->ours && state->registered == EPOLLIN))
        return; /* an idle connection stays registered: see above, and on_event */
    int rc = mr_http_fd_register(http, fd, state->wanted, state->registered != 0);
    state->registered = rc == 0 ? state->wanted : 0;
    http->unwatched |= state->wanted != state->registered;
}

int mr_http_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
    (void)easy, (void)socket_arg;
    watch_socket(arg, NULL, fd, what);
    return 0;
}

int mr_http_on_line_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
    struct mr_http_line *line = arg;
    (void)easy, (void)socket_arg;
    watch_socket(line->http, what == CURL_POLL_REMOVE ? NULL : line, fd, what);
    return 0;
}

void mr_http_forget_line(const struct mr_http_line *line)
{
    for (size_t fd = 0; fd < line->http->fd_count; fd++)
        if (line->http->fds[fd].line == line) /* one of libcurl's own, of a look-up that has not ended */
            line->http->fds[fd].line = NULL;
}

void mr_http_watch_line(struct mr_http_line *line, bool to_send)
{
    watch_socket(line->http, line, line->fd, to_send ? CURL_POLL_INOUT : CURL_POLL_IN);
}

void mr_http_watch_again(struct mr_http *http)
{
    if (!http->unwatched)
        return;
    http->unwatched = false;
    for (size_t fd = 0; fd < http->fd_count; fd++) {
        struct fd_state *state = &http->fds[fd];
        if (state->wanted != 0 && state->registered == 0 &&
            mr_http_fd_register(http, (int)fd, state->wanted, false) == 0)
            state->registered = state->wanted;
        http->unwatched |= state->wanted != 0 && state->registered == 0;
    }
}

/* Makes room for the socket in the table at once, so that watch_socket always finds it there. */
curl_socket_t mr_http_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct mr_http *http = arg;
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0)
        return CURL_SOCKET_BAD;
    struct fd_state *state = fd_state(http, fd);
    if (!state) {
        close(fd);
        return CURL_SOCKET_BAD;
    }
    *state = (struct fd_state){.ours = true};
    return fd;
}

int mr_http_close_socket(void *arg, curl_socket_t fd)
{
    struct mr_http *http = arg;
    if ((size_t)fd < http->fd_count)
        http->fds[fd] = (struct fd_state){0}; /* closing takes it out of the epoll set */
    return close(fd);
}

int mr_http_on_curl_timer(CURLM *multi, long timeout_ms, void *arg)
{
    struct mr_http *http = arg;
    (void)multi;
    if (timeout_ms < 0)
        http->curl_due_ns = -1;
    else if (timeout_ms == 0)
        http->curl_due_ns = 0;
    else
        http->curl_due_ns = mr_clock_mono_ns() + timeout_ms * MR_MILLISECOND_NS;
    return 0;
}

/* ---- timers ---- */

void mr_http_timer_stop(struct mr_http *http, struct mr_http_timer *timer)
{
    if (!timer->armed)
        return;
    *(timer->previous ? &timer->previous->next : &http->first) = timer->next;
    *(timer->next ? &timer->next->previous : &http->last) = timer->previous;
    timer->previous = timer->next = NULL;
    timer->armed = false;
    http->timers--;
}

void mr_http_timer_set(struct mr_http *http, struct mr_http_timer *timer, int64_t due_ns)
{
    mr_http_timer_stop(http, timer);
    struct mr_http_timer *before = http->last;
    while (before && before->due_ns > due_ns)
        before = before->previous;
    timer->due_ns = due_ns;
    timer->previous = before;
    timer->next = before ? before->next : http->first;
    *(before ? &before->next : &http->first) = timer;
    *(timer->next ? &timer->next->previous : &http->last) = timer;
    timer->armed = true;
    http->timers++;
}

/* ---- the loop ---- */

void mr_http_poke(struct mr_http *http)
{
    http->poked = true;
}

unsigned mr_http_in_flight(const struct mr_http *http)
{
    return http->in_flight;
}

int64_t mr_http_now_ns(const struct mr_http *http)
{
    return http->now_ns;
}

int64_t mr_http_ran_ns(const struct mr_http *http)
{
    return http->now_ns - http->late_ns;
}

void mr_http_read_clock(struct mr_http *http, int64_t wait_ns)
{
    int64_t late_ns = mr_clock_mono_ns() - http->now_ns - wait_ns;
    http->now_ns += wait_ns + late_ns;
    if (wait_ns >= 0 && late_ns >= MR_HTTP_PAUSE_NS)
        http->late_ns += late_ns;
}
