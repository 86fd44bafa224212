/*
 * tool.h - the commands of `millrace` that need the network: for these it becomes millrace-worker, with the same
 * arguments.
 *
 * A command opens what it needs once, starts transfers and steps the loop until they have answered. SIGINT, SIGTERM and
 * SIGHUP end a step, so that a command removes what is half done; mr_tool_fail then ends the process by that signal.
 * SIGPIPE ends it at once when standard output has no reader any more.
 */
#ifndef MR_WORKER_TOOL_TOOL_H
#define MR_WORKER_TOOL_TOOL_H

#include <stdbool.h>
#include <stdio.h>

#include "cli/verbs/arguments.h"
#include "worker/net.h"
#include "worker/tool/progress.h"

struct json_t;

/* The verb that argv[0] names, with the arguments that `millrace` got. Each returns the exit status. */
int mr_tool_ls(int argc, char **argv);
int mr_tool_cat(int argc, char **argv);
int mr_tool_cp(int argc, char **argv);
int mr_tool_rm(int argc, char **argv);
int mr_tool_pipe(int argc, char **argv);
int mr_tool_compose(int argc, char **argv);
/* The checks that need the network, one line each: "ok|note|fail TAB what TAB text". */
int mr_tool_doctor(int argc, char **argv);
int mr_tool_clean(int argc, char **argv);

/* ---- what they share ---- */

/* Parses the arguments by the table of verbs, which `millrace` has done before, and calls run with them: the exit
 * status. */
int mr_tool_main(char **argv, int (*run)(const struct mr_arguments *arguments));

struct mr_tool {
    struct mr_config config;
    struct mr_net net;
    bool answered;
    enum mr_code code;            /* of the answer; its text is in this thread's mr_error */
    struct mr_progress *received; /* shows what has come from stores; NULL: nothing is shown */
};

/* The configuration that `millrace` handed over (or the defaults), and the log; then loop and engine from it. 0 or
 * -1. */
int mr_tool_load(struct mr_tool *tool);
int mr_tool_start(struct mr_tool *tool);
/* Both. */
int mr_tool_init(struct mr_tool *tool);
/* Ends what is under way and frees all. Safe on a zeroed one, and after an init that failed. */
void mr_tool_close(struct mr_tool *tool);
/* The store of a URI, which is parsed into *uri (the caller closes that). NULL with mr_error. */
struct mr_store *mr_tool_open(struct mr_tool *tool, const char *text, struct mr_uri *uri);
/* From the callback of a transfer that mr_tool_await waits for. */
void mr_tool_answer(struct mr_tool *tool, const struct mr_store_result *result);
/* Runs the loop until the answer has come: 0, or -1 with its error. -1 for started == NULL: it could not start. When
 * the loop fails, or a signal ends it, the transfer is cancelled. */
int mr_tool_await(struct mr_tool *tool, struct mr_transfer *started);
/* The same for a request that the caller must cancel itself where *answered is false. */
int mr_tool_wait(struct mr_tool *tool, bool *answered);
/* One step of the loop: 0, or -1 with mr_error, also after a signal. */
int mr_tool_step(struct mr_tool *tool);
/* The same; also returns once that descriptor is readable. */
int mr_tool_step_or(struct mr_tool *tool, int fd);
/* The next bytes of a file or pipe, which `what` names in the error: how many, 0 at the end, -1 (also: a signal). */
ssize_t mr_tool_read(int fd, void *data, size_t size, const char *what);
/* Writes all of it to a file or pipe, which `what` names in the error: 0, or -1, also after a signal. */
int mr_tool_write(int fd, const void *data, uint64_t length, const char *what);
/* From now on, a reader of standard output that leaves ends the command with status 0, not by SIGPIPE. */
void mr_tool_end_with_reader(void);
/* Whether a signal that ends the command has come. */
bool mr_tool_interrupted(void);
/* Prints the report as JSON, and releases it (NULL: no memory). 0, or -1 with mr_error, also if it does not reach
 * standard output. */
int mr_tool_print_report(struct json_t *report);
/* Prints a JSON string. A byte that is not UTF-8 becomes the half surrogate that Python's os.fsencode takes back. */
void mr_tool_print_json(FILE *out, const char *text);
/* Prints mr_error, or, with --json where the verb has that, {"code": "not found", "error": "..."}, and returns the exit
 * status. After a signal it does not return: the process ends by that signal. */
int mr_tool_fail(const char *verb);

#endif
