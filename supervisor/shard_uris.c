/*
 * shard_uris.c - see shard_uris.h. A pattern is expanded to at most the number of URIs that its caller allows, which
 * is checked before anything is allocated.
 */
#include "supervisor/shard_uris.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#define GROUPS_MAX 8   /* pairs of braces in one URI */
#define DIGITS_MAX 18u /* of a number in them */

int mr_format_parse(const char *text, enum mr_format *format)
{
    static const char *const names[] = {"", "objects", "tar"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            *format = (enum mr_format)i;
            return 0;
        }
    mr_error_set(MR_E_USAGE, "'%.80s' is not a format of a data set: \"tar\" or \"objects\"", text);
    return -1;
}

static bool is_shard(const char *uri)
{
    size_t length = strlen(uri);
    return length > 4 && strcmp(uri + length - 4, ".tar") == 0;
}

bool mr_shard_uris_are(const struct mr_strings *uris)
{
    for (size_t i = 0; i < uris->count; i++)
        if (!is_shard(uris->items[i]))
            return false;
    return true;
}

bool mr_shard_uris_some(const struct mr_strings *uris)
{
    for (size_t i = 0; i < uris->count; i++)
        if (is_shard(uris->items[i]))
            return true;
    return false;
}

int mr_shard_uris_split(const char *const *uris, size_t count, struct mr_strings *out)
{
    for (size_t i = 0; i < count; i++) {
        char *copy = strdup(uris[i]), *at = copy, *next;
        int rc = copy ? 0 : -1;
        if (!copy)
            mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
        for (; rc == 0 && at; at = next) {
            next = strstr(at, "::");
            if (next) {
                *next = '\0';
                next += 2;
            }
            rc = mr_strings_add(out, at);
        }
        free(copy);
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* ---- braces ---- */

/* What one pair of braces stands for: numbers, or words between commas. */
struct group {
    const char *begin, *end; /* of what is between the braces */
    bool numbers;
    uint64_t first, count;
    unsigned width;
};

static int shard_uris_refuse(const char *uri, const char *why)
{
    mr_error_set(MR_E_USAGE, "'%.300s': %s: {000..099} and {train,val} are understood", uri, why);
    return -1;
}

/* Digits up to `end`: false for anything else. */
static bool digits(const char *at, const char *end, uint64_t *value)
{
    *value = 0;
    if (at == end || end - at > (ptrdiff_t)DIGITS_MAX)
        return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return false;
        *value = *value * 10 + (uint64_t)(*at - '0');
    }
    return true;
}

/* Parses one pair of braces: a range of numbers, or a list. The bounds g->begin and g->end are set by the caller. */
static int read_group(const char *uri, struct group *g)
{
    const char *dots = memmem(g->begin, (size_t)(g->end - g->begin), "..", 2);
    uint64_t last;
    if (dots) {
        if (!digits(g->begin, dots, &g->first) || !digits(dots + 2, g->end, &last) || last < g->first)
            return shard_uris_refuse(uri, "a range that cannot be read");
        g->numbers = true;
        g->width = (unsigned)(dots - g->begin);
        g->count = last - g->first + 1;
        return 0;
    }
    g->numbers = false;
    g->count = 1;
    for (const char *at = g->begin; at < g->end; at++)
        g->count += *at == ',';
    return g->count > 1 ? 0 : shard_uris_refuse(uri, "braces without a range or a comma");
}

/* The pairs of braces of a URI, and of how many URIs it is the pattern. */
static int read_groups(const char *uri, struct group groups[GROUPS_MAX], unsigned *count, uint64_t *uris)
{
    *count = 0;
    *uris = 1;
    for (const char *at = uri; (at = strpbrk(at, "{}")); at = groups[*count - 1].end + 1) {
        struct group *g = &groups[*count];
        const char *end = *at == '{' ? strpbrk(at + 1, "{}") : NULL;
        if (!end || *end != '}')
            return shard_uris_refuse(uri, "braces that do not pair, or lie in each other");
        if (*count == GROUPS_MAX)
            return shard_uris_refuse(uri, "more than 8 pairs of braces");
        *g = (struct group){.begin = at + 1, .end = end};
        if (read_group(uri, g) != 0)
            return -1;
        if (g->count > MR_SHARD_URIS_MAX / *uris)
            return shard_uris_refuse(uri, "more than a million shards");
        *uris *= g->count;
        ++*count;
    }
    return 0;
}

static void write_item(FILE *out, const struct group *g, uint64_t item)
{
    if (g->numbers) {
        fprintf(out, "%0*llu", (int)g->width, (unsigned long long)(g->first + item));
        return;
    }
    const char *at = g->begin, *end;
    while (item-- > 0)
        at = strchr(at, ',') + 1;
    end = memchr(at, ',', (size_t)(g->end - at));
    fwrite(at, 1, (size_t)((end ? end : g->end) - at), out);
}

/* Every URI of the pattern, one a line; the last pair of braces changes first. */
static int write_uris(FILE *out, const char *uri, uint64_t *total)
{
    struct group groups[GROUPS_MAX];
    unsigned count;
    uint64_t uris;
    if (read_groups(uri, groups, &count, &uris) != 0)
        return -1;
    *total += uris;
    if (*total > MR_SHARD_URIS_MAX)
        return shard_uris_refuse(uri, "more than a million shards");
    for (uint64_t n = 0; n < uris; n++) {
        const char *at = uri;
        uint64_t of = uris, rest = n;
        for (unsigned i = 0; i < count; i++) {
            of /= groups[i].count;
            fwrite(at, 1, (size_t)(groups[i].begin - 1 - at), out);
            write_item(out, &groups[i], rest / of);
            rest %= of;
            at = groups[i].end + 1;
        }
        fprintf(out, "%s\n", at);
    }
    return 0;
}

/* A memfd with the expanded URIs, one a line, for the list workers; the caller's to close. */
static int open_names(const struct mr_strings *uris)
{
    int fd = memfd_create("millrace-shards", MFD_CLOEXEC);
    char *text = NULL;
    size_t length = 0;
    uint64_t total = 0;
    FILE *out = fd >= 0 ? open_memstream(&text, &length) : NULL;
    int rc = out ? 0 : -1;
    if (!out)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
    for (size_t i = 0; rc == 0 && i < uris->count; i++)
        rc = write_uris(out, uris->items[i], &total);
    if (out && fclose(out) != 0 && rc == 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
        rc = -1;
    }
    for (size_t at = 0; rc == 0 && at < length;) {
        ssize_t n = pwrite(fd, text + at, length - at, (off_t)at);
        if (n <= 0) {
            mr_error_set_errno(errno, "no memory for a list of shards");
            rc = -1;
        }
        at += n > 0 ? (size_t)n : 0;
    }
    free(text);
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

int mr_shard_uris_open(const struct mr_strings *uris, enum mr_format format, int *names)
{
    bool some = mr_shard_uris_some(uris);
    *names = -1;
    if (format == MR_FORMAT_OBJECTS || (format == MR_FORMAT_BY_NAME && !some))
        return 0;
    if (!some)
        return 1;
    if (!mr_shard_uris_are(uris)) {
        mr_error_set(MR_E_USAGE,
                     "a data set of shards (%.200s) and of what lies under other URIs cannot be one: name "
                     "shards alone, or folders alone with format=\"tar\"",
                     uris->items[0]);
        return -1;
    }
    *names = open_names(uris);
    return *names >= 0 ? 1 : -1;
}
