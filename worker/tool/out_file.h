/*
 * out_file.h - a file that is there whole or not at all: written without a name (or under a temporary one where the
 * file system needs it), synced, then given its name. What is not a regular file (a pipe, /dev/null) is written as it
 * is.
 */
#ifndef MR_WORKER_TOOL_OUT_FILE_H
#define MR_WORKER_TOOL_OUT_FILE_H

#include <limits.h>
#include <stdbool.h>

struct mr_out_file {
    int fd;
    bool absent;          /* the name must not exist */
    bool plain;           /* no regular file: nothing is renamed */
    char path[PATH_MAX];  /* the name that it will have; a symbolic link's target */
    char named[PATH_MAX]; /* its temporary name; "": it has none */
};

/* 0, or -1: EXISTS where it must be absent and is not; what open(2) says. */
int mr_out_file_open(struct mr_out_file *file, const char *path, bool absent);
/* Syncs, names and closes it: 0, or -1, and then nothing of it is left, unless its name alone could not be synced. */
int mr_out_file_commit(struct mr_out_file *file);
/* Closes it; nothing of it is left. Safe after commit. */
void mr_out_file_abort(struct mr_out_file *file);

#endif
