/* clock.h - the monotonic clock, and a small random generator for jitter and run-local choices. */
#ifndef MR_BASE_CLOCK_H
#define MR_BASE_CLOCK_H

#include <stdint.h>

#define MR_SECOND_NS      INT64_C(1000000000)
#define MR_MILLISECOND_NS INT64_C(1000000)

/* CLOCK_MONOTONIC in ns: comparable between the processes of a node. */
int64_t mr_clock_mono_ns(void);
/* CLOCK_BOOTTIME in ns: the same, and it goes on while the machine sleeps. */
int64_t mr_clock_boot_ns(void);
/* CLOCK_REALTIME in ns. */
int64_t mr_clock_wall_ns(void);
/* CPU time of this process in ns. */
int64_t mr_clock_cpu_ns(void);

/* SplitMix64's finaliser: a fixed bijection of 64-bit words that mixes well (Steele, Lea, Flood 2014). */
uint64_t mr_mix64(uint64_t x);
/* Not for keys or secrets. Seeded once a process and thread from getrandom(2). */
uint64_t mr_random64(void);

#endif
