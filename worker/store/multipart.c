#include "worker/store/multipart.h"

#include <string.h>
#include <strings.h>

#include "worker/store/headers.h"

#define ID_MAX 1000000

/* The end of the line at `at`, after its newline. */
static const char *line_end(const char *at, const char *end)
{
    const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    return newline ? newline + 1 : end;
}

static bool is_blank(const char *line, const char *end)
{
    return end - line == 1 || (end - line == 2 && *line == '\r');
}

static bool is_delimiter(const struct mr_multipart *multipart, const char *line)
{
    return (size_t)(multipart->end - line) >= multipart->delimiter_length &&
           memcmp(line, multipart->delimiter, multipart->delimiter_length) == 0;
}

int mr_multipart_init(struct mr_multipart *multipart, const char *text, size_t length)
{
    const char *end = text + length;
    *multipart = (struct mr_multipart){.at = text, .end = end};
    for (const char *line = text, *next; line < end; line = next) {
        next = line_end(line, end);
        const char *stop = next;
        while (stop > line && (stop[-1] == '\n' || stop[-1] == '\r'))
            stop--;
        if (stop - line > 2 && line[0] == '-' && line[1] == '-') {
            multipart->delimiter = line;
            multipart->delimiter_length = (size_t)(stop - line);
            multipart->at = line;
            return 0;
        }
    }
    mr_error_set(MR_E_PROTOCOL, "the answer of a batch is not multipart/mixed");
    return -1;
}

/* "Content-ID: <response-a+12>": 12; any other line: before. */
static long take_id(const char *line, const char *end, long before)
{
    static const char name[] = "content-id:";
    if ((size_t)(end - line) < sizeof name || strncasecmp(line, name, sizeof name - 1) != 0)
        return before;
    while (end > line && (end[-1] < '0' || end[-1] > '9'))
        end--;
    if (end == line)
        return before;
    long id = 0, unit = 1;
    for (; end > line && end[-1] >= '0' && end[-1] <= '9' && unit <= ID_MAX; end--, unit *= 10)
        id += (end[-1] - '0') * unit;
    return id;
}

/* The content of one part, [at, end). */
static void take_part(const char *at, const char *end, struct mr_multipart_part *part)
{
    *part = (struct mr_multipart_part){.id = -1, .body = end};
    const char *next;
    for (; at < end; at = next) {
        next = line_end(at, end);
        if (is_blank(at, next))
            break;
        part->id = take_id(at, next, part->id);
    }
    at = line_end(at, end);
    next = line_end(at, end);
    part->status = mr_http_headers_status(at, (size_t)(next - at));
    for (at = next; at < end; at = next) {
        next = line_end(at, end);
        if (is_blank(at, next))
            break;
        mr_http_headers_line(&part->headers, at, (size_t)(next - at));
    }
    part->body = line_end(at, end);
    part->body_length = (size_t)(end - part->body);
}

bool mr_multipart_next(struct mr_multipart *multipart, struct mr_multipart_part *part)
{
    const char *end = multipart->end, *at = multipart->at;
    if (at >= end || !multipart->delimiter)
        return false;
    const char *after = at + multipart->delimiter_length;
    if (end - after >= 2 && after[0] == '-' && after[1] == '-')
        return false; /* the last one */
    const char *begin = line_end(at, end), *next = begin;
    while (next < end && !is_delimiter(multipart, next))
        next = line_end(next, end);
    multipart->at = next;
    if (next == end)
        return false; /* cut off: what is there may not be all of it */
    take_part(begin, next, part);
    return true;
}
