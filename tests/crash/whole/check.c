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

static bool is_transition(uint64_t old, uint64_t new)
{
    static const uint8_t to[MR_STATE_COUNT] = {
        [MR_EMPTY] = 1 << MR_PENDING,
        [MR_PENDING] = 1 << MR_FILLING | 1 << MR_FAILED | 1 << MR_EMPTY,
        [MR_FILLING] = 1 << MR_PENDING | 1 << MR_READY | 1 << MR_FAILED,
        [MR_READY] = 1 << MR_PENDING | 1 << MR_HELD | 1 << MR_EMPTY,
        [MR_HELD] = 1 << MR_RELEASED | 1 << MR_EMPTY,
        [MR_RELEASED] = 1 << MR_PENDING | 1 << MR_EMPTY,
        [MR_FAILED] = 1 << MR_HELD | 1 << MR_EMPTY,
    };
    enum mr_state from = mr_word_state(old), state = mr_word_state(new);

    if (from >= MR_STATE_COUNT || state >= MR_STATE_COUNT || !(to[from] >> state & 1))
        return false;
    if (mr_word_lap(old) != mr_word_lap(new))
        return state == MR_PENDING && (from == MR_EMPTY || from == MR_RELEASED);
    return true;
}

unsigned check_transitions(const struct cast *cast, const unsigned char *before)
{
    const struct world *world = &cast->world;
    unsigned changed = 0;

    for (unsigned l = 0; l < LANES; l++) {
        for (uint32_t slot = 0; slot < world->lane[l].window; slot++) {
            const unsigned char *at = (const unsigned char *)&world->lane[l].tickets[slot].word;
            uint64_t old, new = mr_lane_load(&world->lane[l], slot);
            memcpy(&old, before + (at - world->base), sizeof old);
            if (old == new)
                continue;
            if (!is_transition(old, new))
                fail("slot %u of lane %u went from %016llx to %016llx; %s", slot, l, (unsigned long long)old,
                     (unsigned long long)new, words_text(cast));
            changed++;
        }
    }
    if (changed > 1)
        fail("one instruction changed %u words; %s", changed, words_text(cast));
    return changed;
}
