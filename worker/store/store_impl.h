/* store_impl.h - what a client of a store implements, and what clients share. Only this folder includes it. */
#ifndef MR_WORKER_STORE_STORE_IMPL_H
#define MR_WORKER_STORE_STORE_IMPL_H

#include <stdbool.h>

#include "worker/store/store.h"
#include "worker/store/upload_parts.h"

/*
 * Each client embeds mr_store as its first member and fills ops; each of its calls embeds mr_store_call, linked by
 * mr_store_call_link while it is alive. Requests reach a client after the checks of store.c (names, sizes).
 */
typedef struct mr_store_call *mr_store_list_op(struct mr_store *store, const struct mr_store_list_request *request,
                                               mr_store_list_fn *done, void *arg);
typedef struct mr_store_call *mr_store_get_op(struct mr_store *store, const struct mr_store_get_request *request,
                                              mr_store_get_fn *done, void *arg);
typedef struct mr_store_call *mr_store_stat_op(struct mr_store *store, const char *name, size_t name_length,
                                               uint64_t generation, mr_store_stat_fn *done, void *arg);
typedef struct mr_store_call *mr_store_insert_op(struct mr_store *store, const struct mr_store_insert_request *request,
                                                 mr_store_stat_fn *done, void *arg);
typedef struct mr_store_call *mr_store_delete_op(struct mr_store *store, const char *name, size_t name_length,
                                                 uint64_t generation, mr_store_delete_fn *done, void *arg);
typedef struct mr_store_call *mr_store_batch_op(struct mr_store *store, const struct mr_store_name *names,
                                                unsigned count, mr_store_batch_fn *done, void *arg);
typedef struct mr_store_call *mr_store_compose_op(struct mr_store *store,
                                                  const struct mr_store_compose_request *request,
                                                  mr_store_stat_fn *done, void *arg);
typedef struct mr_store_call *mr_store_begin_op(struct mr_store *store, const struct mr_store_upload_request *request,
                                                mr_store_begin_fn *done, void *arg);
typedef struct mr_store_call *mr_store_send_op(struct mr_store *store, const struct mr_store_chunk *chunk,
                                               mr_store_upload_fn *done, void *arg);
typedef void mr_store_drop_op(struct mr_store *store, const char *session);
typedef bool mr_store_has_parts_op(const struct mr_store *store);
typedef struct mr_store_call *mr_store_parts_begin_op(struct mr_store *store, const char *name, size_t name_length,
                                                      const char *content_type, mr_store_parts_begin_fn *done,
                                                      void *arg);
typedef struct mr_store_call *mr_upload_part_op(struct mr_store *store, const struct mr_upload_part_request *request,
                                                mr_upload_part_fn *done, void *arg);
typedef struct mr_store_call *mr_store_complete_op(struct mr_store *store,
                                                   const struct mr_store_complete_request *request,
                                                   mr_store_complete_fn *done, void *arg);
typedef struct mr_store_call *mr_store_abort_op(struct mr_store *store, const char *name, size_t name_length,
                                                const char *id, mr_store_delete_fn *done, void *arg);
typedef struct mr_store_call *mr_store_parts_list_op(struct mr_store *store, const char *prefix, const char *from_name,
                                                     const char *from_id, mr_store_parts_list_fn *done, void *arg);
typedef struct mr_store_call *mr_store_bucket_op(struct mr_store *store, mr_store_bucket_fn *done, void *arg);
typedef struct mr_store_call *mr_store_permissions_op(struct mr_store *store, const char *const *names, unsigned count,
                                                      mr_store_permissions_fn *done, void *arg);

struct mr_store_made;
typedef uint64_t mr_store_made_op(struct mr_store *store, const struct mr_store_made *by);

struct mr_store_ops {
    mr_store_list_op *list;
    mr_store_get_op *get;
    mr_store_stat_op *stat;
    mr_store_insert_op *insert;
    mr_store_delete_op *remove;
    mr_store_batch_op *remove_batch;
    mr_store_compose_op *compose;
    mr_store_begin_op *upload_begin;
    mr_store_send_op *upload_send;
    mr_store_drop_op *upload_drop;
    /* NULL, all six, if the store has no upload parts */
    mr_store_has_parts_op *has_parts;
    mr_store_parts_begin_op *parts_begin;
    mr_upload_part_op *part_send;
    mr_store_complete_op *parts_complete;
    mr_store_abort_op *parts_abort;
    mr_store_parts_list_op *parts_list;
    mr_store_bucket_op *bucket;
    mr_store_permissions_op *permissions; /* NULL: it has no such request */
    mr_store_made_op *made;               /* NULL: versions do not follow from bytes */
    /* Both texts are "" before the call. NULL: nothing to describe. */
    void (*describe)(const struct mr_store *store, char *endpoint, size_t endpoint_size, char *credentials,
                     size_t credentials_size);
    void (*cancel)(struct mr_store_call *call); /* unlinks and frees it */
    void (*destroy)(struct mr_store *store);    /* no call is alive */
};

/* The caller's callback, by kind of request. */
union mr_store_done {
    mr_store_list_fn *list;
    mr_store_get_fn *get;
    mr_store_stat_fn *stat; /* and insert, compose */
    mr_store_delete_fn *remove;
    mr_store_batch_fn *batch;
    mr_store_begin_fn *begin;
    mr_store_upload_fn *upload;
    mr_store_bucket_fn *bucket;
    mr_store_permissions_fn *permissions;
    mr_store_parts_begin_fn *parts_begin;
    mr_upload_part_fn *part;
    mr_store_complete_fn *complete;
    mr_store_parts_list_fn *pending;
};

struct mr_store {
    const struct mr_store_ops *ops;
    enum mr_scheme scheme;
    char *bucket, root[MR_URI_PLACE_SIZE]; /* root: of the URIs in messages */
    struct mr_http *http;
    unsigned stall_timeout_ms;
    bool unsorted;  /* its listings are sorted by its client */
    bool no_ranges; /* it responds to a range with the whole object, which has been logged */
    struct mr_store_call *calls;
};

struct mr_store_call {
    struct mr_store *store;
    struct mr_store_call *previous, *next;
};

struct mr_store *mr_store_file_new(const struct mr_store_options *options);
struct mr_store *mr_store_gcs_new(const struct mr_store_options *options);
struct mr_store *mr_store_s3_new(const struct mr_store_options *options);

/* A write, as bytes or as the parts or session of an upload. */
struct mr_store_made {
    const void *body;
    uint64_t length;
    const struct mr_upload_part *parts; /* count of them; NULL: none */
    unsigned count;
    const char *session; /* NULL: none */
};
/* The generation of the object that it made, if the store derives that from the bytes; 0: it is not known. */
uint64_t mr_store_made(struct mr_store *store, const struct mr_store_made *by);

void mr_store_call_link(struct mr_store *store, struct mr_store_call *call);
void mr_store_call_unlink(struct mr_store_call *call);

/* Whether `generation` names one, rather than any. */
static inline bool mr_store_is_generation(uint64_t generation)
{
    return generation != 0 && generation != MR_STORE_ANY;
}

/* How long a store may work on the completion of an upload, while it sends white space: S3 takes minutes. */
#define MR_STORE_COMPLETE_MS 900000u

struct mr_text;
/* Adds the strings of names (and ETags) to *strings, each with its NUL, and copies names to `to`, which points there.
 * 0, or -1: no memory; mr_error is not set. */
int mr_store_names_copy(struct mr_store_name *to, const struct mr_store_name *names, unsigned count,
                        struct mr_text *strings);
/* A copy whose strings lie in *strings (cleared before), each with its NUL. 0, or -1: no memory; mr_error is not
 * set. */
int mr_store_list_copy(struct mr_store_list_request *to, const struct mr_store_list_request *from,
                       struct mr_text *strings);

/* "gs://bucket/name" or "file:///path", printable, cut to fit. Returns out. */
const char *mr_store_uri(const struct mr_store *store, char *out, size_t size, const char *name, size_t length);

#endif
