/* scenarios.c - the operations that are stepped, each in the situations that its rules are about. */
#include "base/error.h"
#include "tests/crash/whole/setups.h"
#include "tests/crash/whole/stage.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- consumer ---- */

static void setup_feed(struct cast *cast)
{
    reader_feed(cast, 1, 2 * window(cast));
    producer_turn(cast, 0);
    producer_turn(cast, 1);
}

static void setup_skip(struct cast *cast)
{
    busy_neighbour(cast);
    cast->reader[0].keep_first = true;
    reader_feed(cast, 0, window(cast));
    producer_serve(cast, 0, window(cast) / 2);
    reader_run(cast, 0, window(cast) / 2);
    producer_turn(cast, 0);
}

static void op_feed(struct cast *cast)
{
    reader_feed(cast, 0, window(cast));
}

static void op_next(struct cast *cast)
{
    reader_step(&cast->reader[0]);
}

static void setup_ready(struct cast *cast)
{
    two_lanes(cast);
    producer_serve(cast, 0, 2);
    producer_turn(cast, 0);
}

static void setup_ready_in_reserve(struct cast *cast)
{
    cast->reader[1].batch = 3;
    reader_feed(cast, 1, 2);
    producer_serve(cast, 0, 1);
    producer_serve(cast, 0, 1);
    reader_run(cast, 1, 2);
    reader_feed(cast, 0, 3);
    producer_serve(cast, 0, 1);
    reader_feed(cast, 1, window(cast));
    reader_run(cast, 1, UINT64_MAX);
}

static void setup_in_flight(struct cast *cast)
{
    two_lanes(cast);
    if (!producer_next_job(cast, 0, 2))
        fail("producer 0 finds no job");
}

static void setup_failed(struct cast *cast)
{
    cast->broken_object = 0;
    setup_ready(cast);
}

static void poison(struct cast *cast)
{
    struct mr_lane *lane = &cast->world.lane[0];
    uint64_t number = (uint64_t)lane->first_lap << lane->shift, word = mr_lane_load(lane, mr_lane_slot(lane, number));

    cast->poisoned_object = 0;
    mr_lane_poison(lane, mr_lane_slot(lane, number), word, MR_E_IO, "its download has killed three workers");
    supervisor_wake_all(cast);
}

static void setup_poisoned(struct cast *cast)
{
    two_deaths(cast);
    poison(cast);
}

static void setup_no_room_asleep(struct cast *cast)
{
    no_room(cast);
    producer_turn(cast, 0);
}

static void setup_no_room_closed(struct cast *cast)
{
    no_room(cast);
    act_close0(cast);
    producer_turn(cast, 0);
}

static void op_close(struct cast *cast)
{
    mr_consumer_close(cast->reader[0].consumer);
    cast->world.status->reader[0].finished = 1;
}

/* ---- producer ---- */

static void setup_lane0_alone(struct cast *cast)
{
    reader_feed(cast, 0, 2 * window(cast));
}

static void op_next_job_one(struct cast *cast)
{
    producer_next_job(cast, 0, 1);
}

static void op_next_job(struct cast *cast)
{
    producer_next_job(cast, 0, MR_LANE_BLOCK);
}

/* Lane 0's head lies in a block of producer 0's, in the hands of producer 1. */
static void setup_all_taken(struct cast *cast)
{
    reader_feed(cast, 0, window(cast) / 4);
    if (!producer_next_job(cast, 1, MR_LANE_BLOCK))
        fail("producer 1 finds no job");
}

/* All that lane 0 needs soon is there. */
static void setup_patient(struct cast *cast)
{
    reader_feed(cast, 0, window(cast));
    producer_turn(cast, 0);
    producer_turn(cast, 1);
}

static void setup_steal(struct cast *cast)
{
    reader_feed(cast, 1, window(cast) < MR_LANE_BLOCK ? window(cast) : MR_LANE_BLOCK);
}

static void setup_bad_size(struct cast *cast)
{
    cast->bad_object = 0;
    two_lanes(cast);
}

static void setup_publish(struct cast *cast)
{
    in_flight(cast, 2);
}

static void setup_publish_reserve(struct cast *cast)
{
    full_arena(cast);
    producer_next_job(cast, 0, 1);
    if (!cast->producer[0].job.count || !cast->producer[0].job.claims[0].reserve)
        fail("the scenario's setup: not the reserve");
}

static void setup_closed(struct cast *cast)
{
    mixed_filling(cast);
    act_close0(cast);
}

static void op_finish_job(struct cast *cast)
{
    producer_finish_job(cast, 0);
}

static void op_give_back(struct cast *cast)
{
    act_give_back0(cast);
}

/* The second lap's first sample fails: its slot's descriptor still names what lay there before. */
static void setup_fail(struct cast *cast)
{
    busy_neighbour(cast);
    cast->broken_object = window(cast);
    reader_feed(cast, 0, window(cast));
    while (cast->world.status->reader[0].delivered < window(cast)) {
        producer_serve(cast, 0, window(cast) / 4);
        reader_run(cast, 0, window(cast));
    }
    reader_feed(cast, 0, window(cast));
    do
        if (!producer_next_job(cast, 0, 1))
            fail("producer 0 finds no job");
    while (cast->producer[0].job.claims[0].request.object != window(cast) && (producer_finish_job(cast, 0), true));
}

static void op_take_back(struct cast *cast)
{
    struct mr_lane *lane = &cast->world.lane[0];
    uint64_t number = (uint64_t)lane->first_lap << lane->shift;

    mr_lane_take_back(lane, mr_lane_slot(lane, number), mr_lane_load(lane, mr_lane_slot(lane, number)));
}

static void setup_nothing(struct cast *cast)
{
    cast->reader[0].batch = 1;
}

static void op_sleep(struct cast *cast)
{
    producer_sleep(cast, 0);
}

static void setup_restart(struct cast *cast)
{
    mixed_filling(cast);
    reader_feed(cast, 0, 2 * window(cast));
    producer0_is_dead(cast);
    supervisor_recover(cast, 0);
}

static void op_restart(struct cast *cast)
{
    supervisor_restart(cast, 0);
}

/* No reader waits here, so nothing but the post itself, or the look before the sleep, can have told it. */
static void check_awake(struct cast *cast)
{
    const struct mr_lane *lane = &cast->world.lane[0];
    const struct world *world = &cast->world;

    for (uint32_t slot = 0; slot < lane->window && slot < MR_LANE_BLOCK; slot++)
        if (mr_word_state(mr_lane_load(lane, slot)) == MR_PENDING && world->status->producer[0].sleeping &&
            !world->kernel->event[0])
            fail("producer 0 sleeps beside a ticket that it has room for; %s", words_text(cast));
}

/* Its extent lies where a new process would put another ticket. */
static void setup_reclaim(struct cast *cast)
{
    cast->reader[0].batch = 1;
    reader_feed(cast, 0, 3 * window(cast));
    producer_serve(cast, 0, 1);
    if (!producer_next_job(cast, 0, 2))
        fail("producer 0 finds no job");
    reader_run(cast, 0, 1);
}

/* ---- supervisor ---- */

static void setup_recover(struct cast *cast)
{
    in_flight(cast, window(cast) / 2);
    producer0_is_dead(cast);
}

static void setup_recover_closed(struct cast *cast)
{
    setup_closed(cast);
    producer0_is_dead(cast);
}

static void op_recover(struct cast *cast)
{
    supervisor_recover(cast, 0);
}

static void setup_owner_dead_filling(struct cast *cast)
{
    mixed_filling(cast);
    cast->world.status->reader[0].alive = 0;
}

static void setup_owner_dead_failed(struct cast *cast)
{
    mixed_failed(cast);
    cast->world.status->reader[0].alive = 0;
}

static void op_close_dead(struct cast *cast)
{
    supervisor_close_lane(cast, 0);
}

static void setup_poison(struct cast *cast)
{
    two_deaths(cast);
    cast->poisoned_object = 0;
}

#define TIGHT   .producers = 1, .arena_pages = 3, .reserve_pages = 1, .object_bytes = 4096
#define ROOMY   .producers = 2, .arena_pages = 12, .reserve_pages = 2
#define GROWING ROOMY, .grows = true
#define CELLS   ROOMY, .cells = true
#define SHORT   .producers = 2, .arena_pages = 5, .reserve_pages = 2

const struct scenario scenarios[] = {
    {"consumer_feed: post, first lap", READER0, ROOMY, .setup = setup_feed, .op = op_feed,
     .peers = {{"producer 0 works", act_producer0}, {"producer 1 works", act_producer1}}},
    {"consumer_feed: post, a HELD slot", READER0, ROOMY, .setup = setup_skip, .op = op_feed,
     .peers = {{"producer 0 works", act_producer0}}},
    {"consumer_next: a view", READER0, SHORT, .setup = setup_ready, .op = op_next,
     .peers = {{"producer 0 works", act_producer0}, {"producer 1 works", act_producer1}}},
    {"consumer_next: copied out of a reserve", READER0, TIGHT, .setup = setup_ready_in_reserve, .op = op_next,
     .peers = {{"all others work", act_all_but_reader0}}},
    {"consumer_next: waits", READER0, ROOMY, .setup = setup_in_flight, .op = op_next,
     .peers = {{"producer 0 works", act_producer0}}},
    {"consumer_next: a failed ticket", READER0, ROOMY, .setup = setup_failed, .op = op_next,
     .peers = {{"producer 0 works", act_producer0}}},
    {"consumer_next: a poisoned ticket", READER0, ROOMY, .setup = setup_poisoned, .op = op_next,
     .peers = {{"producer 0 works", act_producer0}}},
    {"lease_release: the lane is open", READER0, TIGHT, .setup = setup_no_room_asleep, .op = act_release0,
     .peers = {{"producer 0 works", act_producer0}, {"another thread closes", act_close0}}},
    {"lease_release: the lane is closed", READER0, TIGHT, .setup = setup_no_room_closed, .op = act_release0,
     .peers = {{"producer 0 works", act_producer0}}},
    {"consumer_close: FILLING and others", READER0, ROOMY, .setup = mixed_filling, .op = op_close,
     .peers = {{"producer 0 works", act_producer0},
               {"producer 0 gives back", act_give_back0},
               {"producer 1 works", act_producer1}}},
    {"consumer_close: FAILED and others", READER0, ROOMY, .setup = mixed_failed, .op = op_close,
     .peers = {{"producer 0 works", act_producer0}}},

    {"producer_next_job: one ticket", PRODUCER0, ROOMY, .setup = setup_lane0_alone, .op = op_next_job_one,
     .peers = {{"its ticket lives a lap", act_next_lap},
               {"producer 1 works", act_producer1},
               {"reader 0 closes", act_close0}}},
    {"producer_next_job: shrunk to the room", PRODUCER0, SHORT, .setup = two_lanes, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}}},
    {"producer_next_job: the arena grows", PRODUCER0, GROWING, .setup = two_lanes, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}}},
    {"producer_next_job: it has no memory to grow", PRODUCER0, ROOMY, .no_memory = true, .setup = two_lanes,
     .op = op_next_job, .peers = {{"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}}},
    {"producer_next_job: a cell", PRODUCER0, CELLS, .setup = two_lanes, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}, {"reader 0 posts", act_feed0}}},
    {"producer_next_job: a cell that need not begin", PRODUCER0, CELLS, .setup = setup_patient, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"reader 0 reads", act_reader0}}},
    {"producer_next_job: reserve", PRODUCER0, TIGHT, .setup = full_arena, .op = op_next_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 1 closes", act_close1}}},
    {"producer_next_job: taking back", PRODUCER0, TIGHT, .setup = full_arena_at_barrier, .op = op_next_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 1 closes", act_close1}}},
    {"producer_next_job: another's block", PRODUCER0, ROOMY, .setup = setup_steal, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}}},
    {"producer_next_job: all is in other hands", PRODUCER0, ROOMY, .setup = setup_all_taken, .op = op_next_job,
     .peers = {{"reader 0 posts", act_feed0}, {"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}}},
    {"producer_next_job: nothing can start", PRODUCER0, TIGHT, .setup = no_room, .op = op_next_job,
     .peers = {{"reader 0 reads", act_reader0}, {"reader 0 closes", act_close0}, {"reader 1 reads", act_reader1}}},
    {"producer_next_job: solo", PRODUCER0, ROOMY, .setup = two_deaths, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"supervisor poisons", poison}}},
    {"producer_next_job: a size that cannot be had", PRODUCER0, ROOMY, .setup = setup_bad_size, .op = op_next_job,
     .peers = {{"producer 1 works", act_producer1}, {"reader 0 closes", act_close0}}},
    {"producer_publish: an extent", PRODUCER0, ROOMY, .setup = setup_publish, .op = op_finish_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}, {"producer 1 works", act_producer1}}},
    {"producer_publish: a cell", PRODUCER0, CELLS, .setup = setup_publish, .op = op_finish_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}, {"producer 1 works", act_producer1}}},
    {"producer_publish: reserve", PRODUCER0, TIGHT, .setup = setup_publish_reserve, .op = op_finish_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}, {"reader 1 reads", act_reader1}}},
    {"producer_publish: the lane is closed", PRODUCER0, ROOMY, .setup = setup_closed, .op = op_finish_job,
     .peers = {{"producer 1 works", act_producer1}}},
    {"producer_publish: the supervisor is told too early", PRODUCER0, .producers = 1, .arena_pages = 9,
     .reserve_pages = 1, .object_bytes = 4096, .setup = setup_reclaim, .op = op_finish_job, .kill_after = true,
     .peers = {{"supervisor reclaims", act_reclaim}}},
    {"producer_fail", PRODUCER0, ROOMY, .setup = setup_fail, .op = op_finish_job,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}}},
    {"producer_give_back: the lane is open", PRODUCER0, ROOMY, .setup = setup_publish, .op = op_give_back,
     .peers = {{"reader 0 closes", act_close0}, {"producer 1 works", act_producer1}}},
    {"producer_give_back: the lane is closed", PRODUCER0, ROOMY, .setup = setup_closed, .op = op_give_back},
    {"lane_take_back", PRODUCER0, ROOMY, .setup = setup_ready, .op = op_take_back,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}}},
    {"producer_sleep: nothing is posted", PRODUCER0, ROOMY, .setup = setup_nothing, .op = op_sleep,
     .check = check_awake, .peers = {{"reader 0 posts", act_feed0}}},
    {"producer_sleep: what is left may wait", PRODUCER0, CELLS, .setup = setup_patient, .op = op_sleep,
     .peers = {{"reader 0 reads", act_reader0}, {"reader 0 posts", act_feed0}}},
    {"producer_sleep: no room", PRODUCER0, TIGHT, .setup = no_room, .op = op_sleep,
     .peers = {{"reader 0 releases", act_release0},
               {"reader 0 closes", act_close0},
               {"reader 0 reads", act_reader0},
               {"reader 1 reads", act_reader1}}},
    {"producer_new, add_lane: restart", PRODUCER0, ROOMY, .setup = setup_restart, .op = op_restart,
     .peers = {{"reader 0 reads", act_reader0},
               {"reader 0 releases", act_release0},
               {"reader 0 closes", act_close0},
               {"producer 1 works", act_producer1}}},

    {"producer_new, add_lane: restart of an arena that has grown", PRODUCER0, GROWING, .setup = setup_restart,
     .op = op_restart,
     .peers = {{"reader 0 reads", act_reader0},
               {"reader 0 releases", act_release0},
               {"reader 0 closes", act_close0},
               {"producer 1 works", act_producer1}}},

    {"lane_recover: the lane is open", SUPERVISOR, ROOMY, .setup = setup_recover, .op = op_recover, .again = op_recover,
     .finish = op_restart,
     .peers = {{"reader 0 closes", act_close0}, {"reader 0 reads", act_reader0}, {"producer 1 works", act_producer1}}},
    {"lane_recover: the lane is closed", SUPERVISOR, ROOMY, .setup = setup_recover_closed, .op = op_recover,
     .again = op_recover, .finish = op_restart, .peers = {{"producer 1 works", act_producer1}}},
    {"lane_close: owner dead, FILLING and others", SUPERVISOR, ROOMY, .setup = setup_owner_dead_filling,
     .op = op_close_dead, .again = op_close_dead,
     .peers = {{"producer 0 works", act_producer0},
               {"producer 0 gives back", act_give_back0},
               {"producer 1 works", act_producer1}}},
    {"lane_close: owner dead, FAILED and others", SUPERVISOR, ROOMY, .setup = setup_owner_dead_failed,
     .op = op_close_dead, .again = op_close_dead, .peers = {{"producer 0 works", act_producer0}}},
    {"lane_poison", SUPERVISOR, ROOMY, .setup = setup_poison, .op = poison, .again = poison,
     .peers = {{"producer 0 works", act_producer0},
               {"producer 1 works", act_producer1},
               {"reader 0 closes", act_close0}}},
};

const unsigned scenario_count = COUNT(scenarios);
