/*
 * aws_sso.c - keys of a role of IAM Identity Center, with the login that `aws sso login` left in ~/.aws/sso/cache
 * (https://docs.aws.amazon.com/sdkref/latest/guide/feature-sso-credentials.html). A login with a refresh token
 * ([sso-session]) is renewed and written back for other processes.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/store/aws_impl.h"
#include "worker/store/aws_partition.h"
#include "worker/store/json.h"

#define RENEW_S 900 /* before it expires, a login is renewed */

enum { ACCESS, EXPIRES, REFRESH, CLIENT_ID, CLIENT_SECRET, REGISTRATION, MEMBERS };

struct sso {
    struct mr_aws_source base;
    struct mr_auth_call call;
    struct mr_text cache; /* what the members point into */
    struct mr_auth_member members[MEMBERS];
    char *session, *start_url, *region, *account_id, *role_name, *profile, *portal_url, *oidc_url, *path;
};

static int64_t now_s(void)
{
    return mr_clock_wall_ns() / MR_SECOND_NS;
}

/* Sets mr_error: why, with `aws sso login --profile x` as the remedy. */
static void ask_for_login(const struct sso *sso, const char *why)
{
    mr_error_set(MR_E_DENIED, "%s: run aws sso login --profile %.100s", why, sso->profile);
}

/* ---- the cache ---- */

/* Reads the login anew. -1 with mr_error, which names the remedy: there is none, or it is broken. */
static int load(struct sso *sso)
{
    static const char *const keys[MEMBERS] = {"accessToken", "expiresAt",    "refreshToken",
                                              "clientId",    "clientSecret", "registrationExpiresAt"};
    mr_auth_text_wipe(&sso->cache);
    for (int i = 0; i < MEMBERS; i++)
        sso->members[i] = (struct mr_auth_member){keys[i], NULL};
    char why[700];
    if (mr_auth_text_read(&sso->cache, sso->path, MR_AUTH_TOKEN_MAX) != 0) {
        snprintf(why, sizeof why, "there is no login of SSO in %.400s (%s)", sso->path, strerror(errno));
    } else if (mr_auth_members(sso->cache.data, sso->cache.length, sso->members, MEMBERS) != 0 ||
               !mr_auth_is_token(sso->members[ACCESS].value) || !sso->members[EXPIRES].value ||
               mr_aws_parse_time(sso->members[EXPIRES].value) < 0) {
        snprintf(why, sizeof why, "%.400s is not a login of SSO: it has no accessToken and expiresAt", sso->path);
    } else {
        return 0;
    }
    ask_for_login(sso, why);
    return -1;
}

static int64_t left_s(const struct sso *sso)
{
    return mr_aws_parse_time(sso->members[EXPIRES].value) - now_s();
}

static bool can_renew(const struct sso *sso)
{
    for (int i = REFRESH; i < MEMBERS; i++) {
        if (!sso->session || !sso->members[i].value)
            return false;
    }
    return mr_aws_parse_time(sso->members[REGISTRATION].value) > now_s();
}

static void put_member(struct mr_text *to, const char *key, const char *value)
{
    mr_text_puts(to, to->length ? ", " : "{");
    mr_auth_put_json(to, key);
    mr_text_puts(to, ": ");
    mr_auth_put_json(to, value);
}

/* Writes the renewed login back for other processes: the old refresh token may no longer be valid. If the home is
 * read-only, only this process uses it. */
static void save(const struct sso *sso, int64_t lifetime_s, const char *access, const char *refresh)
{
    char expires[32], temporary[4200];
    time_t end = (time_t)(now_s() + lifetime_s);
    struct tm tm;
    strftime(expires, sizeof expires, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    struct mr_text text = {0};
    mr_auth_text_reserve(&text, 4 * MR_AUTH_TOKEN_MAX);
    put_member(&text, "startUrl", sso->start_url);
    put_member(&text, "region", sso->region);
    put_member(&text, "accessToken", access);
    put_member(&text, "expiresAt", expires);
    put_member(&text, "clientId", sso->members[CLIENT_ID].value);
    put_member(&text, "clientSecret", sso->members[CLIENT_SECRET].value);
    put_member(&text, "registrationExpiresAt", sso->members[REGISTRATION].value);
    put_member(&text, "refreshToken", refresh ? refresh : sso->members[REFRESH].value);
    mr_text_puts(&text, "}");
    snprintf(temporary, sizeof temporary, "%.4000s.%016" PRIx64 ".part", sso->path, mr_random64());
    int fd = text.failed ? -1 : open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        bool whole = write(fd, text.data, text.length) == (ssize_t)text.length;
        if (close(fd) != 0 || !whole || rename(temporary, sso->path) != 0)
            unlink(temporary);
    }
    mr_auth_text_wipe(&text);
}

/* ---- keys ---- */

/* Where in text the object that is the value of key lies. 0, or -1 if there is none. Does not change text. */
static int find_object(const char *text, size_t length, const char *key, size_t *begin, size_t *size)
{
    struct mr_text copy = {0};
    mr_auth_text_reserve(&copy, length + 2);
    mr_text_add(&copy, text, length);
    int rc = -1, more = 0;
    struct mr_json json;
    const char *name;
    if (!copy.failed) {
        mr_json_init(&json, copy.data, copy.length);
        more = mr_json_enter(&json) == 0;
    }
    while (more && mr_json_key(&json, &name) == 1) {
        bool found = strcmp(name, key) == 0 && mr_json_peek(&json) == MR_JSON_OBJECT;
        *begin = (size_t)(json.at - json.begin);
        if (mr_json_skip(&json) != 0)
            break;
        if (found) {
            *size = (size_t)(json.at - json.begin) - *begin;
            rc = 0;
            break;
        }
    }
    mr_auth_text_wipe(&copy);
    return rc;
}

static void on_keys(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct sso *sso = call->arg;
    struct mr_auth_member members[] = {
        {"accessKeyId", NULL}, {"secretAccessKey", NULL}, {"sessionToken", NULL}, {"expiration", NULL}};
    struct mr_aws_found found = {.text = ""};
    size_t begin = 0, size = 0;
    int status = answer->status;
    if (status == 401) {
        ask_for_login(sso, "the login of SSO has ended, or was ended");
    } else if (mr_auth_answer_check(call, answer, "keys of SSO") != 0) {
        if (status == 403 || status == 404)
            mr_error_append("the role %.100s of account %.20s is not given to this user: correct sso_role_name and "
                            "sso_account_id",
                            sso->role_name, sso->account_id);
    } else if (find_object(answer->body, answer->length, "roleCredentials", &begin, &size) != 0 ||
               mr_auth_members(answer->body + begin, size, members, 4) != 0 || !members[0].value || !members[1].value ||
               !members[2].value || !members[3].value ||
               (found.expires_s = mr_aws_parse_number(members[3].value, INT64_MAX)) < 0) {
        mr_error_set(MR_E_DENIED, "the answer of %.200s has no keys: is it the portal of IAM Identity Center?",
                     sso->portal_url);
    } else {
        found.access_key_id = members[0].value;
        found.secret_access_key = members[1].value;
        found.session_token = members[2].value;
        found.expires_s /= 1000;
        mr_aws_give(&sso->base, &found);
        return;
    }
    mr_error_append("%s", sso->base.origin);
    mr_aws_fail(&sso->base);
}

static int ask_keys(struct sso *sso, const char *access)
{
    struct mr_text token = {0}; /* it may point into the call's own answer */
    mr_auth_text_reserve(&token, strlen(access) + 2);
    mr_text_puts(&token, access);
    struct mr_auth_call *call = &sso->call;
    mr_auth_call_init(call, sso->base.http, "GET", sso->portal_url);
    mr_text_puts(&call->url, "/federation/credentials?role_name=");
    mr_text_put_encoded(&call->url, sso->role_name, strlen(sso->role_name));
    mr_text_puts(&call->url, "&account_id=");
    mr_text_put_encoded(&call->url, sso->account_id, strlen(sso->account_id));
    if (!token.failed)
        mr_auth_call_line(call, "x-amz-sso_bearer_token", token.data);
    mr_auth_text_wipe(&token);
    call->done = on_keys;
    call->arg = sso;
    return mr_auth_call_send(call);
}

/* ---- renewal ---- */

static void on_renewed(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct sso *sso = call->arg;
    struct mr_auth_member members[] = {{"accessToken", NULL}, {"expiresIn", NULL}, {"refreshToken", NULL}};
    char text[600] = "";
    int rc = mr_auth_answer_check(call, answer, "login of SSO");
    if (rc == 0 && (mr_auth_members(answer->body, answer->length, members, 3) != 0 ||
                    !mr_auth_is_token(members[0].value) || !members[1].value)) {
        mr_error_set(MR_E_DENIED, "the answer of %.200s has no accessToken", sso->oidc_url);
        rc = -1;
    }
    if (rc == 0) {
        int64_t lifetime_s = mr_aws_parse_number(members[1].value, INT64_MAX);
        save(sso, lifetime_s < 0 ? 0 : lifetime_s, members[0].value, members[2].value);
        rc = ask_keys(sso, members[0].value);
    } else { /* the old one may be good for some minutes, or another process has renewed it */
        snprintf(text, sizeof text, "the login of SSO cannot be renewed (%.400s)", mr_error_text());
        rc = load(sso);
        if (rc == 0 && left_s(sso) <= 0) {
            ask_for_login(sso, text);
            rc = -1;
        }
        if (rc == 0)
            rc = ask_keys(sso, sso->members[ACCESS].value);
    }
    if (rc != 0) {
        mr_error_append("%s", sso->base.origin);
        mr_aws_fail(&sso->base);
    }
}

static int renew(struct sso *sso)
{
    struct mr_auth_call *call = &sso->call;
    mr_auth_call_init(call, sso->base.http, "POST", sso->oidc_url);
    mr_text_puts(&call->url, "/token");
    mr_auth_call_line(call, "Content-Type", "application/json");
    put_member(&call->body, "grantType", "refresh_token");
    put_member(&call->body, "clientId", sso->members[CLIENT_ID].value);
    put_member(&call->body, "clientSecret", sso->members[CLIENT_SECRET].value);
    put_member(&call->body, "refreshToken", sso->members[REFRESH].value);
    mr_text_puts(&call->body, "}");
    call->done = on_renewed;
    call->arg = sso;
    return mr_auth_call_send(call);
}

/* ---- life ---- */

static int sso_start(struct mr_aws_source *source)
{
    struct sso *sso = (struct sso *)source;
    int rc = load(sso);
    if (rc == 0 && left_s(sso) < RENEW_S && can_renew(sso)) {
        rc = renew(sso);
    } else if (rc == 0 && left_s(sso) <= 0) {
        ask_for_login(sso, "the login of SSO has ended");
        rc = -1;
    } else if (rc == 0) {
        rc = ask_keys(sso, sso->members[ACCESS].value);
    }
    if (rc != 0)
        mr_error_append("%s", source->origin);
    return rc;
}

static void sso_cancel(struct mr_aws_source *source)
{
    struct sso *sso = (struct sso *)source;
    mr_auth_call_close(&sso->call);
    mr_auth_text_wipe(&sso->cache);
}

static void sso_destroy(struct mr_aws_source *source)
{
    struct sso *sso = (struct sso *)source;
    sso_cancel(source);
    char *strings[] = {sso->session, sso->start_url,  sso->region,   sso->account_id, sso->role_name,
                       sso->profile, sso->portal_url, sso->oidc_url, sso->path};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        free(strings[i]);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops ops = {sso_start, sso_cancel, sso_destroy};

/* The file is named after the SHA-1 of the session's name, or of the start URL. */
static char *cache_path(const char *named_after)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    char name[100] = "~/.aws/sso/cache/";
    if (EVP_Digest(named_after, strlen(named_after), hash, &length, EVP_sha1(), NULL) != 1) {
        mr_error_set(MR_E_INTERNAL, "no SHA-1 for the name of a login of SSO");
        return NULL;
    }
    size_t at = strlen(name);
    for (unsigned i = 0; i < length && i < 20; i++)
        at += (size_t)snprintf(name + at, sizeof name - at, "%02x", hash[i]);
    snprintf(name + at, sizeof name - at, ".json");
    return mr_aws_path(name);
}

struct mr_aws_source *mr_aws_sso_new(struct mr_http *http, const char *origin, const struct mr_aws_files *files,
                                     const struct mr_aws_sso *options)
{
    struct sso *sso = mr_aws_source_make(sizeof *sso, &ops, http, origin);
    if (!sso)
        return NULL;
    char portal[200], oidc[200];
    const char *domain = mr_aws_domain(options->region);
    snprintf(portal, sizeof portal, "https://portal.sso.%.60s.%s", options->region, domain);
    snprintf(oidc, sizeof oidc, "https://oidc.%.60s.%s", options->region, domain);
    if (mr_aws_secret_endpoint(files, "sso", portal, &sso->portal_url) == 0 &&
        mr_aws_secret_endpoint(files, "sso_oidc", oidc, &sso->oidc_url) == 0 &&
        (sso->path = cache_path(options->session ? options->session : options->start_url))) {
        if (mr_text_dup(&sso->session, options->session) == 0 &&
            mr_text_dup(&sso->start_url, options->start_url) == 0 && mr_text_dup(&sso->region, options->region) == 0 &&
            mr_text_dup(&sso->account_id, options->account_id) == 0 &&
            mr_text_dup(&sso->role_name, options->role_name) == 0 && mr_text_dup(&sso->profile, options->profile) == 0)
            return &sso->base;
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
    }
    sso_destroy(&sso->base);
    return NULL;
}
