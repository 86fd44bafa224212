/*
 * rate.h - how many requests a second a store takes, found from what it refuses (429, S3's SlowDown).
 *
 * There is no limit until the store refuses something. Then requests go out evenly, a little under the rate at which
 * the store had answered, and the limit comes back to that rate as a cubic curve does: fast at first, slowly about where
 * it was refused, faster again where nothing is refused any more. It grows only while it holds something up. Workers
 * that meet the same limit get equal parts of it without a word between them: who sends more is refused more often.
 * Refusals of less than three in a thousand answers change nothing. No clock and no memory of its own; the caller tells
 * the time. docs/tuning.md has the constants.
 */
#ifndef MR_WORKER_STORE_RATE_H
#define MR_WORKER_STORE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct mr_rate {
    double limit; /* requests a second; 0: none */
    /* private */
    double top;         /* the rate that was too much; 0: not known */
    double grown_s;     /* how long it has held something up since it came near to top again */
    bool waits;         /* it holds something up */
    int64_t next_ns;    /* when the next one is due */
    int64_t grew_ns;    /* of the last growth */
    int64_t lowered_ns; /* refusals of requests that were sent before this change nothing */
    double endured;     /* nor do so many */
    uint64_t good;      /* answers since it was lowered */
    struct mr_rate_span {
        int64_t began_ns;
        unsigned good;
    } before, now; /* the good answers of the last second, in two parts */
};

/* Nothing was refused yet. */
void mr_rate_init(struct mr_rate *rate, int64_t now_ns);
/* So many go out soon, within 20 ms: one at least. UINT_MAX: as many as there are. */
unsigned mr_rate_soon(const struct mr_rate *rate);
/* A request is there to be sent: 0, or when it may be; ask again then. */
int64_t mr_rate_due_ns(struct mr_rate *rate, int64_t now_ns);
/* It is sent. */
void mr_rate_sent(struct mr_rate *rate, int64_t now_ns);
/* It was answered well. */
void mr_rate_good(struct mr_rate *rate, int64_t now_ns);
/* It was sent at sent_ns, and was refused. */
void mr_rate_refused(struct mr_rate *rate, int64_t now_ns, int64_t sent_ns);

#endif
