/*
 * drain.c - see drain.h. Draining waits for sealed checkpoints only, and always ends: when they are stored, after
 * checkpoint.drain_s, or at a second signal. Nothing becomes promised once it has begun.
 */
#include "supervisor/drain.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "base/size.h"
#include "supervisor/run_impl.h"

#define CHECK_MS  100
#define LOG_NS    (10 * MR_SECOND_NS)
#define REMOVE_NS (10 * MR_SECOND_NS) /* for aborted uploads to be removed from the store */

#define SUPERVISOR_OF(timer_) MR_CONTAINER_OF(timer_, mr_supervisor, drain.timer)

static void due(struct mr_timer *timer)
{
    struct mr_supervisor *s = SUPERVISOR_OF(timer); /* what follows is settled after this step of the loop */
    if (s->state == MR_SUP_DRAINING)
        mr_events_start(&s->events, timer, CHECK_MS);
}

void mr_drain_init(struct mr_supervisor *s)
{
    s->drain.timer.run = due;
}

void mr_drain_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->drain.timer);
}

static bool is_promised(const struct mr_ckpt_entry *entry)
{
    uint32_t code, crc32c;
    uint64_t generation;
    return entry->state == MR_CKPT_UPLOADING && mr_ckpt_part_fate(&entry->lane) == MR_FATE_SEALED &&
           mr_ckpt_part_result(&entry->lane, &code, NULL, &generation, &crc32c) == MR_CKPT_PART_UNDECIDED;
}

static unsigned promised(const struct mr_supervisor *s)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++)
        count += s->ckpt_lanes.slots[i] && is_promised(s->ckpt_lanes.slots[i]);
    return count;
}

/* Lanes on which a worker still has something to do. */
static unsigned busy(const struct mr_supervisor *s)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++)
        count += s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->state == MR_CKPT_UPLOADING;
    return count;
}

static int64_t limit_ns(const struct mr_supervisor *s)
{
    return (int64_t)s->config.checkpoint.drain_s * MR_SECOND_NS;
}

/* What is waited for: names, what is left of each, and how long. */
static void log_waiting(struct mr_supervisor *s, const char *suffix)
{
    char names[1200] = "", left[32];
    size_t used = 0;
    unsigned count = 0;
    int64_t now_ns = mr_clock_mono_ns();
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++) {
        const struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || !is_promised(entry))
            continue;
        uint64_t stored, total;
        mr_ckpt_entry_progress(entry, &stored, &total);
        mr_size_text((double)(total - stored), left);
        int n =
            snprintf(names + used, sizeof names - used, "%s%.200s (%s left)", count > 0 ? ", " : "", entry->uri, left);
        used += n > 0 && (size_t)n < sizeof names - used ? (size_t)n : 0;
        count++;
    }
    int64_t seconds = (limit_ns(s) - (now_ns - s->drain.begun_ns)) / MR_SECOND_NS;
    mr_log_info("saving %u checkpoint%s: %s; for at most %lld s more (checkpoint.drain_s)%s", count,
                count == 1 ? "" : "s", names, (long long)(seconds > 0 ? seconds : 0), suffix);
    s->drain.logged_ns = now_ns;
}

void mr_drain_begin(struct mr_supervisor *s)
{
    s->drain.begun_ns = mr_clock_mono_ns();
    mr_ckpt_lanes_abort_open(s, "the millrace supervisor is ending, and not all bytes of this checkpoint were given");
    if (promised(s) > 0)
        log_waiting(s, s->drain.warned ? ". A second signal stops at once" : "");
    mr_events_start(&s->events, &s->drain.timer, CHECK_MS);
}

bool mr_drain_settle(struct mr_supervisor *s)
{
    if (s->state != MR_SUP_DRAINING || s->drain.over)
        return false;
    unsigned waited = promised(s), others = busy(s) - waited;
    int64_t now_ns = mr_clock_mono_ns(), passed_ns = now_ns - s->drain.begun_ns;
    char why[120];
    if (waited > 0 && passed_ns >= limit_ns(s)) {
        snprintf(why, sizeof why, "it was not finished within checkpoint.drain_s (%llu s) of the end of the run",
                 (unsigned long long)s->config.checkpoint.drain_s);
        mr_drain_stop(s, why);
    } else if (waited == 0 && (others == 0 || passed_ns >= REMOVE_NS)) {
        s->drain.over = true;
    } else if (waited > 0 && now_ns - s->drain.logged_ns >= LOG_NS) {
        log_waiting(s, "");
    }
    return s->drain.over;
}

bool mr_drain_signal(struct mr_supervisor *s, int signal)
{
    if (s->drain.warned || (signal == SIGTERM && s->drain.term) || promised(s) == 0)
        return true;
    s->drain.warned = true;
    log_waiting(s, ". Another signal stops at once");
    return false;
}

void mr_drain_stop(struct mr_supervisor *s, const char *why)
{
    mr_ckpt_lanes_fail_all(s, MR_E_GONE, why);
    s->drain.over = true;
}
