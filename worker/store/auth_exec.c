/* auth_exec.c - a subject token from a program (https://google.aip.dev/auth/4117, executable-sourced credentials). */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"

#define TYPE           "urn:ietf:params:oauth:token-type:"
#define TIMEOUT_MS     30000
#define TIMEOUT_MIN_MS 5000
#define TIMEOUT_MAX_MS 120000

/* ---- the answer ---- */

/* The token in text, which is overwritten, or NULL with mr_error. cached: of an earlier run. */
static const char *auth_exec_parse(char *text, size_t length, bool cached)
{
    struct mr_auth_member members[] = {{"version", NULL},  {"success", NULL},       {"token_type", NULL},
                                       {"id_token", NULL}, {"saml_response", NULL}, {"expiration_time", NULL},
                                       {"code", NULL},     {"message", NULL}};
    if (mr_auth_members(text, length, members, 8) != 0 || !members[0].value || !members[1].value) {
        mr_error_set(MR_E_DENIED, "what the credentials executable printed is not JSON with \"version\" and "
                                  "\"success\"");
        return NULL;
    }
    if (strcmp(members[0].value, "1") != 0) {
        mr_error_set(MR_E_DENIED, "the credentials executable answers in version %.10s; 1 is known", members[0].value);
        return NULL;
    }
    char quoted[200];
    if (strcmp(members[1].value, "true") != 0) {
        const char *message = members[7].value ? members[7].value : "it does not say why";
        mr_text_quote(quoted, sizeof quoted, message, strlen(message));
        mr_error_set(MR_E_DENIED, "the credentials executable failed: %.40s: %s",
                     members[6].value ? members[6].value : "no code", quoted);
        return NULL;
    }
    const char *type = members[2].value;
    bool is_saml = type && strcmp(type, TYPE "saml2") == 0;
    if (!is_saml && (!type || (strcmp(type, TYPE "jwt") != 0 && strcmp(type, TYPE "id_token") != 0))) {
        mr_error_set(MR_E_DENIED,
                     "the credentials executable gives a token of type %.80s; " TYPE "jwt, id_token and "
                     "saml2 are known",
                     type ? type : "(none)");
        return NULL;
    }
    const char *expires = members[5].value;
    if (!expires && cached) {
        mr_error_set(MR_E_DENIED, "the credentials executable gives no \"expiration_time\", which output_file needs");
        return NULL;
    }
    if (expires && strtoll(expires, NULL, 10) <= mr_clock_wall_ns() / MR_SECOND_NS) {
        mr_error_set(MR_E_DENIED, "the token of the credentials executable has expired%s",
                     cached ? "" : " already (is the machine's clock right?)");
        return NULL;
    }
    const char *token = is_saml ? members[4].value : members[3].value;
    if (!token || !token[0]) {
        mr_error_set(MR_E_DENIED, "the credentials executable says success and gives no token");
        return NULL;
    }
    return token;
}

/* The token that this run, or an earlier one, left in output_file, if it is still good; it points into text. NULL:
 * without mr_error if there is none, with it if it cannot be used. */
static const char *from_output_file(struct mr_auth_subject *subject, struct mr_text *text, bool cached)
{
    const char *path = subject->file->from.output_file;
    if (!path || mr_auth_text_read(text, path, MR_AUTH_TOKEN_MAX) != 0 || text->length == 0)
        return NULL;
    return auth_exec_parse(text->data, text->length, cached);
}

/* ---- the program ---- */

static unsigned timeout_ms(const struct mr_auth_file *file)
{
    unsigned ms = file->from.timeout_ms ? file->from.timeout_ms : TIMEOUT_MS;
    return ms < TIMEOUT_MIN_MS ? TIMEOUT_MIN_MS : ms > TIMEOUT_MAX_MS ? TIMEOUT_MAX_MS : ms;
}

/* A program that prints nothing may have written its token to output_file. */
static void auth_exec_on_end(struct mr_auth_program *program, int code)
{
    struct mr_auth_subject *subject = MR_CONTAINER_OF(program, mr_auth_subject, program);
    struct mr_text text = {0};
    const char *token = NULL;
    if (code == 0 && program->output_length == 0) {
        mr_error_clear();
        token = from_output_file(subject, &text, false);
        if (!token && mr_error_code() == MR_OK)
            mr_error_set(MR_E_DENIED, "the credentials executable printed nothing");
    } else if (code == 0) {
        token = auth_exec_parse(program->output, program->output_length, false);
    }
    subject->done(subject->arg, token);
    mr_auth_text_wipe(&text);
}

/* The service account in ".../serviceAccounts/<email>:generateAccessToken", for the program's environment. */
static void put_email(struct mr_text *to, const char *url)
{
    const char *at = url ? strstr(url, "/serviceAccounts/") : NULL;
    if (!at)
        return;
    at += strlen("/serviceAccounts/");
    mr_text_puts(to, "GOOGLE_EXTERNAL_ACCOUNT_IMPERSONATED_EMAIL=");
    mr_text_add(to, at, strcspn(at, ":"));
    mr_text_add(to, "", 1);
}

/* Strings, each with its NUL, in place of what the process's own environment has of these names. */
static void put_environment(struct mr_text *to, const struct mr_auth_file *file)
{
    const struct mr_auth_pair pairs[] = {{"GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE", file->audience},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE", file->subject_token_type},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_INTERACTIVE", "0"},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_REVOKE", "0"},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_OUTPUT_FILE", file->from.output_file}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!pairs[i].value)
            continue;
        mr_text_puts(to, pairs[i].name);
        mr_text_puts(to, "=");
        mr_text_puts(to, pairs[i].value);
        mr_text_add(to, "", 1);
    }
    put_email(to, file->impersonation_url);
}

static int start_program(struct mr_auth_subject *subject)
{
    struct mr_text added = {0};
    put_environment(&added, subject->file);
    int rc = -1;
    if (added.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the credentials executable");
    } else {
        subject->program.name = "the credentials executable";
        subject->program.timeout_ms = timeout_ms(subject->file);
        subject->program.done = auth_exec_on_end;
        rc = mr_auth_program_start(&subject->program, subject->http, subject->file->from.command, added.data,
                                   added.length);
    }
    mr_text_close(&added);
    return rc;
}

/* Runs the program only if output_file has no good token. */
static void run_start(struct mr_http_timer *timer)
{
    struct mr_auth_subject *subject = MR_CONTAINER_OF(timer, mr_auth_subject, timer);
    struct mr_text text = {0};
    const char *token = from_output_file(subject, &text, true);
    if (token || start_program(subject) != 0)
        subject->done(subject->arg, token);
    mr_auth_text_wipe(&text);
}

int mr_auth_exec_start(struct mr_auth_subject *subject)
{
    const char *allowed = getenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES");
    if (!allowed || strcmp(allowed, "1") != 0) {
        mr_error_set(MR_E_DENIED,
                     "the credentials file wants to run \"%.200s\": if you trust it, set "
                     "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1",
                     subject->file->from.command);
        return -1;
    }
    subject->timer.run = run_start;
    mr_http_timer_set(subject->http, &subject->timer, 0);
    return 0;
}

void mr_auth_exec_cancel(struct mr_auth_subject *subject)
{
    mr_http_timer_stop(subject->http, &subject->timer);
    mr_auth_program_stop(&subject->program);
}
