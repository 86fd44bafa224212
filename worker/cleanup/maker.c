#include "worker/cleanup/maker.h"

#include <stdio.h>
#include <string.h>

#define UUID_LENGTH 36

struct mr_maker mr_maker_of(const char *run, unsigned slot, uint64_t start)
{
    struct mr_maker maker = {.slot = slot, .start = (uint32_t)start};
    snprintf(maker.run, sizeof maker.run, "%s", run);
    return maker;
}

bool mr_maker_equal(const struct mr_maker *a, const struct mr_maker *b)
{
    return a->slot == b->slot && a->start == b->start && strcmp(a->run, b->run) == 0;
}

bool mr_maker_is_write(const struct mr_maker *maker)
{
    return maker->slot >= MR_MAKER_WRITE;
}

/* Digits up to `end`, which is passed over. */
static bool parse_number(const char **at, char end, uint64_t most, uint64_t *number)
{
    const char *p = *at;
    uint64_t n = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (n > (most - (uint64_t)(*p - '0')) / 10)
            return false;
        n = n * 10 + (uint64_t)(*p - '0');
    }
    if (*p != end)
        return false;
    *at = p + (end != 0);
    *number = n;
    return true;
}

/* The run, a slot and a start with these characters after them. */
static bool maker_parse(const char *text, const char after[3], struct mr_maker *maker, const char **rest)
{
    if (strnlen(text, UUID_LENGTH + 1) <= UUID_LENGTH || text[UUID_LENGTH] != after[0] ||
        strspn(text, "0123456789abcdef-") != UUID_LENGTH)
        return false;
    memset(maker, 0, sizeof *maker);
    memcpy(maker->run, text, UUID_LENGTH);
    text += UUID_LENGTH + 1;
    uint64_t slot, start;
    if (!parse_number(&text, after[1], UINT32_MAX, &slot) || !parse_number(&text, after[2], UINT32_MAX, &start))
        return false;
    maker->slot = (unsigned)slot;
    maker->start = (uint32_t)start;
    *rest = text;
    return true;
}

bool mr_maker_parse(const char *text, struct mr_maker *maker, uint64_t *number)
{
    uint64_t ignored;
    const char *rest;
    return maker_parse(text, (char[]){'/', '-', '-'}, maker, &rest) &&
           parse_number(&rest, '\0', UINT64_MAX, number ? number : &ignored);
}

bool mr_maker_parse_file(const char *name, struct mr_maker *maker)
{
    const char *rest;
    return maker_parse(name, (char[]){'.', '.', '\0'}, maker, &rest);
}
