/* machine.c - see machine.h. */
#include "supervisor/machine.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "supervisor/proc.h"
#include "supervisor/run_impl.h"

/* ---- parsers ---- */

uint64_t mr_machine_busy_ticks(const char *stat)
{
    unsigned long long user, nice, system, idle, wait, irq, soft, steal;

    if (sscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &irq, &soft,
               &steal) != 8)
        return 0;
    return user + nice + system + irq + soft + steal;
}

uint64_t mr_machine_process_ticks(const char *stat)
{
    const char *end = strrchr(stat, ')'); /* the name may hold anything */
    unsigned long long user, system;

    if (!end || sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return user + system;
}

/* ---- the cgroup of CPU time ---- */

static uint64_t throttled_ns(void)
{
    char text[1024];
    int version = mr_proc_read_cgroup("cpu", "cpu.stat", "cpu.stat", text, sizeof text);

    if (version == 2)
        return mr_proc_keyed(text, "throttled_usec") * 1000;
    return version == 1 ? mr_proc_keyed(text, "throttled_time") : 0;
}

/* In cores; 0: there is none. */
static double quota(void)
{
    char text[256];
    long long quota_us, period_us;
    int version = mr_proc_read_cgroup("cpu", "cpu.max", "cpu.cfs_quota_us", text, sizeof text);

    if (version == 2 && sscanf(text, "%lld %lld", &quota_us, &period_us) == 2 && quota_us > 0 && period_us > 0)
        return (double)quota_us / (double)period_us;
    if (version != 1 || (quota_us = atoll(text)) <= 0 ||
        mr_proc_read_cgroup("cpu", "cpu.max", "cpu.cfs_period_us", text, sizeof text) != 1 ||
        (period_us = atoll(text)) <= 0)
        return 0;
    return (double)quota_us / (double)period_us;
}

unsigned mr_machine_cores(void)
{
    cpu_set_t set;
    double cores =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (double)sysconf(_SC_NPROCESSORS_ONLN);
    double most = quota();

    if (most > 0 && most < cores)
        cores = ceil(most);
    return cores >= 1 ? (unsigned)cores : 1;
}

/* ---- once a second ---- */

static uint64_t process_ticks(pid_t pid)
{
    char text[1024];

    return pid > 0 && mr_proc_read_of(pid, "stat", text, sizeof text) == 0 ? mr_machine_process_ticks(text) : 0;
}

uint64_t mr_machine_delay_ns(pid_t pid)
{
    char text[128];
    unsigned long long runs, delay;

    return mr_proc_read_of(pid, "schedstat", text, sizeof text) == 0 && sscanf(text, "%llu %llu", &runs, &delay) == 2
               ? delay
               : 0;
}

static uint64_t child_ticks(const struct mr_child *children, unsigned count)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < count; i++)
        sum += mr_child_has_process(&children[i]) ? process_ticks(children[i].pid) : 0;
    return sum;
}

/* Totals since boot, and for our own processes since their start; a process that ends takes its share out of the
 * sum. */
static struct mr_machine_now read_now(const struct mr_supervisor *s)
{
    long hz = sysconf(_SC_CLK_TCK);
    uint64_t tick_ns = (uint64_t)MR_SECOND_NS / (uint64_t)(hz > 0 ? hz : 100);
    uint64_t ours = process_ticks(getpid()) + child_ticks(s->listing.workers, s->listing.worker_count) +
                    child_ticks(s->fetch_workers.workers, s->fetch_workers.count) +
                    child_ticks(s->write_workers.workers, s->write_workers.count);
    char text[4096];
    struct mr_machine_now now = {.throttled_ns = throttled_ns()};

    for (const struct mr_client_peer *client = s->clients.first; client; client = client->next)
        ours += process_ticks(client->pid);
    now.ours_ns = ours * tick_ns;
    if (mr_proc_read("/proc/stat", text, sizeof text) == 0)
        now.busy_ns = mr_machine_busy_ticks(text) * tick_ns;
    char pages[16384];
    if (mr_proc_read("/proc/vmstat", pages, sizeof pages) == 0)
        now.swapped = mr_proc_keyed(pages, "pswpin");
    return now;
}

void mr_machine_look(struct mr_supervisor *s, int64_t now_ns)
{
    struct mr_machine *m = &s->machine;
    struct mr_machine_now now = read_now(s), last = m->last;
    int64_t before_ns = m->looked_ns;

    m->last = now;
    m->looked_ns = now_ns;
    if (before_ns == 0)
        return;
    uint64_t busy = mr_counter_grown(now.busy_ns, last.busy_ns), ours = mr_counter_grown(now.ours_ns, last.ours_ns);
    mr_counter_add(&s->board->node, MR_NC_WATCHED_NS, (uint64_t)(now_ns - before_ns));
    mr_counter_add(&s->board->node, MR_NC_OTHERS_CPU_NS, mr_counter_grown(busy, ours));
    mr_counter_add(&s->board->node, MR_NC_QUOTA_NS, mr_counter_grown(now.throttled_ns, last.throttled_ns));
    mr_counter_add(&s->board->node, MR_NC_SWAPPED_PAGES, mr_counter_grown(now.swapped, last.swapped));
    mr_counter_set(&s->board->node, MR_NC_CORES, mr_machine_cores());
}
