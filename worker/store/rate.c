#include "worker/store/rate.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"

#define LEAST        4.0  /* requests a second */
#define LOWER        0.85 /* a refusal's factor */
#define GIVE_WAY     0.925
#define CURVE        0.05  /* requests a second, by the cube of seconds */
#define DOUBLE_S     1.0   /* to double, far below what was refused */
#define GROW_MOST_S  1.0   /* counted at a time */
#define ENDURED      0.003 /* refusals that a good response makes up for */
#define ENDURED_MOST 2.0
#define LOOK_BACK_NS (500 * MR_MILLISECOND_NS) /* at least, and at most twice that */
#define SLACK_NS     (20 * MR_MILLISECOND_NS)  /* what is caught up after a late wake-up */

void mr_rate_init(struct mr_rate *rate, int64_t now_ns)
{
    memset(rate, 0, sizeof *rate);
    rate->before.began_ns = rate->now.began_ns = now_ns;
    rate->endured = ENDURED_MOST;
}

static double seconds(int64_t ns)
{
    return (double)ns / (double)MR_SECOND_NS;
}

/* ---- what may be sent ---- */

/* Grows the limit for a time in which it held requests up: exponentially far below top, then along a cubic curve
 * through top. */
static void rate_grow(struct mr_rate *rate, double passed_s)
{
    double near = rate->top * LOWER;
    if (passed_s > GROW_MOST_S) /* nothing is held up any more, and no request has come since */
        passed_s = GROW_MOST_S;
    if (rate->top == 0 || rate->limit < near) {
        rate->limit *= 1 + passed_s / DOUBLE_S;
        if (rate->top > 0 && rate->limit > near)
            rate->limit = near;
        return;
    }
    rate->grown_s += passed_s;
    double from_top_s = rate->grown_s - cbrt(rate->top * (1 - LOWER) / CURVE);
    rate->limit = rate->top + CURVE * from_top_s * from_top_s * from_top_s;
}

int64_t mr_rate_due_ns(struct mr_rate *rate, int64_t now_ns)
{
    if (rate->limit == 0)
        return 0;
    if (rate->waits)
        rate_grow(rate, seconds(now_ns - rate->grew_ns));
    rate->waits = rate->next_ns > now_ns;
    rate->grew_ns = now_ns;
    return rate->waits ? rate->next_ns : 0;
}

unsigned mr_rate_soon(const struct mr_rate *rate)
{
    return rate->limit == 0 ? UINT_MAX : 1 + (unsigned)(rate->limit * seconds(SLACK_NS));
}

void mr_rate_sent(struct mr_rate *rate, int64_t now_ns)
{
    if (rate->limit == 0)
        return;
    if (rate->next_ns < now_ns - SLACK_NS)
        rate->next_ns = now_ns - SLACK_NS;
    rate->next_ns += (int64_t)((double)MR_SECOND_NS / rate->limit);
}

/* ---- how the store responds ---- */

void mr_rate_good(struct mr_rate *rate, int64_t now_ns)
{
    if (now_ns - rate->now.began_ns >= LOOK_BACK_NS) {
        rate->before = rate->now;
        rate->now = (struct mr_rate_span){.began_ns = now_ns};
    }
    rate->now.good++;
    rate->good++;
    rate->endured = rate->endured + ENDURED < ENDURED_MOST ? rate->endured + ENDURED : ENDURED_MOST;
}

/* The recent rate of good responses, over a second at least: what precedes a first refusal may be a burst that the
 * store grants to any client. */
static double answered_lately(const struct mr_rate *rate, int64_t now_ns)
{
    double passed_s = seconds(now_ns - rate->before.began_ns);
    return (rate->before.good + rate->now.good) / (passed_s < 1 ? 1 : passed_s);
}

/* Lowers the limit; the first time, sets it. */
static void lower(struct mr_rate *rate, int64_t now_ns)
{
    if (rate->limit == 0) { /* what was too much is not known, but this much was not */
        rate->limit = answered_lately(rate, now_ns) * LOWER;
    } else if (rate->good == 0) { /* the store is out of order: that says nothing about how much it can do */
        rate->limit /= 2;
    } else {
        /* Refused before it is back where it was too much: it gives way to workers that have less. */
        rate->top = rate->limit < rate->top ? rate->limit * GIVE_WAY : rate->limit;
        rate->limit = rate->top * LOWER;
    }
    if (rate->limit < LEAST)
        rate->limit = LEAST;
    rate->grown_s = rate->endured = 0;
    rate->good = 0;
    rate->lowered_ns = now_ns;
    if (rate->next_ns < now_ns)
        rate->next_ns = now_ns;
}

void mr_rate_refused(struct mr_rate *rate, int64_t now_ns, int64_t sent_ns)
{
    if (sent_ns < rate->lowered_ns)
        return;
    if (rate->endured >= 1)
        rate->endured -= 1;
    else
        lower(rate, now_ns);
}
