/*
 * main.c - the command line of millrace. Errors go to standard error, data to standard output; exit status 0 done,
 * 1 failed, 2 wrong usage or configuration, and for `run` the command's own.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/check.h"
#include "cli/stat_print.h"
#include "cli/verbs.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/base/process.h"
#include "shm/control/client.h"
#include "shm/control/config.h"
#include "supervisor/config_toml.h"

static int verb_run(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    int status = mr_verb_parse(argc, argv, verb, (const int[]){'c', MR_OPT_SOCKET, 0}, &options);
    if (status >= 0)
        return status;
    if (optind >= argc) {
        fprintf(stderr, "millrace run needs a command after --\n");
        return mr_verb_wrong_usage(verb);
    }
    return mr_verb_supervise(&options, argv + optind);
}

static int verb_serve(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    int status =
        mr_verb_parse(argc, argv, verb, (const int[]){'c', MR_OPT_SOCKET, MR_OPT_PRIVATE, MR_OPT_RUN_DIR, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc || (options.run_dir && !options.is_private))
        return mr_verb_wrong_usage(verb);
    if (options.is_private)
        setsid(); /* Ctrl-C is for the training; our end is that of the last client */
    return mr_verb_supervise(&options, NULL);
}

static int verb_check(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    struct mr_config config;
    int status = mr_verb_parse(argc, argv, verb, (const int[]){'c', MR_OPT_REFERENCE, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc)
        return mr_verb_wrong_usage(verb);
    if (options.reference) {
        mr_check_print_reference(stdout);
        return 0;
    }
    if (mr_config_load(&config, options.config) != 0)
        return mr_verb_fail();
    mr_check_print(&config, stdout);
    mr_config_close(&config);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* ---- commands that speak to a supervisor ---- */

static int verb_stat(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    int status =
        mr_verb_parse(argc, argv, verb, (const int[]){MR_OPT_SOCKET, MR_OPT_JSON, MR_OPT_PROMETHEUS, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc || (options.json && options.prometheus))
        return mr_verb_wrong_usage(verb);
    struct mr_client *client = mr_verb_connect(&options);
    if (!client)
        return mr_verb_fail();
    char *text = mr_client_stat(client);
    int rc = !text ? -1 : 0;
    if (rc == 0 && options.json)
        rc = puts(text) < 0 ? -1 : 0;
    else if (rc == 0)
        rc = options.prometheus ? mr_stat_print_prometheus(text) : mr_stat_print_text(text);
    free(text);
    mr_client_destroy(client);
    return rc == 0 ? 0 : mr_verb_fail();
}

static int verb_reload(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    int status = mr_verb_parse(argc, argv, verb, (const int[]){MR_OPT_SOCKET, 0}, &options);
    if (status >= 0)
        return status;
    if (optind < argc)
        return mr_verb_wrong_usage(verb);
    struct mr_client *client = mr_verb_connect(&options);
    char *text = client ? mr_client_reload(client) : NULL;
    if (text)
        puts(text);
    status = text ? 0 : mr_verb_fail();
    free(text);
    mr_client_destroy(client);
    return status;
}

/* ---- commands that need the network: millrace-worker ---- */

/* -c, -v and -q are ours, in any place before "--"; all else is the worker's. */
static int verb_tool(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options = {.config = NULL};
    int kept = 1;
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        if (ended || argv[i][0] != '-')
            argv[kept++] = argv[i];
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return mr_verb_help(verb, stdout), 0;
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
        return mr_verb_wrong_usage(verb);
    int config_fd = mr_verb_config_fd(&options);
    if (config_fd >= 0)
        mr_verb_exec_worker(config_fd, verb->name, argv + 1);
    return mr_verb_fail();
}

/* ---- the table ---- */

/* A program of its own, with its own options. */
static int verb_devstore(int argc, char **argv, const struct mr_verb *verb)
{
    char path[PATH_MAX];
    (void)argc, (void)verb;
    if (mr_verb_sibling("millrace-devstore", path) == 0) {
        argv[0] = path;
        execv(path, argv);
        mr_error_set_errno(errno, "cannot run %s, which belongs beside millrace", path);
    }
    return mr_verb_fail();
}

static const struct mr_verb verbs[] = {
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
    {"doctor", mr_verb_doctor, "[-c FILE] [--json] [URI...]",
     "Checks this machine, the credentials, the endpoint, and each data set's bucket: one line a check,\n"
     "with what to do. The exit status is 1 where something fails.\n\n"
     "  -c FILE        configuration (TOML)\n"
     "  URI            what to look at, instead of the configuration's data sets\n"
     "  --json         for programs\n"},
    {"ls", verb_tool, "[-c FILE] [-l] [-r] [--json] URI",
     "Lists one level under URI, one URI a line.\n\n"
     "  -l             size, generation and crc32c (base64) before each URI, separated by tabs\n"
     "  -r             everything under URI\n"
     "  --json         one JSON object a line; an error is one too, on standard error\n"
     "  -c FILE        configuration (TOML)\n"},
    {"cat", verb_tool, "[-c FILE] URI [--range A-B]",
     "Writes an object's bytes to standard output, checked.\n\n"
     "  --range A-B    bytes A to B, both inclusive, as in HTTP\n"
     "  -c FILE        configuration (TOML)\n"},
    {"cp", verb_tool, "[-c FILE] SRC DST [--if-absent]",
     "Copies one object: between a URI, a file and - (standard input or output). What is\n"
     "written appears whole or not at all, and its crc32c is checked.\n\n"
     "  --if-absent    fails where DST exists\n"
     "  -c FILE        configuration (TOML)\n"},
    {"rm", verb_tool, "[-c FILE] [-r] [--json] URI...",
     "Deletes objects, a hundred in a request. Each delete carries the generation that was looked\n"
     "up: what somebody has written meanwhile stays.\n\n"
     "  -r             everything under each URI; nothing is asked\n"
     "  --json         how many were deleted, and which were not; an error is JSON too\n"
     "  -c FILE        configuration (TOML)\n"},
    {"compose", verb_tool, "[-c FILE] [--if-absent] [--json] DST SRC...",
     "Makes DST of 1 to 32 objects of its bucket, one behind the other, within the store. What comes\n"
     "out is compared with the sizes and checksums of the sources.\n\n"
     "  --if-absent    fails where DST exists\n"
     "  --json         size, generation and crc32c of DST\n"
     "  -c FILE        configuration (TOML)\n"},
    {"index", mr_verb_index, "URI -o FILE [-c FILE] | FILE [--json]",
     "Lists URI and saves the index, which [dataset.NAME] index = \"FILE\" uses in place of a\n"
     "listing; or says what the saved index FILE holds, after checking all of it.\n\n"
     "  -o FILE        where to: a path, or gs://bucket/name.mri; what is there is replaced\n"
     "  --json         the description, for programs\n"
     "  -c FILE        configuration (TOML)\n"
     "  -v, -q         more, or fewer, lines on standard error\n"},
    {"clean", verb_tool, "[-c FILE] [--dry-run] [--all] [--older-than SECONDS] [--json] URI",
     "Removes what dead runs have left. gs://BUCKET: temporary objects of processes that died on this machine,\n"
     "and all that are older than an hour (parts of checkpoints: a day), and unfinished multipart uploads that\n"
     "are older than a day. gs://BUCKET/PREFIX: such uploads under it. file:///FOLDER: temporary files, in it\n"
     "and below, that nobody writes. Prints URI, size (or \"unfinished upload\") and age of each.\n\n"
     "  --dry-run      removes nothing\n"
     "  --older-than S  seconds, in place of the hour and the days\n"
     "  --all          whatever their age, even where a run still uses them: it then downloads objects one by\n"
     "                 one, and its checkpoints fail\n"
     "  --json         for programs\n"
     "  -c FILE        configuration (TOML)\n"},
    {"stat", verb_stat, "[--socket PATH] [--json|--prometheus]",
     "What a running supervisor has done, per data set, worker and lane, and the stage that\n"
     "limits it. It is found by MILLRACE_SOCKET.\n\n"
     "  --socket PATH  the supervisor's socket, instead of MILLRACE_SOCKET\n"
     "  --json         for programs\n"
     "  --prometheus   in Prometheus' text format\n"},
    {"top", mr_verb_top, "[--socket PATH] [--interval SECONDS] [--count N]",
     "What a running supervisor does now: a screen that is drawn again each second on a terminal\n"
     "(q or Ctrl-C ends), else a line each second. It is found by MILLRACE_SOCKET.\n\n"
     "  --socket PATH  the supervisor's socket, instead of MILLRACE_SOCKET\n"
     "  --interval S   seconds between two looks\n"
     "  --count N      end after N looks\n"},
    {"bench", mr_verb_bench, "[-c FILE] [--dataset NAME|URI] [--batch-size N] [--steps N] [--workers N]",
     "Reads a data set with an empty training step, then does as many steps over one batch in memory:\n"
     "the difference is what the data path costs. Starts a supervisor, or uses that of MILLRACE_SOCKET.\n\n"
     "  -c FILE         configuration (TOML)\n"
     "  --dataset D     a name of the configuration's, or a URI; default: the only one\n"
     "  --batch-size N  samples a step (32)\n"
     "  --steps N       steps that are measured (300)\n"
     "  --workers N     processes that read, as DataLoader workers do; default: the command itself\n"
     "  --json          for programs\n"
     "  --socket PATH   a running supervisor's socket, instead of MILLRACE_SOCKET\n"},
    {"reload", verb_reload, "[--socket PATH]",
     "Lets a running supervisor reread its configuration, and prints what has been applied\n"
     "and what needs a new start.\n\n"
     "  --socket PATH  the supervisor's socket, instead of MILLRACE_SOCKET\n"},
    {"devstore", verb_devstore, "[--root DIR] [--listen HOST:PORT] ...",
     "The development object store: 'millrace devstore --help' is its own.\n"},
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
    mr_process_begin();
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
