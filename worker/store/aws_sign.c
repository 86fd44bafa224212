#include "worker/store/aws_sign.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "worker/store/auth_call.h"

#define PAIRS_MAX   32 /* parameters of a query */
#define HEADERS_MAX 32
#define HASH        32 /* bytes of a SHA-256 */
#define BLOCK       64

struct key {
    unsigned char inner[BLOCK], outer[BLOCK]; /* of HMAC */
};

struct mr_aws_signer {
    EVP_MD *sha256;
    EVP_MD_CTX *digest;
    char *secret, scope[160]; /* that `key` is derived from; NULL: none yet */
    struct key key;
    struct mr_text canonical;
};

/* ---- hashes ---- */

/* SHA-256 of a followed by b. -1: OpenSSL failed; mr_error is not set. */
static int hash2(struct mr_aws_signer *signer, unsigned char out[HASH], const void *a, size_t a_length, const void *b,
                 size_t b_length)
{
    return EVP_DigestInit_ex(signer->digest, signer->sha256, NULL) == 1 &&
                   EVP_DigestUpdate(signer->digest, a, a_length) == 1 &&
                   EVP_DigestUpdate(signer->digest, b, b_length) == 1 &&
                   EVP_DigestFinal_ex(signer->digest, out, NULL) == 1
               ? 0
               : -1;
}

/* length: at most a block; longer keys are hashed first. */
static void key_set(struct key *key, const unsigned char *bytes, size_t length)
{
    memset(key->inner, 0x36, BLOCK);
    memset(key->outer, 0x5c, BLOCK);
    for (size_t i = 0; i < length; i++) {
        key->inner[i] ^= bytes[i];
        key->outer[i] ^= bytes[i];
    }
}

static int hmac(struct mr_aws_signer *signer, unsigned char out[HASH], const struct key *key, const char *text,
                size_t length)
{
    unsigned char inner[HASH];
    return hash2(signer, inner, key->inner, BLOCK, text, length) == 0
               ? hash2(signer, out, key->outer, BLOCK, inner, HASH)
               : -1;
}

static void to_hex(const unsigned char hash[HASH], char out[2 * HASH + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < HASH; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
    out[2 * HASH] = 0;
}

static int hash_hex(struct mr_aws_signer *signer, const void *data, size_t length, char out[2 * HASH + 1])
{
    unsigned char hash[HASH];
    if (hash2(signer, hash, data, length, "", 0) != 0)
        return -1;
    to_hex(hash, out);
    return 0;
}

int mr_aws_payload(const void *const *pieces, const size_t *lengths, unsigned count, char out[MR_AWS_PAYLOAD_SIZE])
{
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    unsigned char hash[EVP_MAX_MD_SIZE];
    bool good = digest && EVP_DigestInit_ex(digest, EVP_sha256(), NULL) == 1;
    for (unsigned i = 0; i < count; i++)
        good = good && (lengths[i] == 0 || EVP_DigestUpdate(digest, pieces[i], lengths[i]) == 1);
    good = good && EVP_DigestFinal_ex(digest, hash, NULL) == 1;
    EVP_MD_CTX_free(digest);
    if (!good) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to sign a request");
        return -1;
    }
    to_hex(hash, out);
    return 0;
}

/* ---- the URL ---- */

struct place {
    const char *host, *path, *query; /* query: "" or after the "?" */
    size_t host_length;              /* with the port unless it is the scheme's default */
    size_t path_length, name_length; /* name: the first label of the host */
};

/* place points into url. -1: it has no host; mr_error is not set. */
static int split_url(const char *url, struct place *place)
{
    const char *host = strstr(url, "://");
    if (!host)
        return -1;
    place->host = host + 3;
    place->host_length = strcspn(place->host, "/?#");
    place->path = place->host + place->host_length;
    place->path_length = strcspn(place->path, "?#");
    place->query = place->path[place->path_length] == '?' ? place->path + place->path_length + 1 : "";
    const char *port = strncmp(url, "https", 5) == 0 ? ":443" : ":80";
    size_t port_length = strlen(port);
    if (place->host_length > port_length && strncmp(place->path - port_length, port, port_length) == 0)
        place->host_length -= port_length;
    place->name_length = strcspn(place->host, ".:/?#");
    if (place->name_length > 5 && strncmp(place->host + place->name_length - 5, "-fips", 5) == 0)
        place->name_length -= 5; /* sts-fips.us-east-2.amazonaws.com */
    return place->host_length > 0 ? 0 : -1;
}

const char *mr_aws_sign_host(const char *url, char *out, size_t size)
{
    struct place place = {.host = ""};
    split_url(url, &place);
    snprintf(out, size, "%.*s", (int)place.host_length, place.host);
    return out;
}

void mr_aws_sign_date_at(int64_t offset_s, char out[MR_AWS_DATE_SIZE])
{
    time_t at = (time_t)(mr_clock_wall_ns() / MR_SECOND_NS + offset_s);
    struct tm tm;
    strftime(out, MR_AWS_DATE_SIZE, "%Y%m%dT%H%M%SZ", gmtime_r(&at, &tm));
}

void mr_aws_sign_date(char out[MR_AWS_DATE_SIZE])
{
    mr_aws_sign_date_at(0, out);
}

/* ---- the canonical request ---- */

struct span {
    const char *name, *value;
    size_t name_length, value_length;
};

/* by: maps each byte before it is compared; may be NULL. */
static int aws_sign_compare(const char *a, size_t a_length, const char *b, size_t b_length, int (*by)(int))
{
    for (size_t i = 0; i < a_length && i < b_length; i++) {
        int left = (unsigned char)a[i], right = (unsigned char)b[i];
        if (by) {
            left = by(left);
            right = by(right);
        }
        if (left != right)
            return left - right;
    }
    return a_length < b_length ? -1 : a_length > b_length;
}

static int lower(int c)
{
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

static int by_name_and_value(const struct span *a, const struct span *b)
{
    int names = aws_sign_compare(a->name, a->name_length, b->name, b->name_length, NULL);
    return names ? names : aws_sign_compare(a->value, a->value_length, b->value, b->value_length, NULL);
}

static int by_lower_name(const struct span *a, const struct span *b)
{
    return aws_sign_compare(a->name, a->name_length, b->name, b->name_length, lower);
}

/* Stable. There are few, and usually they are in order already. */
static void sort(struct span *spans, size_t count, int (*by)(const struct span *, const struct span *))
{
    for (size_t i = 1; i < count; i++) {
        struct span one = spans[i];
        size_t at = i;
        for (; at > 0 && by(&spans[at - 1], &one) > 0; at--)
            spans[at] = spans[at - 1];
        spans[at] = one;
    }
}

/* Appends the parameters, sorted, encoded as they are in the URL. 0, or -1 with mr_error. */
static int put_query(struct mr_text *to, const char *query)
{
    struct span pairs[PAIRS_MAX];
    size_t count = 0;
    for (const char *at = query; *at; at += *at == '&') {
        size_t length = strcspn(at, "&#");
        const char *equals = memchr(at, '=', length);
        if (length == 0 && *at != '&')
            break;
        if (length > 0 && count == PAIRS_MAX) {
            mr_error_set(MR_E_USAGE, "a request to be signed has more than %d parameters", PAIRS_MAX);
            return -1;
        }
        if (length > 0)
            pairs[count++] = (struct span){.name = at,
                                           .name_length = equals ? (size_t)(equals - at) : length,
                                           .value = equals ? equals + 1 : "",
                                           .value_length = equals ? (size_t)(at + length - equals - 1) : 0};
        at += length;
    }
    sort(pairs, count, by_name_and_value);
    for (size_t i = 0; i < count; i++) {
        if (i)
            mr_text_add(to, "&", 1);
        mr_text_add(to, pairs[i].name, pairs[i].name_length);
        mr_text_add(to, "=", 1);
        mr_text_add(to, pairs[i].value, pairs[i].value_length);
    }
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Appends the value without white space around it, and with each run of it inside reduced to one space. */
static void put_value(struct mr_text *to, const char *value, size_t length)
{
    const char *end = value + length;
    while (value < end && is_space(*value))
        value++;
    while (end > value && is_space(end[-1]))
        end--;
    while (value < end) {
        const char *stop = value;
        while (stop < end && !is_space(*stop))
            stop++;
        mr_text_add(to, value, (size_t)(stop - value));
        for (value = stop; value < end && is_space(*value); value++)
            ;
        if (value < end)
            mr_text_add(to, " ", 1);
    }
}

static void put_lower(struct mr_text *to, const struct span *header)
{
    char name[128];
    size_t length = header->name_length < sizeof name ? header->name_length : sizeof name;
    for (size_t i = 0; i < length; i++)
        name[i] = (char)lower((unsigned char)header->name[i]);
    mr_text_add(to, name, length);
}

static bool same_name(const struct span *headers, size_t i)
{
    return i > 0 && by_lower_name(&headers[i - 1], &headers[i]) == 0;
}

/* Collects the headers to sign, sorted. Returns their count, or -1 with mr_error. */
static int take_headers(struct span *headers, const struct mr_aws_sign *request, const struct place *place)
{
    size_t count = 0;
    headers[count++] = (struct span){"host", place->host, 4, place->host_length};
    headers[count++] = (struct span){"x-amz-date", request->date, 10, strlen(request->date)};
    if (request->session_token)
        headers[count++] =
            (struct span){"x-amz-security-token", request->session_token, 20, strlen(request->session_token)};
    for (unsigned i = 0; i < request->line_count; i++) {
        const char *line = request->lines[i], *colon = strchr(line, ':');
        if (!colon || count == HEADERS_MAX) {
            mr_error_set(MR_E_USAGE, "a request to be signed has %s", colon ? "too many header lines" : "a bad line");
            return -1;
        }
        headers[count++] = (struct span){line, colon + 1, (size_t)(colon - line), strlen(colon + 1)};
    }
    sort(headers, count, by_lower_name);
    return (int)count;
}

static void put_signed_names(struct mr_text *to, const struct span *headers, int count)
{
    for (int i = 0; i < count; i++) {
        if (same_name(headers, (size_t)i))
            continue;
        if (i)
            mr_text_add(to, ";", 1);
        put_lower(to, &headers[i]);
    }
}

/* Appends the canonical request except for its last line, the hash of the body. 0, or -1 with mr_error. */
static int put_canonical(struct mr_text *to, const struct place *place, const struct mr_aws_sign *request,
                         const struct span *headers, int count)
{
    mr_text_puts(to, request->method);
    mr_text_add(to, "\n", 1);
    mr_text_add(to, place->path_length ? place->path : "/", place->path_length ? place->path_length : 1);
    mr_text_add(to, "\n", 1);
    if (put_query(to, place->query) != 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (same_name(headers, (size_t)i)) {
            mr_text_add(to, ",", 1);
        } else {
            mr_text_add(to, "\n", 1);
            put_lower(to, &headers[i]);
            mr_text_add(to, ":", 1);
        }
        put_value(to, headers[i].value, headers[i].value_length);
    }
    mr_text_add(to, "\n\n", 2);
    put_signed_names(to, headers, count);
    mr_text_add(to, "\n", 1);
    return 0;
}

/* ---- the signature ---- */

/* Sets signer->key for secret and scope "date/region/service/aws4_request", each part of which is signed with the key
 * of the part before it; a key that is there already is kept. 0, or -1 (mr_error is not set). */
static int key_derive(struct mr_aws_signer *signer, const char *secret, const char *scope)
{
    if (signer->secret && strcmp(signer->secret, secret) == 0 && strcmp(signer->scope, scope) == 0)
        return 0;
    if (signer->secret)
        OPENSSL_cleanse(signer->secret, strlen(signer->secret));
    free(signer->secret);
    signer->secret = strdup(secret);
    if (!signer->secret)
        return -1;
    snprintf(signer->scope, sizeof signer->scope, "%s", scope);
    struct mr_text first = {0};
    mr_auth_text_reserve(&first, strlen(secret) + 8);
    mr_text_puts(&first, "AWS4");
    mr_text_puts(&first, secret);
    unsigned char bytes[BLOCK] = {0};
    int rc = first.failed ? -1 : 0;
    if (rc == 0 && first.length > BLOCK)
        rc = hash2(signer, bytes, first.data, first.length, "", 0);
    else if (rc == 0)
        memcpy(bytes, first.data, first.length);
    key_set(&signer->key, bytes, rc != 0 || first.length > BLOCK ? HASH : first.length);
    for (const char *at = scope; rc == 0 && *at;) {
        size_t n = strcspn(at, "/");
        rc = hmac(signer, bytes, &signer->key, at, n);
        key_set(&signer->key, bytes, HASH);
        at += n + (at[n] == '/');
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
    mr_auth_text_wipe(&first);
    if (rc != 0)
        signer->scope[0] = 0;
    return rc;
}

static int aws_sign_sign(struct mr_aws_signer *signer, struct mr_text *to, const struct mr_aws_sign *request)
{
    struct place place;
    if (split_url(request->url, &place) != 0) {
        mr_error_set(MR_E_DENIED, "\"%.200s\" is not the URL of an AWS service", request->url);
        return -1;
    }
    char scope[sizeof signer->scope];
    snprintf(scope, sizeof scope, "%.8s/%.60s/%.*s/aws4_request", request->date, request->region,
             request->service ? 60 : (int)(place.name_length < 60 ? place.name_length : 60),
             request->service ? request->service : place.host);
    struct mr_text *canonical = &signer->canonical;
    mr_text_clear(canonical);
    struct span headers[HEADERS_MAX];
    int count = take_headers(headers, request, &place);
    if (count < 0 || put_canonical(canonical, &place, request, headers, count) != 0)
        return -1;
    char hash[2 * HASH + 1];
    int rc = request->payload ? 0 : hash_hex(signer, request->body ? request->body : "", request->body_length, hash);
    if (rc == 0)
        mr_text_puts(canonical, request->payload ? request->payload : hash);
    if (rc == 0 && !canonical->failed)
        rc = hash_hex(signer, canonical->data, canonical->length, hash);
    char text[320];
    int length = snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", request->date, scope, hash);
    unsigned char signature[HASH] = {0};
    if (rc == 0 && !canonical->failed)
        rc = key_derive(signer, request->secret_access_key, scope);
    if (rc == 0 && !canonical->failed)
        rc = hmac(signer, signature, &signer->key, text, (size_t)length);
    if (rc == 0 && !canonical->failed) {
        to_hex(signature, hash);
        mr_text_puts(to, "AWS4-HMAC-SHA256 Credential=");
        mr_text_puts(to, request->access_key_id);
        mr_text_puts(to, "/");
        mr_text_puts(to, scope);
        mr_text_puts(to, ", SignedHeaders=");
        put_signed_names(to, headers, count);
        mr_text_puts(to, ", Signature=");
        mr_text_puts(to, hash);
    }
    if (rc == 0 && !canonical->failed && !to->failed)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory to sign a request");
    return -1;
}

int mr_aws_sign(struct mr_text *to, const struct mr_aws_sign *request)
{
    struct mr_aws_signer *signer = request->signer ? request->signer : mr_aws_signer_new();
    int rc = signer ? aws_sign_sign(signer, to, request) : -1;
    if (!request->signer)
        mr_aws_signer_destroy(signer);
    return rc;
}

/* ---- life ---- */

struct mr_aws_signer *mr_aws_signer_new(void)
{
    struct mr_aws_signer *signer = calloc(1, sizeof *signer);
    if (signer) {
        signer->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
        signer->digest = EVP_MD_CTX_new();
        mr_auth_text_reserve(&signer->canonical, 2 * MR_AUTH_TOKEN_MAX); /* must not move: it may hold a token */
    }
    if (signer && signer->sha256 && signer->digest && !signer->canonical.failed)
        return signer;
    mr_aws_signer_destroy(signer);
    mr_error_set(MR_E_NO_MEMORY, "no memory to sign requests");
    return NULL;
}

void mr_aws_signer_destroy(struct mr_aws_signer *signer)
{
    if (!signer)
        return;
    if (signer->secret)
        OPENSSL_cleanse(signer->secret, strlen(signer->secret));
    free(signer->secret);
    OPENSSL_cleanse(&signer->key, sizeof signer->key);
    mr_auth_text_wipe(&signer->canonical);
    EVP_MD_CTX_free(signer->digest);
    EVP_MD_free(signer->sha256);
    free(signer);
}
