/* oom.c - see oom.h. The count only grows, and is 0 where the kernel does not tell. */
#include "supervisor/oom.h"

#include "base/clock.h"
#include "supervisor/proc.h"

uint64_t mr_oom_kills(void)
{
    char text[2048];

    mr_proc_read_cgroup("memory", "memory.events", "memory.oom_control", text, sizeof text);
    return mr_proc_keyed(text, "oom_kill");
}

void mr_oom_init(struct mr_oom *oom)
{
    oom->before = oom->last = mr_oom_kills();
}

void mr_oom_look(struct mr_oom *oom)
{
    int64_t now_ns = mr_clock_mono_ns();
    if (now_ns - oom->looked_ns < 5 * MR_SECOND_NS)
        return;
    oom->looked_ns = now_ns;
    oom->before = oom->last;
    oom->last = mr_oom_kills();
}

bool mr_oom_just_now(const struct mr_oom *oom)
{
    return mr_oom_kills() > oom->before;
}
