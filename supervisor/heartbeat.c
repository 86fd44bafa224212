/*
 * heartbeat.c - see heartbeat.h. The beat only says that the loop turns. A worker that is stopped is reported and
 * otherwise left alone: nothing is taken from a process whose pidfd is not readable.
 */
#include "supervisor/heartbeat.h"

#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "supervisor/proc.h"
#include "supervisor/run_impl.h"

#define BEAT_MS 1000

/* The letter of proc_pid_stat(5); 0 when there is none. */
static char process_state(pid_t pid)
{
    char text[512];
    if (mr_proc_read_of(pid, "stat", text, sizeof text) != 0)
        return 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

static bool is_stopped(const struct mr_child *child)
{
    char state = mr_child_has_process(child) ? process_state(child->pid) : 0;
    return state == 'T' || state == 't';
}

/* The same words for every role. The time is ours: while we are stopped ourselves it hardly counts (silence.h). */
static void look_at(struct mr_child *child, bool has_work)
{
    int64_t limit_ns = (int64_t)child->supervisor->config.supervisor.silence_ms * MR_MILLISECOND_NS;
    bool was_stopped = child->is_stopped;
    if ((!has_work && !child->draining && !was_stopped) || !is_stopped(child)) {
        child->silence = (struct mr_silence){0};
        child->is_stopped = false;
        if (was_stopped && mr_child_has_process(child))
            mr_log_info("%s worker %u (pid %d) runs again", child->role->name, child->slot, (int)child->pid);
        return;
    }
    if (mr_silence_look(&child->silence, child->generation, mr_clock_mono_ns(), limit_ns) < limit_ns / 2 || was_stopped)
        return;
    child->is_stopped = true;
    mr_log_warning(
        "%s worker %u (pid %d) has been stopped (SIGSTOP? a debugger?) for %.3g s, and there is work for it: "
        "continue it with kill -CONT %d, or kill it with kill -KILL %d, and another one takes its place",
        child->role->name, child->slot, (int)child->pid, (double)limit_ns / 2e9, (int)child->pid, (int)child->pid);
}

static void beat(struct mr_supervisor *s)
{
    /* Ours alone; relaxed: it stands for itself, and readers order nothing by it. */
    atomic_fetch_add_explicit(&s->board->beat, 1, memory_order_relaxed);
    uint64_t every_ms = s->config.supervisor.silence_ms / 8;
    mr_events_start(&s->events, &s->heartbeat.timer, every_ms < BEAT_MS ? (unsigned)every_ms : BEAT_MS);
}

static void due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, heartbeat.timer);
    beat(s);
    mr_oom_look(&s->oom);
    mr_batches_look(s);
    mr_limit_look(s);
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        look_at(&s->listing.workers[i], true); /* they end when nothing is listed */
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        look_at(&s->fetch_workers.workers[i], s->lanes.used > 0 || s->fetch_workers.state == MR_ARENAS_RESERVING);
    for (unsigned i = 0; i < s->write_workers.count; i++)
        look_at(&s->write_workers.workers[i],
                s->write_workers.state == MR_ARENAS_RESERVING || mr_ckpt_lanes_served(s, i) > 0);
}

void mr_heartbeat_init(struct mr_supervisor *s)
{
    s->heartbeat.timer.run = due;
    mr_oom_init(&s->oom);
    beat(s);
}

void mr_heartbeat_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->heartbeat.timer);
}
