/* world.c - see world.h. */
#include "tests/ring/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/segment.h"

/* Linked with --wrap: the mappings belong to the world, all threads share them. */
void __wrap_mr_segment_unmap(void *at, uint64_t size);
void __wrap_mr_segment_unmap(void *at, uint64_t size)
{
    (void)at;
    (void)size;
}

void *world_map(uint64_t size)
{
    int fd = mr_segment_new(MR_BACKING_MEMFD, "a test segment", size, false);
    void *at = fd < 0 ? NULL : mr_segment_map(fd, size, true, NULL);

    if (!at)
        world_fail("%s", mr_error_text());
    close(fd);
    return at;
}

void world_init(struct world *world, unsigned producers, uint64_t arena_bytes, uint64_t largest)
{
    memset(world, 0, sizeof *world);
    world->producers = producers;
    world->arena_bytes = arena_bytes;
    world->largest = largest;
    world->reserve_bytes = (largest + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;
    world->board = world_map(sizeof *world->board);
    mr_board_format(world->board, (uint32_t)getpid(), "test");
    for (unsigned i = 0; i < producers; i++) {
        world->arena[i] = world_map(arena_bytes);
        world->line[i] = world_map(MR_ARENA_PAGE);
        world->eventfd[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (world->eventfd[i] < 0)
            world_fail("eventfd: %s", strerror(errno));
        atomic_store(&world->board->producer[i].alive, 1);
    }
    atomic_store(&world->board->producers, producers);
    pthread_mutex_init(&world->lock, NULL);
}

void world_close(struct world *world)
{
    unsigned lanes = atomic_load(&world->lane_count);

    for (unsigned i = 0; i < lanes; i++)
        munmap(world->lanes[i].shared, world->lanes[i].size);
    for (unsigned i = 0; i < world->producers; i++) {
        munmap(world->arena[i], world->arena_bytes);
        munmap(world->line[i], MR_ARENA_PAGE);
        close(world->eventfd[i]);
    }
    munmap(world->board, sizeof *world->board);
    pthread_mutex_destroy(&world->lock);
}

unsigned world_open_lane(struct world *world, uint32_t window, uint64_t quota, uint32_t first_lap)
{
    void *at = world_map(mr_lane_size(window));

    pthread_mutex_lock(&world->lock);
    unsigned index = atomic_load(&world->lane_count);
    if (index == WORLD_LANES)
        world_fail("too many lanes");
    mr_lane_format(at, window, index, index % 1000, 0, quota, first_lap, world->division);
    if (mr_lane_attach(&world->lanes[index], at, mr_lane_size(window)))
        world_fail("%s", mr_error_text());
    atomic_store(&world->lane_count, index + 1);
    pthread_mutex_unlock(&world->lock);
    for (unsigned i = 0; i < world->producers; i++)
        mr_wake_producer(world->line[i], world->eventfd[i]);
    return index;
}

struct mr_views *world_views(struct world *world)
{
    struct mr_producer_view view[WORLD_PRODUCERS];

    for (unsigned i = 0; i < world->producers; i++)
        view[i] =
            (struct mr_producer_view){world->arena[i], world->arena_bytes, world->line[i], dup(world->eventfd[i])};
    struct mr_views *views = mr_views_new(world->board, world->division, world->producers, view);
    if (!views)
        world_fail("%s", mr_error_text());
    return views;
}

struct mr_producer *world_producer(struct world *world, unsigned slot)
{
    struct mr_producer_options options = {.slot = slot,
                                          .division = world->division,
                                          .board = world->board,
                                          .line = world->line[slot],
                                          .arena = world->arena[slot],
                                          .arena_bytes = world->arena_bytes,
                                          .reserve_bytes = world->reserve_bytes,
                                          .size = world_size_fn,
                                          .size_arg = world,
                                          .place = world->gap_bytes ? world_place_fn : NULL,
                                          .cell_bytes = 8 * world->largest,
                                          .gap_bytes = world->gap_bytes};
    struct mr_producer *producer = mr_producer_new(&options);

    if (!producer)
        world_fail("%s", mr_error_text());
    return producer;
}

void world_wake_all(struct world *world)
{
    static const uint64_t one = 1;
    unsigned lanes = atomic_load(&world->lane_count);

    for (unsigned i = 0; i < lanes; i++)
        mr_wake_consumer_always(&world->lanes[i]);
    for (unsigned i = 0; i < world->producers; i++)
        if (write(world->eventfd[i], &one, sizeof one) < 0 && errno != EAGAIN)
            world_fail("eventfd: %s", strerror(errno));
}

/* One in eight is empty or tiny, one in eight the largest, the rest anything between. */
uint64_t world_size(const struct world *world, uint64_t object)
{
    uint64_t h = mr_mix64(object ^ 0x51e);

    if (h % 8 == 0)
        return h / 8 % 3;
    return h % 8 == 1 ? world->largest : h / 8 % (world->largest + 1);
}

bool world_fails(const struct world *world, uint64_t object)
{
    return world->fail_every && mr_mix64(object ^ 0xfa11) % world->fail_every == 0;
}

static uint64_t pattern(uint64_t object, uint64_t i)
{
    return object * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xd1342543de82ef95);
}

void world_fill(void *at, uint64_t object, uint64_t bytes)
{
    unsigned char *to = at;

    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = pattern(object, i);
        memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

bool world_matches(const void *at, uint64_t object, uint64_t bytes)
{
    const unsigned char *from = at;

    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = pattern(object, i);
        if (memcmp(from + i, &word, bytes - i < 8 ? bytes - i : 8) != 0)
            return false;
    }
    return true;
}

int world_size_fn(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    if (request->flags & WORLD_NO_SIZE) {
        mr_error_set(MR_E_NOT_FOUND, "object %llu is not in the index", (unsigned long long)request->object);
        return -1;
    }
    *bytes = request->length ? request->length : world_size(arg, request->object);
    return 0;
}

bool world_place_fn(void *arg, const struct mr_request *request, struct mr_place *place)
{
    const struct world *world = arg;

    *place = (struct mr_place){.stored = request->object >> 32,
                               .offset = (request->object & UINT32_MAX) * (world->largest + WORLD_GAP),
                               .bytes = request->length ? request->length : world_size(world, request->object)};
    return place->bytes > 0 && place->bytes <= world->largest;
}
