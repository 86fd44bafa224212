#include "worker/store/latency.h"

#include "base/clock.h"

/* 0 to 3 ms have a bucket each; [4, 8) has four, as has each octave after it. */
static unsigned bucket_of(uint64_t ms)
{
    if (ms < 4)
        return (unsigned)ms;
    unsigned octave = 63 - (unsigned)__builtin_clzll(ms);
    unsigned bucket = (octave - 1) * 4 + (unsigned)(ms >> (octave - 2) & 3);
    return bucket < MR_LATENCY_BUCKETS ? bucket : MR_LATENCY_BUCKETS - 1;
}

/* The shortest duration beyond a bucket, in ms. */
static uint64_t end_of(unsigned bucket)
{
    if (bucket < 4)
        return bucket + 1;
    return (uint64_t)(4 + bucket % 4 + 1) << (bucket / 4 - 1);
}

void mr_latency_add(struct mr_latency *latency, int64_t ns)
{
    latency->counts[bucket_of(ns > 0 ? (uint64_t)ns / MR_MILLISECOND_NS : 0)]++;
    if (++latency->total < MR_LATENCY_KEEP)
        return;
    latency->total = 0;
    for (unsigned i = 0; i < MR_LATENCY_BUCKETS; i++)
        latency->total += latency->counts[i] /= 2;
}

uint64_t mr_latency_p99_ms(const struct mr_latency *latency)
{
    uint32_t above = latency->total / 100; /* that many may lie beyond it */
    if (latency->total < MR_LATENCY_ENOUGH)
        return 0;
    for (unsigned i = MR_LATENCY_BUCKETS; i-- > 0;) {
        if (latency->counts[i] > above)
            return end_of(i);
        above -= latency->counts[i];
    }
    return 0;
}
