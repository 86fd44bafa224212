/*
 * lanes.h - the registry of lanes: open, quota, close, drop; recovery and poison.
 *
 *     OPEN --(closed by its owner, or its owner's pidfd is readable)--> LINGERING --(every word EMPTY)--> DROPPING
 *     DROPPING --(every fetch worker has answered DROPPED or exited)--> slot free
 *
 * The slot's number is the lane's and, plus 1, its owner index: both are free again only when no word of the lane
 * names it and no process maps it for writing but its dead or closed owner. Quota is dealt among the lanes that are
 * OPEN or LINGERING. Releases come without a message, so ten times a second a timer has the lanes checked.
 *
 * This is the registry alone: fetch_workers.c sends its messages and forgets a lane once every worker has dropped it.
 */
#ifndef MR_SUPERVISOR_LANES_H
#define MR_SUPERVISOR_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "shm/ring/lane.h"
#include "supervisor/events.h"

struct mr_supervisor;
struct mr_client_peer;

#define MR_LANE_SLOTS   4094u
#define MR_POISON_MAX   64u /* suspects remembered at a time */
#define MR_POISON_DEATH 3u  /* solo deaths that make a ticket FAILED */

enum mr_registry_state { MR_LANE_OPEN, MR_LANE_LINGERING, MR_LANE_DROPPING };

struct mr_registered_lane {
    struct mr_lane lane;
    int fd;
    enum mr_registry_state state;
    struct mr_client_peer *client; /* NULL once it has exited */
    bool check;                    /* the next settle checks whether it is empty */
    bool failed;                   /* its data set has failed, and so have its waiting tickets */
    uint64_t sent_to;              /* fetch slots whose process was sent LANE (fetch_workers.c) */
    bool drop_sent;                /* DROP_LANE was sent (fetch_workers.c) ... */
    uint64_t undropped;            /* ... and these slots have not answered */
    double waiting;                /* share of checks at which its consumer was waiting, recent ones counting more */
    int64_t opened_ns;
};

struct mr_suspect {
    uint32_t lane;
    uint64_t number;
    unsigned deaths;
};

struct mr_lanes {
    struct mr_registered_lane *slots[MR_LANE_SLOTS];
    unsigned used;        /* highest slot in use, plus 1 */
    unsigned next;        /* where the search for a free one begins: numbers are not reused at once */
    unsigned open;        /* OPEN ones */
    uint64_t quota_bytes; /* dealt among the lanes; 0: the memory is not divided, and no lane is opened */
    struct mr_timer timer;
    bool due;          /* the timer has run: every lane is checked */
    bool send_again;   /* for fetch_workers.c: the timer has run */
    bool any_unsent;   /* for fetch_workers.c: a lane was opened */
    bool wake_workers; /* for fetch_workers.c: words have changed that fetch workers wait for */
    struct mr_suspect suspects[MR_POISON_MAX];
    unsigned suspect_count;
    struct mr_log_limit recovery_logged;
};

void mr_lanes_init(struct mr_supervisor *s);
void mr_lanes_close(struct mr_supervisor *s);

/* The bytes of all arenas that lanes share; 0: not divided now. */
void mr_lanes_set_quota(struct mr_supervisor *s, uint64_t bytes);
/* A new lane of a READY data set; window 0: the configuration's. NULL: USAGE, BUSY, NO_MEMORY, GONE. */
struct mr_registered_lane *mr_lanes_open(struct mr_supervisor *s, struct mr_client_peer *client, uint32_t dataset,
                                         uint64_t window);
/* Its owner has closed it in memory. -1 (USAGE) when it is another client's. */
int mr_lanes_close_one(struct mr_supervisor *s, struct mr_client_peer *client, uint64_t number);
/* The client's process has exited: its pidfd is readable. */
void mr_lanes_client_died(struct mr_supervisor *s, struct mr_client_peer *client);
/* Lanes that are closed linger, empty ones begin to drop, waiting tickets of failed data sets fail. True
 * when anything has changed. */
bool mr_lanes_settle(struct mr_supervisor *s);
/* The lane of a slot without further use: every fetch worker has dropped it. */
void mr_lanes_forget(struct mr_supervisor *s, uint32_t number);

/* How many lanes of the client, or of the data set, are registered, in any state. */
unsigned mr_lanes_of(const struct mr_supervisor *s, const struct mr_client_peer *client);
unsigned mr_lanes_of_dataset(const struct mr_supervisor *s, uint32_t dataset);

/* After the producer's pidfd is readable: counts poison, recovers its words in every lane, wakes every consumer and
 * worker. True if a ticket is suspected of the death. */
bool mr_lanes_producer_died(struct mr_supervisor *s, unsigned slot, bool poison, int signal);
/* DROPPED came from a fetch slot. */
void mr_lanes_dropped(struct mr_supervisor *s, uint64_t number, unsigned slot);
void mr_lanes_wake_all(struct mr_supervisor *s);

/* How many tickets of a lane are in which state. */
void mr_lanes_count_states(const struct mr_lane *lane, unsigned counts[16]);
/* How far its consumer looks ahead: the window, or what it has found. */
unsigned mr_lanes_ahead(const struct mr_registered_lane *entry);

#endif
