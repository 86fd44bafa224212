/*
 * kill.c - the single-step kill harness: which functions, in which scenes, with which peer acting in between.
 *
 * Prints a line a function: instructions tried, real kills, runs with a peer acting in between, failures.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tests/crash/step.h"

#define A 0u
#define B 1u

/* ---- scenes ---- */

/* Lane A: 0 HELD, 1 READY, 2 FILLING by producer 0 (claim 0), 3 PENDING. Lane B: FAILED, READY, FILLING by 1 (claim 1),
 * PENDING. */
static void build_mixed(struct scene *scene)
{
    scene_feed(scene, A, 4);
    scene_feed(scene, B, 4);
    scene_publish(scene, scene_claim(scene, 0, 1));
    scene_take(scene, A);
    scene_publish(scene, scene_claim(scene, 0, 1));
    scene_claim(scene, 0, 1);
    scene_fail(scene, scene_claim(scene, 1, 1));
    scene_publish(scene, scene_claim(scene, 1, 1));
    scene_claim(scene, 1, 1);
    if (scene->record.claim_count != 2 || scene->record.claims[0].slot != 2 || scene->record.claims[1].slot != 2)
        die("the mixed scene is another");
    for (unsigned i = 0; i < 2; i++)
        fill_claim(scene->block, scene, &scene->record.claims[i]);
}

static void build_mixed_closed(struct scene *scene)
{
    build_mixed(scene);
    peer_close(scene, A);
}

/* The descriptor of the FILLING ticket names its extent already. */
static void build_described(struct scene *scene)
{
    build_mixed(scene);
    const struct claim *c = &scene->record.claims[0];
    mr_lane_describe(
        &scene->lanes[A], c->slot,
        &(struct mr_descriptor){.extent_offset = c->offset, .extent_length = c->bytes, .length = c->bytes});
}

/* Lane A: 0 to 2 were delivered and released, 3 is PENDING; with W = 4 so are 4 to 6, after it in the ring. */
static void build_cycle(struct scene *scene)
{
    scene_feed(scene, A, 4);
    for (int i = 0; i < 3; i++) {
        scene_publish(scene, scene_claim(scene, 0, 1));
        scene_take(scene, A);
        scene_release(scene, 0);
    }
    scene_feed(scene, A, 3);
}

static void build_posted(struct scene *scene)
{
    scene_feed(scene, A, 4);
    scene_feed(scene, B, 2);
}

static void build_nothing(struct scene *scene)
{
    scene_feed(scene, B, 2);
}

static void build_released(struct scene *scene)
{
    build_mixed(scene);
    scene_release(scene, 0);
}

/* Producer 0's memory is a view of lane A, and A's next is PENDING. */
static void build_full(struct scene *scene)
{
    scene_feed(scene, A, 2);
    scene_publish(scene, scene_claim(scene, 0, 1));
    scene_take(scene, A);
}

/* And its reserve holds lane B's READY head, which it stole, while A's consumer waits. */
static void build_taken_back(struct scene *scene)
{
    scene_feed(scene, A, 1);
    scene_publish(scene, scene_claim(scene, 0, 1));
    scene_take(scene, A);
    scene_feed(scene, B, 1);
    scene_publish(scene, scene_claim(scene, 0, 1));
    scene_feed(scene, A, 1);
    mr_wake_set_want(&scene->lanes[A], 2);
}

static void build_taken_back_wanted(struct scene *scene)
{
    build_taken_back(scene);
    mr_wake_set_want(&scene->lanes[B], 1);
}

/* Lane A's head lies READY in producer 0's reserve. */
static void build_in_reserve(struct scene *scene)
{
    build_full(scene);
    scene_publish(scene, scene_claim(scene, 0, 1));
}

/* A's consumer has all but the FILLING one, and waits for that. */
static void build_waiting(struct scene *scene)
{
    scene_feed(scene, A, 3);
    for (int i = 0; i < 2; i++) {
        scene_publish(scene, scene_claim(scene, 0, 1));
        scene_take(scene, A);
    }
    scene_claim(scene, 0, 1);
    fill_claim(scene->block, scene, &scene->record.claims[0]);
    mr_wake_set_want(&scene->lanes[A], 3);
}

static void build_idle(struct scene *scene)
{
    build_waiting(scene);
    mr_wake_set_want(&scene->lanes[A], 0);
}

/* Producer 0 has died and was recovered. */
static void build_recovered(struct scene *scene)
{
    build_mixed(scene);
    for (unsigned i = 0; i < LANES; i++)
        mr_lane_recover(&scene->lanes[i], 0);
    remove_claim(&scene->record, 0);
}

/* ---- what a peer does in between ---- */

static void close_a(struct scene *scene)
{
    peer_close(scene, A);
}

static void publish_0(struct scene *scene)
{
    peer_publish(scene, 0);
}

/* The part of producer's arena that its allocator does not know here. */
static struct claim spare_claim(const struct scene *scene, unsigned producer, unsigned lane, uint32_t slot,
                                uint64_t filling, uint64_t object)
{
    return (struct claim){producer, lane, slot, filling, object, scene->arena_bytes - SPARE, object_bytes(object),
                          false};
}

/* Lane A's number 3 goes through a whole life, and its slot is posted again. */
static void cycle_3(struct scene *scene)
{
    struct mr_lane *lane = &scene->lanes[A];
    uint64_t pending = mr_word(MR_PENDING, 0, 0, 0), filling, word;
    struct mr_request request;

    if (!mr_lane_claim(lane, 3, pending, 1, &filling, &request))
        return;
    mr_lane_fail(lane, 3, filling, MR_E_IO, "peer");
    struct mr_descriptor desc;
    bool failed;
    if (!mr_lane_take(lane, 3, &word, &desc, &failed) || !mr_lane_release(lane, 3, word))
        die("cycle");
    request.object = (uint64_t)A << 32 | scene->record.posted[A]++;
    if (!mr_lane_post(lane, 7, &request))
        die("cycle: post");
    atomic_store(&lane->shared->posted, 8);
    scene->record.delivered[A]++;
    scene->record.number[A]++;
}

static void take_1(struct scene *scene)
{
    struct mr_descriptor desc;
    uint64_t word;
    bool failed;

    if (!mr_lane_take(&scene->lanes[A], 1, &word, &desc, &failed))
        return;
    scene->record.delivered[A]++;
    scene->record.number[A]++;
    scene->record.views[scene->record.view_count++] = (struct view){A, 1, word, 1};
}

/* Producer 0 takes number 1 back, uses its memory for something else, and delivers it from another place: the word is
 * the same as before. */
static void refill_1(struct scene *scene)
{
    struct mr_lane *lane = &scene->lanes[A];
    uint64_t ready = mr_word(MR_READY, 0, 0, 0), old = lane->tickets[1].desc.extent_offset, filling;

    if (!mr_lane_take_back(lane, 1, ready))
        return;
    memset(arena_of(scene, scene->block, 0) + old, 0xee, object_bytes(1));
    struct mr_request request;
    if (!mr_lane_claim(lane, 1, mr_lane_load(lane, 1), 0, &filling, &request))
        die("refill");
    struct claim claim = spare_claim(scene, 0, A, 1, filling, 1);
    publish_claim(scene, scene->block, scene->lanes, &claim);
}

/* Another producer claims the lane's ticket first. */
static void peer_claim(struct scene *scene, uint32_t slot)
{
    struct mr_lane *lane = &scene->lanes[A];
    struct mr_request request;
    uint64_t filling;

    if (mr_lane_claim(lane, slot, mr_lane_load(lane, slot), 1, &filling, &request))
        scene->record.claims[scene->record.claim_count++] = spare_claim(scene, 1, A, slot, filling, request.object);
}

static void claim_3(struct scene *scene)
{
    peer_claim(scene, 3);
}

static void claim_0(struct scene *scene)
{
    peer_claim(scene, 0);
}

static void post_3(struct scene *scene)
{
    struct mr_lane *lane = &scene->lanes[A];
    struct mr_request request = {.object = scene->record.posted[A]++};

    if (!mr_lane_post(lane, 3, &request))
        die("post");
    atomic_store_explicit(&lane->shared->posted, 4, memory_order_release);
    mr_wake_producer(line_at(scene->block, 0), scene->eventfd[0]);
}

/* The supervisor recovers producer 0; its slot starts again, and its memory is used for another ticket. */
static void reclaim(struct scene *scene)
{
    uint64_t n = 2;

    for (unsigned i = 0; i < LANES; i++)
        mr_lane_recover(&scene->lanes[i], 0);
    if (scene->record.claims[0].producer == 0)
        remove_claim(&scene->record, 0);
    uint64_t filling;
    struct mr_request request;
    if (!mr_lane_claim(&scene->lanes[A], (uint32_t)n, mr_lane_load(&scene->lanes[A], (uint32_t)n), 1, &filling,
                       &request))
        return; /* it was published before */
    struct claim claim = spare_claim(scene, 1, A, (uint32_t)n, filling, request.object);
    publish_claim(scene, scene->block, scene->lanes, &claim);
    struct mr_producer *producer = new_producer(scene, scene->block, 0);
    for (unsigned i = 0; i < LANES; i++)
        mr_producer_add_lane(producer, &scene->lanes[i]);
    struct mr_job job;
    if (!mr_producer_next_job(producer, 1, UINT64_MAX, 0, &job))
        die("reclaim: no job");
    add_claims(scene, 0, &job);
    publish_claim(scene, scene->block, scene->lanes, &scene->record.claims[scene->record.claim_count - 1]);
    remove_claim(&scene->record, scene->record.claim_count - 1);
    mr_producer_destroy(producer);
}

/* ---- the functions ---- */

static void run_claim(struct scene *scene, struct outcome *out)
{
    out->ok = mr_lane_claim(&scene->lanes[A], 3, mr_word(MR_PENDING, 0, 0, 0), 0, &out->word, &out->request);
}

static const char *record_claim(struct scene *scene, const struct outcome *out)
{
    if (out->ok)
        scene->record.claims[scene->record.claim_count++] = spare_claim(scene, 0, A, 3, out->word, out->request.object);
    return NULL;
}

static void run_give_back(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_lane_give_back(&scene->lanes[A], 2, scene->record.claims[0].filling);
}

static const char *record_claim_ended(struct scene *scene, const struct outcome *out)
{
    (void)out;
    remove_claim(&scene->record, 0);
    return NULL;
}

static void run_publish(struct scene *scene, struct outcome *out)
{
    const struct claim *c = &scene->record.claims[0];
    struct mr_descriptor desc = {.extent_offset = c->offset,
                                 .extent_length = c->bytes,
                                 .length = c->bytes,
                                 .generation = c->object,
                                 .arena = c->producer};

    mr_lane_describe(&scene->lanes[c->lane], c->slot, &desc);
    mr_lane_publish(&scene->lanes[c->lane], c->slot, c->filling, &out->word);
}

static void run_fail(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_lane_fail(&scene->lanes[A], 2, scene->record.claims[0].filling, MR_E_NOT_FOUND, "stepped");
}

static void run_take_back(struct scene *scene, struct outcome *out)
{
    out->ok = mr_lane_take_back(&scene->lanes[A], 1, mr_word(MR_READY, 0, 0, 0));
}

static void run_take(struct scene *scene, struct outcome *out)
{
    bool failed;

    out->ok = mr_lane_take(&scene->lanes[A], 1, &out->word, &out->desc, &failed);
}

static void observe_taken(struct scene *scene, struct outcome *out)
{
    if (out->ok &&
        (out->desc.arena >= PRODUCERS ||
         !bytes_match(arena_of(scene, scene->block, out->desc.arena) + out->desc.extent_offset, 1, object_bytes(1))))
        strcpy(out->problem, "the descriptor that it read names other bytes");
}

static const char *record_take(struct scene *scene, const struct outcome *out)
{
    if (!out->ok)
        return NULL;
    scene->record.delivered[A]++;
    scene->record.number[A]++;
    scene->record.views[scene->record.view_count++] = (struct view){A, 1, out->word, 1};
    return NULL;
}

static void run_release(struct scene *scene, struct outcome *out)
{
    out->ok = mr_lane_release(&scene->lanes[A], 0, scene->record.views[0].word);
}

static const char *record_release(struct scene *scene, const struct outcome *out)
{
    scene->record.views[0] = scene->record.views[--scene->record.view_count];
    return out->ok ? NULL : "the release was refused";
}

static void run_post(struct scene *scene, struct outcome *out)
{
    struct mr_request request = {.object = 4};

    out->ok = mr_lane_post(&scene->lanes[A], 4, &request);
}

static const char *record_post(struct scene *scene, const struct outcome *out)
{
    scene->record.posted[A]++;
    return out->ok ? NULL : "the post was refused";
}

static void run_close(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_lane_close(&scene->lanes[A], false);
}

static void run_close_dead(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_lane_close(&scene->lanes[A], true);
}

static const char *record_close(struct scene *scene, const struct outcome *out)
{
    (void)out;
    scene->record.closed[A] = true;
    return NULL;
}

static void run_recover(struct scene *scene, struct outcome *out)
{
    out->rc = (int)mr_lane_recover(&scene->lanes[A], 0);
}

static const char *record_recover(struct scene *scene, const struct outcome *out)
{
    uint64_t word = mr_lane_load(&scene->lanes[A], 2);

    if (out->rc != 1)
        return "it has recovered another number of tickets than one";
    if (!scene->record.closed[A] && word != mr_word(MR_PENDING, 0, 1, 0))
        return "the ticket is not PENDING with one attempt more";
    return NULL;
}

static void run_poison(struct scene *scene, struct outcome *out)
{
    out->ok = mr_lane_poison(&scene->lanes[A], 3, mr_word(MR_PENDING, 0, 0, 0), MR_E_IO, "stepped");
}

static void run_next_job(struct scene *scene, struct outcome *out)
{
    out->rc = mr_producer_next_job(scene->producers[0], 4, UINT64_MAX, 0, &out->job);
}

static const char *record_job(struct scene *scene, const struct outcome *out)
{
    if (out->rc)
        add_claims(scene, 0, &out->job);
    return NULL;
}

static const char *record_reserve_job(struct scene *scene, const struct outcome *out)
{
    if (!out->rc || !out->job.claims[0].reserve || out->job.count != 1)
        return "the head did not start in the reserve";
    return record_job(scene, out);
}

static const char *record_no_job(struct scene *scene, const struct outcome *out)
{
    (void)scene;
    return out->rc ? "it started something" : NULL;
}

static void run_producer_publish(struct scene *scene, struct outcome *out)
{
    const struct claim *c = &scene->record.claims[0];

    (void)out;
    mr_producer_publish(scene->producers[0], scene_handle(0), c->bytes, c->object, 0, 0);
}

static void run_producer_give_back(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_producer_give_back(scene->producers[0], scene_handle(0));
}

static void run_producer_fail(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_producer_fail(scene->producers[0], scene_handle(0), MR_E_IO, "stepped");
}

static void run_sleep(struct scene *scene, struct outcome *out)
{
    out->rc = mr_producer_sleep(scene->producers[0]);
}

static const char *record_sleep(struct scene *scene, const struct outcome *out)
{
    struct pollfd fd = {.fd = scene->eventfd[0], .events = POLLIN};

    if (!out->rc && mr_word_state(mr_lane_load(&scene->lanes[A], 3)) == MR_PENDING && poll(&fd, 1, 0) == 0)
        return "it sleeps although a ticket was posted, and nobody will wake it";
    return NULL;
}

/* A write of the payload, and its publication. */
static void run_fill_and_publish(struct scene *scene, struct outcome *out)
{
    const struct claim *c = &scene->record.claims[0];
    volatile unsigned char *to = arena_of(scene, scene->block, 0) + c->offset;

    for (unsigned i = 0; i < 8; i++)
        to[i] = (unsigned char)(c->object >> 8 * i);
    run_publish(scene, out);
}

static void run_start(struct scene *scene, struct outcome *out)
{
    struct mr_producer *producer = new_producer(scene, scene->block, 0);

    for (unsigned i = 0; i < LANES; i++)
        out->rc |= mr_producer_add_lane(producer, &scene->lanes[i]);
}

static void run_feed(struct scene *scene, struct outcome *out)
{
    struct mr_sample samples[3];

    memset(samples, 0, sizeof samples);
    for (unsigned i = 0; i < 3; i++)
        samples[i].request.object = i;
    out->rc = mr_consumer_feed(scene->consumers[A], samples, 3);
}

static const char *record_feed(struct scene *scene, const struct outcome *out)
{
    scene->record.posted[A] += 3;
    return out->rc ? "it failed" : NULL;
}

static void run_next(struct scene *scene, struct outcome *out)
{
    out->rc = (int)mr_consumer_next(scene->consumers[A], 0, &out->got);
}

static void run_next_waiting(struct scene *scene, struct outcome *out)
{
    out->rc = (int)mr_consumer_next(scene->consumers[A], 100, &out->got);
}

static void observe_next(struct scene *scene, struct outcome *out)
{
    uint64_t object = scene->record.delivered[A];

    if (out->rc == MR_NEXT_OK && !bytes_match(out->got.data, object, object_bytes(object)))
        strcpy(out->problem, "next() delivered wrong bytes");
}

static const char *record_next(struct scene *scene, const struct outcome *out)
{
    uint64_t object = scene->record.delivered[A]++;

    scene->record.number[A]++;
    if (out->rc != MR_NEXT_OK)
        return "next() did not deliver";
    if (!out->got.copied)
        scene->record.views[scene->record.view_count++] = (struct view){A, out->got.slot, out->got.word, object};
    return NULL;
}

static void run_lease_release(struct scene *scene, struct outcome *out)
{
    const struct view *view = &scene->record.views[0];

    out->ok = true;
    mr_lease_release(scene->consumers[A], view->slot, view->word, object_bytes(view->object));
}

static void run_consumer_close(struct scene *scene, struct outcome *out)
{
    (void)out;
    mr_consumer_close(scene->consumers[A]);
}

#define PRODUCER_0       \
    {                    \
        0, NOBODY, false \
    }
#define OWNER_A          \
    {                    \
        NOBODY, A, false \
    }
#define SUPERVISOR           \
    {                        \
        NOBODY, NOBODY, true \
    }
#define SUP_FOR_0       \
    {                   \
        0, NOBODY, true \
    }
#define SUP_FOR_A       \
    {                   \
        NOBODY, A, true \
    }

#define F(...)      \
    {               \
        __VA_ARGS__ \
    }
static const struct function functions[] = {
    F(.name = "claim", .dead = PRODUCER_0, .pages = 8, .build = build_cycle, .run = run_claim, .record = record_claim,
      .peer = cycle_3),
    F(.name = "give back", .dead = PRODUCER_0, .pages = 8, .build = build_mixed, .run = run_give_back,
      .record = record_claim_ended, .peer = close_a),
    F(.name = "give back, lane closed", .dead = PRODUCER_0, .pages = 8, .build = build_mixed_closed,
      .run = run_give_back, .record = record_claim_ended),
    F(.name = "publish", .dead = PRODUCER_0, .pages = 8, .build = build_mixed, .run = run_publish,
      .record = record_claim_ended, .peer = close_a),
    F(.name = "publish, lane closed", .dead = PRODUCER_0, .pages = 8, .build = build_mixed_closed, .run = run_publish,
      .record = record_claim_ended),
    F(.name = "fail", .dead = PRODUCER_0, .pages = 8, .build = build_described, .run = run_fail,
      .record = record_claim_ended, .peer = close_a),
    F(.name = "take back", .dead = PRODUCER_0, .pages = 8, .build = build_mixed, .run = run_take_back, .peer = close_a),
    F(.name = "take back, against take", .dead = PRODUCER_0, .pages = 8, .build = build_mixed, .run = run_take_back,
      .peer = take_1),
    F(.name = "take", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_take, .observe = observe_taken,
      .record = record_take, .peer = refill_1),
    F(.name = "release", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_release,
      .record = record_release, .peer = close_a),
    F(.name = "release, lane closed", .dead = OWNER_A, .pages = 8, .build = build_mixed_closed, .run = run_release,
      .record = record_release),
    F(.name = "post", .dead = OWNER_A, .pages = 8, .build = build_released, .run = run_post, .record = record_post),
    F(.name = "close", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_close, .record = record_close,
      .peer = publish_0),
    F(.name = "close for a dead owner", .dead = SUP_FOR_A, .pages = 8, .build = build_mixed, .run = run_close_dead,
      .record = record_close, .peer = publish_0),
    F(.name = "recover", .dead = SUP_FOR_0, .pages = 8, .build = build_mixed, .run = run_recover,
      .record = record_recover, .peer = close_a),
    F(.name = "recover, lane closed", .dead = SUP_FOR_0, .pages = 8, .build = build_mixed_closed, .run = run_recover,
      .record = record_recover),
    F(.name = "poison", .dead = SUPERVISOR, .pages = 8, .build = build_mixed, .run = run_poison, .peer = claim_3),
    F(.name = "reserve and claim a job", .slow = true, .dead = PRODUCER_0, .pages = 8, .build = build_posted,
      .run = run_next_job, .record = record_job, .peer = claim_0),
    F(.name = "claim a head into the reserve", .dead = PRODUCER_0, .pages = 2, .build = build_full, .run = run_next_job,
      .record = record_reserve_job),
    F(.name = "take back for a wanted head", .dead = PRODUCER_0, .pages = 2, .build = build_taken_back,
      .run = run_next_job, .record = record_reserve_job),
    F(.name = "leave a wanted ticket alone", .dead = PRODUCER_0, .pages = 2, .build = build_taken_back_wanted,
      .run = run_next_job, .record = record_no_job),
    F(.name = "producer publishes and wakes", .dead = PRODUCER_0, .pages = 8, .build = build_waiting,
      .run = run_producer_publish, .record = record_claim_ended, .peer = close_a),
    F(.name = "producer gives back", .dead = PRODUCER_0, .pages = 8, .build = build_waiting,
      .run = run_producer_give_back, .record = record_claim_ended, .peer = close_a),
    F(.name = "producer fails a ticket", .dead = PRODUCER_0, .pages = 8, .build = build_waiting,
      .run = run_producer_fail, .record = record_claim_ended, .peer = close_a),
    F(.name = "producer goes to sleep", .dead = PRODUCER_0, .pages = 8, .build = build_idle, .run = run_sleep,
      .record = record_sleep, .peer = post_3),
    F(.name = "producer fills and is recovered", .dead = PRODUCER_0, .pages = 8, .reclaim = true, .build = build_mixed,
      .run = run_fill_and_publish, .peer = reclaim),
    F(.name = "producer starts again", .slow = true, .dead = PRODUCER_0, .pages = 8, .build = build_recovered,
      .run = run_start),
    F(.name = "feed", .dead = OWNER_A, .pages = 8, .build = build_nothing, .run = run_feed, .record = record_feed),
    F(.name = "next: a view", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_next,
      .observe = observe_next, .record = record_next),
    F(.name = "next: a copy from the reserve", .slow = true, .dead = OWNER_A, .pages = 2, .build = build_in_reserve,
      .run = run_next, .observe = observe_next, .record = record_next),
    F(.name = "next: waits", .dead = OWNER_A, .pages = 8, .only_peer = true, .build = build_idle,
      .run = run_next_waiting, .observe = observe_next, .record = record_next, .peer = publish_0),
    F(.name = "release of a lease", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_lease_release,
      .record = record_release, .peer = close_a),
    F(.name = "consumer closes", .dead = OWNER_A, .pages = 8, .build = build_mixed, .run = run_consumer_close,
      .record = record_close, .peer = publish_0),
};

/* kill [quick] [first]: quick leaves out W = 64 and the slow functions; first ends at the first failing function. */
int main(int argc, char **argv)
{
    static const uint32_t windows[] = {4, 64};
    struct counts all = {0};
    bool quick = false, first = false;

    for (int i = 1; i < argc; i++) {
        quick |= strcmp(argv[i], "quick") == 0;
        first |= strcmp(argv[i], "first") == 0;
    }
    printf("%-34s %4s %12s %6s %7s %9s\n", "function", "W", "instructions", "kills", "peers", "failures");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        for (size_t k = 0; k < (quick ? 1 : 2) && !(quick && functions[i].slow); k++) {
            if (functions[i].only_peer && windows[k] != 4)
                continue;
            struct counts counts;
            step_function(&functions[i], windows[k], !quick ? 300 : first ? 100 : 30, &counts);
            printf("%-34s %4u %12u %6u %7u %9u\n", functions[i].name, windows[k], counts.instructions, counts.kills,
                   counts.peers, counts.failures);
            fflush(stdout);
            all.instructions += counts.instructions;
            all.kills += counts.kills;
            all.peers += counts.peers;
            all.failures += counts.failures;
            if (first && all.failures)
                return EXIT_FAILURE;
        }
    }
    printf("%-34s %4s %12u %6u %7u %9u\n", "all", "", all.instructions, all.kills, all.peers, all.failures);
    return all.failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
