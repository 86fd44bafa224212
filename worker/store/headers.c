#include "worker/store/headers.h"

#include <curl/curl.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/checksum.h"

#define RETRY_AFTER_MAX_S 3600 /* a longer wait is cut to this: the deadline comes first */

/* Takes the digits at *at, up to end, and advances *at. 0, or -1: none, or more than 64 bits. */
static int take_u64(const char **at, const char *end, uint64_t *value)
{
    const char *p = *at;
    uint64_t sum = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (sum > (UINT64_MAX - digit) / 10)
            return -1;
        sum = sum * 10 + digit;
    }
    if (p == *at)
        return -1;
    *at = p;
    *value = sum;
    return 0;
}

/* 0 if the whole value is one number, else -1. */
static int only_u64(const char *value, size_t length, uint64_t *number)
{
    const char *at = value;
    return take_u64(&at, value + length, number) == 0 && at == value + length ? 0 : -1;
}

/* A value that is malformed or contradicts itself counts as missing. */
static void take_content_range(struct mr_http_headers *headers, const char *value, size_t length)
{
    const char *at = value, *end = value + length;
    if (length < 6 || strncasecmp(at, "bytes ", 6) != 0)
        return;
    at += 6;
    uint64_t first, last;
    if (take_u64(&at, end, &first) || at == end || *at++ != '-' || take_u64(&at, end, &last) || at == end ||
        *at++ != '/')
        return;
    uint64_t total = UINT64_MAX;
    if (end - at == 1 && *at == '*')
        at++;
    else if (take_u64(&at, end, &total))
        return;
    if (at != end || first > last || last >= total)
        return;
    headers->has_content_range = true;
    headers->range_first = first;
    headers->range_last = last;
    headers->range_total = total;
}

/* "crc32c=AAAAAA==,md5=...", in one header or in two (docs/protocols.md, "Google Cloud Storage"). */
static void take_hash(struct mr_http_headers *headers, const char *value, size_t length)
{
    const char *at = value, *end = value + length;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        while (at < stop && *at == ' ')
            at++;
        if (stop - at > 7 && strncasecmp(at, "crc32c=", 7) == 0 &&
            mr_checksum_from_base64(&headers->checksum, MR_CHECKSUM_CRC32C, at + 7, (size_t)(stop - at - 7)) == 0)
            headers->composite = false;
        at = comma ? comma + 1 : end;
    }
}

/* Seconds since 1970; 0: it is no date. */
static int64_t date_of(const char *value, size_t length)
{
    char date[64];
    if (length >= sizeof date)
        return 0;
    memcpy(date, value, length);
    date[length] = 0;
    time_t at = curl_getdate(date, NULL);
    return at > 0 ? (int64_t)at : 0;
}

static void put_retry_after(struct mr_http_headers *headers, uint64_t seconds)
{
    headers->retry_after_ms = 1000u * (unsigned)(seconds < RETRY_AFTER_MAX_S ? seconds : RETRY_AFTER_MAX_S);
}

/* A date of Retry-After is by the server's clock, which Date tells; without that, by this machine's. One in the past
 * counts as missing. */
static void compare_dates(struct mr_http_headers *headers)
{
    int64_t now_s = headers->date_s ? headers->date_s : (int64_t)time(NULL);
    if (headers->retry_date_s)
        put_retry_after(headers, headers->retry_date_s > now_s ? (uint64_t)(headers->retry_date_s - now_s) : 0);
}

/* Seconds, or a date. */
static void take_retry_after(struct mr_http_headers *headers, const char *value, size_t length)
{
    uint64_t seconds;
    if (only_u64(value, length, &seconds) == 0) {
        put_retry_after(headers, seconds);
    } else {
        headers->retry_date_s = date_of(value, length);
        compare_dates(headers);
    }
}

static void take_date(struct mr_http_headers *headers, const char *value, size_t length)
{
    headers->date_s = date_of(value, length);
    compare_dates(headers);
}

int64_t mr_http_headers_modified_s(const struct mr_http_headers *headers)
{
    time_t at = headers->modified[0] ? curl_getdate(headers->modified, NULL) : 0;
    return at > 0 ? (int64_t)at : 0;
}

static bool is(const char *name, size_t length, const char *wanted)
{
    return strlen(wanted) == length && strncasecmp(name, wanted, length) == 0;
}

/* "bytes=0-262143", as a 308 of an upload session has it. */
static void take_kept(struct mr_http_headers *headers, const char *value, size_t length)
{
    uint64_t last;
    if (length > 8 && strncasecmp(value, "bytes=0-", 8) == 0 && only_u64(value + 8, length - 8, &last) == 0 &&
        last < INT64_MAX) {
        headers->has_kept = true;
        headers->kept = last + 1;
    }
}

/* Whether the value is "gzip", or "gzip" is the last of several: the one to be undone first. */
static bool is_gzip(const char *value, size_t length)
{
    while (length > 0 && memchr(value, ',', length)) {
        const char *rest = (const char *)memchr(value, ',', length) + 1;
        length -= (size_t)(rest - value);
        value = rest;
    }
    for (; length > 0 && *value == ' '; length--)
        value++;
    return is(value, length, "gzip") || is(value, length, "x-gzip");
}

static void take_goog(struct mr_http_headers *headers, const char *name, size_t name_length, const char *value,
                      size_t length)
{
    if (is(name, name_length, "x-goog-hash"))
        take_hash(headers, value, length);
    else if (is(name, name_length, "x-goog-generation"))
        headers->has_generation = only_u64(value, length, &headers->generation) == 0;
    else if (is(name, name_length, "x-guploader-response-body-transformations"))
        headers->gunzipped = memmem(value, length, "gunzipped", 9) != NULL;
    else if (is(name, name_length, "x-goog-stored-content-encoding"))
        headers->gzip = headers->gzip || is_gzip(value, length);
}

/* A checksum of parts ("...=-3") is not the base64 of a checksum, and is left out. */
static void take_amz(struct mr_http_headers *headers, const char *name, size_t name_length, const char *value,
                     size_t length)
{
    enum mr_checksum_kind kind = headers->checksum.kind;
    if (is(name, name_length, "x-amz-checksum-crc32c")) {
        mr_checksum_from_base64(&headers->checksum, MR_CHECKSUM_CRC32C, value, length);
    } else if (is(name, name_length, "x-amz-checksum-crc64nvme")) {
        if (kind == MR_CHECKSUM_NONE)
            mr_checksum_from_base64(&headers->checksum, MR_CHECKSUM_CRC64NVME, value, length);
    } else if (is(name, name_length, "x-amz-checksum-type")) {
        headers->composite = is(value, length, "COMPOSITE");
    } else if (is(name, name_length, "x-amz-bucket-region") && length < sizeof headers->region) {
        memcpy(headers->region, value, length);
        headers->region[length] = 0;
    }
    if (headers->composite)
        headers->checksum.kind = MR_CHECKSUM_NONE;
}

/* Returns the length of the name before the colon; 0: it is not a header line. *value is without white space around
 * it. */
static size_t split_line(const char *line, size_t length, const char **value, size_t *value_length)
{
    const char *colon = length ? memchr(line, ':', length) : NULL;
    if (!colon || colon == line)
        return 0;
    const char *at = colon + 1, *end = line + length;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *value = at;
    *value_length = (size_t)(end - at);
    return (size_t)(colon - line);
}

bool mr_http_headers_location(const char *line, size_t length, const char **url, size_t *url_length)
{
    return length > 9 && is(line, split_line(line, length, url, url_length), "location");
}

void mr_http_headers_line(struct mr_http_headers *headers, const char *line, size_t length)
{
    const char *value;
    size_t n, name_length = split_line(line, length, &value, &n);
    if (name_length == 0)
        return;
    switch (line[0] | 0x20) {
    case 'x':
        if (name_length > 6 && strncasecmp(line, "x-amz-", 6) == 0)
            take_amz(headers, line, name_length, value, n);
        else
            take_goog(headers, line, name_length, value, n);
        break;
    case 'c':
        if (is(line, name_length, "content-length"))
            headers->has_content_length = only_u64(value, n, &headers->content_length) == 0;
        else if (is(line, name_length, "content-range"))
            take_content_range(headers, value, n);
        else if (is(line, name_length, "content-encoding"))
            headers->gzip = headers->gzip || is_gzip(value, n);
        break;
    case 'd':
        if (is(line, name_length, "date"))
            take_date(headers, value, n);
        break;
    case 'e':
        if (is(line, name_length, "etag")) {
            size_t kept = n < sizeof headers->etag ? n : sizeof headers->etag - 1;
            memcpy(headers->etag, value, kept);
            headers->etag[kept] = 0;
        }
        break;
    case 'l':
        if (is(line, name_length, "last-modified") && n < sizeof headers->modified) {
            memcpy(headers->modified, value, n);
            headers->modified[n] = 0;
        }
        break;
    case 'm':
        if (is(line, name_length, "metadata-flavor"))
            headers->metadata_flavor_google = n == 6 && memcmp(value, "Google", 6) == 0;
        break;
    case 'r':
        if (is(line, name_length, "retry-after"))
            take_retry_after(headers, value, n);
        else if (is(line, name_length, "range"))
            take_kept(headers, value, n);
        break;
    default:
        break;
    }
}

int mr_http_headers_status(const char *line, size_t length)
{
    if (length < 12 || strncmp(line, "HTTP/", 5) != 0)
        return 0;
    const char *at = memchr(line, ' ', length), *end = line + length;
    if (!at)
        return 0;
    at++;
    uint64_t status;
    return take_u64(&at, end, &status) == 0 && status >= 100 && status <= 999 ? (int)status : 0;
}
