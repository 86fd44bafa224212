/*
 * doctor.c - `millrace doctor`: makes the checks of this machine itself; those that need the network are made by
 * millrace-worker, whose lines it reads from a pipe.
 */
#include "cli/doctor_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/programs.h"
#include "supervisor/config_toml.h"

/* "level TAB what TAB text", as the worker prints it. */
static void doctor_take_line(struct mr_doctor *doctor, char *line)
{
    char *level = strsep(&line, "\t"), *what = strsep(&line, "\t");
    if (!line)
        return;
    line[strcspn(line, "\n")] = '\0';
    mr_doctor_report(doctor, level, what, "%s", line);
}

/* In the child; does not return. */
static void become_worker(const struct mr_arguments *arguments, const struct mr_config *config, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (dup2(out, STDOUT_FILENO) < 0)
        mr_error_set_errno(errno, "cannot write to the pipe");
    else
        mr_program_worker(arguments, config); /* -c may be a pipe, which has been read */
    _exit(mr_cli_fail());
}

/* 0; the worker's exit status where that failed, and has said why; -1 with mr_error. */
static int check_store(struct mr_doctor *doctor, const struct mr_arguments *arguments, const struct mr_config *config)
{
    int ends[2], status = 0;
    char *line = NULL;
    size_t size = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        mr_error_set_errno(errno, "cannot make a pipe to millrace-worker");
        return -1;
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        become_worker(arguments, config, ends[1]);
    close(ends[1]);
    FILE *in = pid > 0 ? fdopen(ends[0], "r") : NULL;
    if (!in) {
        mr_error_set_errno(errno, "cannot start millrace-worker");
        close(ends[0]);
        return -1;
    }
    while (getline(&line, &size, in) > 0)
        doctor_take_line(doctor, line);
    free(line);
    fclose(in);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    mr_error_set(MR_E_INTERNAL, "the checks of the store ended early, see the line above");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void print_end(struct mr_doctor *doctor)
{
    if (!doctor->checks) {
        printf("%s\n", doctor->fails > 0   ? "\nSomething must be fixed: see the lines with FAIL."
                       : doctor->notes > 0 ? "\nNothing fails. Read the lines with note."
                                           : "\nAll is well.");
        return;
    }
    json_t *report = json_pack("{s:b, s:O}", "ok", doctor->fails == 0, "checks", doctor->checks);
    json_dumpf(report, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(report);
}

int mr_cli_doctor(const struct mr_arguments *arguments)
{
    struct mr_config config;
    struct mr_doctor doctor = {.checks = NULL};
    const char *path = mr_arguments_text(arguments, MR_OPT_CONFIG);
    if (mr_config_load(&config, path) != 0)
        return mr_cli_fail();
    if (mr_arguments_have(arguments, MR_OPT_JSON))
        doctor.checks = json_array();
    mr_doctor_report(&doctor, "ok", "configuration", "%s: %zu data sets", path ? path : "the defaults",
                     config.dataset_count);
    mr_doctor_local(&doctor, &config);
    int rc = check_store(&doctor, arguments, &config);
    mr_config_close(&config);
    if (rc == 0)
        print_end(&doctor);
    json_decref(doctor.checks);
    if (rc != 0)
        return rc > 0 ? rc : mr_cli_fail();
    if (mr_cli_flush() != 0)
        return 1;
    return doctor.fails == 0 ? 0 : 1;
}
