/* stepper.c - see stepper.h. */
#include "tests/crash/stepper.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

void stepper_die(const char *what)
{
    perror(what);
    exit(2);
}

pid_t stepper_spawn(void (*run)(void *scene), void *scene, _Atomic uint32_t *phase)
{
    pid_t child = fork();

    if (child < 0)
        stepper_die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP))
            _exit(9);
        atomic_store(phase, 1);
        run(scene);
        atomic_store(phase, 2);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        stepper_die("the child cannot be traced (ptrace is needed)");
    while (atomic_load(phase) == 0) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) || waitpid(child, &status, 0) != child)
            stepper_die("ptrace");
    }
    return child;
}

void stepper_step(pid_t child)
{
    int status;

    if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        stepper_die("ptrace");
}

void stepper_end(pid_t child, bool by_kill)
{
    if (by_kill)
        kill(child, SIGKILL);
    else
        ptrace(PTRACE_CONT, child, NULL, NULL);
    int status;
    waitpid(child, &status, 0);
}
