/*
 * auth_aws.c - a subject token from AWS: a signed GetCallerIdentity request that Google's token server sends on
 * (https://google.aip.dev/auth/4117; Signature Version 4:
 * https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html). Region and keys come from the environment,
 * else from the metadata server of the EC2 instance.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/base/clock.h"
#include "shm/base/container.h"
#include "shm/base/error.h"
#include "worker/store/auth_impl.h"

#define PAIRS_MAX 16

struct aws_keys {
    const char *access_key_id, *secret_access_key, *session_token; /* the last may be NULL */
};

struct mr_auth_aws {
    struct mr_auth_subject *subject;
    struct mr_auth_call call;
    struct mr_http_timer timer;
    struct mr_text session, role, region, keys; /* answers of the metadata server; keys' strings point into keys */
    struct aws_keys key;
};

/* ---- signing ---- */

static void put_hex(struct mr_text *to, const unsigned char *data, size_t length)
{
    char hex[3];
    for (size_t i = 0; i < length; i++) {
        snprintf(hex, sizeof hex, "%02x", data[i]);
        mr_text_add(to, hex, 2);
    }
}

static int hmac(unsigned char out[32], const void *key, size_t key_length, const char *text, size_t length)
{
    unsigned n = 32;
    return HMAC(EVP_sha256(), key, (int)key_length, (const unsigned char *)text, length, out, &n) ? 0 : -1;
}

static int put_sha256(struct mr_text *to, const char *text, size_t length)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(text, length, hash, &n, EVP_sha256(), NULL) != 1)
        return -1;
    put_hex(to, hash, n);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The parameters in order, as they are encoded in the URL. */
static void put_query(struct mr_text *to, const char *query)
{
    char *copy = strdup(query), *rest = copy;
    if (!copy)
        to->failed = true;
    char *pairs[PAIRS_MAX], *pair;
    size_t count = 0;
    while (copy && count < PAIRS_MAX && (pair = strsep(&rest, "&"))) {
        if (pair[0])
            pairs[count++] = pair;
    }
    qsort(pairs, count, sizeof *pairs, by_text);
    for (size_t i = 0; i < count; i++) {
        mr_text_puts(to, i ? "&" : "");
        mr_text_puts(to, pairs[i]);
        mr_text_puts(to, strchr(pairs[i], '=') ? "" : "=");
    }
    free(copy);
}

struct place {
    const char *host, *path, *query; /* query: "" or after the "?" */
    size_t host_length, path_length, service_length;
};

static int split_url(const char *url, struct place *place)
{
    const char *host = strstr(url, "://");
    if (!host)
        return -1;
    place->host = host + 3;
    place->host_length = strcspn(place->host, "/?#:");
    const char *at = place->host + place->host_length;
    at += *at == ':' ? strcspn(at, "/?#") : 0;
    place->path = at;
    place->path_length = strcspn(at, "?#");
    place->query = at[place->path_length] == '?' ? at + place->path_length + 1 : "";
    place->service_length = strcspn(place->host, ".");
    if (place->service_length > 5 && strncmp(place->host + place->service_length - 5, "-fips", 5) == 0)
        place->service_length -= 5; /* sts-fips.us-east-2.amazonaws.com */
    return place->host_length > 0 && place->service_length < place->host_length ? 0 : -1;
}

static void put_canonical(struct mr_text *to, const struct place *place, const struct aws_keys *keys,
                          const char *signed_headers, const char *method, const char *date)
{
    mr_text_puts(to, method);
    mr_text_puts(to, "\n");
    mr_text_add(to, place->path_length ? place->path : "/", place->path_length ? place->path_length : 1);
    mr_text_puts(to, "\n");
    put_query(to, place->query);
    mr_text_puts(to, "\nhost:");
    mr_text_add(to, place->host, place->host_length);
    mr_text_puts(to, "\nx-amz-date:");
    mr_text_puts(to, date);
    if (keys->session_token) {
        mr_text_puts(to, "\nx-amz-security-token:");
        mr_text_puts(to, keys->session_token);
    }
    mr_text_puts(to, "\n\n");
    mr_text_puts(to, signed_headers);
    mr_text_puts(to, "\n");
    put_sha256(to, "", 0); /* of the body: none */
}

static int put_signature(struct mr_text *to, const char *secret, const char *scope, const struct mr_text *text)
{
    struct mr_text first = {0};
    mr_auth_text_reserve(&first, 512);
    mr_text_puts(&first, "AWS4");
    mr_text_puts(&first, secret);
    unsigned char key[32];
    int rc = 0;
    /* scope is "date/region/service/aws4_request": each part signs the next */
    if (first.failed || hmac(key, first.data, first.length, scope, strcspn(scope, "/")) != 0)
        rc = -1;
    const char *at = scope + strcspn(scope, "/");
    unsigned char next[32];
    while (rc == 0 && *at == '/') {
        size_t n = strcspn(++at, "/");
        rc = hmac(next, key, sizeof key, at, n);
        memcpy(key, next, sizeof key);
        at += n;
    }
    if (rc == 0)
        rc = hmac(next, key, sizeof key, text->data, text->length);
    put_hex(to, next, sizeof next);
    OPENSSL_cleanse(key, sizeof key);
    mr_auth_text_wipe(&first);
    return rc;
}

/*
 * The value of the Authorization line of a request without a body, signed for the host and query of url; date is
 * "20260102T030405Z". 0, or -1 with mr_error.
 */
static int sign(struct mr_text *to, const struct aws_keys *keys, const char *region, const char *method,
                const char *url, const char *date)
{
    const char *headers = keys->session_token ? "host;x-amz-date;x-amz-security-token" : "host;x-amz-date";
    struct place place;
    if (split_url(url, &place) != 0) {
        mr_error_set(MR_E_DENIED, "its \"regional_cred_verification_url\" is not the URL of an AWS service");
        return -1;
    }
    struct mr_text canonical = {0};
    mr_auth_text_reserve(&canonical, MR_AUTH_TOKEN_MAX);
    char scope[200];
    snprintf(scope, sizeof scope, "%.8s/%.60s/%.*s/aws4_request", date, region,
             (int)(place.service_length < 60 ? place.service_length : 60), place.host);
    put_canonical(&canonical, &place, keys, headers, method, date);
    struct mr_text text = {0};
    mr_text_puts(&text, "AWS4-HMAC-SHA256\n");
    mr_text_puts(&text, date);
    mr_text_puts(&text, "\n");
    mr_text_puts(&text, scope);
    mr_text_puts(&text, "\n");
    if (!canonical.failed)
        put_sha256(&text, canonical.data, canonical.length);
    mr_text_puts(to, "AWS4-HMAC-SHA256 Credential=");
    mr_text_puts(to, keys->access_key_id);
    mr_text_puts(to, "/");
    mr_text_puts(to, scope);
    mr_text_puts(to, ", SignedHeaders=");
    mr_text_puts(to, headers);
    mr_text_puts(to, ", Signature=");
    int rc = -1;
    if (!canonical.failed && !text.failed)
        rc = put_signature(to, keys->secret_access_key, scope, &text);
    if (rc != 0 || to->failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to sign a request");
        rc = -1;
    }
    mr_auth_text_wipe(&canonical);
    mr_text_close(&text);
    return rc;
}

/* ---- the subject token ---- */

static void put_header(struct mr_text *to, const char *name, const char *value, const char *comma)
{
    mr_text_puts(to, "{\"key\":\"");
    mr_text_puts(to, name);
    mr_text_puts(to, "\",\"value\":");
    mr_auth_put_json(to, value);
    mr_text_puts(to, "}");
    mr_text_puts(to, comma);
}

/* The URL with "{region}" filled in. */
static void put_url(struct mr_text *to, const char *pattern, const char *region)
{
    const char *at = strstr(pattern, "{region}");
    mr_text_add(to, pattern, at ? (size_t)(at - pattern) : strlen(pattern));
    if (at) {
        mr_text_puts(to, region);
        mr_text_puts(to, at + strlen("{region}"));
    }
}

static int make_token(struct mr_auth_aws *aws, struct mr_text *token)
{
    const struct mr_auth_file *file = aws->subject->file;
    struct mr_text url = {0}, authorization = {0}, json = {0};
    time_t now = (time_t)(mr_clock_wall_ns() / MR_SECOND_NS);
    struct place place = {0};
    int rc = -1;
    mr_auth_text_reserve(&authorization, 2048);
    mr_auth_text_reserve(&json, 2 * MR_AUTH_TOKEN_MAX);
    char date[32];
    struct tm tm;
    strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    put_url(&url, file->from.verify_url, aws->region.data);
    if (url.failed || sign(&authorization, &aws->key, aws->region.data, "POST", url.data, date) != 0)
        goto out;
    split_url(url.data, &place);
    char host[256];
    snprintf(host, sizeof host, "%.*s", (int)place.host_length, place.host);
    mr_text_puts(&json, "{\"headers\":[");
    put_header(&json, "Authorization", authorization.data, ",");
    put_header(&json, "host", host, ",");
    put_header(&json, "x-amz-date", date, ",");
    if (aws->key.session_token)
        put_header(&json, "x-amz-security-token", aws->key.session_token, ",");
    put_header(&json, "x-goog-cloud-target-resource", file->audience, "");
    mr_text_puts(&json, "],\"method\":\"POST\",\"url\":");
    mr_auth_put_json(&json, url.data);
    mr_text_puts(&json, "}");
    if (!json.failed)
        mr_text_put_encoded(token, json.data, json.length);
    if (json.failed || token->failed)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a subject token");
    else
        rc = 0;
out:
    mr_text_close(&url);
    mr_auth_text_wipe(&authorization);
    mr_auth_text_wipe(&json);
    return rc;
}

static void next_step(struct mr_auth_aws *aws);

static void finish(struct mr_auth_aws *aws)
{
    struct mr_auth_subject *subject = aws->subject;
    struct mr_text token = {0};
    mr_auth_text_reserve(&token, 4 * MR_AUTH_TOKEN_MAX);
    int rc = make_token(aws, &token);
    subject->done(subject->arg, rc == 0 ? token.data : NULL);
    mr_auth_text_wipe(&token);
}

/* ---- region and keys ---- */

static int take_keys(struct mr_auth_aws *aws, struct mr_auth_answer *answer)
{
    mr_auth_text_reserve(&aws->keys, MR_AUTH_TOKEN_MAX);
    mr_text_add(&aws->keys, answer->body, answer->length);
    struct mr_auth_member members[] = {{"AccessKeyId", NULL}, {"SecretAccessKey", NULL}, {"Token", NULL}};
    if (aws->keys.failed || mr_auth_members(aws->keys.data, aws->keys.length, members, 3) != 0 || !members[0].value ||
        !members[1].value) {
        mr_error_set(MR_E_DENIED, "the instance's metadata server gives no AWS keys");
        return -1;
    }
    aws->key = (struct aws_keys){members[0].value, members[1].value, members[2].value};
    return 0;
}

static void on_answer(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct mr_auth_aws *aws = call->arg;
    struct mr_auth_subject *subject = aws->subject;
    int rc = mr_auth_answer_check(call, answer, "AWS metadata");
    struct mr_text *to = call->method[0] == 'P' ? &aws->session : aws->region.length == 0 ? &aws->region : &aws->role;
    if (rc == 0 && aws->region.length && aws->role.length && to != &aws->session) {
        rc = take_keys(aws, answer);
    } else if (rc == 0) {
        size_t n = strcspn(answer->body, "\r\n");
        if (to == &aws->region && n > 0)
            n--; /* an availability zone, "us-east-1d" */
        answer->body[n] = 0;
        mr_text_clear(to);
        mr_text_add(to, answer->body, n);
        if (!mr_auth_is_token(answer->body)) {
            mr_error_set(MR_E_DENIED, "the instance's metadata server gives an empty answer");
            rc = -1;
        }
    }
    if (rc == 0) {
        next_step(aws);
        return;
    }
    mr_error_append(
        "AWS credentials: neither AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, nor those of the "
        "instance");
    subject->done(subject->arg, NULL);
}

static int ask(struct mr_auth_aws *aws, const char *method, const char *url, const char *path)
{
    struct mr_auth_call *call = &aws->call;
    if (!url) {
        mr_error_set(MR_E_DENIED,
                     "no AWS credentials: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (the "
                     "file names no metadata URLs)");
        return -1;
    }
    mr_auth_call_init(call, aws->subject->http, method, url);
    if (path) {
        mr_text_puts(&call->url, "/");
        mr_text_puts(&call->url, path);
    }
    if (method[0] == 'P')
        mr_auth_call_line(call, "X-aws-ec2-metadata-token-ttl-seconds", "300");
    else if (aws->session.length)
        mr_auth_call_line(call, "X-aws-ec2-metadata-token", aws->session.data);
    call->direct = true;
    call->done = on_answer;
    call->arg = aws;
    return mr_auth_call_send(call);
}

/* What is still missing is asked for. */
static void next_step(struct mr_auth_aws *aws)
{
    const struct mr_auth_file *file = aws->subject->file;
    if (aws->region.length && aws->key.access_key_id) {
        finish(aws);
        return;
    }
    int rc;
    if (file->from.imdsv2_url && !aws->session.length)
        rc = ask(aws, "PUT", file->from.imdsv2_url, NULL);
    else if (!aws->region.length)
        rc = ask(aws, "GET", file->from.region_url, NULL);
    else
        rc = ask(aws, "GET", file->from.url, aws->role.length ? aws->role.data : NULL);
    if (rc != 0)
        aws->subject->done(aws->subject->arg, NULL);
}

static void run_start(struct mr_http_timer *timer)
{
    next_step(MR_CONTAINER_OF(timer, mr_auth_aws, timer));
}

int mr_auth_aws_start(struct mr_auth_subject *subject)
{
    const char *region = mr_auth_env("AWS_REGION") ? mr_auth_env("AWS_REGION") : mr_auth_env("AWS_DEFAULT_REGION");
    mr_auth_aws_cancel(subject);
    struct mr_auth_aws *aws = calloc(1, sizeof *aws);
    if (!aws) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for AWS credentials");
        return -1;
    }
    subject->aws = aws;
    aws->subject = subject;
    if (region)
        mr_text_puts(&aws->region, region);
    if (mr_auth_env("AWS_ACCESS_KEY_ID") && mr_auth_env("AWS_SECRET_ACCESS_KEY"))
        aws->key = (struct aws_keys){mr_auth_env("AWS_ACCESS_KEY_ID"), mr_auth_env("AWS_SECRET_ACCESS_KEY"),
                                     mr_auth_env("AWS_SESSION_TOKEN")};
    aws->timer.run = run_start;
    mr_http_timer_set(subject->http, &aws->timer, 0);
    return 0;
}

void mr_auth_aws_cancel(struct mr_auth_subject *subject)
{
    struct mr_auth_aws *aws = subject->aws;
    if (!aws)
        return;
    mr_http_timer_stop(subject->http, &aws->timer);
    mr_auth_call_close(&aws->call);
    mr_auth_text_wipe(&aws->session);
    mr_auth_text_wipe(&aws->keys);
    mr_text_close(&aws->role);
    mr_text_close(&aws->region);
    free(aws);
    subject->aws = NULL;
}
