/*
 * walk.h - the regular files under a folder, in the byte order of their whole paths, as object names are ordered.
 *
 * A folder is read when the walk enters it and its entries are sorted in memory: what is held is one list per open
 * level. Symbolic links are followed, except to a folder that the walk is inside of, and with no_links to any folder.
 * Blocks on the disk.
 */
#ifndef MR_WORKER_STORE_WALK_H
#define MR_WORKER_STORE_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct mr_walk;

/*
 * prefix: an absolute path. One that names a folder stands for "prefix/"; any other for all names that begin with it.
 * lower (NULL: none): names below it are left out, and with `exclusive` itself too; upper (NULL: none): names from it
 * on are. Copied. NULL with mr_error (NOT_FOUND or DENIED naming the folder, NO_MEMORY).
 */
struct mr_walk *mr_walk_new(const char *prefix, const char *lower, bool exclusive, const char *upper, bool no_links);
void mr_walk_destroy(struct mr_walk *walk);

/* 1: *path (valid until the next call) and *st; 0: the end; -1: mr_error names the folder. Adds to *skipped. */
int mr_walk_next(struct mr_walk *walk, const char **path, struct stat *st, uint64_t *skipped);

#endif
