/* programs.h - the programs beside this one: how a verb becomes millrace-worker or millrace-devstore. */
#ifndef MR_CLI_PROGRAMS_H
#define MR_CLI_PROGRAMS_H

#include <limits.h>

#include "cli/verbs/arguments.h"
#include "shm/control/config.h"

/* The path of a program in the same folder as this one. 0 or -1. */
int mr_program_path(const char *name, char path[PATH_MAX]);
/* Becomes `millrace-worker VERB ...` with the same arguments and this configuration, with -v and -q applied. Returns
 * only on failure: -1. */
int mr_program_worker(const struct mr_arguments *arguments, const struct mr_config *config);
/* Becomes millrace-devstore. argv[0] is replaced. Returns only on failure: -1. */
int mr_program_devstore(char **argv);

#endif
