/*
 * command.c - see command.h. The command is started once and never again. Its pidfd is open exactly while it runs; a
 * signal is sent through the pidfd only, so it cannot reach another process with the same number.
 */
#include "supervisor/command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/container.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "supervisor/run_impl.h"

/* Its pidfd is readable: takes the exit status (128 + signal, as a shell does) and ends the run. */
static void command_ended(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(watch, mr_supervisor, command.process);
    struct mr_command *command = &s->command;
    siginfo_t info = {0};
    (void)epoll_events;
    while (waitid(P_PIDFD, (id_t)command->pidfd, &info, WEXITED) != 0 && errno == EINTR)
        ;
    command->exit_status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
    if (info.si_code != CLD_EXITED)
        mr_log_warning("the command was killed by signal %d (%s)", info.si_status, strsignal(info.si_status));
    mr_events_stop(&s->events, &command->patience);
    mr_events_unwatch(&s->events, &command->process);
    close(command->pidfd);
    command->pidfd = -1;
    command->pid = 0;
    command->ended = true;
    mr_log_debug("the command has ended with status %d", command->exit_status);
    mr_run_end(s, "the command has ended");
}

/* In the child. The pipe closes at exec, or carries the errno of its failure. */
__attribute__((noreturn)) static void become(char *const argv[], int report, const struct rlimit *descriptors)
{
    mr_process_restore_signals();
    if (descriptors->rlim_max != 0)
        setrlimit(RLIMIT_NOFILE, descriptors);
    execvp(argv[0], argv);
    int failure = errno;
    ssize_t n = write(report, &failure, sizeof failure);
    _exit(n == (ssize_t)sizeof failure ? 127 : 126);
}

int mr_command_start(struct mr_supervisor *s, char *const argv[], int *exit_status)
{
    int failure = 0;
    int report[2];
    *exit_status = 1;
    if (setenv("MILLRACE_SOCKET", s->folder.socket_path, 1) != 0 || pipe2(report, O_CLOEXEC) != 0) {
        mr_error_set_errno(errno, "cannot start %s", argv[0]);
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become(argv, report[1], &s->command.descriptors);
    close(report[1]);
    if (pid < 0) {
        mr_error_set_errno(errno, "cannot start %s%s", argv[0], mr_process_limit(errno));
        close(report[0]);
        return -1;
    }
    ssize_t n = read(report[0], &failure, sizeof failure); /* until the exec: microseconds */
    close(report[0]);
    if (n == (ssize_t)sizeof failure) {
        waitpid(pid, NULL, 0);
        mr_error_set_errno(failure, "cannot run %s", argv[0]);
        *exit_status = failure == ENOENT ? 127 : 126;
        return -1;
    }
    s->command.pid = pid;
    s->command.process.ready = command_ended;
    s->command.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (s->command.pidfd < 0)
        mr_error_set_errno(errno, "cannot watch it");
    if (s->command.pidfd < 0 || mr_events_watch(&s->events, &s->command.process, s->command.pidfd, EPOLLIN) != 0) {
        mr_error_append("command %s", argv[0]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        s->command.pid = 0;
        return -1;
    }
    mr_log_debug("command %s: process %d", argv[0], (int)pid);
    return 0;
}

static void patience_ends(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, command.patience);
    int pid = (int)s->command.pid;
    mr_log_warning(
        "the command (pid %d) has not ended %.3g s after SIGTERM was passed on to it, and is waited for: if it "
        "is not saving, end it with kill -KILL %d",
        pid, (double)s->config.supervisor.silence_ms / 1e3, pid);
}

void mr_command_signal(struct mr_supervisor *s, const struct signalfd_siginfo *info)
{
    /* SI_KERNEL: from the terminal, which has signalled its whole foreground group. */
    if (s->command.pidfd >= 0 && info->ssi_code != SI_KERNEL)
        syscall(SYS_pidfd_send_signal, s->command.pidfd, (int)info->ssi_signo, NULL, 0);
    if (info->ssi_signo == SIGTERM) {
        s->command.patience.run = patience_ends;
        mr_events_start(&s->events, &s->command.patience, (unsigned)s->config.supervisor.silence_ms);
    }
    if (info->ssi_signo == SIGTSTP)
        mr_process_stop(); /* the shell waits for us to stop, not for the command */
}
