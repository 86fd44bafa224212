/*
 * index_job.h - what the list role does with a data set's whole index: puts its ranges together, or takes a saved one.
 * Both answer the supervisor by themselves (shm/control/msg.h), and keep the index in the cache afterwards.
 */
#ifndef MR_WORKER_LIST_INDEX_JOB_H
#define MR_WORKER_LIST_INDEX_JOB_H

#include "shm/control/msg.h"
#include "shm/index/index.h"
#include "worker/link.h"
#include "worker/net.h"

#define MR_INDEX_RANGES_MAX 4096u

/* The indexes of the ranges that have come so far, in order. Zeroed at the start. */
struct mr_index_job {
    struct mr_index ranges[MR_INDEX_RANGES_MAX];
    unsigned range_count;
    bool is_skipping; /* the rest of a CONCAT that has failed is still to come */
};

/* CONCAT: 0, also when the data set has failed (FAILED was sent); -1: the message is bad or the supervisor has
 * ended. */
int mr_index_job_concat(struct mr_index_job *job, struct mr_link *link, struct mr_net *net, struct mr_msg_in *msg);
/* INDEX_LOAD: the same. */
int mr_index_job_load(struct mr_link *link, struct mr_net *net, struct mr_msg_in *msg);

#endif
