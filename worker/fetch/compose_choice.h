/*
 * compose_choice.h - decides whether the objects of one data set are composed: fetch.compose, and for "auto" what the
 * store knows about the bucket, then a trial.
 *
 *     ASKING --(facts)--> TRIAL --(numbers)--> ON
 *       |                   |                  |
 *       +-----> OFF <-------+------------------+   refused, throttled, or not worth it
 *
 * "always" begins ON, "never" OFF. ASKING and OFF download each object by itself. TRIAL alternates between the two
 * ways, and measures CPU and wall time of windows in which only one of them was under way. Each worker decides for
 * itself; the one of slot 0 reports it in the log and to the supervisor (`millrace stat`).
 *
 * This file holds the state and sends the questions; compose_trial.h judges facts and numbers; job.h composes.
 */
#ifndef MR_WORKER_FETCH_COMPOSE_CHOICE_H
#define MR_WORKER_FETCH_COMPOSE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/index/index.h"
#include "worker/cleanup/temporary.h"
#include "worker/link.h"
#include "worker/net.h"

struct mr_compose_choice;

struct mr_compose_choice_options {
    struct mr_net *net;
    struct mr_link *link;
    struct mr_store *store;
    const struct mr_index_info *info; /* of the data set; its strings must outlive the choice */
    uint64_t dataset;
    struct mr_temporary_bucket *bucket;
};

/* NULL with mr_error (NO_MEMORY). */
struct mr_compose_choice *mr_compose_choice_new(const struct mr_compose_choice_options *options);
/* No job is left that it was told of. May be NULL. */
void mr_compose_choice_destroy(struct mr_compose_choice *choice);

struct mr_temporary_bucket *mr_compose_choice_bucket(const struct mr_compose_choice *choice);
/* Shall the next job be of several tickets? */
bool mr_compose_choice_composes(const struct mr_compose_choice *choice);

/* Each job; composes: the answer of mr_compose_choice_composes when it was claimed. */
void mr_compose_choice_job_started(struct mr_compose_choice *choice, bool composes);
void mr_compose_choice_job_ended(struct mr_compose_choice *choice, bool composes, unsigned objects);
/* How a compose has ended. */
void mr_compose_choice_answered(struct mr_compose_choice *choice, const struct mr_store_result *result);
/* Every 100 ms or so. */
void mr_compose_choice_step(struct mr_compose_choice *choice);

#endif
