/* gcs_impl.h - what the requests of the GCS client have in common. Only worker/store/gcs*.c include it. */
#ifndef MR_WORKER_STORE_GCS_IMPL_H
#define MR_WORKER_STORE_GCS_IMPL_H

#include <stdbool.h>

#include "worker/store/auth.h"
#include "worker/store/gcs_json.h"
#include "worker/store/get_body.h"
#include "worker/store/http.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/upload_parts.h"

#define MR_GCS_STAT_FIELDS "fields=name,size,generation,crc32c,storageClass,etag,timeCreated"

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
    GCS_XML,     /* an upload part, or its upload */
};

struct gcs_store {
    struct mr_store base;
    struct mr_auth *auth;
    char *endpoint;
    struct mr_text objects;      /* "http://host/storage/v1/b/bucket/o" */
    struct mr_text user_project; /* "&userProject=x", or nothing */
    char *project;               /* "x", or NULL */
    struct mr_text url;          /* of the request that is being built */
    bool no_parts;               /* the endpoint has no upload parts */
    bool no_batch;               /* the endpoint has no batches: 404, 405 or 501 */
    struct gcs_call *pool;
};

/* Deletes in one request, or one by one. */
struct gcs_batch {
    unsigned count, next;        /* next: of those that are sent one by one */
    struct mr_store_name *names; /* their strings lie in the call's name, each with its NUL */
    struct mr_store_result *each;
    size_t *texts; /* offset of each result's text in words, plus 1; 0: "" */
    struct mr_text words;
};

struct gcs_call;

/* How a request ended. result is passed to the callback; its text points into text. */
struct gcs_answer {
    const struct mr_http_result *http;
    struct mr_store_result result;
    char text[1024];
};
typedef void gcs_answered_fn(struct gcs_call *call, struct gcs_answer *answer);

struct gcs_call {
    struct mr_store_call base;
    struct gcs_call *next_free;
    enum gcs_kind kind;
    struct mr_http_call *http;
    struct mr_auth_waiter waiter;   /* queued while there is no token */
    struct mr_http_request request; /* sent again after a 401, with the url below */
    struct mr_text url;
    gcs_answered_fn *answered;
    uint64_t token; /* that the request was sent with; 0: none */
    bool refused;   /* it has had a 401 before */
    void *arg;
    union mr_store_done done;
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
    struct mr_get_body body_in;  /* of a get */
    struct mr_store_result lost; /* how a get for a missing generation ended, while it is looked up */
};

static inline struct gcs_store *mr_gcs_store(const struct gcs_call *call)
{
    return (struct gcs_store *)call->base.store;
}

/* ---- calls ---- */

/* From the pool, linked to the store. NULL with mr_error. */
struct gcs_call *mr_gcs_take(struct gcs_store *store, enum gcs_kind kind, void *arg);
/* Returns a call whose request has ended to the pool, and frees what a batch of deletes holds. */
void mr_gcs_give(struct gcs_call *call);
/* What the call is about, for messages. Returns out. */
const char *mr_gcs_uri(const struct gcs_call *call, char *out, size_t size);

/* ---- requests: build mr_gcs_store(call)->url, then send ---- */

/* ".../o"; `above` (""; "/upload") precedes its path. */
void mr_gcs_objects_url(struct gcs_store *store, const char *above);
/* ".../o/name?<first>[&generation=n]" */
void mr_gcs_object_url(struct gcs_call *call, const char *first, uint64_t generation);
/* "&key=<value, encoded>"; a value of NULL adds nothing. */
void mr_gcs_parameter(struct mr_text *url, const char *key, const char *value);
/* "&<key>=<generation>", unless it is MR_STORE_ANY. */
void mr_gcs_match(struct mr_text *url, const char *key, uint64_t generation);
/* A header line of the request: "Name: " and value. */
void mr_gcs_line(struct gcs_call *call, const char *name, const char *value);
/*
 * Starts the request, at once or as soon as there is a token; a 401 repeats it once with a new one. `answered` is
 * called once, and gives the call back or sends another request. 0, or -1 with mr_error: the call is still the
 * caller's.
 */
int mr_gcs_send(struct gcs_call *call, struct mr_http_request *request, gcs_answered_fn *answered);
/* For the end of a start function: sends, and returns the call, or gives it back and returns NULL. */
struct mr_store_call *mr_gcs_start(struct gcs_call *call, struct mr_http_request *request, gcs_answered_fn *answered);

/* ---- answers ---- */

/* Fills answer->result from answer->http. */
void mr_gcs_explain(const struct gcs_call *call, struct gcs_answer *answer);
/* For a response whose content is not acceptable: the result becomes mr_error. */
void mr_gcs_refuse(const struct gcs_call *call, struct gcs_answer *answer);

/* For a response about one object, to a call with done.stat: parses it, calls back, gives the call back. */
gcs_answered_fn mr_gcs_on_item;
/* For a response without content, to a call with done.remove. */
gcs_answered_fn mr_gcs_on_removed;

/* ---- gcs_read.c, gcs_write.c, gcs_upload.c, gcs_parts.c, gcs_batch.c, gcs_bucket.c ---- */

mr_store_list_op mr_gcs_list;
mr_store_get_op mr_gcs_get;
mr_store_stat_op mr_gcs_stat;
mr_store_insert_op mr_gcs_insert;
mr_store_delete_op mr_gcs_delete;
mr_store_compose_op mr_gcs_compose;
mr_store_batch_op mr_gcs_delete_batch;
mr_store_begin_op mr_gcs_upload_begin;
mr_store_send_op mr_gcs_upload_send;
mr_store_drop_op mr_gcs_upload_drop;
mr_store_has_parts_op mr_gcs_has_parts;
mr_store_parts_begin_op mr_gcs_parts_begin;
mr_upload_part_op mr_gcs_part_send;
mr_store_complete_op mr_gcs_parts_complete;
mr_store_abort_op mr_gcs_parts_abort;
mr_store_parts_list_op mr_gcs_parts_list;
mr_store_bucket_op mr_gcs_bucket;
mr_store_permissions_op mr_gcs_permissions;

/* "/storage/v1/b/bucket/o/name?...", to delete it, added to url. */
void mr_gcs_delete_url(struct gcs_store *store, struct mr_text *url, const struct mr_store_name *name);
#define MR_GCS_CONTENT_TYPE  "application/octet-stream"
#define MR_GCS_BOUNDARY_SIZE 48
/* A new random boundary, which no body contains. */
void mr_gcs_boundary(char out[MR_GCS_BOUNDARY_SIZE]);

#endif
