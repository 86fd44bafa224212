/*
 * fault_gcs.h - one object of a GCS bucket on a fault server, with a script of what goes wrong at which request.
 *
 * GET /storage/v1/b/bucket/o/<name>?alt=media answers the object (range, generation, x-goog-hash), without alt=media
 * its metadata. The n-th media request follows script[n]; those beyond the script are answered well.
 */
#ifndef MR_TESTS_FAULT_GCS_H
#define MR_TESTS_FAULT_GCS_H

#include <stdbool.h>
#include <stdint.h>

#include "fault_server.h"

enum fault_kind {
    FAULT_NONE,
    FAULT_STATUS,        /* `status` with `text` as its body and `extra` header lines */
    FAULT_RESET,         /* after `after` bytes of the body: RST */
    FAULT_CLOSE,         /* after `after` bytes: FIN */
    FAULT_STALL,         /* after `after` bytes: silence */
    FAULT_DRIP,          /* `after` bytes every 10 ms */
    FAULT_FLIP,          /* byte `after` of the answer is wrong */
    FAULT_LONG,          /* Content-Length and body are `after` bytes too long */
    FAULT_SHORT,         /* Content-Length and body are `after` bytes too short */
    FAULT_CHUNKED_LONG,  /* no Content-Length, `after` bytes more */
    FAULT_CHUNKED_SHORT, /* no Content-Length, `after` bytes fewer */
    FAULT_CHUNKED_CUT,   /* no Content-Length, and FIN after the last byte, in place of the last chunk */
    FAULT_NO_RANGE,      /* 200 with everything, whatever the range */
    FAULT_NO_RANGE_CUT,  /* the same, and FIN after `after` bytes */
    FAULT_NO_RANGE_OPEN, /* the same without Content-Length, in chunks */
    FAULT_NOT_PARTIAL,   /* 200 with the range alone */
    FAULT_OTHER_RANGE,   /* 206 with a range that begins one byte later */
    FAULT_GUNZIPPED,     /* the header of a server that decompressed */
    FAULT_CLOSE_AFTER,   /* a good answer, then the connection closes without a word */
};

struct fault_step {
    enum fault_kind kind;
    int status;
    uint64_t after;
    const char *text, *extra;
};

struct fault_gcs {
    const unsigned char *data;
    uint64_t size, generation;
    bool deleted; /* 404 for everything */
    bool no_hash; /* no x-goog-hash */
    const struct fault_step *script;
    unsigned steps;
    unsigned delay_ms; /* before each answer */
    /* Written by the server; read them when no request is under way. */
    _Atomic unsigned media, lookups, at_once, most_at_once, connections;
    struct {
        uint64_t first, last; /* of its Range; 0, UINT64_MAX without one */
        uint64_t generation;
        unsigned on_conn;
    } seen[256];
};

/* A fault_handler; arg is a struct fault_gcs. */
bool fault_gcs_handle(void *arg, struct fault_conn *conn, const struct fault_request *request);

#endif
