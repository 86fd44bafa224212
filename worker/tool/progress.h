/* progress.h - a line on standard error that shows how far a long command is; only where that is a terminal. */
#ifndef MR_WORKER_TOOL_PROGRESS_H
#define MR_WORKER_TOOL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct mr_progress {
    bool shown; /* standard error is a terminal */
    const char *what;
    bool bytes;     /* the counts are bytes, not things */
    uint64_t total; /* 0: not known */
    int64_t began_ns, drawn_ns;
};

/* what: kept by reference. */
void mr_progress_begin(struct mr_progress *progress, const char *what, uint64_t total, bool bytes);
/* Draws ten times a second at most. */
void mr_progress_update(struct mr_progress *progress, uint64_t done);
/* Removes the line. */
void mr_progress_end(struct mr_progress *progress);

#endif
