/*
 * command.h - the training command of `millrace run`, and the signals on their way to it.
 *
 * The command stays in our process group, so that what the terminal sends (Ctrl-C, Ctrl-\, Ctrl-Z, hang-up) reaches it
 * by itself; such signals are not sent a second time. Signals from kill(2) are passed on. Where SIGTERM does not end it
 * within supervisor.silence_ms, the log says so.
 */
#ifndef MR_SUPERVISOR_COMMAND_H
#define MR_SUPERVISOR_COMMAND_H

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include "supervisor/events.h"

struct mr_supervisor;

struct mr_command {
    pid_t pid; /* 0: none */
    int pidfd;
    struct mr_watch process;
    struct mr_timer patience; /* since SIGTERM */
    bool ended;
    int exit_status;           /* once ended: its status, or 128 + signal */
    struct rlimit descriptors; /* its RLIMIT_NOFILE */
};

/* Starts argv with MILLRACE_SOCKET set. 0, or -1 with *exit_status as a shell gives it (127: not found, 126: not
 * executable). */
int mr_command_start(struct mr_supervisor *s, char *const argv[], int *exit_status);
/* Passes a signal on, unless the terminal has sent it to the command too. */
void mr_command_signal(struct mr_supervisor *s, const struct signalfd_siginfo *info);

#endif
