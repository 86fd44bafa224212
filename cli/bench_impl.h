/* bench_impl.h - private to bench.c and bench_print.c: a run of `millrace bench`, and how it is printed. */
#ifndef MR_CLI_BENCH_IMPL_H
#define MR_CLI_BENCH_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "cli/bench_reader.h"
#include "shm/meter/verdict.h"

#define MR_BENCH_PROCESSES_MAX (256 + MR_PRODUCERS_MAX + 2)

/* Processes whose CPU time is shown together. */
enum mr_bench_group { MR_BENCH_READER, MR_BENCH_FETCH, MR_BENCH_SUPERVISOR, MR_BENCH_GROUPS };

struct mr_bench_process {
    enum mr_bench_group group;
    clockid_t clock;
    int64_t seen_ns;
};

/* The sums over the steps of a block, or over all of them. */
struct mr_bench_block {
    uint64_t first, steps, samples, bytes, wait_ns;
    double ms_sum, ms_squares;
    int64_t cpu_ns[MR_BENCH_GROUPS];
};

struct mr_bench {
    struct mr_client *client;
    struct mr_opened dataset;
    struct mr_index_info info;
    const char *name;
    uint32_t batch, workers; /* workers 0: this process reads */
    uint64_t steps;
    struct mr_bench_reader *reader;
    int *sockets; /* of the workers */
    struct mr_bench_process processes[MR_BENCH_PROCESSES_MAX];
    unsigned process_count;
    json_t *json;                      /* NULL: text is printed */
    char limit[MR_VERDICT_TEXT + 128]; /* with what limits the readers, as supervisor/limit.h has it */
    double first_ms;
};

/* The share of the readers' time that they spent waiting, 1 at most. */
double mr_bench_waiting(const struct mr_bench *b, const struct mr_bench_block *block);
/* The document that --json prints at the end, still without its blocks. */
json_t *mr_bench_head_json(const struct mr_bench *b);
void mr_bench_print_head(const struct mr_bench *b);
void mr_bench_print_block(struct mr_bench *b, const struct mr_bench_block *block, bool cached);
void mr_bench_print_end(struct mr_bench *b, const struct mr_bench_block *data, const struct mr_bench_block *cached);

#endif
