/*
 * link.h - a worker's side of its socket pair with the supervisor, and the one descriptor that its loop waits on.
 *
 * A list or fetch worker never outlives the supervisor: PDEATHSIG is set first, and the end of the socket counts as its
 * death too (the supervisor may have died before the call). A write worker does, to finish what was promised: it has no
 * PDEATHSIG, and notices it by the end of the socket or of the life pipe.
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
#define MR_LINK_LIFE   4 /* a pipe that ends with the supervisor; write workers watch it */

struct mr_link {
    int socket;
    int wait_fd; /* an epoll descriptor: readable when a message or a wake-up is there */
    int eventfd; /* other processes' wake-ups; -1 where there are none (list) */
    unsigned slot;
    uint64_t generation;
    struct mr_config config;
    const struct mr_board *board;
    struct mr_counters *counters;
    struct mr_producer_line *line; /* NULL for list */
};

/* What a role is to the supervisor. */
struct mr_link_kind {
    const char *role; /* as SETUP names it: "list", "fetch" or "write" */
    bool is_woken;    /* SETUP brings a producer line and an eventfd */
    bool survives;    /* outlives the supervisor: no PDEATHSIG, and descriptor 4 is the life pipe */
};

/* Takes the socket at MR_LINK_SOCKET, waits for SETUP (10 s), maps what came with it. 0 or -1. What it holds goes
 * with the process. */
int mr_link_init(struct mr_link *link, const struct mr_link_kind *kind, unsigned slot);
/* As SETUP and LOG_LEVEL give it; a level that is not known is MR_LOG_INFO. */
void mr_link_set_log_level(uint64_t level);
/* The supervisor of a worker that survives it has died. */
bool mr_link_is_orphan(void);
/* Empties the eventfd. */
void mr_link_drain_wakeups(struct mr_link *link);
/* A message with only a type. 0 or -1 (GONE). */
int mr_link_send(struct mr_link *link, enum mr_msg_type type);
/* FAILED for good, with this thread's mr_error; dataset or range may be UINT64_MAX for none. */
int mr_link_send_failed(struct mr_link *link, uint64_t dataset, uint64_t range);

#endif
