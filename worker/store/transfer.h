/*
 * transfer.h - objects into the caller's memory, with everything checked; pages and look-ups, with repeats.
 *
 * An engine belongs to one thread and one mr_http, and is driven by mr_http_step alone: time-outs, waits before a
 * repeat and queued work are timers of that loop. A role's loop is
 *
 *     while (...) {
 *         while (mr_transfer_free(engine) > 0 && <work>) mr_transfer_fetch(engine, ...);
 *         mr_http_step(http, 100, wakeup_fd);
 *     }
 *
 * Start calls never call back; callbacks come from mr_http_step, once each, unless cancelled. A callback may start and
 * cancel anything.
 *
 * What is checked: the length, the generation, and a checksum of each byte while it is in cache. The expected one is
 * the caller's crc32c (index), else, for a whole object, the one that the response's header names, else there is none
 * ("unverified"). Requests from range_min_bytes up, of a known generation, are read by up to `ranges` parallel streams
 * whose crcs are combined.
 *
 * What is repeated: NET, TIMEOUT and BUSY, with exponential waits and full jitter, at least Retry-After, until
 * deadline_ms without progress (an attempt that brings 64 KiB or ends well is progress). A broken or stalled stream
 * continues from the byte that it reached, on a new connection, with its running crc and the generation pinned. If the
 * crc is wrong, the whole is fetched again, crc_retries times. Anything else ends the transfer. How many requests are
 * in flight, and what 503s do to that: flight.h; how many are sent in a second, after 429 and SlowDown: rate.h.
 *
 * A stream of bytes is stalled when it is silent for twice the 99th percentile of earlier streams' longest silences, at
 * least stall_min_ms and at most the store's stall_timeout_ms, which applies until there are enough of them. The wait
 * for the head of a response is measured separately. Each stall doubles the time for the same stream, so that a server
 * that has become slow gets a few repeats and not an endless number; what it then takes counts as evidence.
 */
#ifndef MR_WORKER_STORE_TRANSFER_H
#define MR_WORKER_STORE_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/store/store.h"

struct mr_transfer_engine;
struct mr_transfer;

struct mr_transfer_options {
    unsigned connections;      /* requests in flight; 0: as many as pay off (flight.h), up to connections_most */
    unsigned connections_most; /* 0: MR_FLIGHT_MOST */
    unsigned retry_base_ms;    /* 0: 1,000 */
    unsigned retry_cap_ms;     /* 0: 32,000 */
    unsigned deadline_ms;      /* without progress, repeats included; 0: 300,000 */
    unsigned attempts;         /* failures in a row, without progress, that end it; 0: no limit but deadline_ms */
    unsigned stall_min_ms;     /* no stream counts as stalled before; 0: 1,500 */
    unsigned crc_retries;      /* times that an object with a wrong crc is fetched again; UINT_MAX: 0 times; 0: 2 */
    uint64_t range_min_bytes;  /* objects from here up are read in parallel ranges; 0: 16 MiB */
    uint64_t range_bytes;      /* smallest range; 0: 8 MiB */
    unsigned ranges;           /* most parallel ranges of one object; 0: 8; 1: never split */
};

/* Since mr_transfer_new; written by the engine's thread. */
struct mr_transfer_counters {
    uint64_t requests;          /* sent to the store, repeats included */
    uint64_t bytes;             /* received into a destination, repeats included */
    uint64_t objects;           /* successful fetches */
    uint64_t failures;          /* fetches, pages and look-ups that ended with an error */
    uint64_t retries;           /* requests repeated after an error */
    uint64_t resumes;           /* of those, continued after the bytes that had arrived */
    uint64_t stalls;            /* requests dropped because they stalled */
    uint64_t crc_errors;        /* bytes that failed their checksum */
    uint64_t unverified;        /* whole objects fetched without any checksum to compare */
    uint64_t throttled;         /* responses 429 and 503 */
    uint64_t egress;            /* of those, about the project's egress bandwidth */
    uint64_t compose_throttled; /* responses 429 to composes */
    uint64_t answers;           /* downloads whose time was measured */
    uint64_t first_ns;          /* of these, until the response began */
    uint64_t body_ns;           /* and from there to the end */
    /* Requests by the class that Google bills them in (https://cloud.google.com/storage/pricing#operations-pricing): */
    uint64_t class_a; /* list, insert, compose, uploads, upload parts */
    uint64_t class_b; /* get, stat, what the bucket is, permissions */
    uint64_t deletes; /* free */
};

/* http must outlive the engine. NULL with mr_error. */
struct mr_transfer_engine *mr_transfer_new(const struct mr_transfer_options *options, struct mr_http *http);
/* Cancels what is under way. NULL is allowed. */
void mr_transfer_destroy(struct mr_transfer_engine *engine);
const struct mr_transfer_counters *mr_transfer_counters(const struct mr_transfer_engine *engine);

/* Requests that could be sent at once: 0 while as many as the current limit are in flight or queued, or as many are
 * queued as will be sent soon. */
unsigned mr_transfer_free(const struct mr_transfer_engine *engine);
/* Requests in flight now, and how many may be. */
unsigned mr_transfer_in_flight(const struct mr_transfer_engine *engine);
unsigned mr_transfer_limit(const struct mr_transfer_engine *engine);
/* Requests a second that the store takes, while that holds any up; else 0. */
double mr_transfer_rate(const struct mr_transfer_engine *engine);
/* How the limit is found: enum mr_flight_phase. */
unsigned mr_transfer_phase(const struct mr_transfer_engine *engine);
/* How long a stream of this store may be silent now: [0] before the head of the response, [1] after it. */
void mr_transfer_stall_ms(const struct mr_transfer_engine *engine, const struct mr_store *store, unsigned ms[2]);

struct mr_transfer_request {
    struct mr_store *store; /* must outlive the transfer */
    const char *name;       /* copied */
    size_t name_length;
    uint64_t generation; /* 0: unknown: the first response's is pinned for the rest */
    const char *etag;    /* as in mr_store_get_request; copied */
    uint64_t size;       /* of the whole object */
    uint64_t offset;     /* bytes wanted: [offset, offset + length), within size */
    uint64_t length;
    uint32_t crc32c; /* expected crc of the bytes wanted */
    bool has_crc32c;
    bool needs_crc32c; /* the result must have it, whichever checksum the store names */
    void *dest;        /* length bytes; may be NULL if length is 0 */
    /*
     * The next `got` of the bytes wanted lie at dest + at, in order and each once, still in cache. The checksum is then
     * the caller's: none is compared here, and one stream reads it all. Must not start or cancel anything. NULL: none.
     */
    void (*arrived)(void *arg, uint64_t at, uint64_t got);
};

struct mr_transfer_result {
    enum mr_code code;
    const char *text; /* "" for MR_OK; else one line: the object, what happened, what to do */
    int status;       /* HTTP status of the last response; 0: none */
    uint32_t crc32c;  /* of the bytes in dest (MR_OK); 0 if another checksum was compared */
    bool verified;    /* it was compared with a checksum of the store */
    uint64_t generation;
    bool gzip;         /* as in mr_store_got */
    unsigned attempts; /* requests that it took */
};
typedef void mr_transfer_fn(void *arg, const struct mr_transfer_result *result);

/* Returns a handle that lives until its callback returns or it is cancelled. NULL with mr_error (USAGE, NO_MEMORY). */
struct mr_transfer *mr_transfer_fetch(struct mr_transfer_engine *engine, const struct mr_transfer_request *request,
                                      mr_transfer_fn *done, void *arg);
/* mr_store_list and mr_store_stat with the same repeats, deadline and limit. */
struct mr_transfer *mr_transfer_list(struct mr_transfer_engine *engine, struct mr_store *store,
                                     const struct mr_store_list_request *request, mr_store_list_fn *done, void *arg);
struct mr_transfer *mr_transfer_stat(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                     size_t name_length, uint64_t generation, mr_store_stat_fn *done, void *arg);

/*
 * Writing. What has a precondition (generation_match, generation) is repeated like a read, since a repeat can do it
 * only once; what has none (MR_STORE_ANY) is repeated only if the request certainly did not reach the server, as when
 * no connection was made. If a response was lost and the repeat is refused (412, 404 of a delete), the first request
 * may have done the work: the object is looked up, and is ours if its size and crc32c are. A new object whose size or
 * crc32c is not what was sent is deleted again: CORRUPT. The caller's memory (insert: body) must stay until done.
 */
struct mr_transfer *mr_transfer_insert(struct mr_transfer_engine *engine, struct mr_store *store,
                                       const struct mr_store_insert_request *request, mr_store_stat_fn *done,
                                       void *arg);
struct mr_transfer *mr_transfer_compose(struct mr_transfer_engine *engine, struct mr_store *store,
                                        const struct mr_store_compose_request *request, mr_store_stat_fn *done,
                                        void *arg);
/*
 * An object of any size, read from a file or a function. What fits one chunk is an insert; the rest goes through an
 * upload session: each chunk is kept until the session has it, a session that has less continues from there, and one
 * that was lost is begun again if the source can be read again. The crc32c of all that was read is compared with the
 * object's. Nothing is visible under the name before the last byte is there; a transfer that fails or is cancelled
 * drops its session.
 */
struct mr_transfer_upload_request {
    struct mr_store *store; /* must outlive the transfer */
    const char *name;       /* copied */
    size_t name_length;
    const char *content_type;  /* copied; NULL: application/octet-stream */
    uint64_t generation_match; /* as in mr_store_insert_request. Sessions are safe to repeat without one too */
    uint64_t size;             /* less and more is an error (CHANGED); MR_STORE_ANY: to the source's end */
    uint64_t chunk_bytes;      /* memory that it takes; a multiple of MR_STORE_CHUNK; 0: 16 MiB */
    /* Reads up to size bytes into buffer. Returns how many; 0: the end; -1 with mr_error. May block: the loop waits.
     * NULL: fd is read from its current position (with pread if it can seek). */
    int64_t (*read)(void *arg, void *buffer, size_t size);
    int (*rewind)(void *arg); /* to the beginning again: 0, or -1 with mr_error. NULL: not possible */
    int fd;                   /* stays the caller's */
    /* `sent` bytes are in the store; fewer than before if it had to start over. Must not start or cancel anything.
     * NULL: none. */
    void (*progress)(void *arg, uint64_t sent);
};
struct mr_transfer *mr_transfer_upload(struct mr_transfer_engine *engine,
                                       const struct mr_transfer_upload_request *request, mr_store_stat_fn *done,
                                       void *arg);
/* 1 to MR_STORE_BATCH_MAX names. result: OK if each[i] is the result of names[i]; those that may succeed later are
 * repeated. */
struct mr_transfer *mr_transfer_delete_batch(struct mr_transfer_engine *engine, struct mr_store *store,
                                             const struct mr_store_name *names, unsigned count, mr_store_batch_fn *done,
                                             void *arg);
struct mr_transfer *mr_transfer_bucket(struct mr_transfer_engine *engine, struct mr_store *store,
                                       mr_store_bucket_fn *done, void *arg);
struct mr_transfer *mr_transfer_permissions(struct mr_transfer_engine *engine, struct mr_store *store,
                                            const char *const *names, unsigned count, mr_store_permissions_fn *done,
                                            void *arg);

/* Ends it without its callback; nothing is written to its dest afterwards. A write may have happened, or may still
 * happen. */
void mr_transfer_cancel(struct mr_transfer_engine *engine, struct mr_transfer *transfer);

#endif
