/*
 * verdict.h - why a training loop waits, in one word, one line and a thing to try: the rules, and nothing else.
 *
 * They read three kinds of numbers over one stretch of time: what a loader has measured (meter.h), what its node has
 * (mr_node: the supervisor's, on the board), and what the memory of batches has counted (batch.h). A stage is named
 * only if the loop stands still for it; one that is slow but ready in time is not. What the stage lacks is its cause.
 */
#ifndef MR_SHM_METER_VERDICT_H
#define MR_SHM_METER_VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include "shm/meter/meter.h"
#include "shm/ring/batch.h"

#define MR_VERDICT_TEXT   768 /* of the line */
#define MR_VERDICT_REMEDY 256

enum mr_stage {
    MR_STAGE_NONE, /* nothing waits */
    MR_STAGE_STORE,
    MR_STAGE_TRANSFORM,
    MR_STAGE_COLLATE,
    MR_STAGE_EXTENT,
    MR_STAGE_TRANSPORT,
    MR_STAGE_DEVICE,
    MR_STAGE_CHECKPOINT, /* the loop stands still in calls of checkpoints */
    MR_STAGE_COUNT
};

enum mr_cause {
    MR_CAUSE_NONE,
    /* why a sample is not READY: counted on the board, second by second */
    MR_CAUSE_LISTING,     /* no reader can begin before it is done */
    MR_CAUSE_MEMORY,      /* the arena is full of what readers have not taken, or is too small for their windows */
    MR_CAUSE_THROTTLED,   /* 429, SlowDown */
    MR_CAUSE_CONNECTIONS, /* all are in use, and the configuration sets their number */
    MR_CAUSE_LATENCY,     /* requests wait for their first byte */
    MR_CAUSE_BANDWIDTH,   /* requests wait for the rest */
    MR_CAUSE_WINDOW,      /* everything that may be asked for is on its way */
    MR_CAUSE_FETCH_CPU,   /* fetch workers have no time left */
    MR_CAUSE_SAVING,      /* a checkpoint is being uploaded meanwhile */
    MR_NODE_CAUSES,       /* how many of them there are */
    /* why workers are slow */
    MR_CAUSE_WORKERS = MR_NODE_CAUSES, /* more of them would do */
    MR_CAUSE_CORES,                    /* they compute on all cores */
    MR_CAUSE_CROWD,                    /* there are more of them than cores, and they wait for each other */
    MR_CAUSE_NEIGHBOURS,               /* other processes have the cores */
    MR_CAUSE_QUOTA,                    /* the cgroup's quota stops them */
    MR_CAUSE_SWAP,                     /* they wait for their own memory */
    MR_CAUSE_GIL,                      /* their threads wait for one another: the GIL */
    MR_CAUSE_BLOCKED,                  /* they wait for something outside, and compute little */
    /* the others */
    MR_CAUSE_KEPT,   /* the loop keeps batches */
    MR_CAUSE_ROOM,   /* batches do not fit their memory */
    MR_CAUSE_PICKLE, /* packing and unpacking */
    MR_CAUSE_COPY,   /* to the device */
    MR_CAUSE_SAVE,   /* a checkpoint in the loop */
    MR_CAUSE_COUNT
};

/* What the supervisor has counted since its start, and what is so now. On the board: the values of MR_ROLE_NODE. */
struct mr_node {
    uint64_t waits[MR_NODE_CAUSES]; /* ns that readers have waited, by cause; [MR_CAUSE_SAVING] beside the others */
    uint64_t watched;               /* ns that the machine was watched */
    uint64_t others;                /* ns of CPU that other processes had meanwhile */
    uint64_t quota;                 /* ns that the cgroup was stopped by its quota */
    uint64_t swapped;               /* pages that were read from swap */
    /* now */
    uint32_t cores; /* that the node has */
    uint64_t request_rate, connections, window, first_us, bytes_s;
};

struct mr_verdict {
    enum mr_stage stage;
    enum mr_cause cause;
    uint32_t try_workers;           /* num_workers to try; 0: it is not about them */
    double waits[MR_STAGE_COUNT];   /* ns a step, by stage; of MR_STAGE_CHECKPOINT: of the step itself */
    char remedy[MR_VERDICT_REMEDY]; /* what to try; "" */
    char text[MR_VERDICT_TEXT];     /* the line */
};

/* Over one stretch: sums, node and batches are differences (mr_meter_since, mr_node_since, mr_batch_since); node and
 * batches may be NULL. */
void mr_verdict_find(const struct mr_meter_sums *sums, const struct mr_node *node,
                     const struct mr_batch_counts *batches, struct mr_verdict *verdict);
/* Share of its time that the loop waited. */
double mr_verdict_wait_share(const struct mr_meter_sums *sums);
/* What comes after "limited by" for a cause of the node's: a sentence of what is so and what to try. */
void mr_verdict_node_text(enum mr_cause cause, const struct mr_node *node, char *text, size_t size);
/* "store", "latency": lower case, constant. */
const char *mr_stage_name(enum mr_stage stage);
const char *mr_cause_name(enum mr_cause cause);

/* The board's block -> *node, and what came since `before`. */
void mr_node_read(const struct mr_counters *block, struct mr_node *node);
void mr_node_since(struct mr_node *node, const struct mr_node *before);

#endif
