#include "devstore/mime.h"

#include <string.h>
#include <strings.h>

#include "base/error.h"

int ds_mime_boundary(const char *content_type, char boundary[MR_BOUNDARY_MAX + 1])
{
    const char *at = content_type;
    while (at && (at = strchr(at, ';'))) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, "boundary=", 9) != 0)
            continue;
        at += 9;
        bool quoted = *at == '"';
        at += quoted;
        size_t length = strcspn(at, quoted ? "\"" : "; \t");
        if (length == 0 || length > MR_BOUNDARY_MAX || (quoted && at[length] != '"'))
            break;
        memcpy(boundary, at, length);
        boundary[length] = 0;
        return 0;
    }
    mr_error_set(MR_E_USAGE, "The Content-Type has no valid boundary.");
    return -1;
}

struct delimiter {
    size_t begin, end; /* of the line; the line break in front of it belongs to it */
    bool closing;
};

/* The next delimiter line from `from`. 0, or -1 when there is no complete one. */
static int find_delimiter(const char *bytes, size_t length, size_t from, const char *boundary, struct delimiter *found)
{
    char line[MR_BOUNDARY_MAX + 3] = "--";
    size_t n = strlen(boundary) + 2;
    memcpy(line + 2, boundary, n - 1);
    for (size_t at = from; at < length;) {
        const char *hit = memmem(bytes + at, length - at, line, n);
        if (!hit)
            return -1;
        size_t begin = (size_t)(hit - bytes), end = begin + n;
        at = begin + 1;
        if (begin > 0 && bytes[begin - 1] != '\n')
            continue;
        found->closing = length - end >= 2 && memcmp(bytes + end, "--", 2) == 0;
        end += found->closing ? 2 : 0;
        while (end < length && (bytes[end] == ' ' || bytes[end] == '\t' || bytes[end] == '\r'))
            end++;
        if (end < length ? bytes[end] != '\n' : !found->closing)
            continue;
        begin -= begin > from; /* \n */
        begin -= begin > from && begin > 0 && bytes[begin - 1] == '\r' && bytes[begin] == '\n';
        found->begin = begin;
        found->end = end < length ? end + 1 : length;
        return 0;
    }
    return -1;
}

int ds_mime_head(const char *bytes, size_t length, size_t *head, size_t *rest)
{
    for (size_t at = 0; at < length;) {
        const char *newline = memchr(bytes + at, '\n', length - at);
        if (!newline)
            return -1;
        size_t end = (size_t)(newline - bytes) + 1;
        if (end - at == 1 || (end - at == 2 && bytes[at] == '\r')) {
            *head = at;
            *rest = end;
            return 0;
        }
        at = end;
    }
    return -1;
}

int ds_mime_next(const char *bytes, size_t length, const char *boundary, size_t *at, struct ds_mime_part *part)
{
    memset(part, 0, sizeof *part);
    struct delimiter open;
    if (find_delimiter(bytes, length, *at, boundary, &open) < 0) {
        mr_error_set(MR_E_USAGE, "The multipart body has no delimiter where one is due.");
        return -1;
    }
    if (open.closing)
        return 0;
    size_t head, rest;
    if (ds_mime_head(bytes + open.end, length - open.end, &head, &rest) < 0) {
        mr_error_set(MR_E_USAGE, "The headers of a part do not end.");
        return -1;
    }
    part->headers = bytes + open.end;
    part->headers_length = head;
    part->body = part->headers + rest;
    struct delimiter close;
    if (find_delimiter(bytes, length, open.end + rest, boundary, &close) < 0) {
        mr_error_set(MR_E_USAGE, "The multipart body has no closing delimiter.");
        return -1;
    }
    part->body_length = close.begin - (open.end + rest);
    *at = close.begin;
    return 1;
}

static bool closes(const char *bytes, size_t length, const char *boundary)
{
    size_t n = strlen(boundary);
    return length >= n + 4 && memcmp(bytes, "--", 2) == 0 && memcmp(bytes + 2, boundary, n) == 0 &&
           memcmp(bytes + 2 + n, "--", 2) == 0;
}

long ds_mime_closing(const char *bytes, size_t length, const char *boundary, bool whole)
{
    for (size_t i = length; i-- > 0;) {
        if (bytes[i] == '\n' && closes(bytes + i + 1, length - i - 1, boundary))
            return (long)(i > 0 && bytes[i - 1] == '\r' ? i - 1 : i);
    }
    return whole && closes(bytes, length, boundary) ? 0 : -1;
}

char *ds_mime_header(const char *headers, size_t length, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = headers, *end = headers + length; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        if ((size_t)(stop - at) > n && at[n] == ':' && strncasecmp(at, name, n) == 0) {
            at += n + 1;
            while (at < stop && (*at == ' ' || *at == '\t'))
                at++;
            while (stop > at && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r'))
                stop--;
            return strndup(at, (size_t)(stop - at));
        }
        at = newline ? newline + 1 : end;
    }
    return NULL;
}
