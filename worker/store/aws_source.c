/* aws_source.c - what every source of AWS keys does with them: checks, times, JSON; and keys that are known already. */
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/container.h"
#include "worker/store/aws_impl.h"

/* ---- life ---- */

void *mr_aws_source_make(size_t size, const struct mr_aws_source_ops *ops, struct mr_http *http, const char *origin)
{
    struct mr_aws_source *source = calloc(1, size);
    if (source && mr_text_dup(&source->origin, origin) != 0) {
        free(source);
        source = NULL;
    }
    if (!source) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    source->ops = ops;
    source->http = http;
    return source;
}

void mr_aws_source_free(struct mr_aws_source *source)
{
    free(source->origin);
    free(source);
}

void mr_aws_source_destroy(struct mr_aws_source *source)
{
    if (source)
        source->ops->destroy(source);
}

/* ---- times and numbers ---- */

int64_t mr_aws_parse_number(const char *text, int64_t max)
{
    int64_t value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 15 || text[digits])
        return -1;
    for (size_t i = 0; i < digits; i++)
        value = 10 * value + (text[i] - '0');
    return value <= max ? value : -1;
}

/* "", "Z", "UTC", "+01:30", "-0100": seconds east of Greenwich. false: none of these. */
static bool parse_zone(const char *at, int *east_s)
{
    int hours, minutes;
    char sign, rest;
    *east_s = 0;
    if (!*at || strcmp(at, "Z") == 0 || strcmp(at, "UTC") == 0)
        return true;
    if (strlen(at) > 6 || (sscanf(at, "%c%2d:%2d%c", &sign, &hours, &minutes, &rest) != 3 &&
                           sscanf(at, "%c%2d%2d%c", &sign, &hours, &minutes, &rest) != 3))
        return false;
    *east_s = (sign == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
    return (sign == '+' || sign == '-') && hours >= 0 && hours < 24 && minutes >= 0 && minutes < 60;
}

int64_t mr_aws_parse_time(const char *text)
{
    struct tm tm = {0};
    int length = 0, east_s;
    if (strspn(text, "0123456789") != 4 ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &tm.tm_sec, &length) != 6 ||
        length != 19)
        return -1;
    const char *at = text + length;
    if (*at == '.')
        at += 1 + strspn(at + 1, "0123456789");
    if (!parse_zone(at, &east_s) || tm.tm_year < 1970 || tm.tm_mon < 1 || tm.tm_mon > 12)
        return -1;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return (int64_t)timegm(&tm) - east_s;
}

/* ---- keys ---- */

int mr_aws_found_in_json(struct mr_aws_found *found, char *text, size_t length, const char *token, const char *what)
{
    struct mr_auth_member members[] = {{"AccessKeyId", NULL}, {"SecretAccessKey", NULL},
                                       {token, NULL},         {"Expiration", NULL},
                                       {"Code", NULL},        {"Message", NULL}};
    *found = (struct mr_aws_found){.text = ""};
    if (mr_auth_members(text, length, members, 6) != 0) {
        mr_error_set(MR_E_DENIED, "the answer of %s is not JSON", what);
        return -1;
    }
    if (!members[0].value || !members[1].value) {
        char words[300] = "";
        const char *message = members[5].value ? members[5].value : members[4].value;
        if (message)
            mr_text_quote(words, sizeof words, message, strlen(message));
        mr_error_set(MR_E_DENIED, "the answer of %s has no AccessKeyId and SecretAccessKey%s%s", what,
                     words[0] ? ": " : "", words);
        return -1;
    }
    found->access_key_id = members[0].value;
    found->secret_access_key = members[1].value;
    found->session_token = members[2].value && members[2].value[0] ? members[2].value : NULL;
    if (members[3].value && (found->expires_s = mr_aws_parse_time(members[3].value)) < 0) {
        mr_error_set(MR_E_DENIED, "the answer of %s has an Expiration that is not a time (2026-01-02T03:04:05Z)", what);
        return -1;
    }
    return 0;
}

void mr_aws_fail(struct mr_aws_source *source)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", mr_error_text());
    enum mr_code code = mr_error_code();
    source->done(source->arg, &(struct mr_aws_found){.code = code ? code : MR_E_INTERNAL, .text = text});
}

void mr_aws_give(struct mr_aws_source *source, const struct mr_aws_found *found)
{
    char time_text[32] = "";
    time_t end = (time_t)found->expires_s;
    struct tm tm;
    if (!mr_auth_is_token(found->access_key_id) || !mr_auth_is_token(found->secret_access_key) ||
        (found->session_token && !mr_auth_is_token(found->session_token))) {
        mr_error_set(MR_E_DENIED,
                     "a key of %s is empty, or has a space or a byte that no key has: copy it again, without "
                     "quotes or a comment behind it",
                     source->origin);
    } else if (found->expires_s && found->expires_s <= mr_clock_wall_ns() / MR_SECOND_NS) {
        strftime(time_text, sizeof time_text, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&end, &tm));
        mr_error_set(MR_E_DENIED, "the keys of %s ended at %s: renew them (is the machine's clock right?)",
                     source->origin, time_text);
    } else {
        source->done(source->arg, found);
        return;
    }
    mr_aws_fail(source);
}

/* ---- keys that are there ---- */

struct fixed {
    struct mr_aws_source base;
    struct mr_http_timer timer;
    struct mr_text keys; /* each with its NUL */
    bool has_token;
    int64_t expires_s;
};

static void run_fixed(struct mr_http_timer *timer)
{
    struct fixed *fixed = MR_CONTAINER_OF(timer, fixed, timer);
    const char *id = fixed->keys.data, *secret = id + strlen(id) + 1, *token = secret + strlen(secret) + 1;
    mr_aws_give(&fixed->base, &(struct mr_aws_found){.text = "",
                                                     .access_key_id = id,
                                                     .secret_access_key = secret,
                                                     .session_token = fixed->has_token ? token : NULL,
                                                     .expires_s = fixed->expires_s});
}

static int fixed_start(struct mr_aws_source *source)
{
    struct fixed *fixed = (struct fixed *)source;
    fixed->timer.run = run_fixed;
    mr_http_timer_set(source->http, &fixed->timer, 0);
    return 0;
}

static void fixed_cancel(struct mr_aws_source *source)
{
    mr_http_timer_stop(source->http, &((struct fixed *)source)->timer);
}

static void fixed_destroy(struct mr_aws_source *source)
{
    fixed_cancel(source);
    mr_auth_text_wipe(&((struct fixed *)source)->keys);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops fixed_ops = {fixed_start, fixed_cancel, fixed_destroy};

struct mr_aws_source *mr_aws_fixed_new(struct mr_http *http, const char *origin, const struct mr_aws_fixed *keys)
{
    struct fixed *fixed = mr_aws_source_make(sizeof *fixed, &fixed_ops, http, origin);
    if (!fixed)
        return NULL;
    const char *strings[] = {keys->access_key_id, keys->secret_access_key, keys->session_token};
    size_t size = 8;
    for (int i = 0; i < 3; i++)
        size += strings[i] ? strlen(strings[i]) + 1 : 1;
    mr_auth_text_reserve(&fixed->keys, size);
    for (int i = 0; i < 3; i++)
        mr_text_add(&fixed->keys, strings[i] ? strings[i] : "", strings[i] ? strlen(strings[i]) + 1 : 1);
    fixed->has_token = keys->session_token && keys->session_token[0];
    fixed->expires_s = keys->expires_s;
    if (!fixed->keys.failed)
        return &fixed->base;
    mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
    fixed_destroy(&fixed->base);
    return NULL;
}
