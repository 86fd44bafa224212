/*
 * transfer_impl.h - what transfers of all kinds have in common: the queue, the limit on requests in flight, repeats.
 * Only worker/store/transfer*.c include it.
 *
 * A transfer owns one stream or more; a stream has one request at a time. Its ops send that request, and the callback
 * that gets the response calls mr_stream_end: 0 means that the transfer may call back and end.
 */
#ifndef MR_WORKER_STORE_TRANSFER_IMPL_H
#define MR_WORKER_STORE_TRANSFER_IMPL_H

#include <stdbool.h>

#include "worker/store/flight.h"
#include "worker/store/latency.h"
#include "worker/store/rate.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/transfer.h"

enum mr_stream_state { MR_STREAM_QUEUED, MR_STREAM_SENT, MR_STREAM_WAITING, MR_STREAM_ENDED };

struct mr_stream;

struct mr_transfer_ops {
    /* The request that the stream needs now. NULL with mr_error: the transfer fails. */
    struct mr_store_call *(*send)(struct mr_stream *stream);
    /* Calls back with an error, for the last time. */
    void (*fail)(struct mr_transfer *transfer, const struct mr_store_result *result);
    /* Frees what the kind added; NULL: nothing. */
    void (*close)(struct mr_transfer *transfer);
};

/* One request at a time for one contiguous part of a transfer. A list or stat has one stream without bytes. */
struct mr_stream {
    struct mr_transfer *transfer;
    enum mr_stream_state state;
    struct mr_stream *previous, *next; /* MR_STREAM_QUEUED */
    struct mr_http_timer timer;        /* MR_STREAM_WAITING */
    struct mr_store_call *call;        /* MR_STREAM_SENT */
    uint64_t offset, length;           /* within the bytes wanted */
    uint64_t received;                 /* of them; all in dest, all in sum */
    uint64_t attempt_start;            /* received when the attempt under way was sent */
    struct mr_checksum sum;
    unsigned failures; /* in a row */
    unsigned stalls;   /* each doubles the time that it is given */
    bool fresh;        /* the next attempt takes a new connection */
    bool in_part;      /* the request under way has done something of what it was to do */
    int64_t sent_ns;
};

struct mr_transfer {
    struct mr_transfer_engine *engine;
    struct mr_transfer *previous, *next;
    const struct mr_transfer_ops *ops;
    struct mr_store *store;
    void *arg;
    mr_transfer_fn *fetched;  /* of a fetch */
    union mr_store_done done; /* of anything else */
    struct mr_text strings;   /* the name; of a list its strings, each with its NUL */
    struct mr_store_list_request list;
    struct mr_transfer_request fetch; /* its name lies in strings */
    uint64_t generation;              /* requested, or pinned by the first response; 0: not known */
    struct mr_checksum answer_sum;    /* of the whole object, from a response */
    bool gzip;                        /* as a response said */
    char etag[MR_ETAG_SIZE];          /* of that generation; "": not known */
    unsigned attempts, crc_failures, streams_left, stream_count;
    bool is_compose;
    bool once; /* not repeated when it may have reached the server: it has no precondition */
    int status;
    int64_t progress_ns; /* mr_http_ran_ns */
    struct mr_stream *streams;
    struct mr_stream single; /* if one is enough */
};

struct mr_transfer_engine {
    struct mr_http *http;
    struct mr_transfer_options options;
    struct mr_transfer_counters counters;
    struct mr_transfer *transfers;
    struct mr_stream *first, *last; /* MR_STREAM_QUEUED, in order */
    unsigned queued, in_flight;
    struct mr_flight flight;                 /* how many may be */
    struct mr_rate rate;                     /* and how many in a second */
    unsigned landed;                         /* since the limit was last reached */
    unsigned batch_most;                     /* names in a batch of deletes */
    struct mr_http_timer pump;               /* sends what is queued */
    int64_t warned_ns;                       /* of the last warning about repeats; 0: none yet */
    int64_t warned_egress_ns;                /* of the last one about egress bandwidth; 0: none yet */
    struct mr_latency head_waits, gap_waits; /* of reads that ended well */
};

/*
 * A transfer of `size` bytes whose first member is struct mr_transfer, zeroed but for that. Then fill it in, add its
 * name to strings, and mr_transfer_begin. NULL with mr_error.
 */
void *mr_transfer_make(struct mr_transfer_engine *engine, struct mr_store *store, const struct mr_transfer_ops *ops,
                       size_t size, void *arg);
/* Queues its streams. NULL with mr_error, and it is freed, if adding to strings failed. */
struct mr_transfer *mr_transfer_begin(struct mr_transfer *transfer);
/* Calls back through ops->fail, and frees it. */
void mr_transfer_fail(struct mr_transfer *transfer, const struct mr_store_result *result);
/* Stops its streams and frees it, without a callback. */
void mr_transfer_end(struct mr_transfer *transfer);

/* The stream's next request is sent as soon as the limit allows. */
void mr_stream_queue(struct mr_stream *stream, bool in_front);
/* Its request has ended, with any result. To be called first, or mr_stream_end, which calls it. */
void mr_stream_landed(struct mr_stream *stream);
/* A part of what its request was to do is done: the deadline and the waits count from here. */
void mr_stream_progress(struct mr_stream *stream);
/* Its request has ended: 0 if it succeeded; else -1: it is sent again later, or the transfer has failed and is
 * freed. */
int mr_stream_end(struct mr_stream *stream, const struct mr_store_result *result);
/* A request that landed failed: it is sent again later, or the whole transfer fails and is freed. */
void mr_stream_again(struct mr_stream *stream, const struct mr_store_result *result);

#endif
