/*
 * durable.h - names of new files and folders that last: given without replacing anything, and brought to the disk; what a
 * new file takes over from the one that it replaces.
 *
 * Paths are absolute or relative; all of it blocks on the disk. Not for untrusted folders: links in them are followed.
 */
#ifndef MR_BASE_DURABLE_H
#define MR_BASE_DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Gives the file `from` the name `to`, in the same file system, if nothing has that name: 0 (`from` no longer exists),
 * or -1 with errno, EEXIST if something has it. By renameat2(2); by link(2) if the file system or the kernel lacks
 * that; if it has no links either (exFAT, some network file systems) by a look and rename(2) under a lock on the
 * folder, which excludes other callers of this function, and no one else. EBUSY: the lock was not to be had for
 * seconds.
 */
int mr_durable_name_new(const char *from, const char *to);

/*
 * Brings the names in the folder that `path` lies in to the disk: 0, or -1 with mr_error. It is not a failure if the
 * file system cannot do that for folders. fd: a file in it, for a folder that may be written and not read; or -1.
 */
int mr_durable_sync_folder(const char *path, int fd);

/*
 * Makes the folders that `path` lies in, those that are not there, and brings their names to the disk: 0, or -1 with
 * mr_error. lenient: a folder that may not be made is not an error here; opening what is in it will show (it may be
 * there all the same).
 */
int mr_durable_make_folders(const char *path, bool lenient);

/*
 * Gives the open file the owner and the mode of the one that is `path`, if there is one, and the bits `besides`, as far
 * as that is allowed: a group that it cannot have gets no rights to it.
 */
void mr_durable_keep_mode(const char *path, int fd, mode_t besides);

/* The folder that `path` lies in; "." where it has none. 0, or -1 with mr_error (too long). */
int mr_durable_folder_of(const char *path, char *out, size_t size);

#endif
