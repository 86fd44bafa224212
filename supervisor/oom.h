/* oom.h - kills by the kernel for lack of memory in our control group. */
#ifndef MR_SUPERVISOR_OOM_H
#define MR_SUPERVISOR_OOM_H

#include <stdbool.h>
#include <stdint.h>

/* How many processes of this cgroup the kernel has killed for lack of memory so far: memory.events of cgroup v2,
 * memory.oom_control of v1; 0 where neither can be read. */
uint64_t mr_oom_kills(void);

/* What the count was at the last two looks, of which there is one in five seconds. */
struct mr_oom {
    uint64_t before, last;
    int64_t looked_ns;
};
void mr_oom_init(struct mr_oom *oom);
/* At each heartbeat. */
void mr_oom_look(struct mr_oom *oom);
/* Whether a process that has just ended by SIGKILL may have been killed for lack of memory: some process has been, within
 * the last five to ten seconds. A large process takes some to end. */
bool mr_oom_just_now(const struct mr_oom *oom);

#endif
