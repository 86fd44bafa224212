#include "worker/store/aws_sign.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "worker/store/auth_call.h"

#define PAIRS_MAX 16

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
    size_t host_length;              /* with the port where that is not the scheme's own */
    size_t path_length, name_length; /* name: the first label of the host */
};

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

void mr_aws_sign_date(char out[MR_AWS_DATE_SIZE])
{
    time_t now = (time_t)(mr_clock_wall_ns() / MR_SECOND_NS);
    struct tm tm;
    strftime(out, MR_AWS_DATE_SIZE, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
}

static int put_canonical(struct mr_text *to, const struct place *place, const struct mr_aws_sign *request,
                         const char *signed_headers)
{
    mr_text_puts(to, request->method);
    mr_text_puts(to, "\n");
    mr_text_add(to, place->path_length ? place->path : "/", place->path_length ? place->path_length : 1);
    mr_text_puts(to, "\n");
    put_query(to, place->query);
    mr_text_puts(to, "\nhost:");
    mr_text_add(to, place->host, place->host_length);
    mr_text_puts(to, "\nx-amz-date:");
    mr_text_puts(to, request->date);
    if (request->session_token) {
        mr_text_puts(to, "\nx-amz-security-token:");
        mr_text_puts(to, request->session_token);
    }
    mr_text_puts(to, "\n\n");
    mr_text_puts(to, signed_headers);
    mr_text_puts(to, "\n");
    return put_sha256(to, request->body, request->body_length);
}

static int put_signature(struct mr_text *to, const char *secret, const char *scope, const struct mr_text *text)
{
    struct mr_text first = {0};
    mr_auth_text_reserve(&first, strlen(secret) + 8);
    mr_text_puts(&first, "AWS4");
    mr_text_puts(&first, secret);
    unsigned char key[32];
    int rc = 0;
    /* scope is "date/region/service/aws4_request": each part signs the next */
    if (first.failed || hmac(key, first.data, first.length, scope, strcspn(scope, "/")) != 0)
        rc = -1;
    const char *at = scope + strcspn(scope, "/");
    unsigned char next[32] = {0};
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

int mr_aws_sign(struct mr_text *to, const struct mr_aws_sign *request)
{
    const char *headers = request->session_token ? "host;x-amz-date;x-amz-security-token" : "host;x-amz-date";
    struct place place;
    if (split_url(request->url, &place) != 0) {
        mr_error_set(MR_E_DENIED, "\"%.200s\" is not the URL of an AWS service", request->url);
        return -1;
    }
    struct mr_text canonical = {0};
    mr_auth_text_reserve(&canonical, 2 * MR_AUTH_TOKEN_MAX);
    char scope[200];
    snprintf(scope, sizeof scope, "%.8s/%.60s/%.*s/aws4_request", request->date, request->region,
             request->service ? 60 : (int)(place.name_length < 60 ? place.name_length : 60),
             request->service ? request->service : place.host);
    int rc = put_canonical(&canonical, &place, request, headers);
    struct mr_text text = {0};
    mr_text_puts(&text, "AWS4-HMAC-SHA256\n");
    mr_text_puts(&text, request->date);
    mr_text_puts(&text, "\n");
    mr_text_puts(&text, scope);
    mr_text_puts(&text, "\n");
    if (rc == 0 && !canonical.failed)
        rc = put_sha256(&text, canonical.data, canonical.length);
    mr_text_puts(to, "AWS4-HMAC-SHA256 Credential=");
    mr_text_puts(to, request->access_key_id);
    mr_text_puts(to, "/");
    mr_text_puts(to, scope);
    mr_text_puts(to, ", SignedHeaders=");
    mr_text_puts(to, headers);
    mr_text_puts(to, ", Signature=");
    if (rc == 0 && !canonical.failed && !text.failed)
        rc = put_signature(to, request->secret_access_key, scope, &text);
    if (rc != 0 || canonical.failed || text.failed || to->failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to sign a request");
        rc = -1;
    }
    mr_auth_text_wipe(&canonical);
    mr_text_close(&text);
    return rc;
}
