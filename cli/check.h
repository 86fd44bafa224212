/* check.h - the configuration as text: for `millrace check`, and the reference page of the documentation. */
#ifndef MR_CLI_CHECK_H
#define MR_CLI_CHECK_H

#include <stdio.h>

#include "shm/control/config.h"

/* The configuration as TOML with all defaults filled in. Values of http.headers are not shown. */
void mr_check_print(const struct mr_config *config, FILE *out);
/* docs/configuration.md. */
void mr_check_print_reference(FILE *out);

#endif
