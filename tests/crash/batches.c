/*
 * batches.c - a death at every instruction of shm/ring/batch.c.
 *
 *     test_crash_batches [first]        first: stop at the first failure (for mutants)
 *
 * A short epoch in one block of shared memory: one worker, its lane, torch's queue as a list of messages, and a trainer
 * that keeps some batches. Each function of batch.h is single-stepped where it matters. A worker dies at each
 * instruction (on a copy of the block; at every 16th and wherever a word has changed really, by SIGKILL): the trainer
 * recovers its lane, the next worker makes what the loop has not got. And where the other end may act meanwhile, it
 * does so, at up to 300 of the instructions. At the end the loop must have had every batch once, in order, and whatever it kept must
 * be as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/ring/batch.h"
#include "shm/ring/mutant.h"
#include "tests/crash/stepper.h"

#define BATCHES    7u
#define SLOTS_MAX  4u
#define SLOT_BYTES 4096u
#define BYTES      40u /* of a batch */
#define EXTENT     64u /* what the slots begin with */
#define KEPT_MAX   8u
#define SENT_MAX   64u
#define KILL_EVERY 16u
#define MARKS_MAX  512u
#define PEER_DENSE 300u /* functions up to so long at each instruction; longer ones at every nth */
#define SHOWN_MAX  5u
#define SEGMENT    (4096u + SLOTS_MAX * SLOT_BYTES)

enum who { WORKER, TRAINER, RECOVERY }; /* RECOVERY: the trainer's, after a worker's death */

struct message {
    uint32_t slot, number;
    uint64_t word;
};

/* What the worker knows for itself; here so that it is seen from outside. */
struct worker {
    uint32_t next;   /* the batch to make */
    uint32_t viewed; /* bits: slots that it has a view of */
    uint32_t keeps;  /* 1: it keeps a view of the first batch that it makes */
    uint32_t kept[SLOTS_MAX];
    uint32_t asleep; /* 1: until seq differs from seen */
    uint32_t seen;
};

struct view {
    const unsigned char *at;
    uint64_t held;
    uint32_t slot, number;
};

struct trainer {
    uint32_t got, read; /* batches that the loop has; messages read */
    uint32_t keep;      /* keeps so many views to the end */
    uint32_t copies;
    struct view views[KEPT_MAX];
    uint32_t view_count;
};

/* Everything that outlives a worker. Copied whole. */
struct block {
    _Alignas(4096) unsigned char segment[SEGMENT];
    struct message sent[SENT_MAX];
    _Atomic uint32_t sent_count;
    _Atomic uint32_t phase; /* 1: the stepped function runs, 2: it is done */
    struct worker worker;
    struct trainer trainer;
    const char *wrong;
};

struct scene {
    struct block *block;
    uint32_t slots;
};

struct situation {
    const char *name;
    enum who who;
    void (*build)(struct scene *scene);
    void (*run)(struct scene *scene);
    void (*peer)(struct scene *scene); /* NULL: nobody else would act */
};

static unsigned instructions, kills, peers, failures;
static bool stop_at_first;

static struct mr_batch_arena arena_of(const struct scene *scene)
{
    struct mr_batch_arena arena;

    if (mr_batch_attach(&arena, scene->block->segment, SEGMENT, -1))
        stepper_die("attach");
    return arena;
}

/* In place of the system's memory, which is no matter of ours: --wrap. */
uint64_t __wrap_mr_memory_available_bytes(void);
uint64_t __wrap_mr_memory_available_bytes(void)
{
    return UINT64_MAX;
}

int __wrap_mr_segment_reserve_huge(int fd, void *at, const char *what, uint64_t offset, uint64_t size);
int __wrap_mr_segment_reserve_huge(int fd, void *at, const char *what, uint64_t offset, uint64_t size)
{
    (void)fd, (void)at, (void)what, (void)offset, (void)size;
    return 0;
}

static void wrong(struct scene *scene, const char *what)
{
    if (!scene->block->wrong)
        scene->block->wrong = what;
}

static bool is_batch(const unsigned char *at, uint32_t number)
{
    for (unsigned i = 0; i < BYTES; i++)
        if (at[i] != (unsigned char)(number + 1))
            return false;
    return true;
}

/* ---- worker ---- */

static void worker_fill(struct scene *scene, struct mr_batch_arena *arena, uint32_t slot, uint64_t filling)
{
    struct worker *worker = &scene->block->worker;

    memset(mr_batch_memory(arena, 0, slot), (int)(worker->next + 1), BYTES);
    uint64_t word = mr_batch_publish(arena, 0, slot, filling, BYTES);
    uint32_t count = atomic_load(&scene->block->sent_count);
    scene->block->sent[count] = (struct message){.slot = slot, .number = worker->next, .word = word};
    if (worker->keeps && !worker->viewed) {
        worker->kept[slot] = worker->next + 1;
        worker->viewed = UINT32_C(1) << slot;
    }
    worker->next++;
    atomic_store(&scene->block->sent_count, count + 1);
}

/* One batch, or it goes to sleep. */
static void worker_make(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);
    struct worker *worker = &scene->block->worker;
    uint32_t slot, seen;
    uint64_t filling;

    if (mr_batch_reserve_or_want(&arena, 0, worker->viewed, &slot, &filling, &seen)) {
        worker_fill(scene, &arena, slot, filling);
        return;
    }
    worker->seen = seen;
    worker->asleep = 1;
}

static void worker_withdraw(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);
    uint32_t slot;
    uint64_t filling;

    if (mr_batch_reserve(&arena, 0, scene->block->worker.viewed, &slot, &filling))
        mr_batch_withdraw(&arena, 0, slot, filling); /* its collate failed */
}

static void worker_grow(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);
    uint32_t slot;
    uint64_t filling;

    if (!mr_batch_reserve(&arena, 0, scene->block->worker.viewed, &slot, &filling))
        return;
    if (!mr_batch_grow(&arena, 0, slot, 1000) || mr_batch_extent(&arena, 0, slot) < 1000)
        wrong(scene, "a slot does not grow");
    worker_fill(scene, &arena, slot, filling);
}

static bool worker_step(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);
    struct worker *worker = &scene->block->worker;

    for (uint32_t slot = 0; slot < scene->slots; slot++)
        if (worker->kept[slot] && !is_batch(mr_batch_memory(&arena, 0, slot), worker->kept[slot] - 1))
            wrong(scene, "what the worker kept has changed");
    if (worker->next == BATCHES)
        return false;
    if (worker->asleep && atomic_load(&arena.lane_lines[0].seq) == worker->seen)
        return false;
    worker->asleep = 0;
    worker_make(scene);
    return !worker->asleep;
}

/* ---- trainer ---- */

static void drop_view(struct scene *scene, uint32_t i)
{
    struct mr_batch_arena arena = arena_of(scene);
    struct trainer *trainer = &scene->block->trainer;
    struct view view = trainer->views[i];

    if (!is_batch(mr_batch_memory(&arena, 0, view.slot), view.number))
        wrong(scene, "a view has changed");
    trainer->views[i] = trainer->views[--trainer->view_count];
    if (!MR_MUTANT_IS(MR_MUTANT_BATCH_EARLY_RELEASE))
        mr_batch_release(&arena, 0, view.slot, view.held);
}

static void take(struct scene *scene, const struct message *message)
{
    struct mr_batch_arena arena = arena_of(scene);
    struct trainer *trainer = &scene->block->trainer;
    uint64_t held, length;

    bool many = mr_batch_holds_many(&arena, 0);
    if (!mr_batch_take(&arena, 0, message->slot, message->word, &held, &length))
        return;
    const unsigned char *at = mr_batch_memory(&arena, 0, message->slot);
    if (length != BYTES || !is_batch(at, message->number))
        wrong(scene, "another batch, or a part of one, was taken");
    if (message->number != trainer->got) { /* of an iteration before */
        mr_batch_release(&arena, 0, message->slot, held);
        return;
    }
    trainer->got++;
    if (many) {
        trainer->copies++;
        mr_batch_release(&arena, 0, message->slot, held);
        return;
    }
    trainer->views[trainer->view_count++] = (struct view){at, held, message->slot, message->number};
    if (MR_MUTANT_IS(MR_MUTANT_BATCH_EARLY_RELEASE))
        mr_batch_release(&arena, 0, message->slot, held);
}

static bool read_message(struct scene *scene)
{
    struct trainer *trainer = &scene->block->trainer;

    if (trainer->read == atomic_load(&scene->block->sent_count))
        return false;
    take(scene, &scene->block->sent[trainer->read++]);
    return true;
}

/* The loop goes on to the next batch; the one before ends, unless it is kept. */
static bool trainer_step(struct scene *scene)
{
    struct trainer *trainer = &scene->block->trainer;

    if (trainer->view_count > trainer->keep) {
        drop_view(scene, trainer->view_count - 1);
        return true;
    }
    return read_message(scene);
}

static void recover(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);

    mr_batch_recover(&arena, 0);
}

static void next_worker(struct scene *scene)
{
    recover(scene);
    recover(scene); /* it may be done twice */
    scene->block->worker = (struct worker){.next = scene->block->trainer.got};
}

/* ---- the rest of the epoch, and what must hold at its end ---- */

static const char *judge(struct scene *scene)
{
    struct mr_batch_arena arena = arena_of(scene);
    struct trainer *trainer = &scene->block->trainer;

    if (scene->block->wrong)
        return scene->block->wrong;
    if (trainer->got != BATCHES)
        return "the loop waits for ever";
    for (uint32_t i = 0; i < trainer->view_count; i++)
        if (!is_batch(mr_batch_memory(&arena, 0, trainer->views[i].slot), trainer->views[i].number))
            return "a view that was kept has changed";
    while (trainer->view_count > 0)
        drop_view(scene, trainer->view_count - 1);
    recover(scene); /* the last worker is gone */
    for (uint32_t slot = 0; slot < scene->slots; slot++) {
        struct mr_batch_slot *line = mr_batch_slot_at(&arena, 0, slot);
        if (mr_word_state(atomic_load(&line->word)) != MR_EMPTY)
            return "a slot is still in use";
        if (atomic_load(&line->claim) != atomic_load(&line->extent))
            return "memory is counted that is not there";
    }
    return scene->block->wrong;
}

static const char *drain(struct scene *scene, bool worker_died)
{
    if (worker_died)
        next_worker(scene);
    for (unsigned turns = 0; turns < 200; turns++) {
        bool moved = worker_step(scene);
        moved |= trainer_step(scene);
        if (!moved)
            break;
    }
    return judge(scene);
}

/* ---- situations ---- */

static void build_empty(struct scene *scene)
{
    (void)scene;
}

/* All slots but one hold a batch of the loop. */
static void build_views(struct scene *scene)
{
    scene->block->trainer.keep = KEPT_MAX;
    while (scene->block->trainer.view_count + 1 < scene->slots) {
        worker_step(scene);
        trainer_step(scene);
    }
}

/* ... and the last one too is not free: its message is not read yet. */
static void build_full(struct scene *scene)
{
    build_views(scene);
    worker_step(scene);
}

static void build_sent(struct scene *scene)
{
    worker_step(scene);
}

/* A worker has died with its message in the queue. */
static void build_stale(struct scene *scene)
{
    worker_step(scene);
    next_worker(scene);
}

static void build_worker_keeps(struct scene *scene)
{
    scene->block->worker.keeps = 1;
    worker_step(scene);
    trainer_step(scene);
    scene->block->trainer.keep = 0;
    trainer_step(scene);
}

static void run_read(struct scene *scene)
{
    read_message(scene);
}

static void run_release(struct scene *scene)
{
    if (scene->block->trainer.view_count)
        drop_view(scene, 0);
}

static void peer_read(struct scene *scene)
{
    read_message(scene);
}

static void peer_read_and_release(struct scene *scene)
{
    scene->block->trainer.keep = 1;
    trainer_step(scene);
    trainer_step(scene);
}

static void peer_make(struct scene *scene)
{
    if (!scene->block->worker.asleep)
        worker_step(scene);
}

/* Taken for dead, and replaced, while it runs. */
static void peer_reclaims(struct scene *scene)
{
    if (MR_MUTANT_IS(MR_MUTANT_BATCH_EARLY_RECLAIM)) {
        struct worker worker = scene->block->worker;
        next_worker(scene);
        worker_make(scene);
        scene->block->worker = worker;
    }
}

static const struct situation situations[] = {
    {"worker makes a batch", WORKER, build_empty, worker_make, peer_read},
    {"worker makes a batch, against release", WORKER, build_views, worker_make, peer_read_and_release},
    {"worker waits for a slot, against release", WORKER, build_full, worker_make, peer_read_and_release},
    {"worker makes a batch beside a stale message", WORKER, build_stale, worker_make, peer_read},
    {"worker makes a batch, and kept one", WORKER, build_worker_keeps, worker_make, peer_read},
    {"worker withdraws", WORKER, build_sent, worker_withdraw, peer_read},
    {"worker grows a slot", WORKER, build_sent, worker_grow, peer_read_and_release},
    {"worker makes a batch, taken for dead", WORKER, build_empty, worker_make, peer_reclaims},
    {"trainer takes, against make", TRAINER, build_sent, run_read, peer_make},
    {"trainer takes a stale message, against make", TRAINER, build_stale, run_read, peer_make},
    {"trainer releases, against make", TRAINER, build_views, run_release, peer_make},
    {"trainer releases, against a wait", TRAINER, build_full, run_release, peer_make},
    {"trainer recovers, against release", RECOVERY, build_full, recover, run_release},
};

/* ---- stepping ---- */

static void start_scene(struct scene *scene, const struct situation *situation, uint32_t first_lap)
{
    struct mr_batch_format format = {
        .lanes = 1, .slots = scene->slots, .first_lap = first_lap, .slot_bytes = SLOT_BYTES, .limit_bytes = SEGMENT};

    memset(scene->block, 0, sizeof *scene->block);
    mr_batch_format(scene->block->segment, &format);
    struct mr_batch_arena arena = arena_of(scene);
    for (uint32_t slot = 0; slot < scene->slots; slot++) {
        atomic_store(&mr_batch_slot_at(&arena, 0, slot)->extent, EXTENT);
        atomic_store(&mr_batch_slot_at(&arena, 0, slot)->claim, EXTENT);
    }
    situation->build(scene);
}

static pid_t spawn(struct scene *scene, const struct situation *situation)
{
    /* of one type: run takes a scene */
    return stepper_spawn((void (*)(void *))situation->run, scene, &scene->block->phase);
}

static void failed(const struct situation *situation, uint32_t slots, const char *how, unsigned at, const char *what)
{
    if (failures++ < SHOWN_MAX || stop_at_first)
        printf("  FAILED: %s, W = %u, %s at instruction %u: %s\n", situation->name, slots, how, at, what);
    fflush(stdout);
    if (stop_at_first)
        exit(1);
}

static bool words_changed(const struct scene *scene, uint64_t words[SLOTS_MAX])
{
    struct mr_batch_arena arena = arena_of(scene);
    bool changed = false;

    for (uint32_t slot = 0; slot < scene->slots; slot++) {
        uint64_t now = atomic_load(&mr_batch_slot_at(&arena, 0, slot)->word);
        changed |= now != words[slot];
        words[slot] = now;
    }
    return changed;
}

/* On a copy at each instruction, if a worker is stepped; which ones to kill at is noted. Returns the length. */
static unsigned step_on_copies(const struct situation *situation, struct scene *scene, uint32_t first_lap,
                               unsigned *marks, unsigned *mark_count)
{
    static struct block copy;
    uint64_t words[SLOTS_MAX] = {0};
    unsigned at = 0;

    start_scene(scene, situation, first_lap);
    words_changed(scene, words);
    pid_t child = spawn(scene, situation);
    *mark_count = 0;
    for (; atomic_load(&scene->block->phase) == 1; at++) {
        struct scene other = {.block = &copy, .slots = scene->slots};
        if ((words_changed(scene, words) || at % KILL_EVERY == 0) && *mark_count < MARKS_MAX)
            marks[(*mark_count)++] = at;
        if (situation->who == WORKER) {
            memcpy(&copy, scene->block, sizeof copy);
            const char *what = drain(&other, true);
            if (what)
                failed(situation, scene->slots, "dead", at, what);
        }
        stepper_step(child);
    }
    stepper_end(child, false);
    return at;
}

static void run_situation(const struct situation *situation, struct scene *scene, uint32_t first_lap)
{
    unsigned marks[MARKS_MAX], mark_count;
    unsigned length = step_on_copies(situation, scene, first_lap, marks, &mark_count);

    instructions += length;
    const char *what;
    for (unsigned i = 0; situation->who == WORKER && i < mark_count; i++, kills++) {
        start_scene(scene, situation, first_lap);
        pid_t child = spawn(scene, situation);
        for (unsigned at = 0; at < marks[i]; at++)
            stepper_step(child);
        stepper_end(child, true);
        what = drain(scene, true);
        if (what)
            failed(situation, scene->slots, "killed", marks[i], what);
    }
    for (unsigned stop = 0; situation->peer && stop < length; stop += 1 + length / PEER_DENSE, peers++) {
        start_scene(scene, situation, first_lap);
        pid_t child = spawn(scene, situation);
        for (unsigned at = 0; at < stop; at++)
            stepper_step(child);
        situation->peer(scene);
        stepper_end(child, false);
        what = drain(scene, situation->who == RECOVERY);
        if (what)
            failed(situation, scene->slots, "the other end acted", stop, what);
    }
}

int main(int argc, char **argv)
{
    struct scene scene = {0};

    stop_at_first = argc > 1 && strcmp(argv[1], "first") == 0;
    scene.block = mmap(NULL, sizeof *scene.block, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (scene.block == MAP_FAILED)
        stepper_die("mmap");
    printf("%-46s %12s %8s %8s %8s\n", "function", "instructions", "kills", "peers", "failures");
    for (size_t i = 0; i < sizeof situations / sizeof situations[0]; i++) {
        unsigned before[] = {instructions, kills, peers, failures};
        for (scene.slots = 2; scene.slots <= SLOTS_MAX; scene.slots *= 2)
            run_situation(&situations[i], &scene, scene.slots == 2 ? UINT32_MAX : 0);
        printf("%-46s %12u %8u %8u %8u\n", situations[i].name, instructions - before[0], kills - before[1],
               peers - before[2], failures - before[3]);
    }
    printf("%u instructions, %u kills, %u interleavings, %u failures\n", instructions, kills, peers, failures);
    return failures > 0;
}
