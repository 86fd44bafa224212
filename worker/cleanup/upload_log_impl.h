/*
 * upload_log_impl.h - what the log of a living process (upload_log.c) and the janitor of the dead's (upload_janitor.c)
 * share.
 */
#ifndef MR_WORKER_CLEANUP_UPLOAD_LOG_IMPL_H
#define MR_WORKER_CLEANUP_UPLOAD_LOG_IMPL_H

#include "worker/cleanup/lock_file.h"

#define MR_UPLOAD_LOG_KIND "uploads" /* of lock file */

#endif
