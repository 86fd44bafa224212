/* counts.h - what was asked of the store since it started, or since somebody set it back: GET /_devstore/stats. */
#ifndef MR_DEVSTORE_COUNTS_H
#define MR_DEVSTORE_COUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "devstore/request.h"

/* Written by every thread, relaxed: numbers for people, that order nothing. */
struct mr_counts {
    atomic_uint_fast64_t requests[MR_OP_COUNT]; /* a batch is one */
    atomic_uint_fast64_t batched[MR_OP_COUNT];  /* the calls inside of batches */
    atomic_uint_fast64_t billed[3];             /* what succeeded, by price: class A, class B, free */
    atomic_uint_fast64_t errors, bytes_in, bytes_out, compose_sources, connections;
};

/* One answered request, or call inside of a batch. */
void mr_counts_request(struct mr_counts *counts, enum mr_op op, unsigned status, bool batched);
void mr_counts_add(atomic_uint_fast64_t *count, uint64_t more);
/* All but the open connections to 0. Requests under way may count before or after it. */
void mr_counts_reset(struct mr_counts *counts);
/* The members of a JSON object, without the braces. */
void mr_counts_write(struct mr_counts *counts, struct mr_text *out);

#endif
