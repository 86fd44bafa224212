/* serve.h - the HTTP side: libmicrohttpd's threads, one call per request, delays, the log and the statistics. */
#ifndef MR_DEVSTORE_SERVE_H
#define MR_DEVSTORE_SERVE_H

#include <stdint.h>

#include "devstore/request.h"

struct ds_api;
struct ds_serve;

struct ds_serve_options {
    int listen_fd;                 /* bound and listening; taken over */
    const char *key, *certificate; /* PEM: it speaks TLS; NULL: it does not. Outlive the server */
    unsigned threads;
    int64_t latency_ns[MR_OP_COUNT]; /* before each reply's first byte */
    bool compress;                   /* answers are compressed for clients that accept gzip */
    /* Bytes/s of each connection, and of all together; 0: no limit. Uploads are the requests of ds_op_uploads. */
    double upload_rate, upload_total, download_rate, download_total;
    int log_fd;               /* a line for each request; -1: none. Not taken over */
    const struct ds_api *api; /* outlives the server */
};

/* Starts answering. NULL with an error (listen_fd is closed). */
struct ds_serve *ds_serve_new(const struct ds_serve_options *options);
/* Ends every connection and all threads. */
void ds_serve_destroy(struct ds_serve *serve);

#endif
