/*
 * cli.h - the verbs of `millrace` that this program runs itself, and what they share. Each verb is one function over
 * its parsed arguments (cli/verbs/arguments.h) that returns the exit status; main.c calls it.
 */
#ifndef MR_CLI_CLI_H
#define MR_CLI_CLI_H

#include "cli/verbs/arguments.h"
#include "shm/control/client.h"

int mr_cli_run(const struct mr_arguments *arguments);
int mr_cli_serve(const struct mr_arguments *arguments);
/* Becomes millrace-mount where MILLRACE_SOCKET names a supervisor; with -c or without one, a supervisor that runs it. */
int mr_cli_mount(const struct mr_arguments *arguments);
int mr_cli_reload(const struct mr_arguments *arguments);
int mr_cli_check(const struct mr_arguments *arguments);
int mr_cli_doctor(const struct mr_arguments *arguments);
int mr_cli_index(const struct mr_arguments *arguments);
int mr_cli_stat(const struct mr_arguments *arguments);
int mr_cli_top(const struct mr_arguments *arguments);
int mr_cli_trace(const struct mr_arguments *arguments);
int mr_cli_bench(const struct mr_arguments *arguments);
int mr_cli_completion(const struct mr_arguments *arguments);
int mr_cli_man(const struct mr_arguments *arguments);
int mr_cli_help(const struct mr_arguments *arguments);
/* ls, cat, cp, rm, compose, clean: becomes millrace-worker, which makes the requests. */
int mr_cli_tool(const struct mr_arguments *arguments);

/* ---- what they share ---- */

/* Logs mr_error and returns the exit status, 1 or 2. */
int mr_cli_fail(void);
/* For wrong arguments: prints mr_error and the usage to standard error, or, with --json where the verb has that, only
 * the error as JSON. Returns the exit status. */
int mr_cli_fail_usage(const struct mr_arguments *arguments);
/* With --json, where the verb has that: prints mr_error as JSON to standard error. Else, or without memory, false. */
bool mr_cli_put_json_error(const struct mr_arguments *arguments);
/* Whether all of standard output could be written: 0, or 1 with a line in the log. */
int mr_cli_flush(void);
/* --socket, otherwise MILLRACE_SOCKET; NULL: neither, or both are empty. */
const char *mr_cli_socket(const struct mr_arguments *arguments);
/* Connects to the supervisor there; without a socket, to the only one of this user on this machine. NULL with
 * mr_error. */
struct mr_client *mr_cli_connect(const struct mr_arguments *arguments);
/* Runs a supervisor around a command (NULL: alone). Returns the exit status. */
int mr_cli_supervise(const struct mr_arguments *arguments, char *const *command);

#endif
