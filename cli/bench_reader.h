/* bench_reader.h - a reader for `millrace bench`: takes a data set's samples as a training process would, and
 * measures. */
#ifndef MR_CLI_BENCH_READER_H
#define MR_CLI_BENCH_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/control/client.h"
#include "shm/index/index.h"

/* What one step took. A step copies each of its samples once, as putting them into a batch does. */
struct mr_bench_step {
    uint64_t samples, bytes;
    uint64_t wait_ns; /* waiting for samples that were not there yet */
    uint32_t code;    /* enum mr_code: 0, or why there are no more steps */
    char text[220];
};

struct mr_bench_plan {
    uint64_t dataset;
    uint32_t batch;
    uint32_t worker, workers; /* makes the steps worker, worker + workers, ... */
    uint64_t steps;           /* of all workers */
};

struct mr_bench_reader;

/* Maps the index and opens a lane. client must outlive it. NULL with mr_error. */
struct mr_bench_reader *mr_bench_reader_new(struct mr_client *client, const struct mr_bench_plan *plan);
void mr_bench_reader_destroy(struct mr_bench_reader *reader);
/* The next of its steps, epoch after epoch. Blocks. Errors are in the step. */
void mr_bench_reader_step(struct mr_bench_reader *reader, struct mr_bench_step *step);
/* Keeps copies of the next step's samples (up to 256 MiB), for mr_bench_reader_cached. 0 or -1. */
int mr_bench_reader_keep(struct mr_bench_reader *reader);
/* A step over what was kept: no data path at all. */
void mr_bench_reader_cached(struct mr_bench_reader *reader, struct mr_bench_step *step);

/* The index of a data set that is READY. 0 or -1. */
int mr_bench_index(struct mr_client *client, uint64_t dataset, struct mr_index *index);

#endif
