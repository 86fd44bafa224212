/*
 * lanes.c - see lanes.h. A slot is reused only when every word of its lane is EMPTY and every fetch worker has
 * unmapped it. The quotas of the lanes that share the memory add up to no more than quota_bytes. Tickets are changed
 * here only by recovery, and where their data set or their object has failed; everything else is done by the lane's
 * two ends.
 */
#include "supervisor/lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "shm/memory/segment.h"
#include "shm/ring/wake.h"
#include "supervisor/run_impl.h"

#define CHECK_MS       100
#define WAITING_WEIGHT 0.02 /* of one check: about the last 5 s count */

static void check_due(struct mr_timer *timer);

#define SUPERVISOR_OF(timer_) MR_CONTAINER_OF(timer_, mr_supervisor, lanes.timer)

void mr_lanes_init(struct mr_supervisor *s)
{
    s->lanes.timer.run = check_due;
}

void mr_lanes_forget(struct mr_supervisor *s, uint32_t number)
{
    struct mr_lanes *lanes = &s->lanes;
    struct mr_registered_lane *entry = lanes->slots[number];
    lanes->slots[number] = NULL;
    while (lanes->used > 0 && !lanes->slots[lanes->used - 1])
        lanes->used--;
    unsigned kept = 0;
    for (unsigned i = 0; i < lanes->suspect_count; i++)
        if (lanes->suspects[i].lane != number)
            lanes->suspects[kept++] = lanes->suspects[i];
    lanes->suspect_count = kept;
    mr_lane_unmap(&entry->lane);
    close(entry->fd);
    free(entry);
}

void mr_lanes_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->lanes.timer);
    while (s->lanes.used > 0)
        mr_lanes_forget(s, s->lanes.used - 1);
}

/* ---- quota ---- */

/* Whether it may still use the memory; one in the arenas of an older division does not. */
static bool shares_quota(const struct mr_supervisor *s, const struct mr_registered_lane *entry)
{
    return entry && entry->state != MR_LANE_DROPPING && entry->lane.division == s->fetch_workers.division;
}

/* An equal share to each lane that may still use it. */
static void deal_quota(struct mr_supervisor *s)
{
    unsigned sharing = 0;
    for (unsigned i = 0; i < s->lanes.used; i++)
        sharing += shares_quota(s, s->lanes.slots[i]);
    uint64_t share = s->lanes.quota_bytes / (sharing > 0 ? sharing : 1);
    for (unsigned i = 0; i < s->lanes.used; i++)
        if (s->lanes.slots[i])
            atomic_store_explicit(&s->lanes.slots[i]->lane.shared->quota_bytes, share,
                                  memory_order_relaxed); /* a hint: its readers need no other field with it */
}

void mr_lanes_set_quota(struct mr_supervisor *s, uint64_t bytes)
{
    s->lanes.quota_bytes = bytes;
    deal_quota(s);
}

/* ---- open and close ---- */

static int free_slot(const struct mr_lanes *lanes)
{
    for (unsigned i = 0; i < MR_LANE_SLOTS; i++) {
        unsigned slot = (lanes->next + i) % MR_LANE_SLOTS;
        if (!lanes->slots[slot])
            return (int)slot;
    }
    return -1;
}

/* Whether a lane may be opened of this data set, which exists. MR_E_BUSY is the only error that a client may retry. */
static int may_open(struct mr_supervisor *s, uint32_t dataset)
{
    if (s->state != MR_SUP_RUNNING) {
        mr_error_set(MR_E_GONE, "the millrace supervisor is ending: no more lanes are opened");
        return -1;
    }
    if (s->datasets[dataset]->closing) {
        mr_error_set(MR_E_USAGE, "data set %u was closed", dataset);
        return -1;
    }
    if (s->datasets[dataset]->state == MR_DATASET_FAILED) {
        mr_dataset_explain(s->datasets[dataset]);
        return -1;
    }
    if (s->datasets[dataset]->state != MR_DATASET_READY) {
        mr_error_set(MR_E_BUSY, "data set %u (%s) is not ready", dataset, mr_dataset_label(s->datasets[dataset]));
        return -1;
    }
    if (s->lanes.quota_bytes == 0) {
        mr_error_set(MR_E_BUSY, "the memory is being divided: ask again");
        return -1;
    }
    if (free_slot(&s->lanes) < 0) {
        mr_error_set(MR_E_NO_MEMORY,
                     "all %u places for lanes are taken: %u are open, and fetch workers still have the "
                     "others (the log names one that is stopped)",
                     MR_LANE_SLOTS, s->lanes.open);
        return -1;
    }
    if (s->lanes.open >= s->config.lanes.max) {
        mr_error_set(MR_E_NO_MEMORY, "%u lanes are open: raise lanes.max (%llu), or use fewer DataLoader workers",
                     s->lanes.open, (unsigned long long)s->config.lanes.max);
        return -1;
    }
    return 0;
}

struct mr_registered_lane *mr_lanes_open(struct mr_supervisor *s, struct mr_client_peer *client, uint32_t dataset,
                                         uint64_t window)
{
    struct mr_lanes *lanes = &s->lanes;
    if (may_open(s, dataset) != 0)
        return NULL;
    struct mr_registered_lane *entry = calloc(1, sizeof *entry);
    if (!entry) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a lane");
        return NULL;
    }
    unsigned slot = (unsigned)free_slot(lanes);
    uint32_t rounded = mr_lane_window_round(window);
    size_t size = mr_lane_size(rounded);
    void *segment = NULL;
    /* A memfd regardless of memory.backing: only that can be sealed, so that no consumer can cut it short under a
     * producer, which would die of SIGBUS. */
    entry->fd = mr_segment_new(MR_BACKING_MEMFD, "lane", size, 1);
    if (entry->fd >= 0)
        segment = mr_segment_map(entry->fd, size, 1, NULL);
    if (!segment)
        goto fail;
    mr_lane_format(segment, rounded, slot, slot + 1, dataset, 0, 0, s->fetch_workers.division);
    mr_segment_unmap(segment, size);
    if (mr_lane_map(&entry->lane, entry->fd) != 0)
        goto fail;
    entry->state = MR_LANE_OPEN;
    entry->client = client;
    entry->opened_ns = mr_clock_mono_ns();
    lanes->slots[slot] = entry;
    lanes->next = (slot + 1) % MR_LANE_SLOTS;
    if (slot >= lanes->used)
        lanes->used = slot + 1;
    lanes->open++;
    lanes->any_unsent = true;
    deal_quota(s);
    if (!lanes->timer.active)
        mr_events_start(&s->events, &lanes->timer, CHECK_MS);
    return entry;
fail:
    mr_error_append("lane for data set %u", dataset);
    if (entry->fd >= 0)
        close(entry->fd);
    free(entry);
    return NULL;
}

/* Also for a lane that lingers already: with owner_dead its HELD words are emptied too. */
static void begin_lingering(struct mr_supervisor *s, struct mr_registered_lane *entry, bool owner_dead)
{
    mr_lane_close(&entry->lane, owner_dead); /* idempotent: the owner has usually done it */
    entry->check = true;
    if (entry->state != MR_LANE_OPEN)
        return;
    entry->state = MR_LANE_LINGERING;
    s->lanes.open--;
}

int mr_lanes_close_one(struct mr_supervisor *s, struct mr_client_peer *client, uint64_t number)
{
    struct mr_registered_lane *entry = number < s->lanes.used ? s->lanes.slots[number] : NULL;
    if (!entry)
        return 0; /* closed in memory and noticed, found empty and dropped before the message came */
    if (entry->client != client) {
        mr_error_set(MR_E_USAGE, "lane %llu is not this process's", (unsigned long long)number);
        return -1;
    }
    if (entry->state == MR_LANE_OPEN)
        begin_lingering(s, entry, false);
    return 0;
}

void mr_lanes_client_died(struct mr_supervisor *s, struct mr_client_peer *client)
{
    bool any = false;
    for (unsigned i = 0; i < s->lanes.used; i++) {
        struct mr_registered_lane *entry = s->lanes.slots[i];
        if (!entry || entry->client != client)
            continue;
        entry->client = NULL;
        if (entry->state != MR_LANE_DROPPING) {
            begin_lingering(s, entry, true);
            any = true;
        }
    }
    if (any) {
        mr_lanes_wake_all(s);
        s->lanes.wake_workers = true;
    }
}

unsigned mr_lanes_of(const struct mr_supervisor *s, const struct mr_client_peer *client)
{
    unsigned count = 0;
    for (unsigned i = 0; i < s->lanes.used; i++)
        count += s->lanes.slots[i] && s->lanes.slots[i]->client == client;
    return count;
}

unsigned mr_lanes_of_dataset(const struct mr_supervisor *s, uint32_t dataset)
{
    unsigned count = 0;
    for (unsigned i = 0; i < s->lanes.used; i++)
        count += s->lanes.slots[i] && s->lanes.slots[i]->lane.dataset == dataset;
    return count;
}

/* ---- what they show ---- */

void mr_lanes_count_states(const struct mr_lane *lane, unsigned counts[16])
{
    memset(counts, 0, 16 * sizeof counts[0]);
    for (uint32_t slot = 0; slot < lane->window; slot++)
        counts[mr_word_state(mr_lane_load(lane, slot)) & 15]++;
}

unsigned mr_lanes_ahead(const struct mr_registered_lane *entry)
{
    uint64_t said = mr_counter_get(&entry->lane.shared->counters, MR_CC_AHEAD);
    return said > 0 && said < entry->lane.window ? (unsigned)said : entry->lane.window;
}

/* ---- settle ---- */

/* Ten times a second while there are lanes: what comes without a message. */
static void check_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = SUPERVISOR_OF(timer);
    s->lanes.due = s->lanes.send_again = true;
    if (s->lanes.used > 0)
        mr_events_start(&s->events, timer, CHECK_MS);
}

/* PENDING tickets of a lane whose data set has failed become FAILED. */
static void fail_waiting(struct mr_registered_lane *entry, const struct mr_board_dataset *board)
{
    for (uint32_t slot = 0; slot < entry->lane.window; slot++) {
        uint64_t word = mr_lane_load(&entry->lane, slot);
        if (mr_word_state(word) == MR_PENDING)
            mr_lane_poison(&entry->lane, slot, word, board->code, board->text);
    }
    mr_wake_consumer_always(&entry->lane);
    entry->failed = true;
}

static void sample_waiting(struct mr_registered_lane *entry)
{
    bool waits = atomic_load_explicit(&entry->lane.shared->want, memory_order_relaxed) != 0;
    entry->waiting += WAITING_WEIGHT * ((waits ? 1.0 : 0.0) - entry->waiting);
}

/* True when it begins to drop. */
static bool lanes_settle_one(struct mr_supervisor *s, struct mr_registered_lane *entry)
{
    const struct mr_dataset *dataset = s->datasets[entry->lane.dataset];
    if (dataset && dataset->state == MR_DATASET_FAILED && !entry->failed)
        fail_waiting(entry, &s->board->dataset[dataset->number]);
    if (s->lanes.due) {
        sample_waiting(entry);
        if (entry->state == MR_LANE_OPEN && mr_lane_is_closed(&entry->lane))
            begin_lingering(s, entry, false); /* closed in memory, and the message is late or was never sent */
        entry->check = true;
    }
    bool empty = entry->check && entry->state == MR_LANE_LINGERING && mr_lane_is_empty(&entry->lane);
    entry->check = false;
    if (empty)
        entry->state = MR_LANE_DROPPING;
    return empty;
}

bool mr_lanes_settle(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < s->lanes.used; i++)
        if (s->lanes.slots[i])
            changed |= lanes_settle_one(s, s->lanes.slots[i]);
    s->lanes.due = false;
    if (changed)
        deal_quota(s);
    return changed;
}

void mr_lanes_dropped(struct mr_supervisor *s, uint64_t number, unsigned slot)
{
    struct mr_registered_lane *entry = number < s->lanes.used ? s->lanes.slots[number] : NULL;
    if (entry && entry->state == MR_LANE_DROPPING) /* else it is a second answer to a repeated DROP_LANE */
        entry->undropped &= ~(UINT64_C(1) << slot);
}

/* ---- recovery ---- */

void mr_lanes_wake_all(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->lanes.used; i++)
        if (s->lanes.slots[i])
            mr_wake_consumer_always(&s->lanes.slots[i]->lane);
}

/* Counts one more death while this ticket was alone in its worker. */
static void suspect(struct mr_lanes *lanes, uint32_t lane, uint64_t number)
{
    unsigned at = 0;
    while (at < lanes->suspect_count && (lanes->suspects[at].lane != lane || lanes->suspects[at].number != number))
        at++;
    if (at == MR_POISON_MAX)
        at = 0; /* more suspects than can be remembered: one of them is replaced */
    if (at < lanes->suspect_count && lanes->suspects[at].lane == lane && lanes->suspects[at].number == number) {
        lanes->suspects[at].deaths++;
        return;
    }
    lanes->suspects[at] = (struct mr_suspect){lane, number, 1};
    if (at == lanes->suspect_count)
        lanes->suspect_count++;
}

/* Before recovery, while the words still name the dead worker: counts the tickets that it fetched solo. True: there are
 * some. */
static bool count_poison(struct mr_supervisor *s, uint32_t number, unsigned producer)
{
    bool any = false;
    const struct mr_lane *lane = &s->lanes.slots[number]->lane;
    for (uint32_t slot = 0; slot < lane->window; slot++) {
        uint64_t word = mr_lane_load(lane, slot);
        if (mr_word_state(word) != MR_FILLING || mr_word_owner(word) != producer || mr_word_attempt(word) < 2)
            continue;
        suspect(&s->lanes, number, mr_lane_number(lane, slot, mr_word_lap(word)));
        any = true;
    }
    return any;
}

/* Fails tickets that have killed often enough, if they are PENDING again. */
static void poison(struct mr_supervisor *s, int signal)
{
    for (unsigned i = 0; i < s->lanes.suspect_count; i++) {
        struct mr_suspect *at = &s->lanes.suspects[i];
        if (at->deaths < MR_POISON_DEATH)
            continue;
        struct mr_lane *lane = &s->lanes.slots[at->lane]->lane;
        uint32_t slot = mr_lane_slot(lane, at->number);
        uint64_t word = mr_lane_load(lane, slot);
        char text[MR_FAIL_TEXT];
        snprintf(text, sizeof text, "this object killed the fetch worker %u times (signal %d): please report it",
                 at->deaths, signal);
        if (mr_word_state(word) == MR_PENDING && mr_word_lap(word) == mr_lane_lap(lane, at->number) &&
            mr_lane_poison(lane, slot, word, MR_E_INTERNAL, text)) {
            mr_log_error("lane %u: ticket %llu: %s", at->lane, (unsigned long long)at->number, text);
            mr_wake_consumer(lane);
        }
    }
}

bool mr_lanes_producer_died(struct mr_supervisor *s, unsigned slot, bool poisonous, int signal)
{
    unsigned recovered = 0;
    bool suspected = false;
    for (unsigned i = 0; i < s->lanes.used; i++) {
        if (!s->lanes.slots[i])
            continue;
        /* It can no longer answer DROP_LANE, and the next one in this slot never learns of the lane. */
        s->lanes.slots[i]->undropped &= ~(UINT64_C(1) << slot);
        if (poisonous)
            suspected |= count_poison(s, i, slot);
        recovered += mr_lane_recover(&s->lanes.slots[i]->lane, slot);
    }
    if (poisonous)
        poison(s, signal);
    mr_lanes_wake_all(s);
    s->lanes.wake_workers = true;
    if (recovered > 0)
        mr_log_limited(&s->lanes.recovery_logged, MR_LOG_INFO,
                       "fetch worker %u: %u samples that it was downloading are open again", slot, recovered);
    return suspected;
}
