/*
 * dataset_end.h - the end of data sets: of those that a reader of checkpoints opens for its objects and reads by
 * ranges, of listings that clients have counted (OPEN_DATASET with `nth`), and of any other that no client has open once
 * its number is needed, or the memory of explicit lists.
 *
 *     open --(its reader's CLOSE_DATASET, or none has it open)--> closing --(no lane of it is registered)--> dropping
 *     dropping --(every fetch worker has answered DATASET_DROPPED or exited)--> freed, the number free again
 *
 * Why a number can be given to another data set without any process mistaking one for the other:
 * - Clients name a data set by its id, which no other one ever has. A reader's belongs to one client, and no other one
 *   can name it (requests.c). For the others, each client says when it is done.
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

/* No client can open it any more; lanes that it still has continue until they are closed. */
void mr_dataset_end_begin(struct mr_dataset *dataset);
/* Where all numbers are taken: sees to it that one comes free, by ending a data set that no client has open if it must,
 * and sets mr_error (BUSY). False: none can, or a number is free. */
bool mr_dataset_end_make_room(struct mr_supervisor *s);
/* Ends the client's ranged data sets. Its process may live on, with lanes. */
void mr_dataset_end_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Begins to end counted listings that no client has open; brings all that are ending as far as possible now. True when
 * anything has changed. */
bool mr_dataset_end_settle(struct mr_supervisor *s);

#endif
