/* http_impl.h - what http.c (requests) and http_loop.c (sockets, timers, steps) share. Only they include it. */
#ifndef MR_WORKER_STORE_HTTP_IMPL_H
#define MR_WORKER_STORE_HTTP_IMPL_H

#include <curl/curl.h>
#include <stdbool.h>

#include "worker/store/http.h"

/*
 * libcurl is driven by its socket interface and an epoll set and not by curl_multi_poll: curl_multi_perform asks
 * poll(2) once for each transfer under way, each time. What curl wants of a socket that we opened stays registered
 * when a request ends, because the next request on the kept-alive connection wants the same: no epoll_ctl a request.
 */
struct fd_state {
    unsigned char wanted;     /* EPOLLIN | EPOLLOUT, as curl asked last */
    unsigned char registered; /* what the epoll set has; 0: not in it */
    bool ours;                /* opened by mr_http_open_socket: mr_http_close_socket ends it */
};

struct mr_http_call {
    struct mr_http *http;
    CURL *easy;
    struct mr_http_call *previous, *next; /* in http->active; next also in http->pool */
    int (*sink)(void *arg, const struct mr_http_call *call, const void *data, size_t length);
    void (*done)(void *arg, const struct mr_http_result *result);
    void *arg;
    uint64_t collect_max, received;
    int64_t started_ns, moved_ns; /* when it last moved: see MOVE_BYTES */
    int64_t stall_limit_ns, first_limit_ns;
    int64_t first_ns, gap_ns; /* as in mr_http_result */
    uint64_t moved_received;
    int status;
    bool head_ended; /* the empty line after the header lines has come */
    bool cut;        /* ended by us: enough of the body has come */
    struct mr_http_headers headers;
    char *collected;
    size_t collected_length, collected_size;
    char *location; /* of the answer; NULL: none */
    struct mr_http_piece body[MR_HTTP_MAX_PIECES];
    unsigned body_count, body_piece; /* the piece that is being sent */
    uint64_t body_at, body_length;   /* within it; of all of them */
    unsigned sent;
    bool once;
    char *lines; /* the request's own header lines, one after the other */
    size_t lines_size;
    struct curl_slist nodes[MR_HTTP_MAX_HEADERS]; /* point into lines; the last one leads to one of http->lines */
    enum mr_code sink_code;
    char sink_text[512];
    char curl_text[CURL_ERROR_SIZE];
};

struct mr_http {
    CURLM *multi;
    struct curl_slist *lines[2][2]; /* of every request: [plain][identity] */
    unsigned connect_timeout_ms, buffer_bytes;
    char *proxy, *ca_bundle;
    struct mr_http_call *active, *pool;
    bool plain_proxy; /* requests without TLS may go through a proxy */
    bool easy_once;   /* calls in the pool have no easy handle: see easy_remembers in http.c */
    unsigned in_flight;
    int epoll_fd, extra_fd;
    struct fd_state *fds;
    size_t fd_count;
    bool unwatched;      /* a socket could not be put into the epoll set: each step tries again */
    int64_t curl_due_ns; /* when curl has a time-out to serve; -1: it has none */
    int64_t now_ns;
    struct mr_http_timer *first, *last; /* by due_ns */
    unsigned timers;
    struct mr_http_timer watch; /* for stalled calls */
    bool poked;                 /* this step must not wait */
};

/* ---- http_loop.c: callbacks of the multi handle and of each easy handle ---- */

int mr_http_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg);
int mr_http_on_curl_timer(CURLM *multi, long timeout_ms, void *arg);
curl_socket_t mr_http_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address);
int mr_http_close_socket(void *arg, curl_socket_t fd);

/* ---- http.c ---- */

/* Calls back for what has ended. */
void mr_http_drain(struct mr_http *http);

#endif
