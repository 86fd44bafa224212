#include "worker/store/flight.h"

#include <string.h>

#include "base/clock.h"

#define LEAST          4.0
#define REQUEST_WORK   (UINT64_C(64) << 10) /* a request is worth as much as these bytes */
#define MEASURE_NS     (50 * MR_MILLISECOND_NS)
#define MEASURE_ROUNDS 2 /* responses in a measurement, as multiples of the limit; 1 while a limit of MANY up grows */
#define MANY           32
#define GROW           2.0 /* a step's factor, until a step has not paid off */
#define UP             1.25
#define DOWN           0.8
#define GAIN_SHARE     0.3  /* of a step's growth that its work must gain, to be kept */
#define LOSS           0.03 /* of the work that fewer requests may cost */
#define HOLD_FIRST     4    /* measurements between two tries */
#define HOLD_MOST      64
#define FULL_SHARE     0.7 /* of the responses: below it, something else was the limit */

static void measure_anew(struct mr_flight *flight)
{
    flight->settling = (unsigned)flight->limit;
    flight->answers = flight->full = 0;
    flight->work = 0;
}

/* Also begins a new measurement. */
static void set_limit(struct mr_flight *flight, double limit, enum mr_flight_phase phase)
{
    double least = flight->base < LEAST ? 1 : LEAST; /* fewer only after 503s */
    flight->limit = flight->goal = limit < least ? least : limit > flight->most ? flight->most : limit;
    flight->phase = phase;
    measure_anew(flight);
}

void mr_flight_init(struct mr_flight *flight, unsigned connections, unsigned most)
{
    memset(flight, 0, sizeof *flight);
    flight->most = connections ? connections : most ? most : MR_FLIGHT_MOST;
    flight->limit = connections ? connections : most && most < MR_FLIGHT_FIRST ? most : MR_FLIGHT_FIRST;
    flight->base = flight->goal = flight->limit;
    flight->hold_most = HOLD_FIRST;
    flight->phase = connections ? MR_FLIGHT_FIXED : MR_FLIGHT_GROW;
    measure_anew(flight);
}

unsigned mr_flight_limit(const struct mr_flight *flight)
{
    return (unsigned)flight->limit;
}

/* Returns to the limit that was held, for longer each time that another one has not paid off. */
static void hold(struct mr_flight *flight, bool paid)
{
    flight->held = 0;
    flight->has_held = true;
    flight->hold_most = paid ? HOLD_FIRST : flight->hold_most * 2 > HOLD_MOST ? HOLD_MOST : flight->hold_most * 2;
    set_limit(flight, flight->base, MR_FLIGHT_HOLD);
}

static void flight_keep(struct mr_flight *flight, double rate)
{
    flight->base = flight->limit;
    flight->rate = rate;
}

/* After a measurement of the held limit: its rate is averaged, and from time to time another limit is tried. */
static void held(struct mr_flight *flight, double rate)
{
    flight->rate = flight->rate ? 0.7 * flight->rate + 0.3 * rate : rate;
    if (++flight->held < flight->hold_most) {
        measure_anew(flight);
        flight->settling = 0;
        return;
    }
    bool down = flight->down_next && flight->base > LEAST;
    flight->down_next = !flight->down_next;
    if (!down && flight->base >= flight->most)
        down = true;
    set_limit(flight, flight->base * (down ? DOWN : UP), down ? MR_FLIGHT_DOWN : MR_FLIGHT_UP);
}

/* A measurement is complete. full: the limit held back requests. */
static void measured(struct mr_flight *flight, double rate, bool full)
{
    double needed = flight->rate * (1 + GAIN_SHARE * (flight->limit / flight->base - 1));
    switch (flight->phase) {
    case MR_FLIGHT_GROW:
    case MR_FLIGHT_UP:
        if (!full) { /* the limit is not reached: nothing to learn, nothing to gain */
            hold(flight, false);
        } else if (rate >= needed) {
            flight_keep(flight, rate);
            if (flight->limit >= flight->most)
                hold(flight, true);
            else
                set_limit(flight, flight->limit * (flight->has_held ? UP : GROW), MR_FLIGHT_GROW);
        } else {
            hold(flight, flight->phase == MR_FLIGHT_GROW);
        }
        break;
    case MR_FLIGHT_DOWN:
        if (rate >= flight->rate * (1 - LOSS)) {
            double before = flight->rate;
            flight_keep(flight, before > rate ? before : rate); /* so that small losses do not add up */
            hold(flight, true);
            flight->down_next = true;
        } else {
            hold(flight, false);
        }
        break;
    case MR_FLIGHT_HOLD:
        if (full)
            held(flight, rate);
        else
            measure_anew(flight);
        break;
    case MR_FLIGHT_FIXED:
        break;
    }
}

/* Recovers from 503s: by 1/limit for each good response, up to goal. */
static void raise(struct mr_flight *flight)
{
    double next = flight->limit + 1 / flight->limit;
    if (flight->limit < flight->goal)
        flight->limit = next < flight->goal ? next : flight->goal;
}

void mr_flight_good(struct mr_flight *flight, int64_t now_ns, uint64_t bytes, bool was_full)
{
    raise(flight);
    if (flight->phase == MR_FLIGHT_FIXED)
        return;
    if (flight->settling > 0) {
        if (--flight->settling == 0)
            flight->began_ns = now_ns;
        return;
    }
    flight->answers++;
    flight->full += was_full;
    flight->work += bytes + REQUEST_WORK;
    int64_t took_ns = now_ns - flight->began_ns;
    unsigned rounds = flight->phase == MR_FLIGHT_GROW && flight->limit >= MANY ? 1 : MEASURE_ROUNDS;
    if (flight->answers < rounds * (unsigned)flight->limit || took_ns < MEASURE_NS)
        return;
    bool full = flight->full >= FULL_SHARE * flight->answers;
    double rate = (double)flight->work / (double)took_ns;
    flight->began_ns = now_ns;
    measured(flight, rate, full);
}

void mr_flight_busy(struct mr_flight *flight, int64_t now_ns, int64_t sent_ns)
{
    if (sent_ns < flight->decreased_ns)
        return; /* it was sent under the previous limit: one burst of 503s halves it once */
    double half = flight->limit / 2 < 1 ? 1 : flight->limit / 2;
    if (flight->phase != MR_FLIGHT_FIXED) { /* the search starts over, from where the store kept up */
        flight->base = flight->goal = flight->limit * 0.9 < 1 ? 1 : flight->limit * 0.9;
        flight->rate = 0;
        flight->held = 0;
        flight->hold_most = HOLD_MOST;
        flight->phase = MR_FLIGHT_HOLD;
        measure_anew(flight);
    }
    flight->limit = half;
    flight->decreased_ns = now_ns;
}
