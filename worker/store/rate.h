/*
 * rate.h - how many requests a second a store takes, learned from what it refuses (429, S3's SlowDown).
 *
 * There is no limit until the store refuses something. Then requests are sent evenly, at slightly less than the rate at
 * which the store had responded, and the limit returns to that rate along a cubic curve: fast at first, slowly near the
 * rate that was refused, faster again if nothing is refused any more. It grows only while it holds requests up. Workers
 * that meet the same limit get equal shares of it without communicating: a worker that sends more is refused more
 * often. Refusals of less than three in a thousand responses change nothing. It has no clock and allocates nothing; the
 * caller passes the time. docs/tuning.md has the constants.
 */
#ifndef MR_WORKER_STORE_RATE_H
#define MR_WORKER_STORE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct mr_rate {
    double limit; /* requests a second; 0: none */
    /* private */
    double top;         /* the rate that was too much; 0: not known */
    double grown_s;     /* how long it has held requests up since it came near top again */
    bool waits;         /* it holds requests up */
    int64_t next_ns;    /* when the next one is due */
    int64_t grew_ns;    /* of the last growth */
    int64_t lowered_ns; /* refusals of requests that were sent before this change nothing */
    double endured;     /* nor do this many */
    uint64_t good;      /* good responses since it was lowered */
    struct mr_rate_span {
        int64_t began_ns;
        unsigned good;
    } before, now; /* good responses of the last second, in two parts */
};

/* Nothing was refused yet. */
void mr_rate_init(struct mr_rate *rate, int64_t now_ns);
/* How many may be sent soon, within 20 ms: at least one. UINT_MAX: no limit. */
unsigned mr_rate_soon(const struct mr_rate *rate);
/* A request is to be sent: 0, or when it may be; call again then. */
int64_t mr_rate_due_ns(struct mr_rate *rate, int64_t now_ns);
/* It is sent. */
void mr_rate_sent(struct mr_rate *rate, int64_t now_ns);
/* It had a good response. */
void mr_rate_good(struct mr_rate *rate, int64_t now_ns);
/* It was sent at sent_ns, and was refused. */
void mr_rate_refused(struct mr_rate *rate, int64_t now_ns, int64_t sent_ns);

#endif
