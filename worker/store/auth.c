/* auth.c - finds the credentials (docs/protocols.md, "Credentials"), and keeps one token: which requests wait for it,
 * when it is replaced. */
#include "worker/store/auth.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "worker/store/auth_impl.h"
#include "worker/store/auth_waiters.h"

#define AHEAD_S       225 /* a token is replaced 3 min 45 s before it expires (as google-auth does) */
#define JITTER_S      45  /* up to this much earlier, so that a job's workers do not all come at once */
#define AGAIN_S       15  /* a replacement failed while the old token is still good */
#define METADATA_HOST "169.254.169.254"

struct mr_auth {
    struct mr_auth *next; /* of this thread */
    unsigned uses;
    struct mr_http *http;
    bool anonymous;
    struct mr_auth_file *file;
    struct stat seen; /* the file, as it was before it was read */
    char *origin;     /* the file's path, or the metadata server's host */
    struct mr_auth_source *source;
    struct mr_http_timer timer; /* starts a fetch */
    bool fetching, started, refused;
    struct mr_text bearer; /* "Authorization: Bearer ..."; empty: none yet */
    struct mr_text quota;  /* "x-goog-user-project: ..." */
    uint64_t serial;
    int64_t expires_ns;
    int64_t refresh_ns; /* a good token is not replaced before then */
    struct mr_auth_waiters waiters;
};

/* One per loop: a token is fetched once, however many buckets are open. */
static _Thread_local struct mr_auth *auths;

/* ---- the token ---- */

static void wake_all(struct mr_auth *auth, enum mr_code code, const char *text)
{
    mr_auth_waiters_wake(&auth->waiters, auth->http, code, text);
}

static bool is_good(const struct mr_auth *auth)
{
    return auth->bearer.length && !auth->refused && mr_http_now_ns(auth->http) < auth->expires_ns;
}

static void fetch_at(struct mr_auth *auth, int64_t due_ns)
{
    mr_http_timer_set(auth->http, &auth->timer, due_ns);
}

/* When a token of this lifetime is replaced. */
static int64_t refresh_after_ns(int64_t lifetime_s)
{
    int64_t ahead = AHEAD_S + (int64_t)(mr_random64() % JITTER_S);
    if (lifetime_s >= 2 * ahead)
        return (lifetime_s - ahead) * MR_SECOND_NS;
    return lifetime_s > 2 ? lifetime_s * MR_SECOND_NS / 2 : MR_SECOND_NS; /* it was old on arrival: fetch again soon */
}

/* Ends a fetch. If it failed while the old token is still good, the waiters go on with that one and it is tried again
 * later. */
static void auth_on_token(void *arg, const struct mr_auth_token *token)
{
    struct mr_auth *auth = arg;
    auth->fetching = false;
    if (token->code == MR_OK) {
        int64_t now_ns = mr_http_now_ns(auth->http);
        mr_auth_text_wipe(&auth->bearer);
        mr_auth_text_reserve(&auth->bearer, MR_AUTH_TOKEN_MAX + 64);
        mr_text_puts(&auth->bearer, "Authorization: Bearer ");
        mr_text_puts(&auth->bearer, token->value);
        auth->serial++;
        auth->refused = auth->bearer.failed;
        auth->expires_ns = now_ns + token->lifetime_s * MR_SECOND_NS;
        if (auth->bearer.failed) {
            wake_all(auth, MR_E_NO_MEMORY, "no memory for credentials");
            return;
        }
        auth->refresh_ns = now_ns + refresh_after_ns(token->lifetime_s);
        fetch_at(auth, auth->refresh_ns);
        wake_all(auth, MR_OK, "");
        return;
    }
    if (is_good(auth)) {
        auth->refresh_ns = mr_http_now_ns(auth->http) + AGAIN_S * MR_SECOND_NS;
        fetch_at(auth, auth->refresh_ns);
        wake_all(auth, MR_OK, "");
        return;
    }
    wake_all(auth, token->code, token->text);
}

bool mr_auth_headers(struct mr_auth *auth, struct mr_auth_headers *headers)
{
    *headers = (struct mr_auth_headers){.count = 0};
    if (auth->anonymous)
        return true;
    if (!is_good(auth))
        return false;
    headers->lines[headers->count++] = auth->bearer.data;
    if (auth->quota.length)
        headers->lines[headers->count++] = auth->quota.data;
    headers->serial = auth->serial;
    return true;
}

void mr_auth_wait(struct mr_auth *auth, struct mr_auth_waiter *waiter)
{
    mr_auth_waiters_add(&auth->waiters, waiter);
    if (!auth->fetching)
        fetch_at(auth, 0); /* from the loop: a start calls nothing back */
}

void mr_auth_cancel(struct mr_auth *auth, struct mr_auth_waiter *waiter)
{
    mr_auth_waiters_remove(&auth->waiters, waiter);
}

void mr_auth_refused(struct mr_auth *auth, uint64_t serial)
{
    if (serial && serial == auth->serial)
        auth->refused = true;
}

/* ---- which credentials ---- */

/* NULL with mr_error. Keeps file and scope by reference. Recursive: an impersonated account has a source of its own. */
static struct mr_auth_source *source_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope)
{
    switch (file->kind) {
    case MR_AUTH_SERVICE_ACCOUNT:
        return mr_auth_service_account_new(http, file, scope);
    case MR_AUTH_USER:
    case MR_AUTH_EXTERNAL_USER:
        return mr_auth_user_new(http, file);
    case MR_AUTH_EXTERNAL:
        if (!file->impersonation_url)
            return mr_auth_external_new(http, file, scope);
        return mr_auth_impersonate_new(http, file, scope, mr_auth_external_new(http, file, MR_AUTH_SCOPE_CLOUD));
    case MR_AUTH_IMPERSONATED:
        return mr_auth_impersonate_new(http, file, scope, source_new(http, file->source, MR_AUTH_SCOPE_CLOUD));
    }
    mr_error_set(MR_E_INTERNAL, "credentials of an unknown kind");
    return NULL;
}

/* Where gcloud puts application default credentials. */
static void put_gcloud_path(char *out, size_t size)
{
    const char *folder = mr_auth_env("CLOUDSDK_CONFIG");
    if (folder)
        snprintf(out, size, "%s/application_default_credentials.json", folder);
    else
        snprintf(out, size, "%s/.config/gcloud/application_default_credentials.json", mr_auth_home());
}

static bool is_true(const char *text)
{
    return text && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

static void take_source(struct mr_auth *auth, struct mr_auth_source *source)
{
    auth->source = source;
    source->done = auth_on_token;
    source->arg = auth;
}

/* Sets source and origin, and file if they come from one. -1 with mr_error. No network: only the first fetch finds out
 * whether there is a metadata server. */
static int find_source(struct mr_auth *auth)
{
    const char *variable = mr_auth_env("GOOGLE_APPLICATION_CREDENTIALS"), *host = mr_auth_env("GCE_METADATA_HOST");
    char path[4096];
    put_gcloud_path(path, sizeof path);
    if (variable)
        snprintf(path, sizeof path, "%s", variable);
    if (variable || access(path, F_OK) == 0) {
        auth->origin = strdup(path);
        if (stat(path, &auth->seen) != 0)
            auth->seen = (struct stat){0};
        auth->file = mr_auth_file_read(path);
        if (auth->file) {
            auth->source = source_new(auth->http, auth->file, MR_AUTH_SCOPE_STORAGE);
            if (!auth->source)
                mr_error_append("credentials of %s", path);
        }
        if (!auth->source && variable)
            mr_error_append("GOOGLE_APPLICATION_CREDENTIALS");
    } else if (is_true(mr_auth_env("NO_GCE_CHECK"))) {
        mr_error_set(MR_E_DENIED,
                     "no credentials: GOOGLE_APPLICATION_CREDENTIALS is not set, there is no %s, and NO_GCE_CHECK says "
                     "not to look for a metadata server; run gcloud auth application-default login, or set "
                     "GOOGLE_APPLICATION_CREDENTIALS to a key file, or [gcs] auth = \"anonymous\" for a public bucket",
                     path);
    } else if (host && strpbrk(host, "/?#@ \r\n")) {
        mr_error_set(MR_E_DENIED, "GCE_METADATA_HOST=%.100s is not of the form host[:port]", host);
    } else {
        auth->origin = strdup(host ? host : METADATA_HOST);
        auth->source = mr_auth_metadata_new(auth->http, host ? host : METADATA_HOST);
    }
    return auth->source ? 0 : -1;
}

/* The environment takes precedence over the file. 0 also if neither names a project; -1 with mr_error. */
static int set_quota(struct mr_auth *auth)
{
    const char *project = mr_auth_env("GOOGLE_CLOUD_QUOTA_PROJECT");
    if (!project && auth->file)
        project = auth->file->quota_project_id;
    if (!project)
        return 0;
    if (strpbrk(project, "\r\n")) {
        mr_error_set(MR_E_DENIED, "GOOGLE_CLOUD_QUOTA_PROJECT is not the name of a project");
        return -1;
    }
    mr_text_puts(&auth->quota, "x-goog-user-project: ");
    mr_text_puts(&auth->quota, project);
    if (!auth->quota.failed)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
    return -1;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec; /* its mode */
}

/* A key that was replaced, or a new login, counts without a restart. What cannot be used, as a file that is just being
 * written, leaves what was read before. No fetch may be under way. */
static void follow_file(struct mr_auth *auth)
{
    struct stat now;
    if (!auth->file || stat(auth->origin, &now) != 0 || is_same(&now, &auth->seen))
        return;
    auth->seen = now;
    struct mr_auth_file *file = mr_auth_file_read(auth->origin), *old = auth->file;
    struct mr_auth_source *source = file ? source_new(auth->http, file, MR_AUTH_SCOPE_STORAGE) : NULL;
    if (source) {
        auth->source->ops->destroy(auth->source);
        take_source(auth, source);
        auth->file = file;
        file = old;
        mr_text_clear(&auth->quota);
    }
    if (!source || set_quota(auth) != 0)
        mr_log_warning("%s has changed: %s%s", auth->origin, mr_error_text(),
                       source ? "" : "; the credentials that it held before are used");
    mr_auth_file_destroy(file);
}

/* ---- fetching ---- */

/* Wakes the waiters without a fetch if the token has been replaced meanwhile; reads the file anew if that was. If a
 * fetch cannot start, they get mr_error. */
static void run_fetch(struct mr_http_timer *timer)
{
    struct mr_auth *auth = MR_CONTAINER_OF(timer, mr_auth, timer);
    /* A 401 may come for a token that has been replaced meanwhile: a waiter takes the new one. */
    if (is_good(auth) && mr_http_now_ns(auth->http) < auth->refresh_ns) {
        fetch_at(auth, auth->refresh_ns);
        wake_all(auth, MR_OK, "");
        return;
    }
    if (auth->started)
        auth->source->ops->cancel(auth->source); /* overwrites what the fetch before it left */
    follow_file(auth);
    auth->fetching = auth->started = true;
    if (auth->source->ops->start(auth->source) != 0)
        mr_auth_fail(auth->source);
}

/* ---- for people ---- */

/* The account in ".../serviceAccounts/ACCOUNT:generateAccessToken". */
static int put_account(const char *url, char *out, size_t size)
{
    const char *slash = url ? strrchr(url, '/') : NULL;
    return slash ? snprintf(out, size, "%.*s", (int)strcspn(slash + 1, ":?"), slash + 1)
                 : snprintf(out, size, "another account");
}

/* For people: the kind of credentials and the account. No secret. */
static void put_kind(const struct mr_auth *auth, char *out, size_t size)
{
    const struct mr_auth_file *file = auth->file;
    if (!file) {
        snprintf(out, size, "the machine's account");
        return;
    }
    char account[256];
    put_account(file->impersonation_url, account, sizeof account);
    switch (file->kind) {
    case MR_AUTH_SERVICE_ACCOUNT:
        snprintf(out, size, "service account %s", file->client_email);
        return;
    case MR_AUTH_USER:
    case MR_AUTH_EXTERNAL_USER:
        snprintf(out, size, "a user's, of gcloud auth application-default login");
        return;
    case MR_AUTH_EXTERNAL:
        if (file->impersonation_url)
            snprintf(out, size, "external account as %s", account);
        else
            snprintf(out, size, "external account %s", file->audience ? file->audience : "");
        return;
    case MR_AUTH_IMPERSONATED:
        snprintf(out, size, "impersonates %s", account);
        return;
    }
}

void mr_auth_describe(const struct mr_auth *auth, char *out, size_t size)
{
    if (auth->anonymous) {
        snprintf(out, size, "none are sent (anonymous, or an emulator)");
        return;
    }
    char kind[400];
    put_kind(auth, kind, sizeof kind);
    int64_t left_s = (auth->expires_ns - mr_http_now_ns(auth->http)) / MR_SECOND_NS;
    char until[80] = "";
    if (auth->bearer.length && left_s > 0)
        snprintf(until, sizeof until, "; its token is good for %lld min", (long long)(left_s / 60));
    snprintf(out, size, "%s, from %s%s", kind, auth->origin ? auth->origin : "", until);
}

/* ---- life ---- */

static void auth_free(struct mr_auth *auth)
{
    if (auth->source)
        auth->source->ops->destroy(auth->source);
    mr_auth_file_destroy(auth->file);
    mr_http_timer_stop(auth->http, &auth->timer);
    mr_auth_text_wipe(&auth->bearer);
    mr_text_close(&auth->quota);
    free(auth->origin);
    free(auth);
}

/* Adds it to `auths`, for mr_auth_new to share. Unless anonymous, the process writes no core dumps from now on. */
static struct mr_auth *auth_make(struct mr_http *http, bool anonymous)
{
    struct mr_auth *auth = calloc(1, sizeof *auth);
    if (!auth) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    auth->uses = 1;
    auth->http = http;
    auth->anonymous = anonymous;
    auth->timer.run = run_fetch;
    if (!anonymous) {
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no core dump with a key in it */
        if (find_source(auth) != 0 || set_quota(auth) != 0) {
            auth_free(auth);
            return NULL;
        }
        take_source(auth, auth->source);
    }
    auth->next = auths;
    auths = auth;
    return auth;
}

struct mr_auth *mr_auth_new(const char *mode, bool emulator, struct mr_http *http)
{
    bool by_default = !mode || !mode[0] || strcmp(mode, "default") == 0;
    if (!by_default && strcmp(mode, "anonymous") != 0) {
        mr_error_set(MR_E_CONFIG, "[gcs] auth = \"%s\" is not one of default, anonymous", mode);
        return NULL;
    }
    bool anonymous = !by_default || emulator;
    for (struct mr_auth *auth = auths; auth; auth = auth->next) {
        if (auth->http == http && auth->anonymous == anonymous) {
            auth->uses++;
            return auth;
        }
    }
    return auth_make(http, anonymous);
}

void mr_auth_destroy(struct mr_auth *auth)
{
    if (!auth || --auth->uses > 0)
        return;
    struct mr_auth **at = &auths;
    while (*at != auth)
        at = &(*at)->next;
    *at = auth->next;
    auth_free(auth);
}
