/* tracee.c - see tracee.h. */
#include "tests/crash/whole/tracee.h"

#include <errno.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define STEPS_MAX 400000u /* outside the code under test between two of its instructions: it loops there */

static struct {
    uint64_t start, end;
} code, self;

/* Executable segments: the library that mr_lane_post lies in, and this program. */
static int find_code(struct dl_phdr_info *info, size_t size, void *arg)
{
    uint64_t want_code = (uint64_t)(uintptr_t)mr_lane_post, want_self = (uint64_t)(uintptr_t)tracee_start;

    (void)size;
    (void)arg;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + header->p_vaddr, end = start + header->p_memsz;
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        if (want_code >= start && want_code < end) {
            code.start = start;
            code.end = end;
        }
        if (want_self >= start && want_self < end) {
            self.start = start;
            self.end = end;
        }
    }
    return 0;
}

static bool is_code(uint64_t rip)
{
    return rip >= code.start && rip < code.end;
}

uint64_t tracee_code_size(void)
{
    if (!code.start)
        dl_iterate_phdr(find_code, NULL);
    return code.end - code.start;
}

uint64_t tracee_code_offset(uint64_t rip)
{
    return rip - code.start;
}

/* The child's life: the operation, then its role's turns until it is killed. */
static void live(struct cast *cast, void (*op)(struct cast *))
{
    struct status *status = cast->world.status;
    enum role role = cast->stepped;

    op(cast);
    status->op_done = 1;
    yield(cast);
    for (;; yield(cast)) {
        if (role == SUPERVISOR)
            continue;
        if (status->phase == PHASE_REST && role < READER0)
            producer_check_rest(cast, role);
        else if (status->phase == PHASE_CLOSE && role < READER0)
            producer_drop_lanes(cast, role);
        else if (status->phase == PHASE_REST)
            reader_release_all(&cast->reader[role - READER0]);
        else if (status->phase == PHASE_CLOSE)
            mr_consumer_close(cast->reader[role - READER0].consumer);
        else if (role < READER0)
            producer_turn(cast, role);
        else
            reader_work(&cast->reader[role - READER0]);
    }
}

/* Waits for the next stop. */
static enum stop wait_stop(struct tracee *tracee)
{
    int status;

    while (waitpid(tracee->pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid: %s", strerror(errno));
    if (!WIFSTOPPED(status))
        return STOP_GONE;
    if (WSTOPSIG(status) != SIGTRAP)
        fail("the process under test got signal %d at %#llx", WSTOPSIG(status), (unsigned long long)tracee->rip);
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, tracee->pid, 0, &regs))
        fail("PTRACE_GETREGS: %s", strerror(errno));
    tracee->rip = regs.rip;
    if (tracee->yields != tracee->cast->world.status->yields) {
        tracee->yields = tracee->cast->world.status->yields;
        return STOP_YIELD;
    }
    return STOP_CODE;
}

static enum stop resume(struct tracee *tracee, int how)
{
    if (ptrace(how, tracee->pid, 0, 0))
        fail("ptrace: %s", strerror(errno));
    return wait_stop(tracee);
}

void tracee_start(struct tracee *tracee, struct cast *cast, void (*op)(struct cast *))
{
    memset(tracee, 0, sizeof *tracee);
    (void)tracee_code_size(); /* the ranges are known from here on */
    tracee->cast = cast;
    tracee->yields = cast->world.status->yields;
    tracee->pid = fork();
    if (tracee->pid == 0) {
        cast->in_child = true;
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            fail("PTRACE_TRACEME: %s", strerror(errno));
        __asm__ volatile("int3" ::: "memory");
        live(cast, op);
    }
    if (tracee->pid < 0 || wait_stop(tracee) != STOP_CODE ||
        ptrace(PTRACE_SETOPTIONS, tracee->pid, 0, PTRACE_O_EXITKILL))
        fail("cannot start a process to trace: %s", strerror(errno));
    tracee->pidfd = pidfd_open(tracee->pid, 0);
    if (tracee->pidfd < 0)
        fail("pidfd_open: %s", strerror(errno));
}

static long peek(struct tracee *tracee, uint64_t at)
{
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, tracee->pid, (void *)(uintptr_t)at, 0);
    if (errno)
        fail("PTRACE_PEEKTEXT: %s", strerror(errno));
    return word;
}

static void poke(struct tracee *tracee, uint64_t at, long word)
{
    if (ptrace(PTRACE_POKETEXT, tracee->pid, (void *)(uintptr_t)at, (void *)word))
        fail("PTRACE_POKETEXT: %s", strerror(errno));
}

/* Runs until the instruction at `at` is about to be executed, or a yield. */
static enum stop run_to(struct tracee *tracee, uint64_t at)
{
    long word = peek(tracee, at);

    poke(tracee, at, (word & ~0xffL) | 0xcc);
    enum stop stop = resume(tracee, PTRACE_CONT);
    if (stop == STOP_GONE)
        return stop;
    poke(tracee, at, word);
    if (stop == STOP_CODE) {
        struct user_regs_struct regs;
        if (tracee->rip != at + 1 || ptrace(PTRACE_GETREGS, tracee->pid, 0, &regs))
            fail("a trap at %#llx that was not set", (unsigned long long)tracee->rip);
        regs.rip = tracee->rip = at;
        if (ptrace(PTRACE_SETREGS, tracee->pid, 0, &regs))
            fail("PTRACE_SETREGS: %s", strerror(errno));
    }
    return stop;
}

/* It is at the first instruction of somebody else's function: runs to the return. qsort is stepped. */
static enum stop run_through(struct tracee *tracee)
{
    struct user_regs_struct regs;

    if (tracee->back)
        return STOP_CODE;
    if (ptrace(PTRACE_GETREGS, tracee->pid, 0, &regs))
        fail("PTRACE_GETREGS: %s", strerror(errno));
    uint64_t back = (uint64_t)peek(tracee, regs.rsp);
    if (tracee->rip == (uint64_t)(uintptr_t)qsort) {
        tracee->back = back;
        return STOP_CODE;
    }
    return run_to(tracee, back);
}

enum stop tracee_step(struct tracee *tracee)
{
    tracee->was_out = false;
    for (unsigned steps = 0; steps < STEPS_MAX; steps++) {
        enum stop stop = resume(tracee, PTRACE_SINGLESTEP);
        tracee->was_out |= !is_code(tracee->rip);
        if (tracee->rip == tracee->back)
            tracee->back = 0;
        if (stop == STOP_CODE && !is_code(tracee->rip) && (tracee->rip < self.start || tracee->rip >= self.end))
            stop = run_through(tracee);
        if (stop != STOP_CODE || is_code(tracee->rip))
            return stop;
    }
    fail("the process under test loops outside of the code under test");
}

enum stop tracee_go(struct tracee *tracee, const struct point *point)
{
    for (unsigned visits = 0;; visits++) {
        enum stop stop = run_to(tracee, point->rip);
        while (stop == STOP_YIELD && !tracee->cast->world.status->op_done) {
            tracee->cast->world.kernel->clock_ns += 100 * MR_MILLISECOND_NS; /* it waits, and nobody comes */
            stop = run_to(tracee, point->rip);
        }
        if (stop != STOP_CODE || visits == point->visits)
            return stop;
        stop = resume(tracee, PTRACE_SINGLESTEP);
        if (stop != STOP_CODE)
            return stop;
    }
}

enum stop tracee_continue(struct tracee *tracee)
{
    return resume(tracee, PTRACE_CONT);
}

bool tracee_is_dead(const struct tracee *tracee)
{
    struct pollfd wait = {.fd = tracee->pidfd, .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

void tracee_kill(struct tracee *tracee)
{
    struct pollfd wait = {.fd = tracee->pidfd, .events = POLLIN};

    if (kill(tracee->pid, SIGKILL) || poll(&wait, 1, 100000) != 1)
        fail("a killed process does not end");
    waitpid(tracee->pid, NULL, 0);
    close(tracee->pidfd);
    tracee->cast->stepped = NOBODY;
}
