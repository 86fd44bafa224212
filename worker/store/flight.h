/*
 * flight.h - how many requests may be in flight at once: a number, or found by trying.
 *
 * Found: more are let out while each step brings more, as at a store that is far away, and fewer where fewer bring as
 * much, as on a machine whose processors are the limit. It is a search by measured throughput, not by latency: what a
 * neighbour does to the latency is no reason to leave the line to him. Answers of 503 halve either kind, once for a
 * burst of them, and each good answer gives 1/n of a request back; 429 and SlowDown are rate.h's. No clock and no
 * memory of its own; the caller tells the time. docs/tuning.md has the constants.
 */
#ifndef MR_WORKER_STORE_FLIGHT_H
#define MR_WORKER_STORE_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#define MR_FLIGHT_FIRST 16u   /* found: at the beginning */
#define MR_FLIGHT_MOST  1024u /* and never more */

enum mr_flight_phase {
    MR_FLIGHT_FIXED,
    MR_FLIGHT_GROW, /* each step is twice as many, later a quarter more, while it pays */
    MR_FLIGHT_HOLD, /* measures what it has */
    MR_FLIGHT_UP,   /* tries a quarter more */
    MR_FLIGHT_DOWN, /* tries a fifth less */
};

struct mr_flight {
    double limit, goal;   /* 1 to most; goal: where it comes back to after 503 */
    unsigned most;        /* fixed: the number */
    int64_t decreased_ns; /* answers to requests that were sent before this do not change the limit */
    enum mr_flight_phase phase;
    /* private: the measurement under way, and what the earlier ones said */
    double base, rate;        /* the limit that is held, and its work a second; 0: not measured yet */
    bool has_held;            /* a step has not paid: smaller ones from now on */
    bool down_next;           /* which way is tried next */
    unsigned settling;        /* answers to requests that were sent under another limit */
    unsigned answers, full;   /* of the measurement; of them: when no more could be sent */
    unsigned held, hold_most; /* measurements since the last try, and how many there shall be */
    uint64_t work;
    int64_t began_ns;
};

/* connections: the number, or 0: found, up to most (0: MR_FLIGHT_MOST). */
void mr_flight_init(struct mr_flight *flight, unsigned connections, unsigned most);
unsigned mr_flight_limit(const struct mr_flight *flight);
/* A request has ended well. bytes: what it brought; was_full: as many were in flight as may be. */
void mr_flight_good(struct mr_flight *flight, int64_t now_ns, uint64_t bytes, bool was_full);
/* The store has no time for a request that was sent at sent_ns. */
void mr_flight_busy(struct mr_flight *flight, int64_t now_ns, int64_t sent_ns);

#endif
