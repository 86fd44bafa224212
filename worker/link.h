/*
 * link.h - a worker's side of its socket pair with the supervisor, and the one descriptor that its loop waits on.
 *
 * A list or fetch worker never outlives the supervisor: PDEATHSIG is set first, and the end of the socket counts as its
 * death too (the supervisor may have died before the call). A write worker does, to finish what was promised: it has no
 * PDEATHSIG, and is told by the end of the socket or of the life pipe.
 */
#ifndef MR_WORKER_LINK_H
#define MR_WORKER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/control/config.h"
#include "shm/control/msg.h"
#include "shm/ring/board.h"
#include "shm/ring/counters.h"
#include "shm/ring/wake.h"

#define MR_LINK_SOCKET 3 /* inherited, as is */
#define MR_LINK_LIFE   4 /* a pipe that ends with the supervisor; write workers look at it */

struct mr_link {
    int socket;
    int wait_fd; /* an epoll descriptor: readable when a message or a wake-up is there */
    int eventfd; /* fetch, write: other processes' wake-ups; -1 for list */
    unsigned slot;
    uint64_t generation;
    struct mr_config config;
    const struct mr_board *board;
    struct mr_counters *counters;
    struct mr_producer_line *line; /* fetch, write */
};

/* Takes the socket at MR_LINK_SOCKET, waits for SETUP (10 s), maps what came with it. role: "list",
 * "fetch" or "write". 0 or -1. */
int mr_link_init(struct mr_link *link, const char *role, unsigned slot);
void mr_link_close(struct mr_link *link);
/* Write: the supervisor has died. */
bool mr_link_is_orphan(const struct mr_link *link);
/* Empties the eventfd. */
void mr_link_drain_wakeups(struct mr_link *link);
/* A message with only a type. 0 or -1 (GONE). */
int mr_link_say(struct mr_link *link, enum mr_msg_type type);
/* FAILED for good, with this thread's mr_error; dataset or range may be UINT64_MAX for none. */
int mr_link_say_failed(struct mr_link *link, uint64_t dataset, uint64_t range);

#endif
