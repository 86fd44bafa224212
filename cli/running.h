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
 * Looks into the run folders of mr_runtime_folder, in each of which its supervisor holds a lock for its life
 * (run_folder.h of supervisor/). One that was given a socket's path of its own (`serve --socket`) has no folder and is
 * not found. Returns how many there are, of which the first `max` are filled in, by pid; -1 with mr_error.
 */
int mr_running_find(struct mr_running *out, unsigned max);

/* The command line of a process, its words with a space between, cut to fit; "" where it cannot be read. */
void mr_running_command(pid_t pid, char *out, size_t size);

/* The only one. -1 with mr_error: there is none, or there are several, which the text names. */
int mr_running_only(struct mr_running *out);

#endif
