#include "cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/cli.h"
#include "supervisor/config_toml.h"
#include "supervisor/reload.h"

int mr_program_path(const char *name, char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash = NULL;
    if (n > 0) {
        path[n] = '\0';
        slash = strrchr(path, '/');
    }
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) + 1 > PATH_MAX) {
        mr_error_set(MR_E_INTERNAL, "the path of this program is unknown: is /proc mounted?");
        return -1;
    }
    strcpy(slash + 1, name);
    return 0;
}

/* Returns only on failure: -1. */
static int become(char *path, char **argv)
{
    execv(path, argv);
    mr_error_set_errno(errno, "cannot run %s, which must be in the same folder as millrace", path);
    return -1;
}

/* A descriptor of the configuration with -v and -q applied. -1 with mr_error. */
static int write_config(const struct mr_arguments *arguments, const struct mr_config *from)
{
    struct mr_config config = *from; /* the texts stay those of *from */
    config.log.level = mr_reload_log_level(from, mr_arguments_verbosity(arguments));
    return mr_config_to_fd(&config);
}

int mr_program_worker(const struct mr_arguments *arguments, const struct mr_config *config)
{
    size_t count = 0;
    while (arguments->argv[count])
        count++;
    int config_fd = write_config(arguments, config);
    char path[PATH_MAX];
    if (config_fd < 0 || mr_program_path("millrace-worker", path) != 0)
        return -1;
    char number[16];
    snprintf(number, sizeof number, "%d", config_fd); /* it has replaced none that the user means by /dev/fd/N */
    if (fcntl(config_fd, F_SETFD, 0) < 0 || setenv(MR_ENVIRONMENT_FD, number, 1) != 0) {
        mr_error_set_errno(errno, "cannot hand over the configuration");
        return -1;
    }
    char **argv = calloc(count + 2, sizeof *argv);
    if (!argv) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu arguments", count);
        return -1;
    }
    argv[0] = path;
    memcpy(argv + 1, arguments->argv, count * sizeof *argv);
    int rc = become(path, argv);
    free(argv);
    return rc;
}

int mr_program_devstore(char **argv)
{
    char path[PATH_MAX];
    if (mr_program_path("millrace-devstore", path) != 0)
        return -1;
    argv[0] = path;
    return become(path, argv);
}

int mr_cli_tool(const struct mr_arguments *arguments)
{
    struct mr_config config;
    if (mr_config_load(&config, mr_arguments_text(arguments, MR_OPT_CONFIG)) == 0) {
        mr_program_worker(arguments, &config);
        mr_config_close(&config);
    }
    return mr_cli_put_json_error(arguments) ? mr_code_exit_status(mr_error_code()) : mr_cli_fail();
}
