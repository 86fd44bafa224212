/* stat_impl.h - what a run has done and what limits it (the supervisor's JSON, supervisor/stat.h) as text. */
#ifndef MR_CLI_STAT_IMPL_H
#define MR_CLI_STAT_IMPL_H

/* For people, or in Prometheus' text format, to standard output. 0, or -1 (PROTOCOL). */
int mr_stat_print_text(const char *json);
int mr_stat_print_prometheus(const char *json);

#endif
