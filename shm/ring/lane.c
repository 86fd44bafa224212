/*
 * lane.c - the transition table of README.md: every change of a ticket's word, and nothing else.
 *
 * Pairing labels (L = lane); the same labels stand beside each atomic below and in README.md:
 *   L0 post      word PENDING (release)        -> L1 claim: request
 *   L2 publish   word READY/FAILED (seq_cst)   -> L3 take: descriptor, payload
 *   L4 release   word RELEASED/EMPTY (release) -> L5 the producer's load before it uses the extent again, and post
 *   L6 give-back, take-back, recovery: word PENDING (release) -> L1
 *   L7 after any change: full fence, then `closed` is read  <->  L8 close: `closed` stored, full fence, words swept.
 *      Whichever comes second sees the other, so that no word stays in a closed lane.
 */
#include "shm/ring/lane.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "shm/memory/fence.h"
#include "shm/memory/segment.h"
#include "shm/ring/mutant.h"

#define PRODUCER_SLOTS 64u /* a FILLING owner this high is not a producer: a damaged word */

static inline struct mr_ticket *ticket_at(const struct mr_lane *lane, uint32_t slot)
{
    return &lane->tickets[slot & lane->mask];
}

/* Changes the word from *old, or loads what is there instead. */
static inline bool swap(struct mr_ticket *ticket, uint64_t *old, uint64_t next, memory_order order)
{
    return atomic_compare_exchange_strong_explicit(
        &ticket->word, old, next, order,
        order == memory_order_release || order == memory_order_relaxed ? memory_order_relaxed : memory_order_acquire);
}

size_t mr_lane_size(uint32_t window)
{
    return sizeof(struct mr_lane_shared) + (size_t)window * sizeof(struct mr_ticket);
}

uint32_t mr_lane_window_round(uint64_t wanted)
{
    uint32_t window = MR_LANE_WINDOW_MIN;

    while (window < wanted && window < MR_LANE_WINDOW_MAX)
        window *= 2;
    return window;
}

void mr_lane_restate(const struct mr_lane *lane)
{
    struct mr_lane_shared *shared = lane->shared;

    __atomic_store_n(&shared->version, MR_LANE_VERSION, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->window, lane->window, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->size, mr_lane_size(lane->window), __ATOMIC_RELAXED);
    __atomic_store_n(&shared->lane, lane->lane, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->owner, lane->owner, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->dataset, lane->dataset, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->first_lap, lane->first_lap, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->division, lane->division, __ATOMIC_RELAXED);
    /* Last, with release: pairs with the acquire in attach. */
    atomic_store_explicit(&shared->magic, MR_LANE_MAGIC, memory_order_release);
}

void mr_lane_format(void *segment, uint32_t window, uint32_t lane, uint32_t owner, uint32_t dataset,
                    uint64_t quota_bytes, uint32_t first_lap, uint32_t division)
{
    struct mr_lane_shared *shared = segment;

    atomic_store_explicit(&shared->posted, (uint64_t)first_lap * window, memory_order_relaxed);
    atomic_store_explicit(&shared->taken, (uint64_t)first_lap * window, memory_order_relaxed);
    atomic_store_explicit(&shared->quota_bytes, quota_bytes, memory_order_relaxed);
    mr_counters_init(&shared->counters, MR_ROLE_CONSUMER, lane);
    /* Last. The words are zero, which is EMPTY. */
    mr_lane_restate(&(struct mr_lane){.shared = shared,
                                      .window = window,
                                      .lane = lane,
                                      .owner = owner,
                                      .dataset = dataset,
                                      .first_lap = first_lap,
                                      .division = division});
}

int mr_lane_attach(struct mr_lane *lane, void *segment, size_t size)
{
    struct mr_lane_shared *shared = segment;
    struct mr_lane seen = {.shared = shared, .size = size};

    if (size < sizeof *shared || atomic_load_explicit(&shared->magic, memory_order_acquire) != MR_LANE_MAGIC) {
        mr_error_set(MR_E_CORRUPT, "the control segment of %zu bytes is not a lane", size);
        return -1;
    }
    if (shared->version != MR_LANE_VERSION) {
        mr_error_set(MR_E_PROTOCOL,
                     "the lane has layout version %u, this program needs %u: millrace was upgraded "
                     "while it ran; restart the job",
                     shared->version, MR_LANE_VERSION);
        return -1;
    }
    seen.window = __atomic_load_n(&shared->window, __ATOMIC_RELAXED); /* once: it is checked below */
    seen.lane = __atomic_load_n(&shared->lane, __ATOMIC_RELAXED);
    seen.owner = __atomic_load_n(&shared->owner, __ATOMIC_RELAXED);
    seen.dataset = __atomic_load_n(&shared->dataset, __ATOMIC_RELAXED);
    seen.first_lap = __atomic_load_n(&shared->first_lap, __ATOMIC_RELAXED);
    seen.division = __atomic_load_n(&shared->division, __ATOMIC_RELAXED);
    if (seen.window < MR_LANE_WINDOW_MIN || seen.window > MR_LANE_WINDOW_MAX || (seen.window & (seen.window - 1)) ||
        mr_lane_size(seen.window) > size || seen.owner >= MR_OWNER_SUPERVISOR) {
        mr_error_set(MR_E_CORRUPT, "the lane's header is damaged (window %u, owner %u, %zu bytes)", seen.window,
                     seen.owner, size);
        return -1;
    }
    seen.mask = seen.window - 1;
    seen.shift = (uint32_t)__builtin_ctz(seen.window);
    seen.tickets = (struct mr_ticket *)(shared + 1);
    *lane = seen;
    return 0;
}

int mr_lane_map(struct mr_lane *lane, int fd)
{
    uint64_t size;
    void *at = mr_segment_map(fd, 0, true, &size);

    if (!at) {
        mr_error_append("control segment of a lane");
        return -1;
    }
    if (mr_lane_attach(lane, at, size)) {
        mr_segment_unmap(at, size);
        return -1;
    }
    return 0;
}

void mr_lane_unmap(struct mr_lane *lane)
{
    if (lane->shared)
        mr_segment_unmap(lane->shared, lane->size);
    memset(lane, 0, sizeof *lane);
}

bool mr_lane_is_closed(const struct mr_lane *lane)
{
    return atomic_load_explicit(&lane->shared->closed, memory_order_acquire) != 0; /* only a hint without L7's fence */
}

/* L7: the word has just been changed to `word` by us; if the lane was closed meanwhile, the sweep may have missed it. A
 * failed CAS means that another process has changed the word since, and looks at `closed` itself. */
static void look_at_closed(struct mr_lane *lane, struct mr_ticket *ticket, uint64_t word)
{
    if (MR_MUTANT_IS(MR_MUTANT_NO_SECOND_LOOK))
        return;
    mr_fence_full(); /* L7 pairs with L8 */
    if (atomic_load_explicit(&lane->shared->closed, memory_order_relaxed))
        swap(ticket, &word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_acq_rel);
}

bool mr_lane_post(struct mr_lane *lane, uint64_t number, const struct mr_request *request)
{
    struct mr_ticket *ticket = ticket_at(lane, mr_lane_slot(lane, number));
    uint64_t word = atomic_load_explicit(&ticket->word, memory_order_acquire); /* L5: the slot's last reader is done */

    if ((mr_word_state(word) != MR_EMPTY && mr_word_state(word) != MR_RELEASED) || mr_lane_is_closed(lane))
        return false;
    atomic_store_explicit(&ticket->request.dataset, request->dataset, memory_order_relaxed);
    atomic_store_explicit(&ticket->request.flags, request->flags, memory_order_relaxed);
    atomic_store_explicit(&ticket->request.object, request->object, memory_order_relaxed);
    atomic_store_explicit(&ticket->request.offset, request->offset, memory_order_relaxed);
    atomic_store_explicit(&ticket->request.length, request->length, memory_order_relaxed);
    atomic_store_explicit(&ticket->request.cell, request->cell, memory_order_relaxed);
    /* L0 pairs with L1. No other process may change an EMPTY or RELEASED word of an open lane; the CAS enforces it. */
    return swap(ticket, &word, mr_word(MR_PENDING, 0, 0, mr_lane_lap(lane, number)), memory_order_release);
}

/* A descriptor must be consistent before it is used in arithmetic. */
static bool descriptor_is_sane(const struct mr_descriptor *desc)
{
    return desc->length <= desc->extent_length && desc->extent_offset + desc->extent_length >= desc->extent_offset;
}

bool mr_lane_take(struct mr_lane *lane, uint64_t number, uint64_t *word, struct mr_descriptor *desc, bool *failed)
{
    struct mr_ticket *ticket = ticket_at(lane, mr_lane_slot(lane, number));
    uint64_t seen = atomic_load_explicit(&ticket->word, MR_MUTANT_IS(MR_MUTANT_RELAXED_TAKE) ? memory_order_relaxed
                                                                                             : memory_order_acquire);
    enum mr_state state = mr_word_state(seen);
    uint64_t held = mr_word(MR_HELD, lane->owner, mr_word_attempt(seen), mr_word_lap(seen));
    unsigned publisher = mr_word_owner(seen);

    if ((state != MR_READY && state != MR_FAILED) || mr_word_lap(seen) != mr_lane_lap(lane, number))
        return false;
    if (MR_MUTANT_IS(MR_MUTANT_EARLY_DESCRIPTOR))
        *desc = ticket->desc;
    /* L3 pairs with L2. Only now is the descriptor ours to read: before, the ticket may be taken back and filled again
     * under the same word. */
    if (!swap(ticket, &seen, held, MR_MUTANT_IS(MR_MUTANT_RELAXED_TAKE) ? memory_order_relaxed : memory_order_acquire))
        return false;
    if (!MR_MUTANT_IS(MR_MUTANT_EARLY_DESCRIPTOR))
        *desc = ticket->desc;
    *word = held;
    *failed = state == MR_FAILED;
    desc->flags &= ~(MR_DESC_POISON | MR_DESC_DAMAGED);
    if (*failed && publisher == MR_OWNER_SUPERVISOR) {
        memset(desc, 0, sizeof *desc);
        desc->code = ticket->poison_code;
        desc->flags = MR_DESC_POISON;
    } else if (!*failed && !descriptor_is_sane(desc)) {
        memset(desc, 0, sizeof *desc);
        desc->code = MR_E_CORRUPT;
        desc->flags = MR_DESC_DAMAGED;
        *failed = true;
    }
    return true;
}

void mr_lane_fail_reason(const struct mr_lane *lane, uint32_t slot, const struct mr_descriptor *desc,
                         char text[MR_FAIL_TEXT + 16])
{
    const struct mr_ticket *ticket = ticket_at(lane, slot);
    size_t size = MR_FAIL_TEXT + 16;

    if (desc->flags & MR_DESC_POISON) {
        memcpy(text, ticket->poison_text, MR_POISON_TEXT);
        size = MR_POISON_TEXT;
    } else {
        memcpy(text, ticket->fail_text, size);
    }
    text[size - 1] = '\0';
}

bool mr_lane_release(struct mr_lane *lane, uint32_t slot, uint64_t word)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);
    uint64_t released = mr_word(MR_RELEASED, lane->owner, 0, mr_word_lap(word));

    /* L4 pairs with L5: our reads of the payload come before. */
    if (mr_word_state(word) != MR_HELD || !swap(ticket, &word, released, memory_order_release))
        return false;
    look_at_closed(lane, ticket, released);
    return true;
}

void mr_lane_peek_request(const struct mr_lane *lane, uint32_t slot, struct mr_request *request)
{
    const struct mr_ticket *ticket = ticket_at(lane, slot);

    request->dataset = atomic_load_explicit(&ticket->request.dataset, memory_order_relaxed);
    request->flags = atomic_load_explicit(&ticket->request.flags, memory_order_relaxed);
    request->object = atomic_load_explicit(&ticket->request.object, memory_order_relaxed);
    request->offset = atomic_load_explicit(&ticket->request.offset, memory_order_relaxed);
    request->length = atomic_load_explicit(&ticket->request.length, memory_order_relaxed);
    request->cell = atomic_load_explicit(&ticket->request.cell, memory_order_relaxed);
}

bool mr_lane_claim(struct mr_lane *lane, uint32_t slot, uint64_t word, unsigned producer, uint64_t *filling,
                   struct mr_request *request)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);

    if (MR_MUTANT_IS(MR_MUTANT_EARLY_REQUEST)) {
        mr_lane_peek_request(lane, slot, request);
        word = atomic_load_explicit(&ticket->word, memory_order_acquire);
    }
    if (mr_word_state(word) != MR_PENDING)
        return false;
    *filling = mr_word(MR_FILLING, producer, mr_word_attempt(word), mr_word_lap(word));
    if (!swap(ticket, &word, *filling, memory_order_acquire)) /* L1 pairs with L0 and L6 */
        return false;
    if (!MR_MUTANT_IS(MR_MUTANT_EARLY_REQUEST))
        mr_lane_peek_request(lane, slot, request);
    return true;
}

void mr_lane_give_back(struct mr_lane *lane, uint32_t slot, uint64_t filling)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);
    uint64_t pending = mr_word(MR_PENDING, 0, mr_word_attempt(filling), mr_word_lap(filling));

    if (!MR_MUTANT_IS(MR_MUTANT_NO_GIVE_BACK) &&
        swap(ticket, &filling, pending, memory_order_release)) /* L6 pairs with L1 */
        look_at_closed(lane, ticket, pending);
}

/* The descriptor's fields are plain: the word's CAS orders them. They are stored as relaxed atomics, and peeked at as
 * acquire ones, for the one reader that does not own the word: a producer that starts again (it reads the word once
 * more afterwards). */
#define PUT(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define GET(field)        __atomic_load_n(&(field), __ATOMIC_ACQUIRE) /* so that the second look comes after */

void mr_lane_describe(struct mr_lane *lane, uint32_t slot, const struct mr_descriptor *desc)
{
    struct mr_descriptor *to = &ticket_at(lane, slot)->desc;

    PUT(to->extent_offset, desc->extent_offset);
    PUT(to->extent_length, desc->extent_length);
    PUT(to->length, desc->length);
    PUT(to->generation, desc->generation);
    PUT(to->crc32c, desc->crc32c);
    PUT(to->arena, desc->arena);
    PUT(to->flags, desc->flags);
    PUT(to->code, desc->code);
    PUT(to->division, desc->division);
}

void mr_lane_peek_descriptor(const struct mr_lane *lane, uint32_t slot, struct mr_descriptor *desc)
{
    const struct mr_descriptor *from = &ticket_at(lane, slot)->desc;

    desc->extent_offset = GET(from->extent_offset);
    desc->extent_length = GET(from->extent_length);
    desc->length = GET(from->length);
    desc->generation = GET(from->generation);
    desc->crc32c = GET(from->crc32c);
    desc->arena = GET(from->arena);
    desc->flags = GET(from->flags);
    desc->code = GET(from->code);
    desc->division = GET(from->division);
}

void mr_lane_publish(struct mr_lane *lane, uint32_t slot, uint64_t filling, uint64_t *ready)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);

    *ready = mr_word(MR_READY, mr_word_owner(filling), mr_word_attempt(filling), mr_word_lap(filling));
    /* L2 pairs with L3; seq_cst because a load of `want` follows (wake.h, W0). */
    if (swap(ticket, &filling, *ready,
             MR_MUTANT_IS(MR_MUTANT_RELAXED_PUBLISH) ? memory_order_relaxed : memory_order_seq_cst))
        look_at_closed(lane, ticket, *ready);
}

static void copy_text(char *to, size_t size, const char *text)
{
    size_t length = strnlen(text, size - 1);

    memcpy(to, text, length);
    to[length] = '\0';
    if (text[length] != '\0')
        memcpy(to + length - 3, "...", 3);
}

void mr_lane_fail(struct mr_lane *lane, uint32_t slot, uint64_t filling, uint32_t code, const char *text)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);
    struct mr_descriptor desc = {.arena = mr_word_owner(filling), .code = code};
    uint64_t failed = mr_word(MR_FAILED, mr_word_owner(filling), mr_word_attempt(filling), mr_word_lap(filling));

    if (!MR_MUTANT_IS(MR_MUTANT_FAILED_WITH_EXTENT))
        mr_lane_describe(lane, slot, &desc); /* no extent: it is the producer's again as soon as the word is FAILED */
    else
        PUT(ticket->desc.code, code);
    copy_text(ticket->fail_text, sizeof ticket->fail_text, text);
    if (swap(ticket, &filling, failed, memory_order_seq_cst)) /* L2 pairs with L3 */
        look_at_closed(lane, ticket, failed);
}

bool mr_lane_take_back(struct mr_lane *lane, uint32_t slot, uint64_t ready)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);
    uint64_t pending = mr_word(MR_PENDING, 0, mr_word_attempt(ready), mr_word_lap(ready));

    if (mr_word_state(ready) != MR_READY || !swap(ticket, &ready, pending, memory_order_acq_rel)) /* L6 pairs with L1 */
        return false;
    look_at_closed(lane, ticket, pending);
    return true;
}

/* Which words a sweep of a closed lane makes EMPTY. FILLING is its producer's, or recovery's; HELD is a lease's as long
 * as its owner lives. A state that does not exist is damage, and must not keep the lane forever. */
static bool is_swept(uint64_t word, bool owner_dead)
{
    switch (mr_word_state(word)) {
    case MR_EMPTY:
        return false;
    case MR_FILLING:
        return owner_dead && mr_word_owner(word) >= PRODUCER_SLOTS;
    case MR_HELD:
        return owner_dead;
    default:
        return true;
    }
}

/* Empties every ticket that no living process has to act on. Others may change a word meanwhile: then it is judged
 * again. */
static void sweep(struct mr_lane *lane, bool owner_dead)
{
    for (uint32_t slot = 0; slot < lane->window; slot++) {
        struct mr_ticket *ticket = ticket_at(lane, slot);
        uint64_t word = atomic_load_explicit(&ticket->word, memory_order_acquire);
        while (is_swept(word, owner_dead))
            if (swap(ticket, &word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_acq_rel)) /* L4 */
                break;
    }
}

void mr_lane_close(struct mr_lane *lane, bool owner_dead)
{
    atomic_store_explicit(&lane->shared->closed, 1, memory_order_seq_cst);
    mr_fence_full(); /* L8 pairs with L7 */
    sweep(lane, owner_dead);
}

bool mr_lane_is_empty(const struct mr_lane *lane)
{
    for (uint32_t slot = 0; slot < lane->window; slot++)
        if (mr_word_state(mr_lane_load(lane, slot)) != MR_EMPTY)
            return false;
    return true;
}

unsigned mr_lane_recover(struct mr_lane *lane, unsigned producer)
{
    unsigned count = 0;

    for (uint32_t slot = 0; slot < lane->window; slot++) {
        struct mr_ticket *ticket = ticket_at(lane, slot);
        uint64_t word = atomic_load_explicit(&ticket->word, memory_order_acquire);
        while (mr_word_state(word) == MR_FILLING && mr_word_owner(word) == producer) {
            unsigned attempt = mr_word_attempt(word) < MR_ATTEMPT_MAX ? mr_word_attempt(word) + 1 : MR_ATTEMPT_MAX;
            uint64_t pending = mr_word(MR_PENDING, 0, attempt, mr_word_lap(word));
            if (!swap(ticket, &word, pending, memory_order_acq_rel)) /* L6 pairs with L1 */
                continue;
            look_at_closed(lane, ticket, pending);
            count++;
            break;
        }
    }
    /* It may have died after a publish, a give-back or a take-back and before its second look. */
    mr_fence_full(); /* L7 pairs with L8 */
    if (!MR_MUTANT_IS(MR_MUTANT_NO_RECOVERY_SWEEP) && atomic_load_explicit(&lane->shared->closed, memory_order_relaxed))
        sweep(lane, false);
    return count;
}

bool mr_lane_poison(struct mr_lane *lane, uint32_t slot, uint64_t word, uint32_t code, const char *text)
{
    struct mr_ticket *ticket = ticket_at(lane, slot);
    uint64_t failed = mr_word(MR_FAILED, MR_OWNER_SUPERVISOR, MR_ATTEMPT_POISON, mr_word_lap(word));

    /* A text for an older FAILED of this slot may be there: it is not read any more, since the word is PENDING. */
    if (mr_word_state(word) != MR_PENDING || mr_lane_load(lane, slot) != word)
        return false;
    ticket->poison_code = code;
    copy_text(ticket->poison_text, sizeof ticket->poison_text, text);
    if (!swap(ticket, &word, failed, memory_order_seq_cst)) /* L2 pairs with L3 */
        return false;
    look_at_closed(lane, ticket, failed);
    return true;
}
