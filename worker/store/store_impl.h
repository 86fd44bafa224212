/* store_impl.h - what a store client implements. Only this folder includes it. */
#ifndef MR_WORKER_STORE_STORE_IMPL_H
#define MR_WORKER_STORE_STORE_IMPL_H

#include <stdbool.h>

#include "worker/store/store.h"
#include "worker/store/upload_parts.h"

/*
 * Each client embeds mr_store as its first member and fills ops; each of its calls embeds mr_store_call, linked by
 * mr_store_call_link while it is alive. Requests reach a client after the checks of store.c (names, sizes).
 */
struct mr_store_ops {
    struct mr_store_call *(*list)(struct mr_store *store, const struct mr_store_list_request *request,
                                  mr_store_list_fn *done, void *arg);
    struct mr_store_call *(*get)(struct mr_store *store, const struct mr_store_get_request *request,
                                 mr_store_get_fn *done, void *arg);
    struct mr_store_call *(*stat)(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                  mr_store_stat_fn *done, void *arg);
    struct mr_store_call *(*insert)(struct mr_store *store, const struct mr_store_insert_request *request,
                                    mr_store_stat_fn *done, void *arg);
    struct mr_store_call *(*remove)(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                    mr_store_delete_fn *done, void *arg);
    struct mr_store_call *(*remove_batch)(struct mr_store *store, const struct mr_store_name *names, unsigned count,
                                          mr_store_batch_fn *done, void *arg);
    struct mr_store_call *(*compose)(struct mr_store *store, const struct mr_store_compose_request *request,
                                     mr_store_stat_fn *done, void *arg);
    struct mr_store_call *(*upload_begin)(struct mr_store *store, const struct mr_store_upload_request *request,
                                          mr_store_begin_fn *done, void *arg);
    struct mr_store_call *(*upload_send)(struct mr_store *store, const struct mr_store_chunk *chunk,
                                         mr_store_upload_fn *done, void *arg);
    void (*upload_drop)(struct mr_store *store, const char *session);
    /* NULL, all six, where the store has no uploads in parts */
    bool (*has_parts)(const struct mr_store *store);
    struct mr_store_call *(*parts_begin)(struct mr_store *store, const char *name, size_t name_length,
                                         const char *content_type, mr_store_parts_begin_fn *done, void *arg);
    struct mr_store_call *(*part_send)(struct mr_store *store, const struct mr_upload_part_request *request,
                                       mr_upload_part_fn *done, void *arg);
    struct mr_store_call *(*parts_complete)(struct mr_store *store, const struct mr_store_complete_request *request,
                                            mr_store_complete_fn *done, void *arg);
    struct mr_store_call *(*parts_abort)(struct mr_store *store, const char *name, size_t name_length, const char *id,
                                         mr_store_delete_fn *done, void *arg);
    struct mr_store_call *(*parts_list)(struct mr_store *store, const char *prefix, const char *from_name,
                                        const char *from_id, mr_store_parts_list_fn *done, void *arg);
    struct mr_store_call *(*bucket)(struct mr_store *store, mr_store_bucket_fn *done, void *arg);
    struct mr_store_call *(*permissions)(struct mr_store *store, const char *const *names, unsigned count,
                                         mr_store_permissions_fn *done, void *arg);
    /* "" before the call; NULL: there is nothing to say. */
    void (*describe)(const struct mr_store *store, char *endpoint, size_t endpoint_size, char *credentials,
                     size_t credentials_size);
    void (*cancel)(struct mr_store_call *call); /* unlinks and frees it */
    void (*destroy)(struct mr_store *store);    /* no call is alive */
};

struct mr_store {
    const struct mr_store_ops *ops;
    enum mr_scheme scheme;
    char *bucket;
    struct mr_http *http;
    unsigned stall_timeout_ms;
    struct mr_store_call *calls;
};

struct mr_store_call {
    struct mr_store *store;
    struct mr_store_call *previous, *next;
};

struct mr_store *mr_store_file_new(const struct mr_store_options *options);
struct mr_store *mr_store_gcs_new(const struct mr_store_options *options);

void mr_store_call_link(struct mr_store *store, struct mr_store_call *call);
void mr_store_call_unlink(struct mr_store_call *call);

/* 1 where `generation` names one, and not whatever is there. */
static inline bool mr_store_is_generation(uint64_t generation)
{
    return generation != 0 && generation != MR_STORE_ANY;
}

struct mr_text;
/* A copy whose strings lie in *strings (cleared before), each with its NUL. 0, or -1 for no memory. */
int mr_store_list_copy(struct mr_store_list_request *to, const struct mr_store_list_request *from,
                       struct mr_text *strings);

/* "gs://bucket/name" or "file:///path", printable, cut to fit. Returns out. */
const char *mr_store_uri(const struct mr_store *store, char *out, size_t size, const char *name, size_t length);

#endif
