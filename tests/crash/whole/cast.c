/* cast.c - see cast.h: the memory of a run, and what objects are made of. */
#include "tests/crash/whole/cast.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/arena.h"

struct cast *the_cast;

uint64_t object_bytes(const struct cast *cast, uint64_t object)
{
    const struct shape *shape = &cast->world.shape;
    uint64_t most = (uint64_t)shape->reserve_pages * MR_ARENA_PAGE / GRANULE;

    if (shape->object_bytes)
        return shape->object_bytes;
    if (shape->window > 4 && most > 16)
        most = 16; /* many tickets in a small arena */
    return GRANULE * (1 + object * 29 % most);
}

/* Of its own: what the code under test exports would be stepped. */
static uint64_t mix(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

uint64_t object_byte8(uint64_t object, uint64_t index)
{
    return mix(object) + index;
}

uint32_t object_crc(uint64_t object)
{
    return (uint32_t)(mix(object) >> 7);
}

bool object_may_fail(const struct cast *cast, uint64_t object)
{
    return object == cast->bad_object || object == cast->broken_object || object == cast->poisoned_object;
}

static unsigned char *place(struct world *world, uint64_t *at, uint64_t bytes)
{
    unsigned char *here = world->base + *at;

    *at += (bytes + 4095) / 4096 * 4096;
    return here;
}

/* The parts one after the other; with base NULL only to learn the size. */
static void lay_out(struct world *world)
{
    const struct shape *shape = &world->shape;
    uint64_t at = 0;

    world->arena_bytes = (uint64_t)shape->arena_pages * MR_ARENA_PAGE;
    for (unsigned l = 0; l < LANES; l++)
        world->lane[l].shared = (struct mr_lane_shared *)place(world, &at, mr_lane_size(shape->window));
    world->kernel = (struct kernel *)place(world, &at, sizeof *world->kernel);
    for (unsigned p = 0; p < PRODUCERS; p++)
        world->line[p] = (struct mr_producer_line *)place(world, &at, sizeof *world->line[p]);
    for (unsigned p = 0; p < PRODUCERS; p++)
        world->arena[p] = place(world, &at, world->arena_bytes);
    world->compared = at;
    world->status = (struct status *)place(world, &at, sizeof *world->status);
    world->board = (struct mr_board *)place(world, &at, sizeof *world->board);
    world->size = at;
}

static void make_memory(struct world *world)
{
    lay_out(world);
    world->fd = memfd_create("crash", MFD_CLOEXEC);
    if (world->fd < 0 || ftruncate(world->fd, (off_t)world->size))
        fail("no memory file of %llu bytes", (unsigned long long)world->size);
    world->base = mmap(NULL, world->size, PROT_READ | PROT_WRITE, MAP_SHARED, world->fd, 0);
    if (world->base == MAP_FAILED)
        fail("cannot map %llu bytes", (unsigned long long)world->size);
    lay_out(world);
}

static void make_views(struct cast *cast)
{
    struct world *world = &cast->world;
    struct mr_producer_view views[PRODUCERS];

    for (unsigned p = 0; p < world->shape.producers; p++)
        views[p] = (struct mr_producer_view){.arena = world->arena[p],
                                             .arena_bytes = world->arena_bytes,
                                             .line = world->line[p],
                                             .eventfd = EVENTFD + (int)p};
    cast->views = mr_views_new(world->board, 0, world->shape.producers, views);
    if (!cast->views)
        fail("mr_views_new: %s", mr_error_text());
}

void cast_build(struct cast *cast, const struct shape *shape, int mutant)
{
    struct world *world = &cast->world;

    memset(cast, 0, sizeof *cast);
    the_cast = cast;
    world->shape = *shape;
    cast->mutant = mutant;
    cast->stepped = NOBODY;
    cast->bad_object = cast->broken_object = cast->poisoned_object = NO_OBJECT;
    make_memory(world);
    world->kernel->clock_ns = MR_SECOND_NS;
    mr_board_format(world->board, 1, "crash");
    atomic_store(&world->board->producers, shape->producers);
    for (unsigned l = 0; l < LANES; l++) {
        void *segment = world->lane[l].shared;
        /* A first lap before the wrap lies in an odd block: + 1, so that producer l is at home at lane l's start. */
        mr_lane_format(segment, shape->window, l + (shape->first_lap != 0), 100 + l, 0,
                       shape->quota_bytes ? shape->quota_bytes : UINT64_C(1) << 40, shape->first_lap, 0);
        if (mr_lane_attach(&world->lane[l], segment, mr_lane_size(shape->window)))
            fail("mr_lane_attach: %s", mr_error_text());
    }
    make_views(cast);
    for (unsigned l = 0; l < LANES; l++)
        reader_open(cast, l);
    for (unsigned p = 0; p < shape->producers; p++)
        producer_start(cast, p);
}

void cast_use_copy(struct cast *cast)
{
    struct world *world = &cast->world;

    if (mmap(world->base, world->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, world->fd, 0) != world->base)
        fail("cannot map a private copy");
}
