/*
 * auth_external.c - workload identity federation: a token of another issuer (from a file, a URL, a program, AWS) is
 * exchanged for one of Google's (https://google.aip.dev/auth/4117,
 * https://cloud.google.com/iam/docs/reference/sts/rest).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"

struct external {
    struct mr_auth_source base;
    const struct mr_auth_file *file;
    const char *scope;
    struct mr_auth_subject subject;
    struct mr_http_timer timer; /* a file's token is passed on from the loop, like any other */
    struct mr_auth_call exchange;
};

/* ---- the exchange ---- */

static void auth_external_on_token(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct external *external = call->arg;
    struct mr_auth_token token;
    bool refused = mr_auth_answer_says(answer, "invalid_grant") || mr_auth_answer_says(answer, "invalid_request");
    bool clock = mr_auth_answer_says(answer, "iat") || mr_auth_answer_says(answer, "expired");
    if (mr_auth_answer_check(call, answer, "token") == 0 && mr_auth_answer_token(call, answer, &token) == 0) {
        external->base.done(external->base.arg, &token);
        return;
    }
    if (refused && clock)
        mr_error_append("the subject token has expired, or the machine's clock is off (timedatectl set-ntp true)");
    else if (refused)
        mr_error_append(
            "the subject token is refused: check audience, subject_token_type and the provider's conditions "
            "(gcloud iam workload-identity-pools providers describe)");
    mr_auth_fail(&external->base);
}

/* Copies subject_token. 0, and base.done follows, or -1 with mr_error. */
static int exchange(struct external *external, const char *subject_token)
{
    const struct mr_auth_file *file = external->file;
    struct mr_auth_call *call = &external->exchange;
    mr_auth_call_init(call, external->base.http, "POST", file->token_url);
    mr_auth_call_line(call, "Content-Type", "application/x-www-form-urlencoded");
    if (file->client_id)
        mr_auth_call_client(call, file); /* of a workforce pool */
    mr_auth_call_field(call, "grant_type", "urn:ietf:params:oauth:grant-type:token-exchange");
    mr_auth_call_field(call, "audience", file->audience);
    mr_auth_call_field(call, "scope", external->scope);
    mr_auth_call_field(call, "requested_token_type", "urn:ietf:params:oauth:token-type:access_token");
    mr_auth_call_field(call, "subject_token", subject_token);
    mr_auth_call_field(call, "subject_token_type", file->subject_token_type);
    if (file->workforce_pool_user_project && !file->client_id) {
        struct mr_text options = {0};
        mr_text_puts(&options, "{\"userProject\":");
        mr_auth_put_json(&options, file->workforce_pool_user_project);
        mr_text_puts(&options, "}");
        if (!options.failed)
            mr_auth_call_field(call, "options", options.data);
        mr_text_close(&options);
    }
    call->done = auth_external_on_token;
    call->arg = external;
    return mr_auth_call_send(call);
}

static void on_subject(void *arg, const char *token)
{
    struct external *external = arg;
    if (!token || exchange(external, token) != 0)
        mr_auth_fail(&external->base);
}

/* ---- file and URL ---- */

/* The subject token in text, which is overwritten; NULL with mr_error. */
static const char *subject_of(const struct mr_auth_file *file, char *text, size_t length, const char *place)
{
    struct mr_auth_member member = {file->from.format_field, NULL};
    if (file->from.format && strcmp(file->from.format, "json") == 0) {
        if (mr_auth_members(text, length, &member, 1) == 0 && member.value && member.value[0])
            return member.value;
        mr_error_set(MR_E_DENIED, "%.300s is not JSON with a subject token in \"%.60s\"", place, member.key);
        return NULL;
    }
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        text[--length] = 0;
    if (length > 0 && !memchr(text, 0, length))
        return text;
    mr_error_set(MR_E_DENIED, "%.300s holds no subject token", place);
    return NULL;
}

static void on_url(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct external *external = call->arg;
    const char *token = NULL;
    if (mr_auth_answer_check(call, answer, "subject token") == 0)
        token = subject_of(external->file, answer->body, answer->length, "the answer of credential_source.url");
    on_subject(external, token);
}

static int start_url(struct external *external)
{
    struct mr_auth_call *call = &external->subject.call;
    const struct mr_auth_file *file = external->file;
    mr_auth_call_init(call, external->base.http, "GET", file->from.url);
    for (unsigned i = 0; i < file->from.header_count; i++)
        mr_auth_call_line(call, file->from.headers[i].name, file->from.headers[i].value);
    call->done = on_url;
    call->arg = external;
    return mr_auth_call_send(call);
}

/* Read anew each time: its writer replaces the token before it expires. */
static void run_file(struct mr_http_timer *timer)
{
    struct external *external = MR_CONTAINER_OF(timer, external, timer);
    const char *path = external->file->from.file;
    struct mr_text text = {0};
    const char *token = NULL;
    if (mr_auth_text_read(&text, path, MR_AUTH_TOKEN_MAX) == 0)
        token = subject_of(external->file, text.data, text.length, path);
    else
        mr_error_set(MR_E_DENIED,
                     "the subject token's file %.300s cannot be read: %s; check credential_source.file, and "
                     "that what writes it runs",
                     path, strerror(errno));
    on_subject(external, token);
    mr_auth_text_wipe(&text);
}

/* ---- life ---- */

/* environment_id is checked first: with it, from.url is where AWS keys are fetched, not a subject token. */
static int external_start(struct mr_auth_source *source)
{
    struct external *external = (struct external *)source;
    const struct mr_auth_file *file = external->file;
    if (file->from.environment_id)
        return mr_auth_aws_start(&external->subject);
    if (file->from.command)
        return mr_auth_exec_start(&external->subject);
    if (file->from.url)
        return start_url(external);
    external->timer.run = run_file;
    mr_http_timer_set(source->http, &external->timer, 0);
    return 0;
}

static void external_cancel(struct mr_auth_source *source)
{
    struct external *external = (struct external *)source;
    mr_http_timer_stop(source->http, &external->timer);
    mr_auth_exec_cancel(&external->subject);
    mr_auth_aws_cancel(&external->subject);
    mr_auth_call_close(&external->subject.call);
    mr_auth_call_close(&external->exchange);
}

static void external_destroy(struct mr_auth_source *source)
{
    external_cancel(source);
    free(source);
}

static const struct mr_auth_source_ops ops = {external_start, external_cancel, external_destroy};

struct mr_auth_source *mr_auth_external_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope)
{
    struct external *external = calloc(1, sizeof *external);
    if (!external) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    external->base.ops = &ops;
    external->base.http = http;
    external->file = file;
    external->scope = scope;
    external->subject = (struct mr_auth_subject){.http = http, .file = file, .done = on_subject, .arg = external};
    return &external->base;
}
