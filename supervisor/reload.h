/* reload.h - rereads the configuration file and applies what can be applied during the run. */
#ifndef MR_SUPERVISOR_RELOAD_H
#define MR_SUPERVISOR_RELOAD_H

#include <stddef.h>
#include <stdint.h>

struct mr_config;
struct mr_supervisor;

/* The log level of the file, moved by -v and -q. */
uint64_t mr_reload_log_level(const struct mr_config *config, int verbosity);
/* Workers start again with what has changed. text: that, and what needs a new start. 0, or -1: the file is bad, or
 * there is none, and nothing has changed. */
int mr_reload(struct mr_supervisor *s, char *text, size_t size);

#endif
