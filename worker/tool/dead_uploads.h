/*
 * dead_uploads.h - the unfinished uploads that dead runs of this machine have left records of, for `doctor` and `clean`
 * to name: a run of their endpoint removes them, and nobody does while that endpoint does not answer.
 */
#ifndef MR_WORKER_TOOL_DEAD_UPLOADS_H
#define MR_WORKER_TOOL_DEAD_UPLOADS_H

#include <stdint.h>

/* Once an endpoint: its number of uploads, the oldest of them, and what to do. bucket: of that one alone; NULL: all. */
void mr_tool_dead_uploads(const char *bucket, void (*say)(void *arg, const char *line), void *arg);

#endif
