/*
 * producer.c - see producer.h for the policy. extents.c has the memory, cells.c groups tickets, this file chooses.
 *
 * What a producer remembers of a lane are hints: `head` and `own` are numbers below which it has seen nothing to do.
 * They move forward as tickets are examined, so that each is examined about once; they move back when `want`
 * names a lower ticket, when one of ours goes back to PENDING, and at a rescan of every word before sleeping.
 */
#include "shm/ring/producer.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/ring/mutant.h"
#include "shm/ring/producer_impl.h"

#define RESCAN_NS   (2 * MR_MILLISECOND_NS) /* not every sleep: the worker sleeps at each wait for the network */
#define TRIES_MAX   64                      /* lost races in one next_job */
#define REAP_A_TIME 8u
#define ANY_SIZE    UINT64_MAX

/* How a ticket could start now. */
enum mode {
    MODE_NONE,      /* it cannot: no room */
    MODE_WAIT,      /* solo, and others are still in flight: nothing else starts before it */
    MODE_FAIL,      /* its size cannot be had, or not even the reserve's memory: it is claimed and failed */
    MODE_NORMAL,    /* there is room */
    MODE_RESERVE,   /* a head, in the reserve */
    MODE_TAKE_BACK, /* a wanted head, in the reserve, after what lies there is taken back */
};

struct pick {
    struct mr_producer_lane *lane;
    uint64_t number, word, bytes;
    int64_t distance; /* from its lane's head */
    enum mode mode;
    bool stolen;
};

enum sight { SIGHT_UNPOSTED, SIGHT_PENDING, SIGHT_FILLING, SIGHT_DONE };

/* What has become of number n. `posted` was loaded before (acquire): lower numbers were posted or skipped by then. */
static enum sight examine(const struct mr_producer_lane *pl, uint64_t n, uint64_t posted, uint64_t *word)
{
    const struct mr_lane *lane = &pl->lane;
    uint64_t seen = mr_lane_load(lane, mr_lane_slot(lane, n));
    int32_t laps = (int32_t)(mr_word_lap(seen) - mr_lane_lap(lane, n));
    enum mr_state state = mr_word_state(seen);

    *word = seen;
    if (laps < 0 || state == MR_EMPTY)
        return mr_lane_distance(lane, n, posted) < 0 ? SIGHT_DONE : SIGHT_UNPOSTED;
    if (laps > 0)
        return SIGHT_DONE;
    /* A wild consumer may write PENDING over our FILLING; the transfer still owns the extent. */
    if (state == MR_FILLING || (state == MR_PENDING && mr_extents_is_filling(pl, mr_lane_slot(lane, n))))
        return SIGHT_FILLING;
    return state == MR_PENDING ? SIGHT_PENDING : SIGHT_DONE;
}

/* Brings pl->head to the lowest PENDING or FILLING number; false: there is none (that we know of). */
static bool advance_head(struct mr_producer_lane *pl, uint64_t posted)
{
    const struct mr_lane *lane = &pl->lane;
    uint64_t taken = atomic_load_explicit(&lane->shared->taken, memory_order_relaxed), want = mr_producer_want(pl),
             word;

    if (want && mr_lane_distance(lane, want - 1, pl->head) < 0)
        mr_producer_search_from(pl, mr_lane_wrap(lane, want - 1));
    else if (mr_lane_distance(lane, taken, pl->head) > 0)
        pl->head = mr_lane_wrap(lane, taken);
    for (uint32_t i = 0; i < lane->window; i++) {
        enum sight sight = examine(pl, pl->head, posted, &word);
        if (sight == SIGHT_UNPOSTED)
            return false;
        if (sight != SIGHT_DONE)
            return true;
        pl->head = mr_lane_wrap(lane, pl->head + 1);
    }
    return false;
}

static unsigned home_of(const struct mr_producer *producer, const struct mr_producer_lane *pl, uint64_t n)
{
    unsigned home;

    if (pl->has_cells && mr_cells_home(pl, mr_lane_slot(&pl->lane, n), producer->producers, &home))
        return home;
    return mr_lane_home(&pl->lane, n, producer->producers);
}

static bool is_own(const struct mr_producer *producer, const struct mr_producer_lane *pl, uint64_t n)
{
    return home_of(producer, pl, n) == producer->slot;
}

/* The next number whose home may be another one than that of n. */
static uint64_t next_block(const struct mr_producer_lane *pl, uint64_t n)
{
    return mr_lane_wrap(&pl->lane, pl->has_cells ? n + 1 : (n / MR_LANE_BLOCK + 1) * MR_LANE_BLOCK);
}

/* Brings pl->own to the lowest PENDING number of our own blocks and cells. */
static bool advance_own(const struct mr_producer *producer, struct mr_producer_lane *pl, uint64_t posted,
                        uint64_t *word)
{
    if (mr_lane_distance(&pl->lane, pl->head, pl->own) > 0)
        pl->own = pl->head;
    for (uint32_t i = 0; i < pl->lane.window; i++) {
        if (!is_own(producer, pl, pl->own)) {
            uint64_t next = next_block(pl, pl->own);
            if (mr_lane_distance(&pl->lane, next, posted) > 0)
                return false; /* examined again when more is posted */
            pl->own = next;
            continue;
        }
        enum sight sight = examine(pl, pl->own, posted, word);
        if (sight == SIGHT_PENDING)
            return true;
        if (sight == SIGHT_UNPOSTED)
            return false;
        pl->own = mr_lane_wrap(&pl->lane, pl->own + 1);
    }
    return false;
}

/* Looks at every word, whatever the hints say. */
static void rescan(const struct mr_producer *producer, struct mr_producer_lane *pl)
{
    const struct mr_lane *lane = &pl->lane;
    bool head = false, own = false;

    for (uint32_t slot = 0; slot < lane->window; slot++) {
        uint64_t word = mr_lane_load(lane, slot), n = mr_lane_number(lane, slot, mr_word_lap(word));
        enum mr_state state = mr_word_state(word);
        if (state != MR_PENDING && state != MR_FILLING)
            continue;
        mr_cells_note(pl, slot); /* it may have been posted since the last note */
        if (!head || mr_lane_distance(lane, n, pl->head) < 0)
            pl->head = n;
        head = true;
        if (state != MR_PENDING || !is_own(producer, pl, n))
            continue;
        if (!own || mr_lane_distance(lane, n, pl->own) < 0)
            pl->own = n;
        own = true;
    }
}

/* The ticket's size by a peek at its request, remembered as long as its word stays. */
static int peek_size(struct mr_producer *producer, struct mr_producer_lane *pl, uint64_t n, uint64_t word,
                     uint64_t *bytes)
{
    if (pl->sized_number == n && pl->sized_word == word) {
        *bytes = pl->sized_bytes;
        return 0;
    }
    struct mr_request request;
    mr_lane_peek_request(&pl->lane, mr_lane_slot(&pl->lane, n), &request);
    if (producer->size(producer->size_arg, &request, bytes) || *bytes > mr_extents_largest_ever(producer))
        return -1;
    pl->sized_number = n;
    pl->sized_word = word;
    pl->sized_bytes = *bytes;
    return 0;
}

/* `head`: a reader waits for this ticket, so the reserve may be used for it. */
static enum mode mode_of(struct mr_producer *producer, struct pick *pick, bool head)
{
    struct mr_producer_lane *pl = pick->lane;

    if (mr_word_attempt(pick->word) >= MR_SOLO_AFTER && (producer->inflight || producer->caller_inflight))
        return MODE_WAIT;
    if (peek_size(producer, pl, pick->number, pick->word, &pick->bytes) != 0)
        return MODE_FAIL;
    if (mr_extents_have_room(producer, pick->bytes))
        return MODE_NORMAL;
    if (!head || pick->bytes > mr_arena_reserve_bytes(producer->arena) || MR_MUTANT_IS(MR_MUTANT_NO_RESERVE))
        return MODE_NONE;
    if (!mr_extents_back_reserve(producer, pick->bytes))
        return MODE_FAIL;
    if (mr_extents_reserve_is_free(producer))
        return MODE_RESERVE;
    /* Taking back: only for a head that is waited for, and never a ticket that its own consumer waits for. */
    if (MR_MUTANT_IS(MR_MUTANT_NO_TAKE_BACK) || mr_producer_want(pl) != pick->number + 1)
        return MODE_NONE;
    struct mr_producer_lane *other;
    uint64_t x;
    if (!mr_extents_reserve_is_ready(producer, &other, &x))
        return MODE_NONE;
    if (mr_producer_want(other) == x + 1 && !MR_MUTANT_IS(MR_MUTANT_TAKE_BACK_WANTED))
        return MODE_NONE;
    return MODE_TAKE_BACK;
}

/* Keeps the candidate if it is nearer to its head than the best so far and can start. */
static void consider(struct mr_producer *producer, struct pick *best, struct mr_producer_lane *pl, uint64_t number,
                     uint64_t word, bool stolen)
{
    struct pick pick = {.lane = pl, .number = number, .word = word, .stolen = stolen};

    pick.distance = mr_lane_distance(&pl->lane, number, pl->head);
    if (best->mode != MODE_NONE && pick.distance >= best->distance)
        return;
    if (mr_lane_distance(&pl->lane, number, pl->noted) >= 0)
        mr_cells_note(pl, mr_lane_slot(&pl->lane, number)); /* beyond what was noted: after a skipped number */
    if (pl->has_cells && mr_cells_may_wait(pl, number))
        return;
    pick.mode = mode_of(producer, &pick, pick.distance == 0);
    if (pick.mode != MODE_NONE)
        *best = pick;
}

static bool is_dead(const struct mr_producer *producer, unsigned home)
{
    return atomic_load_explicit(&producer->board->producer[home].alive, memory_order_relaxed) == 0;
}

static bool any_is_dead(const struct mr_producer *producer)
{
    for (unsigned home = 0; home < producer->producers; home++)
        if (is_dead(producer, home))
            return true;
    return false;
}

/* The lowest PENDING ticket of another home that we may take: within one job of the head, or its home is dead. */
static void consider_stealing(struct mr_producer *producer, struct pick *best, struct mr_producer_lane *pl)
{
    const struct mr_lane *lane = &pl->lane;
    uint64_t posted = mr_producer_posted(pl), n = pl->head, word;
    uint32_t count = any_is_dead(producer) ? lane->window : MR_LANE_BLOCK;

    for (uint32_t i = 0; i < lane->window && i < count;) {
        bool near = i < MR_LANE_BLOCK;
        if (is_own(producer, pl, n) || (!near && !is_dead(producer, home_of(producer, pl, n)))) {
            uint64_t next = next_block(pl, n);
            i += (uint32_t)mr_lane_distance(lane, next, n);
            n = next;
            continue;
        }
        switch (examine(pl, n, posted, &word)) {
        case SIGHT_UNPOSTED:
            return;
        case SIGHT_PENDING:
            consider(producer, best, pl, n, word, true);
            return;
        default:
            break;
        }
        n = mr_lane_wrap(lane, n + 1);
        i++;
    }
}

/* What to start next, if anything can start. */
static bool producer_find(struct mr_producer *producer, struct pick *best)
{
    unsigned count = producer->lane_count;

    memset(best, 0, sizeof *best);
    producer->reaped = false;
    if (producer->solo && producer->inflight)
        return false;
    uint64_t word;
    for (unsigned i = 0; i < count; i++) {
        struct mr_producer_lane *pl = producer->lanes[(producer->turn + i) % count];
        uint64_t posted = mr_producer_posted(pl);
        mr_cells_note_posted(pl, posted);
        pl->has_head = !mr_lane_is_closed(&pl->lane) && advance_head(pl, posted);
        if (pl->has_head && advance_own(producer, pl, posted, &word))
            consider(producer, best, pl, pl->own, word, false);
    }
    for (unsigned i = 0; best->mode == MODE_NONE && producer->producers > 1 && i < count; i++) {
        struct mr_producer_lane *pl = producer->lanes[(producer->turn + i) % count];
        if (pl->has_head)
            consider_stealing(producer, best, pl);
    }
    return best->mode != MODE_NONE && best->mode != MODE_WAIT;
}

/* Claims one ticket into the job's next place. dest is set by the caller. */
static bool claim_one(struct mr_producer *producer, struct mr_producer_lane *pl, uint64_t number, uint64_t word,
                      struct mr_claim *claim)
{
    memset(claim, 0, sizeof *claim);
    claim->lane = pl;
    claim->number = number;
    claim->slot = mr_lane_slot(&pl->lane, number);
    if (!mr_lane_claim(&pl->lane, claim->slot, word, producer->slot, &claim->filling, &claim->request))
        return false;
    mr_extents_forget(producer, pl, claim->slot); /* what an older lap named: that lap is over */
    pl->claims++;
    producer->inflight++;
    return true;
}

/* Fails a ticket that the caller has not been given and so does not count. */
static void refuse(struct mr_producer *producer, struct mr_claim *claim, enum mr_code code, const char *text)
{
    producer->stats.refused++;
    mr_producer_fail(producer, claim, code, text);
}

/* The request as claimed must need what the peek at it promised. On false the ticket has been failed. */
static bool check_claim(struct mr_producer *producer, struct mr_claim *claim, uint64_t expected)
{
    uint64_t bytes, largest = mr_extents_largest_ever(producer);

    if (producer->size(producer->size_arg, &claim->request, &bytes)) {
        refuse(producer, claim, mr_error_code(), mr_error_text());
        return false;
    }
    if (bytes > largest) {
        mr_error_set(MR_E_CONFIG,
                     "an object of %llu bytes is larger than the %llu that were set aside for the largest "
                     "one: raise [memory] arena_bytes, or open its data set first",
                     (unsigned long long)bytes, (unsigned long long)largest);
        refuse(producer, claim, MR_E_CONFIG, mr_error_text());
        return false;
    }
    if (expected == ANY_SIZE && !mr_extents_back_reserve(producer, bytes)) {
        refuse(producer, claim, mr_error_code(), mr_error_text());
        return false;
    }
    if (expected != ANY_SIZE && bytes != expected) {
        refuse(producer, claim, MR_E_PROTOCOL, "the request was changed after it was posted");
        return false;
    }
    claim->bytes = bytes;
    return true;
}

/* The tickets after the first that one request may serve too: consecutive, PENDING, ours to serve, and fitting. */
static void plan_job(struct mr_producer *producer, const struct pick *pick, unsigned max_tickets, uint64_t max_bytes,
                     struct mr_job_plan *plan)
{
    struct mr_producer_lane *pl = pick->lane;
    uint64_t posted = mr_producer_posted(pl), first_block = pick->number / MR_LANE_BLOCK;

    if (max_tickets > MR_LANE_BLOCK)
        max_tickets = MR_LANE_BLOCK;
    struct mr_request first;
    mr_lane_peek_request(&pl->lane, mr_lane_slot(&pl->lane, pick->number), &first);
    while (plan->count < max_tickets && plan->count < pl->lane.window) {
        uint64_t n = mr_lane_wrap(&pl->lane, pick->number + plan->count), word, bytes;
        if (pick->stolen ? n / MR_LANE_BLOCK != first_block : !is_own(producer, pl, n))
            break;
        if (examine(pl, n, posted, &word) != SIGHT_PENDING || mr_word_attempt(word) >= MR_SOLO_AFTER)
            break;
        struct mr_request request;
        mr_lane_peek_request(&pl->lane, mr_lane_slot(&pl->lane, n), &request);
        if (producer->join && !producer->join(producer->size_arg, &first, &request))
            break;
        if (producer->size(producer->size_arg, &request, &bytes) || bytes > max_bytes ||
            plan->total + bytes > max_bytes || !mr_extents_have_room(producer, plan->total + bytes))
            break;
        plan->tickets[plan->count++] =
            (struct mr_planned){.pl = pl, .number = n, .word = word, .bytes = bytes, .at = plan->total};
        plan->total += bytes;
    }
}

/* Claims what was planned, lowest first. A ticket that another process has moved ends the job, unless the job is of a
 * cell and the gap that it leaves is small. */
static bool claim_job(struct mr_producer *producer, const struct mr_job_plan *plan, bool cell, struct mr_run *run,
                      struct mr_job *job)
{
    uint64_t end = 0; /* of what was claimed */

    job->count = 0;
    for (unsigned i = 0; i < plan->count; i++) {
        struct mr_claim *claim = &job->claims[job->count];
        const struct mr_planned *ticket = &plan->tickets[i];
        if (job->count > 0 && ticket->at - end > (cell ? producer->gap_bytes : 0))
            break;
        if (!claim_one(producer, ticket->pl, ticket->number, ticket->word, claim)) {
            if (job->count > 0 && cell)
                continue;
            break; /* the producer that has the first one has gathered the same cell */
        }
        if (!check_claim(producer, claim, ticket->bytes))
            continue;
        if (run && claim->bytes) { /* an empty object has no extent */
            claim->extent_offset = run->offset + ticket->at;
            claim->dest = producer->base + claim->extent_offset;
            claim->reserve = run->reserve;
            mr_extents_attach(producer, claim, run);
        }
        end = ticket->at + ticket->bytes;
        job->count++;
    }
    return job->count > 0;
}

/* True: *job is filled. False: the race for it was lost, or the ticket has been failed. */
static bool start_job(struct mr_producer *producer, const struct pick *pick, unsigned max_tickets, uint64_t max_bytes,
                      struct mr_job *job)
{
    if (pick->mode == MODE_FAIL) {
        struct mr_claim claim;
        if (claim_one(producer, pick->lane, pick->number, pick->word, &claim) &&
            check_claim(producer, &claim, ANY_SIZE))
            mr_producer_give_back(producer, &claim);
        return false;
    }
    if (pick->mode == MODE_TAKE_BACK && !mr_extents_take_back(producer))
        return false;
    struct mr_job_plan *plan = &producer->plan;
    plan->count = 1;
    plan->total = pick->bytes;
    plan->tickets[0] = (struct mr_planned){
        .pl = pick->lane, .number = pick->number, .word = pick->word, .bytes = pick->bytes, .at = 0};
    bool alone = pick->mode != MODE_NORMAL || mr_word_attempt(pick->word) >= MR_SOLO_AFTER;
    bool cell = !alone && mr_cells_plan(producer, plan);
    if (!alone && !cell)
        plan_job(producer, pick, max_tickets, max_bytes, plan);
    struct mr_run *run = NULL;
    if (plan->total > 0) {
        run = pick->mode == MODE_NORMAL ? mr_extents_alloc(producer, plan->total) : mr_extents_reserve(producer);
        if (!run)
            return false;
    }
    job->solo = mr_word_attempt(pick->word) >= MR_SOLO_AFTER;
    if (!claim_job(producer, plan, cell, run, job)) {
        mr_extents_unuse(producer, run);
        return false;
    }
    producer->stats.reserve_uses += run && run->reserve;
    mr_extents_unuse(producer, run); /* the claims hold it now, if any of them has bytes */
    producer->solo = job->solo;
    producer->stats.jobs++;
    producer->stats.tickets += job->count;
    producer->stats.stolen_blocks += pick->stolen;
    return true;
}

bool mr_producer_next_job(struct mr_producer *producer, unsigned max_tickets, uint64_t max_bytes, unsigned inflight,
                          struct mr_job *job)
{
    producer->caller_inflight = inflight; /* may be larger than ours: transfers of claims that have ended */
    mr_extents_reap_some(producer, REAP_A_TIME);
    struct pick pick;
    for (unsigned i = 0; i < TRIES_MAX && producer_find(producer, &pick); i++) {
        if (start_job(producer, &pick, max_tickets, max_bytes, job)) {
            producer->turn++; /* among lanes that are equally near, take turns */
            return true;
        }
    }
    return false;
}

static void end_claim(struct mr_producer *producer, struct mr_claim *claim)
{
    claim->lane->claims--;
    producer->inflight--;
    if (producer->inflight == 0)
        producer->solo = false;
}

void mr_producer_publish(struct mr_producer *producer, struct mr_claim *claim, uint64_t length, uint64_t generation,
                         uint32_t crc32c, uint32_t desc_flags)
{
    struct mr_descriptor desc = {.extent_offset = claim->extent_offset,
                                 .extent_length = claim->bytes,
                                 .length = length,
                                 .generation = generation,
                                 .crc32c = crc32c,
                                 .arena = producer->slot,
                                 .division = producer->division,
                                 .flags = desc_flags | (claim->reserve ? MR_DESC_RESERVE : 0)};
    struct mr_lane *lane = &claim->lane->lane;

    if (length > claim->bytes) {
        mr_producer_fail(producer, claim, MR_E_INTERNAL, "more bytes were received than there was room for");
        return;
    }
    mr_lane_describe(lane, claim->slot, &desc);
    uint64_t ready;
    mr_lane_publish(lane, claim->slot, claim->filling, &ready);
    mr_extents_published(producer, claim);
    end_claim(producer, claim);
    mr_wake_consumer(lane);
}

void mr_producer_fail(struct mr_producer *producer, struct mr_claim *claim, uint32_t code, const char *text)
{
    mr_lane_fail(&claim->lane->lane, claim->slot, claim->filling, code, text);
    mr_extents_forget(producer, claim->lane, claim->slot);
    end_claim(producer, claim);
    mr_wake_consumer(&claim->lane->lane);
}

void mr_producer_give_back(struct mr_producer *producer, struct mr_claim *claim)
{
    mr_lane_give_back(&claim->lane->lane, claim->slot, claim->filling);
    mr_extents_forget(producer, claim->lane, claim->slot);
    mr_producer_search_from(claim->lane, claim->number);
    end_claim(producer, claim);
    producer->stats.give_backs++;
}

bool mr_producer_claim_is_stale(const struct mr_claim *claim)
{
    return mr_lane_is_closed(&claim->lane->lane);
}

bool mr_producer_sleep(struct mr_producer *producer)
{
    mr_wake_producer_asleep(producer->line);
    if (MR_MUTANT_IS(MR_MUTANT_NO_ASLEEP_RESCAN))
        return false;
    int64_t now = mr_clock_mono_ns();
    if (now - producer->rescanned_ns >= RESCAN_NS) {
        for (unsigned i = 0; i < producer->lane_count; i++)
            rescan(producer, producer->lanes[i]);
        producer->rescanned_ns = now;
    }
    struct pick pick;
    if (!producer_find(producer, &pick))
        return false;
    mr_wake_producer_awake(producer->line);
    return true;
}

void mr_producer_awake(struct mr_producer *producer)
{
    mr_wake_producer_awake(producer->line);
}

struct mr_producer *mr_producer_new(const struct mr_producer_options *options)
{
    unsigned producers = atomic_load_explicit(&options->board->producers, memory_order_acquire);

    if (producers == 0 || producers > MR_PRODUCERS_MAX || options->slot >= producers) {
        mr_error_set(MR_E_USAGE, "there is no producer slot %u: there are %u, counted from 0", options->slot,
                     producers);
        return NULL;
    }
    struct mr_producer *producer = calloc(1, sizeof *producer);
    if (!producer) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the producer's tables");
        return NULL;
    }
    producer->slot = options->slot;
    producer->division = options->division;
    producer->producers = producers;
    producer->board = options->board;
    producer->line = options->line;
    producer->base = options->arena;
    producer->arena_bytes = options->arena_bytes;
    producer->size = options->size;
    producer->size_arg = options->size_arg;
    producer->join = options->join;
    producer->place = options->place;
    producer->cell_bytes = options->cell_bytes;
    producer->gap_bytes = options->gap_bytes;
    producer->back = options->back;
    producer->back_arg = options->back_arg;
    producer->first_bytes = options->first_bytes;
    producer->reserve_backed_bytes = options->reserve_backed_bytes;
    uint64_t reserve = (options->reserve_bytes + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;
    producer->arena = mr_arena_new(options->arena_bytes, options->reserve_bytes,
                                   options->back ? reserve + options->first_bytes : options->arena_bytes);
    if (!producer->arena) {
        free(producer);
        return NULL;
    }
    producer->reserve.bytes = mr_arena_reserve_bytes(producer->arena);
    producer->reserve.reserve = true;
    return producer;
}

static void free_lane(struct mr_producer *producer, struct mr_producer_lane *pl)
{
    for (uint32_t slot = 0; slot < pl->lane.window; slot++)
        mr_extents_forget(producer, pl, slot);
    mr_lane_unmap(&pl->lane);
    free(pl->extents);
    free(pl->cells);
    free(pl);
}

void mr_producer_destroy(struct mr_producer *producer)
{
    if (!producer)
        return;
    for (unsigned i = 0; i < producer->lane_count; i++)
        free_lane(producer, producer->lanes[i]);
    free(producer->lanes);
    mr_arena_destroy(producer->arena);
    free(producer);
}

int mr_producer_add_lane(struct mr_producer *producer, struct mr_lane *lane)
{
    struct mr_producer_lane *pl = calloc(1, sizeof *pl), **lanes;

    if (!pl)
        goto no_memory;
    pl->extents = calloc(lane->window, sizeof *pl->extents);
    pl->cells = calloc(lane->window, sizeof *pl->cells);
    lanes = realloc(producer->lanes, (producer->lane_count + 1) * sizeof(struct mr_producer_lane *));
    if (lanes)
        producer->lanes = lanes;
    if (!lanes || !pl->extents || !pl->cells)
        goto no_memory;
    pl->lane = *lane;
    pl->head = pl->own = pl->noted =
        mr_lane_wrap(lane, atomic_load_explicit(&lane->shared->taken, memory_order_relaxed));
    pl->sized_number = UINT64_MAX;
    if (mr_extents_rebuild(producer, pl))
        goto no_memory;
    rescan(producer, pl);
    producer->lanes[producer->lane_count++] = pl;
    return 0;

no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for a lane of %u tickets", lane->window);
    if (pl) {
        free(pl->extents);
        free(pl->cells);
    }
    free(pl);
    return -1;
}

bool mr_producer_drop_lane(struct mr_producer *producer, uint32_t lane_index)
{
    for (unsigned i = 0; i < producer->lane_count; i++) {
        struct mr_producer_lane *pl = producer->lanes[i];
        if (pl->lane.lane != lane_index || !mr_lane_is_closed(&pl->lane))
            continue;
        if (pl->claims || mr_extents_are_named(producer, pl))
            return false;
        producer->lanes[i] = producer->lanes[--producer->lane_count];
        free_lane(producer, pl);
        return true;
    }
    return false;
}

bool mr_producer_trim(struct mr_producer *producer, uint64_t *offset, uint64_t *bytes)
{
    uint64_t first = mr_arena_reserve_bytes(producer->arena) + producer->first_bytes;
    uint64_t backed = mr_arena_backed_bytes(producer->arena);
    uint64_t most = producer->arena_bytes / MR_ARENA_PAGE * MR_ARENA_PAGE;

    if (!producer->back || producer->lane_count > 0 || first >= most || (backed <= first && producer->trimmed))
        return false;
    if (backed > first && !mr_arena_shrink(producer->arena, first))
        return false;
    producer->trimmed = true;
    *offset = first;
    *bytes = most - first; /* also what a predecessor had made behind the extents that were found */
    return true;
}

void mr_producer_stats(const struct mr_producer *producer, struct mr_producer_stats *stats)
{
    *stats = producer->stats;
}

uint64_t mr_producer_free_bytes(struct mr_producer *producer)
{
    mr_extents_reap_all(producer);
    return mr_arena_free_bytes(producer->arena) +
           (mr_extents_reserve_is_free(producer) ? mr_arena_reserve_bytes(producer->arena) : 0);
}

uint64_t mr_producer_backed_bytes(const struct mr_producer *producer)
{
    uint64_t reserve = mr_arena_reserve_bytes(producer->arena);

    return mr_arena_backed_bytes(producer->arena) - (producer->back ? reserve - producer->reserve_backed_bytes : 0);
}
