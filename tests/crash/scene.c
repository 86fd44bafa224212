/* scene.c - see scene.h. */
#include "tests/crash/scene.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/memory/segment.h"

/* Linked with --wrap: the block belongs to the scene, and the stepped child of the process that made a handle may use
 * it (it is the only one that does). */
void __wrap_mr_segment_unmap(void *at, uint64_t size);
void __wrap_mr_segment_unmap(void *at, uint64_t size)
{
    (void)at;
    (void)size;
}
bool __wrap_mr_fork_mark_is(uint64_t mark);
bool __wrap_mr_fork_mark_is(uint64_t mark)
{
    return mark != 0;
}

void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fputs("harness: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static void *map_shared(size_t size)
{
    int fd = memfd_create("scene", MFD_CLOEXEC);
    void *at = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        die("no shared memory");
    close(fd);
    return at;
}

/* ---- layout of the block: lines, lanes, arenas ---- */

struct mr_producer_line *line_at(void *block, unsigned producer)
{
    return (struct mr_producer_line *)((unsigned char *)block + (size_t)producer * 64);
}

static void *lane_at(const struct scene *scene, void *block, unsigned lane)
{
    return (unsigned char *)block + 64 * PRODUCERS + lane * mr_lane_size(scene->window);
}

static size_t arenas_offset(uint32_t window)
{
    return (64 * PRODUCERS + LANES * mr_lane_size(window) + MR_ARENA_PAGE - 1) / MR_ARENA_PAGE * MR_ARENA_PAGE;
}

unsigned char *arena_of(const struct scene *scene, void *block, unsigned producer)
{
    return (unsigned char *)block + arenas_offset(scene->window) + producer * scene->arena_bytes;
}

size_t scene_bytes(const struct scene *scene)
{
    return arenas_offset(scene->window) + PRODUCERS * scene->arena_bytes;
}

void attach_lanes(const struct scene *scene, void *block, struct mr_lane lanes[LANES])
{
    for (unsigned i = 0; i < LANES; i++)
        if (mr_lane_attach(&lanes[i], lane_at(scene, block, i), mr_lane_size(scene->window)))
            die("%s", mr_error_text());
}

/* ---- objects ---- */

uint64_t object_bytes(uint64_t object)
{
    return MR_ARENA_PAGE + 1 + mr_mix64(object) % (LARGEST - MR_ARENA_PAGE); /* each takes two pages */
}

static int size_fn(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    (void)arg;
    *bytes = object_bytes(request->object);
    return 0;
}

static void fill_bytes(unsigned char *at, uint64_t object, uint64_t bytes)
{
    memset(at, (int)(1 + object % 251), bytes);
    memcpy(at, &object, bytes < 8 ? bytes : 8);
}

bool bytes_match(const void *at, uint64_t object, uint64_t bytes)
{
    unsigned char right[LARGEST];

    fill_bytes(right, object, bytes);
    return memcmp(at, right, bytes) == 0;
}

void fill_claim(void *block, const struct scene *scene, const struct claim *claim)
{
    fill_bytes(arena_of(scene, block, claim->producer) + claim->offset, claim->object, claim->bytes);
}

/* ---- making a scene ---- */

struct mr_producer *new_producer(const struct scene *scene, void *block, unsigned slot)
{
    struct mr_producer_options options = {.slot = slot,
                                          .board = scene->board,
                                          .line = line_at(block, slot),
                                          .arena = arena_of(scene, block, slot),
                                          .arena_bytes = scene->arena_bytes,
                                          .reserve_bytes = RESERVE,
                                          .size = size_fn};

    options.arena_bytes -= block == scene->block ? SPARE : 0; /* the real ones leave it alone */
    struct mr_producer *producer = mr_producer_new(&options);
    if (!producer)
        die("%s", mr_error_text());
    return producer;
}

void scene_init(struct scene *scene, uint32_t window, unsigned arena_pages)
{

    memset(scene, 0, sizeof *scene);
    scene->window = window;
    scene->arena_bytes = RESERVE + (uint64_t)arena_pages * MR_ARENA_PAGE + SPARE;
    scene->block_bytes = scene_bytes(scene);
    scene->block = map_shared(scene->block_bytes);
    scene->board = map_shared(sizeof *scene->board);
    mr_board_format(scene->board, 1, "scene");
    atomic_store(&scene->board->producers, PRODUCERS);
    for (unsigned i = 0; i < LANES; i++)
        mr_lane_format(lane_at(scene, scene->block, i), window, i, 10 + i, 0, UINT64_C(1) << 30, 0, 0);
    attach_lanes(scene, scene->block, scene->lanes);
    struct mr_producer_view view[PRODUCERS];
    for (unsigned i = 0; i < PRODUCERS; i++) {
        atomic_store(&scene->board->producer[i].alive, 1);
        scene->eventfd[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        scene->producers[i] = new_producer(scene, scene->block, i);
        for (unsigned k = 0; k < LANES; k++)
            if (mr_producer_add_lane(scene->producers[i], &scene->lanes[k]))
                die("%s", mr_error_text());
        view[i] = (struct mr_producer_view){arena_of(scene, scene->block, i), scene->arena_bytes,
                                            line_at(scene->block, i), scene->eventfd[i]};
    }
    struct mr_views *views = mr_views_new(scene->board, 0, PRODUCERS, view);
    for (unsigned i = 0; i < LANES; i++)
        scene->consumers[i] = mr_consumer_new(&scene->lanes[i], views);
}

void scene_close(struct scene *scene)
{
    for (unsigned i = 0; i < PRODUCERS; i++) {
        mr_producer_destroy(scene->producers[i]);
        close(scene->eventfd[i]);
    }
    munmap(scene->block, scene->block_bytes); /* the consumers' private memory stays: they would still close lanes */
    munmap(scene->board, sizeof *scene->board);
}

void scene_feed(struct scene *scene, unsigned lane, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t object = (uint64_t)lane << 32 | scene->fed[lane]++;
        struct mr_sample sample = {.request.object = object, .bytes = object_bytes(object), .cookie = object};
        if (mr_consumer_feed(scene->consumers[lane], &sample, 1))
            die("%s", mr_error_text());
    }
    scene->record.posted[lane] = scene->fed[lane];
    if (mr_consumer_backlog(scene->consumers[lane]) > scene->window)
        die("a scene has fed more than it can post");
}

void add_claims(struct scene *scene, unsigned producer, const struct mr_job *job)
{
    for (unsigned i = 0; i < job->count; i++) {
        const struct mr_claim *from = &job->claims[i];
        unsigned lane = (unsigned)(from->request.object >> 32);
        if (scene->record.claim_count == RECORDS_MAX || lane >= LANES)
            die("a claim of lane %u too many", lane);
        scene->record.claims[scene->record.claim_count++] = (struct claim){
            producer,    lane,         from->slot, from->filling, from->request.object, from->extent_offset,
            from->bytes, from->reserve};
    }
}

static struct mr_claim handles[RECORDS_MAX]; /* of record.claims that scene_claim made */

unsigned scene_claim(struct scene *scene, unsigned producer, unsigned count)
{
    struct mr_job job;
    unsigned first = scene->record.claim_count;

    if (!mr_producer_next_job(scene->producers[producer], count, UINT64_MAX, 0, &job))
        die("a scene has nothing to claim");
    add_claims(scene, producer, &job);
    for (unsigned i = 0; i < job.count; i++)
        handles[first + i] = job.claims[i];
    return first;
}

void remove_claim(struct record *record, unsigned claim)
{
    record->claim_count--;
    for (unsigned i = claim; i < record->claim_count; i++)
        record->claims[i] = record->claims[i + 1];
}

static void forget_handle(struct scene *scene, unsigned claim)
{
    remove_claim(&scene->record, claim);
    for (unsigned i = claim; i < scene->record.claim_count; i++)
        handles[i] = handles[i + 1];
}

void scene_publish(struct scene *scene, unsigned claim)
{
    struct claim *c = &scene->record.claims[claim];

    fill_claim(scene->block, scene, c);
    mr_producer_publish(scene->producers[c->producer], &handles[claim], c->bytes, c->object, (uint32_t)c->object, 0);
    forget_handle(scene, claim);
}

void scene_fail(struct scene *scene, unsigned claim)
{
    struct claim *c = &scene->record.claims[claim];

    mr_producer_fail(scene->producers[c->producer], &handles[claim], MR_E_NOT_FOUND, "made to fail");
    forget_handle(scene, claim);
}

struct mr_claim *scene_handle(unsigned claim)
{
    return &handles[claim];
}

void scene_take(struct scene *scene, unsigned lane)
{
    struct mr_delivery got;
    enum mr_next next = mr_consumer_next(scene->consumers[lane], 0, &got);

    if (next != MR_NEXT_OK && next != MR_NEXT_FAILED)
        die("a scene has nothing to take");
    if (got.sample.cookie != ((uint64_t)lane << 32 | scene->record.delivered[lane]))
        die("a scene has taken another sample than was next");
    scene->record.delivered[lane]++;
    scene->record.number[lane] = mr_lane_number(&scene->lanes[lane], got.slot, mr_word_lap(got.word)) + 1;
    if (next == MR_NEXT_OK && !got.copied)
        scene->record.views[scene->record.view_count++] =
            (struct view){lane, got.slot, got.word, got.sample.request.object};
    else if (next == MR_NEXT_OK)
        free((void *)got.data);
}

void scene_release(struct scene *scene, unsigned view)
{
    struct view *v = &scene->record.views[view];

    mr_lease_release(scene->consumers[v->lane], v->slot, v->word, object_bytes(v->object));
    scene->record.view_count--;
    *v = scene->record.views[scene->record.view_count];
}

void peer_close(struct scene *scene, unsigned lane)
{
    scene->record.closed[lane] = true;
    mr_lane_close(&scene->lanes[lane], false);
}

void publish_claim(const struct scene *scene, void *block, struct mr_lane *lanes, const struct claim *c)
{
    struct mr_descriptor desc = {.extent_offset = c->offset,
                                 .extent_length = c->bytes,
                                 .length = c->bytes,
                                 .generation = c->object,
                                 .crc32c = (uint32_t)c->object,
                                 .arena = c->producer,
                                 .flags = c->reserve ? MR_DESC_RESERVE : 0};

    fill_claim(block, scene, c);
    mr_lane_describe(&lanes[c->lane], c->slot, &desc);
    uint64_t ready;
    mr_lane_publish(&lanes[c->lane], c->slot, c->filling, &ready);
}

void peer_publish(struct scene *scene, unsigned claim)
{
    publish_claim(scene, scene->block, scene->lanes, &scene->record.claims[claim]);
    mr_wake_consumer(&scene->lanes[scene->record.claims[claim].lane]);
    remove_claim(&scene->record, claim);
}

/* ---- checks ---- */

static char problem[300];

#define PROBLEM(...) (snprintf(problem, sizeof problem, __VA_ARGS__), problem)

struct extent {
    unsigned arena;
    uint64_t from, to;
};

/* Invariants 1 (legal words), 2 (READY is right), 3 (no byte in two extents), and that FAILED has none. */
const char *check_words(const struct scene *scene, void *block)
{
    struct mr_lane lanes[LANES];
    unsigned count = 0;

    attach_lanes(scene, block, lanes);
    struct extent extents[LANES * 64];
    for (unsigned i = 0; i < LANES; i++) {
        for (uint32_t slot = 0; slot < scene->window; slot++) {
            uint64_t word = mr_lane_load(&lanes[i], slot), object;
            const struct mr_descriptor *desc = &lanes[i].tickets[slot].desc;
            enum mr_state state = mr_word_state(word);
            unsigned owner = mr_word_owner(word);
            if (state >= MR_STATE_COUNT || ((state == MR_EMPTY || state == MR_PENDING) && owner) ||
                ((state == MR_FILLING || state == MR_READY) && owner >= PRODUCERS) ||
                ((state == MR_HELD || state == MR_RELEASED) && owner != 10 + i))
                return PROBLEM("lane %u slot %u: the word %016llx is not legal", i, slot, (unsigned long long)word);
            if (state == MR_FAILED && owner < PRODUCERS && desc->extent_length)
                return PROBLEM("lane %u slot %u: FAILED names an extent", i, slot);
            if ((state != MR_READY && state != MR_HELD) || mr_word_attempt(word) == MR_ATTEMPT_POISON ||
                desc->extent_length == 0)
                continue;
            object = atomic_load(&lanes[i].tickets[slot].request.object);
            struct extent extent =
                (struct extent){desc->arena, desc->extent_offset, desc->extent_offset + desc->extent_length};
            if (desc->arena >= PRODUCERS || extent.to > scene->arena_bytes || desc->length != object_bytes(object) ||
                desc->generation != object ||
                !bytes_match(arena_of(scene, block, desc->arena) + extent.from, object, desc->length))
                return PROBLEM("lane %u slot %u: the bytes are not object %llx", i, slot, (unsigned long long)object);
            for (unsigned k = 0; k < count; k++)
                if (extents[k].arena == extent.arena && extents[k].from < extent.to && extent.from < extents[k].to)
                    return PROBLEM("lane %u slot %u: its extent is another ticket's too", i, slot);
            extents[count++] = extent;
        }
    }
    return NULL;
}

const char *check_step(const struct scene *scene, void *block, unsigned lane, uint64_t before, uint64_t after)
{
    struct mr_lane lanes[LANES];
    enum mr_state a = mr_word_state(before), b = mr_word_state(after);
    bool same_lap = mr_word_lap(before) == mr_word_lap(after),
         same_owner = mr_word_owner(before) == mr_word_owner(after);
    bool same_attempt = mr_word_attempt(before) == mr_word_attempt(after), closed, ok = false;
    unsigned consumer = 10 + lane;

    attach_lanes(scene, block, lanes);
    closed = mr_lane_is_closed(&lanes[lane]);
    if (b == MR_EMPTY)
        ok = closed && same_lap;
    else if (a == MR_EMPTY || a == MR_RELEASED)
        ok = b == MR_PENDING && !closed && mr_word_attempt(after) == 0;
    else if (a == MR_PENDING)
        ok = same_lap &&
             ((b == MR_FILLING && same_attempt) || (b == MR_FAILED && mr_word_owner(after) == MR_OWNER_SUPERVISOR));
    else if (a == MR_FILLING)
        ok = same_lap && ((b == MR_PENDING && mr_word_attempt(after) <= mr_word_attempt(before) + 1) ||
                          ((b == MR_READY || b == MR_FAILED) && same_owner && same_attempt));
    else if (a == MR_READY || a == MR_FAILED)
        ok = same_lap && same_attempt &&
             ((b == MR_HELD && mr_word_owner(after) == consumer) || (a == MR_READY && b == MR_PENDING));
    else if (a == MR_HELD)
        ok = same_lap && b == MR_RELEASED && same_owner;
    if (!ok)
        return PROBLEM("lane %u: a word went from %016llx to %016llx", lane, (unsigned long long)before,
                       (unsigned long long)after);
    if (a == MR_READY && b == MR_PENDING)
        for (uint32_t slot = 0; slot < scene->window; slot++)
            if (mr_lane_load(&lanes[lane], slot) == after &&
                atomic_load(&lanes[lane].shared->want) == mr_lane_number(&lanes[lane], slot, mr_word_lap(after)) + 1)
                return PROBLEM("lane %u: a ticket was taken back from under the consumer that asks for it", lane);
    return NULL;
}

/* ---- draining ---- */

struct drain {
    const struct scene *scene;
    void *block;
    struct record record;
    struct mr_lane lanes[LANES];
    struct mr_producer *producers[PRODUCERS];
};

/* The supervisor's part, twice: the second time must change nothing (invariant 8). */
static const char *recover_producer(struct drain *d, unsigned producer)
{
    uint64_t words[LANES][64] = {{0}};

    for (unsigned i = 0; i < LANES; i++) {
        uint32_t seq = mr_wake_seq(&d->lanes[i]);
        mr_lane_recover(&d->lanes[i], producer);
        for (uint32_t slot = 0; slot < d->scene->window; slot++)
            words[i][slot] = mr_lane_load(&d->lanes[i], slot);
        if (mr_lane_recover(&d->lanes[i], producer))
            return PROBLEM("lane %u: a second recovery found something", i);
        for (uint32_t slot = 0; slot < d->scene->window; slot++)
            if (mr_lane_load(&d->lanes[i], slot) != words[i][slot])
                return PROBLEM("lane %u: a second recovery changed slot %u", i, slot);
        if (!MR_MUTANT_IS(MR_MUTANT_NO_RECOVERY_WAKE))
            mr_wake_consumer_always(&d->lanes[i]);
        if (atomic_load(&d->lanes[i].shared->want) && mr_wake_seq(&d->lanes[i]) == seq)
            return PROBLEM("lane %u: its consumer sleeps on after a death", i); /* invariant 9 */
    }
    for (unsigned i = d->record.claim_count; i-- > 0;)
        if (d->record.claims[i].producer == producer)
            remove_claim(&d->record, i);
    return NULL;
}

static void close_for_dead(struct drain *d, unsigned lane)
{
    mr_lane_close(&d->lanes[lane], true);
    d->record.closed[lane] = true;
    for (unsigned i = d->record.view_count; i-- > 0;)
        if (d->record.views[i].lane == lane)
            d->record.views[i] = d->record.views[--d->record.view_count];
}

static bool serve(struct drain *d, unsigned producer)
{
    struct mr_job job;
    bool any = false;

    while (mr_producer_next_job(d->producers[producer], 3, UINT64_MAX, 0, &job)) {
        any = true;
        for (unsigned i = job.count; i-- > 0;) {
            struct mr_claim *claim = &job.claims[i];
            uint64_t object = claim->request.object;
            fill_bytes(claim->dest, object, claim->bytes);
            mr_producer_publish(d->producers[producer], claim, claim->bytes, object, (uint32_t)object, 0);
        }
    }
    return any;
}

/* Takes what is there, in order: each must be the next sample (invariants 5 and 6). */
static const char *consume(struct drain *d, unsigned lane, bool *any)
{
    struct mr_lane *l = &d->lanes[lane];

    for (uint32_t i = 0; i < l->window && d->record.delivered[lane] < d->record.posted[lane]; i++) {
        uint64_t number = d->record.number[lane];
        uint64_t seen = mr_lane_load(l, mr_lane_slot(l, number));
        uint64_t object = (uint64_t)lane << 32 | d->record.delivered[lane];
        if (mr_word_lap(seen) != mr_lane_lap(l, number) && mr_word_state(seen) == MR_HELD) {
            d->record.number[lane]++; /* skipped: a view is kept there */
            continue;
        }
        uint64_t word;
        struct mr_descriptor desc;
        bool failed;
        if (!mr_lane_take(l, number, &word, &desc, &failed))
            return NULL;
        if (atomic_load(&l->tickets[mr_lane_slot(l, number)].request.object) != object)
            return PROBLEM("lane %u: number %llu is not the sample that was next", lane, (unsigned long long)number);
        if (!failed &&
            (desc.generation != object || desc.arena >= PRODUCERS ||
             !bytes_match(arena_of(d->scene, d->block, desc.arena) + desc.extent_offset, object, desc.length)))
            return PROBLEM("lane %u: number %llu has wrong bytes", lane, (unsigned long long)number);
        if (!mr_lane_release(l, mr_lane_slot(l, number), word))
            return PROBLEM("lane %u: number %llu could not be released", lane, (unsigned long long)number);
        atomic_store(&l->shared->want, 0);
        d->record.delivered[lane]++;
        d->record.number[lane]++;
        *any = true;
    }
    return NULL;
}

static const char *deliver_all(struct drain *d)
{
    for (;;) {
        bool any = false, left = false;
        for (unsigned i = 0; i < PRODUCERS; i++)
            any |= serve(d, i);
        const char *wrong = check_words(d->scene, d->block);
        for (unsigned i = 0; i < LANES && !wrong; i++) {
            if (d->record.closed[i])
                continue;
            wrong = consume(d, i, &any);
            left |= d->record.delivered[i] < d->record.posted[i];
        }
        if (wrong || !left)
            return wrong;
        if (!any)
            return PROBLEM("samples are left that nobody delivers (lane 0: %llu of %llu, lane 1: %llu of %llu)",
                           (unsigned long long)d->record.delivered[0], (unsigned long long)d->record.posted[0],
                           (unsigned long long)d->record.delivered[1], (unsigned long long)d->record.posted[1]);
    }
}

/* Views end, lanes close: every word EMPTY, every byte free (invariants 4, 7, 16). */
static const char *come_to_rest(struct drain *d)
{
    for (unsigned i = 0; i < d->record.view_count; i++) {
        const struct view *view = &d->record.views[i];
        const struct mr_descriptor *desc = &d->lanes[view->lane].tickets[view->slot].desc;
        if (mr_lane_load(&d->lanes[view->lane], view->slot) != view->word ||
            !bytes_match(arena_of(d->scene, d->block, desc->arena) + desc->extent_offset, view->object,
                         object_bytes(view->object)))
            return PROBLEM("lane %u slot %u: the view of object %llx changed", view->lane, view->slot,
                           (unsigned long long)view->object);
        mr_lane_release(&d->lanes[view->lane], view->slot, view->word);
    }
    for (unsigned i = 0; i < LANES; i++)
        if (!d->record.closed[i])
            mr_lane_close(&d->lanes[i], false);
    for (unsigned i = 0; i < LANES; i++)
        if (!mr_lane_is_drained(&d->lanes[i]))
            return PROBLEM("lane %u is closed and does not drain", i);
    for (unsigned i = 0; i < PRODUCERS; i++) {
        uint64_t left = mr_producer_free_bytes(d->producers[i]);
        if (left != d->scene->arena_bytes)
            return PROBLEM("producer %u: %llu of %llu bytes are free at rest", i, (unsigned long long)left,
                           (unsigned long long)d->scene->arena_bytes);
    }
    return NULL;
}

const char *drain(const struct scene *scene, const struct record *record, void *block, struct dead dead)
{
    struct drain d = {.scene = scene, .block = block, .record = *record};
    const char *wrong = check_words(scene, block);

    attach_lanes(scene, block, d.lanes);
    if (wrong)
        return wrong;
    if (dead.owner != NOBODY)
        close_for_dead(&d, dead.owner);
    if (dead.producer != NOBODY)
        wrong = recover_producer(&d, dead.producer);
    for (unsigned i = 0; i < d.record.claim_count && !wrong; i++) {
        publish_claim(scene, block, d.lanes, &d.record.claims[i]);
        wrong = check_words(scene, block);
    }
    if (wrong)
        return wrong;
    /* Everybody starts anew: what is in use comes from the words alone. */
    for (unsigned i = 0; i < PRODUCERS; i++) {
        d.producers[i] = new_producer(scene, block, i);
        for (unsigned k = 0; k < LANES; k++)
            if (mr_producer_add_lane(d.producers[i], &d.lanes[k]))
                die("%s", mr_error_text());
    }
    wrong = deliver_all(&d);
    if (!wrong)
        wrong = come_to_rest(&d);
    for (unsigned i = 0; i < PRODUCERS; i++)
        mr_producer_destroy(d.producers[i]);
    return wrong;
}
