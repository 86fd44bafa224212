#include "worker/list/split.h"

#include <string.h>

#include "base/utf8.h"

#define RUN_GAP 6 /* bytes of `branch` that are no further apart belong together: digits, small letters, ... */

static size_t shared_bytes(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] != '\0' && a[n] == b[n])
        n++;
    return n;
}

void mr_shape_add(struct mr_shape *shape, const char *before, const char *name)
{
    if (!before)
        return;
    size_t n = shared_bytes(before, name);
    shape->branch[(unsigned char)before[n]] = true;
    shape->branch[(unsigned char)name[n]] = true;
}

void mr_shape_page(struct mr_shape *shape, const char *first, const char *last)
{
    shape->deepest = (uint32_t)shared_bytes(first, last);
}

/* Length of the UTF-8 character that begins with this byte; 0: none does. */
static unsigned lead_length(unsigned char byte)
{
    if (byte < 0x80)
        return 1;
    if (byte >= 0xc2 && byte <= 0xdf)
        return 2;
    if (byte >= 0xe0 && byte <= 0xef)
        return 3;
    return byte >= 0xf0 && byte <= 0xf4 ? 4 : 0;
}

static bool valid_utf8(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
        unsigned length = mr_utf8_length(at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

/* The middle one of the bytes in `branch` above `byte` and below `limit`, of the run that `byte` belongs to, or of all
 * where none of that is left. 0: none. */
static unsigned middle(const struct mr_shape *shape, unsigned byte, unsigned limit)
{
    unsigned char all[256], run = 0, count = 0;
    unsigned before = byte;
    bool near = true;
    for (unsigned b = byte + 1; b < limit && b < 256; b++) {
        if (!shape->branch[b])
            continue;
        near = near && b - before <= RUN_GAP;
        before = b;
        all[count++] = (unsigned char)b;
        run = near ? count : run;
    }
    if (count == 0)
        return 0;
    return run > 0 ? all[run / 2] : all[count / 2];
}

/* Which byte to cut with at this place; 0: none. */
static unsigned cut_byte(const struct mr_shape *shape, const struct mr_split_place *place, size_t at, bool on_end)
{
    unsigned byte = (unsigned char)place->last[at];
    unsigned limit = 256;
    if (on_end) /* the end's own byte may be used where the end continues after it */
        limit = (unsigned char)place->end[at] + (place->end[at] != '\0' && place->end[at + 1] != '\0' ? 1u : 0u);
    if (!shape->branch[byte] && byte != 0)
        return 0; /* names never differ at such a byte: not here either, it seems */
    unsigned found = middle(shape, byte, limit);
    /* Names come in order, so at this place only lower bytes may have been seen: as much again may lie ahead. */
    unsigned first = strncmp(place->first, place->last, at) == 0 ? (unsigned char)place->first[at] : byte;
    if (found == 0 && byte > first) {
        found = byte + (byte - first + 1) / 2;
        if (found >= limit)
            found = limit - 1;
    }
    return found > byte && found < 256 ? found : 0;
}

/* last[0, at), the byte, and what completes a character. */
static void build(const char *last, size_t at, unsigned byte, char *m)
{
    size_t lead = at, n = at;
    memcpy(m, last, at);
    m[n++] = (char)byte;
    if (byte >= 0x80 && byte < 0xc0) { /* within a character: where does it begin? */
        while (lead > 0 && ((unsigned char)m[lead] & 0xc0) == 0x80)
            lead--;
    }
    unsigned length = lead_length((unsigned char)m[lead]);
    while (n < lead + length && n < MR_SPLIT_MAX - 1)
        m[n++] = (char)0x80;
    m[n] = '\0';
}

bool mr_split(const struct mr_shape *shape, const struct mr_split_place *place, char m[MR_SPLIT_MAX], uint64_t *level)
{
    const char *last = place->last, *end = place->end;
    size_t length = strlen(last), at = place->prefix > place->level ? place->prefix : (size_t)place->level;
    size_t common = end ? shared_bytes(last, end) : 0;
    bool text = valid_utf8(last) && (!end || valid_utf8(end));
    for (; at <= length && at + 5 < MR_SPLIT_MAX; at++) {
        if (end && at < common)
            continue;
        unsigned byte = cut_byte(shape, place, at, end && at == common);
        if (byte == 0)
            continue;
        build(last, at, byte, m);
        if (strcmp(m, last) > 0 && (!end || strcmp(m, end) < 0) && (!text || valid_utf8(m))) {
            *level = at;
            return true;
        }
    }
    return false;
}
