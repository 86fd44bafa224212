/* supervisor.c - see cast.h: what the supervisor does to the shared memory when somebody has died. */
#include <string.h>

#include "base/clock.h"
#include "shm/ring/mutant.h"
#include "tests/crash/whole/cast.h"

void supervisor_wake_all(struct cast *cast)
{
    struct world *world = &cast->world;

    if (cast->mutant == MR_MUTANT_NO_RECOVERY_WAKE)
        return;
    for (unsigned l = 0; l < LANES; l++)
        mr_wake_consumer_always(&world->lane[l]);
    for (unsigned p = 0; p < world->shape.producers; p++)
        world->kernel->event[p] = 1;
}

static unsigned count_filling(const struct mr_lane *lane, unsigned producer)
{
    unsigned count = 0;

    for (uint32_t slot = 0; slot < lane->window; slot++) {
        uint64_t word = mr_lane_load(lane, slot);
        count += mr_word_state(word) == MR_FILLING && mr_word_owner(word) == producer;
    }
    return count;
}

void supervisor_recover(struct cast *cast, unsigned slot)
{
    struct world *world = &cast->world;

    world->kernel->clock_ns += 3 * MR_MILLISECOND_NS; /* no death is seen sooner */
    atomic_store(&world->board->producer[slot].alive, 0);
    world->status->producer[slot].alive = 0;
    for (unsigned l = 0; l < LANES; l++) {
        unsigned filling = count_filling(&world->lane[l], slot), recovered = mr_lane_recover(&world->lane[l], slot);
        if (recovered != filling)
            fail("of %u tickets in flight in lane %u recovery says that it has recovered %u; %s", filling, l, recovered,
                 words_text(cast));
    }
    supervisor_wake_all(cast);
}

void supervisor_restart(struct cast *cast, unsigned slot)
{
    producer_start(cast, slot);
}

void supervisor_restart_all(struct cast *cast)
{
    for (unsigned p = 0; p < cast->world.shape.producers; p++) {
        cast->producer[p].job.count = cast->producer[p].done = 0; /* what it had in mind is lost */
        supervisor_recover(cast, p);
    }
    for (unsigned p = 0; p < cast->world.shape.producers; p++)
        supervisor_restart(cast, p);
}

void supervisor_close_lane(struct cast *cast, unsigned lane)
{
    struct world *world = &cast->world;

    world->kernel->clock_ns += 3 * MR_MILLISECOND_NS;
    world->status->reader[lane].alive = 0;
    mr_lane_close(&world->lane[lane], true);
    supervisor_wake_all(cast);
}
