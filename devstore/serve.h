/* serve.h - the HTTP side: libmicrohttpd's threads, one call per request, delays, the log and the statistics. */
#ifndef MR_DEVSTORE_SERVE_H
#define MR_DEVSTORE_SERVE_H

#include <stdint.h>

#include "devstore/request.h"

struct mr_api;
struct mr_serve;

struct mr_serve_options {
    int listen_fd;                 /* bound and listening; taken over */
    const char *key, *certificate; /* PEM: it speaks TLS; NULL: it does not. Outlive the server */
    unsigned threads;
    int64_t latency_ns[MR_OP_COUNT]; /* before each reply's first byte */
    /* Bytes/s of each connection, and of all together; 0: no limit. Uploads are the requests of mr_op_uploads. */
    bool compress; /* answers, for who accepts gzip */
    double upload_rate, upload_total, download_rate, download_total;
    int log_fd;               /* a line for each request; -1: none. Not taken over */
    const struct mr_api *api; /* outlives the server */
};

/* Starts answering. NULL with an error (listen_fd is closed). */
struct mr_serve *mr_serve_new(const struct mr_serve_options *options);
/* Ends every connection and all threads. */
void mr_serve_destroy(struct mr_serve *serve);

#endif
