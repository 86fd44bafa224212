/*
 * leftovers.h - temporary files of writers to a folder: their names, and which of them no process writes any more.
 *
 *   .millrace-<16 hex digits>.part    one request, or a session of `millrace cp`
 *   .millrace-<16 hex digits>.parts   of upload parts, with which a restarted worker continues
 *
 * The writer of such a file holds its flock (but no process does between the requests of a session), and a file of
 * upload parts gets a new time of modification every MR_LEFTOVER_BEAT_S in any case. So a file that is not locked and
 * has not been modified for a while is abandoned. The first sign fails for a moment while a worker is restarted, the
 * second where clocks differ; on a file system without locks between machines there is only the second. How long it has
 * been unmodified is measured by the file system's clock.
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
/* false: another process holds it. true also if the file system has no locks. */
bool mr_leftover_lock(int fd);

/* Whether it is abandoned, and *written_s, when it was last written to (seconds since 1970). folder_fd: the folder that
 * a relative path begins in. false also for a file of another user, or one that cannot be opened. */
bool mr_leftover_is_dead(int folder_fd, const char *name, int64_t *written_s);
/* Removes abandoned files from a folder, but not from the folders in it, except those that `keep` (may be NULL) knows
 * an owner of. Returns how many; 0 for a folder that cannot be read. */
unsigned mr_leftovers_remove(const char *folder, bool (*keep)(const char *name));

#endif
