/*
 * lanes.h - the registry of lanes: open, quota, close, drain, drop; recovery and poison.
 *
 *     OPEN --(closed by its owner, or its owner's pidfd is readable)--> LINGERING --(every word EMPTY)--> DROPPING
 *     DROPPING --(every fetch worker has answered DROPPED or is gone)--> slot free
 *
 * The slot's number is the lane's and, plus 1, its owner index: both are free again only when no word of the lane
 * names it and no process maps it for writing but its dead or closed owner. Quota is dealt among the lanes that are
 * OPEN or LINGERING. Releases come without a message, so lanes that linger are looked at by a timer.
 */
#ifndef MR_SUPERVISOR_LANES_H
#define MR_SUPERVISOR_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/lane.h"
#include "supervisor/events.h"

struct mr_supervisor;
struct mr_child;
struct mr_client_peer;

#define MR_LANE_SLOTS   4094u
#define MR_POISON_MAX   64u /* suspects remembered at a time */
#define MR_POISON_DEATH 3u  /* solo deaths that make a ticket FAILED */

enum mr_registry_state { MR_LANE_OPEN, MR_LANE_LINGERING, MR_LANE_DROPPING };

struct mr_registered_lane {
    struct mr_lane lane;
    int fd;
    enum mr_registry_state state;
    struct mr_client_peer *client; /* NULL once it is gone */
    uint64_t dropping;             /* fetch slots that have not answered yet */
    double waiting;                /* share of looks at which its consumer was waiting, recent ones counting more */
    int64_t opened_ns;
};

struct mr_suspect {
    uint32_t lane;
    uint64_t number;
    unsigned deaths;
};

struct mr_lanes {
    struct mr_registered_lane *slots[MR_LANE_SLOTS];
    unsigned used; /* highest slot in use, plus 1 */
    unsigned next; /* where to look for a free one: numbers are not used again at once */
    unsigned open; /* OPEN ones */
    struct mr_timer timer;
    unsigned looks;
    struct mr_suspect suspects[MR_POISON_MAX];
    unsigned suspect_count;
};

void mr_lanes_init(struct mr_supervisor *s);
void mr_lanes_close(struct mr_supervisor *s);

/* A new lane of a READY data set; window 0: the configuration's. NULL: USAGE, NO_MEMORY, GONE. */
struct mr_registered_lane *mr_lanes_open(struct mr_supervisor *s, struct mr_client_peer *client, uint32_t dataset,
                                         uint64_t window);
/* Its owner has closed it in memory. -1 (USAGE) when it is another's. */
int mr_lanes_close_one(struct mr_supervisor *s, struct mr_client_peer *client, uint64_t number);
/* The client's process is gone: its pidfd is readable. */
void mr_lanes_client_died(struct mr_supervisor *s, struct mr_client_peer *client);
/* How many lanes of the client are registered, in any state. */
unsigned mr_lanes_of(const struct mr_supervisor *s, const struct mr_client_peer *client);

/* How many lanes of the data set are registered, in any state. */
unsigned mr_lanes_of_dataset(const struct mr_supervisor *s, uint32_t dataset);

/* How many lanes, in any state, are of data sets that are not read by ranges. */
unsigned mr_lanes_of_whole_objects(const struct mr_supervisor *s);

/* LANE for every lane that may hold words, to a worker that has just been started. */
void mr_lanes_tell(struct mr_supervisor *s, struct mr_child *fetcher);
/* DROPPED came from a fetch slot. */
void mr_lanes_dropped(struct mr_supervisor *s, uint64_t number, unsigned slot);
/* After the producer's pidfd is readable: counts poison, recovers its words in every lane. True when the death was put
 * down to a ticket. */
bool mr_lanes_producer_died(struct mr_supervisor *s, unsigned slot, bool poison, int signal);
void mr_lanes_wake_all(struct mr_supervisor *s);
/* PENDING tickets of the data set become FAILED. */
void mr_lanes_fail_dataset(struct mr_supervisor *s, uint32_t dataset, uint32_t code, const char *text);
/* Lanes whose consumer waits for a ticket that the slot is filling: their numbers as text; how many. */
unsigned mr_lanes_waiting_for(const struct mr_supervisor *s, unsigned slot, char *text, size_t size);

#endif
