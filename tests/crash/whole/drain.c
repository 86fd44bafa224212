/* drain.c - see cast.h: turns until all is delivered, and what must be true then. */
#include "base/clock.h"
#include "tests/crash/whole/cast.h"

#define ROLES 4u /* PRODUCER0 .. READER1 */

static bool is_runnable(const struct cast *cast, enum role role)
{
    const struct world *world = &cast->world;
    const struct status *status = world->status;
    unsigned l = role - READER0;

    if (role < READER0)
        return status->producer[role].alive && (!status->producer[role].sleeping || world->kernel->event[role]);
    if (!status->reader[l].alive || status->reader[l].finished)
        return false;
    if (status->reader[l].waiting)
        return world->kernel->wakes[l] != status->reader[l].seen_wakes;
    return reader_may_take(cast, l);
}

static void take_turn(struct cast *cast, enum role role)
{
    if (role == cast->stepped) {
        if (!cast->child_turn(cast->child_arg))
            fail("the process under test has ended by itself");
    } else if (role < READER0) {
        producer_turn(cast, role);
    } else {
        reader_turn(cast, role - READER0);
    }
    check_world(cast, "in the drain");
}

static bool all_delivered(const struct cast *cast)
{
    for (unsigned l = 0; l < LANES; l++)
        if (cast->world.status->reader[l].alive && !cast->world.status->reader[l].finished)
            return false;
    return true;
}

/* One turn of each that can run. */
static bool round_of_turns(struct cast *cast, enum role without)
{
    bool ran = false;

    for (unsigned i = 0; i < ROLES; i++) {
        enum role role = cast->reversed ? (enum role)(ROLES - 1 - i) : (enum role)i;
        if (role == without || !is_runnable(cast, role))
            continue;
        take_turn(cast, role);
        ran = true;
    }
    return ran;
}

static uint64_t deliveries(const struct cast *cast)
{
    return cast->world.status->reader[0].delivered + cast->world.status->reader[1].delivered;
}

/* 100 ms pass: everybody who waits or sleeps wakes. */
static void time_passes(struct cast *cast)
{
    struct world *world = &cast->world;
    uint64_t before = deliveries(cast);

    world->kernel->clock_ns += 100 * MR_MILLISECOND_NS;
    for (unsigned p = 0; p < world->shape.producers; p++)
        world->kernel->event[p] = 1;
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned l = 0; l < LANES; l++) {
            enum role role = (enum role)(READER0 + l);
            if (world->status->reader[l].alive && !world->status->reader[l].finished &&
                (world->status->reader[l].waiting || is_runnable(cast, role)))
                take_turn(cast, role);
        }
        round_of_turns(cast, NOBODY);
    }
    if (deliveries(cast) == before && !all_delivered(cast))
        fail("stuck: no timed wait helps; %s", words_text(cast));
    if (++cast->timed_waits > cast->timed_waits_allowed)
        fail("all sleep and nobody was woken: only a timed wait helps; %s", words_text(cast));
}

void drain(struct cast *cast)
{
    struct status *status = cast->world.status;

    for (unsigned l = 0; l < LANES; l++)
        status->reader[l].pause_at = UINT64_MAX;
    for (unsigned turns = 0; !all_delivered(cast); turns++) {
        if (turns > TURNS_MAX)
            fail("not drained after %u rounds; %s", turns, words_text(cast));
        if (!round_of_turns(cast, NOBODY))
            time_passes(cast);
    }
    for (unsigned i = 0; i < 4 && round_of_turns(cast, NOBODY); i++)
        ; /* the last jobs of closed lanes */
}

void drain_others(struct cast *cast, enum role without)
{
    for (unsigned turns = 0; round_of_turns(cast, without); turns++)
        if (turns > TURNS_MAX)
            fail("the others work for ever; %s", words_text(cast));
}

/* Every living reader, and the process under test, does what it does in that phase. */
static void each_in_phase(struct cast *cast, enum phase phase)
{
    struct status *status = cast->world.status;

    status->phase = phase;
    for (unsigned l = 0; l < LANES; l++) {
        if (!status->reader[l].alive || cast->stepped == (enum role)(READER0 + l))
            continue;
        if (phase == PHASE_REST)
            reader_release_all(&cast->reader[l]);
        else
            mr_consumer_close(cast->reader[l].consumer);
    }
    if (cast->stepped < SUPERVISOR && !cast->child_turn(cast->child_arg))
        fail("the process under test has ended by itself");
}

static void each_producer(struct cast *cast, void (*check)(struct cast *, unsigned))
{
    for (unsigned p = 0; p < cast->world.shape.producers; p++)
        if (cast->world.status->producer[p].alive && cast->stepped != (enum role)p)
            check(cast, p);
}

void check_rest(struct cast *cast)
{
    each_in_phase(cast, PHASE_REST);
    check_world(cast, "at rest");
    each_producer(cast, producer_check_rest);
    each_in_phase(cast, PHASE_CLOSE);
    for (unsigned l = 0; l < LANES; l++)
        if (!mr_lane_is_empty(&cast->world.lane[l]))
            fail("lane %u is closed and not empty; %s", l, words_text(cast));
    each_producer(cast, producer_drop_lanes);
}
