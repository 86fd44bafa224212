#include "base/clock.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * MR_SECOND_NS + ts.tv_nsec;
}

int64_t mr_clock_mono_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}

int64_t mr_clock_boot_ns(void)
{
    return now_ns(CLOCK_BOOTTIME);
}

int64_t mr_clock_wall_ns(void)
{
    return now_ns(CLOCK_REALTIME);
}

int64_t mr_clock_cpu_ns(void)
{
    return now_ns(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t mr_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t mr_random64(void)
{
    static _Thread_local uint64_t state;
    static _Thread_local pid_t owner; /* a forked child must not repeat its parent's numbers */
    if (owner != getpid()) {
        owner = getpid();
        if (getrandom(&state, sizeof state, 0) != (ssize_t)sizeof state)
            state = (uint64_t)mr_clock_wall_ns() ^ (uint64_t)owner << 32;
    }
    state += UINT64_C(0x9e3779b97f4a7c15);
    return mr_mix64(state);
}
