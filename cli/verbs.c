#include "cli/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/control/config.h"
#include "supervisor/config_toml.h"
#include "supervisor/supervisor.h"

#define CONFIG_FD 4 /* where the tools of millrace-worker find the configuration */

static const struct option long_options[] = {{"config", required_argument, NULL, 'c'},
                                             {"verbose", no_argument, NULL, 'v'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, MR_OPT_HELP},
                                             {"socket", required_argument, NULL, MR_OPT_SOCKET},
                                             {"run-dir", required_argument, NULL, MR_OPT_RUN_DIR},
                                             {"private", no_argument, NULL, MR_OPT_PRIVATE},
                                             {"json", no_argument, NULL, MR_OPT_JSON},
                                             {"prometheus", no_argument, NULL, MR_OPT_PROMETHEUS},
                                             {"reference", no_argument, NULL, MR_OPT_REFERENCE},
                                             {"dataset", required_argument, NULL, MR_OPT_DATASET},
                                             {"batch-size", required_argument, NULL, MR_OPT_BATCH_SIZE},
                                             {"steps", required_argument, NULL, MR_OPT_STEPS},
                                             {"workers", required_argument, NULL, MR_OPT_WORKERS},
                                             {"interval", required_argument, NULL, MR_OPT_INTERVAL},
                                             {"count", required_argument, NULL, MR_OPT_COUNT},
                                             {0}};

void mr_verb_help(const struct mr_verb *verb, FILE *out)
{
    fprintf(out, "usage: millrace %s %s\n\n%s", verb->name, verb->usage, verb->help);
}

int mr_verb_wrong_usage(const struct mr_verb *verb)
{
    fprintf(stderr, "usage: millrace %s %s\n'millrace %s --help' says more.\n", verb->name, verb->usage, verb->name);
    return 2;
}

int mr_verb_fail(void)
{
    mr_log_error("%s", mr_error_text());
    return mr_code_exit_status(mr_error_code());
}

/* A whole number of 1 to most. */
static bool take_number(const char *name, uint64_t most, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(optarg, &end, 10);
    if (errno == 0 && *optarg >= '0' && *optarg <= '9' && *end == '\0' && number >= 1 && number <= most) {
        *value = number;
        return true;
    }
    fprintf(stderr, "%s \"%s\" is not a number of 1 to %llu\n", name, optarg, (unsigned long long)most);
    return false;
}

static bool take_seconds(const char *name, double *value)
{
    char *end;
    *value = strtod(optarg, &end);
    if (end != optarg && *end == '\0' && *value >= 0.1 && *value <= 86400)
        return true;
    fprintf(stderr, "%s \"%s\" is not a number of seconds from 0.1 to 86400\n", name, optarg);
    return false;
}

static bool take_option(struct mr_options *options, int option)
{
    switch (option) {
    case 'c':
        options->config = optarg;
        return true;
    case 'v':
        options->verbosity++;
        return true;
    case 'q':
        options->verbosity--;
        return true;
    case MR_OPT_SOCKET:
        options->socket = optarg;
        return true;
    case MR_OPT_RUN_DIR:
        options->run_dir = optarg;
        return true;
    case MR_OPT_PRIVATE:
        options->is_private = true;
        return true;
    case MR_OPT_JSON:
        options->json = true;
        return true;
    case MR_OPT_PROMETHEUS:
        options->prometheus = true;
        return true;
    case MR_OPT_REFERENCE:
        options->reference = true;
        return true;
    case MR_OPT_DATASET:
        options->dataset = optarg;
        return true;
    case MR_OPT_BATCH_SIZE:
        return take_number("--batch-size", 65536, &options->batch_size);
    case MR_OPT_STEPS:
        return take_number("--steps", UINT32_MAX, &options->steps);
    case MR_OPT_WORKERS:
        return take_number("--workers", 256, &options->workers);
    case MR_OPT_INTERVAL:
        return take_seconds("--interval", &options->interval_s);
    case MR_OPT_COUNT:
        return take_number("--count", UINT32_MAX, &options->count);
    default:
        return false;
    }
}

int mr_verb_parse(int argc, char **argv, const struct mr_verb *verb, const int *allowed, struct mr_options *options)
{
    int option;
    *options = (struct mr_options){.config = NULL};
    optind = 1;
    while ((option = getopt_long(argc, argv, "+c:vqh", long_options, NULL)) != -1) {
        if (option == MR_OPT_HELP || option == 'h') {
            mr_verb_help(verb, stdout);
            return 0;
        }
        bool known = option == 'v' || option == 'q';
        for (const int *code = allowed; *code != 0; code++)
            known |= *code == option;
        if (!known && option != '?')
            fprintf(stderr, "millrace %s does not take the option '%s'\n", verb->name, argv[optind - 1]);
        if (!known || !take_option(options, option))
            return mr_verb_wrong_usage(verb);
    }
    return -1;
}

int mr_verb_sibling(const char *name, char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash = NULL;
    if (n > 0) {
        path[n] = '\0';
        slash = strrchr(path, '/');
    }
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) + 1 > PATH_MAX) {
        mr_error_set(MR_E_INTERNAL, "cannot tell where this program lies");
        return -1;
    }
    strcpy(slash + 1, name);
    return 0;
}

int mr_verb_supervise(const struct mr_options *options, char *const *command)
{
    mr_log_init("supervisor", MR_LOG_INFO);
    struct mr_supervisor_options supervisor = {.config_path = options->config,
                                               .socket_path = options->socket,
                                               .folder_path = options->run_dir,
                                               .is_private = options->is_private,
                                               .command = command,
                                               .verbosity = options->verbosity};
    return mr_supervisor_main(&supervisor);
}

struct mr_client *mr_verb_connect(const struct mr_options *options)
{
    const char *path = options->socket ? options->socket : getenv("MILLRACE_SOCKET");
    if (!path || path[0] == '\0') {
        mr_error_set(MR_E_USAGE, "which supervisor? Set MILLRACE_SOCKET or give --socket PATH");
        return NULL;
    }
    return mr_client_connect(path, "tool", 0);
}

int mr_verb_config_fd(const struct mr_options *options)
{
    struct mr_config config;
    if (mr_config_load(&config, options->config) != 0)
        return -1;
    int level = (int)config.log.level + options->verbosity;
    config.log.level = (uint64_t)(level < MR_LOG_ERROR ? MR_LOG_ERROR : level > MR_LOG_DEBUG ? MR_LOG_DEBUG : level);
    int fd = mr_config_to_fd(&config);
    mr_config_close(&config);
    return fd;
}

int mr_verb_exec_worker(int config_fd, const char *verb, char *const *arguments)
{
    char path[PATH_MAX];
    size_t count = 0;
    while (arguments[count])
        count++;
    char **argv = calloc(count + 3, sizeof *argv);
    if (!argv) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu arguments", count);
        return -1;
    }
    if (mr_verb_sibling("millrace-worker", path) != 0)
        goto out;
    argv[0] = path;
    argv[1] = (char *)(uintptr_t)verb;
    memcpy(argv + 2, arguments, count * sizeof *argv);
    if (config_fd == CONFIG_FD ? fcntl(config_fd, F_SETFD, 0) < 0 : dup2(config_fd, CONFIG_FD) < 0) {
        mr_error_set_errno(errno, "cannot hand over the configuration");
        goto out;
    }
    setenv(MR_ENVIRONMENT_FD, "4", 1);
    execv(path, argv);
    mr_error_set_errno(errno, "cannot run %s, which belongs beside millrace", path);
out:
    free(argv);
    return -1;
}
