/*
 * flight.h - how many requests may be in flight at once: a fixed number, or one that is found by trying.
 *
 * Found: the number grows while each step brings more, as with a distant store, and shrinks where fewer requests bring
 * as much, as on a machine limited by its processors. The search is by measured throughput, not by latency: latency
 * caused by a neighbour is no reason to leave the link to it. 503s halve either kind of number, once per burst, and
 * each good response then adds 1/n of a request; 429 and SlowDown are rate.h's. It has no clock and allocates nothing;
 * the caller passes the time. docs/tuning.md has the constants.
 */
#ifndef MR_WORKER_STORE_FLIGHT_H
#define MR_WORKER_STORE_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#define MR_FLIGHT_FIRST 16u   /* found: to begin with */
#define MR_FLIGHT_MOST  1024u /* and never more */

enum mr_flight_phase {
    MR_FLIGHT_FIXED,
    MR_FLIGHT_GROW, /* each step is twice as many, later a quarter more, while it pays off */
    MR_FLIGHT_HOLD, /* measures what it has */
    MR_FLIGHT_UP,   /* tries a quarter more */
    MR_FLIGHT_DOWN, /* tries a fifth less */
};

struct mr_flight {
    double limit, goal;   /* 1 to most; goal: to which it recovers after 503s */
    unsigned most;        /* fixed: the number */
    int64_t decreased_ns; /* 503s to requests that were sent before this do not change the limit */
    enum mr_flight_phase phase;
    /* private: the current measurement, and what earlier ones found */
    double base, rate;        /* the limit that is held, and its work a second; 0: not measured yet */
    bool has_held;            /* a step has not paid off: smaller ones from now on */
    bool down_next;           /* which way is tried next */
    unsigned settling;        /* responses still to come to requests that were sent under another limit */
    unsigned answers, full;   /* of the measurement; of these, while no more could be sent */
    unsigned held, hold_most; /* measurements since the last try, and how many until the next */
    uint64_t work;
    int64_t began_ns;
};

/* connections: the number, or 0: found, up to most (0: MR_FLIGHT_MOST). */
void mr_flight_init(struct mr_flight *flight, unsigned connections, unsigned most);
unsigned mr_flight_limit(const struct mr_flight *flight);
/* A request has ended well. bytes: what it brought; was_full: as many as allowed were in flight. */
void mr_flight_good(struct mr_flight *flight, int64_t now_ns, uint64_t bytes, bool was_full);
/* The store had no capacity (503) for a request that was sent at sent_ns. */
void mr_flight_busy(struct mr_flight *flight, int64_t now_ns, int64_t sent_ns);

#endif
