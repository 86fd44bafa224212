/* stat.c - `millrace stat` and `millrace reload`: one request to a running supervisor. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/stat_impl.h"

int mr_cli_stat(const struct mr_arguments *arguments)
{
    struct mr_client *client = mr_cli_connect(arguments);
    if (!client)
        return mr_cli_fail();
    char *text = mr_client_stat(client);
    int rc = text ? 0 : -1;
    if (text && mr_arguments_have(arguments, MR_OPT_JSON))
        puts(text);
    else if (text && mr_arguments_have(arguments, MR_OPT_PROMETHEUS))
        rc = mr_stat_print_prometheus(text);
    else if (text)
        rc = mr_stat_print_text(text);
    free(text);
    mr_client_destroy(client);
    return rc == 0 ? mr_cli_flush() : mr_cli_fail();
}

int mr_cli_reload(const struct mr_arguments *arguments)
{
    struct mr_client *client = mr_cli_connect(arguments);
    char *text = client ? mr_client_reload(client) : NULL;
    if (text)
        puts(text);
    int status = text ? mr_cli_flush() : mr_cli_fail();
    free(text);
    mr_client_destroy(client);
    return status;
}
