/*
 * ckpt_lanes.c - see ckpt_lanes.h. A lane is in the registry from OPEN_WRITER until its memory is free: as long as it
 * is there, its part of the checkpoint arena is given to no one else. A sealed lane is never aborted; it ends with an
 * outcome, and an outcome that the client has not seen counts as a lost promise exactly once.
 */
#include "supervisor/ckpt_lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "base/size.h"
#include "base/uri.h"
#include "shm/memory/segment.h"
#include "supervisor/ckpt_share.h"
#include "supervisor/run_impl.h"

#define CHECK_MS   100
#define DEATHS_MAX 8u
#define NAME_MAX_  1024u /* bytes of an object's name: GCS and S3 alike */

#define SUPERVISOR_OF(timer_) MR_CONTAINER_OF(timer_, mr_supervisor, ckpt_lanes.timer)

static void check_due(struct mr_timer *timer);

void mr_ckpt_lanes_init(struct mr_supervisor *s)
{
    s->ckpt_lanes.timer.run = check_due;
}

static bool is_sealed(const struct mr_ckpt_entry *entry)
{
    return mr_ckpt_part_fate(&entry->lane) == MR_FATE_SEALED;
}

/* The text lies where a trainer may write: what is not UTF-8, or could move a cursor, becomes "?". */
static void make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != 0;) {
        unsigned more = *at < 0x80 ? 0 : *at >= 0xc2 && *at < 0xe0 ? 1 : *at >= 0xe0 && *at < 0xf0 ? 2 : 3, i = 1;
        bool good = *at < 0x80 ? *at >= 0x20 && *at != 0x7f : *at >= 0xc2 && *at < 0xf5;
        while (good && i <= more && (at[i] & 0xc0) == 0x80)
            i++;
        if (good && i == more + 1) {
            at += i;
        } else {
            *at++ = '?';
        }
    }
}

static enum mr_ckpt_part_outcome outcome_of(const struct mr_ckpt_entry *entry, char text[MR_CKPT_PART_TEXT])
{
    if (text)
        text[0] = '\0';
    uint32_t code, crc32c;
    uint64_t generation;
    enum mr_ckpt_part_outcome outcome = mr_ckpt_part_result(&entry->lane, &code, text, &generation, &crc32c);
    if (text)
        make_printable(text);
    return outcome;
}

static bool has_ended(const struct mr_ckpt_entry *entry)
{
    return outcome_of(entry, NULL) != MR_CKPT_PART_UNDECIDED;
}

/* Counts a promise that was not kept, if the client that made it has not seen the end. */
static void count_if_lost(struct mr_supervisor *s, const struct mr_ckpt_entry *entry)
{
    if (!is_sealed(entry) || entry->seen)
        return;
    char text[MR_CKPT_PART_TEXT];
    enum mr_ckpt_part_outcome outcome = outcome_of(entry, text);
    if (outcome == MR_CKPT_PART_DONE)
        return;
    s->ckpt_lanes.lost++;
    mr_log_error("checkpoint %s was promised (all its bytes had been given) and is not saved: %s", entry->uri,
                 outcome == MR_CKPT_PART_UNDECIDED ? "it was not finished" : text);
}

void mr_ckpt_lanes_forget(struct mr_supervisor *s, uint32_t number)
{
    struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[number];
    count_if_lost(s, entry);
    s->ckpt_lanes.slots[number] = NULL;
    s->ckpt_lanes.open--;
    mr_ckpt_part_unmap(&entry->lane);
    close(entry->fd);
    free(entry->uri);
    free(entry);
}

void mr_ckpt_lanes_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->ckpt_lanes.timer);
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++)
        if (s->ckpt_lanes.slots[i])
            mr_ckpt_lanes_forget(s, i);
}

/* ---- memory ---- */

/* What a lane still needs: of a sealed one, from the first slot that is in use to the last one. Its fate is read first:
 * a process that sees SEALED sees each part READY or beyond (P6), and what is free then stays so. */
static struct mr_ckpt_extent extent(const struct mr_ckpt_entry *entry)
{
    const struct mr_ckpt_lane *lane = &entry->lane;
    uint32_t first = 0, end = lane->slots;
    if (is_sealed(entry)) {
        while (first < end && !mr_ckpt_part_in_use(lane, first))
            first++;
        while (end > first && !mr_ckpt_part_in_use(lane, end - 1))
            end--;
    }
    return (struct mr_ckpt_extent){lane->arena_offset + first * lane->part_bytes, (end - first) * lane->part_bytes};
}

/* Fills `used` with the parts of the checkpoint arena that are in use, sorted by offset, and returns their number. */
static unsigned extents(const struct mr_supervisor *s, struct mr_ckpt_extent used[MR_CKPT_LANES_MAX])
{
    unsigned count = 0;
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++) {
        const struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry)
            continue;
        struct mr_ckpt_extent one = extent(entry);
        if (one.bytes == 0)
            continue;
        unsigned at = count++;
        for (; at > 0 && used[at - 1].offset > one.offset; at--)
            used[at] = used[at - 1];
        used[at] = one;
    }
    return count;
}

uint64_t mr_ckpt_lanes_free_bytes(const struct mr_supervisor *s)
{
    struct mr_ckpt_extent used[MR_CKPT_LANES_MAX];
    uint64_t bytes = s->write_workers.arena_bytes;
    for (unsigned i = 0, count = extents(s, used); i < count; i++)
        bytes -= used[i].bytes;
    return bytes;
}

/* Names the holders of the memory, in the text of BUSY, which a writer that waits too long reports in the end. */
static void set_no_room(const struct mr_supervisor *s, const struct mr_ckpt_share *share, unsigned holding)
{
    char holders[600] = "", size[32];
    size_t used = 0;
    unsigned named = 0;
    mr_size_text((double)s->write_workers.arena_bytes, size);
    char part[32];
    mr_size_text((double)(share->part_bytes), part);
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX && named < 4; i++) {
        const struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        uint64_t bytes = entry ? extent(entry).bytes : 0;
        if (bytes == 0)
            continue;
        char held[32];
        mr_size_text((double)bytes, held);
        int n = snprintf(holders + used, sizeof holders - used, "%s%.80s (%s, process %d)", named > 0 ? ", " : "",
                         entry->uri, held, (int)entry->pid);
        used += n > 0 && (size_t)n < sizeof holders - used ? (size_t)n : 0;
        named++;
    }
    mr_error_set(MR_E_BUSY,
                 "no room for two parts of %s in checkpoint.arena_bytes (%s): %u open writers hold it: %s%s. Raise "
                 "checkpoint.arena_bytes, or write fewer checkpoints at once",
                 part, size, holding, holders, holding > named ? ", ..." : "");
}

/* ---- open ---- */

/* Whether the URI can name a checkpoint at all. Nothing is asked of the store. */
static int check_uri(const char *text)
{
    if (strlen(text) > MR_CKPT_PART_URI_MAX) {
        mr_error_set(MR_E_USAGE, "a checkpoint's URI of %zu bytes is longer than any object's name", strlen(text));
        return -1;
    }
    struct mr_uri uri;
    if (mr_uri_init(&uri, text) != 0) {
        mr_error_append("checkpoint");
        return -1;
    }
    size_t length = strlen(uri.key);
    int rc = 0;
    if (length == 0 || (uri.scheme == MR_SCHEME_FILE && uri.key[length - 1] == '/')) {
        mr_error_set(MR_E_USAGE, "checkpoint: \"%s\" names no object: write %s", text,
                     uri.scheme == MR_SCHEME_FILE ? "file:///folder/NAME" : "gs://bucket/NAME");
        rc = -1;
    } else if (uri.scheme != MR_SCHEME_FILE && length > NAME_MAX_) {
        mr_error_set(MR_E_USAGE, "checkpoint: an object's name has at most %u bytes, and \"%.64s...\" has %zu",
                     NAME_MAX_, uri.key, length);
        rc = -1;
    }
    mr_uri_close(&uri);
    return rc;
}

static int free_slot(const struct mr_ckpt_lanes *lanes)
{
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++) {
        unsigned slot = (lanes->next + i) % MR_CKPT_LANES_MAX;
        if (!lanes->slots[slot])
            return (int)slot;
    }
    mr_error_set(MR_E_BUSY, "%u checkpoint writers are open, and there are no more: write fewer at once",
                 MR_CKPT_LANES_MAX);
    return -1;
}

/* The control segment. 0 or -1. */
static int make_lane(struct mr_ckpt_entry *entry, const struct mr_ckpt_part_format *format, uint64_t arena_bytes)
{
    size_t size = mr_ckpt_part_size(format->slots);
    /* A memfd regardless of memory.backing: only that can be sealed, so that no trainer can cut it short. */
    entry->fd = mr_segment_new(MR_BACKING_MEMFD, "checkpoint lane", size, 1);
    if (entry->fd < 0)
        return -1;
    void *segment = mr_segment_map(entry->fd, size, 1, NULL);
    if (!segment)
        return -1;
    mr_ckpt_part_format(segment, format);
    mr_segment_unmap(segment, size);
    return mr_ckpt_part_map(&entry->lane, entry->fd, arena_bytes);
}

static void destroy_unregistered(struct mr_ckpt_entry *entry)
{
    if (!entry)
        return;
    mr_ckpt_part_unmap(&entry->lane);
    if (entry->fd >= 0)
        close(entry->fd);
    free(entry->uri);
    free(entry);
}

int mr_ckpt_lanes_check(const struct mr_supervisor *s, const char *uri)
{
    if (s->state == MR_SUP_RUNNING)
        return check_uri(uri);
    mr_error_set(MR_E_GONE, "the millrace supervisor is ending: no more checkpoints are begun");
    return -1;
}

struct mr_ckpt_entry *mr_ckpt_lanes_open(struct mr_supervisor *s, struct mr_client_peer *client, const char *uri,
                                         bool if_absent, uint64_t sharers, unsigned worker)
{
    struct mr_ckpt_lanes *lanes = &s->ckpt_lanes;
    struct mr_ckpt_part_format format = {0};
    int slot = free_slot(lanes);
    if (slot < 0)
        return NULL;
    uint64_t arena_bytes = s->write_workers.arena_bytes;
    struct mr_ckpt_extent used[MR_CKPT_LANES_MAX];
    unsigned count = extents(s, used);
    uint64_t bytes = mr_ckpt_share_bytes(arena_bytes, mr_ckpt_share_gap(arena_bytes, used, count),
                                         s->config.checkpoint.workers, count, sharers);
    struct mr_ckpt_share share = mr_ckpt_share(bytes, arena_bytes, s->config.checkpoint.part_bytes);
    if (!mr_ckpt_share_place(&share, arena_bytes, used, count, &format.arena_offset)) {
        set_no_room(s, &share, count);
        return NULL;
    }
    format.slots = share.slots;
    format.part_bytes = share.part_bytes;
    format.lane = (uint32_t)slot;
    format.trainer = (uint32_t)slot + 1;
    format.worker = worker;
    struct mr_ckpt_entry *entry = calloc(1, sizeof *entry);
    if (entry)
        *entry = (struct mr_ckpt_entry){.fd = -1, .uri = strdup(uri)};
    if (!entry || !entry->uri) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checkpoint writer");
        destroy_unregistered(entry);
        return NULL;
    }
    if (make_lane(entry, &format, arena_bytes) != 0) {
        mr_error_append("checkpoint %.200s", uri);
        destroy_unregistered(entry);
        return NULL;
    }
    entry->if_absent = if_absent;
    entry->client = client;
    entry->pid = client->pid;
    entry->opened_ns = mr_clock_mono_ns();
    lanes->slots[slot] = entry;
    lanes->next = ((unsigned)slot + 1) % MR_CKPT_LANES_MAX;
    lanes->open++;
    if (!lanes->timer.active)
        mr_events_start(&s->events, &lanes->timer, CHECK_MS);
    mr_log_debug("checkpoint %s: writer %d, write worker %u, %u parts of %llu bytes", uri, slot, worker, format.slots,
                 (unsigned long long)format.part_bytes);
    return entry;
}

/* ---- the end of a lane ---- */

void mr_ckpt_entry_progress(const struct mr_ckpt_entry *entry, uint64_t *stored, uint64_t *total)
{
    unsigned missing = 0;
    *stored = *total = 0;
    /* Parts are stored out of order, but no further apart than there are slots: a longer gap is the end. */
    for (uint64_t i = 0; i < MR_CKPT_PARTS_MAX && missing <= entry->lane.slots; i++) {
        struct mr_ckpt_part_record record;
        bool there = mr_ckpt_part_record_get(&entry->lane, i, &record);
        missing = there ? 0 : missing + 1;
        *stored += there ? record.length : 0;
    }
    uint32_t parts;
    if (is_sealed(entry) && mr_ckpt_part_totals(&entry->lane, &parts, total) == 0) {
        if (outcome_of(entry, NULL) == MR_CKPT_PART_DONE || *stored > *total)
            *stored = *total;
        return;
    }
    *total = *stored;
    for (uint32_t slot = 0; slot < entry->lane.slots; slot++) {
        enum mr_state state = mr_word_state(mr_ckpt_part_load(&entry->lane, slot));
        uint64_t length = __atomic_load_n(&entry->lane.tickets[slot].length, __ATOMIC_RELAXED);
        if ((state == MR_READY || state == MR_HELD) && length <= entry->lane.part_bytes)
            *total += length;
    }
}

/* Logs once what became of it. A failure of a sealed lane is an error, whichever process else reports it. */
static void log_end(struct mr_ckpt_entry *entry)
{
    char text[MR_CKPT_PART_TEXT];
    enum mr_ckpt_part_outcome outcome = entry->logged ? MR_CKPT_PART_UNDECIDED : outcome_of(entry, text);
    if (outcome == MR_CKPT_PART_UNDECIDED)
        return;
    entry->logged = true;
    double seconds = (double)(mr_clock_mono_ns() - entry->opened_ns) / 1e9;
    uint64_t stored, total;
    if (outcome == MR_CKPT_PART_DONE) {
        mr_ckpt_entry_progress(entry, &stored, &total);
        mr_log_info("checkpoint %s: %llu bytes saved and verified, %.1f s after it was begun", entry->uri,
                    (unsigned long long)total, seconds);
    } else if (is_sealed(entry)) {
        mr_log_error("checkpoint %s: not saved: %s", entry->uri, text);
    } else if (outcome == MR_CKPT_PART_FAILED) {
        mr_log_warning("checkpoint %s: given up: %s", entry->uri, text);
    } else {
        mr_log_info("checkpoint %s: given up: %s", entry->uri, text);
    }
}

/* Ten times a second while there are lanes: words come to rest without a message. */
static void check_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = SUPERVISOR_OF(timer);
    s->ckpt_lanes.send_again = true;
    if (s->ckpt_lanes.open > 0)
        mr_events_start(&s->events, timer, CHECK_MS);
}

/* True when it begins to drop. */
static bool ckpt_lanes_settle_one(struct mr_ckpt_entry *entry)
{
    log_end(entry);
    if (entry->state != MR_CKPT_ENDED || !entry->closed)
        return false;
    mr_ckpt_part_sweep(&entry->lane); /* ended: no worker takes what is READY */
    /* A dead client may have left damage there, and a worker that has ended a lane has nothing in it. */
    if (entry->client && !mr_ckpt_part_is_at_rest(&entry->lane))
        return false;
    entry->state = MR_CKPT_DROPPING;
    return true;
}

bool mr_ckpt_lanes_settle(struct mr_supervisor *s)
{
    bool changed = false;
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX && s->ckpt_lanes.open > 0; i++)
        if (s->ckpt_lanes.slots[i])
            changed |= ckpt_lanes_settle_one(s->ckpt_lanes.slots[i]);
    return changed;
}

static struct mr_ckpt_entry *ckpt_lanes_find(const struct mr_supervisor *s, uint64_t number)
{
    return number < MR_CKPT_LANES_MAX ? s->ckpt_lanes.slots[number] : NULL;
}

static void ckpt_lanes_finish(struct mr_ckpt_entry *entry, enum mr_code code, const char *text)
{
    mr_ckpt_part_finish(&entry->lane, MR_CKPT_PART_FAILED, code, text, 0, 0);
    mr_ckpt_part_wake_trainer(&entry->lane);
}

/* Fails a lane that no worker continues: a trainer that waits for its end is woken. */
static void ckpt_lanes_fail(struct mr_ckpt_entry *entry, enum mr_code code, const char *text)
{
    mr_ckpt_part_abort(&entry->lane);
    ckpt_lanes_finish(entry, code, text);
    entry->state = MR_CKPT_ENDED;
}

/* Closes the lane of a client that no longer uses it: its FILLING words are recovered, and the lane is aborted unless
 * it is sealed. */
static void leave(struct mr_supervisor *s, struct mr_ckpt_entry *entry, const char *why)
{
    bool was_open = mr_ckpt_part_fate(&entry->lane) == MR_FATE_OPEN;
    enum mr_fate fate = mr_ckpt_part_recover_trainer(&entry->lane);
    entry->closed = true;
    if (was_open && fate == MR_FATE_ABORTED)
        mr_log_info("checkpoint %s: given up: %s", entry->uri, why);
    else if (fate == MR_FATE_SEALED && !has_ended(entry))
        mr_log_info("checkpoint %s: %s; it has all its bytes and is finished", entry->uri, why);
    if (fate == MR_FATE_ABORTED && !entry->logged)
        entry->logged = true;
    s->ckpt_lanes.wake |= UINT64_C(1) << entry->lane.worker;
}

int mr_ckpt_lanes_close_one(struct mr_supervisor *s, const struct mr_client_peer *client, uint64_t number)
{
    struct mr_ckpt_entry *entry = ckpt_lanes_find(s, number);
    if (!entry || entry->closed) {
        mr_error_set(MR_E_USAGE, "there is no open checkpoint writer %llu", (unsigned long long)number);
        return -1;
    }
    if (entry->client != client) {
        mr_error_set(MR_E_USAGE, "checkpoint writer %llu is process %d's", (unsigned long long)number, (int)entry->pid);
        return -1;
    }
    entry->seen = has_ended(entry);
    leave(s, entry, "its writer was closed before the end");
    return 0;
}

void mr_ckpt_lanes_client_died(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++) {
        struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || entry->client != client)
            continue;
        entry->client = NULL;
        if (entry->closed)
            continue;
        char why[80];
        snprintf(why, sizeof why, "process %d has ended", (int)entry->pid);
        leave(s, entry, why);
    }
}

unsigned mr_ckpt_lanes_of(const struct mr_supervisor *s, const struct mr_client_peer *client)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++)
        count += s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->client == client;
    return count;
}

unsigned mr_ckpt_lanes_served(const struct mr_supervisor *s, unsigned slot)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MR_CKPT_LANES_MAX; i++)
        count += s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->lane.worker == slot &&
                 s->ckpt_lanes.slots[i]->state == MR_CKPT_UPLOADING;
    return count;
}

/* ---- workers ---- */

/* Whether a wild trainer has written over it: the worker could not map it, would exit, and other lanes with it. */
static bool is_damaged(const struct mr_supervisor *s, const struct mr_ckpt_entry *entry)
{
    struct mr_ckpt_lane seen;
    return mr_ckpt_part_attach(&seen, entry->lane.shared, entry->lane.size, s->write_workers.arena_bytes) != 0 ||
           seen.slots != entry->lane.slots || seen.part_bytes != entry->lane.part_bytes ||
           seen.arena_offset != entry->lane.arena_offset || seen.worker != entry->lane.worker;
}

bool mr_ckpt_lanes_is_sound(struct mr_supervisor *s, uint32_t number)
{
    struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[number];
    if (!is_damaged(s, entry))
        return true;
    ckpt_lanes_fail(entry, MR_E_CORRUPT, "the memory that describes it is damaged: its trainer has written over it");
    return false;
}

void mr_ckpt_lanes_ended(struct mr_supervisor *s, uint64_t number, unsigned slot)
{
    struct mr_ckpt_entry *entry = ckpt_lanes_find(s, number);
    if (!entry || entry->lane.worker != slot || entry->state != MR_CKPT_UPLOADING)
        return;
    if (!has_ended(entry))
        ckpt_lanes_finish(entry, MR_E_INTERNAL, "its write worker has ended it without an outcome: please report it");
    mr_ckpt_part_abort(&entry->lane); /* one that failed while it was open: nothing more may be filled */
    entry->state = MR_CKPT_ENDED;
}

void mr_ckpt_lanes_dropped(struct mr_supervisor *s, uint64_t number, unsigned slot)
{
    struct mr_ckpt_entry *entry = ckpt_lanes_find(s, number);
    if (entry && entry->lane.worker == slot && entry->state == MR_CKPT_DROPPING)
        entry->dropped = true;
}

/* Fails a checkpoint whose worker keeps dying without storing anything more: it may be the cause of the deaths. */
static void count_death(struct mr_ckpt_entry *entry)
{
    uint64_t stored, total;
    mr_ckpt_entry_progress(entry, &stored, &total);
    entry->deaths = stored == entry->stored_at_death ? entry->deaths + 1 : 1;
    entry->stored_at_death = stored;
    if (entry->deaths < DEATHS_MAX)
        return;
    char text[160];
    snprintf(text, sizeof text, "its write worker died %u times in a row before anything more of it was stored",
             DEATHS_MAX);
    ckpt_lanes_fail(entry, MR_E_INTERNAL, text);
}

void mr_ckpt_lanes_worker_died(struct mr_supervisor *s, unsigned slot)
{
    unsigned again = 0;
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++) {
        struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || entry->lane.worker != slot)
            continue;
        unsigned recovered = mr_ckpt_part_recover_worker(&entry->lane);
        mr_ckpt_part_wake_trainer(&entry->lane);
        if (entry->state == MR_CKPT_UPLOADING && !has_ended(entry)) /* parts of a failed lane are not sent again */
            again += recovered;
        if (entry->state == MR_CKPT_UPLOADING)
            count_death(entry);
    }
    if (again > 0)
        mr_log_info("write worker %u: %u parts that it was uploading are uploaded again", slot, again);
}

void mr_ckpt_lanes_worker_failed(struct mr_supervisor *s, unsigned slot, enum mr_code code, const char *text)
{
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++)
        if (s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->lane.worker == slot &&
            s->ckpt_lanes.slots[i]->state == MR_CKPT_UPLOADING)
            ckpt_lanes_fail(s->ckpt_lanes.slots[i], code, text);
}

/* ---- the end of the run ---- */

void mr_ckpt_lanes_abort_open(struct mr_supervisor *s, const char *why)
{
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++) {
        struct mr_ckpt_entry *entry = s->ckpt_lanes.slots[i];
        if (!entry || mr_ckpt_part_fate(&entry->lane) != MR_FATE_OPEN ||
            mr_ckpt_part_abort(&entry->lane) != MR_FATE_ABORTED)
            continue;
        ckpt_lanes_finish(entry, MR_E_GONE, why);
        s->ckpt_lanes.wake |= UINT64_C(1) << entry->lane.worker;
        log_end(entry);
    }
}

void mr_ckpt_lanes_fail_all(struct mr_supervisor *s, enum mr_code code, const char *text)
{
    for (uint32_t i = 0; i < MR_CKPT_LANES_MAX; i++)
        if (s->ckpt_lanes.slots[i] && s->ckpt_lanes.slots[i]->state == MR_CKPT_UPLOADING)
            ckpt_lanes_fail(s->ckpt_lanes.slots[i], code, text);
}
