/*
 * upload_log.h - the unfinished multipart uploads of this machine's write workers, for the process that cleans up after
 * a death.
 *
 * The store does not say whose such an upload is. So a write worker keeps a lock file (lock_file.h) of the kind
 * "uploads", with a line for each step:
 *
 *     B <n> <seconds since 1970> <endpoint> <bucket> <name>    before the request that begins it
 *     I <n> <upload id>                                        the answer; or it was a predecessor's
 *     E <n>                                                    it is completed, or aborted
 *
 * names and ids percent-encoded; of a folder's file "file - <path>" and its temporary name, which tells those who sweep
 * the folder that a successor may come. An upload that has an I and no E in the file of a dead process is aborted by the
 * janitor of a later write worker, as soon as no process of its run can continue it: at once where the run is known to
 * be dead (shm/control/run_lock.h), else once the death was noticed MR_LATE_S ago and no write worker of the run lives.
 * The file stays until that was done MR_LATE_S after the notice too, since a request may have been on its way.
 *
 * Only ids are aborted, and none that a living process's file has. Of a B without an I nothing is known but the name:
 * the store's list would give uploads of that name, whose they are it does not say, and each of them may be alive.
 */
#ifndef MR_WORKER_CLEANUP_UPLOAD_LOG_H
#define MR_WORKER_CLEANUP_UPLOAD_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/cleanup/maker.h"
#include "worker/net.h"

struct mr_upload_log;

/* Makes and locks this process's file. NULL with mr_error: the folder cannot be used. */
struct mr_upload_log *mr_upload_log_new(const struct mr_maker *maker);
/* The end of the process: the file goes unless an upload is open. log may be NULL here and below: nothing is done. */
void mr_upload_log_destroy(struct mr_upload_log *log);
/* *number: for the other two; 0: it could not be written, which is logged once (`millrace clean` finds it by its
 * age). */
void mr_upload_log_begin(struct mr_upload_log *log, const struct mr_store *store, const char *bucket, const char *name,
                         size_t name_length, uint64_t *number);
void mr_upload_log_id(struct mr_upload_log *log, uint64_t number, const char *id);
/* number 0 is allowed. */
void mr_upload_log_end(struct mr_upload_log *log, uint64_t number);

struct mr_upload_janitor;

/* net must outlive it. late_s: MR_LATE_S except in tests. NULL with mr_error (NO_MEMORY). */
struct mr_upload_janitor *mr_upload_janitor_new(struct mr_net *net, int late_s);
/* Cancels what is under way. NULL is allowed. */
void mr_upload_janitor_destroy(struct mr_upload_janitor *janitor);
/* Every 100 ms or so: takes the files of the dead that are due, one after the other. */
void mr_upload_janitor_step(struct mr_upload_janitor *janitor, int64_t now_ns);
bool mr_upload_janitor_busy(const struct mr_upload_janitor *janitor);

#endif
