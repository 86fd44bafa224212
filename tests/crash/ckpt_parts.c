/*
 * ckpt_parts.c - a death at every instruction of shm/ring/ckpt_part.c.
 *
 *     test_crash_ckpt_parts [first]        first: stop at the first failure (for mutants)
 *
 * A small save in one block of shared memory, with the store in it too. Each function of ckpt_part.h is single-stepped
 * (ptrace, x86-64) in situations where it matters. At each instruction the block is copied, the stepped process is
 * taken for dead, the supervisor recovers (twice: it may die in between) and the real survivors finish the save in the
 * copy; then the promise is checked. At every 64th, and wherever a word has changed, the child is really killed and the
 * same is done in the block itself. And where a peer may act meanwhile, it does so at each instruction, and
 * the child goes on to its end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/ring/ckpt_part.h"
#include "tests/crash/stepper.h"

#define PART_BYTES 8u
#define PARTS      5u
#define SLOTS_MAX  4u
#define LAST_BYTES 3u
#define KILL_EVERY 64u
#define PEER_DENSE 100u /* functions up to so long at each instruction; longer ones at every nth */
#define SHOWN_MAX  5u

enum who { NOBODY, TRAINER, WORKER, SUPERVISOR };

/* Everything that outlives a process: lane, arena, store. Copied whole. */
struct block {
    unsigned char arena[SLOTS_MAX * PART_BYTES];
    /* the store: what was uploaded; an object appears once */
    _Atomic uint32_t sent[PARTS];
    uint32_t sent_crc[PARTS];
    _Atomic uint32_t completes; /* the object is there from the first on */
    _Atomic uint32_t upload_gone;
    _Atomic uint32_t promised; /* seal returned SEALED */
    _Atomic uint32_t served;   /* a living worker has the lane */
    _Atomic uint32_t alone;    /* the supervisor is dead: nothing is handed out or recovered any more */
    _Atomic uint32_t phase;    /* 1: the stepped function runs, 2: it is done */
    _Alignas(
        64) unsigned char lane[sizeof(struct mr_ckpt_part_shared) + SLOTS_MAX * sizeof(struct mr_ckpt_part_ticket) +
                               (size_t)MR_CKPT_PARTS_MAX * sizeof(struct mr_ckpt_part_record)];
};

/* What is used of it: no part beyond PARTS has a record. */
static size_t used_bytes(uint32_t slots)
{
    return offsetof(struct block, lane) + mr_ckpt_part_size(slots) -
           (MR_CKPT_PARTS_MAX - PARTS) * sizeof(struct mr_ckpt_part_record);
}

/* What the trainer knows for itself. */
struct trainer {
    unsigned next;    /* part to fill */
    uint64_t filling; /* 0, or the word of that part, which is being filled */
    bool ended;
};

struct scene {
    struct block *block;
    uint32_t slots;
    struct trainer trainer;
};

struct situation {
    const char *name;
    enum who who; /* whose function is stepped, and dies */
    void (*build)(struct scene *scene);
    void (*run)(struct scene *scene); /* stepped; what the trainer learns is set by `after` */
    void (*after)(struct scene *scene);
    void (*peer)(struct scene *scene); /* NULL: nobody else would act */
};

static unsigned instructions, kills, peers, failures;
static bool stop_at_first;

static struct mr_ckpt_lane lane_of(const struct scene *scene)
{
    struct mr_ckpt_lane lane;

    if (mr_ckpt_part_attach(&lane, scene->block->lane, sizeof scene->block->lane, sizeof scene->block->arena))
        stepper_die("attach");
    return lane;
}

static uint32_t sum_of(const unsigned char *at, uint64_t length)
{
    uint32_t sum = 1;

    for (uint64_t i = 0; i < length; i++)
        sum = sum * 31 + at[i];
    return sum;
}

static uint64_t length_of(unsigned part)
{
    return part + 1 < PARTS ? PART_BYTES : LAST_BYTES;
}

static uint32_t expected_sum(unsigned part)
{
    unsigned char bytes[PART_BYTES];

    memset(bytes, (int)(part + 1), sizeof bytes);
    return sum_of(bytes, length_of(part));
}

/* ---- what the roles do, by the real functions ---- */

/* One part; false: it cannot now. */
static bool trainer_part(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);
    unsigned part = scene->trainer.next;
    uint64_t filling = scene->trainer.filling;

    if (!filling && !mr_ckpt_part_fill(&lane, part, &filling))
        return false;
    memset(scene->block->arena + mr_ckpt_part_offset(&lane, mr_ckpt_part_slot(&lane, part)), (int)(part + 1),
           length_of(part));
    mr_ckpt_part_publish(&lane, part, filling, length_of(part));
    return true;
}

static void trainer_seal(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (mr_ckpt_part_seal(&lane, PARTS, (PARTS - 1) * PART_BYTES + LAST_BYTES) == MR_FATE_SEALED)
        atomic_store(&scene->block->promised, 1);
}

static void worker_adopt(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    mr_ckpt_part_adopt(&lane);
    atomic_store(&scene->block->served, 1);
}

static void abort_lane(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    mr_ckpt_part_abort(&lane);
}

/* Takes one part and uploads it; false: there is none. */
static bool worker_part(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);
    struct mr_ckpt_part_record record = {0};
    uint64_t number, held, length;

    if (!mr_ckpt_part_take(&lane, &number, &held, &length))
        return false;
    record.length = length;
    record.crc32c = sum_of(scene->block->arena + mr_ckpt_part_offset(&lane, mr_ckpt_part_slot(&lane, number)), length);
    snprintf(record.etag, sizeof record.etag, "etag-%u", (unsigned)number);
    if (number < PARTS) {
        scene->block->sent_crc[number] = record.crc32c;
        atomic_store(&scene->block->sent[number], 1);
    }
    mr_ckpt_part_done(&lane, number, held, &record);
    return true;
}

static void worker_complete(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (!mr_ckpt_part_complete_sent(&lane) ||
        !atomic_load(&scene->block->completes)) { /* else: looked up, it is ours */
        mr_ckpt_part_set_complete_sent(&lane);
        atomic_fetch_add(&scene->block->completes, 1);
    }
    mr_ckpt_part_finish(&lane, MR_CKPT_PART_DONE, 0, "", 7, 9);
}

static void worker_give_up(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    mr_ckpt_part_sweep(&lane);
    atomic_store(&scene->block->upload_gone, 1);
    mr_ckpt_part_finish(&lane, MR_CKPT_PART_GONE, 0, "aborted", 0, 0);
}

static void recover_worker(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    mr_ckpt_part_recover_worker(&lane);
}

static void worker_gone(struct scene *scene)
{
    recover_worker(scene);
    atomic_store(&scene->block->served, 0);
}

static void recover_trainer(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    mr_ckpt_part_recover_trainer(&lane);
}

/* ---- the rest of the save, and what must hold at its end ---- */

static bool decided(const struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);
    uint64_t generation;
    uint32_t code, crc;
    char text[MR_CKPT_PART_TEXT];

    return mr_ckpt_part_result(&lane, &code, text, &generation, &crc) != MR_CKPT_PART_UNDECIDED;
}

/* One thing that the worker can do. */
static bool worker_step(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (decided(scene))
        return false;
    if (!atomic_load(&scene->block->served)) {
        if (atomic_load(&scene->block->alone))
            return false;
        worker_adopt(scene);
        return true;
    }
    if (atomic_load(&scene->block->alone) && mr_ckpt_part_fate(&lane) == MR_FATE_OPEN)
        abort_lane(scene);
    if (mr_ckpt_part_fate(&lane) == MR_FATE_ABORTED) {
        worker_give_up(scene);
        return true;
    }
    if (worker_part(scene))
        return true;
    uint32_t parts;
    uint64_t bytes;
    if (mr_ckpt_part_fate(&lane) != MR_FATE_SEALED || mr_ckpt_part_totals(&lane, &parts, &bytes))
        return false;
    worker_complete(scene);
    return true;
}

static bool trainer_step(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (scene->trainer.ended)
        return false;
    if (scene->trainer.next == PARTS) {
        trainer_seal(scene);
        if (mr_ckpt_part_fate(&lane) == MR_FATE_OPEN && !atomic_load(&scene->block->alone))
            return false; /* no worker yet */
        if (mr_ckpt_part_fate(&lane) == MR_FATE_OPEN)
            abort_lane(scene);
        scene->trainer.ended = true;
        return true;
    }
    if (mr_ckpt_part_fate(&lane) == MR_FATE_ABORTED && !scene->trainer.filling) {
        scene->trainer.ended = true;
        return true;
    }
    if (!trainer_part(scene))
        return false;
    scene->trainer.filling = 0;
    scene->trainer.next++;
    return true;
}

static const char *judge(const struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);
    enum mr_fate fate = mr_ckpt_part_fate(&lane);
    struct block *block = scene->block;

    if (!decided(scene) && (atomic_load(&block->promised) || atomic_load(&block->served) || fate != MR_FATE_ABORTED))
        return "the save never ends";
    if (!mr_ckpt_part_is_at_rest(&lane))
        return "a slot is still in use";
    if (atomic_load(&block->promised) && !atomic_load(&block->completes))
        return "a promised object is not there";
    if (atomic_load(&block->completes) && fate != MR_FATE_SEALED)
        return "an object that was not sealed is there";
    if (atomic_load(&block->completes) && atomic_load(&block->upload_gone))
        return "a completed upload was aborted";
    if (atomic_load(&block->completes) > 1)
        return "completed twice";
    for (unsigned part = 0; atomic_load(&block->completes) && part < PARTS; part++) {
        struct mr_ckpt_part_record record;
        if (!atomic_load(&block->sent[part]) || !mr_ckpt_part_record_get(&lane, part, &record))
            return "completed without a part's record";
        if (record.crc32c != expected_sum(part) || block->sent_crc[part] != record.crc32c)
            return "a part has another part's bytes";
        if (record.length != length_of(part))
            return "a part has the wrong length";
    }
    return NULL;
}

/* The supervisor does its part for who died, and the others go on. */
static const char *drain(struct scene *scene, enum who dead)
{
    for (unsigned twice = 0; twice < 2; twice++) {
        if (dead == WORKER)
            worker_gone(scene);
        if (dead == TRAINER)
            recover_trainer(scene);
    }
    if (dead == TRAINER)
        scene->trainer.ended = true;
    for (unsigned turns = 0; turns < 100; turns++) {
        bool moved = trainer_step(scene);
        moved |= worker_step(scene);
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

static void build_full(struct scene *scene)
{
    while (trainer_step(scene) && scene->trainer.next < scene->slots) {
    }
}

/* For the next part. */
static void make_room(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    while (mr_word_state(mr_ckpt_part_load(&lane, mr_ckpt_part_slot(&lane, scene->trainer.next))) == MR_READY)
        worker_part(scene);
}

static void build_all_but_the_last(struct scene *scene)
{
    while (scene->trainer.next < PARTS - 1)
        if (!trainer_step(scene))
            worker_part(scene);
    make_room(scene);
}

static void build_all(struct scene *scene)
{
    while (scene->trainer.next < PARTS)
        if (!trainer_step(scene))
            worker_part(scene);
}

/* ... and no worker has the lane: the one that took the parts has died. */
static void build_unadopted(struct scene *scene)
{
    build_all(scene);
    worker_gone(scene);
}

static void build_sealed(struct scene *scene)
{
    build_all(scene);
    trainer_step(scene);
}

static void build_all_sent(struct scene *scene)
{
    build_sealed(scene);
    while (worker_part(scene)) {
    }
}

static void build_aborted(struct scene *scene)
{
    build_full(scene);
    abort_lane(scene);
}

static void build_held(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    build_full(scene);
    uint64_t number, held, length;
    while (mr_ckpt_part_take(&lane, &number, &held, &length)) {
    }
}

static void build_filling(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    trainer_step(scene);
    mr_ckpt_part_fill(&lane, scene->trainer.next, &scene->trainer.filling);
}

static void run_part(struct scene *scene)
{
    trainer_part(scene);
}

static void run_serve(struct scene *scene)
{
    worker_part(scene);
}

static void run_put_back(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);
    uint64_t number, held, length;

    if (mr_ckpt_part_take(&lane, &number, &held, &length))
        mr_ckpt_part_put_back(&lane, number, held);
}

static void run_abort(struct scene *scene)
{
    abort_lane(scene);
}

static void after_part(struct scene *scene)
{
    scene->trainer.next++; /* it was published, or the lane is aborted */
}

static void after_end(struct scene *scene)
{
    scene->trainer.ended = true;
}

static void peer_serve(struct scene *scene)
{
    worker_part(scene);
}

static void peer_fill(struct scene *scene)
{
    trainer_step(scene);
}

/* The worker fails for good: an open lane is aborted under the trainer's hands. */
static void peer_give_up(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (mr_ckpt_part_abort(&lane) == MR_FATE_ABORTED)
        worker_give_up(scene);
}

static void peer_supervisor_dies(struct scene *scene)
{
    atomic_store(&scene->block->alone, 1);
}

/* One after the other, and before there is a promise: both at once may lose one. */
static void peer_worker_dies_then_supervisor(struct scene *scene)
{
    struct mr_ckpt_lane lane = lane_of(scene);

    if (mr_ckpt_part_fate(&lane) == MR_FATE_SEALED)
        return;
    worker_gone(scene);
    peer_supervisor_dies(scene);
}

static const struct situation situations[] = {
    {"trainer fills and publishes", TRAINER, build_empty, run_part, after_part, peer_give_up},
    {"trainer publishes, against take", TRAINER, build_all_but_the_last, run_part, after_part, peer_serve},
    {"trainer publishes the last, against abort", TRAINER, build_all_but_the_last, run_part, after_part, peer_give_up},
    {"trainer seals, against abort", TRAINER, build_all, trainer_seal, NULL, peer_give_up},
    {"trainer seals, against take", TRAINER, build_all, trainer_seal, NULL, peer_serve},
    {"trainer seals, against adopt", TRAINER, build_unadopted, trainer_seal, NULL, worker_adopt},
    {"trainer seals, supervisor dies", TRAINER, build_all, trainer_seal, NULL, peer_supervisor_dies},
    {"trainer seals unadopted, supervisor dies", TRAINER, build_unadopted, trainer_seal, NULL, peer_supervisor_dies},
    {"trainer seals, worker and supervisor die", TRAINER, build_all, trainer_seal, NULL,
     peer_worker_dies_then_supervisor},
    {"worker adopts, against seal", WORKER, build_unadopted, worker_adopt, NULL, peer_fill},
    {"worker adopts, against abort", WORKER, build_unadopted, worker_adopt, NULL, run_abort},
    {"trainer aborts, against take", TRAINER, build_full, run_abort, after_end, peer_serve},
    {"worker takes, uploads, records", WORKER, build_full, run_serve, NULL, peer_fill},
    {"worker takes, against abort", WORKER, build_full, run_serve, NULL, run_abort},
    {"worker takes the last", WORKER, build_sealed, run_serve, NULL, NULL},
    {"worker puts back, against abort", WORKER, build_full, run_put_back, NULL, run_abort},
    {"worker completes", WORKER, build_all_sent, worker_complete, NULL, NULL},
    {"worker aborts, against publish", WORKER, build_filling, peer_give_up, NULL, NULL},
    {"worker gives up", WORKER, build_aborted, worker_give_up, NULL, NULL},
};

/* ---- stepping ---- */

static void start_scene(struct scene *scene, const struct situation *situation, uint32_t slots, uint32_t first_lap)
{
    struct mr_ckpt_part_format format = {
        .slots = slots, .lane = 3, .trainer = 5, .worker = 2, .first_lap = first_lap, .part_bytes = PART_BYTES};

    memset(scene->block, 0, used_bytes(slots));
    mr_ckpt_part_format(scene->block->lane, &format);
    scene->slots = slots;
    scene->trainer = (struct trainer){0};
    worker_adopt(scene);
    situation->build(scene);
}

static pid_t spawn(struct scene *scene, const struct situation *situation)
{
    /* of one type: run takes a scene */
    return stepper_spawn((void (*)(void *))situation->run, scene, &scene->block->phase);
}

static void failed(const struct situation *situation, uint32_t slots, const char *how, unsigned at, const char *wrong)
{
    if (failures++ < SHOWN_MAX || stop_at_first)
        printf("  FAILED: %s, W = %u, %s at instruction %u: %s\n", situation->name, slots, how, at, wrong);
    fflush(stdout);
    if (stop_at_first)
        exit(1);
}

static bool words_changed(const struct scene *scene, uint64_t words[SLOTS_MAX + 1])
{
    struct mr_ckpt_lane lane = lane_of(scene);
    bool changed = false;

    for (uint32_t slot = 0; slot <= scene->slots; slot++) {
        uint64_t now = slot < scene->slots ? mr_ckpt_part_load(&lane, slot) : (uint64_t)mr_ckpt_part_fate(&lane);
        changed |= now != words[slot];
        words[slot] = now;
    }
    return changed;
}

/* On a copy at each instruction; which ones to kill at is noted. Returns the length. */
static unsigned step_on_copies(const struct situation *situation, struct scene *scene, uint32_t first_lap,
                               unsigned *marks, unsigned *mark_count, unsigned marks_max)
{
    static struct block copy;
    uint64_t words[SLOTS_MAX + 1] = {0};
    unsigned at = 0;

    start_scene(scene, situation, scene->slots, first_lap);
    words_changed(scene, words);
    pid_t child = spawn(scene, situation);
    *mark_count = 0;
    for (; atomic_load(&scene->block->phase) == 1; at++) {
        struct scene other = {.block = &copy, .slots = scene->slots, .trainer = scene->trainer};
        if ((words_changed(scene, words) || at % KILL_EVERY == 0) && *mark_count < marks_max)
            marks[(*mark_count)++] = at;
        memcpy(&copy, scene->block, used_bytes(scene->slots));
        const char *wrong = drain(&other, situation->who);
        if (wrong)
            failed(situation, scene->slots, "dead", at, wrong);
        stepper_step(child);
    }
    stepper_end(child, false);
    return at;
}

static void run_situation(const struct situation *situation, struct scene *scene, uint32_t first_lap)
{
    unsigned marks[512], mark_count;
    unsigned length = step_on_copies(situation, scene, first_lap, marks, &mark_count, 512);

    instructions += length;
    const char *wrong;
    for (unsigned i = 0; i < mark_count; i++, kills++) {
        start_scene(scene, situation, scene->slots, first_lap);
        pid_t child = spawn(scene, situation);
        for (unsigned at = 0; at < marks[i]; at++)
            stepper_step(child);
        stepper_end(child, true);
        wrong = drain(scene, situation->who);
        if (wrong)
            failed(situation, scene->slots, "killed", marks[i], wrong);
    }
    for (unsigned stop = 0; situation->peer && stop < length; stop += 1 + length / PEER_DENSE, peers++) {
        start_scene(scene, situation, scene->slots, first_lap);
        pid_t child = spawn(scene, situation);
        for (unsigned at = 0; at < stop; at++)
            stepper_step(child);
        situation->peer(scene);
        stepper_end(child, false);
        if (situation->after)
            situation->after(scene);
        wrong = drain(scene, NOBODY);
        if (wrong)
            failed(situation, scene->slots, "somebody else acted", stop, wrong);
    }
}

/* The supervisor's own functions, dead in the middle: it begins again. */
static const struct situation recoveries[] = {
    {"supervisor recovers a worker", WORKER, build_held, recover_worker, NULL, NULL},
    {"supervisor recovers a worker, against abort", WORKER, build_held, recover_worker, NULL, run_abort},
    {"supervisor recovers a trainer", TRAINER, build_filling, recover_trainer, after_end, NULL},
    {"supervisor recovers a trainer, against take", TRAINER, build_filling, recover_trainer, after_end, peer_serve},
};

int main(int argc, char **argv)
{
    struct scene scene = {0};
    const struct situation *both[] = {situations, recoveries};
    const size_t counts[] = {sizeof situations / sizeof situations[0], sizeof recoveries / sizeof recoveries[0]};

    stop_at_first = argc > 1 && strcmp(argv[1], "first") == 0;
    scene.block = mmap(NULL, sizeof *scene.block, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (scene.block == MAP_FAILED)
        stepper_die("mmap");
    printf("%-46s %12s %8s %8s %8s\n", "function", "instructions", "kills", "peers", "failures");
    for (unsigned table = 0; table < 2; table++) {
        for (size_t i = 0; i < counts[table]; i++) {
            unsigned before[] = {instructions, kills, peers, failures};
            for (scene.slots = 2; scene.slots <= SLOTS_MAX; scene.slots *= 2)
                run_situation(&both[table][i], &scene, scene.slots == 2 ? UINT32_MAX : 0);
            printf("%-46s %12u %8u %8u %8u\n", both[table][i].name, instructions - before[0], kills - before[1],
                   peers - before[2], failures - before[3]);
        }
    }
    printf("%u instructions, %u kills, %u interleavings, %u failures\n", instructions, kills, peers, failures);
    return failures > 0;
}
