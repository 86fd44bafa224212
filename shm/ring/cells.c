/*
 * cells.c - neighbours in one request: which tickets are of one cell, and which of them a job takes together.
 *
 * `cells` of a lane are a private copy of what its tickets said when they were seen to be posted, so that a search for
 * the others of a cell reads a few kilobytes and not each ticket. A copy may be out of date: each hit is checked
 * against its ticket, and what is claimed is checked once more after the claim.
 */
#include <stdlib.h>

#include "shm/ring/producer_impl.h"

#define CELL_BITS 48
#define CELL_MASK ((UINT64_C(1) << CELL_BITS) - 1)
#define FOUND_MAX (2 * MR_JOB_TICKETS)

/* 0: of no cell. Two cells of one key are possible where data sets differ by 2^16: they are never of one object. */
static uint64_t key_of(const struct mr_request *request)
{
    if (request->cell == 0)
        return 0;
    return (uint64_t)request->dataset << CELL_BITS | ((request->object / request->cell + 1) & CELL_MASK);
}

void mr_cells_note(struct mr_producer_lane *pl, uint32_t slot)
{
    struct mr_request request;

    mr_lane_peek_request(&pl->lane, slot, &request);
    pl->cells[slot] = key_of(&request);
    pl->has_cells |= pl->cells[slot] != 0;
}

/* The word decides, whatever the hint says; it is loaded (acquire) before the request is read. */
static bool is_posted(const struct mr_lane *lane, uint64_t number)
{
    uint64_t word = mr_lane_load(lane, mr_lane_slot(lane, number));

    return mr_word_state(word) != MR_EMPTY && mr_word_lap(word) == mr_lane_lap(lane, number);
}

void mr_cells_note_posted(struct mr_producer_lane *pl, uint64_t posted)
{
    if (mr_lane_distance(&pl->lane, posted, pl->noted) > (int64_t)pl->lane.window)
        pl->noted = mr_lane_wrap(&pl->lane, posted - pl->lane.window);
    /* A consumer that is posting right now stores words before the hint: those would pass for tickets without a
     * cell. */
    for (uint32_t i = 0; i < pl->lane.window; i++) {
        if (mr_lane_distance(&pl->lane, posted, pl->noted) <= 0 && !is_posted(&pl->lane, pl->noted))
            break;
        mr_cells_note(pl, mr_lane_slot(&pl->lane, pl->noted));
        pl->noted = mr_lane_wrap(&pl->lane, pl->noted + 1);
    }
}

bool mr_cells_home(const struct mr_producer_lane *pl, uint32_t slot, unsigned producers, unsigned *home)
{
    if (pl->cells[slot] == 0)
        return false;
    *home = producers ? (unsigned)((pl->cells[slot] & CELL_MASK) % producers) : 0;
    return true;
}

/* A ticket in the farther half of what is posted waits, so that a cell that fits into the nearer half is complete when
 * its first ticket is started. `taken` and `posted` are the consumer's hints: nothing that they count is read because
 * of them. `want` (W2-W3) keeps the consumer from sleeping over a ticket that waits here, as over any other. */
bool mr_cells_may_wait(const struct mr_producer_lane *pl, uint64_t number)
{
    const struct mr_lane *lane = &pl->lane;
    uint32_t slot = mr_lane_slot(lane, number);

    if (pl->cells[slot] == 0)
        return false;
    struct mr_request request;
    mr_lane_peek_request(lane, slot, &request);
    uint64_t taken = atomic_load_explicit(&lane->shared->taken, memory_order_relaxed); /* a hint, see above */
    int64_t distance = mr_lane_distance(lane, number, taken);

    return request.flags & MR_REQUEST_PATIENT && mr_producer_want(pl) != number + 1 && distance > 0 &&
           2 * distance >= mr_lane_distance(lane, mr_producer_posted(pl), taken);
}

static int by_place(const void *a, const void *b)
{
    const struct mr_planned *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* PENDING tickets of that key near the object `first`, in the same stored object, with their places in it. */
static unsigned gather(struct mr_producer *producer, uint64_t key, uint64_t first, uint64_t stored,
                       struct mr_planned found[FOUND_MAX])
{
    unsigned count = 0;

    for (unsigned l = 0; l < producer->lane_count; l++) {
        struct mr_producer_lane *pl = producer->lanes[l];
        if (!pl->has_cells || mr_lane_is_closed(&pl->lane))
            continue;
        for (uint32_t slot = 0; slot < pl->lane.window && count < FOUND_MAX; slot++) {
            if (pl->cells[slot] != key)
                continue;
            uint64_t word = mr_lane_load(&pl->lane, slot);
            if (mr_word_state(word) != MR_PENDING || mr_word_attempt(word) >= MR_SOLO_AFTER ||
                mr_extents_is_filling(pl, slot))
                continue;
            struct mr_request request;
            struct mr_place place;
            mr_lane_peek_request(&pl->lane, slot, &request);
            uint64_t away = request.object < first ? first - request.object : request.object - first;
            if (key_of(&request) != key || away >= MR_JOB_TICKETS ||
                !producer->place(producer->size_arg, &request, &place) || place.stored != stored)
                continue;
            found[count++] = (struct mr_planned){.pl = pl,
                                                 .number = mr_lane_number(&pl->lane, slot, mr_word_lap(word)),
                                                 .word = word,
                                                 .bytes = place.bytes,
                                                 .at = place.offset};
        }
    }
    return count;
}

/* Sorts them by place, and drops what overlaps another: a sample that is asked for twice. Returns the pick's new index;
 * *count or more: it is not among them. */
static unsigned put_in_order(struct mr_planned *found, unsigned *count, const struct mr_planned *pick)
{
    unsigned kept = 0, at = FOUND_MAX;

    qsort(found, *count, sizeof *found, by_place);
    for (unsigned i = 0; i < *count; i++) {
        bool is_pick = found[i].pl == pick->pl && found[i].number == pick->number && found[i].word == pick->word;
        bool overlaps = kept > 0 && found[i].at < found[kept - 1].at + found[kept - 1].bytes;
        if (overlaps && !is_pick)
            continue;
        kept -= overlaps;
        at = is_pick ? kept : at;
        found[kept++] = found[i];
    }
    *count = kept;
    return at;
}

static uint64_t bytes_of(const struct mr_planned *found, unsigned low, unsigned high)
{
    return found[high].at + found[high].bytes - found[low].at;
}

/* Chooses found[low .. high] around the pick: no gap over gap_bytes, no more than cell_bytes in all, and no more than
 * there is room for. */
static void cut(struct mr_producer *producer, const struct mr_planned *found, unsigned count, unsigned pick,
                unsigned *low, unsigned *high)
{
    *low = *high = pick;
    while (*high + 1 < count && *high + 1 - *low < MR_JOB_TICKETS &&
           found[*high + 1].at - (found[*high].at + found[*high].bytes) <= producer->gap_bytes &&
           bytes_of(found, *low, *high + 1) <= producer->cell_bytes)
        ++*high;
    while (*low > 0 && *high + 1 - *low < MR_JOB_TICKETS &&
           found[*low].at - (found[*low - 1].at + found[*low - 1].bytes) <= producer->gap_bytes &&
           bytes_of(found, *low - 1, *high) <= producer->cell_bytes)
        --*low;
    while (*high > *low && !mr_extents_have_room(producer, bytes_of(found, *low, *high))) {
        if (*high > pick)
            *high = pick + (*high - pick) / 2;
        else
            *low = pick - (pick - *low) / 2;
    }
}

bool mr_cells_plan(struct mr_producer *producer, struct mr_job_plan *plan)
{
    struct mr_planned found[FOUND_MAX], pick = plan->tickets[0];
    struct mr_request request;
    struct mr_place place;
    uint32_t slot = mr_lane_slot(&pick.pl->lane, pick.number);
    uint64_t key = pick.pl->cells[slot];

    if (!producer->place || key == 0)
        return false;
    mr_lane_peek_request(&pick.pl->lane, slot, &request);
    if (key_of(&request) != key || !producer->place(producer->size_arg, &request, &place))
        return false;
    unsigned count = gather(producer, key, request.object, place.stored, found), low, high;
    unsigned at = put_in_order(found, &count, &pick);
    if (at >= count) /* another producer has claimed it meanwhile */
        return false;
    cut(producer, found, count, at, &low, &high);
    if (low == high)
        return false;
    plan->count = high - low + 1;
    plan->total = bytes_of(found, low, high);
    for (unsigned i = 0; i < plan->count; i++) {
        plan->tickets[i] = found[low + i];
        plan->tickets[i].at -= found[low].at;
    }
    return true;
}
