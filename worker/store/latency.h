/* latency.h - the 99th percentile of durations, from a histogram that forgets: what earlier streams took tells a
 * stalled one from a slow one. */
#ifndef MR_WORKER_STORE_LATENCY_H
#define MR_WORKER_STORE_LATENCY_H

#include <stdint.h>

#define MR_LATENCY_BUCKETS 80   /* four per octave, of milliseconds, up to 2^21 */
#define MR_LATENCY_ENOUGH  100  /* samples before there is a percentile */
#define MR_LATENCY_KEEP    2000 /* at this many, all counts are halved */

/* Zero-initialised. */
struct mr_latency {
    uint32_t counts[MR_LATENCY_BUCKETS], total;
};

void mr_latency_add(struct mr_latency *latency, int64_t ns);
/* In ms, rounded up to the end of its bucket (a quarter at most); 0 while there are too few samples. */
uint64_t mr_latency_p99_ms(const struct mr_latency *latency);

#endif
