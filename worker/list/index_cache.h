/*
 * index_cache.h - the folder in which every listing of this machine's user is kept for a while.
 *
 * $XDG_CACHE_HOME/millrace/index (or ~/.cache/millrace/index) holds KEY-DIGEST.mri (shm/index/index_file.h). KEY stands
 * for what was listed: scheme, endpoint, bucket, prefixes and excluded storage classes; the digest for what was there.
 * When there are more than list.cache_files, or more bytes than list.cache_bytes, the oldest ones of the keys that have
 * most go, so that a new explicit list for each epoch leaves the others; reading one makes it young. Several processes
 * may use the folder at once: a file is whole when it has its name.
 *
 * Everything here blocks on the file system.
 */
#ifndef MR_WORKER_LIST_INDEX_CACHE_H
#define MR_WORKER_LIST_INDEX_CACHE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/uri.h"
#include "shm/control/config.h"
#include "shm/index/index_file.h"

#define MR_INDEX_KEY_SIZE 17 /* 16 hex digits and a NUL */

/* What an index is of. Borrowed by the functions below. */
struct mr_index_identity {
    enum mr_scheme scheme;
    const char *endpoint, *bucket;
    const char *const *prefixes; /* sorted; none: an explicit list of names */
    size_t prefix_count;
    bool shards; /* samples in tar shards, not whole objects */
    const struct mr_strings *exclude_classes;
};

void mr_index_key(const struct mr_index_identity *identity, char key[MR_INDEX_KEY_SIZE]);
/* 0, or -1 (USAGE) with the difference: the file is of another bucket, endpoint, prefix, or left out other classes. An
 * index of an explicit list is compared by bucket and endpoint alone. */
int mr_index_identity_check(const struct mr_index_identity *identity, const struct mr_index_file *file);

/* The folder's path. 0, or -1 (NOT_FOUND) when there is no cache: turned off, or neither XDG_CACHE_HOME nor HOME. */
int mr_index_cache_folder(const struct mr_config *config, char folder[PATH_MAX]);
/* Whether it was listed while the clock was wrong, in what is the future now: nobody knows how old it is. */
bool mr_index_cache_is_ahead(const struct mr_index_file *file);
/*
 * Opens the cached index of this key: the one of `digest`, or with digest NULL the newest. -1 (NOT_FOUND) when there is
 * none. except: a digest that does not count; NULL. Damaged files are removed. The caller closes both.
 */
int mr_index_cache_find(const struct mr_config *config, const char *key, const char *digest, const char *except,
                        struct mr_index_file *file);
/*
 * Each cached index of samples of the same scheme, endpoint and bucket, whatever its prefixes, the youngest first: their
 * shards need not be read again where they are of the same version. The file and fd are the call's. use: false ends it.
 */
void mr_index_cache_each_of_shards(const struct mr_config *config, const struct mr_index_identity *identity,
                                   bool (*use)(void *arg, const struct mr_index_file *file, int fd), void *arg);
/* Keeps an index, and removes what has become too much. 0 or -1. */
int mr_index_cache_put(const struct mr_config *config, const char *key, const struct mr_index *index,
                       const struct mr_index_file_extra *extra);

#endif
