/* trace_impl.h - `millrace trace`: what its loop (trace.c) and its output (trace_json.c) share. */
#ifndef MR_CLI_TRACE_IMPL_H
#define MR_CLI_TRACE_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/trace/trace.h"

#define MR_TRACE_COPIERS   64u
#define MR_TRACE_PROCESSES 4096u /* that are named; later ones only show their number */
#define MR_TRACE_PARENTS   4u    /* of a DataLoader worker: its rank may have started it through a fork server */

/* A process that had spans. */
struct mr_traced_process {
    uint32_t pid;
    int order; /* of its tracks on the screen: loops first */
    bool has_tickets;
    int64_t stepped_ns;                 /* the end of its loop's last step on the thread's track */
    uint32_t rank;                      /* of a loop */
    uint32_t parents[MR_TRACE_PARENTS]; /* of a DataLoader worker, while it lived; 0: no more are known */
    char name[80];
};

struct mr_traced_thread {
    uint32_t pid, tid;
};

struct mr_trace_output {
    FILE *file;
    int64_t begin_ns; /* of the trace */
    uint64_t written; /* spans */
    uint64_t async;   /* the last id of a span that may overlap others */
    struct mr_traced_process *processes;
    unsigned process_count;
    struct mr_traced_thread copiers[MR_TRACE_COPIERS]; /* threads that copy to a device */
    unsigned copier_count;
};

/* Chrome's trace event format, as an array whose end may be missing: a trace that was cut off can be opened too. Errors
 * of the file stay in its error indicator. */
void mr_trace_output_begin(struct mr_trace_output *output);
void mr_trace_output_span(struct mr_trace_output *output, const struct mr_trace_record *record);
/* A loop that is waiting for a batch when the trace ends: no span shows that. record: of kind WAIT; end_ns: now. */
void mr_trace_output_waiting(struct mr_trace_output *output, const struct mr_trace_record *record);
/* Names of processes, and the end of the array. */
void mr_trace_output_end(struct mr_trace_output *output);

#endif
