/* extents.c - see producer_impl.h. */
#include "shm/ring/producer_impl.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "shm/ring/mutant.h"

/* How much the arena grows by at a time: what the kernel makes in a few milliseconds, and more the larger it is. Whole
 * huge pages. */
#define STEP_MIN_BYTES ((uint64_t)4 << 20)
#define STEP_MAX_BYTES ((uint64_t)16 << 20)
#define STEP_UNIT      ((uint64_t)2 << 20)
#define AGAIN_NS       MR_SECOND_NS /* before the next attempt, after there was no memory */

/* L5 pairs with L4: once the word does not name the extent, its reader's loads are done. */
static bool is_named(const struct mr_producer *producer, const struct mr_extent *extent)
{
    uint32_t slot = (uint32_t)(extent - extent->lane->extents);
    uint64_t word = mr_lane_load(&extent->lane->lane, slot);

    if (MR_MUTANT_IS(MR_MUTANT_REUSE_WITHOUT_LOOK) || mr_word_lap(word) != extent->lap)
        return false;
    /* HELD of this lap is ours: had the ticket been published by another, we would have given or taken it back. */
    return mr_word_state(word) == MR_HELD || (mr_word_state(word) == MR_READY && mr_word_owner(word) == producer->slot);
}

static void list_remove(struct mr_producer *producer, struct mr_extent *extent)
{
    *(extent->prev ? &extent->prev->next : &producer->oldest) = extent->next;
    *(extent->next ? &extent->next->prev : &producer->newest) = extent->prev;
}

static void list_append(struct mr_producer *producer, struct mr_extent *extent)
{
    extent->next = NULL;
    extent->prev = producer->newest;
    *(producer->newest ? &producer->newest->next : &producer->oldest) = extent;
    producer->newest = extent;
}

void mr_extents_unuse(struct mr_producer *producer, struct mr_run *run)
{
    if (!run || --run->refs > 0 || run->reserve)
        return;
    mr_arena_free(producer->arena, run->offset, run->bytes);
    free(run);
}

void mr_extents_forget(struct mr_producer *producer, struct mr_producer_lane *pl, uint32_t slot)
{
    struct mr_extent *extent = &pl->extents[slot];
    struct mr_run *run = extent->run;

    if (!run)
        return;
    if (extent->published)
        list_remove(producer, extent);
    if (producer->reserve_extent == extent)
        producer->reserve_extent = NULL;
    extent->run = NULL;
    extent->published = false;
    mr_extents_unuse(producer, run);
}

static void forget_if_free(struct mr_producer *producer, struct mr_extent *extent)
{
    if (!is_named(producer, extent))
        mr_extents_forget(producer, extent->lane, (uint32_t)(extent - extent->lane->extents));
}

void mr_extents_reap_some(struct mr_producer *producer, unsigned count)
{
    for (struct mr_extent *extent; count > 0 && (extent = producer->oldest); count--) {
        forget_if_free(producer, extent);
        if (producer->oldest == extent && extent->run) { /* still read: check the others first */
            list_remove(producer, extent);
            list_append(producer, extent);
        }
    }
}

void mr_extents_reap_all(struct mr_producer *producer)
{
    for (struct mr_extent *extent = producer->oldest, *next; extent; extent = next) {
        next = extent->next;
        forget_if_free(producer, extent);
    }
}

bool mr_extents_are_named(struct mr_producer *producer, struct mr_producer_lane *pl)
{
    bool named = false;

    for (uint32_t slot = 0; slot < pl->lane.window; slot++) {
        if (!pl->extents[slot].run)
            continue;
        forget_if_free(producer, &pl->extents[slot]);
        named |= pl->extents[slot].run != NULL;
    }
    return named;
}

uint64_t mr_extents_largest_ever(const struct mr_producer *producer)
{
    uint64_t reserve = mr_arena_reserve_bytes(producer->arena);

    return reserve ? reserve : producer->arena_bytes / MR_ARENA_PAGE * MR_ARENA_PAGE;
}

/* After a restart: pages that a word names exist, and so do all before them, whether or not there is memory for more.
 * Asking for them again enters them into the page tables. */
static void back_again(struct mr_producer *producer, uint64_t end)
{
    uint64_t backed = mr_arena_backed_bytes(producer->arena);

    if (end <= backed || !producer->back)
        return;
    producer->trimmed = false;
    (void)producer->back(producer->back_arg, backed, end - backed);
    mr_arena_extend(producer->arena, end);
}

/* Grows by one step, or by as much as the bytes need. false: it cannot now, or they still do not fit. */
static bool extents_grow(struct mr_producer *producer, uint64_t bytes)
{
    uint64_t backed = mr_arena_backed_bytes(producer->arena), step = backed / 4;
    uint64_t most = producer->arena_bytes / MR_ARENA_PAGE * MR_ARENA_PAGE;

    if (!producer->back || backed == most || mr_clock_mono_ns() < producer->back_again_ns)
        return false;
    step = step < STEP_MIN_BYTES ? STEP_MIN_BYTES : step > STEP_MAX_BYTES ? STEP_MAX_BYTES : step;
    step = step < bytes ? bytes : step;
    uint64_t end = (backed + step + STEP_UNIT - 1) / STEP_UNIT * STEP_UNIT;
    end = end < most ? end : most;
    producer->trimmed = false;
    if (producer->back(producer->back_arg, backed, end - backed) != 0) {
        producer->back_again_ns = mr_clock_mono_ns() + AGAIN_NS;
        return false;
    }
    mr_arena_extend(producer->arena, end);
    return bytes <= mr_arena_largest_bytes(producer->arena);
}

bool mr_extents_back_reserve(struct mr_producer *producer, uint64_t bytes)
{
    uint64_t there = producer->reserve_backed_bytes, end = (bytes + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;

    if (!producer->back || end <= there)
        return true;
    if (producer->back(producer->back_arg, there, end - there) != 0)
        return false;
    producer->reserve_backed_bytes = end;
    return true;
}

bool mr_extents_have_room(struct mr_producer *producer, uint64_t bytes)
{
    if (bytes <= mr_arena_largest_bytes(producer->arena))
        return true;
    if (!producer->reaped) {
        mr_extents_reap_all(producer);
        producer->reaped = true;
        if (bytes <= mr_arena_largest_bytes(producer->arena))
            return true;
    }
    if (extents_grow(producer, bytes))
        return true;
    producer->stats.no_room++;
    return false;
}

struct mr_run *mr_extents_alloc(struct mr_producer *producer, uint64_t bytes)
{
    struct mr_run *run = malloc(sizeof *run);

    if (!run)
        return NULL;
    int64_t offset = mr_arena_alloc(producer->arena, bytes);
    if (offset < 0) {
        free(run);
        return NULL;
    }
    *run = (struct mr_run){.offset = (uint64_t)offset, .bytes = bytes, .refs = 1};
    return run;
}

bool mr_extents_reserve_is_free(struct mr_producer *producer)
{
    struct mr_extent *extent = producer->reserve_extent;

    if (extent && extent->published)
        forget_if_free(producer, extent);
    return producer->reserve.refs == 0;
}

struct mr_run *mr_extents_reserve(struct mr_producer *producer)
{
    if (!mr_extents_reserve_is_free(producer))
        return NULL;
    producer->reserve.refs = 1;
    return &producer->reserve;
}

bool mr_extents_reserve_is_ready(struct mr_producer *producer, struct mr_producer_lane **lane, uint64_t *number)
{
    struct mr_extent *extent = producer->reserve_extent;

    if (!extent || !extent->published)
        return false;
    uint32_t slot = (uint32_t)(extent - extent->lane->extents);
    if (mr_word_state(mr_lane_load(&extent->lane->lane, slot)) != MR_READY || !is_named(producer, extent))
        return false;
    *lane = extent->lane;
    *number = mr_lane_number(&extent->lane->lane, slot, extent->lap);
    return true;
}

bool mr_extents_take_back(struct mr_producer *producer)
{
    struct mr_extent *extent = producer->reserve_extent;
    struct mr_producer_lane *pl;
    uint64_t number;

    if (!mr_extents_reserve_is_ready(producer, &pl, &number))
        return false;
    uint32_t slot = mr_lane_slot(&pl->lane, number);
    uint64_t word = mr_lane_load(&pl->lane, slot);
    if (mr_word_lap(word) != extent->lap || mr_word_owner(word) != producer->slot ||
        !mr_lane_take_back(&pl->lane, slot, word))
        return false;
    mr_extents_forget(producer, pl, slot);
    mr_producer_search_from(pl, number);
    producer->stats.take_backs++;
    return true;
}

void mr_extents_attach(struct mr_producer *producer, const struct mr_claim *claim, struct mr_run *run)
{
    struct mr_extent *extent = &claim->lane->extents[claim->slot];

    extent->run = run;
    extent->lane = claim->lane;
    extent->lap = mr_word_lap(claim->filling);
    extent->published = false;
    run->refs++;
    if (run->reserve)
        producer->reserve_extent = extent;
}

void mr_extents_published(struct mr_producer *producer, const struct mr_claim *claim)
{
    struct mr_extent *extent = &claim->lane->extents[claim->slot];

    if (!extent->run)
        return; /* an empty object */
    extent->published = true;
    list_append(producer, extent);
}

struct found {
    uint64_t offset, length;
    uint32_t slot, lap;
};

static int by_offset(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* An extent that we could have allocated: within the arena, wholly in the reserve or wholly outside it. */
static bool is_possible(const struct mr_producer *producer, const struct mr_descriptor *desc)
{
    uint64_t usable = producer->arena_bytes / MR_ARENA_PAGE * MR_ARENA_PAGE;

    return desc->extent_length > 0 && desc->extent_length <= mr_extents_largest_ever(producer) &&
           desc->extent_offset <= usable - desc->extent_length &&
           (desc->extent_offset >= producer->reserve.bytes ||
            desc->extent_offset + desc->extent_length <= producer->reserve.bytes);
}

/* The extents that READY and HELD words name in our arena; each word is read again after its descriptor. */
static unsigned find_extents(const struct mr_producer *producer, const struct mr_lane *lane, struct found *found)
{
    unsigned count = 0, again = 0;

    for (uint32_t slot = 0; slot < lane->window; slot++) {
        uint64_t word = mr_lane_load(lane, slot);
        enum mr_state state = mr_word_state(word);
        if ((state != MR_READY || mr_word_owner(word) != producer->slot) &&
            (state != MR_HELD || mr_word_attempt(word) == MR_ATTEMPT_POISON))
            continue;
        struct mr_descriptor desc;
        mr_lane_peek_descriptor(lane, slot, &desc);
        if (mr_lane_load(lane, slot) != word) {
            if (again++ < 16 * lane->window) /* a wild consumer could keep us here */
                slot--; /* its consumer has moved it: READY to HELD, or HELD to RELEASED; read again */
            continue;
        }
        if (desc.division != producer->division || desc.arena != producer->slot || !is_possible(producer, &desc))
            continue;
        found[count++] = (struct found){desc.extent_offset, desc.extent_length, slot, mr_word_lap(word)};
    }
    qsort(found, count, sizeof *found, by_offset);
    return count;
}

static void adopt(struct mr_producer *producer, struct mr_producer_lane *pl, const struct found *found,
                  struct mr_run *run)
{
    struct mr_claim claim = {.lane = pl, .slot = found->slot, .filling = mr_word(MR_FILLING, 0, 0, found->lap)};

    mr_extents_attach(producer, &claim, run);
    mr_extents_published(producer, &claim);
}

/* Runs that share pages with `run` become part of it: a job of a cell has tickets of several lanes. Damage can cause
 * this too: a lane whose words name another lane's memory must not free it. */
static void merge_overlapping(struct mr_producer *producer, struct mr_run *run)
{
    uint64_t from = run->offset / MR_ARENA_PAGE, to = (run->offset + run->bytes - 1) / MR_ARENA_PAGE;
    struct mr_extent *extent = producer->oldest;

    while (extent) {
        struct mr_run *other = extent->run;
        uint64_t end = other->offset + other->bytes;
        if (other == run || other->reserve || other->offset / MR_ARENA_PAGE > to || (end - 1) / MR_ARENA_PAGE < from) {
            extent = extent->next;
            continue;
        }
        if (end > run->offset + run->bytes)
            run->bytes = end - run->offset;
        if (other->offset < run->offset) {
            run->bytes += run->offset - other->offset;
            run->offset = other->offset;
        }
        for (struct mr_extent *e = producer->oldest; e; e = e->next) {
            if (e->run != other)
                continue;
            e->run = run;
            run->refs++;
            other->refs--;
        }
        mr_arena_free(producer->arena, other->offset, other->bytes);
        free(other);
        from = run->offset / MR_ARENA_PAGE;
        to = (run->offset + run->bytes - 1) / MR_ARENA_PAGE;
        extent = producer->oldest;
    }
}

/* found[0 .. count) share pages: one run. Tickets of one job may; those of two never do. */
static int adopt_run(struct mr_producer *producer, struct mr_producer_lane *pl, const struct found *found,
                     unsigned count, uint64_t end)
{
    struct mr_run *run = &producer->reserve;

    if (found->offset >= producer->reserve.bytes) {
        run = calloc(1, sizeof *run);
        if (!run)
            return -1;
        run->offset = found->offset;
        run->bytes = end - found->offset;
        if (!MR_MUTANT_IS(MR_MUTANT_SMALL_AFTER_RESTART))
            back_again(producer, (end + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE);
        if (!mr_arena_claim(producer->arena, run->offset, run->bytes)) {
            merge_overlapping(producer, run);
            if (!mr_arena_claim(producer->arena, run->offset, run->bytes)) {
                mr_log_error("internal error: merged extents cannot be claimed");
                free(run); /* nothing refers to it: there was nothing to merge */
                return 0;
            }
        }
    }
    for (unsigned i = 0; i < count; i++)
        adopt(producer, pl, &found[i], run);
    return 0;
}

int mr_extents_rebuild(struct mr_producer *producer, struct mr_producer_lane *pl)
{
    struct found *found = malloc(pl->lane.window * sizeof *found);
    unsigned first = 0;
    int rc = 0;

    if (!found)
        return -1;
    unsigned count = find_extents(producer, &pl->lane, found);
    while (first < count && rc == 0) {
        uint64_t end = found[first].offset + found[first].length;
        unsigned after = first + 1;
        while (after < count && found[after].offset / MR_ARENA_PAGE <= (end - 1) / MR_ARENA_PAGE &&
               (found[after].offset < producer->reserve.bytes) == (found[first].offset < producer->reserve.bytes)) {
            if (found[after].offset + found[after].length > end)
                end = found[after].offset + found[after].length;
            after++;
        }
        rc = adopt_run(producer, pl, &found[first], after - first, end);
        first = after;
    }
    free(found);
    return rc;
}
