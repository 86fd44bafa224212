/*
 * limit.h - what the readers of this node wait for, second by second: counted on the board by cause (MR_ROLE_NODE),
 * where the trainers read it too, and reported as one verdict for the whole node.
 */
#ifndef MR_SUPERVISOR_LIMIT_H
#define MR_SUPERVISOR_LIMIT_H

#include <stdint.h>

#include "shm/meter/verdict.h"

struct mr_supervisor;

/* What the counters of all fetch workers were at the last look. */
struct mr_limit_sums {
    uint64_t answers, first_ns, body_ns, bytes, cpu_ns, delay_ns, saved_bytes;
};

struct mr_limit {
    int64_t looked_ns; /* 0: not yet */
    struct mr_limit_sums last;
    double first_ns, body_ns, bytes_s; /* of an answer, of a second; recent ones count more */
    double cpu;                        /* share of its time that a fetch worker computes, or waits for a core */
    bool saving;                       /* bytes of a checkpoint were stored in the last second */
};

/* Of the node: what is said in `stat`, `top` and the log. */
struct mr_limit_verdict {
    const char *stage; /* "idle", "listing", "step", or a mr_stage_name */
    const char *cause; /* a mr_cause_name */
    char text[MR_VERDICT_TEXT + 128];
};

/* Acts once a second, however often it is called: counts, and has the meters and the machine examined. */
void mr_limit_look(struct mr_supervisor *s);
void mr_limit_find(const struct mr_supervisor *s, struct mr_limit_verdict *verdict);

#endif
