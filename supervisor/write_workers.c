/*
 * write_workers.c - see write_workers.h. The arena is made once a run, before the first lane, and is given back only
 * if it could not be reserved. A lane stays with the slot that it was given; a process is sent all lanes of its slot
 * before ARENA.
 */
#include "supervisor/write_workers.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "supervisor/ckpt_share.h"
#include "supervisor/run_impl.h"

#define RETRY_MS 5000 /* how long OPEN_WRITER is answered with why nothing works, before the next attempt */

static const struct mr_child_role write_role;

static struct mr_write_slot *slot_of(const struct mr_child *child)
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
                         ? MR_CONFIG_PRIVATE_CKPT_BYTES
                         : mr_config_ckpt_arena_bytes(&s->config, mr_memory_limit_bytes());
    return bytes / MR_CKPT_PART_PAGE * MR_CKPT_PART_PAGE;
}

/* ---- segments ---- */

static int make_arena(struct mr_supervisor *s)
{
    return mr_arenas_make(s, &s->write_workers.arena, "checkpoint arena", s->write_workers.arena_bytes);
}

/* May be called again after a failure: slots that exist are kept. */
static int make_slots(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    unsigned wanted = (unsigned)s->config.checkpoint.workers;
    for (unsigned i = 0; i < wanted && i < MR_PRODUCERS_MAX; i++) {
        if (mr_arenas_make_line(&w->slots[i].line) != 0) /* keeps those of a failed attempt */
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

/* Checkpoints fail with this text from now on, until another attempt is made; the arena's memory is released. */
static void give_up(struct mr_supervisor *s, enum mr_code code, const char *text)
{
    struct mr_write_workers *w = &s->write_workers;
    char size[32];
    mr_size_text((double)(w->arena_bytes), size);
    w->state = MR_ARENAS_NONE;
    w->fail_code = code;
    w->failed_ns = mr_clock_mono_ns();
    if (code == MR_E_NO_MEMORY)
        snprintf(w->fail_text, sizeof w->fail_text, "no shared memory of %s for checkpoints: %.300s%s", size, text,
                 mr_error_names_limit(text)
                     ? ""
                     : ". Set checkpoint.arena_bytes to less (or give the machine, the container "
                       "or /dev/shm more)");
    else
        snprintf(w->fail_text, sizeof w->fail_text, "%s", text);
    mr_log_error("%s", w->fail_text);
    mr_arenas_close(&w->arena);
    w->arena_bytes = 0;
    mr_write_workers_drain(s);
}

/* ahead: no client waits for it yet. */
static void write_workers_begin(struct mr_supervisor *s, bool ahead)
{
    struct mr_write_workers *w = &s->write_workers;
    uint64_t available = mr_memory_available_bytes();
    w->arena_bytes = mr_write_workers_arena_bytes(s);
    w->arena.memfd = w->reserved = w->no_room = false;
    w->ahead = ahead;
    w->state = MR_ARENAS_RESERVING;
    char size[32];
    mr_size_text((double)(w->arena_bytes), size);
    char left[32], why[100];
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
    w->workers[0].idle_starts = 0;
    mr_child_start(&w->workers[0]);
}

/* ---- which worker ---- */

bool mr_write_workers_any(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        if (mr_child_has_process(&s->write_workers.workers[i]))
            return true;
    return false;
}

/* Whether any slot has a process, or one that has ended and was not recovered from. */
static bool any_in_use(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        if (s->write_workers.workers[i].state == MR_CHILD_ENDED)
            return true;
    return mr_write_workers_any(s);
}

/* 0 if the arena is there, or -1: BUSY while it is being made, which is begun here, or why there is none. */
static int arena_there(struct mr_supervisor *s, bool ahead)
{
    struct mr_write_workers *w = &s->write_workers;
    if (w->state == MR_ARENAS_NONE && is_recent(w->failed_ns)) {
        mr_error_set(w->fail_code, "%s", w->fail_text);
        return -1;
    }
    if (w->state == MR_ARENAS_NONE && !any_in_use(s)) /* those of an abandoned attempt end first */
        write_workers_begin(s, ahead);
    if (w->state == MR_ARENAS_READY)
        return 0;
    if (w->state == MR_ARENAS_NONE && w->failed_ns != 0 && is_recent(w->failed_ns))
        mr_error_set(w->fail_code, "%s", w->fail_text);
    else
        mr_error_set(MR_E_BUSY, "the memory for checkpoints is being reserved");
    return -1;
}

int mr_write_workers_prepare(struct mr_supervisor *s, bool *there)
{
    *there = false;
    if (s->config.checkpoint.prepare == MR_PREPARE_NEVER || s->state != MR_SUP_RUNNING)
        return 0;
    *there = arena_there(s, true) == 0;
    return *there || mr_error_code() != MR_E_BUSY ? 0 : -1;
}

int mr_write_workers_choose(struct mr_supervisor *s, unsigned *slot)
{
    struct mr_write_workers *w = &s->write_workers;
    unsigned best = UINT32_MAX, least = 0;
    bool coming = false;
    if (arena_there(s, false) != 0)
        return -1;
    for (unsigned i = 0; i < w->count; i++) {
        struct mr_child *child = &w->workers[i];
        unsigned served = mr_ckpt_lanes_served(s, i);
        if (child->state == MR_CHILD_FAILED && !is_recent(w->slots[i].failed_ns)) {
            child->idle_starts = 0; /* there may be credentials by now */
            mr_child_start(child);
        }
        coming |= child->state == MR_CHILD_STARTING || child->state == MR_CHILD_ENDED ||
                  child->state == MR_CHILD_WAITING || child->draining;
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

void mr_write_workers_renew(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        s->write_workers.slots[i].stale = true;
}

void mr_write_workers_drain(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        mr_child_drain(&s->write_workers.workers[i], false);
}

void mr_write_workers_kill(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->write_workers.count; i++)
        mr_child_kill(&s->write_workers.workers[i]);
}

/* ---- messages from the workers ---- */

static int message(struct mr_child *child, struct mr_msg_in *in)
{
    struct mr_supervisor *s = child->supervisor;
    struct mr_write_workers *w = &s->write_workers;
    uint64_t number;
    switch (in->type) {
    case MR_MSG_ARENA_READY:
        w->reserved |= w->state == MR_ARENAS_RESERVING && child->slot == 0;
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
    case MR_MSG_FAILED: /* if it is not a lack of memory, its exit status decides */
        w->no_room |= w->state == MR_ARENAS_RESERVING && child->fail_code == MR_E_NO_MEMORY;
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "a write worker does not send messages of type %d", (int)in->type);
        return -1;
    }
}

/* ---- life of a worker ---- */

static void write_workers_setup(struct mr_child *child, struct mr_msg_out *out)
{
    mr_arenas_put_line(&slot_of(child)->line, out);
}

static void started(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    slot_of(child)->arena_sent = false;
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++)
        if (s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->lane.worker == child->slot)
            s->ckpt_lanes.slots[i]->sent = false;
}

/* Recovers what the slot's process held, before the slot is started again. */
static void recover(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    if (child->end.signal == SIGKILL && mr_oom_just_now(&s->oom))
        mr_log_limited(
            &child->oom_logged, MR_LOG_ERROR,
            "write worker %u was killed because the memory limit was reached: lower checkpoint.arena_bytes or "
            "memory.arena_bytes, or raise the limit",
            child->slot);
    mr_ckpt_lanes_worker_died(s, child->slot);
}

/* The slot cannot work. */
static void failed(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    slot_of(child)->failed_ns = mr_clock_mono_ns();
    mr_ckpt_lanes_worker_failed(s, child->slot, child->fail_code, child->fail_text);
    if (s->write_workers.state == MR_ARENAS_RESERVING)
        give_up(s, child->fail_code, child->fail_text);
}

/* ---- settle ---- */

static bool settle_workers(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->write_workers.count; i++) {
        struct mr_child *child = &s->write_workers.workers[i];
        if (child->state == MR_CHILD_ENDED)
            recover(child);
        changed |= mr_child_settle(child);
        if (mr_child_has_rested(child) && child->state == MR_CHILD_FAILED) {
            failed(child);
            changed = true;
        }
        if (slot_of(child)->stale && mr_ckpt_lanes_served(s, i) == 0) {
            slot_of(child)->stale = false;
            mr_child_drain(child, true);
        }
    }
    return changed;
}

/* The pages could not be reserved: tries the other backing once. */
static void retry_without_room(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    struct mr_child *child = &w->workers[0];
    w->no_room = false;
    if (!mr_arenas_fall_back(s, &w->arena)) {
        give_up(s, MR_E_NO_MEMORY, child->fail_text);
        return;
    }
    mr_log_info("the memory for checkpoints does not fit /dev/shm: memfd instead (%s)", child->fail_text);
    child->fail_text[0] = '\0';
    if (make_arena(s) != 0)
        give_up(s, mr_error_code(), mr_error_text());
    else
        w->slots[0].arena_sent = false;
}

/* Worker 0 reserves the arena's pages alone; the others start once it has. True if something changed. */
static bool settle_memory(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    if (w->state != MR_ARENAS_RESERVING || (!w->no_room && !w->reserved))
        return false;
    if (w->no_room) {
        retry_without_room(s);
        return true;
    }
    w->state = MR_ARENAS_READY;
    for (unsigned i = 1; i < w->count; i++) {
        w->workers[i].state = MR_CHILD_FREE;
        w->workers[i].idle_starts = 0;
        mr_child_start(&w->workers[i]);
    }
    return true;
}

/* CKPT_LANE for the lanes that its process has to continue and was not sent yet; then ARENA, which means: begin. */
static void announce_to(struct mr_supervisor *s, struct mr_child *child)
{
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX && s->ckpt_lanes.open > 0; i++) {
        struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || entry->sent || entry->lane.worker != child->slot || entry->state != MR_CKPT_UPLOADING ||
            !mr_ckpt_lanes_is_sound(s, i))
            continue;
        entry->sent = true;
        struct mr_msg_out *out = mr_msg_new(MR_MSG_CKPT_LANE);
        mr_msg_put_u64(out, "lane", i);
        mr_msg_put_str(out, "uri", entry->uri);
        mr_msg_put_bool(out, "if_absent", entry->if_absent);
        mr_msg_put_fd(out, entry->fd);
        mr_child_send(child, out);
    }
    if (slot_of(child)->arena_sent)
        return;
    slot_of(child)->arena_sent = true;
    struct mr_arena_size size = {.bytes = s->write_workers.arena_bytes, .ahead = s->write_workers.ahead};
    mr_arenas_send(child, &s->write_workers.arena, &size, s->write_workers.state == MR_ARENAS_RESERVING);
}

/* Sends DROP_LANE, again with each check of the lanes; forgets those that were dropped. */
static bool drop_lanes(struct mr_supervisor *s)
{
    bool changed = false;
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX && s->ckpt_lanes.open > 0; i++) {
        struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || entry->state != MR_CKPT_DROPPING)
            continue;
        struct mr_child *child = &s->write_workers.workers[entry->lane.worker];
        if (entry->dropped || !entry->sent || !mr_child_has_process(child)) {
            mr_ckpt_lanes_forget(s, i);
            changed = true;
        } else if ((!entry->drop_sent || s->ckpt_lanes.send_again) && !child->queue) {
            /* With a queue it does not read (stopped?): sent again later, and no memory is piled up. */
            entry->drop_sent = true;
            struct mr_msg_out *out = mr_msg_new(MR_MSG_DROP_LANE);
            mr_msg_put_u64(out, "lane", i);
            mr_child_send(child, out);
        }
    }
    s->ckpt_lanes.send_again = false;
    return changed;
}

bool mr_write_workers_settle(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    bool changed = settle_workers(s);
    changed |= settle_memory(s);
    for (unsigned i = 0; i < w->count; i++) {
        if (mr_child_has_process(&w->workers[i]))
            announce_to(s, &w->workers[i]);
        if (s->ckpt_lanes.wake & UINT64_C(1) << i)
            mr_arenas_wake(&w->slots[i].line);
    }
    s->ckpt_lanes.wake = 0;
    return drop_lanes(s) || changed;
}

static const struct mr_child_role write_role = {.name = "write",
                                                .session = true,
                                                .counters = MR_ROLE_WRITE,
                                                .first_counter = MR_WC_PARTS,
                                                .last_counter = MR_WC_UPLOADS_ABORTED,
                                                .setup = write_workers_setup,
                                                .started = started,
                                                .message = message};

void mr_write_workers_init(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    w->arena = MR_ARENA_FDS_NONE;
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        w->slots[i] = (struct mr_write_slot){.line = MR_WORKER_LINE_NONE};
}

void mr_write_workers_close(struct mr_supervisor *s)
{
    struct mr_write_workers *w = &s->write_workers;
    for (unsigned i = 0; i < w->count; i++)
        mr_child_close(&w->workers[i]);
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        mr_arenas_close_line(&w->slots[i].line);
    mr_arenas_close(&w->arena);
}
