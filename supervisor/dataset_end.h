/*
 * dataset_end.h - the end of data sets that do not stay for the whole run: those that a reader of checkpoints opens for
 * its objects and reads by ranges, and listings that clients have counted (OPEN_DATASET with `nth`).
 *
 *     open --(its reader's CLOSE_DATASET, or none has it open)--> closing --(no lane of it is registered)--> dropping
 *     dropping --(every fetch worker has answered DATASET_DROPPED or exited)--> freed, the number free again
 *
 * Why a number can be given to another data set without any process mistaking one for the other:
 * - A reader's data set belongs to one client, and no other one can name it (clients.c). For the others, each client
 *   says when it is done. A client remembers the serial of each data set that it has opened, so that a number whose
 *   data set has another serial now is an error to it.
 * - Tickets name the number. A lane leaves the registry when every word is EMPTY and every fetch worker has unmapped it
 *   with no claim left, so that after the last lane no worker reads a ticket of it.
 * - A fetch worker's messages come in order: after DATASET_DROPPED it sends nothing more about the old one, and a
 *   DATASET of the same number after DROP_DATASET is the new one's. One that dies instead gets neither.
 */
#ifndef MR_SUPERVISOR_DATASET_END_H
#define MR_SUPERVISOR_DATASET_END_H

#include <stdbool.h>

struct mr_supervisor;
struct mr_dataset;
struct mr_client_peer;

/* Whether a client may close it; false with mr_error (USAGE): it is shared by all, and stays. */
bool mr_dataset_end_allowed(const struct mr_dataset *dataset);
/* No client can open it any more; lanes that it still has continue until they are closed. */
void mr_dataset_end_begin(struct mr_dataset *dataset);
/* Ends the client's ranged data sets. Its process may live on, with lanes. */
void mr_dataset_end_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Begins to end counted listings that no client has open; brings all that are ending as far as possible now. True when
 * anything has changed. */
bool mr_dataset_end_settle(struct mr_supervisor *s);

#endif
