/*
 * leftovers.h - temporary files of writers to a folder: their names, and which of them nobody writes any more.
 *
 *   .millrace-<16 hex digits>.part    one request, or a session of `millrace cp`
 *   .millrace-<16 hex digits>.parts   of upload parts, which a restarted worker goes on with
 *
 * Who writes one holds its flock (between the requests of a session nobody does), and a file of upload parts gets a new
 * time of modification every MR_LEFTOVER_BEAT_S, whatever comes. So one that nobody locks, and that has been still for
 * a while, is nobody's: the first sign fails for a moment while a worker is restarted, the second one where clocks
 * differ, and where a file system has no locks between machines the second one is what there is. How long it has been
 * still is measured by the file system's clock.
 */
#ifndef MR_WORKER_STORE_LEFTOVERS_H
#define MR_WORKER_STORE_LEFTOVERS_H

#include <stdbool.h>
#include <stdint.h>

#define MR_LEFTOVER_BEAT_S 10
#define MR_LEFTOVER_SIZE   40 /* of a name, with its NUL */

enum mr_leftover_kind { MR_LEFTOVER_NONE, MR_LEFTOVER_PART, MR_LEFTOVER_PARTS };
/* A new name. */
void mr_leftover_name(enum mr_leftover_kind kind, char name[MR_LEFTOVER_SIZE]);
/* NONE: not a name of ours. */
enum mr_leftover_kind mr_leftover_kind(const char *name);
/* false: another process holds it. Nothing to do where the file system has no locks. */
bool mr_leftover_lock(int fd);

/* Is it nobody's, and when was it last written to (seconds since 1970)? folder_fd: of the folder that its
 * path begins in. */
bool mr_leftover_is_dead(int folder_fd, const char *name, int64_t *written_s);
/*
 * Removes what is nobody's from a folder, not from those in it, but for what `keep` (NULL: nothing) knows an owner of.
 * How many; a folder that cannot be read has none.
 */
unsigned mr_leftovers_remove(const char *folder, bool (*keep)(const char *name));

#endif
