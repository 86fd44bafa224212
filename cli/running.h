/* running.h - the supervisors of this user that run on this machine, for commands in another terminal. */
#ifndef MR_CLI_RUNNING_H
#define MR_CLI_RUNNING_H

#include <sys/types.h>

struct mr_running {
    pid_t pid;
    char socket_path[108]; /* fits sockaddr_un */
    char command[160];     /* its command line, cut to fit; "" where it cannot be read */
};

/*
 * Searches the run folders of mr_runtime_folder, each of which its supervisor keeps locked while it lives
 * (supervisor/run_folder.h). A supervisor with a socket path of its own (`serve --socket`) has no folder and is not
 * found. Returns how many there are, of which `max` at most are filled in, sorted by pid; -1 with mr_error.
 */
int mr_running_find(struct mr_running *out, unsigned max);

/* The command line of a process, its words separated by spaces, cut to fit; "" where it cannot be read. */
void mr_running_command(pid_t pid, char *out, size_t size);
/* The process's parent; 0 where it is not known: it has ended, or /proc does not show it. */
pid_t mr_running_parent(pid_t pid);

/* The only one. -1 with mr_error: there is none, or there are several, which the text names. */
int mr_running_only(struct mr_running *out);

#endif
