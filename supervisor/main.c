/*
 * main.c - the command line of millrace. Errors go to standard error, data to standard output; exit status 0 done,
 * 1 failed, 2 wrong usage or configuration, and for `run` the command's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/client.h"
#include "shm/config.h"
#include "shm/msg.h"
#include "supervisor/check.h"
#include "supervisor/config_toml.h"
#include "supervisor/stat.h"
#include "supervisor/supervisor.h"

#define CONFIG_FD 4 /* where `millrace-worker ls` finds the configuration */

struct verb {
    const char *name;
    int (*run)(int argc, char **argv, const struct verb *verb);
    const char *usage; /* after "millrace NAME" */
    const char *help;
};

/* Options that verbs share; each verb allows some of them. */
struct options {
    const char *config, *socket, *run_dir;
    bool is_private, json, prometheus, reference;
    int verbosity;
};

enum { OPT_SOCKET = 256, OPT_RUN_DIR, OPT_PRIVATE, OPT_JSON, OPT_PROMETHEUS, OPT_REFERENCE, OPT_HELP };

static const struct option long_options[] = {{"config", required_argument, NULL, 'c'},
                                             {"verbose", no_argument, NULL, 'v'},
                                             {"quiet", no_argument, NULL, 'q'},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"socket", required_argument, NULL, OPT_SOCKET},
                                             {"run-dir", required_argument, NULL, OPT_RUN_DIR},
                                             {"private", no_argument, NULL, OPT_PRIVATE},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"prometheus", no_argument, NULL, OPT_PROMETHEUS},
                                             {"reference", no_argument, NULL, OPT_REFERENCE},
                                             {0}};

static void print_help(const struct verb *verb, FILE *out)
{
    fprintf(out, "usage: millrace %s %s\n\n%s", verb->name, verb->usage, verb->help);
}

static int wrong_usage(const struct verb *verb)
{
    fprintf(stderr, "usage: millrace %s %s\n'millrace %s --help' says more.\n", verb->name, verb->usage, verb->name);
    return 2;
}

static int fail(void)
{
    mr_log_error("%s", mr_error_text());
    return mr_code_exit_status(mr_error_code());
}

static bool take_option(struct options *options, int option)
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
    case OPT_SOCKET:
        options->socket = optarg;
        return true;
    case OPT_RUN_DIR:
        options->run_dir = optarg;
        return true;
    case OPT_PRIVATE:
        options->is_private = true;
        return true;
    case OPT_JSON:
        options->json = true;
        return true;
    case OPT_PROMETHEUS:
        options->prometheus = true;
        return true;
    case OPT_REFERENCE:
        options->reference = true;
        return true;
    default:
        return false;
    }
}

/* Parses; `allowed` holds the codes that this verb knows. Returns -1 to go on (optind is at the rest), else the exit
 * status. */
static int parse(int argc, char **argv, const struct verb *verb, const int *allowed, struct options *options)
{
    int option;
    *options = (struct options){.config = NULL};
    optind = 1;
    while ((option = getopt_long(argc, argv, "+c:vqh", long_options, NULL)) != -1) {
        if (option == OPT_HELP || option == 'h') {
            print_help(verb, stdout);
            return 0;
        }
        bool known = option == 'v' || option == 'q';
        for (const int *code = allowed; *code != 0; code++)
            known |= *code == option;
        if (!known && option != '?')
            fprintf(stderr, "millrace %s does not take the option '%s'\n", verb->name, argv[optind - 1]);
        if (!known || !take_option(options, option))
            return wrong_usage(verb);
    }
    return -1;
}

/* -v and -q against a level. */
static enum mr_log_level level_of(const struct options *options, enum mr_log_level level)
{
    int moved = (int)level + options->verbosity;
    return moved < MR_LOG_ERROR ? MR_LOG_ERROR : moved > MR_LOG_DEBUG ? MR_LOG_DEBUG : (enum mr_log_level)moved;
}

static int supervise(const struct options *options, char *const *command)
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

static int verb_run(int argc, char **argv, const struct verb *verb)
{
    struct options options;
    int status = parse(argc, argv, verb, (const int[]){'c', OPT_SOCKET, 0}, &options);
    if (status >= 0)
        return status;
    if (optind >= argc) {
        fprintf(stderr, "millrace run needs a command after --\n");
        return wrong_usage(verb);
    }
    return supervise(&options, argv + optind);
}

static int verb_serve(int argc, char **argv, const struct verb *verb)
{
    struct options options;
    int status = parse(argc, argv, verb, (const int[]){'c', OPT_SOCKET, OPT_PRIVATE, OPT_RUN_DIR, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc || (options.run_dir != NULL && !options.is_private))
        return wrong_usage(verb);
    if (options.is_private)
        setsid(); /* Ctrl-C is for the training; our end is that of the last client */
    return supervise(&options, NULL);
}

static int verb_check(int argc, char **argv, const struct verb *verb)
{
    struct options options;
    struct mr_config config;
    int status = parse(argc, argv, verb, (const int[]){'c', OPT_REFERENCE, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc)
        return wrong_usage(verb);
    if (options.reference) {
        mr_check_print_reference(stdout);
        return 0;
    }
    if (mr_config_load(&config, options.config) != 0)
        return fail();
    mr_check_print(&config, stdout);
    mr_config_close(&config);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* ---- commands that speak to a supervisor ---- */

static struct mr_client *connect_tool(const struct options *options)
{
    const char *path = options->socket != NULL ? options->socket : getenv("MILLRACE_SOCKET");
    if (path == NULL || path[0] == '\0') {
        mr_error_set(MR_E_USAGE, "which supervisor? Set MILLRACE_SOCKET or give --socket PATH");
        return NULL;
    }
    return mr_client_connect(path, "tool", 0);
}

static int verb_stat(int argc, char **argv, const struct verb *verb)
{
    struct options options;
    int status = parse(argc, argv, verb, (const int[]){OPT_SOCKET, OPT_JSON, OPT_PROMETHEUS, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc || (options.json && options.prometheus))
        return wrong_usage(verb);
    struct mr_client *client = connect_tool(&options);
    if (client == NULL)
        return fail();
    char *text = mr_client_stat(client);
    int rc = text == NULL ? -1 : 0;
    if (rc == 0 && options.json)
        rc = puts(text) < 0 ? -1 : 0;
    else if (rc == 0)
        rc = options.prometheus ? mr_stat_print_prometheus(text) : mr_stat_print_text(text);
    free(text);
    mr_client_destroy(client);
    return rc == 0 ? 0 : fail();
}

static int verb_reload(int argc, char **argv, const struct verb *verb)
{
    struct options options;
    int status = parse(argc, argv, verb, (const int[]){OPT_SOCKET, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc)
        return wrong_usage(verb);
    struct mr_client *client = connect_tool(&options);
    char *text = client != NULL ? mr_client_reload(client) : NULL;
    if (text != NULL)
        puts(text);
    status = text != NULL ? 0 : fail();
    free(text);
    mr_client_destroy(client);
    return status;
}

/* ---- commands that need the network: millrace-worker ---- */

static int worker_path(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash = NULL;
    if (n > 0) {
        path[n] = '\0';
        slash = strrchr(path, '/');
    }
    if (slash == NULL || slash + 1 - path + sizeof "millrace-worker" > PATH_MAX) {
        mr_error_set(MR_E_INTERNAL, "cannot tell where this program lies");
        return -1;
    }
    strcpy(slash + 1, "millrace-worker");
    return 0;
}

/* Becomes `millrace-worker VERB ARGS`, with the configuration in descriptor 4. */
static int exec_worker(const struct options *options, const char *verb, char **arguments)
{
    struct mr_config config;
    char path[PATH_MAX];
    char *argv[64] = {path, (char *)(uintptr_t)verb};
    size_t count = 2;
    if (mr_config_load(&config, options->config) != 0)
        return fail();
    config.log.level = level_of(options, (enum mr_log_level)config.log.level);
    int fd = mr_config_to_fd(&config);
    mr_config_close(&config);
    if (fd < 0 || worker_path(path) != 0)
        return fail();
    while (*arguments != NULL && count < sizeof argv / sizeof argv[0] - 1)
        argv[count++] = *arguments++;
    argv[count] = NULL;
    if (fd == CONFIG_FD)
        fcntl(fd, F_SETFD, 0);
    else if (dup2(fd, CONFIG_FD) < 0)
        return 1;
    setenv(MR_ENVIRONMENT_FD, "4", 1);
    execv(path, argv);
    mr_error_set_errno(errno, "cannot run %s, which belongs beside millrace", path);
    return fail();
}

/* -c, -v and -q are ours, in any place before "--"; all else is the worker's. */
static int verb_tool(int argc, char **argv, const struct verb *verb)
{
    struct options options = {.config = NULL};
    int kept = 1;
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        if (ended || argv[i][0] != '-')
            argv[kept++] = argv[i];
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return print_help(verb, stdout), 0;
        else if (strcmp(argv[i], "-c") == 0 && i + 1 < argc)
            options.config = argv[++i];
        else if (strcmp(argv[i], "-v") == 0)
            options.verbosity++;
        else if (strcmp(argv[i], "-q") == 0)
            options.verbosity--;
        else {
            ended |= strcmp(argv[i], "--") == 0;
            argv[kept++] = argv[i];
        }
    }
    argv[kept] = NULL;
    if (kept < 2)
        return wrong_usage(verb);
    return exec_worker(&options, verb->name, argv + 1);
}

/* ---- the table ---- */

static const struct verb verbs[] = {
    {"run", verb_run, "[-c FILE] [-v|-q] -- COMMAND [ARGS...]",
     "Starts a supervisor, runs COMMAND with MILLRACE_SOCKET set, and ends with it.\n"
     "The exit status is the command's. Signals sent to millrace are passed on to it.\n\n"
     "  -c FILE        configuration (TOML)\n"
     "  -v, -q         more, or fewer, lines on standard error; may be repeated\n"
     "  --socket PATH  where to listen, instead of a run folder of its own\n"},
    {"serve", verb_serve, "[-c FILE] [-v|-q] [--socket PATH]",
     "A supervisor alone, until SIGTERM or SIGINT. It prints MILLRACE_SOCKET=PATH, which\n"
     "training processes need in their environment. SIGHUP rereads the configuration.\n\n"
     "  -c FILE        configuration (TOML)\n"
     "  --socket PATH  where to listen, instead of a run folder of its own\n"
     "  -v, -q         more, or fewer, lines on standard error\n"},
    {"check", verb_check, "[-c FILE] [--reference]",
     "Checks the configuration and prints it with all defaults filled in.\n\n"
     "  -c FILE        configuration (TOML); without it the defaults are printed\n"
     "  --reference    prints the reference of all keys, as Markdown\n"},
    {"ls", verb_tool, "[-c FILE] [-l] [-r] URI",
     "Lists one level under URI, one URI a line.\n\n"
     "  -l             size, generation and crc32c (base64) before each URI, separated by tabs\n"
     "  -r             everything under URI\n"
     "  -c FILE        configuration (TOML)\n"},
    {"cat", verb_tool, "[-c FILE] URI [--range A-B]",
     "Writes an object's bytes to standard output, checked.\n\n"
     "  --range A-B    bytes A to B, both inclusive, as in HTTP\n"
     "  -c FILE        configuration (TOML)\n"},
    {"stat", verb_stat, "[--socket PATH] [--json|--prometheus]",
     "What a running supervisor has done, per data set, worker and lane, and the stage that\n"
     "limits it. It is found by MILLRACE_SOCKET.\n\n"
     "  --socket PATH  the supervisor's socket, instead of MILLRACE_SOCKET\n"
     "  --json         for programs\n"
     "  --prometheus   in Prometheus' text format\n"},
    {"reload", verb_reload, "[--socket PATH]",
     "Lets a running supervisor reread its configuration, and prints what has been applied\n"
     "and what needs a new start.\n\n"
     "  --socket PATH  the supervisor's socket, instead of MILLRACE_SOCKET\n"},
};

static void print_usage(FILE *out)
{
    fprintf(out, "millrace %s: feeds training jobs from object storage through shared memory\n\n", MR_VERSION);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        fprintf(out, "  millrace %s %s\n", verbs[i].name, verbs[i].usage);
    fprintf(out, "\n'millrace VERB --help' says more; 'millrace --version' prints the version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("millrace %s\n", MR_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) {
            mr_log_init(verbs[i].name, MR_LOG_INFO);
            return verbs[i].run(argc - 1, argv + 1, &verbs[i]);
        }
    fprintf(stderr, "millrace: there is no command '%s'; 'millrace --help' lists them\n", argv[1]);
    return 2;
}
