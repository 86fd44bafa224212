/* help.h - the help and the usage of a verb as text, from the table (cli/verbs/verbs.h). */
#ifndef MR_CLI_HELP_H
#define MR_CLI_HELP_H

#include <stdio.h>

#include "cli/verbs/verbs.h"

#define MR_SYNOPSIS_SIZE 64

/* "-c FILE", as the usage has it: short where there is a short form. Returns out. */
const char *mr_help_synopsis(const struct mr_verb *verb, const struct mr_verb_option *option,
                             char out[MR_SYNOPSIS_SIZE]);
/* Whether the usage shows it: not so hidden options, -v, -q and --help. */
bool mr_help_in_usage(const struct mr_verb_option *option);
/* "usage: millrace VERB ...", in one line or more. */
void mr_help_usage(const struct mr_verb *verb, FILE *out);
/* Usage, description and options. */
void mr_help_verb(const struct mr_verb *verb, FILE *out);
/* All verbs, one line each. */
void mr_help_all(FILE *out);

#endif
