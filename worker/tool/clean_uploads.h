/*
 * clean_uploads.h - the part of `millrace clean` that removes unfinished uploads: multipart uploads of a bucket, and in
 * a folder the temporary files of dead processes.
 *
 * A bucket knows the name of an upload and when it was begun, but not its run, which may write on another node: so
 * those that are younger than a day are left alone, unless a dead run of this machine has recorded them. Those that a
 * living run of this machine has recorded stay at any age. A folder's files are locked while they are written (leftovers.h):
 * those that no process writes are removed at any age.
 */
#ifndef MR_WORKER_TOOL_CLEAN_UPLOADS_H
#define MR_WORKER_TOOL_CLEAN_UPLOADS_H

#include <jansson.h>

#include "worker/tool/progress.h"
#include "worker/tool/tool.h"

struct mr_clean_uploads {
    struct mr_tool *tool; /* open */
    struct mr_store *store;
    const struct mr_uri *uri; /* bucket and prefix; the folder */
    bool dry_run, all;
    int64_t older_than_s; /* -1: the rule above */
    json_t *list;         /* of what is condemned, or NULL: it is printed */
    char **dead_ids;      /* of this machine's dead runs, in the bucket */
    unsigned dead_count;
    struct mr_progress progress;
    /* the result */
    uint64_t seen, condemned, removed, failed;
    bool denied; /* they could not be listed: failure says why */
    char failure[400];
};

/* Blocks. 0, or -1 with mr_error: the listing failed. A store without such uploads has none. */
int mr_clean_uploads(struct mr_clean_uploads *clean);

#endif
