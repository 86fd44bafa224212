/* supervise.c - `millrace run`, `millrace serve`, `millrace mount`: this process becomes the supervisor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/programs.h"

/* The path of the program that mounts. 0, or -1: a build without libfuse3 does not have it. */
static int find_mount(char path[PATH_MAX])
{
    if (mr_program_path("millrace-mount", path) != 0)
        return -1;
    if (access(path, X_OK) == 0)
        return 0;
    mr_error_set(MR_E_CONFIG, "this millrace was built without libfuse3, which mounts need: install libfuse3-dev and "
                              "fuse3, and build it again");
    return -1;
}

/* millrace-mount URI DIR -- COMMAND... */
static int run_mounted(const struct mr_arguments *arguments, const char *mount)
{
    char path[PATH_MAX];
    char *uri = strdup(mount);
    char **command = calloc(arguments->operand_count + 5, sizeof *command);
    int status = 1;
    if (!uri || !command) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a command line");
        status = mr_cli_fail();
    } else if (find_mount(path) != 0) {
        status = mr_cli_fail();
    } else {
        char *equals = strrchr(uri, '=');
        *equals = '\0';
        command[0] = path;
        command[1] = uri;
        command[2] = equals + 1;
        command[3] = "--";
        memcpy(command + 4, arguments->operands, arguments->operand_count * sizeof *command);
        status = mr_cli_supervise(arguments, command);
    }
    free(command);
    free(uri);
    return status;
}

int mr_cli_run(const struct mr_arguments *arguments)
{
    const char *mount = mr_arguments_text(arguments, MR_OPT_MOUNT);
    return mount ? run_mounted(arguments, mount) : mr_cli_supervise(arguments, arguments->operands);
}

int mr_cli_mount(const struct mr_arguments *arguments)
{
    char path[PATH_MAX];
    if (find_mount(path) != 0)
        return mr_cli_fail();
    char *command[] = {path, arguments->operands[0], arguments->operands[1], NULL};
    if (mr_arguments_have(arguments, MR_OPT_CONFIG) || !mr_cli_socket(arguments))
        return mr_cli_supervise(arguments, command);
    execv(path, command);
    mr_error_set_errno(errno, "cannot run %s", path);
    return mr_cli_fail();
}

int mr_cli_serve(const struct mr_arguments *arguments)
{
    if (mr_arguments_have(arguments, MR_OPT_PRIVATE))
        setsid(); /* Ctrl-C is for the training; we end with the last client */
    return mr_cli_supervise(arguments, NULL);
}
