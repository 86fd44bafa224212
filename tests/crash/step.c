/* step.c - see step.h. */
#include "tests/crash/step.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_EVERY 64u
#define STOPS_MAX  20000u
#define KILL_DENSE 2048u /* from here on, in library code mostly, every 512th: a run costs as much as it is long */
#define SHOWN_MAX  3u

static struct outcome *outcome; /* shared with the child */

/* Linked with --wrap, so that the tracer knows that the child is about to wait. */
enum mr_wake_result __real_mr_wake_wait(struct mr_lane *lane, uint32_t seen, unsigned timeout_ms);
enum mr_wake_result __wrap_mr_wake_wait(struct mr_lane *lane, uint32_t seen, unsigned timeout_ms);
enum mr_wake_result __wrap_mr_wake_wait(struct mr_lane *lane, uint32_t seen, unsigned timeout_ms)
{
    atomic_store(&outcome->phase, PHASE_WAITING);
    enum mr_wake_result result = __real_mr_wake_wait(lane, seen, timeout_ms);
    outcome->timed_out |= result == MR_WAKE_TIMEOUT;
    return result;
}

struct stepper {
    const struct function *function;
    struct scene scene;
    struct counts *counts;
    void *image, *copy; /* the block at the start; the block to drain */
    struct record start;
    unsigned peers_max;
    pid_t child;
};

static void report(struct stepper *s, const char *how, unsigned stop, const char *wrong)
{
    if (s->counts->failures++ < SHOWN_MAX)
        printf("  %s, W = %u, %s at instruction %u: %s\n", s->function->name, s->scene.window, how, stop, wrong);
    fflush(stdout);
}

static void reset(struct stepper *s)
{

    memcpy(s->scene.block, s->image, s->scene.block_bytes);
    s->scene.record = s->start;
    uint64_t n;
    for (unsigned i = 0; i < PRODUCERS; i++)
        if (read(s->scene.eventfd[i], &n, sizeof n) < 0 && errno != EAGAIN)
            die("eventfd: %s", strerror(errno));
}

static void spawn(struct stepper *s)
{

    memset((void *)outcome, 0, sizeof *outcome);
    s->child = fork();
    if (s->child < 0)
        die("fork: %s", strerror(errno));
    if (s->child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP))
            _exit(9);
        atomic_store(&outcome->phase, PHASE_RUNNING);
        s->function->run(&s->scene, outcome);
        atomic_store(&outcome->phase, PHASE_DONE);
        if (s->function->observe)
            s->function->observe(&s->scene, outcome);
        _exit(0);
    }
    int status;
    if (waitpid(s->child, &status, 0) != s->child || !WIFSTOPPED(status))
        die("the child cannot be traced (ptrace is needed)");
}

/* One instruction; false: the child has ended by itself. */
static bool step(struct stepper *s)
{
    int status;

    if (ptrace(PTRACE_SINGLESTEP, s->child, NULL, NULL) || waitpid(s->child, &status, 0) != s->child)
        die("ptrace: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return false;
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
        die("%s: the child died (status %x)", s->function->name, (unsigned)status);
    return true;
}

/* To the first instruction of the function. */
static void step_in(struct stepper *s)
{
    while (atomic_load(&outcome->phase) == PHASE_BEFORE)
        if (!step(s))
            die("%s never ran", s->function->name);
}

static void finish(struct stepper *s)
{
    int status;

    if (ptrace(PTRACE_CONT, s->child, NULL, NULL) || waitpid(s->child, &status, 0) != s->child)
        die("ptrace: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("%s: the child ended badly (status %x)", s->function->name, (unsigned)status);
}

/* SIGKILL, and nothing before its pidfd is readable. */
static void kill_child(struct stepper *s)
{
    struct pollfd fd = {.fd = (int)syscall(SYS_pidfd_open, s->child, 0), .events = POLLIN};

    if (fd.fd < 0 || kill(s->child, SIGKILL))
        die("cannot kill: %s", strerror(errno));
    while (poll(&fd, 1, -1) != 1) {
    }
    close(fd.fd);
    int status;
    waitpid(s->child, &status, 0);
}

static const char *drain_copy(struct stepper *s, struct dead dead)
{
    memcpy(s->copy, s->scene.block, s->scene.block_bytes);
    return drain(&s->scene, &s->scene.record, s->copy, dead);
}

struct words {
    uint64_t at[LANES][64];
};

static void read_words(struct stepper *s, struct words *words)
{
    for (unsigned i = 0; i < LANES; i++)
        for (uint32_t slot = 0; slot < s->scene.window; slot++)
            words->at[i][slot] = mr_lane_load(&s->scene.lanes[i], slot);
}

/* The words that have changed since `before`: whether any has, and whether each did as the table says. */
static bool check_changes(struct stepper *s, struct words *before, const char **wrong)
{
    struct words now = {{{0}}};
    bool changed = false;

    read_words(s, &now);
    for (unsigned i = 0; i < LANES && !*wrong; i++) {
        for (uint32_t slot = 0; slot < s->scene.window; slot++) {
            if (now.at[i][slot] == before->at[i][slot])
                continue;
            changed = true;
            if (!*wrong)
                *wrong = check_step(&s->scene, s->scene.block, i, before->at[i][slot], now.at[i][slot]);
        }
    }
    *before = now;
    return changed;
}

/* The function's end, with everybody alive. */
static void check_end(struct stepper *s, const char *how, unsigned stop)
{
    static const struct dead nobody = {NOBODY, NOBODY, false};
    const char *wrong = outcome->problem[0] ? outcome->problem : NULL;
    struct dead dead = s->function->dead.supervisor || s->function->reclaim ? s->function->dead : nobody;

    if (!wrong && outcome->timed_out)
        wrong = "it slept on although there was something for it";
    if (!wrong && s->function->record)
        wrong = s->function->record(&s->scene, outcome);
    if (!wrong)
        wrong = drain_copy(s, dead);
    if (wrong)
        report(s, how, stop, wrong);
}

/* A death at each instruction, on a copy. Marks where a word has just changed. */
static void step_on_copy(struct stepper *s, bool *marks)
{
    struct words words = {{{0}}};

    reset(s);
    read_words(s, &words);
    spawn(s);
    step_in(s);
    while (atomic_load(&outcome->phase) != PHASE_DONE) {
        const char *wrong = NULL;
        unsigned n = s->counts->instructions++;
        if (n >= STOPS_MAX)
            die("%s does not end", s->function->name);
        marks[n] = check_changes(s, &words, &wrong) || n % (n < KILL_DENSE ? KILL_EVERY : 8 * KILL_EVERY) == 0;
        if (!wrong)
            wrong = drain_copy(s, s->function->dead);
        if (wrong)
            report(s, "copied", n, wrong);
        step(s);
    }
    finish(s);
    check_end(s, "at its end", s->counts->instructions);
}

static void step_and_kill(struct stepper *s, const bool *marks)
{
    for (unsigned n = 0; n < s->counts->instructions; n++) {
        if (!marks[n])
            continue;
        reset(s);
        spawn(s);
        step_in(s);
        /* The heap is another than before, so malloc may take fewer instructions. */
        for (unsigned i = 0; i < n && atomic_load(&outcome->phase) != PHASE_DONE; i++)
            step(s);
        kill_child(s);
        s->counts->kills++;
        const char *wrong = drain_copy(s, s->function->dead);
        if (wrong)
            report(s, "killed", n, wrong);
    }
}

static void step_peer(struct stepper *s)
{
    bool reclaim = s->function->reclaim && !MR_MUTANT_IS(MR_MUTANT_EARLY_RECLAIM);

    /* Each run starts from the beginning, so long functions are sampled. */
    for (unsigned n = 0, waits = 0; !waits; n += 1 + s->counts->instructions / s->peers_max) {
        reset(s);
        spawn(s);
        step_in(s);
        for (unsigned i = 0; i < n && atomic_load(&outcome->phase) == PHASE_RUNNING; i++)
            step(s);
        waits = atomic_load(&outcome->phase) != PHASE_RUNNING; /* the last one: done, or about to wait */
        if (reclaim)
            kill_child(s);
        s->function->peer(&s->scene);
        if (!reclaim)
            finish(s);
        s->counts->peers++;
        check_end(s, "with a peer acting in between", n);
    }
}

void step_function(const struct function *function, uint32_t window, unsigned peers_max, struct counts *counts)
{
    static bool marks[STOPS_MAX];
    struct stepper s = {.function = function, .counts = counts, .peers_max = peers_max};

    if (!outcome)
        outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(counts, 0, sizeof *counts);
    scene_init(&s.scene, window, function->pages);
    function->build(&s.scene);
    s.start = s.scene.record;
    s.image = malloc(s.scene.block_bytes);
    s.copy = aligned_alloc(4096, (s.scene.block_bytes + 4095) / 4096 * 4096);
    if (outcome == MAP_FAILED || !s.image || !s.copy)
        die("no memory");
    memcpy(s.image, s.scene.block, s.scene.block_bytes);
    if (!function->only_peer) {
        step_on_copy(&s, marks);
        step_and_kill(&s, marks);
    }
    if (function->peer && window == 4)
        step_peer(&s);
    reset(&s);
    free(s.image);
    free(s.copy);
    scene_close(&s.scene);
}
