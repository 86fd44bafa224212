/*
 * run_lock.h - is any process of a run still at work on this machine? A file that outlives it, whose locks say so.
 *
 * It is <runtime folder>/runs/<run uuid>. The supervisor makes it before it starts its first worker, and holds a shared
 * lock on it for life, as every write worker does: these can continue what a dead worker has left in a store, and no
 * other process can. The kernel releases the locks at death. A process that gets the exclusive lock has found the run
 * dead, and notes that in the file's mode (0400), so that a worker that was just being started, and had no lock yet,
 * does not continue what is being removed.
 *
 * A supervisor that ends in good order removes the file. That of a killed one is removed when another one starts and
 * finds no record "<run>.<...>" in the folders beside it, at the latest after eight days.
 */
#ifndef MR_SHM_CONTROL_RUN_LOCK_H
#define MR_SHM_CONTROL_RUN_LOCK_H

#include <stdbool.h>

enum mr_run_state {
    MR_RUN_UNKNOWN, /* there is no such file: it ended in good order, is of another machine, or could make none */
    MR_RUN_LIVES,
    MR_RUN_DEAD, /* for good: no process of it is at work, now or later */
};

/* The supervisor's: a descriptor that holds the lock, or -1 with mr_error. */
int mr_run_lock_new(const char *run);
/* Its end: removes the file. -1 is allowed. */
void mr_run_lock_end(int lock, const char *run);

/* A write worker's: a descriptor that holds the lock; -1 with mr_error: NOT_FOUND: there is no file, and no need for
 * one; GONE: the run was found dead; anything else: it cannot be held. */
int mr_run_lock_hold(const char *run);

/* Within a few milliseconds. LIVES also if this process lacks the means to look: the careful answer. */
enum mr_run_state mr_run_lock_look(const char *run);

/* For a file that could not be opened: whether errno says only that this process lacks descriptors or memory. A caller
 * that asks whether the run lives must then assume that it does. */
bool mr_run_lock_cannot_tell(void);

#endif
