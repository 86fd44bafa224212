/* arguments_impl.h - private to arguments.c and arguments_check.c. */
#ifndef MR_CLI_VERBS_ARGUMENTS_IMPL_H
#define MR_CLI_VERBS_ARGUMENTS_IMPL_H

#include "cli/verbs/arguments.h"

/* Parses the value of an option, which `name` ("--steps") names in the error. 0, or -1 (USAGE). */
int mr_arguments_check_value(const struct mr_option *option, const char *name, struct mr_option_value *value);
/* Operands, and options that exclude or need another. 0, or -1 (USAGE). */
int mr_arguments_check(const struct mr_arguments *arguments);

#endif
