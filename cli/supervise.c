/* supervise.c - `millrace run` and `millrace serve`: this process becomes the supervisor. */
#include <unistd.h>

#include "cli/cli.h"

int mr_cli_run(const struct mr_arguments *arguments)
{
    return mr_cli_supervise(arguments, arguments->operands);
}

int mr_cli_serve(const struct mr_arguments *arguments)
{
    if (mr_arguments_have(arguments, MR_OPT_PRIVATE))
        setsid(); /* Ctrl-C is for the training; our end is that of the last client */
    return mr_cli_supervise(arguments, NULL);
}
