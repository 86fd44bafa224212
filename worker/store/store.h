/*
 * store.h - one bucket or folder: list a page, look an object up, read bytes, write, delete, compose, query the bucket.
 * One request each, without repeats.
 *
 * Repeats, checksums, parallel ranges and concurrency are transfer.h's: a role calls that, and this only through it.
 * Single-threaded and asynchronous: a call returns at once, its callback comes from mr_http_step, exactly once unless
 * the call is cancelled, and what the callback is given is valid until it returns. Strings of a request are copied.
 *
 * Names are (pointer, length): 1 to 1024 bytes without NUL (`file`: up to PATH_MAX), any other byte allowed. In a gs://
 * or s3:// store a name is the object's name; in a file store it is the absolute path, with its leading slash, so that
 * "file://" + name opens it.
 */
#ifndef MR_WORKER_STORE_STORE_H
#define MR_WORKER_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/uri.h"
#include "worker/store/http.h"

#define MR_STORE_NAME_MAX 4096 /* longest name of any store, without the NUL */

struct mr_s3_options; /* s3.h */
struct mr_store;
struct mr_store_call;

struct mr_store_options {
    enum mr_scheme scheme;
    const char *bucket; /* gs, s3: the bucket; file: "" */
    const char *named;  /* as its URIs name it, if that differs (uri.h); else NULL */
    /* "http[s]://host[:port]"; NULL: gs: STORAGE_EMULATOR_HOST, then the public service; s3: as mr_s3_endpoint says */
    const char *endpoint;
    const char *auth;         /* "anonymous", or NULL/"default": those of the environment (auth.h, aws_credentials.h) */
    const char *user_project; /* gs: billed project of a requester-pays bucket; NULL: none */
    const struct mr_s3_options *s3; /* NULL: all defaults */
    unsigned stall_timeout_ms;      /* a request that stalls this long ends with MR_E_TIMEOUT (http.h); 0: 20,000 */
    struct mr_http *http;           /* must outlive the store */
};

/* NULL with mr_error: USAGE or CONFIG (bad endpoint, unknown auth), DENIED (no credentials), NO_MEMORY. No network. */
struct mr_store *mr_store_open(const struct mr_store_options *options);
/* Cancels the store's calls. NULL is allowed. */
void mr_store_close(struct mr_store *store);
/* What the store was opened with. */
enum mr_scheme mr_store_scheme(const struct mr_store *store);
/* Whether it has answered a range with the whole object, as some proxies do. */
bool mr_store_ignores_ranges(const struct mr_store *store);
/* For people: where requests go ("https://host"; file: "") and with which credentials. No secret. */
void mr_store_describe(const struct mr_store *store, char *endpoint, size_t endpoint_size, char *credentials,
                       size_t credentials_size);

/* How a request ended. */
struct mr_store_result {
    enum mr_code code;
    const char *text;        /* "" for MR_OK; else one line that names the object and the remedy */
    int status;              /* HTTP status of the last response; 0: none */
    unsigned retry_after_ms; /* as the server asked; 0: it did not */
    int64_t active_ns;       /* of it no time without progress (http.h) */
    bool not_sent;           /* certainly no byte of it reached the server */
    bool maybe_done;         /* transfers: but a request before it, whose response was lost, may have done the work */
    bool rate_limited;       /* 429, or S3's SlowDown: there are too many requests per second */
    bool is_named;           /* S3 and the XML of GCS: the store has given the error a name */
    bool egress_limited;     /* 429 about egress bandwidth: a limit of the project, not of this bucket */
};

struct mr_store_item {
    const char *name; /* NUL-terminated after name_length */
    size_t name_length;
    uint64_t size;
    uint64_t generation; /* gs: generation; s3: a hash of the ETag (s3.h); file: mtime in ns */
    uint32_t crc32c;
    bool has_crc32c;
    const char *storage_class; /* "" where the store has none */
    const char *etag;          /* "" where the store has none */
    int64_t
        created_s; /* when this version was made, seconds since 1970 by the store's clock; 0: unknown (with_times) */
};

/* An empty object whose name ends in a slash: it stands for a folder, and has no data. */
static inline bool mr_store_item_is_folder(const struct mr_store_item *item)
{
    return item->size == 0 && item->name_length > 0 && item->name[item->name_length - 1] == '/';
}

/*
 * A page of names n with prefix, start_offset <= n < end_offset, in unsigned byte order. NULL means unbounded. `after`:
 * the last name of the previous page (NULL: first page). It is not sent: names must be greater, or the response is
 * refused as MR_E_PROTOCOL, as are names out of order, out of range, or not allowed.
 */
struct mr_store_list_request {
    const char *prefix, *start_offset, *end_offset, *page_token, *after;
    unsigned max_results; /* 0: as many as the store gives */
    bool with_times;      /* items have created_s (file: always) */
    bool no_links;        /* file: without what lies behind a symbolic link to a folder */
};

struct mr_store_page {
    const struct mr_store_item *items;
    size_t count;
    const char *next_token; /* NULL: this was the last page. A page may be empty and not the last */
    uint64_t skipped;       /* file: entries that are neither regular files nor folders */
    int64_t now_s;          /* gs, s3: the store's clock when it responded, seconds since 1970; 0: it did not say */
};

/* page is NULL unless result->code is MR_OK. */
typedef void mr_store_list_fn(void *arg, const struct mr_store_result *result, const struct mr_store_page *page);
/* item is NULL unless result->code is MR_OK. */
typedef void mr_store_stat_fn(void *arg, const struct mr_store_result *result, const struct mr_store_item *item);

/* Bytes [offset, offset + length) of an object, into dest. `whole` says that this is all of it (offset 0): the request
 * then carries no range and the response must have exactly this length. */
struct mr_store_got;
struct mr_store_get_request {
    const char *name;
    size_t name_length;
    uint64_t generation; /* 0: the current one */
    const char *etag;    /* of that generation, by which s3 requests it; NULL or "": not known */
    uint64_t offset, length;
    bool whole;
    bool fresh_connection;
    unsigned first_timeout_ms, stall_timeout_ms; /* as in http.h; 0: the store's stall_timeout_ms */
    unsigned char *dest;                         /* length bytes; must stay until done or cancelled */
    /* `more` bytes lie at dest + <bytes so far>, still in cache. Must not start or cancel anything. NULL: none. */
    void (*progress)(void *arg, const struct mr_store_got *got, uint64_t more);
};

/* From the headers of the response; zero if none came. */
struct mr_store_got {
    uint64_t received;           /* bytes that are in dest: a failed get may be resumed after them */
    uint64_t generation;         /* 0: unknown */
    struct mr_checksum checksum; /* of the whole object, as the store has it; NONE: it names none */
    char etag[MR_ETAG_SIZE];     /* s3; "" elsewhere */
    bool gzip;                   /* gs, s3: stored with Content-Encoding: gzip; the bytes are the compressed ones */
    int64_t first_ns, gap_ns, body_ns; /* as in http.h; 0 if nothing was measured */
};
typedef void mr_store_get_fn(void *arg, const struct mr_store_result *result, const struct mr_store_got *got);

/* Each returns a call that lives until its callback returns or it is cancelled, or NULL with mr_error (USAGE,
 * NO_MEMORY). */
struct mr_store_call *mr_store_list(struct mr_store *store, const struct mr_store_list_request *request,
                                    mr_store_list_fn *done, void *arg);
/* false: names come in no order and are sorted here, so a part of them costs as much as all (directory buckets of
 * s3). */
bool mr_store_lists_ranges(const struct mr_store *store);
/*
 * Errors of get: NOT_FOUND (also: deleted since the listing), CHANGED (another generation is there now), DENIED,
 * PROTOCOL (wrong length, range or generation; decompressed on the way), NET, TIMEOUT, BUSY. gs: a 404 or 412 for a
 * given generation is looked up once without it to tell CHANGED from NOT_FOUND. MR_OK means: exactly length bytes are
 * there.
 */
struct mr_store_call *mr_store_get(struct mr_store *store, const struct mr_store_get_request *request,
                                   mr_store_get_fn *done, void *arg);
struct mr_store_call *mr_store_stat(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                    mr_store_stat_fn *done, void *arg);
/* ---- writing. Transfers repeat these where that is safe: transfer.h ---- */

#define MR_STORE_ANY            UINT64_MAX /* generation_match: no precondition */
#define MR_STORE_COMPOSE_MAX    32         /* sources of a compose */
#define MR_STORE_BATCH_MAX      100        /* names of a batch of deletes */
#define MR_STORE_PERMISSION_MAX 16

/* A whole new object in one request. */
struct mr_store_insert_request {
    const char *name; /* copied */
    size_t name_length;
    const void *body; /* must stay until done or cancelled; may be NULL if length is 0 */
    uint64_t length;
    uint32_t crc32c;           /* of the body: the store refuses other bytes */
    const char *content_type;  /* copied; NULL: application/octet-stream */
    uint64_t generation_match; /* MR_STORE_ANY; 0: it must not exist; else: the generation that it replaces */
    const char *etag;          /* of that generation, as in mr_store_get_request; copied, though not by transfers */
    /* Transfers: a dead process may have sent the same, so after a refusal the object is compared: size and crc32c show
     * whose work it is. */
    bool maybe_done;
};
/*
 * item: the object as it is now (size, generation, crc32c). Errors: EXISTS (generation_match 0, and it does), CHANGED
 * (another generation is there), DENIED, USAGE (the store refused it: a wrong crc32c too), NET, TIMEOUT, BUSY.
 * file: a temporary name in the same folder, fsync, then link (0) or rename; the folder must exist.
 */
struct mr_store_call *mr_store_insert(struct mr_store *store, const struct mr_store_insert_request *request,
                                      mr_store_stat_fn *done, void *arg);

typedef void mr_store_delete_fn(void *arg, const struct mr_store_result *result);
/* Deletes the object if `generation` is live (0 or MR_STORE_ANY: whichever is). In a bucket with versions it becomes a
 * noncurrent one. Errors: NOT_FOUND, CHANGED, DENIED, NET, TIMEOUT, BUSY. */
struct mr_store_call *mr_store_delete(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                      mr_store_delete_fn *done, void *arg);

struct mr_store_name {
    const char *name; /* copied */
    size_t name_length;
    uint64_t generation; /* as in mr_store_delete */
    const char *etag;    /* copied; as in mr_store_get_request */
};
/* result: OK if each name has a result of its own: each[count], in the order of the names; else each is NULL. */
typedef void mr_store_batch_fn(void *arg, const struct mr_store_result *result, const struct mr_store_result *each);
/* 1 to MR_STORE_BATCH_MAX deletes in one request; one by one where the endpoint has no batches (404, 405, 501;
 * remembered). */
struct mr_store_call *mr_store_delete_batch(struct mr_store *store, const struct mr_store_name *names, unsigned count,
                                            mr_store_batch_fn *done, void *arg);

/* `name` becomes the concatenation of up to 32 objects of the same bucket. */
struct mr_store_compose_request {
    const char *name; /* copied, as all of it is */
    size_t name_length;
    const struct mr_store_name *sources; /* generation: must be the live one; 0 or MR_STORE_ANY: whichever is */
    unsigned count;                      /* 1 to MR_STORE_COMPOSE_MAX */
    uint64_t generation_match;           /* of `name`, as in mr_store_insert */
    const char *content_type;            /* NULL: application/octet-stream */
    /* What the object must be: it is compared (CORRUPT), and after a lost response shows whose work it is. */
    bool has_size, has_crc32c;
    uint64_t size;
    uint32_t crc32c;
    bool maybe_done; /* as in mr_store_insert_request */
};
/* Errors: as insert; NOT_FOUND or CHANGED also for a source. file: reads and writes the bytes. */
struct mr_store_call *mr_store_compose(struct mr_store *store, const struct mr_store_compose_request *request,
                                       mr_store_stat_fn *done, void *arg);

/* ---- a new object in chunks, one after the other: mr_transfer_upload does all of it ---- */

#define MR_STORE_CHUNK (256u << 10) /* a chunk that is not the last is a multiple of this */

struct mr_store_upload_request {
    const char *name; /* copied */
    size_t name_length;
    const char *content_type;  /* copied; NULL: application/octet-stream */
    uint64_t generation_match; /* as in mr_store_insert */
};
/* session: names the upload from now on; printable, under 4 KiB. It is a secret: anyone who has it can write. */
typedef void mr_store_begin_fn(void *arg, const struct mr_store_result *result, const char *session);
/* gs: a resumable session, which ends after a week. s3: a multipart upload. file: a temporary file. There is no object
 * yet. */
struct mr_store_call *mr_store_upload_begin(struct mr_store *store, const struct mr_store_upload_request *request,
                                            mr_store_begin_fn *done, void *arg);

struct mr_store_chunk {
    const struct mr_store_upload_request *upload; /* as at the beginning; read during the call only */
    const char *session;                          /* copied */
    const void *data;                             /* must stay until done or cancelled */
    uint64_t offset, length;
    uint64_t total; /* of the whole object, if this is its last chunk; else MR_STORE_ANY */
    bool probe;     /* no data: asks how much the session keeps */
};
struct mr_store_uploaded {
    uint64_t kept;                    /* bytes that the session has, which may be fewer than were sent */
    const struct mr_store_item *item; /* the object, if that was its last chunk; else NULL */
};
typedef void mr_store_upload_fn(void *arg, const struct mr_store_result *result, const struct mr_store_uploaded *state);
/* status 404 and 410: the store no longer knows the session. state is NULL unless result->code is MR_OK. */
struct mr_store_call *mr_store_upload_send(struct mr_store *store, const struct mr_store_chunk *chunk,
                                           mr_store_upload_fn *done, void *arg);
/* Abandons a session, without waiting for the store. */
void mr_store_upload_drop(struct mr_store *store, const char *session);

/* ---- what the bucket is ---- */

/* Strings are "" if the store gave none. */
struct mr_store_bucket {
    const char *storage_class, *location, *location_type; /* "STANDARD", "RAPID"; "US-EAST1"; "region", "zone" */
    bool hierarchical;                                    /* hierarchical name space */
    bool versioning, requester_pays, autoclass;
    uint64_t soft_delete_s; /* retention of deleted objects; 0: none */
};
typedef void mr_store_bucket_fn(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket);
/* file: all "" and 0. Needs storage.buckets.get, which a reader of objects often lacks: DENIED. */
struct mr_store_call *mr_store_bucket(struct mr_store *store, mr_store_bucket_fn *done, void *arg);

/* Bit i of granted: names[i], as "storage.objects.get". */
typedef void mr_store_permissions_fn(void *arg, const struct mr_store_result *result, unsigned granted);
/* 1 to MR_STORE_PERMISSION_MAX names. file: all of them; only an operation shows what the file system permits. */
struct mr_store_call *mr_store_permissions(struct mr_store *store, const char *const *names, unsigned count,
                                           mr_store_permissions_fn *done, void *arg);

/* Ends a call without its callback; nothing is written to its dest afterwards. Not from progress. */
void mr_store_cancel(struct mr_store_call *call);

#endif
