/* auth_impersonate.c - a service account's token, obtained with the token of an account that may create it
 * (https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateAccessToken). */
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"

#define LIFETIME_S     3600
#define LIFETIME_MAX_S 43200

struct impersonate {
    struct mr_auth_source base;
    const struct mr_auth_file *file;
    const char *scope;
    struct mr_auth_source *inner;
    struct mr_auth_call call;
};

/* Seconds from now to "2026-01-02T03:04:05Z"; the requested lifetime if that makes no sense (a clock that is off). */
static int64_t lifetime(const struct impersonate *impersonate, const char *expires)
{
    int64_t asked = impersonate->file->lifetime_s ? impersonate->file->lifetime_s : LIFETIME_S;
    struct tm tm = {0};
    const char *end = expires ? strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!end || (*end != 'Z' && *end != '.'))
        return asked;
    int64_t left = (int64_t)timegm(&tm) - mr_clock_wall_ns() / MR_SECOND_NS;
    return left > 0 && left <= LIFETIME_MAX_S ? left : asked;
}

static void auth_impersonate_on_token(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct impersonate *impersonate = call->arg;
    bool denied = answer->status == 403;
    if (mr_auth_answer_check(call, answer, "impersonated token") != 0) {
        if (denied)
            mr_error_append("it may not be impersonated by these credentials: grant them "
                            "roles/iam.serviceAccountTokenCreator on the service account");
        mr_auth_fail(&impersonate->base);
        return;
    }
    struct mr_auth_member members[] = {{"accessToken", NULL}, {"expireTime", NULL}};
    if (mr_auth_members(answer->body, answer->length, members, 2) != 0 || !mr_auth_is_token(members[0].value)) {
        mr_error_set(MR_E_DENIED, "the answer of service_account_impersonation_url has no accessToken");
        mr_auth_fail(&impersonate->base);
        return;
    }
    struct mr_auth_token token = {
        .text = "", .value = members[0].value, .lifetime_s = lifetime(impersonate, members[1].value)};
    impersonate->base.done(impersonate->base.arg, &token);
}

static int send(struct impersonate *impersonate, const char *token)
{
    const struct mr_auth_file *file = impersonate->file;
    struct mr_auth_call *call = &impersonate->call;
    struct mr_text bearer = {0};
    mr_auth_text_reserve(&bearer, MR_AUTH_TOKEN_MAX + 16);
    mr_text_puts(&bearer, "Bearer ");
    mr_text_puts(&bearer, token);
    mr_auth_call_init(call, impersonate->base.http, "POST", file->impersonation_url);
    mr_auth_call_line(call, "Content-Type", "application/json");
    mr_auth_call_line(call, "Authorization", bearer.failed ? "" : bearer.data);
    mr_auth_text_wipe(&bearer);
    mr_text_puts(&call->body, "{\"delegates\":[");
    for (unsigned i = 0; i < file->delegate_count; i++) {
        mr_text_puts(&call->body, i ? "," : "");
        if (strncmp(file->delegates[i], "projects/", 9) == 0) {
            mr_auth_put_json(&call->body, file->delegates[i]);
        } else { /* the API wants the long form, gcloud writes the short one */
            char name[300];
            snprintf(name, sizeof name, "projects/-/serviceAccounts/%.250s", file->delegates[i]);
            mr_auth_put_json(&call->body, name);
        }
    }
    mr_text_puts(&call->body, "],\"scope\":[");
    mr_auth_put_json(&call->body, impersonate->scope);
    char life[32];
    snprintf(life, sizeof life, "],\"lifetime\":\"%us\"}", file->lifetime_s ? file->lifetime_s : LIFETIME_S);
    mr_text_puts(&call->body, life);
    call->done = auth_impersonate_on_token;
    call->arg = impersonate;
    return mr_auth_call_send(call);
}

static void on_inner(void *arg, const struct mr_auth_token *token)
{
    struct impersonate *impersonate = arg;
    if (token->code != MR_OK) {
        impersonate->base.done(impersonate->base.arg, token);
        return;
    }
    if (send(impersonate, token->value) != 0)
        mr_auth_fail(&impersonate->base);
}

static int impersonate_start(struct mr_auth_source *source)
{
    struct impersonate *impersonate = (struct impersonate *)source;
    return impersonate->inner->ops->start(impersonate->inner);
}

static void impersonate_cancel(struct mr_auth_source *source)
{
    struct impersonate *impersonate = (struct impersonate *)source;
    impersonate->inner->ops->cancel(impersonate->inner);
    mr_auth_call_close(&impersonate->call);
}

static void impersonate_destroy(struct mr_auth_source *source)
{
    struct impersonate *impersonate = (struct impersonate *)source;
    mr_auth_call_close(&impersonate->call);
    impersonate->inner->ops->destroy(impersonate->inner);
    free(impersonate);
}

static const struct mr_auth_source_ops ops = {impersonate_start, impersonate_cancel, impersonate_destroy};

struct mr_auth_source *mr_auth_impersonate_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope,
                                               struct mr_auth_source *inner)
{
    if (!inner)
        return NULL;
    struct impersonate *impersonate = calloc(1, sizeof *impersonate);
    if (!impersonate) {
        inner->ops->destroy(inner);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    impersonate->base.ops = &ops;
    impersonate->base.http = http;
    impersonate->file = file;
    impersonate->scope = scope;
    impersonate->inner = inner;
    inner->done = on_inner;
    inner->arg = impersonate;
    return &impersonate->base;
}
