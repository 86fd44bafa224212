/*
 * doctor_write.h - how a store treats the conditions, checksums and sizes of writes, found out by writing, for
 * `millrace doctor --write`.
 */
#ifndef MR_WORKER_TOOL_DOCTOR_WRITE_H
#define MR_WORKER_TOOL_DOCTOR_WRITE_H

#include "worker/tool/tool.h"

/* Prints one line of doctor: level ("ok", "note", "fail"), what was checked, what was found. */
typedef void mr_doctor_line_fn(const char *level, const char *what, const char *text);

/*
 * Writes objects with new names below uri (at most 5 MiB and 64 KiB each), reports a line for each check, and removes
 * them. 0 even where a check failed, which its line says; -1 without memory, and after a signal, when what was written
 * is still removed if the store allows it.
 */
int mr_doctor_write(struct mr_tool *tool, const struct mr_uri *uri, mr_doctor_line_fn *line);

#endif
