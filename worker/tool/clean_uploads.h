/*
 * clean_uploads.h - the part of `millrace clean` that removes unfinished uploads: multipart uploads of a bucket, and in
 * a folder the temporary files of dead processes.
 *
 * A bucket records an upload's name and start time, but not its run, which may be writing on another node. Uploads
 * younger than a day are therefore left alone, unless a dead run of this machine has recorded them. Those recorded by a
 * live run of this machine are kept at any age. A folder's files are locked while they are written (leftovers.h): those
 * that no process is writing are removed at any age.
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
    json_t *list;         /* what is condemned is added to it; NULL: it is printed */
    char **dead_ids;      /* of this machine's dead runs, in the bucket */
    unsigned dead_count;
    struct mr_progress progress;
    /* the result */
    uint64_t seen, condemned, removed, failed;
    bool denied; /* they could not be listed: failure says why */
    char failure[400];
};

/* Blocks. 0, or -1 with mr_error when the listing fails. A store that does not support such uploads has none. */
int mr_clean_uploads(struct mr_clean_uploads *clean);

#endif
