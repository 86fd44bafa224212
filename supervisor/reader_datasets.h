/*
 * reader_datasets.h - the end of reader data sets: those that a reader of checkpoints opens for its objects, reads by
 * ranges, and closes.
 *
 *     open --(CLOSE_DATASET, or its client is gone)--> closing --(no lane of it is registered)--> dropping
 *     dropping --(every fetch worker has answered DATASET_DROPPED or is gone)--> freed, the number free again
 *
 * Why a number can be given to another data set, and nobody takes one for the other:
 * - Such a data set belongs to one client, and no other one can name it (clients.c). A client remembers the serial of
 *   each data set that it has opened, so that a number whose data set has another serial now is an error to it.
 * - Tickets name the number. A lane leaves the registry when every word is EMPTY and every fetch worker has unmapped it
 *   with no claim left, so that after the last lane nobody reads a ticket of it.
 * - A fetch worker's messages come in order: after DATASET_DROPPED it sends nothing more about the old one, and a
 *   DATASET of the same number after DROP_DATASET is the new one's. One that dies instead gets neither.
 */
#ifndef MR_SUPERVISOR_READER_DATASETS_H
#define MR_SUPERVISOR_READER_DATASETS_H

#include <stdbool.h>

struct mr_supervisor;
struct mr_dataset;
struct mr_client_peer;

/* Its client is done with it; lanes that it still has go on until it closes them. 0, or -1 (USAGE): it is not one
 * that is read by ranges. */
int mr_reader_datasets_close(struct mr_dataset *dataset);
/* Closes those of the client. Its process may live on, with lanes. */
void mr_reader_datasets_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Those that are closing, as far as they can be brought now. True when one was freed. */
bool mr_reader_datasets_settle(struct mr_supervisor *s);

#endif
