#include "base/size.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

static int bad_size(const char *text)
{
    mr_error_set(MR_E_CONFIG, "\"%.60s\" is not a size: write bytes, or 64KiB, 512MiB, 1.5GiB, 100MB", text);
    return -1;
}

/* Digits, with single underscores between them; *at is after them afterwards. False where there are none or they do
 * not fit. */
static bool parse_digits(const char **at, uint64_t *value)
{
    const char *start = *at;
    *value = 0;
    for (; isdigit((unsigned char)**at) || (**at == '_' && *at > start && isdigit((unsigned char)(*at)[1])); (*at)++) {
        if (**at == '_')
            continue;
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, (uint64_t)(**at - '0'), value))
            return false;
    }
    return *at > start;
}

/* k, M, ... and KiB are powers of 1024; kB, MB, ... are powers of 1000. Case does not matter. */
static bool parse_unit(const char *text, uint64_t *factor)
{
    static const char letters[] = "kmgtp";
    *factor = 1;
    if (text[0] == '\0' || strcasecmp(text, "b") == 0)
        return true;
    const char *letter = strchr(letters, tolower((unsigned char)text[0]));
    if (!letter)
        return false;
    uint64_t base = 1024;
    if (strcasecmp(text + 1, "b") == 0)
        base = 1000;
    else if (text[1] != '\0' && strcasecmp(text + 1, "i") != 0 && strcasecmp(text + 1, "ib") != 0)
        return false;
    for (const char *l = letters; l <= letter; l++)
        *factor *= base;
    return true;
}

int mr_size_parse(const char *text, uint64_t *bytes)
{
    const char *at = text;
    uint64_t whole, fraction = 0, scale = 1;
    if (!parse_digits(&at, &whole))
        return bad_size(text);
    if (*at == '.') {
        for (at++; isdigit((unsigned char)*at); at++) {
            if (scale > 100000)
                return bad_size(text);
            fraction = fraction * 10 + (uint64_t)(*at - '0');
            scale *= 10;
        }
        if (scale == 1)
            return bad_size(text);
    }
    at += strspn(at, " ");
    uint64_t value;
    uint64_t factor;
    if (!parse_unit(at, &factor) || (factor == 1 && scale > 1) || __builtin_mul_overflow(whole, factor, &value) ||
        __builtin_add_overflow(value, factor / scale * fraction + factor % scale * fraction / scale, &value))
        return bad_size(text);
    *bytes = value;
    return 0;
}

void mr_size_format(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    unsigned unit = 0;
    while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, "%llu%s", (unsigned long long)bytes, units[unit]);
}

const char *mr_size_text(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    for (; bytes >= 1024 && unit < 5; unit++)
        bytes /= 1024;
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}
