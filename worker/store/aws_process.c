/* aws_process.c - keys that a program prints: credential_process of a profile
 * (https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html). */
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "worker/store/auth_program.h"
#include "worker/store/aws_impl.h"

#define TIMEOUT_MS 60000

struct process {
    struct mr_aws_source base;
    struct mr_auth_program program;
    char *command;
};

/* 0 if the text, which is overwritten, has the version that is known; -1 with mr_error. */
static int check_version(char *text, size_t length)
{
    struct mr_auth_member version = {"Version", NULL};
    int rc = mr_auth_members(text, length, &version, 1);
    if (rc == 0 && version.value && strcmp(version.value, "1") == 0)
        return 0;
    if (rc != 0)
        mr_error_set(MR_E_DENIED, "what credential_process printed is not JSON");
    else
        mr_error_set(MR_E_DENIED, "credential_process answers in version %.10s; 1 is known",
                     version.value ? version.value : "(none)");
    return -1;
}

/* check_version overwrites the text that it parses, so it gets a copy. */
static void aws_process_on_end(struct mr_auth_program *program, int code)
{
    struct process *process = MR_CONTAINER_OF(program, process, program);
    struct mr_text copy = {0};
    struct mr_aws_found found;
    if (code == 0) {
        mr_auth_text_reserve(&copy, program->output_length + 2);
        mr_text_add(&copy, program->output, program->output_length);
        if (copy.failed)
            mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        if (copy.failed || check_version(copy.data, copy.length) != 0 ||
            mr_aws_found_in_json(&found, program->output, program->output_length, "SessionToken",
                                 "credential_process") != 0)
            code = -1;
    }
    if (code == 0) {
        mr_aws_give(&process->base, &found);
    } else {
        mr_error_append("%s", process->base.origin);
        mr_aws_fail(&process->base);
    }
    mr_auth_text_wipe(&copy);
}

static int process_start(struct mr_aws_source *source)
{
    struct process *process = (struct process *)source;
    process->program.name = "credential_process";
    process->program.timeout_ms = TIMEOUT_MS;
    process->program.done = aws_process_on_end;
    if (mr_auth_program_start(&process->program, source->http, process->command, NULL, 0) == 0)
        return 0;
    mr_error_append("%s", source->origin);
    return -1;
}

static void process_cancel(struct mr_aws_source *source)
{
    mr_auth_program_stop(&((struct process *)source)->program);
}

static void process_destroy(struct mr_aws_source *source)
{
    process_cancel(source);
    free(((struct process *)source)->command);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops ops = {process_start, process_cancel, process_destroy};

struct mr_aws_source *mr_aws_process_new(struct mr_http *http, const char *origin, const char *command)
{
    struct process *process = mr_aws_source_make(sizeof *process, &ops, http, origin);
    if (process && mr_text_dup(&process->command, command) != 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        process_destroy(&process->base);
        return NULL;
    }
    return process ? &process->base : NULL;
}
