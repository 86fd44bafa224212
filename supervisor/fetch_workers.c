/*
 * fetch_workers.c - see fetch_workers.h. The memory is divided before any lane exists. A larger reserve waits until no
 * lane does, and after an abandoned division the next one has arenas of its own. A process is sent every data
 * set and lane that its words may name before ARENA, and a dead process's words are recovered in all lanes before the
 * next one starts in its slot.
 */
#include "supervisor/fetch_workers.h"
#include "base/size.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "shm/memory/arena.h"
#include "supervisor/run_impl.h"

#define FIRST_BYTES         (UINT64_C(8) << 20) /* of an arena that grows, besides the reserve: made in a few ms */
#define READERS_PATIENCE_NS (5 * MR_SECOND_NS) /* that a data set waits for lanes and checkpoint readers to be closed */

static const struct mr_child_role fetch_role;

static struct mr_fetch_slot *slot_of(const struct mr_child *child)
{
    return &child->supervisor->fetch_workers.slots[child->slot];
}

static void size_text(uint64_t bytes, char out[32])
{
    if (bytes >= 10 << 20)
        snprintf(out, 32, "%lluMiB", (unsigned long long)(bytes >> 20));
    else
        mr_size_format(bytes, out);
}

/* A number for the user to set: rounded up to MiB. */
static void setting_text(uint64_t bytes, char out[32])
{
    snprintf(out, 32, "\"%lluMiB\"", (unsigned long long)((bytes + (1 << 20) - 1) >> 20));
}

/* ---- division ---- */

/* memory.arena_bytes is auto: it is a bound, and not what is taken. */
static bool arenas_grow(const struct mr_supervisor *s)
{
    return s->config.memory.arena_bytes == 0;
}

/* The largest object of the data sets that are indexed and not refused. */
static uint64_t largest_object(const struct mr_supervisor *s)
{
    uint64_t largest = 0;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->indexed && s->datasets[i]->state != MR_DATASET_FAILED &&
            mr_dataset_extent(s->datasets[i]) > largest)
            largest = mr_dataset_extent(s->datasets[i]);
    return largest;
}

static bool is_waiting(const struct mr_dataset *dataset)
{
    return dataset && dataset->admitted && dataset->state == MR_DATASET_LISTING;
}

/* Whether a data set waits for memory, or is READY and has lost it with a division. */
static bool any_without_memory(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (is_waiting(s->datasets[i]) || (s->datasets[i] && s->datasets[i]->state == MR_DATASET_READY))
            return true;
    return false;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;
}

/* P, and bytes and reserve of each arena. An object over half the arena has been refused before. */
static void divide(struct mr_fetch_workers *f, uint64_t total, uint64_t workers, uint64_t largest)
{
    uint64_t count = largest > 0 ? total / 3 / largest : workers;
    if (count > workers)
        count = workers;
    f->count = count > 0 ? (unsigned)count : 1;
    f->arena_bytes = total / f->count / MR_ARENA_PAGE * MR_ARENA_PAGE;
    /* A sixteenth at least, so that a data set opened later may have somewhat larger objects than the first one. */
    f->reserve_bytes = f->largest_bytes = round_up(largest);
    if (f->reserve_bytes < f->arena_bytes / 16)
        f->reserve_bytes = round_up(f->arena_bytes / 16);
}

/* Fails a data set whose largest object the arena can never take; true if it did. */
static bool refuse_too_large(struct mr_dataset *dataset, uint64_t total)
{
    if (round_up(mr_dataset_extent(dataset)) <= total / 2 / MR_ARENA_PAGE * MR_ARENA_PAGE)
        return false;
    char object[32];
    size_text(dataset->largest, object);
    char arena[32];
    size_text(total, arena);
    char wanted[32];
    setting_text(dataset->largest <= UINT64_MAX / 3 ? dataset->largest * 3 : UINT64_MAX, wanted);
    char text[400];
    snprintf(text, sizeof text,
             "its largest object has %llu bytes (%s), and the arena of %s must have room for two of them: set "
             "memory.arena_bytes = %s",
             (unsigned long long)dataset->largest, object, arena, wanted);
    mr_dataset_fail(dataset, MR_E_NO_MEMORY, text);
    return true;
}

/* Fails a data set whose largest object exceeds the reserve while the arenas are in use and cannot be divided anew. */
static void refuse_over_reserve(struct mr_dataset *dataset)
{
    struct mr_fetch_workers *f = &dataset->supervisor->fetch_workers;
    char object[32];
    size_text(dataset->largest, object);
    char reserve[32];
    size_text(f->reserve_bytes, reserve);
    char wanted[32];
    setting_text(16 * f->count * dataset->largest, wanted);
    char text[400];
    snprintf(text, sizeof text,
             "its largest object has %llu bytes (%s), and the memory was divided for objects of up to %s by what was "
             "opened first, and is in use: open this one first, or set memory.arena_bytes = %s",
             (unsigned long long)dataset->largest, object, reserve, wanted);
    mr_dataset_fail(dataset, MR_E_NO_MEMORY, text);
}

/* ---- a larger reserve ---- */

/* Starts the workers again with a larger reserve. There is no lane, so no extent can lie where the reserve will be. */
static void grow_reserve(struct mr_dataset *dataset)
{
    struct mr_supervisor *s = dataset->supervisor;
    struct mr_fetch_workers *f = &s->fetch_workers;
    f->reserve_bytes = f->largest_bytes = round_up(mr_dataset_extent(dataset));
    char reserve[32];
    size_text(f->reserve_bytes, reserve);
    mr_log_info("memory: %s of each arena are kept for the sample that is waited for, because of data set %u (%s)",
                reserve, dataset->number, mr_dataset_label(dataset));
    f->state = MR_ARENAS_RESERVING;
    mr_lanes_set_quota(s, 0);
    for (unsigned i = 0; i < f->count; i++) {
        struct mr_child *child = &f->workers[i];
        f->slots[i].reserved = f->slots[i].reserved && !arenas_grow(s); /* the reserve's new pages are not there yet */
        f->slots[i].renewing = mr_child_has_process(child) || child->state == MR_CHILD_WAITING;
        if (f->slots[i].renewing)
            mr_child_drain(child, true);
    }
}

/* The arenas are there: makes it READY or FAILED, enlarges the reserve for it, or lets it wait. False: it still
 * waits. */
static bool place(struct mr_dataset *dataset)
{
    struct mr_supervisor *s = dataset->supervisor;
    const struct mr_fetch_workers *f = &s->fetch_workers;
    int64_t now_ns = mr_clock_mono_ns();
    if (dataset->waits_ns == 0)
        dataset->waits_ns = now_ns;
    if (mr_dataset_extent(dataset) <= f->reserve_bytes)
        mr_dataset_ready(dataset);
    else if (round_up(mr_dataset_extent(dataset)) > f->arena_bytes / 2 ||
             now_ns - dataset->waits_ns > READERS_PATIENCE_NS)
        refuse_over_reserve(dataset);
    else if (s->lanes.used == 0)
        grow_reserve(dataset);
    else
        return false;
    return true;
}

/* ---- segments of a slot ---- */

static void close_slot(struct mr_fetch_slot *slot)
{
    mr_arenas_close(&slot->arena);
    mr_arenas_close_line(&slot->line);
    *slot = (struct mr_fetch_slot){.arena = MR_ARENA_FDS_NONE, .line = MR_WORKER_LINE_NONE};
}

static int make_arena(struct mr_supervisor *s, struct mr_fetch_slot *slot)
{
    return mr_arenas_make(s, &slot->arena, "arena", s->fetch_workers.arena_bytes);
}

/* ---- state ---- */

/* This division is over: workers end, and what waits for memory gets another one. */
static void abandon(struct mr_supervisor *s)
{
    s->fetch_workers.state = MR_ARENAS_NONE;
    mr_lanes_set_quota(s, 0);
    atomic_store_explicit(&s->board->producers, 0, memory_order_release);
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_drain(&s->fetch_workers.workers[i], false);
}

/* The memory cannot be had: data sets that are indexed fail, and a later data set tries again. */
static void give_up(struct mr_supervisor *s, enum mr_code code, const char *text)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->indexed)
            mr_dataset_fail(s->datasets[i], code, text);
    abandon(s);
}

static void fail_no_memory(struct mr_supervisor *s, const char *why)
{
    char total[32];
    size_text(s->fetch_workers.arena_bytes * s->fetch_workers.count, total);
    char text[MR_BOARD_TEXT];
    snprintf(text, sizeof text, "no shared memory of %s for the arena: %s%s", total, why,
             mr_error_names_limit(why) ? ""
                                       : ". Set memory.arena_bytes to less (or give the machine, the container or "
                                         "/dev/shm more)");
    give_up(s, MR_E_NO_MEMORY, text);
}

static void log_division(const struct mr_supervisor *s, uint64_t largest)
{
    char object[32];
    size_text(largest, object);
    char arena[32];
    size_text(s->fetch_workers.arena_bytes, arena);
    char reserve[32];
    size_text(s->fetch_workers.reserve_bytes, reserve);
    if (arenas_grow(s))
        mr_log_info("memory: largest object %s, so %u fetch workers with arenas of up to %s each, as much of it as is "
                    "used (memory.arena_bytes sets another bound)",
                    object, s->fetch_workers.count, arena);
    else
        mr_log_info("memory: largest object %s, so %u fetch workers with arenas of %s, %s of each kept for the sample "
                    "that is waited for",
                    object, s->fetch_workers.count, arena, reserve);
    if (s->fetch_workers.count < s->config.fetch.workers)
        mr_log_warning("%u fetch workers instead of %llu: an arena must have room for three of the largest objects; "
                       "more needs a larger memory.arena_bytes",
                       s->fetch_workers.count, (unsigned long long)s->config.fetch.workers);
}

/* Whether any slot has a process, or one that has ended and was not recovered from. */
static bool any_process(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        if (mr_child_has_process(&s->fetch_workers.workers[i]) || s->fetch_workers.workers[i].state == MR_CHILD_ENDED)
            return true;
    return false;
}

/* With all its starts before it. `failed` is for who looks at the board: nothing is paired with it. */
static void start_anew(struct mr_child *child)
{
    child->idle_starts = 0;
    atomic_store_explicit(&child->supervisor->board->producer[child->slot].failed, 0, memory_order_release);
    mr_child_start(child);
}

/* Divides the memory and starts the workers, which reserve their arenas' pages. The division is on the board before any
 * worker starts. On failure all data sets fail with the reason. */
static void fetch_workers_begin(struct mr_supervisor *s)
{
    struct mr_fetch_workers *f = &s->fetch_workers;
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++) {
        close_slot(&f->slots[i]); /* first: an earlier division's pages are not available before */
        f->slots[i].arena.memfd = f->memfd;
    }
    f->was_ready = false;
    uint64_t largest = largest_object(s), available = mr_memory_available_bytes(), total = s->arena_bytes;
    if (arenas_grow(s))
        total = mr_config_arena_bytes(&s->config, mr_memory_limit_bytes(), available);
    if (total < 2 * round_up(largest)) /* less is available than when the data set was admitted */
        total = 2 * round_up(largest);
    divide(f, total, s->config.fetch.workers, largest);
    log_division(s, largest);
    f->state = MR_ARENAS_RESERVING;
    if (f->arena_bytes * f->count > available) {
        char left[32];
        size_text(available, left);
        char why[100];
        snprintf(why, sizeof why, "only %s are left of the memory or its cgroup limit", left);
        fail_no_memory(s, why);
        return;
    }
    for (unsigned i = 0; i < f->count; i++) {
        if (mr_arenas_make_line(&f->slots[i].line) != 0 || make_arena(s, &f->slots[i]) != 0) {
            fail_no_memory(s, mr_error_text());
            return;
        }
    }
    atomic_store_explicit(&s->board->division, ++f->division, memory_order_relaxed);
    atomic_store_explicit(&s->board->producers, f->count, memory_order_release); /* B1: workers read it */
    for (unsigned i = 0; i < f->count; i++) {
        f->workers[i].state = MR_CHILD_FREE;
        start_anew(&f->workers[i]);
    }
}

/* Limits a reader's blocks to what a head has room for, and so that several fit the arena side by side. */
static void limit_block(struct mr_dataset *dataset)
{
    const struct mr_fetch_workers *f = &dataset->supervisor->fetch_workers;
    uint64_t most = dataset->supervisor->arena_bytes / 16;
    if (f->state != MR_ARENAS_NONE) {
        uint64_t shared = (f->arena_bytes - f->reserve_bytes) / 4;
        most = f->reserve_bytes < shared ? f->reserve_bytes : shared;
    }
    most = most / MR_ARENA_PAGE * MR_ARENA_PAGE;
    if (most < MR_ARENA_PAGE)
        most = MR_ARENA_PAGE;
    if (dataset->block_bytes > most)
        dataset->block_bytes = most;
}

/* A data set has its index: its blocks are cut to fit, or it is refused; workers that had failed get another
 * attempt. */
static void admit(struct mr_dataset *dataset)
{
    struct mr_supervisor *s = dataset->supervisor;
    struct mr_fetch_workers *f = &s->fetch_workers;
    limit_block(dataset);
    dataset->admitted = true;
    if (refuse_too_large(dataset, s->arena_bytes))
        return;
    f->announce = true;
    for (unsigned i = 0; i < f->count && f->state == MR_ARENAS_READY; i++) {
        if (f->workers[i].state == MR_CHILD_FAILED)
            start_anew(&f->workers[i]);
    }
}

static bool admit_indexed(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (!dataset || !dataset->indexed || dataset->admitted || dataset->state == MR_DATASET_FAILED)
            continue;
        admit(dataset);
        changed = true;
    }
    return changed;
}

/* FAILED came from a worker that reserves its pages: tries the other backing once, in a division of its own where
 * processes may have mapped this one's arenas. True: this division is over. */
static bool retry_without_room(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->fetch_workers.count; i++) {
        struct mr_fetch_slot *slot = &s->fetch_workers.slots[i];
        const struct mr_child *child = &s->fetch_workers.workers[i];
        if (!slot->no_room)
            continue;
        slot->no_room = false;
        if (!mr_arenas_fall_back(s, &slot->arena)) {
            fail_no_memory(s, child->fail_text);
            return true;
        }
        mr_log_info("the arena of fetch worker %u does not fit /dev/shm: memfd instead (%s)", i, child->fail_text);
        s->fetch_workers.workers[i].fail_text[0] = '\0';
        if (s->fetch_workers.was_ready) {
            s->fetch_workers.memfd = true;
            abandon(s);
            return true;
        }
        if (make_arena(s, slot) != 0) {
            fail_no_memory(s, mr_error_text());
            return true;
        }
        slot->arena_sent = false;
        s->fetch_workers.announce = true;
    }
    return false;
}

static bool all_reserved(const struct mr_fetch_workers *f)
{
    for (unsigned i = 0; i < f->count; i++)
        if (!f->slots[i].reserved || f->slots[i].renewing)
            return false;
    return true;
}

/* Brings the division as far as it can be now. */
static bool settle_memory(struct mr_supervisor *s)
{
    struct mr_fetch_workers *f = &s->fetch_workers;
    bool changed = false;
    if (f->state == MR_ARENAS_NONE && any_without_memory(s) && !any_process(s)) {
        fetch_workers_begin(s); /* not before the workers of an abandoned division have ended */
        changed = true;
    }
    if (f->state == MR_ARENAS_RESERVING)
        changed |= retry_without_room(s);
    if (f->state == MR_ARENAS_RESERVING && all_reserved(f)) {
        f->state = MR_ARENAS_READY;
        f->was_ready = true;
        mr_lanes_set_quota(s, f->count * (f->arena_bytes - f->reserve_bytes));
        changed = true;
    }
    for (unsigned i = 0; i < MR_DATASETS_MAX && f->state == MR_ARENAS_READY; i++)
        changed |= is_waiting(s->datasets[i]) && place(s->datasets[i]);
    return changed;
}

/* ---- messages to the workers ---- */

/* DATASET and LANE for all that this process was not sent yet; then ARENA, which means: begin. No lane that was there
 * when it began may come behind that: its extents would be free memory to the process. */
static void announce_to(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    struct mr_fetch_slot *slot = slot_of(child);
    uint64_t bit = UINT64_C(1) << child->slot;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (!dataset || !dataset->admitted || dataset->state == MR_DATASET_FAILED || dataset->dropping ||
            (dataset->sent_to & bit))
            continue;
        dataset->sent_to |= bit;
        mr_dataset_send(dataset, child);
    }
    for (unsigned i = 0; i < s->lanes.used; i++) {
        struct mr_registered_lane *entry = s->lanes.slots[i];
        if (!entry || entry->state == MR_LANE_DROPPING || (entry->sent_to & bit) ||
            entry->lane.division != s->fetch_workers.division) /* of older arenas, which no worker has any more */
            continue;
        if (child->queue) { /* that it does not read (stopped?): once it does, and ARENA after that */
            s->lanes.any_unsent = true;
            return;
        }
        entry->sent_to |= bit;
        mr_lane_restate(&entry->lane);
        struct mr_msg_out *out = mr_msg_new(MR_MSG_LANE);
        mr_msg_put_u64(out, "lane", i);
        mr_msg_put_fd(out, entry->fd);
        mr_child_send(child, out);
    }
    if (slot->arena_sent)
        return;
    slot->arena_sent = true;
    const struct mr_fetch_workers *f = &s->fetch_workers;
    uint64_t behind = f->arena_bytes - f->reserve_bytes;
    struct mr_arena_size size = {.bytes = f->arena_bytes,
                                 .reserve_bytes = f->reserve_bytes,
                                 .division = f->division,
                                 .grows = arenas_grow(s),
                                 .largest_bytes = f->largest_bytes,
                                 .first_bytes = behind < FIRST_BYTES ? behind : FIRST_BYTES};
    mr_arenas_send(child, &slot->arena, &size, !slot->reserved);
}

static void announce(struct mr_supervisor *s)
{
    if (!s->fetch_workers.announce && !s->lanes.any_unsent)
        return;
    s->fetch_workers.announce = s->lanes.any_unsent = false;
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        if (mr_child_has_process(&s->fetch_workers.workers[i]))
            announce_to(&s->fetch_workers.workers[i]);
}

static void send_drop_lane(struct mr_supervisor *s, uint32_t lane, uint64_t slots)
{
    for (unsigned i = 0; i < s->fetch_workers.count; i++) {
        if (!(slots & UINT64_C(1) << i) || s->fetch_workers.workers[i].queue)
            continue; /* a queue that it does not read (stopped?): it is sent again later, and no memory piles up */
        struct mr_msg_out *out = mr_msg_new(MR_MSG_DROP_LANE);
        mr_msg_put_u64(out, "lane", lane);
        mr_child_send(&s->fetch_workers.workers[i], out);
    }
}

/* DROP_LANE, again with each check of the lanes: a worker with a claim in it does not answer. */
static bool drop_lanes(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->lanes.used; i++) {
        struct mr_registered_lane *entry = s->lanes.slots[i];
        if (!entry || entry->state != MR_LANE_DROPPING)
            continue;
        if (!entry->drop_sent)
            entry->undropped = entry->sent_to;        /* none if it was closed before any worker was sent it */
        entry->undropped &= mr_fetch_workers_mask(s); /* one that is restarted meanwhile never learns of the lane */
        if (!entry->drop_sent || s->lanes.send_again)
            send_drop_lane(s, i, entry->undropped);
        entry->drop_sent = true;
        if (entry->undropped != 0)
            continue;
        mr_lanes_forget(s, i);
        changed = true;
    }
    return changed;
}

uint64_t mr_fetch_workers_drop_dataset(struct mr_supervisor *s, const struct mr_dataset *dataset)
{
    uint64_t slots = mr_fetch_workers_mask(s) & dataset->sent_to;
    for (unsigned i = 0; i < s->fetch_workers.count; i++) {
        if (!(slots & UINT64_C(1) << i))
            continue;
        struct mr_msg_out *out = mr_msg_new(MR_MSG_DROP_DATASET);
        mr_msg_put_u64(out, "dataset", dataset->number);
        mr_child_send(&s->fetch_workers.workers[i], out);
    }
    return slots;
}

uint64_t mr_fetch_workers_mask(const struct mr_supervisor *s)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        if (mr_child_has_process(&s->fetch_workers.workers[i]))
            mask |= UINT64_C(1) << i;
    return mask;
}

/* ---- messages from the workers ---- */

/* Only from here on the board shows the worker as alive. */
static void arena_ready(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    slot_of(child)->reserved = true;
    slot_of(child)->renewing = false;
    struct mr_board_producer *board = &s->board->producer[child->slot];
    atomic_store_explicit(&board->pid, (uint32_t)child->pid, memory_order_relaxed);
    atomic_store_explicit(&board->generation, child->generation, memory_order_relaxed);
    atomic_store_explicit(&board->alive, 1, memory_order_release);
}

static int message(struct mr_child *child, struct mr_msg_in *in)
{
    struct mr_supervisor *s = child->supervisor;
    uint64_t number, code;
    const char *text;
    switch (in->type) {
    case MR_MSG_ARENA_READY:
        arena_ready(child);
        return 0;
    case MR_MSG_DROPPED:
        if (mr_msg_get_u64(in, "lane", &number) != 0)
            return -1;
        mr_lanes_dropped(s, number, child->slot);
        return 0;
    case MR_MSG_DATASET_DROPPED:
        if (mr_msg_get_u64(in, "dataset", &number) != 0)
            return -1;
        if (number < MR_DATASETS_MAX && s->datasets[number] && s->datasets[number]->dropping)
            s->datasets[number]->undropped &= ~(UINT64_C(1) << child->slot);
        return 0;
    case MR_MSG_COMPOSE:
        if (mr_msg_get_u64(in, "dataset", &number) != 0 || mr_msg_get_str(in, "text", &text) != 0 ||
            !mr_dataset_at(s, number))
            return -1;
        snprintf(mr_dataset_at(s, number)->compose, sizeof s->datasets[0]->compose, "%s", text);
        return 0;
    case MR_MSG_FAILED:
        if (!mr_msg_has(in, "dataset")) { /* if it is not a lack of memory, its exit status decides */
            slot_of(child)->no_room = s->fetch_workers.state == MR_ARENAS_RESERVING &&
                                      child->state == MR_CHILD_RUNNING && child->fail_code == MR_E_NO_MEMORY;
            return 0;
        }
        if (mr_msg_get_u64(in, "dataset", &number) != 0 || mr_msg_get_u64(in, "code", &code) != 0 ||
            mr_msg_get_str(in, "text", &text) != 0)
            return -1;
        struct mr_dataset *dataset = mr_dataset_at(s, number);
        if (!dataset)
            return -1;
        mr_dataset_fail(dataset, code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_INTERNAL, text);
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "a fetch worker does not send messages of type %d", (int)in->type);
        return -1;
    }
}

/* ---- life of a worker ---- */

static void fetch_workers_setup(struct mr_child *child, struct mr_msg_out *out)
{
    mr_arenas_put_line(&slot_of(child)->line, out);
}

/* A new process in the slot knows nothing yet: every data set and lane is announced to it again. */
static void started(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    uint64_t others = ~(UINT64_C(1) << child->slot);
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i])
            s->datasets[i]->sent_to &= others;
    for (unsigned i = 0; i < s->lanes.used; i++)
        if (s->lanes.slots[i])
            s->lanes.slots[i]->sent_to &= others;
    slot_of(child)->arena_sent = slot_of(child)->no_room = false;
    s->fetch_workers.announce = true;
}

static bool is_poison_signal(int signal, bool oom)
{
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGILL || signal == SIGFPE || oom;
}

/* Recovers what the slot's process held, before the slot is started again. */
static void recover(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    int signal = child->end.signal;
    bool oom = signal == SIGKILL && mr_oom_just_now(&s->oom);
    if (oom)
        mr_log_limited(&child->oom_logged, MR_LOG_ERROR,
                       "fetch worker %u was killed because the memory limit was reached: lower memory.arena_bytes or "
                       "fetch.connections, or raise the limit",
                       child->slot);
    atomic_store_explicit(&s->board->producer[child->slot].alive, 0, memory_order_release);
    if (mr_lanes_producer_died(s, child->slot, is_poison_signal(signal, oom), signal))
        child->idle_starts = 0; /* the ticket is to blame, and will not kill forever */
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i])
            s->datasets[i]->undropped &= ~(UINT64_C(1) << child->slot);
}

/* The slot cannot work: all data sets fail. */
static void failed(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    atomic_store_explicit(&s->board->producer[child->slot].failed, 1, memory_order_release);
    mr_dataset_fail_all(s, child->fail_code, child->fail_text);
    if (s->fetch_workers.state == MR_ARENAS_RESERVING)
        give_up(s, child->fail_code, child->fail_text);
}

static bool settle_workers(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->config.fetch.workers && i < MR_PRODUCERS_MAX; i++) {
        struct mr_child *child = &s->fetch_workers.workers[i];
        if (child->state == MR_CHILD_ENDED)
            recover(child);
        changed |= mr_child_settle(child);
        if (mr_child_has_rested(child) && child->state == MR_CHILD_FAILED && s->state <= MR_SUP_RUNNING) {
            failed(child);
            changed = true;
        }
    }
    return changed;
}

bool mr_fetch_workers_settle(struct mr_supervisor *s)
{
    bool changed = settle_workers(s);
    if (s->state <= MR_SUP_RUNNING && !s->indexing) { /* `millrace index`: there are no readers */
        changed |= admit_indexed(s);
        changed |= settle_memory(s);
    }
    announce(s);
    changed |= drop_lanes(s);
    if (s->lanes.wake_workers)
        for (unsigned i = 0; i < s->fetch_workers.count; i++)
            mr_arenas_wake(&s->fetch_workers.slots[i].line);
    s->lanes.wake_workers = s->lanes.send_again = false;
    return changed;
}

void mr_fetch_workers_renew(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_drain(&s->fetch_workers.workers[i], true);
}

void mr_fetch_workers_drain(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_drain(&s->fetch_workers.workers[i], false);
}

void mr_fetch_workers_kill(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_kill(&s->fetch_workers.workers[i]);
}

static const struct mr_child_role fetch_role = {.name = "fetch",
                                                .counters = MR_ROLE_FETCH,
                                                .first_counter = MR_WC_OBJECTS,
                                                .last_counter = MR_WC_FAILED,
                                                .setup = fetch_workers_setup,
                                                .started = started,
                                                .message = message};

int mr_fetch_workers_init(struct mr_supervisor *s)
{
    struct mr_fetch_workers *f = &s->fetch_workers;
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        f->slots[i] = (struct mr_fetch_slot){.arena = MR_ARENA_FDS_NONE, .line = MR_WORKER_LINE_NONE};
    for (unsigned i = 0; i < s->config.fetch.workers && i < MR_PRODUCERS_MAX; i++)
        if (mr_child_init(&f->workers[i], s, &fetch_role, i) != 0)
            return -1;
    return 0;
}

void mr_fetch_workers_close(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->config.fetch.workers && i < MR_PRODUCERS_MAX; i++) {
        if (!s->fetch_workers.workers[i].supervisor)
            break; /* the start of the run ended before them */
        mr_child_close(&s->fetch_workers.workers[i]);
        close_slot(&s->fetch_workers.slots[i]);
    }
}

uint64_t mr_fetch_workers_sum(const struct mr_supervisor *s, enum mr_worker_counter which)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        sum += mr_counter_get(s->fetch_workers.workers[i].counters, which);
    return sum;
}
