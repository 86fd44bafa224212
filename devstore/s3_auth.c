#include "devstore/s3_auth.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "devstore/s3_error.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define SKEW_S    (15 * 60)
#define SESSION   "MRSESSION"
#define MALFORMED "AuthorizationHeaderMalformed"

/* What the Authorization header says; the texts point into `copy` or into headers. */
struct claim {
    char *copy; /* of the header */
    char *credential;
    const char *id, *day, *region, *service;
    const char *headers, *signature, *date, *payload, *token;
    int64_t time_s;
};

void ds_s3_sha256(const void *bytes, size_t length, uint8_t hash[32])
{
    EVP_Digest(bytes, length, hash, NULL, EVP_sha256(), NULL);
}

void ds_s3_hex(const uint8_t *bytes, size_t length, char *out)
{
    for (size_t i = 0; i < length; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

int ds_s3_unhex(const char *text, uint8_t *bytes, size_t length)
{
    if (strlen(text) != 2 * length || strspn(text, "0123456789abcdefABCDEF") != 2 * length)
        return -1;
    for (size_t i = 0; i < length; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return 0;
}

static void hmac(const void *key, size_t key_length, const char *text, size_t length, uint8_t out[32])
{
    unsigned n = 32;
    HMAC(EVP_sha256(), key, (int)key_length, (const unsigned char *)text, length, out, &n);
}

/* ---- the claim ---- */

/* ID/DAY/REGION/SERVICE/aws4_request, split from the end: an id may contain slashes. 0 or -1. */
static int split_credential(struct claim *claim)
{
    const char *part[4];
    for (int i = 3; i >= 0; i--) {
        char *slash = strrchr(claim->credential, '/');
        if (!slash)
            return -1;
        *slash = 0;
        part[i] = slash + 1;
    }
    claim->id = claim->credential;
    claim->day = part[0];
    claim->region = part[1];
    claim->service = part[2];
    return strcmp(part[3], "aws4_request") == 0 && *claim->id ? 0 : -1;
}

/* NAME=VALUE, ... after the algorithm's name. 0 or -1. */
static int split_header(struct claim *claim, const char *header)
{
    claim->copy = strdup(header + strlen(ALGORITHM));
    for (char *rest = claim->copy; rest;) {
        char *item = strsep(&rest, ",");
        item += strspn(item, " \t");
        char *value = strchr(item, '=');
        if (!value)
            return -1;
        *value++ = 0;
        value[strcspn(value, " \t")] = 0;
        if (strcmp(item, "Credential") == 0 && !claim->credential)
            claim->credential = strdup(value);
        else if (strcmp(item, "SignedHeaders") == 0)
            claim->headers = value;
        else if (strcmp(item, "Signature") == 0)
            claim->signature = value;
    }
    return claim->credential && claim->headers && claim->signature ? 0 : -1;
}

/* Seconds since 1970, or -1: it is NULL, or no such time. */
static int64_t parse_time(const char *text)
{
    struct tm tm = {0};
    const char *end = text ? strptime(text, "%Y%m%dT%H%M%SZ", &tm) : NULL;
    return end && !*end && strlen(text) == 16 ? (int64_t)timegm(&tm) : -1;
}

/* 1: it is signed; 0: it is not; -1: the reply says what is wrong with it. */
static int read_claim(const struct ds_request *request, struct claim *claim, struct ds_reply *reply)
{
    const char *header = ds_request_header(request, "Authorization");
    if (!header)
        return 0;
    if (strncmp(header, ALGORITHM, strlen(ALGORITHM)) != 0) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "The authorization mechanism you have provided is not supported. Please use " ALGORITHM ".");
        return -1;
    }
    claim->date = ds_request_header(request, "x-amz-date");
    claim->payload = ds_request_header(request, "x-amz-content-sha256");
    claim->token = ds_request_header(request, "x-amz-security-token");
    claim->time_s = parse_time(claim->date);
    if (split_header(claim, header) == 0 && split_credential(claim) == 0)
        return 1;
    ds_s3_error(reply, request, MALFORMED);
    return -1;
}

static void close_claim(struct claim *claim)
{
    free(claim->copy);
    free(claim->credential);
}

/* ---- the body ---- */

static bool says_chunked(const struct ds_request *request)
{
    const char *encoding = ds_request_header(request, "Content-Encoding");
    return encoding && strcasestr(encoding, "aws-chunked");
}

/* Reads what x-amz-content-sha256 says of the body. 0, or -1 with the reply. */
static int read_payload(const struct ds_request *request, struct ds_s3_auth *auth, const char *payload,
                        struct ds_reply *reply)
{
    static const char streaming[] = "STREAMING-", hmacs[] = ALGORITHM "-PAYLOAD", trailer[] = "-TRAILER";
    if (!payload) /* it is not signed */
        auth->chunked = auth->trailer = says_chunked(request);
    if (!payload || strcmp(payload, "UNSIGNED-PAYLOAD") == 0)
        return 0;
    if (ds_s3_unhex(payload, auth->hash, sizeof auth->hash) == 0) {
        auth->has_hash = true;
        return 0;
    }
    if (strncmp(payload, streaming, sizeof streaming - 1) != 0)
        goto bad;
    payload += sizeof streaming - 1;
    auth->chunked = true;
    auth->signed_chunks = strncmp(payload, hmacs, sizeof hmacs - 1) == 0;
    const char *rest = payload + (auth->signed_chunks ? sizeof hmacs - 1 : strlen("UNSIGNED-PAYLOAD"));
    if (!auth->signed_chunks && strncmp(payload, "UNSIGNED-PAYLOAD", strlen("UNSIGNED-PAYLOAD")) != 0)
        goto bad;
    auth->trailer = strcmp(rest, trailer) == 0;
    if (auth->trailer || (auth->signed_chunks && !*rest))
        return 0;
bad:
    ds_s3_error_said(reply, request, "InvalidArgument",
                     "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of STREAMING-..., or a valid sha256 value.");
    return -1;
}

/* ---- the canonical request ---- */

/* Each path segment is decoded and encoded again, so that it does not matter how the client wrote it. */
static void put_path(const struct ds_request *request, struct ds_text *out)
{
    const char *end = strchrnul(request->uri, '?');
    char *path = ds_percent_decode(request->uri, (size_t)(end - request->uri), false);
    for (const char *at = path; at && *at; at++) {
        char one[2] = {*at, 0};
        if (*at == '/')
            ds_text_puts(out, "/");
        else
            ds_text_percent(out, one);
    }
    if (!path || !*path)
        ds_text_puts(out, "/");
    ds_text_puts(out, "\n");
    free(path);
}

struct pair {
    struct ds_text key, value;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *left = a, *right = b;
    int order = strcmp(left->key.data ? left->key.data : "", right->key.data ? right->key.data : "");
    return order ? order : strcmp(left->value.data ? left->value.data : "", right->value.data ? right->value.data : "");
}

static void put_query(const struct ds_request *request, struct ds_text *out)
{
    struct pair pairs[MR_QUERY_MAX];
    int n = 0;
    memset(pairs, 0, sizeof pairs);
    for (int i = 0; i < request->n_query; i++) {
        ds_text_percent(&pairs[n].key, request->query[i].key);
        ds_text_percent(&pairs[n++].value, request->query[i].value);
    }
    qsort(pairs, (size_t)n, sizeof *pairs, compare_pairs);
    for (int i = 0; i < n; i++) {
        ds_text_printf(out, "%s%s=%s", i ? "&" : "", pairs[i].key.data ? pairs[i].key.data : "",
                       pairs[i].value.data ? pairs[i].value.data : "");
        ds_text_close(&pairs[i].key);
        ds_text_close(&pairs[i].value);
    }
    ds_text_puts(out, "\n");
}

struct collect {
    const char *name;
    size_t length;
    struct ds_text *out;
    int n;
};

/* Puts a value without the blanks around it, and with each run of blanks inside reduced to one. */
static void collect_value(void *cls, const char *name, const char *value)
{
    struct collect *collect = cls;
    if (strlen(name) != collect->length || strncasecmp(name, collect->name, collect->length) != 0)
        return;
    if (collect->n++)
        ds_text_puts(collect->out, ",");
    value += strspn(value, " \t");
    while (*value) {
        size_t n = strcspn(value, " \t"), blanks = strspn(value + n, " \t");
        ds_text_append(collect->out, value, n);
        value += n + blanks;
        if (blanks && *value)
            ds_text_puts(collect->out, " ");
    }
}

static void put_headers(const struct ds_request *request, const char *names, struct ds_text *out)
{
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, ";");
        struct collect collect = {.name = at, .length = length, .out = out};
        ds_text_append(out, at, length);
        ds_text_puts(out, ":");
        if (request->each_header)
            request->each_header(request->header_cls, collect_value, &collect);
        ds_text_puts(out, "\n");
        at += length + (at[length] == ';');
    }
    ds_text_printf(out, "\n%s\n", names);
}

/* ---- what is checked ---- */

static bool is_signed(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, ";");
        if (length == n && strncasecmp(at, name, n) == 0)
            return true;
        at += length + (at[length] == ';');
    }
    return false;
}

struct unsigned_header {
    const char *names;
    char found[64];
};

static void find_unsigned(void *cls, const char *name, const char *value)
{
    struct unsigned_header *look = cls;
    (void)value;
    if (strncasecmp(name, "x-amz-", 6) == 0 && !is_signed(look->names, name))
        snprintf(look->found, sizeof look->found, "%s", name);
}

/* The host and every x-amz- header must be signed. 0, or -1 with the reply. */
static int check_headers(const struct ds_request *request, const struct claim *claim, struct ds_reply *reply)
{
    struct unsigned_header look = {.names = claim->headers};
    if (!is_signed(claim->headers, "host"))
        strcpy(look.found, "host");
    else if (request->each_header)
        request->each_header(request->header_cls, find_unsigned, &look);
    if (!look.found[0])
        return 0;
    ds_s3_error_said(reply, request, "AccessDenied", "There were headers present in the request which were not signed");
    ds_s3_error_add(reply, "HeadersNotSigned", look.found);
    return -1;
}

static void add_time(struct ds_reply *reply, const char *name, int64_t seconds)
{
    struct ds_text time = {0};
    ds_text_time(&time, seconds * 1000000);
    ds_s3_error_add(reply, name, time.data ? time.data : "");
    ds_text_close(&time);
}

/* 0, or -1 with the reply: it has no time, another day than the key, or is more than SKEW_S off. */
static int check_time(const struct ds_s3_settings *settings, const struct ds_request *request,
                      const struct claim *claim, struct ds_reply *reply)
{
    int64_t now = ds_s3_now(settings);
    if (claim->time_s < 0) {
        ds_s3_error_said(reply, request, "AccessDenied",
                         "AWS authentication requires a valid Date or x-amz-date header");
        return -1;
    }
    if (strncmp(claim->day, claim->date, 8) != 0 || strlen(claim->day) != 8) {
        ds_s3_error_said(reply, request, MALFORMED,
                         "Invalid credential date \"%.50s\". This date is not the same as %s", claim->day, claim->date);
        return -1;
    }
    if (claim->time_s > now + SKEW_S || claim->time_s < now - SKEW_S) {
        ds_s3_error(reply, request, "RequestTimeTooSkewed");
        ds_s3_error_add(reply, "RequestTime", claim->date);
        add_time(reply, "ServerTime", now);
        ds_s3_error_add(reply, "MaxAllowedSkewMilliseconds", "900000");
        return -1;
    }
    return 0;
}

/* Without a region in the settings any is accepted. 0, or -1 with the reply. */
static int check_region(const struct ds_s3_settings *settings, const struct ds_request *request,
                        const struct claim *claim, struct ds_reply *reply)
{
    const char *region = ds_s3_region(settings);
    if (strcmp(claim->service, "s3") != 0 && strcmp(claim->service, "s3express") != 0) {
        ds_s3_error_said(reply, request, MALFORMED, "Error parsing the credential; incorrect service \"%.50s\".",
                         claim->service);
        return -1;
    }
    if (!settings->region || strcmp(claim->region, region) == 0)
        return 0;
    ds_s3_error_said(reply, request, MALFORMED, "The region '%.50s' is wrong; expecting '%s'", claim->region, region);
    ds_s3_error_add(reply, "Region", region);
    ds_reply_header(reply, "x-amz-bucket-region", "%s", region);
    return -1;
}

/* ---- keys ---- */

/* Secret and token follow from the id, so that no session is stored. */
static void derive_session(const struct ds_s3_settings *settings, struct ds_s3_session_key *key)
{
    uint8_t secret[32], token[32];
    hmac(settings->session_secret, sizeof settings->session_secret, key->id, strlen(key->id), secret);
    hmac(secret, sizeof secret, "token", 5, token);
    ds_s3_hex(secret, sizeof secret, key->secret);
    ds_s3_hex(token, sizeof token, key->token);
}

void ds_s3_session_make(const struct ds_s3_settings *settings, int64_t until, struct ds_s3_session_key *key)
{
    snprintf(key->id, sizeof key->id, SESSION "%016" PRIx64 "%016" PRIx64, (uint64_t)until, mr_random64());
    derive_session(settings, key);
}

static bool same(const char *a, const char *b)
{
    return a && strlen(a) == strlen(b) && CRYPTO_memcmp(a, b, strlen(b)) == 0;
}

/* The secret of a key, or NULL: the reply says why. session: memory for one of CreateSession. */
static const char *find_secret(const struct ds_s3_settings *settings, const struct ds_request *request,
                               const struct claim *claim, struct ds_s3_session_key *session, struct ds_reply *reply)
{
    uint64_t until;
    const char *code = "InvalidAccessKeyId";
    for (int i = 0; i < settings->n_keys; i++) {
        const struct ds_s3_key *key = &settings->keys[i];
        if (strcmp(claim->id, key->id) != 0)
            continue;
        if (!key->token || same(claim->token, key->token))
            return key->secret;
        code = "InvalidToken";
    }
    if (strncmp(claim->id, SESSION, strlen(SESSION)) == 0 && strlen(claim->id) == strlen(SESSION) + 32 &&
        sscanf(claim->id + strlen(SESSION), "%16" SCNx64, &until) == 1) {
        strcpy(session->id, claim->id);
        derive_session(settings, session);
        if (!same(ds_request_header(request, "x-amz-s3session-token"), session->token))
            code = "InvalidToken";
        else if ((int64_t)until <= ds_s3_now(settings))
            code = "ExpiredToken";
        else
            return session->secret;
    }
    ds_s3_error(reply, request, code);
    ds_s3_error_add(reply, "AWSAccessKeyId", claim->id);
    return NULL;
}

static void derive_key(const char *secret, const struct claim *claim, uint8_t key[32])
{
    struct ds_text first = {0};
    ds_text_printf(&first, "AWS4%s", secret);
    hmac(first.data ? first.data : "", first.length, claim->day, strlen(claim->day), key);
    ds_text_close(&first);
    hmac(key, 32, claim->region, strlen(claim->region), key);
    hmac(key, 32, claim->service, strlen(claim->service), key);
    hmac(key, 32, "aws4_request", 12, key);
}

/* The signature of a text, in hexadecimal. */
static void s3_auth_sign(const struct ds_s3_auth *auth, const struct ds_text *text, char out[65])
{
    uint8_t mac[32];
    hmac(auth->key, sizeof auth->key, text->data ? text->data : "", text->length, mac);
    ds_s3_hex(mac, sizeof mac, out);
}

/* 0, or -1 with the reply. Sets auth->signature, with which the chain of the chunks' signatures begins. */
static int check_signature(const struct ds_request *request, const struct claim *claim, struct ds_s3_auth *auth,
                           struct ds_reply *reply)
{
    struct ds_text canonical = {0}, text = {0};
    uint8_t hash[32];
    char hex[65], signature[65];
    ds_text_printf(&canonical, "%s\n", request->method);
    put_path(request, &canonical);
    put_query(request, &canonical);
    put_headers(request, claim->headers, &canonical);
    ds_text_puts(&canonical, claim->payload);
    ds_s3_sha256(canonical.data ? canonical.data : "", canonical.length, hash);
    ds_s3_hex(hash, sizeof hash, hex);
    ds_text_printf(&text, ALGORITHM "\n%s\n%s\n%s", auth->date, auth->scope, hex);
    s3_auth_sign(auth, &text, signature);
    int rc = same(claim->signature, signature) && !canonical.failed ? 0 : -1;
    if (rc < 0) {
        ds_s3_error(reply, request, "SignatureDoesNotMatch");
        ds_s3_error_add(reply, "AWSAccessKeyId", claim->id);
        ds_s3_error_add(reply, "StringToSign", text.data ? text.data : "");
        ds_s3_error_add(reply, "SignatureProvided", claim->signature);
        ds_s3_error_add(reply, "CanonicalRequest", canonical.data ? canonical.data : "");
    }
    memcpy(auth->signature, signature, sizeof signature);
    ds_text_close(&canonical);
    ds_text_close(&text);
    return rc;
}

/* 0, or -1 with the reply. Fills in what the signatures of the chunks need. */
static int verify(const struct ds_s3_settings *settings, const struct ds_request *request, const struct claim *claim,
                  struct ds_s3_auth *auth, struct ds_reply *reply)
{
    struct ds_s3_session_key session;
    if (check_time(settings, request, claim, reply) < 0 || check_headers(request, claim, reply) < 0)
        return -1;
    const char *secret = find_secret(settings, request, claim, &session, reply);
    if (!secret)
        return -1;
    if (!claim->payload) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "Missing required header for this request: x-amz-content-sha256");
        return -1;
    }
    snprintf(auth->date, sizeof auth->date, "%s", claim->date);
    if (snprintf(auth->scope, sizeof auth->scope, "%s/%s/%s/aws4_request", claim->day, claim->region, claim->service) >=
        (int)sizeof auth->scope) {
        ds_s3_error(reply, request, MALFORMED);
        return -1;
    }
    derive_key(secret, claim, auth->key);
    auth->verified = true;
    return check_signature(request, claim, auth, reply);
}

int ds_s3_auth_check(const struct ds_s3_settings *settings, struct ds_request *request, struct ds_reply *reply)
{
    struct claim claim = {0};
    struct ds_s3_auth *auth = request->auth = calloc(1, sizeof *auth);
    int rc = -1;
    if (!auth) {
        ds_s3_error(reply, request, "InternalError");
        return -1;
    }
    int is_claimed = read_claim(request, &claim, reply);
    if (is_claimed < 0)
        goto out;
    if (!is_claimed && settings->n_keys > 0) {
        ds_s3_error(reply, request, "AccessDenied");
        goto out;
    }
    if (is_claimed && check_region(settings, request, &claim, reply) < 0)
        goto out;
    if (is_claimed && settings->n_keys > 0 && verify(settings, request, &claim, auth, reply) < 0)
        goto out;
    rc = read_payload(request, auth, ds_request_header(request, "x-amz-content-sha256"), reply);
out:
    close_claim(&claim);
    return rc;
}

int ds_s3_auth_chunk(struct ds_s3_auth *auth, const uint8_t hash[32], bool trailer, const char *signature)
{
    static const char nothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    struct ds_text text = {0};
    char hex[65], expected[65];
    ds_s3_hex(hash, 32, hex);
    ds_text_printf(&text, ALGORITHM "-%s\n%s\n%s\n%s\n", trailer ? "TRAILER" : "PAYLOAD", auth->date, auth->scope,
                   auth->signature);
    if (!trailer)
        ds_text_printf(&text, "%s\n", nothing);
    ds_text_puts(&text, hex);
    s3_auth_sign(auth, &text, expected);
    ds_text_close(&text);
    if (auth->verified && !same(signature, expected)) {
        mr_error_set(MR_E_DENIED, "%s", ds_s3_error_message("SignatureDoesNotMatch"));
        return -1;
    }
    memcpy(auth->signature, expected, sizeof expected);
    return 0;
}
