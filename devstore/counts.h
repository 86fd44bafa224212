/* counts.h - what was asked of the store since it started, or since the counts were reset: GET /_devstore/stats. */
#ifndef MR_DEVSTORE_COUNTS_H
#define MR_DEVSTORE_COUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "devstore/request.h"

/* Written by every thread, relaxed: numbers for people, which order nothing. */
struct ds_counts {
    atomic_uint_fast64_t requests[MR_OP_COUNT]; /* a batch is one */
    atomic_uint_fast64_t batched[MR_OP_COUNT];  /* the calls inside batches */
    atomic_uint_fast64_t billed[3];             /* what succeeded, by price: class A, class B, free */
    atomic_uint_fast64_t errors, bytes_in, bytes_out, compose_sources, connections;
};

/* Counts one answered request, or call inside a batch. counts NULL: does nothing. */
void ds_counts_request(struct ds_counts *counts, enum ds_op op, unsigned status, bool batched);
void ds_counts_add(atomic_uint_fast64_t *count, uint64_t more);
/* Resets all but the open connections. Requests under way may count before or after it. */
void ds_counts_reset(struct ds_counts *counts);
/* The members of a JSON object, without the braces. */
void ds_counts_write(struct ds_counts *counts, struct ds_text *out);

#endif
