/*
 * auth_user.c - what `gcloud auth application-default login` leaves: a refresh token. That of a user of a workforce pool
 * (external_account_authorized_user) goes to STS, which may answer with another one for the next time
 * (https://google.aip.dev/auth/4117, and RFC 6749, section 6).
 */
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "base/error.h"
#include "worker/store/auth_impl.h"

#define TOKEN_URL "https://oauth2.googleapis.com/token"

struct user {
    struct mr_auth_source base;
    const struct mr_auth_file *file;
    struct mr_auth_call call;
    struct mr_text next; /* the refresh token that came with the last answer; empty: none */
};

/* Keeps the refresh token of an answer, of which it parses a copy. */
static void keep_next(struct user *user, const struct mr_auth_answer *answer)
{
    struct mr_auth_member member = {"refresh_token", NULL};
    char *copy = malloc(answer->length + 1);
    if (!copy)
        return; /* the old one may do */
    memcpy(copy, answer->body, answer->length + 1);
    if (mr_auth_members(copy, answer->length, &member, 1) == 0 && mr_auth_is_token(member.value)) {
        mr_auth_text_wipe(&user->next);
        mr_auth_text_reserve(&user->next, MR_AUTH_TOKEN_MAX + 1);
        mr_text_puts(&user->next, member.value);
        if (user->next.failed)
            mr_auth_text_wipe(&user->next);
    }
    OPENSSL_cleanse(copy, answer->length + 1);
    free(copy);
}

static void auth_user_on_token(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct user *user = call->arg;
    struct mr_auth_token token;
    if (answer->status / 100 == 2 && user->file->kind == MR_AUTH_EXTERNAL_USER)
        keep_next(user, answer);
    bool grant = mr_auth_answer_says(answer, "invalid_grant"), client = mr_auth_answer_says(answer, "invalid_client");
    if (mr_auth_answer_check(call, answer, "token") == 0 && mr_auth_answer_token(call, answer, &token) == 0) {
        user->base.done(user->base.arg, &token);
        return;
    }
    if (grant)
        mr_error_append("the login has expired or was revoked: run gcloud auth application-default login");
    else if (client)
        mr_error_append("the client_id and client_secret of the file are refused: run gcloud auth "
                        "application-default login");
    mr_auth_fail(&user->base);
}

static int user_start(struct mr_auth_source *source)
{
    struct user *user = (struct user *)source;
    const struct mr_auth_file *file = user->file;
    bool external = file->kind == MR_AUTH_EXTERNAL_USER;
    const char *url = external ? file->token_url : file->token_uri ? file->token_uri : TOKEN_URL;
    mr_auth_call_init(&user->call, source->http, "POST", url);
    mr_auth_call_line(&user->call, "Content-Type", "application/x-www-form-urlencoded");
    mr_auth_call_field(&user->call, "grant_type", "refresh_token");
    if (external) {
        mr_auth_call_client(&user->call, file);
    } else {
        mr_auth_call_field(&user->call, "client_id", file->client_id);
        mr_auth_call_field(&user->call, "client_secret", file->client_secret);
    }
    mr_auth_call_field(&user->call, "refresh_token", user->next.length ? user->next.data : file->refresh_token);
    user->call.done = auth_user_on_token;
    user->call.arg = user;
    return mr_auth_call_send(&user->call);
}

static void user_cancel(struct mr_auth_source *source)
{
    mr_auth_call_close(&((struct user *)source)->call);
}

static void user_destroy(struct mr_auth_source *source)
{
    user_cancel(source);
    mr_auth_text_wipe(&((struct user *)source)->next);
    free(source);
}

static const struct mr_auth_source_ops ops = {user_start, user_cancel, user_destroy};

struct mr_auth_source *mr_auth_user_new(struct mr_http *http, const struct mr_auth_file *file)
{
    struct user *user = calloc(1, sizeof *user);
    if (!user) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    user->base.ops = &ops;
    user->base.http = http;
    user->file = file;
    return &user->base;
}
