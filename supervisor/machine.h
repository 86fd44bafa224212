/*
 * machine.h - what the machine is short of, as far as it can be seen from a process: cores that others use, the CPU
 * quota of the cgroup, memory that comes back from swap. Read from /proc and /sys once a second, in under a
 * millisecond.
 */
#ifndef MR_SUPERVISOR_MACHINE_H
#define MR_SUPERVISOR_MACHINE_H

#include <stdint.h>
#include <sys/types.h>

struct mr_supervisor;

/* At one moment; what cannot be read is 0. */
struct mr_machine_now {
    uint64_t busy_ns;      /* CPU time of all processes */
    uint64_t ours_ns;      /* of that, of the supervisor, its workers and its clients */
    uint64_t throttled_ns; /* that the quota stopped the cgroup */
    uint64_t swapped;      /* pages read from swap */
};

struct mr_machine {
    int64_t looked_ns; /* 0: not yet */
    struct mr_machine_now last;
};

/* Adds to the board what was counted since the last call. */
void mr_machine_look(struct mr_supervisor *s, int64_t now_ns);
/* How long the first thread of a process was ready to run while no core was free; 0: it is not known. */
uint64_t mr_machine_delay_ns(pid_t pid);
/* Cores that this process may use: its affinity, or the cgroup's quota where that is less. At least 1. */
unsigned mr_machine_cores(void);

/* The parsers, for tests. The CPU time of all processes in the first line of /proc/stat; utime + stime of
 * /proc/PID/stat. Ticks of sysconf(_SC_CLK_TCK). */
uint64_t mr_machine_busy_ticks(const char *stat);
uint64_t mr_machine_process_ticks(const char *stat);

#endif
