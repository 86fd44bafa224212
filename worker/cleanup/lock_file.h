/*
 * lock_file.h - a file that outlives its process, and whose lock says whether the process lives.
 *
 * It is <runtime folder>/<kind>/<run uuid>.<slot>.<start>. Its process holds the lock (flock) for life; the kernel, not
 * a pid or a heartbeat, takes it back at death. Whoever finds a file without a lock takes the lock, does what the file
 * asks for, and removes it. There are two kinds: marks (run_mark.h) and logs of uploads (upload_log.h).
 *
 * A request of the dead process may still reach the store. So the first to find it dead notes that in the file's mode
 * (0400), which sets its ctime: from then on the age of the notice counts.
 */
#ifndef MR_WORKER_CLEANUP_LOCK_FILE_H
#define MR_WORKER_CLEANUP_LOCK_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "worker/cleanup/maker.h"

#define MR_LOCK_FILE_PATH_SIZE (PATH_MAX + NAME_MAX + 2)

/* Makes and locks this process's file: its descriptor, or -1 with mr_error. path: its name. */
int mr_lock_file_new(const char *kind, const struct mr_maker *maker, char path[MR_LOCK_FILE_PATH_SIZE]);

/*
 * Takes the lock of a dead process's file: a descriptor and the file's status, or -1: its process lives, or it has
 * gone. An empty file is removed (it asks for nothing), and so is one that could not be dealt with for a week since the
 * death was noticed: its process may have lived for months without another word in it.
 */
int mr_lock_file_take(const char *path, struct stat *status);
/* Was the death noticed more than late_s ago? The first time it is noticed now. *status is brought up to date. */
bool mr_lock_file_is_late(int fd, struct stat *status, int late_s);

/* Somebody has found its process dead. */
bool mr_lock_file_is_noticed(const struct stat *status);

/* Does the run's supervisor live, or does a process of the run hold a file of this kind? ours: files that this process
 * has locked itself do not count. True where it is unknown: the careful error. */
bool mr_lock_file_run_lives(const char *kind, const char *run,
                            bool (*ours)(const void *arg, const struct mr_maker *maker), const void *arg);

#endif
