/*
 * reader_datasets.h - the end of data sets that are read by ranges: a reader of checkpoints opens one for its objects, and closes it.
 *
 *     open --(CLOSE_DATASET, or its client is gone)--> closing --(no lane of it is registered)--> dropping
 *     dropping --(every fetch worker has answered DATASET_DROPPED or is gone)--> freed, the number free again
 *
 * Why a number can be given to another data set, and nobody takes one for the other:
 * - Such a data set belongs to one client, and no other one can name it (clients.c). That client's `stale` bit is set when it
 *   closes it, so that the number is an error to it until it opens a data set that gets the number.
 * - Tickets name the number. A lane leaves the registry when every word is EMPTY and every fetch worker has unmapped it
 *   with no claim left, so that after the last lane nobody reads a ticket of it.
 * - A fetch worker's messages come in order: behind DATASET_DROPPED it says nothing more about the old one, and a DATASET
 *   of the same number behind DROP_DATASET is the new one's. One that dies instead is told of neither.
 */
#ifndef MR_SUPERVISOR_READER_DATASETS_H
#define MR_SUPERVISOR_READER_DATASETS_H

#include <stdint.h>

struct mr_supervisor;
struct mr_dataset;
struct mr_client_peer;

/* Its client is done with it; lanes that it still has go on until it closes them. May free it. 0, or -1 (USAGE): it is
 * not one that is read by ranges. */
int mr_reader_datasets_close(struct mr_dataset *dataset);
/* Closes those of the client. Its process may live on, with lanes. */
void mr_reader_datasets_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* A lane of the data set has left the registry. */
void mr_reader_datasets_lane_gone(struct mr_supervisor *s, uint32_t dataset);
/* DATASET_DROPPED came from a fetch slot. */
void mr_reader_datasets_dropped(struct mr_supervisor *s, uint64_t dataset, unsigned slot);
/* The process of a fetch slot is gone. */
void mr_reader_datasets_producer_died(struct mr_supervisor *s, unsigned slot);

#endif
