/*
 * doctor_write.h - what a store does with the conditions, the checksums and the sizes of writes, found by writing: for
 * `millrace doctor --write`.
 */
#ifndef MR_WORKER_TOOL_DOCTOR_WRITE_H
#define MR_WORKER_TOOL_DOCTOR_WRITE_H

#include "worker/tool/tool.h"

/* A line of doctor's: level ("ok", "note", "fail"), what was looked at, what was found. */
typedef void mr_doctor_line_fn(const char *level, const char *what, const char *text);

/*
 * Writes objects of a new name below uri (not more than 5 MiB and 64 KiB each), reports a line for each thing, and
 * removes them. 0 also where something failed, which is a line then; -1 after a signal: what was written is removed
 * all the same, where the store takes that.
 */
int mr_doctor_write(struct mr_tool *tool, const struct mr_uri *uri, mr_doctor_line_fn *line);

#endif
