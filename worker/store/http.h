/*
 * http.h - HTTP/1.1 requests over one libcurl multi handle, and the loop that everything in this folder runs in.
 *
 * A GET whose sink says where the body belongs (`room`) is sent and received here, over a connection made by libcurl
 * (http_line.c, http_receive.c), and its bytes are read into place. All others are libcurl's.
 *
 * One mr_http per thread; nothing here is thread-safe. mr_http_step is the only call that blocks, and the only one that
 * calls back: a start, cancel or timer call never runs a callback of the caller's. Connections are kept alive and
 * reused, and so are easy handles (but not with libcurl 7.83 to 7.88: see http.c). `Accept-Encoding: gzip` is sent with
 * each request and the body is not decoded, so what arrives is what is stored
 * (https://cloud.google.com/storage/docs/transcoding). A URL's path is sent as it is.
 *
 * Redirects are not followed. The environment's proxy variables apply (as in curl) if options.proxy is NULL.
 */
#ifndef MR_WORKER_STORE_HTTP_H
#define MR_WORKER_STORE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/limits.h"

struct mr_http;
struct mr_http_call;
struct mr_http_result;

struct mr_http_options {
    unsigned connections;        /* idle connections that are kept open; 0: 16 */
    unsigned connect_timeout_ms; /* name look-up, TCP and TLS; 0: 10,000 */
    unsigned buffer_bytes;       /* receive buffer of each request in flight; 0: 512 KiB */
    const char *proxy;           /* URL; NULL: as in the environment; "": none */
    const char *ca_bundle;       /* PEM file; NULL: the system's */
    const char *const
        *headers; /* header_count lines "Name: value", sent with every request that is not plain; copied */
    unsigned header_count;
};

#define MR_HTTP_MAX_HEADERS 24
#define MR_HTTP_MAX_PIECES  3

struct mr_http_piece {
    const void *data; /* must stay until done; may be NULL if length is 0 */
    uint64_t length;
};

struct mr_http_request {
    const char *method;         /* "GET", "POST", "HEAD", ...: a literal, kept by reference */
    const char *url;            /* copied */
    const char *const *headers; /* lines of this request; copied. At most MR_HTTP_MAX_HEADERS */
    unsigned header_count;
    const struct mr_http_piece *body; /* sent one after the other; the array is copied. At most MR_HTTP_MAX_PIECES */
    unsigned body_count;              /* 0: no body; an empty one (POST, PUT) is a piece of length 0 */
    bool has_range;                   /* sends Range: bytes=range_first-range_last (both inclusive) */
    uint64_t range_first, range_last;
    unsigned stall_timeout_ms; /* MR_E_TIMEOUT if neither 4 KiB of a body nor its end move in this time; 0: never */
    unsigned first_timeout_ms; /* MR_E_TIMEOUT if no response begins in this time; 0: as the other, which if 0 wins */
    unsigned drip_ms;      /* for so long any byte of the body counts as movement: white space, while a server works */
    bool fresh_connection; /* do not reuse a connection */
    /* Never sent a second time. libcurl would do that if a reused connection ends without a response, although the
     * server may have done the work. */
    bool once;
    /* Of another server than the store: without options.headers, which may be secret, and its connection is not kept
     * for a request that comes in an hour. */
    bool plain;
    bool identity; /* Accept-Encoding: identity, in place of gzip */
    bool direct;   /* bypasses any proxy: for servers of this machine or its network */

    /*
     * The body of a 2xx response, as it arrives, inside mr_http_step. Must not block, start or cancel anything. Returns
     * 0; 1: that is enough, the rest is not wanted and the call succeeds; -1 with mr_error set: the transfer ends and
     * done gets that code and text. NULL: the body is collected and handed to done (at most collect_max bytes, 0: 64
     * MiB; more is MR_E_PROTOCOL). The body of any other response is never given to the sink; its first 16 KiB are
     * collected for the error text, and the call ends with them.
     */
    int (*sink)(void *arg, const struct mr_http_call *call, const void *data, size_t length);
    /*
     * Where the next bytes of the body belong, and how many there is room for; NULL: not known yet, or nowhere. What is
     * received there is not copied: the sink gets that very address. Memory that it has returned may be written to
     * until the sink is called or the call ends. Not every request uses it. NULL: none.
     */
    void *(*room)(void *arg, size_t *length);
    uint64_t collect_max;
    /* Called once, unless cancelled. `result`, all that it points to and the mr_http_call are valid until it
     * returns. */
    void (*done)(void *arg, const struct mr_http_result *result);
    void *arg;
};

/* Header fields of the response that millrace uses. The has_ flag of a missing or malformed field is false. */
struct mr_http_headers {
    bool has_content_length, has_content_range, has_generation;
    bool gunzipped;              /* x-guploader-response-body-transformations: gunzipped */
    bool gzip;                   /* Content-Encoding: gzip, or x-goog-stored-content-encoding: gzip */
    bool metadata_flavor_google; /* Metadata-Flavor: Google, which only Google's metadata servers send */
    uint64_t content_length;
    uint64_t range_first, range_last, range_total; /* Content-Range; total UINT64_MAX for "*" */
    uint64_t generation;                           /* x-goog-generation */
    /* Of the whole object: x-goog-hash: crc32c=, x-amz-checksum-crc32c, x-amz-checksum-crc64nvme. NONE: none of them,
     * or one of the checksums of its parts (x-amz-checksum-type: COMPOSITE). */
    struct mr_checksum checksum;
    bool composite;
    unsigned retry_after_ms; /* Retry-After in seconds or as a date; 0: none */
    int64_t retry_date_s;    /* that date, in seconds since 1970; 0: none */
    int64_t date_s;          /* Date, in seconds since 1970; 0: none */
    bool has_kept;           /* Range of a 308: the upload session keeps `kept` bytes */
    uint64_t kept;
    char etag[MR_ETAG_SIZE]; /* "" where there is none; cut to fit */
    char modified[40];       /* Last-Modified; "" where there is none, or it is longer */
    char region[40];         /* x-amz-bucket-region; "" where there is none, or it is longer */
};

struct mr_http_result {
    enum mr_code code; /* MR_OK: a response of any status, or enough of it. Else NET, TIMEOUT, PROTOCOL, sink's code */
    const char *text;  /* what happened if code is not MR_OK; else "" */
    int status;        /* 0: no response came */
    struct mr_http_headers headers;
    const char *body; /* collected body, NUL-terminated after body_length; "" where there is none */
    size_t body_length;
    const char *location; /* "" where there is none */
    unsigned sent;        /* times that sending it began on a connection; 0: no byte of it reached the server */
    int64_t first_ns;     /* from the start to the head of the response, connecting included; 0: none came */
    int64_t gap_ns;       /* the longest wait after it for 4 KiB or the end */
    int64_t body_ns;      /* from the head to the end */
    /* From the start until the last 512 KiB of a long body were to be sent, and of the response with drip_ms: no time
     * without progress. */
    int64_t active_ns;
};

/* NULL with mr_error (CONFIG for a bad proxy or header line, NO_MEMORY). */
struct mr_http *mr_http_new(const struct mr_http_options *options);
/* Cancels what is in flight and closes the connections. NULL is allowed. */
void mr_http_destroy(struct mr_http *http);

/* Starts a request; it is sent in the next mr_http_step. NULL with mr_error (USAGE, NO_MEMORY). */
struct mr_http_call *mr_http_start(struct mr_http *http, const struct mr_http_request *request);
/* Ends a call without its done callback; its connection is closed if a response was under way. Not from a sink. */
void mr_http_cancel(struct mr_http *http, struct mr_http_call *call);

/* Inside a sink: the status and the headers of the response. */
int mr_http_call_status(const struct mr_http_call *call);
const struct mr_http_headers *mr_http_call_headers(const struct mr_http_call *call);

/*
 * Waits at most timeout_ms for a socket, a timer or extra_fd, then moves data and calls back. extra_fd: -1: none; it is
 * only waited for until it is readable, and -1 must be passed before it is closed. Returns 1 if extra_fd is readable, 0
 * if not, -1 with mr_error (a broken invariant).
 */
int mr_http_step(struct mr_http *http, int timeout_ms, int extra_fd);
/* Inside a callback or timer: makes the step return without waiting, as it does by itself after a done callback. */
void mr_http_poke(struct mr_http *http);
/* Requests in flight. */
unsigned mr_http_in_flight(const struct mr_http *http);
/* The monotonic time of the last step of the loop: cheap, and exact enough for time-outs. */
int64_t mr_http_now_ns(const struct mr_http *http);
/* The same clock without the time in which this process was suspended, or did not step the loop: to measure how long
 * something has been without progress. */
int64_t mr_http_ran_ns(const struct mr_http *http);

/*
 * A timer of this loop, embedded in its owner and zero-initialised. `run` is called once, from mr_http_step, at or
 * after due_ns (0: in the next step, which then does not wait). It may set itself again. A timer must be stopped before
 * its memory is freed.
 */
struct mr_http_timer {
    int64_t due_ns;
    void (*run)(struct mr_http_timer *timer);
    struct mr_http_timer *previous, *next; /* private */
    bool armed;                            /* private */
};
/* Sets or moves a timer; the caller has set timer->run. */
void mr_http_timer_set(struct mr_http *http, struct mr_http_timer *timer, int64_t due_ns);
void mr_http_timer_stop(struct mr_http *http, struct mr_http_timer *timer);

#endif
