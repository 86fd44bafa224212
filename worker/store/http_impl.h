/*
 * http_impl.h - what the files of the HTTP client share. Only http*.c include it. Each calls only those before it:
 * http_watch.c (sockets, timers), http_line.c (connections of our own), http_call.c (responses, ends of calls),
 * http_receive.c (requests over those connections), http_turn.c (what each does next), http.c (requests), http_loop.c.
 */
#ifndef MR_WORKER_STORE_HTTP_IMPL_H
#define MR_WORKER_STORE_HTTP_IMPL_H

#include <curl/curl.h>
#include <stdbool.h>

#include "shm/trace/trace.h"
#include "worker/store/http.h"

/*
 * libcurl is driven by its socket interface and an epoll set rather than by curl_multi_poll: curl_multi_perform calls
 * poll(2) for each active transfer each time. What curl wants of a socket that we opened stays registered when a
 * request ends, because the next request on the kept-alive connection wants the same: no epoll_ctl per request.
 */
struct fd_state {
    unsigned char wanted;      /* EPOLLIN | EPOLLOUT, as curl last requested */
    unsigned char registered;  /* what the epoll set has; 0: not in it */
    bool ours;                 /* opened by mr_http_open_socket: mr_http_close_socket closes it */
    struct mr_http_line *line; /* its owner; NULL: the multi handle */
};

/*
 * A connection of our own. libcurl makes it (names, proxies, TLS), in a multi handle of its own: in a shared one, a new
 * request would take it for an idle connection, find bytes on it, and close it. After that libcurl only sends and
 * receives on it.
 */
struct mr_http_line {
    struct mr_http *http;
    struct mr_http_line *previous, *next; /* http->first_line: most recently used first */
    CURLM *multi;
    CURL *easy;
    char *place;               /* scheme://authority */
    int fd;                    /* -1: not connected yet */
    struct mr_http_call *call; /* NULL: idle */
    int64_t due_ns;            /* when libcurl has a time-out to serve; -1: none */
    int64_t idle_ns;           /* since when */
    bool tls;
    bool used;      /* it has brought a response */
    bool begun;     /* sending its call's request has begun */
    bool more;      /* there may be bytes that no event will announce */
    unsigned round; /* the last in which it had its turn */
    char *head;     /* what was received up to the end of the head, and a little beyond it */
    size_t head_room, head_length, head_at;
    char curl_text[CURL_ERROR_SIZE];
};

/* How the end of a body is known. */
enum mr_framing { MR_FRAMING_LENGTH, MR_FRAMING_CHUNKED, MR_FRAMING_CLOSE };

#define MR_HTTP_AGENT      "millrace/" MR_VERSION
#define MR_HTTP_PAUSE_NS   (200 * MR_MILLISECOND_NS) /* a loop that is this late was suspended */
#define MR_HTTP_MOVE_BYTES 4096u /* a body that brings less within stall_timeout_ms is stalled: a drip is no progress */

struct mr_http_call {
    struct mr_http *http;
    CURL *easy;
    struct mr_http_call *previous, *next; /* in http->active; next also in http->pool */
    int (*sink)(void *arg, const struct mr_http_call *call, const void *data, size_t length);
    void *(*room)(void *arg, size_t *length);
    void (*done)(void *arg, const struct mr_http_result *result);
    void *arg;
    uint64_t collect_max, received;
    int64_t started_ns, moved_ns; /* when it last moved: see MR_HTTP_MOVE_BYTES */
    int64_t stall_limit_ns, first_limit_ns;
    int64_t drip_end_ns;                  /* until then any byte moves it */
    int64_t first_ns, gap_ns, active_ns;  /* as in mr_http_result */
    int64_t started_ran_ns, first_ran_ns; /* mr_http_ran_ns at the start, and at the head of the response */
    uint64_t moved_received;
    int status;
    bool head_ended; /* the empty line after the header lines has come */
    bool cut;        /* ended by us: enough of the body has come */
    struct mr_http_headers headers;
    char *collected;
    size_t collected_length, collected_size;
    char *location; /* of the response; NULL: none */
    struct mr_http_piece body[MR_HTTP_MAX_PIECES];
    unsigned body_count, body_piece; /* the piece that is being sent */
    uint64_t body_at, body_length;   /* within it; of all of them */
    unsigned sent;
    char target[MR_TRACE_TEXT]; /* "GET /path" while tracing is on; else "" */
    bool once;
    /* Over a connection of our own: */
    bool own;    /* it is */
    bool fresh;  /* over a new one */
    bool queued; /* in http->first_start */
    bool keeps;  /* the connection may be used again after the response */
    struct mr_http_call *next_start;
    struct mr_http_line *line;   /* NULL: none yet */
    size_t place_length;         /* of its URL's scheme and authority, which `lines` begins with */
    size_t text_at, text_length; /* of the request in `lines`: the next byte to send, the end */
    enum mr_framing framing;
    uint64_t left; /* of the body, or of the chunk */
    unsigned chunk_state;
    bool chunk_digits, has_length;
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
    struct mr_http_line *first_line, *last_line;
    struct mr_http_line *spare_lines;              /* linked by next: not connected, for the next connection */
    struct mr_http_call *first_start, *last_start; /* that wait for the next step to be sent */
    unsigned line_count, idle_lines, idle_most, connecting;
    unsigned round; /* of mr_http_lines_run */
    bool more;      /* a line has it */
    char *scratch;  /* for bodies without a room; NULL: not needed so far */
    CURLSH *share;  /* names and TLS sessions, of the lines */
    unsigned connect_timeout_ms, buffer_bytes;
    char *proxy, *ca_bundle;
    struct mr_http_call *active, *pool;
    bool plain_proxy; /* requests without TLS may go through a proxy */
    bool easy_once;   /* calls in the pool have no easy handle: see easy_remembers in http.c */
    unsigned in_flight;
    int epoll_fd, extra_fd;
    struct fd_state *fds;
    size_t fd_count;
    bool unwatched;                     /* a socket could not be put into the epoll set: each step tries again */
    int64_t curl_due_ns;                /* when curl has a time-out to serve; -1: it has none */
    int64_t now_ns, late_ns;            /* the clock, and how much of it this process did not run or step the loop */
    struct mr_http_timer *first, *last; /* by due_ns */
    unsigned timers;
    struct mr_http_timer watch; /* for stalled calls */
    bool poked;                 /* this step must not wait */
};

/* ---- http_watch.c: callbacks of the multi handle and of each easy handle ---- */

int mr_http_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg);
int mr_http_on_curl_timer(CURLM *multi, long timeout_ms, void *arg);
curl_socket_t mr_http_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address);
int mr_http_close_socket(void *arg, curl_socket_t fd);

int mr_http_on_line_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg);
/* No event belongs to the line any more. */
void mr_http_forget_line(const struct mr_http_line *line);
/* Also waits for the socket to be writable, or no longer does. */
void mr_http_watch_line(struct mr_http_line *line, bool to_send);
/* Registers fd in the epoll set for these events; 0: removes it. had: it is in the set, as far as is known. 0, or -1
 * with errno. */
int mr_http_fd_register(struct mr_http *http, int fd, unsigned events, bool had);
/* Tries again to watch the sockets that could not be watched so far. */
void mr_http_watch_again(struct mr_http *http);
/* Sets now_ns after a wait of at most wait_ns, or of any length (-1): what is more was a pause. */
void mr_http_read_clock(struct mr_http *http, int64_t wait_ns);

/* ---- http_line.c ---- */

/* Sets the options that all connections have in common. */
void mr_http_set_connection(struct mr_http *http, CURL *easy);
/* An idle connection on which nothing has arrived, or a new one, which is not connected yet. NULL: no memory. */
struct mr_http_line *mr_http_line_get(struct mr_http *http, const struct mr_http_call *call);
/* Closes the connection. Its call, if any, is detached and not ended. */
void mr_http_line_close(struct mr_http_line *line);
/* All of them, at the end. */
void mr_http_lines_close(struct mr_http *http);
/* Its response is complete: it becomes idle, or is closed if it cannot be used again. */
void mr_http_line_release(struct mr_http_line *line);
/* Queues the call, to be sent in the next step; takes it off the queue. */
void mr_http_queue(struct mr_http *http, struct mr_http_call *call);
void mr_http_unqueue(struct mr_http *http, struct mr_http_call *call);

/* ---- http_call.c ---- */

/* A line of the head, with its line end. */
void mr_http_head_line(struct mr_http_call *call, const char *line, size_t length);
/* Bytes of the body: 0; 1: no more is wanted; -1: sink_code and sink_text say why. */
int mr_http_take_body(struct mr_http_call *call, const char *data, size_t length);
/* Ends a call: calls back, and returns it to the pool. */
void mr_http_finish(struct mr_http *http, struct mr_http_call *call, enum mr_code code, const char *text);
/* The same, with libcurl's error; curl_text: what it has written about it, or "". */
void mr_http_finish_curl(struct mr_http *http, struct mr_http_call *call, CURLcode curl, const char *curl_text);
/* Removes it from the multi handle, the queue and the active list, and closes its line. */
void mr_http_call_deactivate(struct mr_http *http, struct mr_http_call *call);
/* Returns it to the pool. Overwrites its header lines. */
void mr_http_call_recycle(struct mr_http *http, struct mr_http_call *call);

/* ---- http_receive.c ---- */

/* Whether the request may go over a connection of our own. */
bool mr_http_is_own(const struct mr_http *http, const struct mr_http_request *request);
/* Writes the request, as it is sent, into call->lines. 0, or -1 (no memory). */
int mr_http_write_request(struct mr_http_call *call, const struct mr_http_request *request);
/* Sends the rest of the request. The line must have a call and be connected. May end the call, and the line. */
void mr_http_send(struct mr_http_line *line);
/* Receives what has arrived of the response. Likewise. */
void mr_http_receive(struct mr_http_line *line);
/* Closes the line, and ends its call with libcurl's error. */
void mr_http_line_fail(struct mr_http_line *line, CURLcode curl);

/* ---- http_turn.c ---- */

/* Takes an idle connection, or makes one, for each queued call, and sends its request. */
void mr_http_lines_start(struct mr_http *http);
/* Serves libcurl's time-outs while it connects, and lines with `more`. mr_http_lines_due_ns: when that is due next; 0:
 * at once; -1: not at all. */
void mr_http_lines_run(struct mr_http *http);
int64_t mr_http_lines_due_ns(const struct mr_http *http);
void mr_http_line_event(struct mr_http_line *line, curl_socket_t fd, unsigned events);

/* ---- http.c ---- */

/* Ends the calls that libcurl is done with. */
void mr_http_drain(struct mr_http *http);

/* ---- http_trace.c ---- */

/* The call as a span, from its start to its end. */
void mr_http_trace_begin(struct mr_http_call *call, const struct mr_http_request *request);
void mr_http_trace_end(const struct mr_http_call *call);

#endif
