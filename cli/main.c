/*
 * main.c - the command line of millrace. Errors go to standard error, data to standard output; exit status 0 done,
 * 1 failed, 2 wrong arguments or configuration, and for `run` the command's own.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/process.h"
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/programs.h"

static int (*const runs[])(const struct mr_arguments *arguments) = {
    [MR_VERB_RUN] = mr_cli_run,     [MR_VERB_SERVE] = mr_cli_serve,   [MR_VERB_RELOAD] = mr_cli_reload,
    [MR_VERB_CHECK] = mr_cli_check, [MR_VERB_DOCTOR] = mr_cli_doctor, [MR_VERB_LS] = mr_cli_tool,
    [MR_VERB_CAT] = mr_cli_tool,    [MR_VERB_CP] = mr_cli_tool,       [MR_VERB_RM] = mr_cli_tool,
    [MR_VERB_PIPE] = mr_cli_tool,   [MR_VERB_MOUNT] = mr_cli_mount,   [MR_VERB_COMPOSE] = mr_cli_tool,
    [MR_VERB_INDEX] = mr_cli_index, [MR_VERB_CLEAN] = mr_cli_tool,    [MR_VERB_STAT] = mr_cli_stat,
    [MR_VERB_TOP] = mr_cli_top,     [MR_VERB_BENCH] = mr_cli_bench,   [MR_VERB_COMPLETION] = mr_cli_completion,
    [MR_VERB_MAN] = mr_cli_man,     [MR_VERB_HELP] = mr_cli_help,     [MR_VERB_TRACE] = mr_cli_trace,
};
_Static_assert(sizeof runs / sizeof runs[0] == MR_VERBS, "a function for each verb");

/* Returns the exit status. A verb that becomes another program returns only on failure. */
static int run_verb(const struct mr_verb *verb, char **argv)
{
    mr_log_init(verb->name, MR_LOG_INFO);
    if (verb->foreign) {
        mr_program_devstore(argv);
        return mr_cli_fail();
    }
    struct mr_arguments arguments;
    int status;
    if (mr_arguments_parse(&arguments, verb, argv) != 0) {
        status = mr_cli_fail_usage(&arguments);
    } else if (mr_arguments_have(&arguments, MR_OPT_HELP)) {
        mr_help_verb(verb, stdout);
        status = mr_cli_flush();
    } else {
        status = runs[verb->id](&arguments);
    }
    mr_arguments_close(&arguments);
    return status;
}

int main(int argc, char **argv)
{
    mr_process_begin();
    if (argc < 2) {
        mr_help_all(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        mr_help_all(stdout);
        return mr_cli_flush();
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("millrace %s\n", MR_VERSION);
        return mr_cli_flush();
    }
    const struct mr_verb *verb = mr_verb_find(argv[1]);
    if (verb)
        return run_verb(verb, argv + 1);
    fprintf(stderr, "millrace: there is no verb '%s'; 'millrace --help' lists them\n", argv[1]);
    return 2;
}
