#include "base/uri.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/error.h"

static int set(struct mr_uri *uri, enum mr_scheme scheme, const char *bucket, size_t bucket_length, const char *key)
{
    uri->scheme = scheme;
    uri->bucket = strndup(bucket, bucket_length);
    uri->key = strdup(key);
    if (!uri->bucket || !uri->key) {
        mr_uri_close(uri);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a URI");
        return -1;
    }
    return 0;
}

/* A relative path is made absolute now: it may be used in another directory. */
static int set_path(struct mr_uri *uri, const char *path)
{
    char *joined = NULL;
    if (path[0] == '/')
        return set(uri, MR_SCHEME_FILE, "", 0, path);
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd)) {
        mr_error_set(MR_E_IO, "cannot find the working directory for \"%s\"", path);
        return -1;
    }
    if (asprintf(&joined, "%s/%s", cwd, path) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a URI");
        return -1;
    }
    int rc = set(uri, MR_SCHEME_FILE, "", 0, joined);
    free(joined);
    return rc;
}

/* rest: "bucket/key" of text. */
static int set_bucket(struct mr_uri *uri, enum mr_scheme scheme, const char *text, const char *rest)
{
    const char *slash = strchr(rest, '/');
    size_t bucket_length = slash ? (size_t)(slash - rest) : strlen(rest);
    if (bucket_length == 0) {
        mr_error_set(MR_E_USAGE, "\"%s\" names no bucket", text);
        return -1;
    }
    if (scheme == MR_SCHEME_S3 && memchr(rest, '+', bucket_length)) { /* uri.h: that is an endpoint's */
        mr_error_set(MR_E_USAGE, "\"%.200s\": no bucket of S3 has a '+' in its name", text);
        return -1;
    }
    if (bucket_length > 222) { /* the longest GCS bucket name with dots */
        mr_error_set(MR_E_USAGE, "\"%.64s...\": the bucket name is too long", text);
        return -1;
    }
    return set(uri, scheme, rest, bucket_length, slash ? slash + 1 : "");
}

/* "s3+NAME://bucket/key", whose scheme has n bytes. */
static int set_at_endpoint(struct mr_uri *uri, const char *text, size_t n)
{
    const char *name = text + 3;
    if (n == 3 || n - 3 > MR_URI_ENDPOINT_MAX || memchr(name, '+', n - 3)) {
        mr_error_set(MR_E_USAGE, "\"%.64s\": an endpoint's name has 1 to %d letters, digits and '-', '.'", text,
                     MR_URI_ENDPOINT_MAX);
        return -1;
    }
    if (set_bucket(uri, MR_SCHEME_S3, text, text + n + 3) != 0)
        return -1;
    char *bucket = NULL;
    if (asprintf(&bucket, "%.*s+%s", (int)(n - 3), name, uri->bucket) < 0) {
        mr_uri_close(uri);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a URI");
        return -1;
    }
    free(uri->bucket);
    uri->bucket = bucket;
    return 0;
}

int mr_uri_init(struct mr_uri *uri, const char *text)
{
    memset(uri, 0, sizeof *uri);
    const char *colon = strstr(text, "://");
    if (text[0] == 0) {
        mr_error_set(MR_E_USAGE, "an empty URI");
        return -1;
    }
    if (!colon)
        return set_path(uri, text);
    size_t n = (size_t)(colon - text);
    const char *rest = colon + 3;
    if (n == 4 && strncmp(text, "file", 4) == 0) {
        if (rest[0] != '/') {
            mr_error_set(MR_E_USAGE, "\"%s\": a file URI is file:///absolute/path", text);
            return -1;
        }
        return set(uri, MR_SCHEME_FILE, "", 0, rest);
    }
    if (n >= 3 && strncmp(text, "s3+", 3) == 0)
        return set_at_endpoint(uri, text, n);
    enum mr_scheme scheme;
    if ((n == 2 && strncmp(text, "gs", 2) == 0) || (n == 3 && strncmp(text, "gcs", 3) == 0)) {
        scheme = MR_SCHEME_GS;
    } else if (n == 2 && strncmp(text, "s3", 2) == 0) {
        scheme = MR_SCHEME_S3;
    } else {
        mr_error_set(MR_E_USAGE, "\"%s\": the scheme is not gs, s3 or file", text);
        return -1;
    }
    return set_bucket(uri, scheme, text, rest);
}

void mr_uri_close(struct mr_uri *uri)
{
    free(uri->bucket);
    free(uri->key);
    memset(uri, 0, sizeof *uri);
}

const char *mr_scheme_name(enum mr_scheme scheme)
{
    switch (scheme) {
    case MR_SCHEME_GS:
        return "gs";
    case MR_SCHEME_S3:
        return "s3";
    default:
        return "file";
    }
}

const char *mr_uri_place(enum mr_scheme scheme, const char *bucket, char out[MR_URI_PLACE_SIZE])
{
    const char *plus = scheme == MR_SCHEME_S3 ? strchr(bucket, '+') : NULL;
    if (plus)
        snprintf(out, MR_URI_PLACE_SIZE, "s3+%.*s://%s", (int)(plus - bucket), bucket, plus + 1);
    else
        snprintf(out, MR_URI_PLACE_SIZE, "%s://%s", mr_scheme_name(scheme), bucket);
    return out;
}

const char *mr_uri_root(enum mr_scheme scheme, const char *bucket, char out[MR_URI_PLACE_SIZE])
{
    mr_uri_place(scheme, bucket, out);
    size_t n = strlen(out);
    if (scheme != MR_SCHEME_FILE && n + 1 < MR_URI_PLACE_SIZE)
        memcpy(out + n, "/", 2);
    return out;
}

char *mr_uri_format(enum mr_scheme scheme, const char *bucket, const char *key)
{
    char *out = NULL, root[MR_URI_PLACE_SIZE];
    int n = asprintf(&out, "%s%s", mr_uri_root(scheme, bucket, root), key ? key : "");
    if (n < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a URI");
        return NULL;
    }
    return out;
}

bool mr_uri_is_endpoint(const char *text, bool may_have_path)
{
    const char *separator = strstr(text, "://"), *host = separator ? separator + 3 : text;
    size_t scheme = separator ? (size_t)(separator - text) : 0, length;
    if (separator && !(scheme == 4 && strncasecmp(text, "http", 4) == 0) &&
        !(scheme == 5 && strncasecmp(text, "https", 5) == 0))
        return false;
    if (strpbrk(text, " \t\r\n?#@"))
        return false;
    if (host[0] == '[') {
        length = strspn(host + 1, "0123456789abcdefABCDEF:.") + 1;
        if (host[length] == '%') /* a zone, as in [fe80::1%25eth0] */
            length += strcspn(host + length, "]/");
        if (host[length++] != ']')
            return false;
    } else {
        length = strcspn(host, ":/");
    }
    const char *rest = host + length;
    if (rest[0] == ':') {
        size_t digits = strspn(rest + 1, "0123456789");
        long port = strtol(rest + 1, NULL, 10);
        if (digits > 5 || (digits > 0 ? port < 1 || port > 65535 : !separator)) /* none at all, as in http://a:/ */
            return false;
        rest += 1 + digits;
    }
    return length > 0 && (rest[0] == '\0' || rest[0] == '/') && (may_have_path || rest[strspn(rest, "/")] == '\0');
}

char *mr_uri_endpoint(const char *text, bool is_clear)
{
    const char *scheme = strstr(text, "://") ? "" : is_clear || mr_uri_is_loopback(text) ? "http://" : "https://";
    char *endpoint = NULL;
    if (asprintf(&endpoint, "%s%s", scheme, text) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an endpoint");
        return NULL;
    }
    for (char *at = endpoint; *at && *at != ':'; at++)
        *at = (char)tolower((unsigned char)*at);
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        endpoint[--n] = 0;
    return endpoint;
}

bool mr_uri_is_loopback(const char *endpoint)
{
    const char *separator = strstr(endpoint, "://");
    const char *host = separator ? separator + 3 : endpoint;
    if (strncmp(host, "[::1]", 5) == 0)
        return host[5] == '\0' || host[5] == ':' || host[5] == '/';
    size_t length = strcspn(host, ":/");
    if (length == 9 && strncasecmp(host, "localhost", 9) == 0)
        return true;
    /* 127.*: digits and dots alone, so that a name such as 127.example.org does not count. */
    return strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == length;
}

bool mr_uri_is_cleartext(const char *endpoint)
{
    return strncasecmp(endpoint, "http://", 7) == 0 && !mr_uri_is_loopback(endpoint);
}
