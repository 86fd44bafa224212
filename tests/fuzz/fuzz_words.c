/*
 * fuzz_words.c - two lanes, their reader and two fetch workers, step by step, while somebody writes into the words of
 * one lane, of the board and of the producers' lines: what looks right and is not (another owner, lap, attempt,
 * division, extent), and single bytes anywhere.
 *
 * Nobody crashes, hangs or reads outside of an arena, whatever was written; and the other lane is delivered whole, in
 * order, with its bytes, unless the board was written to, which is the supervisor's alone.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "fuzz.h"
#include "input.h"
#include "shm/ring/consumer_impl.h"
#include "tests/ring/world.h"

#define PRODUCERS   2u
#define WINDOW      16u
#define ARENA_BYTES (UINT64_C(12) * 8192)
#define LARGEST     8000u
#define LEASES      32u
#define CLAIMS      64u
#define STEPS_MAX   400u
#define DRIVE_MAX   4000u /* steps in which the good lane must come to its end */

static struct world world;

static struct {
    struct input *in;
    struct mr_consumer *consumers[2]; /* the good lane's, the other's */
    struct mr_views *views;
    struct mr_producer *producers[PRODUCERS];
    struct {
        struct mr_claim claim;
        unsigned producer;
        bool used;
    } claims[CLAIMS];
    struct {
        struct mr_delivery got;
        unsigned lane;
        bool used;
    } leases[LEASES];
    uint64_t fed, delivered; /* of the good lane: its objects are 0, 1, 2, ... */
    bool board_damaged;
} scene;

/* ---- the two sides ---- */

static void add_lanes(struct mr_producer *producer)
{
    for (unsigned i = 0; i < 2; i++) {
        struct mr_lane lane = world.lanes[1 - i]; /* the damaged one first */
        if (mr_producer_add_lane(producer, &lane) != 0)
            abort();
    }
}

static void feed(unsigned lane, unsigned count)
{
    for (; count > 0 && mr_consumer_backlog(scene.consumers[lane]) < 3 * WINDOW; count--) {
        uint64_t object = lane == 0 ? scene.fed++ : (UINT64_C(1) << 20) + input_byte(scene.in);
        struct mr_sample sample = {.request.object = object, .bytes = world_size(&world, object), .cookie = object};
        if (mr_consumer_feed(scene.consumers[lane], &sample, 1) != 0)
            abort();
    }
}

/* All of it must be readable: a copy's every byte, a view's every byte in the arena that it names. */
static void read_all(const struct mr_delivery *got)
{
    volatile unsigned char sum = 0;
    const unsigned char *data = got->data;
    if (!got->copied && got->length > 0) {
        int arena = mr_views_find(scene.views, data);
        if (arena < 0 || got->length > world.arena_bytes ||
            data + got->length > (const unsigned char *)world.arena[arena] + world.arena_bytes)
            abort();
    }
    for (uint64_t i = 0; i < got->length; i++)
        sum = (unsigned char)(sum + data[i]);
}

static void give_up(struct mr_delivery *got, unsigned lane)
{
    if (got->copied)
        free((void *)(uintptr_t)got->data);
    else
        mr_lease_release(scene.consumers[lane], got->slot, got->word, got->length);
}

static void check_good(const struct mr_delivery *got)
{
    uint64_t object = scene.delivered++;
    if (scene.board_damaged)
        return;
    if (got->sample.cookie != object || got->length != world_size(&world, object) ||
        !world_matches(got->data, object, got->length))
        abort();
}

/* True when a sample came. */
static bool take(unsigned lane, bool keep)
{
    struct mr_delivery got;
    enum mr_next next = mr_consumer_next(scene.consumers[lane], 0, &got);
    if (next == MR_NEXT_FAILED) {
        if (strnlen(got.text, sizeof got.text) == sizeof got.text || (lane == 0 && !scene.board_damaged))
            abort();
        scene.delivered += lane == 0;
        return true;
    }
    if (next != MR_NEXT_OK)
        return false;
    read_all(&got);
    if (lane == 0)
        check_good(&got);
    for (unsigned i = 0; keep && i < LEASES; i++) {
        if (scene.leases[i].used)
            continue;
        scene.leases[i].used = true;
        scene.leases[i].got = got;
        scene.leases[i].lane = lane;
        return true;
    }
    give_up(&got, lane);
    return true;
}

static void release(unsigned i)
{
    if (scene.leases[i].used)
        give_up(&scene.leases[i].got, scene.leases[i].lane);
    scene.leases[i].used = false;
}

static unsigned in_flight(unsigned producer)
{
    unsigned count = 0;
    for (unsigned i = 0; i < CLAIMS; i++)
        count += scene.claims[i].used && scene.claims[i].producer == producer;
    return count;
}

static bool start_job(unsigned producer, unsigned tickets)
{
    struct mr_job job;
    if (in_flight(producer) + MR_LANE_BLOCK > CLAIMS / PRODUCERS ||
        !mr_producer_next_job(scene.producers[producer], tickets, 50000, in_flight(producer), &job))
        return false;
    if (job.count == 0 || job.count > tickets)
        abort();
    for (unsigned i = 0, at = 0; i < job.count; i++) {
        const struct mr_claim *claim = &job.claims[i];
        const unsigned char *arena = world.arena[producer], *dest = claim->dest;
        if (claim->bytes > 0 && (dest < arena || dest + claim->bytes > arena + world.arena_bytes))
            abort();
        while (scene.claims[at].used)
            at++;
        scene.claims[at].claim = *claim;
        scene.claims[at].producer = producer;
        scene.claims[at].used = true;
    }
    return true;
}

/* how: 0 published well, 1 shorter, 2 failed, 3 given back. Only the other lane's are not published well. */
static void end_claim(unsigned i, unsigned how)
{
    struct mr_claim *claim = &scene.claims[i].claim;
    struct mr_producer *producer = scene.producers[scene.claims[i].producer];
    if (!scene.claims[i].used)
        return;
    scene.claims[i].used = false;
    bool good = claim->request.object < UINT64_C(1) << 20;
    world_fill(claim->dest, claim->request.object, claim->bytes);
    if (how == 3)
        mr_producer_give_back(producer, claim);
    else if (how == 2 && !good)
        mr_producer_fail(producer, claim, MR_E_NOT_FOUND, "it is not there");
    else
        mr_producer_publish(producer, claim, how == 1 && !good ? claim->bytes / 2 : claim->bytes, 1, 0, 0);
}

/* A fetch worker dies and starts again. */
static void restart(unsigned slot)
{
    for (unsigned i = 0; i < CLAIMS; i++)
        scene.claims[i].used &= scene.claims[i].producer != slot;
    mr_producer_destroy(scene.producers[slot]);
    for (unsigned i = 0; i < 2; i++)
        mr_lane_recover(&world.lanes[i], slot);
    atomic_store(&world.board->producers, PRODUCERS); /* with another number it would be refused */
    scene.producers[slot] = world_producer(&world, slot);
    add_lanes(scene.producers[slot]);
}

/* ---- who writes where it should not ---- */

static struct mr_ticket *any_ticket(void)
{
    return &world.lanes[1].tickets[input_below(scene.in, WINDOW)];
}

static void spoil_word(void)
{
    struct mr_ticket *ticket = any_ticket();
    uint64_t word = atomic_load(&ticket->word);
    unsigned state = mr_word_state(word), owner = mr_word_owner(word), attempt = mr_word_attempt(word);
    uint32_t lap = mr_word_lap(word);
    unsigned what = input_byte(scene.in);
    if (what & 1)
        state = input_below(scene.in, 16);
    if (what & 2)
        owner = what & 0x80 ? MR_OWNER_SUPERVISOR : input_below(scene.in, 4);
    if (what & 4)
        attempt = what & 0x40 ? MR_ATTEMPT_POISON : input_below(scene.in, 4);
    if (what & 8)
        lap = what & 0x20 ? (uint32_t)input_number(scene.in) : lap + input_below(scene.in, 5) - 2;
    atomic_store(&ticket->word, mr_word((enum mr_state)state, owner, attempt, lap));
}

static void spoil_descriptor(void)
{
    struct mr_descriptor *desc = &any_ticket()->desc;
    unsigned what = input_byte(scene.in);
    uint64_t number = input_number(scene.in);
    if (what & 0x80) /* a page, so that it may be another ticket's */
        number = number % 24 * 4096;
    uint64_t *const wide[] = {&desc->extent_offset, &desc->extent_length, &desc->length, &desc->generation};
    uint32_t *const narrow[] = {&desc->crc32c, &desc->arena, &desc->flags, &desc->code, &desc->division};
    if (what & 1)
        *wide[what / 2 % 4] = number;
    else
        *narrow[what / 2 % 5] = (uint32_t)number;
}

static void spoil_request(void)
{
    struct mr_request_shared *request = &any_ticket()->request;
    unsigned what = input_below(scene.in, 5);
    uint64_t number = input_number(scene.in);
    if (what == 0)
        atomic_store(&request->object, number);
    else if (what == 1)
        atomic_store(&request->length, number);
    else if (what == 2)
        atomic_store(&request->offset, number);
    else if (what == 3)
        atomic_store(&request->flags, (uint32_t)number);
    else
        atomic_store(&request->dataset, (uint32_t)number);
}

static void spoil_header(void)
{
    struct mr_lane_shared *shared = world.lanes[1].shared;
    _Atomic uint64_t *const hints[] = {&shared->want, &shared->posted, &shared->taken, &shared->quota_bytes};
    uint32_t *const constant[] = {&shared->window, &shared->lane, &shared->owner, &shared->first_lap,
                                  &shared->division};
    unsigned what = input_byte(scene.in);
    if (what & 1)
        atomic_store(hints[what / 2 % 4], input_number(scene.in));
    else
        *constant[what / 2 % 5] = (uint32_t)input_number(scene.in);
}

static void spoil_board(void)
{
    struct mr_board *board = world.board;
    unsigned what = input_below(scene.in, 5), slot = input_below(scene.in, PRODUCERS);
    uint32_t number = (uint32_t)input_number(scene.in);
    scene.board_damaged = true;
    if (what == 0)
        atomic_store(&board->producers, number);
    else if (what == 1)
        atomic_store(&board->division, number);
    else if (what == 2)
        atomic_store(&board->producer[slot].alive, number);
    else if (what == 3)
        atomic_store(&board->producer[slot].generation, number);
    else
        ((unsigned char *)board)[input_16(scene.in) % sizeof *board] = (unsigned char)number;
}

static void spoil_bytes(void)
{
    struct mr_lane *lane = &world.lanes[1];
    unsigned what = input_byte(scene.in);
    if (what & 1)
        atomic_store(&world.line[what / 2 % PRODUCERS]->asleep, (uint32_t)input_number(scene.in));
    else
        ((unsigned char *)lane->shared)[input_16(scene.in) % lane->size] = input_byte(scene.in);
}

/* ---- the whole ---- */

static void supervise(void)
{
    struct mr_lane *lane = &world.lanes[1];
    uint32_t slot = input_below(scene.in, WINDOW);
    switch (input_below(scene.in, 4)) {
    case 0:
        mr_lane_recover(lane, 60); /* nobody's */
        break;
    case 1:
        mr_lane_poison(lane, slot, mr_lane_load(lane, slot), MR_E_INTERNAL, "it kills workers");
        break;
    case 2:
        world_wake_all(&world);
        break;
    default:
        mr_lane_is_empty(lane);
        break;
    }
}

static void look(unsigned producer)
{
    struct mr_producer_stats stats;
    mr_producer_stats(scene.producers[producer], &stats);
    if (mr_producer_free_bytes(scene.producers[producer]) > world.arena_bytes)
        abort();
    mr_producer_sleep(scene.producers[producer]);
    mr_producer_awake(scene.producers[producer]);
}

static void step(struct input *in)
{
    unsigned op = input_byte(in), which = op / 16;
    switch (op % 16) {
    case 0:
        feed(which % 2, 1 + which / 2);
        break;
    case 1:
    case 2:
        take(which % 2, which & 2);
        break;
    case 3:
        release(input_below(in, LEASES));
        break;
    case 4:
    case 5:
        start_job(which % PRODUCERS, 1 + which / 2 % 5);
        break;
    case 6:
    case 7:
        end_claim(input_below(in, CLAIMS), which % 4);
        break;
    case 8:
        restart(which % PRODUCERS);
        break;
    case 9:
        supervise();
        break;
    case 10:
        spoil_word();
        break;
    case 11:
        spoil_descriptor();
        break;
    case 12:
        spoil_request();
        break;
    case 13:
        spoil_header();
        break;
    case 14:
        if (which == 0)
            spoil_board();
        else
            spoil_bytes();
        break;
    default:
        look(which % PRODUCERS);
        break;
    }
}

/* Workers that work and a reader that reads bring the good lane to its end. */
static void drive(void)
{
    for (unsigned i = 0; scene.delivered < scene.fed; i++) {
        if (i > DRIVE_MAX) {
            if (scene.board_damaged)
                return;
            abort();
        }
        for (unsigned p = 0; p < PRODUCERS; p++) {
            for (unsigned k = 0; k < CLAIMS; k++)
                end_claim(k, 0);
            start_job(p, 4);
        }
        take(1, false);
        take(0, false);
    }
}

static void open_scene(struct input *in)
{
    memset(&scene, 0, sizeof scene);
    scene.in = in;
    world_init(&world, PRODUCERS, ARENA_BYTES, LARGEST);
    for (unsigned i = 0; i < 2; i++)
        world_open_lane(&world, WINDOW, 1 << 20, 0);
    scene.views = world_views(&world);
    for (unsigned i = 0; i < 2; i++) {
        struct mr_lane lane = world.lanes[i];
        scene.consumers[i] = mr_consumer_new(&lane, scene.views);
        if (!scene.consumers[i])
            abort();
    }
    for (unsigned i = 0; i < PRODUCERS; i++) {
        scene.producers[i] = world_producer(&world, i);
        add_lanes(scene.producers[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size, 0};
    open_scene(&in);
    for (unsigned i = 0; i < STEPS_MAX && in.at < in.size; i++)
        step(&in);
    for (unsigned i = 0; i < LEASES; i++)
        release(i);
    drive();
    for (unsigned i = 0; i < CLAIMS; i++)
        end_claim(i, 0);
    for (unsigned i = 0; i < 2; i++)
        mr_consumer_destroy(scene.consumers[i]);
    for (unsigned i = 0; i < PRODUCERS; i++) {
        mr_producer_drop_lane(scene.producers[i], 1);
        mr_producer_destroy(scene.producers[i]);
    }
    mr_views_unref(scene.views);
    world_close(&world);
    return 0;
}

/* Feeds, jobs, publishes and takes, with one kind of damage after every few steps. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const uint8_t turn[] = {0x30, 0x20, 0x44, 0x55, 0x06, 0, 0x06, 1, 0x16, 2, 0x07, 3, 0x01, 0x11, 0x21, 0x31};
    enum { TURNS = 20 };
    if (n >= 12)
        return 0;
    size_t size = 0;
    uint8_t *seed = malloc(TURNS * (sizeof turn + 6));
    if (!seed)
        abort();
    for (unsigned i = 0; i < TURNS; i++) {
        memcpy(seed + size, turn, sizeof turn);
        size += sizeof turn;
        if (n == 0)
            continue;  /* nothing wrong */
        if (n == 11) { /* extents that overlap, and a worker that finds them at its start */
            const uint8_t overlap[] = {11, (uint8_t)i, 0x81, (uint8_t)(i % 4), 0x08, 0x18};
            memcpy(seed + size, overlap, sizeof overlap);
            size += sizeof overlap;
            continue;
        }
        uint64_t random = mr_mix64(n * 100 + i);
        seed[size++] = (uint8_t)((n + 2) % 13 + 3) | (uint8_t)(random & 0xf0);
        for (unsigned k = 1; k < 5; k++)
            seed[size++] = (uint8_t)(random >> 8 * k);
        seed[size++] = 0x3 | (uint8_t)(i << 4);
    }
    *data = seed;
    return size;
}
