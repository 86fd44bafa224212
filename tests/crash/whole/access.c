/*
 * access.c - see access.h. The child takes its own access to the memory away; each fault is noted, access given for one
 * instruction (the trap flag), and taken away again.
 */
#include "tests/crash/whole/access.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/crash/whole/tracee.h"

#define TRAP_FLAG 0x100

static uint8_t *touched;

static void protect(int how)
{
    if (mprotect(the_cast->world.base, the_cast->world.size, how))
        _exit(4);
}

static void on_fault(int number, siginfo_t *info, void *arg)
{
    ucontext_t *context = arg;
    uint64_t offset = tracee_code_offset((uint64_t)context->uc_mcontext.gregs[REG_RIP]);
    const unsigned char *address = info->si_addr, *base = the_cast->world.base;

    (void)number;
    if (address < base || address >= base + the_cast->world.size)
        _exit(5);
    if (offset < tracee_code_size())
        touched[offset] = 1;
    protect(PROT_READ | PROT_WRITE);
    context->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int number, siginfo_t *info, void *arg)
{
    ucontext_t *context = arg;

    (void)number;
    (void)info;
    protect(PROT_NONE);
    context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static void watch(struct cast *cast, void (*op)(struct cast *))
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

    cast->in_child = cast->watched = true;
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGTRAP, &trap, NULL);
    protect(PROT_NONE);
    op(cast);
    _exit(0);
}

uint8_t *access_find(struct cast *cast, void (*op)(struct cast *))
{

    touched = mmap(NULL, tracee_code_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (touched == MAP_FAILED)
        fail("no memory");
    pid_t pid = fork();
    if (pid == 0)
        watch(cast, op);
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        fail("the accesses of the operation cannot be found");
    return touched;
}
