#include "worker/split.h"

#include <string.h>

#define DIGITS 6 /* digits behind the common prefix that are averaged: 255^6 fits in 64 bits */

void mr_alphabet_add(struct mr_alphabet *alphabet, const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        alphabet->seen[(unsigned char)name[i]] = true;
}

/* The digits of a fraction: value of each byte, and the bytes in order. 0 is "the name ends here". */
struct base {
    unsigned count; /* digits 1 .. count are bytes */
    unsigned char byte[257];
    unsigned char digit[256];
};

static void base_init(struct base *base, const struct mr_alphabet *alphabet, const char *last, const char *end)
{
    struct mr_alphabet all = *alphabet;
    mr_alphabet_add(&all, last, strlen(last));
    if (end)
        mr_alphabet_add(&all, end, strlen(end));
    memset(base, 0, sizeof *base);
    for (unsigned b = 1; b < 256; b++) {
        /* Bytes above ASCII stay whole characters: they are no digits, so that a cut is valid UTF-8. */
        if (all.seen[b] && b < 0x80)
            base->byte[++base->count] = (unsigned char)b;
        base->digit[b] = (unsigned char)base->count; /* bytes that are no digit count as the digit below */
    }
}

static uint64_t fraction(const struct base *base, const char *text)
{
    uint64_t value = 0;
    bool ended = false;
    for (unsigned i = 0; i < DIGITS; i++) {
        ended = ended || text[i] == 0;
        value = value * (base->count + 1) + (ended ? 0 : base->digit[(unsigned char)text[i]]);
    }
    return value;
}

static size_t spell(const struct base *base, uint64_t value, char out[DIGITS + 1])
{
    unsigned digit[DIGITS];
    size_t n = 0;
    for (int i = DIGITS - 1; i >= 0; i--) {
        digit[i] = (unsigned)(value % (base->count + 1));
        value /= base->count + 1;
    }
    while (n < DIGITS && digit[n] != 0) {
        out[n] = (char)base->byte[digit[n]];
        n++;
    }
    out[n] = 0;
    return n;
}

bool mr_split(const struct mr_alphabet *alphabet, const char *last, const char *end, char m[MR_SPLIT_MAX])
{
    struct base base;
    base_init(&base, alphabet, last, end);
    if (base.count == 0)
        return false;
    size_t common = 0;
    if (end) {
        while (last[common] && last[common] == end[common])
            common++;
    }
    /* From the first differing byte on, or later where the digits there leave no room between the two. */
    for (size_t at = common; at + DIGITS + 1 < MR_SPLIT_MAX; at++) {
        if (at > 0 && ((unsigned char)last[at] & 0xc0) == 0x80)
            continue; /* not within a character */
        uint64_t low = fraction(&base, last + at), high = 1;
        if (end && at == common) {
            high = fraction(&base, end + at);
        } else {
            for (unsigned i = 0; i < DIGITS; i++)
                high *= base.count + 1;
        }
        if (high > low + 1) {
            memcpy(m, last, at);
            spell(&base, low + (high - low) / 2, m + at);
            if (strcmp(m, last) > 0 && (!end || strcmp(m, end) < 0))
                return true;
        }
        if (last[at] == 0)
            break;
    }
    return false;
}
