/*
 * threads.c - producers and consumers as threads over one set of segments, in the shapes that once broke the ring: the
 * smallest arena, whole batches held, views kept for ever, consumers that meet at a barrier, early closes, many lanes,
 * numbers near the wrap, producers that die and start again, neighbours that several lanes ask for.
 *
 * Checked: every sample once, in order, with its bytes, at delivery and again at release; at the end every lane drained
 * and every producer's memory free. A watchdog turns a hang into a failure. Also run under ThreadSanitizer, which must
 * notice two relaxed orders (tests/crash/CMakeLists.txt).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/ring/consumer_impl.h"
#include "shm/ring/producer_impl.h"
#include "tests/ring/world.h"

#define CONSUMERS_MAX 16u
#define HANG_S        60   /* nothing moves for so long: a hang */
#define TURN_US       2000 /* of the watchdog */

struct scenario {
    const char *name;
    unsigned producers, consumers;
    uint32_t window, first_lap;
    unsigned arena_objects; /* beside the reserve */
    uint64_t largest;       /* bytes */
    unsigned epochs, samples, batch;
    bool barrier;     /* all consumers meet after each batch, each holding its batch until then */
    bool keep_views;  /* some views live until the lane has ended */
    bool close_early; /* some epochs end before the last sample */
    unsigned fail_every;
    unsigned deaths;    /* of each producer */
    bool pause;         /* consumers do something else after each batch: memory is used again before they post */
    bool one_at_a_time; /* producers start jobs of one ticket */
    uint32_t cell;      /* so many neighbours are read together where they may be; all consumers read the same ones */
};

static const struct scenario scenarios[] = {
    {.name = "one to one",
     .producers = 1,
     .consumers = 1,
     .window = 64,
     .arena_objects = 64,
     .largest = 20000,
     .epochs = 2,
     .samples = 600,
     .batch = 16,
     .fail_every = 50},
    {.name = "three to three",
     .producers = 3,
     .consumers = 3,
     .window = 128,
     .arena_objects = 32,
     .largest = 9000,
     .epochs = 2,
     .samples = 600,
     .batch = 32,
     .fail_every = 40,
     .close_early = true},
    {.name = "smallest arena",
     .producers = 1,
     .consumers = 1,
     .window = 4,
     .arena_objects = 1,
     .largest = 9000,
     .epochs = 2,
     .samples = 150,
     .batch = 2},
    {.name = "smallest arena, barrier",
     .producers = 1,
     .consumers = 2,
     .window = 4,
     .arena_objects = 1,
     .largest = 9000,
     .epochs = 1,
     .samples = 100,
     .batch = 2,
     .barrier = true},
    {.name = "smallest arenas, barrier, three producers",
     .producers = 3,
     .consumers = 3,
     .window = 8,
     .arena_objects = 1,
     .largest = 9000,
     .epochs = 1,
     .samples = 100,
     .batch = 4,
     .barrier = true,
     .one_at_a_time = true},
    {.name = "views kept",
     .producers = 2,
     .consumers = 2,
     .window = 8,
     .arena_objects = 16,
     .largest = 9000,
     .epochs = 2,
     .samples = 200,
     .batch = 4,
     .keep_views = true,
     .fail_every = 30},
    {.name = "views kept, smallest window",
     .producers = 1,
     .consumers = 1,
     .window = 4,
     .arena_objects = 8,
     .largest = 5000,
     .epochs = 2,
     .samples = 100,
     .batch = 2,
     .keep_views = true},
    {.name = "deaths",
     .producers = 2,
     .consumers = 2,
     .window = 16,
     .arena_objects = 4,
     .largest = 9000,
     .epochs = 2,
     .samples = 250,
     .batch = 4,
     .deaths = 6,
     .fail_every = 40,
     .close_early = true},
    {.name = "deaths, smallest arena, barrier",
     .producers = 2,
     .consumers = 2,
     .window = 4,
     .arena_objects = 1,
     .largest = 9000,
     .epochs = 1,
     .samples = 60,
     .batch = 2,
     .deaths = 4,
     .barrier = true},
    {.name = "lap wrap",
     .producers = 2,
     .consumers = 2,
     .window = 8,
     .first_lap = UINT32_MAX - 3,
     .arena_objects = 8,
     .largest = 5000,
     .epochs = 2,
     .samples = 200,
     .batch = 4,
     .keep_views = true,
     .deaths = 2},
    {.name = "pauses",
     .producers = 1,
     .consumers = 3,
     .window = 16,
     .arena_objects = 4,
     .largest = 9000,
     .epochs = 1,
     .samples = 240,
     .batch = 2,
     .pause = true,
     .one_at_a_time = true},
    {.name = "neighbours",
     .producers = 2,
     .consumers = 3,
     .window = 64,
     .arena_objects = 48,
     .largest = 5000,
     .epochs = 2,
     .samples = 400,
     .batch = 8,
     .fail_every = 40,
     .close_early = true,
     .deaths = 4,
     .cell = 12},
    {.name = "many lanes",
     .producers = 2,
     .consumers = 12,
     .window = 16,
     .arena_objects = 24,
     .largest = 5000,
     .epochs = 6,
     .samples = 40,
     .batch = 8,
     .close_early = true},
};

struct lease {
    const void *data;
    uint64_t object, length, word;
    uint32_t slot;
};

struct state {
    const struct scenario *scenario;
    struct world world;
    pthread_barrier_t barrier;
    _Atomic unsigned consumers_left;
    _Atomic uint64_t deaths, timeouts;
    struct mr_producer_stats totals;
    uint64_t copies, skipped;
    pthread_mutex_t lock;
    uint64_t seed;
};

struct thread {
    struct state *state;
    unsigned index;
    pthread_t id;
    uint64_t random;
};

static uint64_t pick(struct thread *thread, uint64_t below)
{
    thread->random = mr_mix64(thread->random + 0x9e3779b97f4a7c15);
    return below ? thread->random % below : 0;
}

/* ---- producers ---- */

static void end_claim(struct thread *thread, struct mr_producer *producer, struct mr_claim *claim)
{
    struct world *world = &thread->state->world;
    uint64_t object = claim->request.object;

    if (claim->bytes != world_size(world, object))
        world_fail("claim of object %llx has room for %llu bytes", (unsigned long long)object,
                   (unsigned long long)claim->bytes);
    if (pick(thread, 40) == 0) {
        mr_producer_give_back(producer, claim);
    } else if (world_fails(world, object)) {
        mr_producer_fail(producer, claim, MR_E_NOT_FOUND, "made to fail");
    } else {
        world_fill(claim->dest, object, claim->bytes);
        if (pick(thread, 8) == 0)
            sched_yield();
        mr_producer_publish(producer, claim, claim->bytes, object, (uint32_t)object, 0);
    }
    atomic_fetch_add(&world->progress, 1);
}

static void sleep_for_work(struct thread *thread, struct mr_producer *producer)
{
    struct world *world = &thread->state->world;
    struct pollfd poll_fd = {.fd = world->eventfd[thread->index], .events = POLLIN};

    if (mr_producer_sleep(producer))
        return;
    if (poll(&poll_fd, 1, 100) == 0)
        atomic_fetch_add(&thread->state->timeouts, 1);
    mr_producer_awake(producer);
    uint64_t n;
    if (read(world->eventfd[thread->index], &n, sizeof n) < 0 && errno != EAGAIN)
        world_fail("eventfd: %s", strerror(errno));
}

/* The supervisor's part: nobody uses the slot any more. */
static void recover(struct world *world, unsigned slot)
{
    unsigned lanes = atomic_load(&world->lane_count);

    for (unsigned i = 0; i < lanes; i++)
        mr_lane_recover(&world->lanes[i], slot);
    world_wake_all(world);
}

static unsigned add_lanes(struct world *world, struct mr_producer *producer, unsigned from)
{
    unsigned lanes = atomic_load(&world->lane_count);

    for (; from < lanes; from++) {
        struct mr_lane lane = world->lanes[from];
        if (mr_lane_is_closed(&lane) && mr_lane_is_empty(&lane))
            continue;
        if (mr_producer_add_lane(producer, &lane))
            world_fail("%s", mr_error_text());
    }
    return from;
}

static void drop_lanes(struct world *world, struct mr_producer *producer, unsigned lanes)
{
    for (unsigned i = 0; i < lanes; i++)
        if (mr_lane_is_closed(&world->lanes[i]) && mr_lane_is_empty(&world->lanes[i]))
            mr_producer_drop_lane(producer, i);
}

static void add_totals(struct state *state, struct mr_producer *producer)
{
    struct mr_producer_stats stats;

    mr_producer_stats(producer, &stats);
    pthread_mutex_lock(&state->lock);
    state->totals.jobs += stats.jobs;
    state->totals.tickets += stats.tickets;
    state->totals.stolen_blocks += stats.stolen_blocks;
    state->totals.take_backs += stats.take_backs;
    state->totals.reserve_uses += stats.reserve_uses;
    state->totals.no_room += stats.no_room;
    pthread_mutex_unlock(&state->lock);
}

/* One life of a producer. True: it died in the middle of its work. */
static bool live(struct thread *thread, struct mr_producer *producer, bool dies)
{
    struct state *state = thread->state;
    unsigned lanes = add_lanes(&state->world, producer, 0), most = state->scenario->one_at_a_time ? 1 : MR_LANE_BLOCK;
    uint64_t jobs_left = dies ? 3 + pick(thread, 40) : UINT64_MAX;

    while (!atomic_load(&state->world.stop)) {
        lanes = add_lanes(&state->world, producer, lanes);
        struct mr_job job;
        if (!mr_producer_next_job(producer, 1 + (unsigned)pick(thread, most), 1 + pick(thread, 200000), 0, &job)) {
            drop_lanes(&state->world, producer, lanes);
            sleep_for_work(thread, producer);
            continue;
        }
        for (unsigned i = job.count, lives = (unsigned)pick(thread, job.count + 1); i-- > 0;) {
            if (jobs_left == 1 && i < lives)
                return true;
            end_claim(thread, producer, &job.claims[i]);
        }
        if (jobs_left-- == 1)
            return true;
    }
    drop_lanes(&state->world, producer, lanes);
    return false;
}

static void *run_producer(void *arg)
{
    struct thread *thread = arg;
    struct state *state = thread->state;
    struct world *world = &state->world;
    unsigned deaths = state->scenario->deaths;

    for (;;) {
        struct mr_producer *producer = world_producer(world, thread->index);
        bool died = live(thread, producer, deaths > 0);
        add_totals(state, producer);
        if (!died) {
            uint64_t free_bytes = mr_producer_free_bytes(producer), all = world->arena_bytes;
            if (producer->lane_count || free_bytes != all)
                world_fail("producer %u: at rest %llu of %llu bytes are free and %u lanes are left", thread->index,
                           (unsigned long long)free_bytes, (unsigned long long)all, producer->lane_count);
            mr_producer_destroy(producer);
            return NULL;
        }
        mr_producer_destroy(producer); /* private memory only: its words stay as they were */
        atomic_store(&world->board->producer[thread->index].alive, 0);
        atomic_fetch_add(&state->deaths, 1);
        deaths--;
        usleep((unsigned)pick(thread, 3000));
        recover(world, thread->index);
        atomic_store(&world->board->producer[thread->index].alive, 1);
    }
}

/* ---- consumers ---- */

static void check_delivery(struct thread *thread, const struct mr_delivery *got, enum mr_next next, uint64_t expected)
{
    struct world *world = &thread->state->world;

    if (got->sample.request.object != expected || got->sample.cookie != ~expected)
        world_fail("consumer %u: object %llx came where %llx was next", thread->index,
                   (unsigned long long)got->sample.request.object, (unsigned long long)expected);
    if (world_fails(world, expected) != (next == MR_NEXT_FAILED))
        world_fail("object %llx: failed is %d: %s", (unsigned long long)expected, next == MR_NEXT_FAILED, got->text);
    if (next == MR_NEXT_FAILED) {
        if (got->code != MR_E_NOT_FOUND || strcmp(got->text, "made to fail") != 0)
            world_fail("wrong failure %u %s", got->code, got->text);
        return;
    }
    if (got->length != world_size(world, expected) || got->generation != expected ||
        got->crc32c != (uint32_t)expected || !world_matches(got->data, expected, got->length))
        world_fail("consumer %u: object %llx has wrong bytes or length %llu", thread->index,
                   (unsigned long long)expected, (unsigned long long)got->length);
}

static void drop(struct mr_consumer *consumer, const struct lease *lease)
{
    if (!world_matches(lease->data, lease->object, lease->length))
        world_fail("object %llx changed while it was held", (unsigned long long)lease->object);
    mr_lease_release(consumer, lease->slot, lease->word, lease->length);
}

struct reader {
    struct mr_consumer *consumer;
    struct lease held[1024], kept[64];
    unsigned held_count, kept_count;
};

static void take_one(struct thread *thread, struct reader *reader, uint64_t expected)
{
    struct mr_delivery got;
    enum mr_next next;

    do {
        next = mr_consumer_next(reader->consumer, (unsigned)pick(thread, 8) ? 100 : 0, &got);
    } while (next == MR_NEXT_TIMEOUT || next == MR_NEXT_SIGNAL);
    if (next == MR_NEXT_END)
        world_fail("consumer %u: no more samples before %llx", thread->index, (unsigned long long)expected);
    check_delivery(thread, &got, next, expected);
    atomic_fetch_add(&thread->state->world.progress, 1);
    if (next == MR_NEXT_FAILED)
        return;
    if (got.copied) {
        free((void *)got.data);
        return;
    }
    reader->held[reader->held_count++] = (struct lease){got.data, expected, got.length, got.word, got.slot};
}

static void end_batch(struct thread *thread, struct reader *reader)
{
    const struct scenario *scenario = thread->state->scenario;

    if (scenario->barrier)
        pthread_barrier_wait(&thread->state->barrier);
    while (reader->held_count > 0) {
        struct lease lease = reader->held[--reader->held_count];
        if (scenario->keep_views && reader->kept_count < scenario->window * 3 / 4 && pick(thread, 6) == 0 &&
            reader->kept_count < 64)
            reader->kept[reader->kept_count++] = lease;
        else
            drop(reader->consumer, &lease);
    }
    if (scenario->pause)
        usleep((unsigned)pick(thread, 300));
}

static void run_epoch(struct thread *thread, unsigned epoch)
{
    struct state *state = thread->state;
    const struct scenario *scenario = state->scenario;
    struct world *world = &state->world;
    uint64_t base = (uint64_t)(thread->index + 1) << 48 | (uint64_t)epoch << 32, step = 1;
    unsigned fed = 0, last = scenario->samples;
    struct mr_views *views = world_views(world);
    struct reader *reader = calloc(1, sizeof *reader);
    unsigned index =
        world_open_lane(world, scenario->window, scenario->largest * scenario->window, scenario->first_lap);
    struct mr_lane lane = world->lanes[index];

    if (scenario->cell) { /* one after the other from all lanes, as positions are dealt to workers */
        base = (uint64_t)(epoch + 1) << 32 | thread->index;
        step = scenario->consumers;
    }
    reader->consumer = mr_consumer_new(&lane, views);
    mr_views_unref(views);
    if (scenario->close_early && pick(thread, 2))
        last = 1 + (unsigned)pick(thread, scenario->samples);
    for (unsigned i = 0; i < last; i++) {
        while (fed < scenario->samples && mr_consumer_backlog(reader->consumer) < scenario->window) {
            uint64_t object = base + fed * step;
            struct mr_sample sample = {
                .request = {.object = object, .cell = scenario->cell, .flags = MR_REQUEST_PATIENT}, .cookie = ~object};
            sample.bytes = world_size(world, object);
            if (mr_consumer_feed(reader->consumer, &sample, 1))
                world_fail("%s", mr_error_text());
            fed++;
        }
        take_one(thread, reader, base + i * step);
        if ((i + 1) % scenario->batch == 0)
            end_batch(thread, reader);
    }
    if (!scenario->close_early && mr_consumer_next(reader->consumer, 0, &(struct mr_delivery){0}) != MR_NEXT_END)
        world_fail("more samples than were fed");
    struct mr_consumer_stats stats;
    mr_consumer_stats(reader->consumer, &stats);
    pthread_mutex_lock(&state->lock);
    state->copies += stats.copies;
    state->skipped += stats.skipped_slots;
    pthread_mutex_unlock(&state->lock);
    mr_consumer_close(reader->consumer);
    mr_consumer_ref(reader->consumer);
    mr_consumer_destroy(reader->consumer);
    while (reader->held_count > 0)
        drop(reader->consumer, &reader->held[--reader->held_count]);
    while (reader->kept_count > 0)
        drop(reader->consumer, &reader->kept[--reader->kept_count]);
    mr_consumer_unref(reader->consumer);
    free(reader);
}

static void *run_consumer(void *arg)
{
    struct thread *thread = arg;

    for (unsigned epoch = 0; epoch < thread->state->scenario->epochs; epoch++)
        run_epoch(thread, epoch);
    atomic_fetch_sub(&thread->state->consumers_left, 1);
    return NULL;
}

/* ---- running ---- */

static void show_lanes(struct world *world)
{
    static const char letter[] = "epfRHrX";
    unsigned lanes = atomic_load(&world->lane_count);

    for (unsigned i = 0; i < lanes; i++) {
        struct mr_lane *lane = &world->lanes[i];
        if (mr_lane_is_empty(lane))
            continue;
        fprintf(stderr, "  lane %u closed %d want %llu posted %llu taken %llu:", i, mr_lane_is_closed(lane),
                (unsigned long long)atomic_load(&lane->shared->want),
                (unsigned long long)atomic_load(&lane->shared->posted),
                (unsigned long long)atomic_load(&lane->shared->taken));
        for (uint32_t slot = 0; slot < lane->window && slot < 32; slot++) {
            uint64_t word = mr_lane_load(lane, slot);
            fprintf(stderr, " %c%u", mr_word_state(word) < 7 ? letter[mr_word_state(word)] : '?', mr_word_owner(word));
        }
        fputc('\n', stderr);
    }
}

/* Waits until the consumers are done and every lane has drained. */
static void watch(struct state *state)
{
    uint64_t last = 0;
    unsigned turns = 0; /* of ours without progress: on a busy machine we wait for a core as the others do */

    for (;;) {
        struct world *world = &state->world;
        uint64_t now = atomic_load(&world->progress);
        bool drained = atomic_load(&state->consumers_left) == 0;
        unsigned lanes = atomic_load(&world->lane_count);
        for (unsigned i = 0; drained && i < lanes; i++)
            drained = mr_lane_is_empty(&world->lanes[i]);
        if (drained)
            return;
        if (now != last) {
            last = now;
            turns = 0;
        }
        if (turns++ > HANG_S * 1000000 / TURN_US) {
            show_lanes(world);
            world_fail("%s: nothing has moved for %d s", state->scenario->name, HANG_S);
        }
        usleep(TURN_US);
    }
}

static void run(const struct scenario *scenario, uint64_t seed)
{
    static struct state state;
    struct thread producers[WORLD_PRODUCERS] = {0}, consumers[CONSUMERS_MAX] = {0};
    uint64_t reserve = (scenario->largest + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;

    memset(&state, 0, sizeof state);
    state.scenario = scenario;
    world_init(&state.world, scenario->producers, reserve * (1 + scenario->arena_objects), scenario->largest);
    state.world.fail_every = scenario->fail_every;
    state.world.gap_bytes = scenario->cell ? 3 * scenario->largest : 0;
    pthread_barrier_init(&state.barrier, NULL, scenario->consumers);
    pthread_mutex_init(&state.lock, NULL);
    atomic_store(&state.consumers_left, scenario->consumers);
    for (unsigned i = 0; i < scenario->producers; i++) {
        producers[i] = (struct thread){.state = &state, .index = i, .random = mr_mix64(seed ^ i)};
        pthread_create(&producers[i].id, NULL, run_producer, &producers[i]);
    }
    for (unsigned i = 0; i < scenario->consumers; i++) {
        consumers[i] = (struct thread){.state = &state, .index = i, .random = mr_mix64(seed ^ (i + 1000))};
        pthread_create(&consumers[i].id, NULL, run_consumer, &consumers[i]);
    }
    watch(&state);
    atomic_store(&state.world.stop, true);
    world_wake_all(&state.world);
    for (unsigned i = 0; i < scenario->consumers; i++)
        pthread_join(consumers[i].id, NULL);
    for (unsigned i = 0; i < scenario->producers; i++)
        pthread_join(producers[i].id, NULL);
    printf("%-45s jobs %5llu tickets %6llu stolen %4llu reserve %4llu taken back %4llu copies %5llu skipped %4llu "
           "deaths %llu timed waits %llu\n",
           scenario->name, (unsigned long long)state.totals.jobs, (unsigned long long)state.totals.tickets,
           (unsigned long long)state.totals.stolen_blocks, (unsigned long long)state.totals.reserve_uses,
           (unsigned long long)state.totals.take_backs, (unsigned long long)state.copies,
           (unsigned long long)state.skipped, (unsigned long long)state.deaths, (unsigned long long)state.timeouts);
    fflush(stdout);
    pthread_barrier_destroy(&state.barrier);
    pthread_mutex_destroy(&state.lock);
    world_close(&state.world);
}

/* threads [SEED [HOW MANY SEEDS [PART OF A SCENARIO'S NAME]]] */
int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (uint64_t n = 0; n < seeds; n++)
            if (argc < 4 || strstr(scenarios[i].name, argv[3]))
                run(&scenarios[i], seed + n);
    return EXIT_SUCCESS;
}
