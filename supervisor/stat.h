/* stat.h - what a run has done and what limits it, as JSON (the supervisor's side) and as text (the tool's). */
#ifndef MR_SUPERVISOR_STAT_H
#define MR_SUPERVISOR_STAT_H

#include <stddef.h>

struct mr_supervisor;

/* malloc'ed JSON text; NULL: NO_MEMORY. */
char *mr_stat_json(const struct mr_supervisor *s);
/* The line of metrics.interval_s: throughput since the line before it, and the limit. */
void mr_stat_log(struct mr_supervisor *s);

#endif
