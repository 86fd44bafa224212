#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/running.h"
#include "supervisor/supervisor.h"

int mr_cli_fail(void)
{
    mr_log_error("%s", mr_error_text());
    return mr_code_exit_status(mr_error_code());
}

int mr_cli_flush(void)
{
    return mr_process_flush() == 0 ? 0 : mr_cli_fail();
}

const char *mr_cli_socket(const struct mr_arguments *arguments)
{
    const char *path = mr_arguments_text(arguments, MR_OPT_SOCKET);
    if (!path || path[0] == '\0')
        path = getenv("MILLRACE_SOCKET");
    return path && path[0] != '\0' ? path : NULL;
}

struct mr_client *mr_cli_connect(const struct mr_arguments *arguments)
{
    const char *path = mr_cli_socket(arguments);
    struct mr_running running;
    if (!path && mr_running_only(&running) == 0)
        path = running.socket_path;
    return path ? mr_client_connect(path, "tool", 0) : NULL;
}

int mr_cli_supervise(const struct mr_arguments *arguments, char *const *command)
{
    mr_log_init("supervisor", MR_LOG_INFO);
    struct mr_supervisor_options supervisor = {.config_path = mr_arguments_text(arguments, MR_OPT_CONFIG),
                                               .socket_path = mr_arguments_text(arguments, MR_OPT_SOCKET),
                                               .folder_path = mr_arguments_text(arguments, MR_OPT_RUN_DIR),
                                               .is_private = mr_arguments_have(arguments, MR_OPT_PRIVATE),
                                               .command = command,
                                               .verbosity = mr_arguments_verbosity(arguments)};
    return mr_supervisor_main(&supervisor);
}
