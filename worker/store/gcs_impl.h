/* gcs_impl.h - what the requests of the GCS client have in common. Only worker/store/gcs*.c include it. */
#ifndef MR_WORKER_STORE_GCS_IMPL_H
#define MR_WORKER_STORE_GCS_IMPL_H

#include <stdbool.h>

#include "worker/store/auth.h"
#include "worker/store/gcs_json.h"
#include "worker/store/http.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/upload_parts.h"

#define MR_GCS_STAT_FIELDS "fields=name,size,generation,crc32c,storageClass,etag"

enum gcs_kind {
    GCS_LIST,
    GCS_GET,
    GCS_STAT,
    GCS_BUCKET, /* and permissions: about the bucket itself */
    GCS_INSERT, /* from here on: requests that write */
    GCS_DELETE,
    GCS_BATCH,
    GCS_COMPOSE,
    GCS_UPLOAD,  /* the beginning of a session */
    GCS_SESSION, /* a request to its own URL */
    GCS_XML,     /* a multipart upload */
};

struct gcs_store {
    struct mr_store base;
    struct mr_auth *auth;
    char *endpoint;
    struct mr_text objects;      /* "http://host/storage/v1/b/bucket/o" */
    struct mr_text user_project; /* "&userProject=x", or nothing */
    char *project;               /* "x", or NULL */
    struct mr_text url;          /* of the request that is being built */
    bool no_parts;               /* it has no multipart uploads */
    bool no_batch;               /* the endpoint has no batches: 404, 405 or 501 */
    struct gcs_call *pool;
};

/* Deletes in one request, or one by one. */
struct gcs_batch {
    unsigned count, next;        /* next: of those that go one by one */
    struct mr_store_name *names; /* their strings lie in the call's name, each with its NUL */
    struct mr_store_result *each;
    size_t *texts; /* offset of each result's text in words, plus 1; 0: "" */
    struct mr_text words;
};

struct gcs_call {
    struct mr_store_call base;
    struct gcs_call *next_free;
    enum gcs_kind kind;
    struct mr_http_call *http;
    struct mr_auth_waiter waiter;   /* queued while there is no token */
    struct mr_http_request request; /* sent again after a 401; its url and done are the two below */
    struct mr_text url;
    void (*answered)(void *arg, const struct mr_http_result *result);
    uint64_t token; /* that the request was sent with; 0: none */
    bool refused;   /* a 401 was answered before */
    void *arg;
    union {
        mr_store_list_fn *list;
        mr_store_get_fn *get;
        mr_store_stat_fn *stat; /* and insert, compose */
        mr_store_delete_fn *remove;
        mr_store_batch_fn *batch;
        mr_store_begin_fn *begin;
        mr_store_upload_fn *upload;
        mr_upload_part_fn *part;
        mr_store_complete_fn *complete;
        mr_store_parts_list_fn *pending;
        mr_store_bucket_fn *bucket;
        mr_store_permissions_fn *permissions;
    } done;
    struct mr_text name;  /* get, stat: the object; list: its strings, each with its NUL */
    struct mr_text lines; /* the request's own header lines, each with its NUL */
    unsigned line_count;
    struct mr_text head, tail; /* of the body */
    struct mr_http_piece body[MR_HTTP_MAX_PIECES];
    uint64_t generation_match;
    struct gcs_batch batch;
    uint32_t crc32c;            /* of the part that is sent */
    uint64_t sent_to;           /* the end of the chunk that an upload sends */
    struct mr_text permissions; /* names, each with its NUL */
    struct mr_store_list_request list;
    struct mr_store_get_request get;
    uint64_t generation;
    struct mr_store_got got;
    bool head_checked;
    struct mr_store_result lost; /* how a get for a generation that is gone ended, while it is looked up */
};

static inline struct gcs_store *mr_gcs_store(const struct gcs_call *call)
{
    return (struct gcs_store *)call->base.store;
}

/* ---- calls ---- */

/* From the pool, linked to the store. NULL with mr_error. */
struct gcs_call *mr_gcs_take(struct gcs_store *store, enum gcs_kind kind, void *arg);
/* Its request has ended. */
void mr_gcs_give(struct gcs_call *call);
/* What the call is about, for messages. Returns out. */
const char *mr_gcs_uri(const struct gcs_call *call, char *out, size_t size);

/* ---- requests: build mr_gcs_store(call)->url, then send ---- */

/* ".../o"; `above` (""; "/upload") stands in front of its path. */
void mr_gcs_objects_url(struct gcs_store *store, const char *above);
/* ".../o/name?<first>[&generation=n]" */
void mr_gcs_object_url(struct gcs_call *call, const char *first, uint64_t generation);
/* "&key=<value, encoded>"; a value of NULL adds nothing. */
void mr_gcs_parameter(struct mr_text *url, const char *key, const char *value);
/* "&<key>=<generation>", where it is not MR_STORE_ANY. */
void mr_gcs_match(struct mr_text *url, const char *key, uint64_t generation);
/* A header line of the request: "Name: " and value. */
void mr_gcs_line(struct gcs_call *call, const char *name, const char *value);
/* Starts the request, at once or when there is a token; a 401 repeats it once with a new one. 0, or -1 with mr_error. */
int mr_gcs_send(struct gcs_call *call, struct mr_http_request *request);
/* The end of a start function: sends, and returns the call, or gives it back and returns NULL. */
struct mr_store_call *mr_gcs_start(struct gcs_call *call, struct mr_http_request *request);

/* ---- answers ---- */

/* Fills result and its text (size bytes) from an answer, or from the lack of one. */
void mr_gcs_explain(const struct gcs_call *call, const struct mr_http_result *http, struct mr_store_result *result,
                    char *text, size_t size);
/* A 2xx answer whose content was refused: mr_error says why. */
void mr_gcs_refuse(const struct gcs_call *call, struct mr_store_result *result, char *text, size_t size);

/* An answer about one object, of a request whose done.stat is told: parses it, calls back, gives the call back. */
void mr_gcs_on_item(void *arg, const struct mr_http_result *http);
/* An answer without content, of a request whose done.remove is told. */
void mr_gcs_on_removed(void *arg, const struct mr_http_result *http);

/* ---- gcs_read.c, gcs_write.c, gcs_upload.c, gcs_parts.c, gcs_batch.c, gcs_bucket.c ---- */

struct mr_store_call *mr_gcs_list(struct mr_store *base, const struct mr_store_list_request *request,
                                  mr_store_list_fn *done, void *arg);
struct mr_store_call *mr_gcs_get(struct mr_store *base, const struct mr_store_get_request *request,
                                 mr_store_get_fn *done, void *arg);
struct mr_store_call *mr_gcs_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                  mr_store_stat_fn *done, void *arg);
struct mr_store_call *mr_gcs_insert(struct mr_store *base, const struct mr_store_insert_request *request,
                                    mr_store_stat_fn *done, void *arg);
struct mr_store_call *mr_gcs_delete(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                    mr_store_delete_fn *done, void *arg);
struct mr_store_call *mr_gcs_compose(struct mr_store *base, const struct mr_store_compose_request *request,
                                     mr_store_stat_fn *done, void *arg);
struct mr_store_call *mr_gcs_delete_batch(struct mr_store *base, const struct mr_store_name *names, unsigned count,
                                          mr_store_batch_fn *done, void *arg);
/* "/storage/v1/b/bucket/o/name?...", to delete it, added to url. */
void mr_gcs_delete_url(struct gcs_store *store, struct mr_text *url, const struct mr_store_name *name);
struct mr_store_call *mr_gcs_upload_begin(struct mr_store *base, const struct mr_store_upload_request *request,
                                          mr_store_begin_fn *done, void *arg);
struct mr_store_call *mr_gcs_upload_send(struct mr_store *base, const struct mr_store_chunk *chunk,
                                         mr_store_upload_fn *done, void *arg);
void mr_gcs_upload_drop(struct mr_store *base, const char *session);
bool mr_gcs_has_parts(const struct mr_store *base);
struct mr_store_call *mr_gcs_parts_begin(struct mr_store *base, const char *name, size_t name_length,
                                         const char *content_type, mr_store_parts_begin_fn *done, void *arg);
struct mr_store_call *mr_gcs_part_send(struct mr_store *base, const struct mr_upload_part_request *request,
                                       mr_upload_part_fn *done, void *arg);
struct mr_store_call *mr_gcs_parts_complete(struct mr_store *base, const struct mr_store_complete_request *request,
                                            mr_store_complete_fn *done, void *arg);
struct mr_store_call *mr_gcs_parts_abort(struct mr_store *base, const char *name, size_t name_length, const char *id,
                                         mr_store_delete_fn *done, void *arg);
struct mr_store_call *mr_gcs_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                        const char *from_id, mr_store_parts_list_fn *done, void *arg);
#define MR_GCS_CONTENT_TYPE  "application/octet-stream"
#define MR_GCS_BOUNDARY_SIZE 48
/* A new one that no body has in it. */
void mr_gcs_boundary(char out[MR_GCS_BOUNDARY_SIZE]);
/* Frees what a batch of deletes holds. */
void mr_gcs_batch_close(struct gcs_batch *batch);
struct mr_store_call *mr_gcs_bucket(struct mr_store *base, mr_store_bucket_fn *done, void *arg);
struct mr_store_call *mr_gcs_permissions(struct mr_store *base, const char *const *names, unsigned count,
                                         mr_store_permissions_fn *done, void *arg);

#endif
