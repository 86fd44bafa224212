#include "supervisor/write_workers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/size.h"
#include "shm/memory/segment.h"
#include "shm/ring/wake.h"
#include "supervisor/ckpt_share.h"
#include "supervisor/oom.h"
#include "supervisor/supervisor.h"

#define RETRY_MS            5000 /* so long OPEN_WRITER says why nothing works; then it is tried again */
#define PRIVATE_ARENA_BYTES (UINT64_C(256) << 20)

static const struct mr_child_role write_role;

static struct mr_producer_slot *slot_of(const struct mr_child *child)
{
    return &child->supervisor->write_workers.slots[child->slot];
}

static bool is_recent(int64_t then_ns)
{
    return then_ns != 0 && mr_clock_mono_ns() - then_ns < RETRY_MS * MR_MILLISECOND_NS;
}

uint64_t mr_write_workers_arena_bytes(const struct mr_supervisor *s)
{
    if (s->write_workers.arena_bytes != 0)
        return s->write_workers.arena_bytes;
    uint64_t bytes = s->is_private && s->config.checkpoint.arena_bytes == 0
                         ? PRIVATE_ARENA_BYTES
                         : mr_config_ckpt_arena_bytes(&s->config, mr_memory_limit_bytes());
    return bytes / MR_CKPT_PART_PAGE * MR_CKPT_PART_PAGE;
}

/* ---- segments ---- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int make_arena(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    enum mr_backing backing = w->memfd ? MR_BACKING_MEMFD : (enum mr_backing)s->config.memory.backing;
    if (backing == MR_BACKING_AUTO && s->config.memory.huge_pages == MR_HUGE_PAGES_AUTO && mr_segment_huge_possible())
        backing = MR_BACKING_MEMFD; /* /dev/shm has them only where it was mounted so */
    close_fd(&w->arena);
    w->arena = mr_segment_new(backing, "checkpoint arena", w->arena_bytes, 0);
    return w->arena < 0 ? -1 : 0;
}

static int make_slot(struct mr_supervisor *s, unsigned i)
{
    struct mr_producer_slot *slot = &s->write_workers.slots[i];
    if (slot->eventfd >= 0)
        return 0; /* kept from an attempt that came to nothing */
    close_fd(&slot->line);
    close_fd(&slot->line_readonly);
    slot->line = mr_segment_new(MR_BACKING_MEMFD, "producer line", MR_PRODUCER_LINE_BYTES, 1);
    if (slot->line < 0)
        return -1;
    slot->line_readonly = mr_segment_reopen_readonly(slot->line);
    if (slot->line_readonly < 0)
        return -1;
    slot->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (slot->eventfd >= 0)
        return 0;
    mr_error_set_errno(errno, "no event descriptor for a write worker");
    return -1;
}

static int make_slots(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    unsigned wanted = (unsigned)s->config.checkpoint.writers;
    for (unsigned i = 0; i < wanted && i < MR_PRODUCERS_MAX; i++) {
        if (make_slot(s, i) != 0)
            return -1;
        if (i < w->count)
            continue;
        if (mr_child_init(&w->workers[i], s, &write_role, i) != 0) {
            mr_child_close(&w->workers[i]);
            return -1;
        }
        w->count = i + 1;
    }
    return 0;
}

/* ---- state ---- */

static void give_up(struct mr_supervisor *s, enum mr_code code, const char *text)
{
    struct mr_write_workers *w = &s->write_workers;
    char size[32];
    mr_size_text((double)(w->arena_bytes), size);
    w->state = MR_ARENAS_NONE;
    w->fail_code = code;
    w->failed_ns = mr_clock_mono_ns();
    if (code == MR_E_NO_MEMORY)
        snprintf(w->fail_text, sizeof w->fail_text,
                 "no shared memory of %s for checkpoints: %.300s. Set checkpoint.arena_bytes to less (or give the "
                 "machine, the container or /dev/shm more)",
                 size, text);
    else
        snprintf(w->fail_text, sizeof w->fail_text, "%s", text);
    mr_log_error("%s", w->fail_text);
    close_fd(&w->arena);
    w->arena_bytes = 0;
    for (unsigned i = 0; i < w->count; i++)
        mr_child_drain(&w->workers[i], false);
}

static void begin(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    uint64_t available = mr_memory_available_bytes();
    char size[32], left[32], why[100];
    w->arena_bytes = mr_write_workers_arena_bytes(s);
    w->memfd = false;
    w->state = MR_ARENAS_RESERVING;
    mr_size_text((double)(w->arena_bytes), size);
    if (w->arena_bytes > available) {
        mr_size_text((double)(available), left);
        snprintf(why, sizeof why, "only %s are left of the memory or its cgroup limit", left);
        give_up(s, MR_E_NO_MEMORY, why);
        return;
    }
    if (!mr_ckpt_share_possible(w->arena_bytes)) {
        snprintf(why, sizeof why, "checkpoint.arena_bytes (%s) has no room for two parts of 5 MiB", size);
        give_up(s, MR_E_CONFIG, why);
        return;
    }
    if (make_slots(s) != 0 || make_arena(s) != 0) {
        give_up(s, mr_error_code(), mr_error_text());
        return;
    }
    mr_log_info("checkpoints: %u write workers, and %s of shared memory", w->count, size);
    w->workers[0].state = MR_CHILD_FREE;
    w->workers[0].barren = 0;
    mr_child_start(&w->workers[0]);
}

/* ---- which worker ---- */

static bool any_process(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        if (mr_child_has_process(&s->write_workers.workers[i]))
            return true;
    return false;
}

bool mr_write_workers_any(const struct mr_supervisor *s)
{
    return any_process(s);
}

static int arena_there(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    if (w->state == MR_ARENAS_NONE && is_recent(w->failed_ns)) {
        mr_error_set(w->fail_code, "%s", w->fail_text);
        return -1;
    }
    if (w->state == MR_ARENAS_NONE && !any_process(s)) /* those of an attempt that was given up end first */
        begin(s);
    if (w->state == MR_ARENAS_READY)
        return 0;
    if (w->state == MR_ARENAS_NONE && w->failed_ns != 0 && is_recent(w->failed_ns))
        mr_error_set(w->fail_code, "%s", w->fail_text);
    else
        mr_error_set(MR_E_BUSY, "the memory for checkpoints is being reserved");
    return -1;
}

int mr_write_workers_choose(struct mr_supervisor *s, unsigned *slot)
{
    struct mr_write_workers *w = &s->write_workers;
    unsigned best = UINT32_MAX, least = 0;
    bool coming = false;
    if (arena_there(s) != 0)
        return -1;
    for (unsigned i = 0; i < w->count; i++) {
        struct mr_child *child = &w->workers[i];
        unsigned served = mr_ckpt_lanes_served(s, i);
        if (child->state == MR_CHILD_FAILED && !is_recent(w->slot_failed_ns[i])) {
            child->barren = 0; /* credentials may have come meanwhile */
            mr_child_start(child);
        }
        coming |= child->state == MR_CHILD_STARTING || child->state == MR_CHILD_WAITING || child->draining;
        if (child->state == MR_CHILD_RUNNING && !child->draining && (best == UINT32_MAX || served < least)) {
            best = i;
            least = served;
        }
    }
    if (best == UINT32_MAX && !coming) {
        mr_error_set(w->workers[0].fail_code, "no write worker can work: %s", w->workers[0].fail_text);
        return -1;
    }
    if (best == UINT32_MAX) {
        mr_error_set(MR_E_BUSY, "the write workers are being started");
        return -1;
    }
    *slot = best;
    return 0;
}

void mr_write_workers_idle(struct mr_supervisor *s, unsigned slot)
{
    if (!s->write_workers.stale[slot] || mr_ckpt_lanes_served(s, slot) > 0)
        return;
    s->write_workers.stale[slot] = false;
    mr_child_drain(&s->write_workers.workers[slot], true);
}

void mr_write_workers_renew(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++) {
        s->write_workers.stale[i] = true;
        mr_write_workers_idle(s, i);
    }
}

void mr_write_workers_wake(struct mr_supervisor *s, unsigned slot)
{
    if (s->write_workers.slots[slot].eventfd >= 0)
        eventfd_write(s->write_workers.slots[slot].eventfd, 1);
}

/* ---- what the workers say ---- */

static void send_arena(struct mr_child *child)
{
    struct mr_write_workers *w = &child->supervisor->write_workers;
    struct mr_msg_out *out = mr_msg_new(MR_MSG_ARENA);
    mr_msg_put_u64(out, "bytes", w->arena_bytes);
    mr_msg_put_u64(out, "reserve", 0);
    mr_msg_put_bool(out, "fresh", w->state == MR_ARENAS_RESERVING);
    mr_msg_put_fd(out, w->arena);
    mr_child_send(child, out);
}

static void arena_ready(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    if (s->write_workers.state != MR_ARENAS_RESERVING || child->slot != 0)
        return;
    s->write_workers.state = MR_ARENAS_READY;
    for (unsigned i = 1; i < s->write_workers.count; i++) {
        s->write_workers.workers[i].state = MR_CHILD_FREE;
        s->write_workers.workers[i].barren = 0;
        mr_child_start(&s->write_workers.workers[i]);
    }
}

/* FAILED while the pages are being reserved: the other backing once. Anything else: its exit status decides. */
static void arena_failed(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    struct mr_write_workers *w = &s->write_workers;
    if (w->state != MR_ARENAS_RESERVING || child->fail_code != MR_E_NO_MEMORY)
        return;
    if (s->config.memory.backing != MR_BACKING_AUTO || w->memfd) {
        give_up(s, MR_E_NO_MEMORY, child->fail_text);
        return;
    }
    mr_log_info("the memory for checkpoints does not fit /dev/shm: memfd instead (%s)", child->fail_text);
    w->memfd = true;
    child->fail_text[0] = '\0';
    if (make_arena(s) != 0)
        give_up(s, mr_error_code(), mr_error_text());
    else
        send_arena(child);
}

static int message(struct mr_child *child, struct mr_msg_in *in)
{
    struct mr_supervisor *s = child->supervisor;
    uint64_t number;
    switch (in->type) {
    case MR_MSG_ARENA_READY:
        arena_ready(child);
        return 0;
    case MR_MSG_CKPT_ENDED:
        if (mr_msg_get_u64(in, "lane", &number) != 0)
            return -1;
        mr_ckpt_lanes_ended(s, number, child->slot);
        return 0;
    case MR_MSG_DROPPED:
        if (mr_msg_get_u64(in, "lane", &number) != 0)
            return -1;
        mr_ckpt_lanes_dropped(s, number, child->slot);
        return 0;
    case MR_MSG_FAILED:
        arena_failed(child);
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "a write worker does not send messages of type %d", (int)in->type);
        return -1;
    }
}

/* ---- life of a worker ---- */

static void setup(struct mr_child *child, struct mr_msg_out *out)
{
    mr_msg_put_fd(out, slot_of(child)->line);
    mr_msg_put_fd(out, slot_of(child)->eventfd);
}

static void started(struct mr_child *child)
{
    mr_ckpt_lanes_tell(child->supervisor, child);
    send_arena(child);
}

static void running(struct mr_child *child)
{
    (void)child;
}

static void died(struct mr_child *child, const struct mr_child_end *end)
{
    struct mr_supervisor *s = child->supervisor;
    uint64_t oom_kills = mr_oom_kills();
    if (oom_kills > s->write_workers.oom_kills && end->signal == SIGKILL)
        mr_log_error("write worker %u was killed because the memory limit was reached: lower checkpoint.arena_bytes or "
                     "memory.arena_bytes, or raise the limit",
                     child->slot);
    s->write_workers.oom_kills = oom_kills;
    mr_ckpt_lanes_worker_died(s, child->slot);
}

static void ended(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    struct mr_write_workers *w = &s->write_workers;
    if (child->state == MR_CHILD_FAILED) {
        w->slot_failed_ns[child->slot] = mr_clock_mono_ns();
        mr_ckpt_lanes_worker_failed(s, child->slot, child->fail_code, child->fail_text);
        if (w->state == MR_ARENAS_RESERVING)
            give_up(s, child->fail_code, child->fail_text);
    }
    mr_drain_look(s);
    mr_supervisor_child_ended(s);
}

static const struct mr_child_role write_role = {.name = "write",
                                                .session = true,
                                                .counters = MR_ROLE_WRITE,
                                                .first_counter = MR_WC_PARTS,
                                                .last_counter = MR_WC_UPLOADS_ABORTED,
                                                .setup = setup,
                                                .started = started,
                                                .running = running,
                                                .message = message,
                                                .died = died,
                                                .ended = ended};

void mr_write_workers_init(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    w->arena = -1;
    w->oom_kills = mr_oom_kills();
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        w->slots[i] = (struct mr_producer_slot){
            .arena = -1, .arena_readonly = -1, .line = -1, .line_readonly = -1, .eventfd = -1};
}

void mr_write_workers_close(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    for (unsigned i = 0; i < w->count; i++)
        mr_child_close(&w->workers[i]);
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++) {
        close_fd(&w->slots[i].line);
        close_fd(&w->slots[i].line_readonly);
        close_fd(&w->slots[i].eventfd);
    }
    close_fd(&w->arena);
}
