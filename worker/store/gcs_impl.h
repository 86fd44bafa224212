/* gcs_impl.h - what the requests of the GCS client have in common. Only worker/store/gcs*.c include it. */
#ifndef MR_STORE_GCS_IMPL_H
#define MR_STORE_GCS_IMPL_H

#include "worker/store/auth.h"
#include "worker/store/gcs_json.h"
#include "worker/store/http.h"
#include "worker/store/store_ops.h"
#include "worker/store/text.h"

#define MR_GCS_STAT_FIELDS "fields=name,size,generation,crc32c,storageClass,etag"

enum gcs_kind { GCS_LIST, GCS_GET, GCS_STAT };

struct gcs_store {
    struct mr_store base;
    struct mr_auth *auth;
    char *endpoint;
    struct mr_text objects;      /* "http://host/storage/v1/b/bucket/o" */
    struct mr_text user_project; /* "&userProject=x", or nothing */
    struct mr_text url;          /* of the request that is being built */
    struct gcs_call *pool;
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
    int refused;    /* a 401 was answered before */
    void *arg;
    union {
        mr_store_list_fn *list;
        mr_store_get_fn *get;
        mr_store_stat_fn *stat;
    } done;
    struct mr_text name; /* get, stat: the object; list: its strings, each with its NUL */
    struct mr_store_list_request list;
    struct mr_store_get_request get;
    uint64_t generation;
    struct mr_store_got got;
    int head_checked;
    int looking_up;              /* a get whose generation is gone: the second request, without it */
    struct mr_store_result lost; /* how the first one ended */
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

/* ".../o" */
void mr_gcs_objects_url(struct gcs_store *store);
/* ".../o/name?<first>[&generation=n]" */
void mr_gcs_object_url(struct gcs_call *call, const char *first, uint64_t generation);
/* "&key=<value, encoded>"; a value of NULL adds nothing. */
void mr_gcs_parameter(struct mr_text *url, const char *key, const char *value);
/* Starts the request, at once or when there is a token; a 401 repeats it once with a new one. 0, or -1 with mr_error. */
int mr_gcs_send(struct gcs_call *call, struct mr_http_request *request);

/* ---- answers ---- */

/* Fills result and its text (size bytes) from an answer, or from the lack of one. */
void mr_gcs_explain(const struct gcs_call *call, const struct mr_http_result *http, struct mr_store_result *result,
                    char *text, size_t size);
/* A 2xx answer whose content was refused: mr_error says why. */
void mr_gcs_refuse(const struct gcs_call *call, struct mr_store_result *result, char *text, size_t size);

/* ---- gcs_read.c ---- */

struct mr_store_call *mr_gcs_list(struct mr_store *base, const struct mr_store_list_request *request,
                                  mr_store_list_fn *done, void *arg);
struct mr_store_call *mr_gcs_get(struct mr_store *base, const struct mr_store_get_request *request,
                                 mr_store_get_fn *done, void *arg);
struct mr_store_call *mr_gcs_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                  mr_store_stat_fn *done, void *arg);

#endif
