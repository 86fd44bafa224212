/*
 * verbs.h - what the commands of `millrace` share: options, errors, the connection to a supervisor, and how a command
 * becomes millrace-worker. Each command is one function; main.c has the table of them.
 */
#ifndef MR_CLI_VERBS_H
#define MR_CLI_VERBS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/control/client.h"

struct mr_verb {
    const char *name;
    int (*run)(int argc, char **argv, const struct mr_verb *verb); /* argv[0] is the name; returns the exit status */
    const char *usage;                                             /* after "millrace NAME" */
    const char *help;
};

/* Options that verbs share; each verb allows some of them. NULL or 0: not given. */
struct mr_options {
    const char *config, *socket, *run_dir, *dataset;
    uint64_t batch_size, steps, workers, count;
    double interval_s;
    bool is_private, json, prometheus, reference;
    int verbosity;
};

enum {
    MR_OPT_SOCKET = 256,
    MR_OPT_RUN_DIR,
    MR_OPT_PRIVATE,
    MR_OPT_JSON,
    MR_OPT_PROMETHEUS,
    MR_OPT_REFERENCE,
    MR_OPT_DATASET,
    MR_OPT_BATCH_SIZE,
    MR_OPT_STEPS,
    MR_OPT_WORKERS,
    MR_OPT_INTERVAL,
    MR_OPT_COUNT,
    MR_OPT_HELP
};

void mr_verb_help(const struct mr_verb *verb, FILE *out);
/* Prints the usage to standard error: 2. */
int mr_verb_wrong_usage(const struct mr_verb *verb);
/* Prints mr_error: 1 or 2. */
int mr_verb_fail(void);
/* Parses; `allowed` holds the codes (a letter or MR_OPT_*) that this verb knows beside -v, -q and --help, ended by 0.
 * Returns -1 to go on (optind is at the rest), else the exit status. */
int mr_verb_parse(int argc, char **argv, const struct mr_verb *verb, const int *allowed, struct mr_options *options);
/* The path of a program that lies beside this one. 0 or -1. */
int mr_verb_sibling(const char *name, char path[PATH_MAX]);
/* A supervisor around a command (NULL: alone). Returns the exit status. */
int mr_verb_supervise(const struct mr_options *options, char *const *command);
/* The supervisor of --socket or MILLRACE_SOCKET. NULL with mr_error. */
struct mr_client *mr_verb_connect(const struct mr_options *options);
/* The configuration with -v and -q applied, in a descriptor for millrace-worker (-1 with mr_error). */
int mr_verb_config_fd(const struct mr_options *options);
/* In a process that is to become `millrace-worker VERB ARGUMENTS`: takes over config_fd. Returns only on failure: -1. */
int mr_verb_exec_worker(int config_fd, const char *verb, char *const *arguments);

/* Commands with a file of their own. */
int mr_verb_top(int argc, char **argv, const struct mr_verb *verb);
int mr_verb_index(int argc, char **argv, const struct mr_verb *verb);
int mr_verb_doctor(int argc, char **argv, const struct mr_verb *verb);
int mr_verb_bench(int argc, char **argv, const struct mr_verb *verb);

#endif
