/* stage.c - see stage.h. */
#include "tests/crash/whole/stage.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/crash/whole/access.h"
#include "tests/crash/whole/coverage.h"
#include "tests/crash/whole/report.h"
#include "tests/crash/whole/tracee.h"

#define STOPS_MAX   60000u
#define KILL_EVERY  64u
#define PEER_POINTS 400u /* of one peer, but at the smallest window: of more instructions every n-th */
#define STAGE_S     1000u
#define CHECK_S     30u

enum variant { VARIANT_PLAIN, VARIANT_REVERSED, VARIANT_RESTART_ALL, VARIANT_NO_RESTART, VARIANT_COUNT };

struct stage {
    const struct scenario *scenario;
    struct cast cast;
    struct result *result;
    bool all;
    unsigned char *begin; /* the memory after the setup */
    unsigned char *last;  /* at the previous stop */
    struct point *points;
    bool *changed; /* the instruction before the stop changed a word */
    bool *meets;   /* what the others do before this stop's instruction may matter to it */
    unsigned count;
};

static void describe_point(const struct stage *stage, const char *what, unsigned at)
{
    Dl_info info = {0};
    uint64_t rip = at < stage->count ? stage->points[at].rip : 0;

    if (rip)
        dladdr((void *)(uintptr_t)rip, &info);
    snprintf(report_where, sizeof report_where, "%s, %s at instruction %u (%s+%#llx)", stage->scenario->name, what, at,
             info.dli_sname ? info.dli_sname : "end",
             info.dli_sname ? (unsigned long long)(rip - (uint64_t)(uintptr_t)info.dli_saddr) : 0);
}

static bool child_turn(void *arg)
{
    return tracee_continue(arg) == STOP_YIELD;
}

static bool child_is_dead(void *arg)
{
    return tracee_is_dead(arg);
}

/* Runs body in a forked process: the private memory of every role here stays as it is. */
static void in_fork(struct stage *stage, void (*body)(struct stage *, unsigned, unsigned), unsigned a, unsigned b)
{
    pid_t pid = fork();

    if (pid == 0) {
        alarm(CHECK_S);
        body(stage, a, b);
        _exit(0);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        fail("cannot fork");
    if (WIFSIGNALED(status))
        fail("%s", WTERMSIG(status) == SIGALRM ? "no end" : strsignal(WTERMSIG(status)));
    if (status)
        _exit(3); /* it has said why */
}

/* The lanes as they are now; they lie before everything else. */
static unsigned char *copy_lanes(const struct cast *cast)
{
    size_t size = (size_t)((unsigned char *)cast->world.kernel - cast->world.base);
    unsigned char *copy = malloc(size);

    if (!copy)
        fail("no memory");
    memcpy(copy, cast->world.base, size);
    return copy;
}

/* The lanes must not change when the same recovery is done again. */
static void check_twice(struct stage *stage, void (*recovery)(struct cast *))
{
    struct cast *cast = &stage->cast;
    unsigned char *once = copy_lanes(cast);

    recovery(cast);
    for (unsigned l = 0; l < LANES; l++) /* wakes count on, words do not */
        for (uint32_t slot = 0; slot < cast->world.lane[l].window; slot++) {
            const unsigned char *word = (const unsigned char *)&cast->world.lane[l].tickets[slot].word;
            if (memcmp(word, once + (word - cast->world.base), sizeof(uint64_t)) != 0)
                fail("recovering twice is not once: slot %u of lane %u; %s", slot, l, words_text(cast));
        }
    free(once);
}

static void recover_producer0(struct cast *cast)
{
    supervisor_recover(cast, 0);
}

static void close_lane0(struct cast *cast)
{
    supervisor_close_lane(cast, 0);
}

/* The role under test is dead: what the survivors make of it. */
static void survive(struct stage *stage, enum variant variant)
{
    struct cast *cast = &stage->cast;
    const struct scenario *scenario = stage->scenario;
    void (*recovery)(struct cast *) = scenario->role == PRODUCER0 ? recover_producer0
                                      : scenario->role == READER0 ? close_lane0
                                                                  : scenario->again;

    if (scenario->role == PRODUCER0)
        cast->producer[0].job.count = cast->producer[0].done = 0; /* what it had in mind is lost */
    check_world(cast, "at the death");
    cast->stepped = NOBODY;
    cast->reversed = variant == VARIANT_REVERSED;
    unsigned char *before = copy_lanes(cast);
    recovery(cast);
    if (!cast->world.status->producer[0].alive)
        check_recovered(cast, before, 0);
    free(before);
    check_world(cast, "after recovery");
    check_twice(stage, recovery);
    if (scenario->role == PRODUCER0 && variant != VARIANT_NO_RESTART)
        supervisor_restart(cast, 0);
    if (scenario->finish)
        scenario->finish(cast);
    if (variant == VARIANT_RESTART_ALL)
        supervisor_restart_all(cast);
    drain(cast);
    check_rest(cast);
}

static void survive_on_copy(struct stage *stage, unsigned at, unsigned variant)
{
    (void)at;
    cast_use_copy(&stage->cast);
    survive(stage, variant);
}

static bool has_variant(const struct stage *stage, unsigned variant)
{
    return variant != VARIANT_NO_RESTART || (stage->scenario->role == PRODUCER0 && stage->scenario->producers > 1);
}

/* At a stop: is the memory as it may be, and would the survivors get on with it? */
static void look(struct stage *stage, unsigned at)
{
    struct world *world = &stage->cast.world;
    bool first = at == 0;

    if (!first && memcmp(world->base, stage->last, world->compared) == 0 && !stage->all)
        return;
    if (!first)
        stage->changed[at] = check_transitions(&stage->cast, stage->last) > 0;
    memcpy(stage->last, world->base, world->compared);
    stage->result->states++;
    for (unsigned variant = 0; variant < VARIANT_COUNT; variant++) {
        if (!has_variant(stage, variant))
            continue;
        in_fork(stage, survive_on_copy, at, variant);
        stage->result->drains++;
    }
}

static void restore(struct stage *stage)
{
    memcpy(stage->cast.world.base, stage->begin, stage->cast.world.size);
}

/* The one pass that steps: every instruction is a death on a copy. */
static void pass_deaths(struct stage *stage)
{
    enum stop stop = STOP_CODE;
    uint8_t *touched = access_find(&stage->cast, stage->scenario->op);

    restore(stage);
    stage->cast.stepped = stage->scenario->role;
    struct tracee tracee;
    tracee_start(&tracee, &stage->cast, stage->scenario->op);
    uint16_t *visits = calloc(tracee_code_size(), sizeof *visits);
    while (stop != STOP_GONE && stage->count < STOPS_MAX) {
        stop = tracee_step(&tracee);
        if (stop == STOP_YIELD && stage->cast.world.status->op_done)
            break;
        if (stop == STOP_YIELD) {
            stage->cast.world.kernel->clock_ns += 100 * MR_MILLISECOND_NS; /* it waits, and nobody comes */
            continue;
        }
        stage->points[stage->count].rip = tracee.rip;
        stage->points[stage->count].visits = visits[tracee_code_offset(tracee.rip)]++;
        stage->meets[stage->count] = tracee.was_out || touched[tracee_code_offset(tracee.rip)];
        stage->count++;
        stage->result->instructions++;
        coverage_count(tracee_code_offset(tracee.rip));
        describe_point(stage, "death", stage->count - 1);
        look(stage, stage->count - 1);
    }
    describe_point(stage, "death", stage->count);
    if (stop == STOP_GONE || stage->count >= STOPS_MAX)
        fail("the operation does not end");
    look(stage, stage->count);
    tracee_kill(&tracee);
    munmap(touched, tracee_code_size());
    free(visits);
}

static void go_to(struct stage *stage, struct tracee *tracee, unsigned at)
{
    stage->cast.stepped = stage->scenario->role;
    stage->cast.child_turn = child_turn;
    stage->cast.child_is_dead = child_is_dead;
    stage->cast.child_arg = tracee;
    tracee_start(tracee, &stage->cast, stage->scenario->op);
    if (at < stage->count && tracee_go(tracee, &stage->points[at]) != STOP_CODE)
        fail("the instruction is not reached again");
}

static void kill_for_real(struct stage *stage, unsigned at, unsigned unused)
{

    (void)unused;
    struct tracee tracee;
    go_to(stage, &tracee, at);
    if (tracee_is_dead(&tracee))
        fail("the pidfd of a living process is readable");
    tracee_kill(&tracee);
    survive(stage, VARIANT_PLAIN);
}

static void run_on(struct stage *stage, unsigned at, unsigned peer)
{
    struct cast *cast = &stage->cast;
    struct status *status = cast->world.status;
    struct tracee tracee;

    go_to(stage, &tracee, at);
    if (peer < PEERS_MAX)
        stage->scenario->peers[peer].act(cast);
    if (!child_turn(&tracee)) /* to its end, or until it waits */
        fail("the process under test has ended by itself");
    if (stage->scenario->kill_after) {
        if (!status->op_done)
            fail("the operation waits");
        tracee_kill(&tracee);
        if (!cast->reclaimed) {
            supervisor_recover(cast, 0);
            supervisor_restart(cast, 0);
        }
    }
    if (stage->scenario->check)
        stage->scenario->check(cast);
    if (stage->scenario->finish)
        stage->scenario->finish(cast);
    check_world(cast, "after the operation");
    drain(cast);
    check_rest(cast);
}

static void pass_kills(struct stage *stage)
{
    for (unsigned at = 0; at < stage->count; at++) {
        if (at % KILL_EVERY && !stage->changed[at])
            continue;
        describe_point(stage, "SIGKILL", at);
        restore(stage);
        in_fork(stage, kill_for_real, at, 0);
        stage->result->kills++;
    }
}

static void run_with_peer(struct stage *stage, unsigned peer, unsigned stride)
{
    const struct peer *other = &stage->scenario->peers[peer];
    unsigned met = 0;

    for (unsigned at = 0; at < stage->count; at++) {
        if (!stage->meets[at] || (met++ % stride && !stage->changed[at]))
            continue;
        describe_point(stage, other->name, at);
        restore(stage);
        in_fork(stage, run_on, at, peer);
        stage->result->peer_runs++;
    }
}

static void pass_peers(struct stage *stage)
{
    unsigned meets = 0;

    describe_point(stage, "no death", stage->count);
    restore(stage);
    in_fork(stage, run_on, stage->count, PEERS_MAX);
    stage->result->peer_runs++;
    for (unsigned at = 0; at < stage->count; at++)
        meets += stage->meets[at];
    for (unsigned peer = 0; peer < PEERS_MAX && stage->scenario->peers[peer].act; peer++)
        run_with_peer(stage, peer, stage->cast.world.shape.window > 4 ? (meets + PEER_POINTS) / PEER_POINTS : 1);
}

/* Tracer and child take turns: on one processor that is faster. */
static void stay_here(void)
{
    cpu_set_t set;
    int cpu = sched_getcpu();

    CPU_ZERO(&set);
    if (cpu < 0)
        return;
    CPU_SET((unsigned)cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* without it, only slower */
}

static void play(const struct scenario *scenario, uint32_t window, int mutant, bool all, struct result *result)
{
    struct shape shape = {.window = window,
                          .first_lap = window == 4 ? UINT32_MAX : 0, /* the lap wraps, or it does not */
                          .producers = scenario->producers,
                          .arena_pages = scenario->arena_pages,
                          .reserve_pages = scenario->reserve_pages,
                          .object_bytes = scenario->object_bytes,
                          .grows = scenario->grows,
                          .no_memory = scenario->no_memory,
                          .cells = scenario->cells};
    struct stage *stage = calloc(1, sizeof *stage);

    stay_here();
    stage->scenario = scenario;
    stage->result = result;
    stage->all = all;
    stage->points = calloc(STOPS_MAX, sizeof *stage->points);
    stage->changed = calloc(STOPS_MAX + 1, sizeof *stage->changed);
    stage->meets = calloc(STOPS_MAX + 1, sizeof *stage->meets);
    snprintf(report_where, sizeof report_where, "%s, setup", scenario->name);
    cast_build(&stage->cast, &shape, mutant);
    scenario->setup(&stage->cast);
    check_world(&stage->cast, "after the setup");
    stage->begin = malloc(stage->cast.world.size);
    stage->last = malloc(stage->cast.world.size);
    memcpy(stage->begin, stage->cast.world.base, stage->cast.world.size);
    pass_deaths(stage);
    pass_kills(stage);
    pass_peers(stage);
}

void stage_run(const struct scenario *scenario, uint32_t window, int mutant, bool all, struct result *result)
{

    report_result = result;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(STAGE_S);
        play(scenario, window, mutant, all, result);
        _exit(0);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        result->failed = 1;
        snprintf(result->text, sizeof result->text, "%s: cannot fork", scenario->name);
    } else if (status && !result->failed) {
        result->failed = 1;
        snprintf(result->text, sizeof result->text, "%s: %s", scenario->name,
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended by itself");
    }
}
