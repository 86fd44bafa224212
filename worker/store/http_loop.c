/* What a step of the loop does: events, due timers, new requests. */
#include <errno.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "worker/store/http_impl.h"

#define EVENTS_MAX   64
#define UNWATCHED_MS 10 /* between two attempts to watch a socket */

/* ---- timers ---- */

/* Runs at most as many timers as were set when it began: one that sets itself again at once runs in the next step. */
static void run_timers(struct mr_http *http)
{
    for (unsigned left = http->timers; left > 0 && http->first && http->first->due_ns <= http->now_ns; left--) {
        struct mr_http_timer *timer = http->first;
        mr_http_timer_stop(http, timer);
        timer->run(timer);
    }
}

/* ---- the loop ---- */

static void act(struct mr_http *http, curl_socket_t fd, int mask)
{
    int running;
    curl_multi_socket_action(http->multi, fd, mask, &running);
}

static void run_curl_timer(struct mr_http *http)
{
    if (http->curl_due_ns < 0 || http->curl_due_ns > http->now_ns)
        return;
    http->curl_due_ns = -1; /* curl sets it again */
    act(http, CURL_SOCKET_TIMEOUT, 0);
}

/* timeout_ms (negative: no limit), cut to the time until something is due. */
static int wait_ms(const struct mr_http *http, int timeout_ms)
{
    if (http->unwatched && (timeout_ms < 0 || timeout_ms > UNWATCHED_MS))
        timeout_ms = UNWATCHED_MS;
    int64_t due = http->curl_due_ns, lines = mr_http_lines_due_ns(http);
    if (lines >= 0 && (due < 0 || lines < due))
        due = lines;
    if (http->first && (due < 0 || http->first->due_ns < due))
        due = http->first->due_ns;
    if (due < 0)
        return timeout_ms;
    if (due <= http->now_ns)
        return 0;
    int64_t ms = (due - http->now_ns + MR_MILLISECOND_NS - 1) / MR_MILLISECOND_NS;
    return timeout_ms < 0 || ms < timeout_ms ? (int)(ms < INT32_MAX ? ms : INT32_MAX) : timeout_ms;
}

/* Brings the epoll set up to date with extra_fd (-1: none). -1 with mr_error: nothing extra is watched. */
static int watch_extra(struct mr_http *http, int extra_fd)
{
    if (extra_fd == http->extra_fd)
        return 0;
    if (http->extra_fd >= 0)
        mr_http_fd_register(http, http->extra_fd, 0,
                            true); /* it may be closed already: then there is nothing to take out */
    http->extra_fd = extra_fd;
    if (extra_fd >= 0 && mr_http_fd_register(http, extra_fd, EPOLLIN, false) != 0) {
        http->extra_fd = -1;
        mr_error_set_errno(errno, "cannot wait for descriptor %d", extra_fd);
        return -1;
    }
    return 0;
}

static void on_event(struct mr_http *http, const struct epoll_event *event)
{
    int fd = event->data.fd;
    struct fd_state unknown = {.wanted = EPOLLIN | EPOLLOUT, .registered = EPOLLIN | EPOLLOUT};
    struct fd_state *state = (size_t)fd < http->fd_count ? &http->fds[fd] : &unknown;
    if (state->registered == 0)
        return; /* closed by an event before it in this batch */
    if (state->line) {
        mr_http_line_event(state->line, fd, event->events);
        return;
    }
    if (state->wanted == 0) { /* an idle connection that the server closed: curl finds out when it wants to reuse it */
        mr_http_fd_register(http, fd, 0, true);
        state->registered = 0;
        return;
    }
    unsigned ready = event->events;
    if (ready & (EPOLLERR | EPOLLHUP)) /* curl learns the error by reading or writing */
        ready |= state->wanted;
    int mask = 0;
    if (ready & EPOLLIN)
        mask |= CURL_CSELECT_IN;
    if (ready & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    act(http, fd, mask);
}

/* Does what is due without an event: calls back, and sends what was started. */
static void run_due(struct mr_http *http)
{
    mr_http_read_clock(http, 0);
    run_timers(http);
    run_curl_timer(http);
    mr_http_lines_run(http);
    mr_http_drain(http);
    mr_http_lines_start(http);
}

int mr_http_step(struct mr_http *http, int timeout_ms, int extra_fd)
{
    if (watch_extra(http, extra_fd) != 0)
        return -1;
    run_due(http); /* what was started since the last step is sent */
    mr_http_watch_again(http);
    struct epoll_event events[EVENTS_MAX];
    int ms = http->poked ? 0 : wait_ms(http, timeout_ms);
    int n = epoll_wait(http->epoll_fd, events, EVENTS_MAX, ms);
    http->poked = false;
    if (n < 0 && errno != EINTR) {
        mr_error_set_errno(errno, "cannot wait for the network");
        return -1;
    }
    mr_http_read_clock(http, ms < 0 ? -1 : ms * MR_MILLISECOND_NS);
    bool extra = false;
    for (int i = 0; i < n; i++) {
        if (events[i].data.fd == extra_fd)
            extra = true;
        else
            on_event(http, &events[i]);
    }
    run_curl_timer(http);
    mr_http_lines_run(http);
    mr_http_drain(http);
    run_timers(http);
    run_curl_timer(http); /* and what callbacks started */
    mr_http_lines_start(http);
    http->poked = false;
    return extra;
}
