/* check.c - see cast.h: the invariants that hold at every moment. */
#include <stdio.h>
#include <string.h>

#include "shm/memory/arena.h"
#include "tests/crash/whole/cast.h"

#define GRANULES_MAX 4096u

static const char *state_name(enum mr_state state)
{
    static const char *const names[MR_STATE_COUNT] = {"EMPTY", "PENDING",  "FILLING", "READY",
                                                      "HELD",  "RELEASED", "FAILED"};

    return state < MR_STATE_COUNT ? names[state] : "?";
}

const char *words_text(const struct cast *cast)
{
    static char text[700];
    size_t at = 0;

    for (unsigned l = 0; l < LANES && at < sizeof text - 60; l++) {
        const struct mr_lane *lane = &cast->world.lane[l];
        at += (size_t)snprintf(text + at, sizeof text - at, "%slane %u%s want %llu:", l ? "; " : "", l,
                               mr_lane_is_closed(lane) ? " closed" : "",
                               (unsigned long long)atomic_load(&lane->shared->want));
        for (uint32_t slot = 0; slot < lane->window && slot < 16 && at < sizeof text - 60; slot++) {
            uint64_t word = mr_lane_load(lane, slot);
            at += (size_t)snprintf(text + at, sizeof text - at, " %s/%u/%u/%u", state_name(mr_word_state(word)),
                                   mr_word_owner(word), mr_word_attempt(word), mr_word_lap(word));
        }
    }
    return text;
}

/* Who may be named by a word, and how. */
static bool is_legal(const struct cast *cast, const struct mr_lane *lane, uint64_t word)
{
    unsigned owner = mr_word_owner(word), attempt = mr_word_attempt(word), producers = cast->world.shape.producers;

    switch (mr_word_state(word)) {
    case MR_EMPTY:
        return owner == 0 && attempt == 0;
    case MR_PENDING:
        return owner == 0 && attempt < MR_ATTEMPT_POISON;
    case MR_FILLING:
    case MR_READY:
        return owner < producers && attempt < MR_ATTEMPT_POISON;
    case MR_FAILED:
        return attempt == MR_ATTEMPT_POISON ? owner == MR_OWNER_SUPERVISOR : owner < producers;
    case MR_HELD:
        return owner == lane->owner;
    case MR_RELEASED:
        return owner == lane->owner && attempt == 0;
    default:
        return false;
    }
}

/* Marks an extent's granules; an error where one is marked already. */
static void mark(const struct cast *cast, uint8_t *map, unsigned arena, uint64_t offset, uint64_t length,
                 const char *when)
{
    if (length == 0)
        return;
    if (arena >= cast->world.shape.producers || offset % GRANULE || offset + length > cast->world.arena_bytes)
        fail("%s: an extent of %llu bytes at %llu of arena %u; %s", when, (unsigned long long)length,
             (unsigned long long)offset, arena, words_text(cast));
    const struct shape *shape = &cast->world.shape;
    for (uint64_t page = offset / MR_ARENA_PAGE; shape->grows && page <= (offset + length - 1) / MR_ARENA_PAGE; page++)
        if (page >= shape->reserve_pages && !(cast->world.kernel->backed[arena] & UINT64_C(1) << page))
            fail("%s: page %llu of arena %u is named and has no memory; %s", when, (unsigned long long)page, arena,
                 words_text(cast));
    map += arena * GRANULES_MAX + offset / GRANULE;
    for (uint64_t i = 0; i < (length + GRANULE - 1) / GRANULE; i++)
        if (map[i]++)
            fail("%s: byte %llu of arena %u belongs to two extents; %s", when,
                 (unsigned long long)(offset + i * GRANULE), arena, words_text(cast));
}

static void check_payload(const struct cast *cast, const struct mr_ticket *ticket, const char *when)
{
    uint64_t object = atomic_load(&ticket->request.object);
    const uint64_t *data = (const uint64_t *)(cast->world.arena[ticket->desc.arena] + ticket->desc.extent_offset);

    if (ticket->desc.length != object_bytes(cast, object))
        fail("%s: object %llu is there with %llu bytes; %s", when, (unsigned long long)object,
             (unsigned long long)ticket->desc.length, words_text(cast));
    for (uint64_t i = 0; i < ticket->desc.length / 8; i++)
        if (data[i] != object_byte8(object, i))
            fail("%s: the extent of object %llu has other bytes at %llu; %s", when, (unsigned long long)object,
                 (unsigned long long)i * 8, words_text(cast));
}

static void check_word(const struct cast *cast, const struct mr_lane *lane, uint32_t slot, uint8_t *map,
                       const char *when)
{
    const struct mr_ticket *ticket = &lane->tickets[slot];
    uint64_t word = mr_lane_load(lane, slot);
    enum mr_state state = mr_word_state(word);

    if (!is_legal(cast, lane, word))
        fail("%s: word %016llx in slot %u of lane %u is not legal; %s", when, (unsigned long long)word, slot,
             lane->lane, words_text(cast));
    if (state == MR_FAILED && mr_word_attempt(word) != MR_ATTEMPT_POISON && ticket->desc.extent_length)
        fail("%s: FAILED in slot %u of lane %u names an extent; %s", when, slot, lane->lane, words_text(cast));
    if (state != MR_READY && (state != MR_HELD || mr_word_attempt(word) == MR_ATTEMPT_POISON))
        return;
    mark(cast, map, ticket->desc.arena, ticket->desc.extent_offset, ticket->desc.extent_length, when);
    if (ticket->desc.extent_length)
        check_payload(cast, ticket, when);
}

void check_world(const struct cast *cast, const char *when)
{
    static uint8_t map[PRODUCERS * GRANULES_MAX];

    memset(map, 0, sizeof map);
    for (unsigned l = 0; l < LANES; l++)
        for (uint32_t slot = 0; slot < cast->world.lane[l].window; slot++)
            check_word(cast, &cast->world.lane[l], slot, map, when);
    for (unsigned p = 0; p < cast->world.shape.producers; p++) {
        const struct producer_role *role = &cast->producer[p];
        if (cast->stepped == (enum role)p || !cast->world.status->producer[p].alive)
            continue;
        for (unsigned i = role->done; i < role->job.count; i++)
            mark(cast, map, p, role->job.claims[i].extent_offset, role->job.claims[i].bytes, when);
    }
}

static bool is_wanted(const struct mr_lane *lane, uint32_t slot, uint32_t lap)
{
    return atomic_load(&lane->shared->want) == mr_lane_number(lane, slot, lap) + 1;
}

/* The table of shm/ring/README.md: what follows what, by whom, and what becomes of owner, attempt and lap. Nobody but
 * the process under test does anything between two stops. */
static bool is_transition(const struct cast *cast, const struct mr_lane *lane, uint32_t slot, uint64_t old,
                          uint64_t new)
{
    enum mr_state from = mr_word_state(old), to = mr_word_state(new);
    unsigned owner = mr_word_owner(new), attempt = mr_word_attempt(new), attempt_before = mr_word_attempt(old);
    uint32_t lap = mr_word_lap(new), lap_before = mr_word_lap(old);
    bool by_reader = cast->stepped == (enum role)(READER0 + lane->lane - cast->world.lane[0].lane);
    bool by_supervisor = cast->stepped == SUPERVISOR, same_attempt = attempt == attempt_before;
    /* The producer that the old word names, or the new one, is the one that acts. */
    bool by_old = cast->stepped < READER0 && mr_word_owner(old) == (unsigned)cast->stepped;
    bool by_new = cast->stepped < READER0 && owner == (unsigned)cast->stepped;

    if (from == MR_EMPTY || from == MR_RELEASED)
        if (to == MR_PENDING) /* a RELEASED slot may have missed laps: numbers skipped while it was HELD */
            return by_reader && !mr_lane_is_closed(lane) && attempt == 0 &&
                   (from == MR_EMPTY ? lap == lane->first_lap : (int32_t)(lap - lap_before) > 0);
    if (lap != lap_before)
        return false;
    if (to == MR_EMPTY)
        return from != MR_FILLING && mr_lane_is_closed(lane) && attempt == 0;
    switch (from) {
    case MR_PENDING:
        if (to == MR_FAILED)
            return by_supervisor && owner == MR_OWNER_SUPERVISOR && attempt == MR_ATTEMPT_POISON;
        return to == MR_FILLING && by_new && same_attempt;
    case MR_FILLING:
        if (to == MR_PENDING) /* given back, or recovered */
            return owner == 0 && (by_old ? same_attempt : by_supervisor && attempt == attempt_before + 1);
        return (to == MR_READY || to == MR_FAILED) && by_old && by_new && same_attempt;
    case MR_READY:
        if (to == MR_PENDING)
            return by_old && owner == 0 && same_attempt && !is_wanted(lane, slot, lap);
        return to == MR_HELD && by_reader && owner == lane->owner && same_attempt;
    case MR_FAILED:
        return to == MR_HELD && by_reader && owner == lane->owner && same_attempt;
    case MR_HELD:
        return to == MR_RELEASED && by_reader && owner == lane->owner;
    default:
        return false;
    }
}

static uint64_t word_before(const struct world *world, const unsigned char *before, unsigned lane, uint32_t slot)
{
    uint64_t word;

    memcpy(&word, before + ((const unsigned char *)&world->lane[lane].tickets[slot].word - world->base), sizeof word);
    return word;
}

unsigned check_transitions(const struct cast *cast, const unsigned char *before)
{
    const struct world *world = &cast->world;
    unsigned changed = 0;

    for (unsigned l = 0; l < LANES; l++) {
        for (uint32_t slot = 0; slot < world->lane[l].window; slot++) {
            uint64_t old = word_before(world, before, l, slot), new = mr_lane_load(&world->lane[l], slot);
            if (old == new)
                continue;
            if (!is_transition(cast, &world->lane[l], slot, old, new))
                fail("slot %u of lane %u went from %016llx to %016llx; %s", slot, l, (unsigned long long)old,
                     (unsigned long long)new, words_text(cast));
            changed++;
        }
    }
    if (changed > 1)
        fail("one instruction changed %u words; %s", changed, words_text(cast));
    return changed;
}

void check_recovered(const struct cast *cast, const unsigned char *before, unsigned producer)
{
    const struct world *world = &cast->world;

    for (unsigned l = 0; l < LANES; l++) {
        for (uint32_t slot = 0; slot < world->lane[l].window; slot++) {
            uint64_t old = word_before(world, before, l, slot), new = mr_lane_load(&world->lane[l], slot), want = old;
            if (mr_word_state(old) == MR_FILLING && mr_word_owner(old) == producer)
                want = mr_word(MR_PENDING, 0, mr_word_attempt(old) + 1, mr_word_lap(old));
            if (new != want && !(mr_lane_is_closed(&world->lane[l]) && mr_word_state(new) == MR_EMPTY))
                fail("recovery made %016llx of %016llx in slot %u of lane %u; %s", (unsigned long long)new,
                     (unsigned long long)old, slot, l, words_text(cast));
        }
    }
}
