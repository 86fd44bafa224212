/*
 * batches.h - the batch arenas of this node's loaders (shm/ring/batch.h), as far as they are counted here.
 *
 * They are the trainers' own: a trainer sends a descriptor of each, and of it the head is mapped, read-only, to sum up
 * what its slots take. A mapping keeps the memory, so it is dropped as soon as the trainer says that the arena has
 * ended (`ended`, checked every second), or exits.
 */
#ifndef MR_SUPERVISOR_BATCHES_H
#define MR_SUPERVISOR_BATCHES_H

#include <stdint.h>

#include "shm/ring/batch.h"

struct mr_supervisor;
struct mr_client_peer;
struct mr_counted_batches;

struct mr_batches {
    struct mr_counted_batches *first;
};

/* Counts the arena behind fd, which stays the caller's, until its client has exited. 0 or -1 (USAGE, CORRUPT: what is
 * behind fd is not a batch arena, or may shrink; NO_MEMORY). */
int mr_batches_add(struct mr_supervisor *s, const struct mr_client_peer *client, int fd);
void mr_batches_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Unmaps arenas that have ended. */
void mr_batches_look(struct mr_supervisor *s);
/* Sums over the arenas of a client, or (NULL) all that are there. Returns how many. */
unsigned mr_batches_count(const struct mr_supervisor *s, const struct mr_client_peer *client,
                          struct mr_batch_counts *counts);
void mr_batches_close(struct mr_supervisor *s);

#endif
