/*
 * run_mark.h - which processes of this machine make temporary objects, and which of them have died.
 *
 * A mark is a lock file (lock_file.h) of the kind "composed". It has a line "endpoint bucket" for each bucket in which
 * its process makes temporary objects, written before the first one. Whoever takes a dead process's mark removes that
 * process's objects, and then the mark. A mark stays until its bucket has been listed MR_LATE_S after the death was
 * noticed, since a request of the dead process may reach the store until then.
 *
 * A node that dies takes its marks along: then the age of the objects decides (temporary.h).
 */
#ifndef MR_WORKER_CLEANUP_RUN_MARK_H
#define MR_WORKER_CLEANUP_RUN_MARK_H

#include <stdbool.h>

#include "worker/cleanup/maker.h"

struct mr_run_mark;
/* Makes and locks this process's mark. NULL with mr_error: the folder cannot be used. */
struct mr_run_mark *mr_run_mark_new(const struct mr_maker *maker);
/* Adds a bucket, once. 0 or -1 (IO). */
int mr_run_mark_note(struct mr_run_mark *mark, const char *endpoint, const char *bucket);
/* The end of the process: keep where something may be left, else the file goes. NULL is allowed. */
void mr_run_mark_destroy(struct mr_run_mark *mark, bool keep);

/* A dead process's mark, locked by us. */
struct mr_dead_mark {
    struct mr_dead_mark *next;
    struct mr_maker maker;
    int fd;
    bool late; /* it was noticed more than LATE_S ago: nothing of its process is under way any more */
    bool gone; /* no process of its run lives, or ever will */
    char *path, *text;
};
/* Locks and returns the marks of dead processes, at most `most`; NULL: none (or no folder). */
struct mr_dead_mark *mr_dead_marks_take(unsigned most);
/* The bucket is done: takes it off the mark; the mark goes with its last one. */
void mr_dead_mark_cleaned(struct mr_dead_mark *mark, const char *endpoint, const char *bucket);
/* Unlocks all and frees them. NULL is allowed. */
void mr_dead_marks_free(struct mr_dead_mark *marks);

/* This maker's mark among them, or NULL. */
const struct mr_dead_mark *mr_dead_marks_find(const struct mr_dead_mark *marks, const struct mr_maker *maker);

/* The last answer of mr_run_lives, which reads a folder: the objects of a run are listed together. Zeroed at first. */
struct mr_run_life {
    char run[40];
    bool lives;
};
/* Does a process of that run live on this machine? marks: those that this process has locked itself. */
bool mr_run_lives(struct mr_run_life *life, const char *run, const struct mr_dead_mark *marks);

#endif
