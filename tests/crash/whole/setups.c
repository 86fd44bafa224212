/* setups.c - see setups.h. */
#include "tests/crash/whole/setups.h"

#include "shm/ring/mutant.h"

uint32_t window(const struct cast *cast)
{
    return cast->world.shape.window;
}

void busy_neighbour(struct cast *cast)
{
    reader_feed(cast, 1, 2 * window(cast));
    if (!producer_next_job(cast, 1, 1))
        fail("producer 1 finds no job");
}

void two_lanes(struct cast *cast)
{
    busy_neighbour(cast);
    reader_feed(cast, 0, 3 * window(cast));
}

/* A view of the first sample of each lane is kept; nothing else is posted. */
static void keep_one_each(struct cast *cast)
{
    for (unsigned l = 0; l < LANES; l++) {
        cast->reader[l].keep_first = true;
        reader_feed(cast, l, 1);
        producer_serve(cast, 0, 1);
        reader_run(cast, l, 1);
    }
}

void full_arena(struct cast *cast)
{
    keep_one_each(cast);
    for (unsigned l = 0; l < LANES; l++) {
        reader_feed(cast, l, 2 * window(cast));
        reader_run(cast, l, UINT64_MAX);
    }
}

void full_arena_at_barrier(struct cast *cast)
{
    keep_one_each(cast);
    reader_feed(cast, 1, 2 * window(cast));
    producer_serve(cast, 0, 1);
    reader_run(cast, 1, 2); /* its batch is whole */
    producer_serve(cast, 0, 1);
    for (unsigned l = 0; l < LANES; l++)
        cast->world.status->reader[l].barrier = 1;
    cast->world.status->reader[1].pause_at = UINT64_MAX;
    reader_feed(cast, 0, 2 * window(cast));
    reader_run(cast, 0, UINT64_MAX);
}

void no_room(struct cast *cast)
{
    for (unsigned l = 0; l < LANES; l++) {
        cast->reader[l].batch = 3;
        reader_feed(cast, l, 1);
        producer_serve(cast, 0, 1);
        reader_run(cast, l, 1);
    }
    reader_feed(cast, 0, window(cast));
    producer_serve(cast, 0, 1);
    reader_feed(cast, 1, window(cast));
}

static void mixed(struct cast *cast, uint64_t broken)
{
    busy_neighbour(cast);
    cast->broken_object = broken;
    cast->reader[0].keep_first = true;
    reader_feed(cast, 0, window(cast));
    producer_serve(cast, 0, 1);
    producer_serve(cast, 0, 1);
    reader_run(cast, 0, 2);
    producer_serve(cast, 0, 1);
}

void mixed_filling(struct cast *cast)
{
    mixed(cast, NO_OBJECT);
    if (!producer_next_job(cast, 0, 2))
        fail("producer 0 finds no job");
}

void mixed_failed(struct cast *cast)
{
    mixed(cast, 2);
}

void in_flight(struct cast *cast, unsigned count)
{
    two_lanes(cast);
    if (!producer_next_job(cast, 0, count))
        fail("producer 0 finds no job");
    reader_run(cast, 0, UINT64_MAX);
}

void producer0_is_dead(struct cast *cast)
{
    cast->world.status->producer[0].alive = 0;
    atomic_store(&cast->world.board->producer[0].alive, 0);
    cast->producer[0].job.count = cast->producer[0].done = 0;
}

void two_deaths(struct cast *cast)
{
    two_lanes(cast);
    for (unsigned i = 0; i < 2; i++) {
        if (!producer_next_job(cast, 0, 1))
            fail("producer 0 finds no job");
        producer0_is_dead(cast);
        supervisor_recover(cast, 0);
        supervisor_restart(cast, 0);
    }
}

void act_producer0(struct cast *cast)
{
    producer_turn(cast, 0);
}

void act_producer1(struct cast *cast)
{
    producer_turn(cast, 1);
}

void act_reader0(struct cast *cast)
{
    reader_run(cast, 0, UINT64_MAX);
}

void act_reader1(struct cast *cast)
{
    reader_run(cast, 1, UINT64_MAX);
}

void act_feed0(struct cast *cast)
{
    reader_feed(cast, 0, window(cast));
}

static void reader_close(struct cast *cast, unsigned lane)
{
    reader_stop(cast, lane);
    mr_consumer_close(cast->reader[lane].consumer);
    cast->world.status->reader[lane].finished = 1;
}

/* Closed by its owner: by reader 0 here, or by another thread of the process under test. */
void act_close0(struct cast *cast)
{
    if (cast->stepped == READER0)
        mr_lane_close(&cast->world.lane[0], false);
    else
        reader_close(cast, 0);
    cast->world.status->reader[0].finished = 1;
}

void act_close1(struct cast *cast)
{
    reader_close(cast, 1);
}

void act_give_back0(struct cast *cast)
{
    struct producer_role *role = &cast->producer[0];

    while (role->done < role->job.count)
        mr_producer_give_back(role->handle, &role->job.claims[role->done++]);
    role->job.count = role->done = 0;
}

void act_release0(struct cast *cast)
{
    reader_release_all(&cast->reader[0]);
}

/* The first quarter of lane 0's window lives its whole life in the hands of others, and is posted again. */
void act_next_lap(struct cast *cast)
{
    cast->reader[0].batch = 1;
    while (producer_next_job(cast, 1, 1)) {
        producer_finish_job(cast, 1);
        reader_run(cast, 0, window(cast) / 4);
        if (cast->world.status->reader[0].delivered == window(cast) / 4)
            break;
    }
    reader_stop(cast, 0);
    reader_feed(cast, 0, 1);
}

void act_all_but_reader0(struct cast *cast)
{
    drain_others(cast, READER0);
}

/* Somebody tells the supervisor that producer 0 is dead. It believes nothing but the pidfd. */
void act_reclaim(struct cast *cast)
{
    if (cast->mutant != MR_MUTANT_EARLY_RECLAIM && !cast->child_is_dead(cast->child_arg))
        return;
    supervisor_recover(cast, 0);
    supervisor_restart(cast, 0);
    cast->reclaimed = true;
    producer_turn(cast, 0);
}
