/* producers.c - see cast.h: a fetch worker without a network. */
#include "base/error.h"
#include "shm/memory/arena.h"
#include "shm/ring/mutant.h"
#include "tests/crash/whole/cast.h"

static int size_of(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    const struct cast *cast = arg;

    if (request->object == cast->bad_object) {
        mr_error_set(MR_E_NOT_FOUND, "object %llu is not in the index", (unsigned long long)request->object);
        return -1;
    }
    *bytes = object_bytes(cast, request->object);
    return 0;
}

static bool place_of(void *arg, const struct mr_request *request, struct mr_place *place)
{
    const struct cast *cast = arg;
    uint64_t most = (uint64_t)cast->world.shape.reserve_pages * MR_ARENA_PAGE;

    *place = (struct mr_place){.stored = request->object / OBJECTS,
                               .offset = request->object % OBJECTS * most,
                               .bytes = object_bytes(cast, request->object)};
    return request->object != cast->bad_object;
}

/* The kernel's part of an arena that grows. */
struct backing {
    struct cast *cast;
    unsigned slot;
};

static int back(void *arg, uint64_t offset, uint64_t bytes)
{
    const struct backing *backing = arg;
    struct world *world = &backing->cast->world;

    if (offset % MR_ARENA_PAGE || bytes % MR_ARENA_PAGE || offset + bytes > world->arena_bytes)
        fail("producer %u asks for %llu bytes at %llu", backing->slot, (unsigned long long)bytes,
             (unsigned long long)offset);
    if (world->shape.no_memory) {
        mr_error_set(MR_E_NO_MEMORY, "there is no memory");
        return -1;
    }
    for (uint64_t page = offset / MR_ARENA_PAGE; page < (offset + bytes) / MR_ARENA_PAGE; page++)
        world->kernel->backed[backing->slot] |= UINT64_C(1) << page;
    return 0;
}

void producer_start(struct cast *cast, unsigned slot)
{
    struct world *world = &cast->world;
    struct producer_role *role = &cast->producer[slot];
    static struct backing backing[PRODUCERS];
    bool grows = world->shape.grows || world->shape.no_memory;
    backing[slot] = (struct backing){cast, slot};
    struct mr_producer_options options = {.slot = slot,
                                          .board = world->board,
                                          .line = world->line[slot],
                                          .arena = world->arena[slot],
                                          .arena_bytes = world->arena_bytes,
                                          .reserve_bytes = (uint64_t)world->shape.reserve_pages * MR_ARENA_PAGE,
                                          .back = grows ? back : NULL,
                                          .back_arg = &backing[slot],
                                          .reserve_backed_bytes = (uint64_t)world->shape.reserve_pages * MR_ARENA_PAGE,
                                          .size = size_of,
                                          .size_arg = cast,
                                          .place = world->shape.cells ? place_of : NULL,
                                          .cell_bytes = 8 * MR_ARENA_PAGE,
                                          .gap_bytes = 2 * MR_ARENA_PAGE};

    role->job.count = role->done = 0;
    role->max_tickets = MR_LANE_BLOCK;
    role->handle = mr_producer_new(&options);
    if (!role->handle)
        fail("mr_producer_new: %s", mr_error_text());
    for (unsigned l = 0; l < LANES; l++) {
        struct mr_lane lane = world->lane[l];
        if (mr_producer_add_lane(role->handle, &lane))
            fail("mr_producer_add_lane: %s", mr_error_text());
    }
    atomic_store(&world->board->producer[slot].alive, 1);
    world->status->producer[slot].alive = 1;
    world->status->producer[slot].sleeping = 0;
}

void producer_fill(struct cast *cast, const struct mr_claim *claim)
{
    uint64_t *dest = claim->dest;

    if (claim->bytes != object_bytes(cast, claim->request.object))
        fail("object %llu got room for %llu bytes", (unsigned long long)claim->request.object,
             (unsigned long long)claim->bytes);
    for (uint64_t i = 0; i < claim->bytes / 8; i++)
        dest[i] = object_byte8(claim->request.object, i);
}

void producer_publish(struct cast *cast, unsigned slot, struct mr_claim *claim)
{
    uint64_t object = claim->request.object;

    if (object == cast->broken_object)
        mr_producer_fail(cast->producer[slot].handle, claim, MR_E_NET, "the connection was lost");
    else
        mr_producer_publish(cast->producer[slot].handle, claim, claim->bytes, object + 7, object_crc(object), 0);
}

bool producer_next_job(struct cast *cast, unsigned slot, unsigned max_tickets)
{
    struct producer_role *role = &cast->producer[slot];

    role->done = 0;
    if (mr_producer_next_job(role->handle, max_tickets, 8 * MR_ARENA_PAGE, 0, &role->job))
        return true;
    role->job.count = 0;
    return false;
}

void producer_finish_job(struct cast *cast, unsigned slot)
{
    struct producer_role *role = &cast->producer[slot];

    while (role->done < role->job.count) {
        struct mr_claim *claim = &role->job.claims[role->done];
        producer_fill(cast, claim);
        producer_publish(cast, slot, claim);
        role->done++;
    }
    role->job.count = role->done = 0;
}

void producer_serve(struct cast *cast, unsigned slot, unsigned max_tickets)
{
    if (!producer_next_job(cast, slot, max_tickets))
        fail("the scenario's setup: producer %u finds no job; %s", slot, words_text(cast));
    producer_finish_job(cast, slot);
}

void producer_sleep(struct cast *cast, unsigned slot)
{
    if (!mr_producer_sleep(cast->producer[slot].handle))
        cast->world.status->producer[slot].sleeping = 1;
}

void producer_turn(struct cast *cast, unsigned slot)
{
    struct producer_role *role = &cast->producer[slot];
    struct world *world = &cast->world;
    unsigned jobs = 0;

    if (world->status->producer[slot].sleeping) {
        world->kernel->event[slot] = 0;
        world->status->producer[slot].sleeping = 0;
        mr_producer_awake(role->handle);
    }
    while (!world->status->producer[slot].sleeping) {
        producer_finish_job(cast, slot);
        if (++jobs > JOBS_MAX)
            fail("producer %u works for ever; %s", slot, words_text(cast));
        if (!producer_next_job(cast, slot, role->max_tickets))
            producer_sleep(cast, slot);
    }
}

void producer_check_rest(struct cast *cast, unsigned slot)
{
    uint64_t free_bytes = mr_producer_free_bytes(cast->producer[slot].handle);

    if (free_bytes != cast->world.arena_bytes)
        fail("at rest producer %u has %llu of %llu bytes free; %s", slot, (unsigned long long)free_bytes,
             (unsigned long long)cast->world.arena_bytes, words_text(cast));
}

void producer_drop_lanes(struct cast *cast, unsigned slot)
{
    for (unsigned l = 0; l < LANES; l++)
        if (!mr_producer_drop_lane(cast->producer[slot].handle, cast->world.lane[l].lane))
            fail("producer %u cannot drop lane %u; %s", slot, l, words_text(cast));
}
