/*
 * write_again.h - uploads that were aborted, and are aborted once more when nothing of them can be under way.
 *
 * A request that was broken off may still reach the store: a part that comes after the abort may stay, and be billed,
 * as may its upload (S3 says so of AbortMultipartUpload; versitygw lists it again). Until the second abort the log of
 * uploads has it, so that after an end of this process a later one does it.
 */
#ifndef MR_WORKER_WRITE_WRITE_AGAIN_H
#define MR_WORKER_WRITE_WRITE_AGAIN_H

#include <stdint.h>

#include "worker/cleanup/upload_log.h"
#include "worker/net.h"

struct mr_write_again; /* a list; NULL is the empty one */

/* The upload has been aborted for the first time; number: of the log, whose entry ends with the second time, late_s from
 * now. Without memory it stays in the log. */
void mr_write_again_add(struct mr_write_again **list, struct mr_store *store, const char *name, const char *id,
                        uint64_t number, int late_s);
/* Every 100 ms or so. */
void mr_write_again_step(struct mr_write_again **list, struct mr_net *net, struct mr_upload_log *log);
/* Cancels what is under way; the rest stays in the log. */
void mr_write_again_close(struct mr_write_again **list, struct mr_net *net);

#endif
