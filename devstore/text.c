#include "devstore/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

void ds_text_close(struct ds_text *text)
{
    free(text->data);
    memset(text, 0, sizeof *text);
}

/* Makes room for `more` bytes and a NUL after them, or sets failed. */
static void reserve(struct ds_text *text, size_t more)
{
    if (text->failed || more < text->capacity - text->length)
        return;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity - text->length <= more) {
        if (capacity > SIZE_MAX / 2) {
            text->failed = true;
            return;
        }
        capacity *= 2;
    }
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return;
    }
    text->data = data;
    text->capacity = capacity;
    text->data[text->length] = 0;
}

void ds_text_append(struct ds_text *text, const void *bytes, size_t length)
{
    reserve(text, length);
    if (text->failed || length == 0)
        return;
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = 0;
}

void ds_text_puts(struct ds_text *text, const char *string)
{
    ds_text_append(text, string, strlen(string));
}

void ds_text_printf(struct ds_text *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int need = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (need < 0) {
        text->failed = true;
        return;
    }
    reserve(text, (size_t)need);
    if (text->failed)
        return;
    va_start(args, fmt);
    vsnprintf(text->data + text->length, (size_t)need + 1, fmt, args);
    va_end(args);
    text->length += (size_t)need;
}

void ds_text_json_string(struct ds_text *text, const char *string)
{
    const char *plain = string;
    ds_text_append(text, "\"", 1);
    const char *at;
    for (at = string; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        ds_text_append(text, plain, (size_t)(at - plain));
        plain = at + 1;
        if (c == '"' || c == '\\')
            ds_text_printf(text, "\\%c", c);
        else
            ds_text_printf(text, "\\u%04x", c);
    }
    ds_text_append(text, plain, (size_t)(at - plain));
    ds_text_append(text, "\"", 1);
}

static bool unreserved(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

void ds_text_percent(struct ds_text *text, const char *string)
{
    static const char hex[] = "0123456789ABCDEF";
    for (const char *at = string; *at; at++) {
        unsigned char c = (unsigned char)*at;
        char coded[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (unreserved(c))
            ds_text_append(text, at, 1);
        else
            ds_text_append(text, coded, 3);
    }
}

void ds_text_time(struct ds_text *text, int64_t microseconds)
{
    time_t seconds = (time_t)(microseconds / 1000000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    char day[40];
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    ds_text_printf(text, "%s.%03dZ", day, (int)(microseconds % 1000000 / 1000));
}

void ds_http_date(int64_t microseconds, char out[40])
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t seconds = (time_t)(microseconds / 1000000);
    struct tm tm;
    gmtime_r(&seconds, &tm); /* not strftime: its names are the locale's */
    snprintf(out, 40, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon],
             tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

char *ds_percent_decode(const char *bytes, size_t length, bool plus)
{
    char *out = malloc(length + 1);
    size_t n = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < length; i++) {
        char c = bytes[i];
        if (c == '%') {
            int high = length - i > 2 ? hex_digit(bytes[i + 1]) : -1;
            int low = length - i > 2 ? hex_digit(bytes[i + 2]) : -1;
            if (high < 0 || low < 0)
                goto bad;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        out[n++] = c;
    }
    out[n] = 0;
    if (ds_utf8_valid(out, n))
        return out;
bad:
    free(out);
    return NULL;
}

bool ds_utf8_valid(const char *bytes, size_t length)
{
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    while (at < end) {
        unsigned c = *at++;
        if (c == 0)
            return false;
        if (c < 0x80)
            continue;
        unsigned more, least;
        if (c >= 0xc2 && c <= 0xdf) {
            more = 1, least = 0x80, c &= 0x1f;
        } else if (c >= 0xe0 && c <= 0xef) {
            more = 2, least = 0x800, c &= 0x0f;
        } else if (c >= 0xf0 && c <= 0xf4) {
            more = 3, least = 0x10000, c &= 0x07;
        } else {
            return false;
        }
        if ((size_t)(end - at) < more)
            return false;
        for (; more > 0; more--, at++) {
            if ((*at & 0xc0) != 0x80)
                return false;
            c = c << 6 | (*at & 0x3fu);
        }
        if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
            return false;
    }
    return true;
}

/* Decimal digits from text; *end is after them. -1 when there are none or they overflow. */
static int digits(const char *text, const char **end, uint64_t *value)
{
    uint64_t sum = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, (uint64_t)(*at - '0'), &sum))
            return -1;
    }
    *end = at;
    *value = sum;
    return at == text ? -1 : 0;
}

int ds_parse_u64(const char *text, uint64_t *value)
{
    const char *end;
    uint64_t sum;
    if (digits(text, &end, &sum) < 0 || *end)
        return -1;
    *value = sum;
    return 0;
}

int ds_parse_size(const char *text, uint64_t *value)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}};
    const char *end;
    uint64_t sum;
    if (digits(text, &end, &sum) < 0)
        return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name) == 0 && sum <= UINT64_MAX >> units[i].shift) {
            *value = sum << units[i].shift;
            return 0;
        }
    }
    return -1;
}

int ds_parse_real(const char *text, double *value)
{
    if (!((*text >= '0' && *text <= '9') || *text == '.'))
        return -1;
    errno = 0;
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(parsed))
        return -1;
    *value = parsed;
    return 0;
}

enum ds_range ds_parse_range(const char *header, uint64_t size, uint64_t *first, uint64_t *last)
{
    if (!header || strncasecmp(header, "bytes=", 6) != 0)
        return MR_RANGE_NONE;
    header += 6;
    uint64_t b;
    if (*header == '-') { /* the last b bytes */
        if (ds_parse_u64(header + 1, &b) < 0)
            return MR_RANGE_NONE;
        if (b == 0 || size == 0)
            return MR_RANGE_UNSATISFIABLE;
        *first = b < size ? size - b : 0;
        *last = size - 1;
        return MR_RANGE_PART;
    }
    uint64_t a;
    const char *at;
    if (digits(header, &at, &a) < 0 || *at != '-')
        return MR_RANGE_NONE;
    if (at[1] == 0)
        b = UINT64_MAX;
    else if (ds_parse_u64(at + 1, &b) < 0 || b < a)
        return MR_RANGE_NONE;
    if (a >= size)
        return MR_RANGE_UNSATISFIABLE;
    *first = a;
    *last = b < size ? b : size - 1;
    return MR_RANGE_PART;
}

static const char token_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

char *ds_token_encode(const char *string)
{
    size_t length = strlen(string);
    char *out = malloc(length * 4 / 3 + 4);
    if (!out)
        return NULL;
    size_t n = 0;
    uint32_t bits = 0;
    unsigned held = 0;
    for (size_t i = 0; i < length; i++) {
        bits = bits << 8 | (unsigned char)string[i];
        for (held += 8; held >= 6; held -= 6)
            out[n++] = token_digits[bits >> (held - 6) & 63];
    }
    if (held > 0)
        out[n++] = token_digits[bits << (6 - held) & 63];
    out[n] = 0;
    return out;
}

char *ds_token_decode(const char *token)
{
    size_t n = 0;
    char *out = malloc(strlen(token) * 3 / 4 + 1);
    uint32_t bits = 0;
    unsigned held = 0;
    if (!out)
        return NULL;
    for (; *token; token++) {
        const char *digit = strchr(token_digits, *token);
        if (!digit)
            goto bad;
        bits = bits << 6 | (uint32_t)(digit - token_digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[n++] = (char)(bits >> held);
        }
    }
    if (held == 6 || (bits & ((1u << held) - 1)) != 0)
        goto bad;
    out[n] = 0;
    if (ds_utf8_valid(out, n))
        return out;
bad:
    free(out);
    return NULL;
}
