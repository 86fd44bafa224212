/*
 * job.h - downloads, and composes where the data set's choice says so: jobs of one ticket or of several, until each
 * ticket is published, failed or given back. Several samples of one shard are a window: one GET from the first to the
 * last, gaps included.
 *
 *     alone:     GET ---------------------------------------------> READY, FAILED
 *     composed:  compose -> GET into one extent -> each slice READY as its last byte comes and its crc32c is right
 *                   |         |                      | wrong: that one alone
 *                   +---------+--- refused, failed: each of them alone, in its place of the same extent
 *     window:    GET of all into one extent -> as above
 *
 * The temporary object is deleted whatever happens (temporary.h). A source that has changed or was deleted makes the
 * compose fail; then each ticket gets its own answer.
 */
#ifndef MR_WORKER_FETCH_JOB_H
#define MR_WORKER_FETCH_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/producer.h"
#include "worker/fetch/datasets.h"

struct mr_jobs;

/* All must outlive it. NULL with mr_error (NO_MEMORY). */
struct mr_jobs *mr_jobs_new(struct mr_producer *producer, struct mr_datasets *datasets);

/* Starts all claims of a job; those that cannot be started are failed. false: no memory, all are given back, and the
 * next attempt is for later. */
bool mr_jobs_start(struct mr_jobs *jobs, const struct mr_job *job);
/* Tickets that are neither published nor failed nor given back. */
unsigned mr_jobs_in_flight(const struct mr_jobs *jobs);
/* Composes and deletes that must still be waited for. */
bool mr_jobs_composing(const struct mr_jobs *jobs);
/* Gives back what is in flight: all of it, or only what no consumer waits for any more (its lane was closed). */
void mr_jobs_give_back(struct mr_jobs *jobs, bool all);
/* Every 100 ms or so: what takes too long. */
void mr_jobs_step(struct mr_jobs *jobs, int64_t now_ns);
/* Objects that came out of composed ones, less one for each of these, which the engine has counted already. */
uint64_t mr_jobs_more_objects(const struct mr_jobs *jobs);

#endif
