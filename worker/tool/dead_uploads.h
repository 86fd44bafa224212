/*
 * dead_uploads.h - unfinished uploads that dead runs of this machine have recorded, for `doctor` and `clean` to report:
 * the next run that uses their endpoint removes them, so they stay while that endpoint does not answer.
 */
#ifndef MR_WORKER_TOOL_DEAD_UPLOADS_H
#define MR_WORKER_TOOL_DEAD_UPLOADS_H

#include <stdint.h>

/* Calls say once per endpoint: how many uploads it has, the oldest of them, and what to do. bucket: only its uploads;
 * NULL: all. */
void mr_tool_dead_uploads(const char *bucket, void (*say)(void *arg, const char *line), void *arg);

#endif
