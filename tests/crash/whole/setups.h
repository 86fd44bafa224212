/* setups.h - what the scenarios begin with, and what others do meanwhile. */
#ifndef MR_CRASH_SETUPS_H
#define MR_CRASH_SETUPS_H

#include "tests/crash/whole/cast.h"

uint32_t window(const struct cast *cast);
/* Lane 1 has a ticket in the hands of producer 1, and more to come. */
void busy_neighbour(struct cast *cast);
/* Both lanes have work for several laps. */
void two_lanes(struct cast *cast);
/* Both lanes: a view is kept for ever and fills the arena but for the reserve; both readers wait for their head. */
void full_arena(struct cast *cast);
/* full_arena, but the reserve holds what reader 1 will not ask for before reader 0 has got its head: a barrier. */
void full_arena_at_barrier(struct cast *cast);
/* Producer 0 has no room: views and a READY reserve. */
void no_room(struct cast *cast);
/* Lane 0: HELD, RELEASED, READY, FILLING by producer 0, PENDING if the window is larger. */
void mixed_filling(struct cast *cast);
/* Lane 0: HELD, RELEASED, FAILED, PENDING. */
void mixed_failed(struct cast *cast);
/* Producer 0 has `count` tickets of lane 0 in flight; reader 0 waits for the first. */
void in_flight(struct cast *cast, unsigned count);
/* Two producers have died with lane 0's head in hand. */
void two_deaths(struct cast *cast);
/* Producer 0 is dead; what it had in flight stays as it was. */
void producer0_is_dead(struct cast *cast);

/* ---- peers ---- */
void act_producer0(struct cast *cast);
void act_producer1(struct cast *cast);
void act_reader0(struct cast *cast);
void act_reader1(struct cast *cast);
void act_feed0(struct cast *cast);
void act_close0(struct cast *cast);
void act_close1(struct cast *cast);
void act_give_back0(struct cast *cast);
void act_release0(struct cast *cast);
void act_next_lap(struct cast *cast);
void act_all_but_reader0(struct cast *cast);
void act_reclaim(struct cast *cast);

#endif
