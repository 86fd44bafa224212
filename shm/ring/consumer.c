/*
 * consumer.c - see consumer.h for the policy.
 *
 * Numbers: `posted` is the next number to post, `taken` the next to take; between them lie tickets, and skipped numbers
 * (places[slot].number is then another one). The lock guards everything but the counters that mr_lease_release changes.
 */
#include "shm/ring/consumer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/fence.h"
#include "shm/memory/fork_mark.h"
#include "shm/ring/ahead.h"
#include "shm/ring/consumer_impl.h"
#include "shm/ring/mutant.h"
#include "shm/trace/trace.h"

#define SLICE_MS 100u /* the longest wait: a death between publish and wake delays a delivery by no more */

/* What the consumer knows of a slot. */
struct place {
    uint64_t number; /* of the ticket posted here last */
    struct mr_sample sample;
    int64_t posted_ns;      /* while tracing is on; 0 */
    _Atomic uint32_t arena; /* whose memory a view of it holds; written before the view is handed out */
};

struct mr_consumer {
    struct mr_lane lane;
    struct mr_views *views;
    uint64_t mark; /* fork_mark.h */
    _Atomic unsigned refs;
    pthread_mutex_t lock;
    bool closed;

    struct place *places; /* [window] */
    uint64_t posted, taken;
    uint32_t tickets;       /* posted and not taken */
    uint64_t tickets_bytes; /* theirs */
    int64_t waiting_ns;     /* since when the next one is waited for, over calls of next(); 0 */
    struct mr_ahead ahead;  /* how many there may be */
    /* Views: releases subtract, from any thread. */
    _Atomic uint64_t held, held_bytes;

    struct mr_sample *queue; /* fed and not posted: a ring of `room` places */
    size_t room, first, queued;

    _Atomic uint64_t failed, skipped_slots; /* the rest is counted in the lane's segment */
};

static void consumer_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static void count_shared(struct mr_consumer *consumer, unsigned which, uint64_t more)
{
    mr_counter_add(&consumer->lane.shared->counters, which, more);
}

static bool is_foreign(const struct mr_consumer *consumer)
{
    return !mr_fork_mark_is(consumer->mark);
}

static int foreign_error(void)
{
    mr_error_set(MR_E_USAGE, "this lane was opened before a fork: open the data set in the process that reads it");
    return -1;
}

void mr_consumer_count(struct mr_consumer *consumer, unsigned which, uint64_t more)
{
    if (which < MR_CC_COUNT && !is_foreign(consumer))
        count_shared(consumer, which, more);
}

struct mr_consumer *mr_consumer_new(struct mr_lane *lane, struct mr_views *views)
{
    uint64_t mark = mr_fork_mark();
    if (lane->division != views->division) {
        mr_error_set(MR_E_BUSY, "the memory was divided anew (%u, not %u) while lane %u was opened: ask again",
                     lane->division, views->division, lane->lane);
        return NULL;
    }
    struct mr_consumer *consumer = mark ? calloc(1, sizeof *consumer) : NULL;

    if (consumer)
        consumer->places = calloc(lane->window, sizeof *consumer->places);
    if (!consumer || !consumer->places) {
        if (mark)
            mr_error_set(MR_E_NO_MEMORY, "no memory for a lane of %u tickets", lane->window);
        free(consumer);
        return NULL;
    }
    consumer->lane = *lane;
    consumer->views = mr_views_ref(views);
    consumer->mark = mark;
    atomic_store_explicit(&consumer->refs, 1, memory_order_relaxed);
    pthread_mutex_init(&consumer->lock, NULL);
    consumer->posted = consumer->taken = (uint64_t)lane->first_lap << lane->shift;
    mr_ahead_init(&consumer->ahead, lane->ahead ? lane->ahead : lane->window, lane->window);
    mr_counter_set(&lane->shared->counters, MR_CC_AHEAD, consumer->ahead.now);
    return consumer;
}

void mr_consumer_ref(struct mr_consumer *consumer)
{
    atomic_fetch_add_explicit(&consumer->refs, 1, memory_order_relaxed);
}

void mr_consumer_unref(struct mr_consumer *consumer)
{
    if (atomic_fetch_sub_explicit(&consumer->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (!is_foreign(consumer)) {
        mr_lane_unmap(&consumer->lane);
        pthread_mutex_destroy(&consumer->lock); /* in a child it may be locked by a thread that is not there */
    }
    mr_views_unref(consumer->views);
    free(consumer->queue);
    free(consumer->places);
    free(consumer);
}

void mr_consumer_destroy(struct mr_consumer *consumer)
{
    if (!consumer)
        return;
    mr_consumer_close(consumer);
    mr_consumer_unref(consumer);
}

/* ---- posting ---- */

static uint64_t quota(const struct mr_consumer *consumer)
{
    return atomic_load_explicit(&consumer->lane.shared->quota_bytes, memory_order_relaxed); /* the supervisor's */
}

static uint64_t used_bytes(const struct mr_consumer *consumer)
{
    return consumer->tickets_bytes + atomic_load_explicit(&consumer->held_bytes, memory_order_relaxed);
}

/* Slots that could be posted to now. A release may make it more at any time. */
static uint32_t free_slots(const struct mr_consumer *consumer)
{
    uint64_t held = atomic_load_explicit(&consumer->held, memory_order_relaxed) + consumer->tickets;
    uint32_t slots = held < consumer->lane.window ? consumer->lane.window - (uint32_t)held : 0;
    uint32_t more = consumer->ahead.now > consumer->tickets ? consumer->ahead.now - consumer->tickets : 0;

    return slots < more ? slots : more;
}

static void store_posted(struct mr_consumer *consumer)
{
    /* A hint for producers, stored after the words: a producer that sees it sees them. */
    atomic_store_explicit(&consumer->lane.shared->posted, consumer->posted, memory_order_release);
}

/* Posts the queue's first sample at the next number whose slot is not HELD. false: no slot. */
static bool post_one(struct mr_consumer *consumer)
{
    struct mr_lane *lane = &consumer->lane;
    const struct mr_sample *sample = &consumer->queue[consumer->first];

    for (uint32_t skipped = 0; skipped < lane->window; skipped++) {
        uint32_t slot = mr_lane_slot(lane, consumer->posted);
        struct place *place = &consumer->places[slot];
        if (mr_word_state(mr_lane_load(lane, slot)) != MR_HELD) {
            if (!mr_lane_post(lane, consumer->posted, &sample->request))
                return false; /* one of our own tickets that is not taken yet */
            place->number = consumer->posted;
            place->sample = *sample;
            place->posted_ns = mr_trace_is_on() ? mr_clock_mono_ns() : 0;
            consumer->posted = mr_lane_wrap(lane, consumer->posted + 1);
            consumer->first = (consumer->first + 1) % consumer->room;
            consumer->queued--;
            consumer->tickets++;
            consumer->tickets_bytes += place->sample.bytes;
            return true;
        }
        if (MR_MUTANT_IS(MR_MUTANT_NO_SKIP))
            return false;
        /* A view is held there: the number names nothing, the sample gets the next one. */
        if (consumer->tickets == 0)
            consumer->taken = mr_lane_wrap(lane, consumer->posted + 1);
        consumer->posted = mr_lane_wrap(lane, consumer->posted + 1);
        consumer_count(&consumer->skipped_slots, 1);
    }
    return false;
}

/* Posts up to limit samples within the quota. must: the first one is posted even beyond the quota. */
static void post(struct mr_consumer *consumer, uint32_t limit, bool must)
{
    uint64_t from = consumer->posted, last_home = UINT64_MAX;
    uint32_t done = 0, cells = 0;

    while (done < limit && consumer->queued > 0) {
        uint64_t used = used_bytes(consumer), most = quota(consumer), bytes = consumer->queue[consumer->first].bytes;
        if (!(must && done == 0) && (bytes > most || used > most - bytes))
            break;
        uint32_t cell = consumer->queue[consumer->first].request.cell;
        if (!post_one(consumer))
            break;
        cells |= cell;
        done++;
    }
    if (consumer->posted == from)
        return;
    store_posted(consumer);
    if (cells) { /* of any home; it may also end the patience of others. W2 in each, after the words and `posted` */
        mr_views_wake_all(consumer->views);
        return;
    }
    for (uint64_t n = from; done > 0 && mr_lane_distance(&consumer->lane, consumer->posted, n) > 0;
         n = mr_lane_wrap(&consumer->lane, (n / MR_LANE_BLOCK + 1) * MR_LANE_BLOCK)) {
        unsigned home = mr_lane_home(&consumer->lane, n, consumer->views->producers);
        if (home == last_home)
            continue;
        last_home = home;
        if (atomic_load_explicit(&consumer->views->board->producer[home].alive, memory_order_relaxed))
            mr_views_wake_one(consumer->views, home);
        else
            mr_views_wake_all(consumer->views);
    }
}

static uint32_t block_of(const struct mr_consumer *consumer)
{
    uint32_t quarter = consumer->ahead.now / 4;

    return quarter > MR_LANE_BLOCK ? MR_LANE_BLOCK : quarter > 1 ? quarter : 1;
}

/* Posts whole blocks only, so that one fetch worker gets neighbours; a remainder waits until more slots are free. */
static void post_blocks(struct mr_consumer *consumer)
{
    uint32_t block = block_of(consumer);

    if (consumer->queued == 0)
        return;
    uint32_t free_now = free_slots(consumer);
    if (free_now >= block)
        post(consumer, free_now / block * block, false);
}

/* Grows the queue of samples that are not posted yet. Its capacity never shrinks. */
static int make_room(struct mr_consumer *consumer, size_t more)
{
    size_t room = consumer->room ? consumer->room : 64;
    struct mr_sample *queue;

    if (more > SIZE_MAX / sizeof *queue / 4)
        goto no_memory;
    while (room - consumer->queued < more)
        room *= 2;
    if (room == consumer->room)
        return 0;
    queue = malloc(room * sizeof *queue);
    if (!queue)
        goto no_memory;
    for (size_t i = 0; consumer->room && i < consumer->queued; i++)
        queue[i] = consumer->queue[(consumer->first + i) % consumer->room];
    free(consumer->queue);
    consumer->queue = queue;
    consumer->room = room;
    consumer->first = 0;
    return 0;

no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory to queue %zu samples", more);
    return -1;
}

int mr_consumer_feed(struct mr_consumer *consumer, const struct mr_sample *samples, size_t n)
{
    int rc = -1;

    if (is_foreign(consumer))
        return foreign_error();
    pthread_mutex_lock(&consumer->lock);
    if (consumer->closed)
        mr_error_set(MR_E_USAGE, "the lane is closed");
    else
        rc = make_room(consumer, n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        consumer->queue[(consumer->first + consumer->queued++) % consumer->room] = samples[i];
    if (rc == 0)
        post_blocks(consumer);
    pthread_mutex_unlock(&consumer->lock);
    return rc;
}

size_t mr_consumer_backlog(const struct mr_consumer *consumer)
{
    struct mr_consumer *self = (struct mr_consumer *)consumer;

    if (is_foreign(consumer))
        return 0;
    pthread_mutex_lock(&self->lock);
    size_t n = self->queued + self->tickets;
    pthread_mutex_unlock(&self->lock);
    return n;
}

uint32_t mr_consumer_window(const struct mr_consumer *consumer)
{
    return consumer->lane.window;
}

/* ---- taking ---- */

/* The lowest number that is posted and not taken. Only when there is one. */
static uint64_t next_number(struct mr_consumer *consumer)
{
    while (consumer->places[mr_lane_slot(&consumer->lane, consumer->taken)].number != consumer->taken)
        consumer->taken = mr_lane_wrap(&consumer->lane, consumer->taken + 1);
    return consumer->taken;
}

static void release_word(struct mr_consumer *consumer, uint32_t slot, uint64_t word)
{
    /* Read before: afterwards the slot may be posted and taken again. */
    unsigned producer = atomic_load_explicit(&consumer->places[slot].arena, memory_order_relaxed);

    mr_lane_release(&consumer->lane, slot, word);
    mr_views_wake_one(consumer->views, producer); /* W2: it may wait for the room */
}

/* Releases the ticket. Always MR_NEXT_FAILED. */
static enum mr_next deliver_failure(struct mr_consumer *consumer, struct mr_delivery *out, uint64_t word)
{
    out->data = NULL;
    out->length = 0;
    out->copied = false;
    release_word(consumer, out->slot, word);
    consumer_count(&consumer->failed, 1);
    return MR_NEXT_FAILED;
}

/* The ticket is released before the caller sees the copy. Out of memory is delivered as the sample's failure. */
static enum mr_next deliver_copy(struct mr_consumer *consumer, struct mr_delivery *out, uint64_t word)
{
    void *copy = malloc(out->length ? out->length : 1);

    if (!copy) {
        out->code = MR_E_NO_MEMORY;
        memcpy(out->text, "no memory for a copy", sizeof "no memory for a copy");
        return deliver_failure(consumer, out, word);
    }
    if (out->length)
        memcpy(copy, out->data, out->length);
    out->data = copy;
    out->copied = true;
    release_word(consumer, out->slot, word);
    count_shared(consumer, MR_CC_COPIES, 1);
    count_shared(consumer, MR_CC_COPIED_BYTES, out->length);
    return MR_NEXT_OK;
}

/* Would one more view leave more than 3/4 of the window or of the quota held? */
static bool holds_too_much(const struct mr_consumer *consumer, uint64_t more)
{
    uint64_t held = atomic_load_explicit(&consumer->held, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&consumer->held_bytes, memory_order_relaxed);
    uint64_t most = quota(consumer);

    return (held + 1) * 4 > (uint64_t)consumer->lane.window * 3 || bytes + more > most - most / 4;
}

/* About to wait: if it waits because it may not look further ahead, it does from now on. */
static void look_further(struct mr_consumer *consumer)
{
    bool limits = consumer->queued > 0 && consumer->tickets + block_of(consumer) > consumer->ahead.now;

    if (!limits || !mr_ahead_waits(&consumer->ahead, consumer->tickets))
        return;
    mr_counter_set(&consumer->lane.shared->counters, MR_CC_AHEAD, consumer->ahead.now);
    post_blocks(consumer);
}

/* `number` was taken: looks less far ahead if that much was READY already. The word is a hint here: nothing that it
 * names is read. */
static void look_less_far(struct mr_consumer *consumer, uint64_t number)
{
    const struct mr_lane *lane = &consumer->lane;
    uint32_t half = mr_lane_slot(lane, mr_lane_wrap(lane, number + consumer->ahead.now / 2));
    bool may_shrink = consumer->ahead.now > consumer->ahead.first;

    if (mr_ahead_taken(&consumer->ahead, may_shrink && mr_word_state(mr_lane_load(lane, half)) == MR_READY))
        mr_counter_set(&consumer->lane.shared->counters, MR_CC_AHEAD, consumer->ahead.now);
}

/* From begin_ns (0: that was not traced) until now. */
static void trace(enum mr_span kind, int64_t begin_ns, const struct mr_sample *sample)
{
    if (begin_ns == 0 || !mr_trace_is_on())
        return;
    mr_trace_emit(&(struct mr_trace_record){.kind = kind,
                                            .begin_ns = begin_ns,
                                            .end_ns = mr_clock_mono_ns(),
                                            .object = sample->request.object,
                                            .bytes = sample->bytes,
                                            .dataset = sample->request.dataset},
                  NULL);
}

/* The ticket is HELD by us under `word`. */
static enum mr_next deliver(struct mr_consumer *consumer, uint64_t number, uint64_t word,
                            const struct mr_descriptor *desc, bool failed, struct mr_delivery *out)
{
    struct place *place = &consumer->places[mr_lane_slot(&consumer->lane, number)];

    out->slot = mr_lane_slot(&consumer->lane, number);
    out->word = word;
    out->sample = place->sample;
    out->length = desc->length;
    out->generation = desc->generation;
    out->crc32c = desc->crc32c;
    out->desc_flags = desc->flags;
    out->copied = false;
    trace(MR_SPAN_TICKET, place->posted_ns, &place->sample);
    trace(MR_SPAN_READ, consumer->waiting_ns, &place->sample);
    consumer->waiting_ns = 0;
    atomic_store_explicit(&place->arena, desc->arena, memory_order_relaxed);
    consumer->taken = mr_lane_wrap(&consumer->lane, number + 1);
    consumer->tickets--;
    consumer->tickets_bytes -= place->sample.bytes;
    atomic_store_explicit(&consumer->lane.shared->taken, consumer->taken, memory_order_relaxed); /* a hint */
    look_less_far(consumer, number);

    out->code = failed ? desc->code : 0;
    if (failed && !(desc->flags & MR_DESC_DAMAGED)) {
        mr_lane_fail_reason(&consumer->lane, out->slot, desc, out->text);
        return deliver_failure(consumer, out, word);
    }
    out->data = failed ? NULL : mr_views_at(consumer->views, desc);
    if (!out->data) {
        out->code = MR_E_CORRUPT;
        snprintf(out->text, sizeof out->text, "%s",
                 failed || desc->division == consumer->views->division
                     ? "the lane's shared memory is damaged"
                     : "it lies in memory that was divided anew since this lane was opened: open the data set again");
        return deliver_failure(consumer, out, word);
    }
    count_shared(consumer, MR_CC_SAMPLES, 1);
    count_shared(consumer, MR_CC_BYTES, out->length);
    if (desc->flags & MR_DESC_RESERVE || out->length == 0 || holds_too_much(consumer, out->length))
        return deliver_copy(consumer, out, word);
    consumer_count(&consumer->held, 1);
    consumer_count(&consumer->held_bytes, out->length);
    mr_consumer_ref(consumer); /* the view's, until mr_lease_release */
    return MR_NEXT_OK;
}

/* False: the ticket is not READY or FAILED yet, and the caller waits. Clears `want` once it has the ticket. */
static bool try_take(struct mr_consumer *consumer, uint64_t number, enum mr_next *next, struct mr_delivery *out)
{
    struct mr_descriptor desc;
    uint64_t word;
    bool failed;

    if (!mr_lane_take(&consumer->lane, number, &word, &desc, &failed))
        return false;
    /* Only now: if it were cleared before the CAS, the ticket could be taken back repeatedly. */
    if (atomic_load_explicit(&consumer->lane.shared->want, memory_order_relaxed))
        mr_wake_set_want(&consumer->lane, 0);
    *next = deliver(consumer, number, word, &desc, failed, out);
    return true;
}

/* Waits for the number, which is posted: OK, FAILED, TIMEOUT or SIGNAL. */
static enum mr_next wait_for(struct mr_consumer *consumer, uint64_t number, unsigned timeout_ms,
                             struct mr_delivery *out)
{
    struct mr_lane *lane = &consumer->lane;
    int64_t start = mr_clock_mono_ns(), end = start + (int64_t)timeout_ms * MR_MILLISECOND_NS, now = start;
    enum mr_next next = MR_NEXT_TIMEOUT;
    bool woken = false;

    count_shared(consumer, MR_CC_WAITS, 1);
    if (consumer->waiting_ns == 0)
        consumer->waiting_ns = start;
    while (now < end) {
        uint32_t seen = mr_wake_seq(lane);
        int64_t left_ms = (end - now + MR_MILLISECOND_NS - 1) / MR_MILLISECOND_NS;
        if (!MR_MUTANT_IS(MR_MUTANT_LATE_WANT))
            mr_wake_set_want(lane, number + 1); /* W1, with its fence */
        if (!woken)
            mr_views_wake_all(consumer->views); /* W2: any of them may serve a head that is wanted */
        woken = true;
        if (try_take(consumer, number, &next, out))
            break;
        if (MR_MUTANT_IS(MR_MUTANT_LATE_WANT))
            mr_wake_set_want(lane, number + 1);
        if (mr_wake_wait(lane, seen, left_ms < SLICE_MS ? (unsigned)left_ms : SLICE_MS) == MR_WAKE_SIGNAL) {
            next = MR_NEXT_SIGNAL;
            break;
        }
        if (try_take(consumer, number, &next, out))
            break;
        now = mr_clock_mono_ns();
    }
    /* A caller that returns without the ticket no longer waits for it, and must not keep it from being taken back. */
    if (next == MR_NEXT_TIMEOUT || next == MR_NEXT_SIGNAL) {
        mr_wake_set_want(lane, 0);
        mr_views_wake_all(consumer->views); /* W2: one may sleep because it found our head wanted */
    }
    count_shared(consumer, MR_CC_WAIT_NS, (uint64_t)(mr_clock_mono_ns() - start));
    return next;
}

enum mr_next mr_consumer_next(struct mr_consumer *consumer, unsigned timeout_ms, struct mr_delivery *out)
{
    enum mr_next next = MR_NEXT_TIMEOUT;

    if (is_foreign(consumer)) {
        foreign_error();
        return MR_NEXT_END;
    }
    pthread_mutex_lock(&consumer->lock);
    if (consumer->closed || (consumer->queued == 0 && consumer->tickets == 0)) {
        pthread_mutex_unlock(&consumer->lock);
        return MR_NEXT_END;
    }
    post_blocks(consumer);
    if (consumer->tickets == 0)
        post(consumer, 1, true); /* it is the ticket that we are about to wait for */
    uint64_t number;
    if (consumer->tickets > 0) {
        number = next_number(consumer);
        if (!try_take(consumer, number, &next, out) && timeout_ms > 0) {
            look_further(consumer);
            next = wait_for(consumer, number, timeout_ms, out);
        }
    } else if (timeout_ms > 0) { /* no slot to post to: only damage to the segment brings us here */
        mr_wake_wait(&consumer->lane, mr_wake_seq(&consumer->lane), timeout_ms < SLICE_MS ? timeout_ms : SLICE_MS);
    }
    pthread_mutex_unlock(&consumer->lock);
    return next;
}

void mr_lease_release(struct mr_consumer *consumer, uint32_t slot, uint64_t word, uint64_t length)
{
    if (!is_foreign(consumer)) {
        release_word(consumer, slot, word);
        atomic_fetch_sub_explicit(&consumer->held_bytes, length, memory_order_relaxed);
        atomic_fetch_sub_explicit(&consumer->held, 1, memory_order_relaxed);
    }
    mr_consumer_unref(consumer);
}

/* ---- the end ---- */

void mr_consumer_close(struct mr_consumer *consumer)
{
    if (is_foreign(consumer))
        return;
    pthread_mutex_lock(&consumer->lock); /* no post may come between `closed` and the sweep */
    if (!consumer->closed) {
        consumer->closed = true;
        mr_lane_close(&consumer->lane, false);
        mr_wake_set_want(&consumer->lane, 0);
        consumer->queued = 0;
        consumer->tickets = 0;
        consumer->tickets_bytes = 0;
        mr_views_wake_all(consumer->views); /* W2: room */
    }
    pthread_mutex_unlock(&consumer->lock);
}

bool mr_consumer_is_foreign(const struct mr_consumer *consumer)
{
    return is_foreign(consumer);
}

void mr_consumer_stats(const struct mr_consumer *consumer, struct mr_consumer_stats *stats)
{
#define LOAD(from) atomic_load_explicit(&consumer->from, memory_order_relaxed)
    *stats = (struct mr_consumer_stats){
        .delivered = mr_counter_get(&consumer->lane.shared->counters, MR_CC_SAMPLES),
        .delivered_bytes = mr_counter_get(&consumer->lane.shared->counters, MR_CC_BYTES),
        .copies = mr_counter_get(&consumer->lane.shared->counters, MR_CC_COPIES),
        .copied_bytes = mr_counter_get(&consumer->lane.shared->counters, MR_CC_COPIED_BYTES),
        .failed = LOAD(failed),
        .waits = mr_counter_get(&consumer->lane.shared->counters, MR_CC_WAITS),
        .wait_ns = mr_counter_get(&consumer->lane.shared->counters, MR_CC_WAIT_NS),
        .held = LOAD(held),
        .held_bytes = LOAD(held_bytes),
        .skipped_slots = LOAD(skipped_slots),
    };
#undef LOAD
}
