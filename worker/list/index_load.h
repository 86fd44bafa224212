/*
 * index_load.h - saved indexes for the list role: from a file, an object of a bucket or the cache, and to them.
 *
 * All of it blocks (on the file system, or on the worker's HTTP loop), and takes time by the size of an index.
 */
#ifndef MR_WORKER_LIST_INDEX_LOAD_H
#define MR_WORKER_LIST_INDEX_LOAD_H

#include "worker/list/index_cache.h"
#include "worker/net.h"

/* Who asks, and for what. Borrowed. */
struct mr_index_want {
    struct mr_net *net;
    const struct mr_config *config;
    struct mr_index_identity identity;
    const char *place;  /* path or URI of the data set's saved index; "": none */
    uint64_t max_age_s; /* older ones do not count; 0: any age of `place`, and nothing from the cache */
    const char *digest; /* only this listing will do; "": any */
};

/* What was found. */
struct mr_index_found {
    uint64_t requests; /* that the listing took */
    char from[256];    /* for log lines */
    bool cached;       /* it lies in the cache */
    uint64_t stale;    /* not found: the object's generation, or the file's identity, that is too old; 0 */
};

/* "" for the store's own, else what the configuration or the environment says: part of what an index is of. Valid until
 * the next call. */
const char *mr_index_endpoint(const struct mr_config *config, enum mr_scheme scheme, const char *bucket);

/* An empty memfd for an image or a file. The caller closes it; -1 with mr_error. */
int mr_index_memfd(void);

/*
 * The image into `out`, an empty memfd. 0; 1: there is none, or too old, and listing is the thing to do; -1: there is
 * one and it cannot be used (CORRUPT, USAGE: of other data), or the store failed. With a digest: 1 when that listing is
 * nowhere.
 */
int mr_index_load(const struct mr_index_want *want, int out, struct mr_index_found *found);
/*
 * Saves a listing at want->place. 0; 1: another node was first, its index is in `out` now (an empty memfd), described
 * in *found; -1. stale: what may be replaced, as mr_index_load found it, or anything with `replace`.
 */
int mr_index_publish(const struct mr_index_want *want, const struct mr_index *index, uint64_t requests, uint64_t stale,
                     bool replace, int out, struct mr_index_found *found);
/* Why a listing of this digest cannot be had, as this thread's mr_error (CHANGED): with what differs between the
 * last cached listing of the same place and what is there now. */
void mr_index_explain_gone(const struct mr_index_want *want, const struct mr_index *now);

#endif
