/*
 * sweep.h - lists the temporary objects of a bucket and deletes those that a verdict condemns.
 *
 * In the worker's loop; nothing waits. A page is dealt with before the next one is asked for.
 */
#ifndef MR_WORKER_CLEANUP_SWEEP_H
#define MR_WORKER_CLEANUP_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/store/transfer.h"

struct mr_sweep;

struct mr_sweep_result {
    enum mr_code code; /* of the listing; MR_OK: it came to its end */
    const char *text;
    uint64_t seen, condemned, removed, failed; /* objects; condemned ones end as removed or failed */
    uint64_t bytes, removed_bytes;             /* of the condemned; of the removed */
    const char *failure;                       /* of the last that failed; "" */
};

struct mr_sweep_options {
    struct mr_transfer_engine *engine;
    struct mr_store *store; /* both must outlive it */
    const char *prefix;     /* a literal */
    bool dry_run;           /* condemn, but delete nothing */
    /* Is the object to be deleted? age_s: by the store's clock, whatever ours says; -1: it is not known. */
    bool (*verdict)(void *arg, const struct mr_store_item *item, int64_t age_s);
    /* How far it has come, after each page. May be NULL. */
    void (*progress)(void *arg, const struct mr_sweep_result *so_far);
    /* Once, unless it is destroyed before; the sweep does not exist any more when it returns. */
    void (*done)(void *arg, const struct mr_sweep_result *result);
    void *arg;
};

/* NULL with mr_error. */
struct mr_sweep *mr_sweep_new(const struct mr_sweep_options *options);
/* Ends it without its callback. NULL is allowed. */
void mr_sweep_destroy(struct mr_sweep *sweep);

#endif
