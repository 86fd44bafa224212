/*
 * run_folder.h - where a run's socket lies: a folder of its own, 0700, with the socket 0600 in it.
 *
 * $XDG_RUNTIME_DIR/millrace/run-PID-RANDOM, or below /tmp/millrace-UID. The folder is locked (flock) for the run's
 * life, so that the next start can find and remove what a killed supervisor has left. A child has that lock and the
 * socket too from its fork to its exec, which may come long after its parent's death on a busy machine: a process that
 * asks whether the supervisor itself lives looks at the record lock (fcntl) of the file "pid", which a fork does not
 * inherit.
 */
#ifndef MR_SUPERVISOR_RUN_FOLDER_H
#define MR_SUPERVISOR_RUN_FOLDER_H

#include <limits.h>
#include <stdbool.h>

struct mr_run_folder {
    char path[PATH_MAX];        /* "": the socket alone is ours */
    char socket_path[108];      /* fits sockaddr_un */
    int lock;                   /* the folder, locked; -1 */
    int pid_lock;               /* the file "pid", locked; -1 */
    bool have_socket, have_pid; /* to be removed */
    int socket_file;            /* O_PATH: no other file gets its number while it is open; -1 */
};

/* Makes the folder (folder_path: that one, as it is; NULL: one of our own unless socket_path says where the socket
 * goes) and a listening SOCK_SEQPACKET socket in it. Returns the socket, non-blocking, or -1. */
int mr_run_folder_init(struct mr_run_folder *folder, const char *folder_path, const char *socket_path);
/* Gives the folder a name of its own, so that the given one is free for another supervisor; whoever is connected stays
 * so. Where that fails the name stays taken. */
void mr_run_folder_make_way(struct mr_run_folder *folder);
/* Removes what init has made. Twice is harmless. */
void mr_run_folder_close(struct mr_run_folder *folder);

#endif
