/*
 * out_file.h - a file that appears whole or not at all: written without a name (or under a temporary one where the file
 * system needs it), synced, then given its name. Anything but a regular file (a pipe, /dev/null) is written directly.
 */
#ifndef MR_WORKER_TOOL_OUT_FILE_H
#define MR_WORKER_TOOL_OUT_FILE_H

#include <limits.h>
#include <stdbool.h>

struct mr_out_file {
    int fd;
    bool absent;          /* the name must not exist */
    bool plain;           /* not a regular file: nothing is renamed */
    char path[PATH_MAX];  /* the name that it will have; a symbolic link's target */
    char named[PATH_MAX]; /* its temporary name; "": it has none */
};

/* 0, or -1: EXISTS where it must be absent and is not, or open(2)'s error. */
int mr_out_file_open(struct mr_out_file *file, const char *path, bool absent);
/* Syncs, names and closes it: 0, or -1. On failure nothing is left, unless only the sync of its name failed. */
int mr_out_file_commit(struct mr_out_file *file);
/* Closes it and removes what was written. Safe after commit. */
void mr_out_file_abort(struct mr_out_file *file);

#endif
