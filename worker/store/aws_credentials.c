/* aws_credentials.c - the AWS keys of one process: which requests wait for them, when they are replaced. */
#include "worker/store/aws_credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/container.h"
#include "worker/store/auth_waiters.h"
#include "worker/store/aws_impl.h"

#define AHEAD_S  900 /* before they expire, keys are replaced, while requests continue with them */
#define JITTER_S 120 /* up to this much earlier, so that a job's workers do not all come at once */
#define MUST_S   600 /* before they expire, requests wait for the replacement under way */
#define AGAIN_S  30  /* a replacement failed while the old keys are still good */
#define SAME_S   1   /* so long, a source that had no others than the refused keys is not asked again */

struct mr_aws_credentials {
    struct mr_aws_credentials *next; /* of this thread */
    unsigned uses;
    struct mr_http *http;
    bool anonymous, cleartext;
    bool given;             /* its source is the caller's, not the chain's */
    char *profile, *region; /* as named by the caller; "" */
    struct mr_aws_source *source;
    bool read;                  /* source is up to date: the files have just been read */
    struct mr_http_timer timer; /* starts a fetch */
    bool fetching, refused;
    bool failed;         /* the last replacement */
    int64_t same_ns;     /* when the source had no others than the refused keys; 0 */
    struct mr_text keys; /* id, secret, token, each with its NUL; empty: none yet */
    bool has_token;
    uint64_t serial;
    int64_t refresh_ns, must_ns, expires_ns;
    struct mr_auth_waiters waiters;
};

/* One per loop, profile and region: keys are fetched once, however many buckets are open. */
static _Thread_local struct mr_aws_credentials *all;

/* ---- the keys ---- */

static void wake_all(struct mr_aws_credentials *credentials, enum mr_code code, const char *text)
{
    mr_auth_waiters_wake(&credentials->waiters, credentials->http, code, text);
}

static void fetch_at(struct mr_aws_credentials *credentials, int64_t due_ns)
{
    mr_http_timer_set(credentials->http, &credentials->timer, due_ns);
}

static bool is_good(const struct mr_aws_credentials *credentials)
{
    return credentials->keys.length && !credentials->refused &&
           mr_http_now_ns(credentials->http) < credentials->expires_ns;
}

/* The strings point into credentials->keys, which must not be empty. */
static void aws_credentials_split(const struct mr_aws_credentials *credentials, struct mr_aws_keys *keys)
{
    keys->access_key_id = credentials->keys.data;
    keys->secret_access_key = keys->access_key_id + strlen(keys->access_key_id) + 1;
    const char *token = keys->secret_access_key + strlen(keys->secret_access_key) + 1;
    keys->session_token = credentials->has_token ? token : NULL;
    keys->serial = credentials->serial;
}

static bool are_same(const struct mr_aws_credentials *credentials, const struct mr_aws_found *found)
{
    if (!credentials->keys.length || credentials->has_token != (found->session_token != NULL))
        return false;
    struct mr_aws_keys keys;
    aws_credentials_split(credentials, &keys);
    return strcmp(keys.access_key_id, found->access_key_id) == 0 &&
           strcmp(keys.secret_access_key, found->secret_access_key) == 0 &&
           (!found->session_token || strcmp(keys.session_token, found->session_token) == 0);
}

/* expires_s: since 1970; 0, or beyond what nanoseconds count: they do not expire. Also schedules their replacement. */
static void set_times(struct mr_aws_credentials *credentials, int64_t expires_s)
{
    int64_t now_ns = mr_http_now_ns(credentials->http);
    credentials->refresh_ns = credentials->must_ns = credentials->expires_ns = INT64_MAX;
    if (!expires_s || expires_s > INT64_MAX / 2 / MR_SECOND_NS) /* "9999-12-31" means never, too */
        return;
    int64_t left_ns = expires_s * MR_SECOND_NS - mr_clock_wall_ns();
    int64_t ahead_ns = AHEAD_S * MR_SECOND_NS + (int64_t)(mr_random64() % (uint64_t)(JITTER_S * MR_SECOND_NS));
    int64_t must_ns = MUST_S * MR_SECOND_NS;
    if (left_ns < 2 * ahead_ns) { /* they are short-lived, or were old on arrival: fetch again soon */
        ahead_ns = left_ns > 2 * MR_SECOND_NS ? left_ns / 2 : left_ns - MR_SECOND_NS;
        must_ns = left_ns / 4;
    }
    credentials->refresh_ns = now_ns + left_ns - ahead_ns;
    credentials->must_ns = now_ns + left_ns - must_ns;
    credentials->expires_ns = now_ns + left_ns;
    fetch_at(credentials, credentials->refresh_ns);
}

/* 0, or -1 for no memory. */
static int aws_credentials_keep(struct mr_aws_credentials *credentials, const struct mr_aws_found *found)
{
    const char *token = found->session_token ? found->session_token : "";
    const char *strings[] = {found->access_key_id, found->secret_access_key, token};
    size_t size = 8;
    for (int i = 0; i < 3; i++)
        size += strlen(strings[i]) + 1;
    mr_auth_text_wipe(&credentials->keys);
    mr_auth_text_reserve(&credentials->keys, size);
    for (int i = 0; i < 3; i++)
        mr_text_add(&credentials->keys, strings[i], strlen(strings[i]) + 1);
    credentials->has_token = found->session_token != NULL;
    credentials->serial++;
    return credentials->keys.failed ? -1 : 0;
}

/* While the keys are still good, waiters continue with them, and the fetch is repeated later. */
static void on_failure(struct mr_aws_credentials *credentials, enum mr_code code, const char *text)
{
    if (!is_good(credentials)) {
        wake_all(credentials, code, text);
        return;
    }
    credentials->failed = true; /* the old keys are used until they expire */
    credentials->refresh_ns = mr_http_now_ns(credentials->http) + AGAIN_S * MR_SECOND_NS;
    fetch_at(credentials, credentials->refresh_ns);
    wake_all(credentials, MR_OK, "");
}

/*
 * The store has refused the keys, and there are no others: whoever waits fails with that. Later requests are sent with
 * them: stores refuse for a while what is new to them, and what only one of their machines does not know.
 */
static void refuse_same(struct mr_aws_credentials *credentials)
{
    char text[1024];
    mr_error_set(MR_E_DENIED,
                 "the store refuses the keys of %s, and there are no others: renew them (they may have ended, or be "
                 "of another store)",
                 credentials->source->origin);
    snprintf(text, sizeof text, "%s", mr_error_text());
    credentials->refused = false;
    wake_all(credentials, MR_E_DENIED, text);
}

/* The same keys again keep their serial. If the store has refused them, that is a failure. */
static void on_found(void *arg, const struct mr_aws_found *found)
{
    struct mr_aws_credentials *credentials = arg;
    credentials->fetching = false;
    if (found->code != MR_OK) {
        on_failure(credentials, found->code, found->text);
        return;
    }
    bool same = are_same(credentials, found);
    if (same && credentials->refused) {
        credentials->same_ns = mr_http_now_ns(credentials->http);
        refuse_same(credentials);
        return;
    }
    credentials->failed = false;
    if (!same && aws_credentials_keep(credentials, found) != 0) {
        mr_auth_text_wipe(&credentials->keys);
        wake_all(credentials, MR_E_NO_MEMORY, "no memory for credentials");
        return;
    }
    credentials->refused = false;
    set_times(credentials, found->expires_s);
    wake_all(credentials, MR_OK, "");
}

static void set_source(struct mr_aws_credentials *credentials, struct mr_aws_source *source)
{
    credentials->source = source;
    source->done = on_found;
    source->arg = credentials;
}

/* Reads the environment and the files, and takes the source that the chain finds. 0, or -1 with mr_error. */
static int find_source(struct mr_aws_credentials *credentials)
{
    if (credentials->given)
        return 0;
    const struct mr_aws_options options = {
        .profile = credentials->profile, .region = credentials->region, .cleartext = credentials->cleartext};
    struct mr_aws_files files;
    if (mr_aws_files_read(&files, &options) != 0)
        return -1;
    struct mr_aws_source *source = mr_aws_chain(credentials->http, &files);
    mr_aws_files_close(&files);
    if (!source)
        return -1;
    mr_aws_source_destroy(credentials->source);
    set_source(credentials, source);
    return 0;
}

/* Reads the environment and the files anew, unless mr_aws_credentials_new has just done so. If no fetch can start,
 * waiters get the error or the keys that are still good. */
static void run_fetch(struct mr_http_timer *timer)
{
    struct mr_aws_credentials *credentials = MR_CONTAINER_OF(timer, mr_aws_credentials, timer);
    /* Keys may be refused after they have been replaced: a waiter takes the new ones. */
    if (is_good(credentials) && mr_http_now_ns(credentials->http) < credentials->refresh_ns) {
        if (credentials->refresh_ns < INT64_MAX)
            fetch_at(credentials, credentials->refresh_ns);
        wake_all(credentials, MR_OK, "");
        return;
    }
    if (credentials->refused && credentials->same_ns &&
        mr_http_now_ns(credentials->http) < credentials->same_ns + SAME_S * MR_SECOND_NS) {
        refuse_same(credentials);
        return;
    }
    if ((!credentials->read && find_source(credentials) != 0) ||
        credentials->source->ops->start(credentials->source) != 0) {
        char text[1024];
        snprintf(text, sizeof text, "%s", mr_error_text());
        credentials->read = false;
        on_failure(credentials, mr_error_code(), text);
        return;
    }
    credentials->read = false;
    credentials->fetching = true;
}

bool mr_aws_credentials_get(struct mr_aws_credentials *credentials, struct mr_aws_keys *keys)
{
    *keys = (struct mr_aws_keys){.serial = 0};
    if (credentials->anonymous)
        return true;
    if (!is_good(credentials) || (!credentials->failed && mr_http_now_ns(credentials->http) >= credentials->must_ns))
        return false;
    aws_credentials_split(credentials, keys);
    return true;
}

void mr_aws_credentials_wait(struct mr_aws_credentials *credentials, struct mr_auth_waiter *waiter)
{
    mr_auth_waiters_add(&credentials->waiters, waiter);
    if (!credentials->fetching)
        fetch_at(credentials, 0); /* from the loop: a start calls nothing back */
}

void mr_aws_credentials_cancel(struct mr_aws_credentials *credentials, struct mr_auth_waiter *waiter)
{
    mr_auth_waiters_remove(&credentials->waiters, waiter);
}

void mr_aws_credentials_refused(struct mr_aws_credentials *credentials, uint64_t serial)
{
    if (serial && serial == credentials->serial)
        credentials->refused = true;
}

void mr_aws_credentials_describe(const struct mr_aws_credentials *credentials, char *out, size_t size)
{
    if (credentials->anonymous) {
        snprintf(out, size, "none are sent (anonymous)");
        return;
    }
    char until[80] = "";
    if (is_good(credentials) && credentials->expires_ns < INT64_MAX)
        snprintf(until, sizeof until, "; good for %lld min",
                 (long long)((credentials->expires_ns - mr_http_now_ns(credentials->http)) / MR_SECOND_NS / 60));
    snprintf(out, size, "%s%s", credentials->source->origin, until);
}

/* ---- life ---- */

static void credentials_free(struct mr_aws_credentials *credentials)
{
    mr_aws_source_destroy(credentials->source);
    mr_http_timer_stop(credentials->http, &credentials->timer);
    mr_auth_text_wipe(&credentials->keys);
    free(credentials->profile);
    free(credentials->region);
    free(credentials);
}

struct mr_aws_credentials *mr_aws_credentials_new(const struct mr_aws_options *options, struct mr_http *http)
{
    const char *profile = options->profile ? options->profile : "", *region = options->region ? options->region : "";
    for (struct mr_aws_credentials *known = all; known; known = known->next) {
        if (known->http == http && known->anonymous == options->anonymous && known->cleartext == options->cleartext &&
            strcmp(known->profile, profile) == 0 && strcmp(known->region, region) == 0) {
            known->uses++;
            return known;
        }
    }
    struct mr_aws_credentials *credentials = calloc(1, sizeof *credentials);
    if (!credentials || mr_text_dup(&credentials->profile, profile) != 0 ||
        mr_text_dup(&credentials->region, region) != 0) {
        if (credentials)
            free(credentials->profile);
        free(credentials);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    credentials->uses = 1;
    credentials->http = http;
    credentials->anonymous = options->anonymous;
    credentials->cleartext = options->cleartext;
    credentials->timer.run = run_fetch;
    if (!options->anonymous) {
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no core dump with a key in it */
        if (find_source(credentials) != 0) {
            credentials_free(credentials);
            return NULL;
        }
        credentials->read = true;
    }
    credentials->next = all;
    all = credentials;
    return credentials;
}

struct mr_aws_credentials *mr_aws_credentials_of(struct mr_aws_source *source, struct mr_http *http)
{
    struct mr_aws_credentials *credentials = calloc(1, sizeof *credentials);
    if (!credentials) {
        mr_aws_source_destroy(source);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    credentials->uses = 1;
    credentials->http = http;
    credentials->given = true;
    credentials->timer.run = run_fetch;
    set_source(credentials, source);
    return credentials;
}

void mr_aws_credentials_destroy(struct mr_aws_credentials *credentials)
{
    if (!credentials || --credentials->uses > 0)
        return;
    struct mr_aws_credentials **at = &all;
    while (*at && *at != credentials)
        at = &(*at)->next;
    if (*at)
        *at = credentials->next;
    credentials_free(credentials);
}
