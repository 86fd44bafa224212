/*
 * run_mark.h - which processes of this machine make temporary objects, and which of them have died.
 *
 * A mark is a file <runtime folder>/composed/<run uuid>.<slot>.<start> whose process holds its lock (flock) for life: the
 * kernel, not a pid or a heartbeat, says whether it lives. In it stands a line "endpoint bucket" for each bucket in which
 * it makes temporary objects, written before the first one. Who finds a mark without a lock takes the lock, removes that
 * process's objects, and then the mark. A request of the dead process may still reach the store, so a mark stays until
 * its bucket has been looked through LATE_S after the death was noticed (the file's mode then says "noticed": 0400).
 *
 * A node that dies takes its marks along: then the age of the objects decides (temporary.h).
 */
#ifndef MR_WORKER_CLEANUP_RUN_MARK_H
#define MR_WORKER_CLEANUP_RUN_MARK_H

#include <stdbool.h>
#include <stdint.h>

#define MR_MARK_LATE_S 20 /* how long after its sender's death a request may take effect */

/* Who made an object: its name is <prefix><run>/<slot>-<start>-<number>. */
struct mr_maker {
    char run[40];  /* uuid */
    unsigned slot; /* of a write worker: MR_MAKER_WRITE and more */
    uint32_t start;
};
#define MR_MAKER_WRITE 4096u
struct mr_maker mr_maker_of(const char *run, unsigned slot, uint64_t start);
bool mr_maker_equal(const struct mr_maker *a, const struct mr_maker *b);
/* From a name after the prefix: false where it is not of that form. number may be NULL. */
bool mr_maker_parse(const char *text, struct mr_maker *maker, uint64_t *number);

struct mr_run_mark;
/* Makes and locks this process's mark. NULL with mr_error (the folder cannot be used). */
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
/* Does a process of that run live on this machine? The marks are those that this process has locked itself. */
bool mr_run_mark_lives(const char *run, const struct mr_dead_mark *marks);

#endif
