/* oom.h - kills by the kernel for lack of memory in our control group. */
#ifndef MR_SUPERVISOR_OOM_H
#define MR_SUPERVISOR_OOM_H

#include <stdint.h>

/* How many processes of this cgroup the kernel has killed for lack of memory so far: memory.events of cgroup v2,
 * memory.oom_control of v1; 0 where neither can be read. */
uint64_t mr_oom_kills(void);

#endif
