/* upload_log_impl.h - what the writer of the files and their reader share. */
#ifndef MR_WORKER_CLEANUP_UPLOAD_LOG_IMPL_H
#define MR_WORKER_CLEANUP_UPLOAD_LOG_IMPL_H

#include <limits.h>

#include "shm/control/runtime_folder.h"

/* The folder of the files, made. 0 or -1. */
int mr_upload_log_folder(char path[PATH_MAX]);

#endif
