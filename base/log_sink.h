/*
 * log_sink.h - standard error, written without ever waiting for it: a paused pager, Ctrl-S and a full pipe must not
 * stop the supervisor's one thread, or a worker that others wait for.
 *
 * What does not go out at once is kept, up to LOG_SINK_BYTES; further lines are counted and lost, and the count follows
 * when there is room again. The caller serialises (log.c holds its lock).
 */
#ifndef MR_BASE_LOG_SINK_H
#define MR_BASE_LOG_SINK_H

#include <stdbool.h>
#include <stddef.h>

#define LOG_SINK_BYTES (64u << 10)

/* One line with its newline, or a text for a terminal. */
void mr_log_sink_put(const char *line, size_t length);
/* Tries again what is kept. True when nothing is left. */
bool mr_log_sink_flush(void);

#endif
