#include "devstore/shapes.h"

#include <string.h>

#include "base/clock.h"

#define DIGITS   9    /* of a number: counts end at 10^9 */
#define RUN_MAX  1015 /* with the digits, a name has at most 1,024 bytes */
#define MARKER_N 10   /* a marker and nine objects */

const char *const ds_shape_names[MR_SHAPES] = {
    [MR_SHAPE_FLAT] = "flat",     [MR_SHAPE_HASHES] = "hashes",   [MR_SHAPE_DEEP] = "deep",
    [MR_SHAPE_PREFIX] = "prefix", [MR_SHAPE_UNICODE] = "unicode", [MR_SHAPE_RUNS] = "runs",
    [MR_SHAPE_SKEWED] = "skewed", [MR_SHAPE_MARKERS] = "markers", [MR_SHAPE_CLASSES] = "classes",
};

static size_t shapes_put(char *name, size_t at, const char *text)
{
    size_t n = strlen(text);
    memcpy(name + at, text, n);
    return at + n;
}

static size_t put_digits(char *name, size_t at, uint64_t number)
{
    for (unsigned i = DIGITS; i-- > 0; number /= 10)
        name[at + i] = (char)('0' + number % 10);
    return at + DIGITS;
}

/* Divides the 64-bit numbers into `count` shares: a place inside share number `index`. */
static size_t put_hash(char *name, uint64_t count, uint64_t index)
{
    uint64_t share = UINT64_MAX / count;
    uint64_t hash = index * share + mr_mix64(index) % share;
    for (unsigned i = 16; i-- > 0; hash >>= 4)
        name[i] = "0123456789abcdef"[hash & 15];
    return 16;
}

static size_t put_deep(char *name, uint64_t index)
{
    char digits[DIGITS];
    put_digits(digits, 0, index);
    size_t at = 0;
    for (unsigned i = 0; i < DIGITS - 1; i++) {
        name[at++] = 'l';
        name[at++] = (char)('0' + i);
        name[at++] = '=';
        name[at++] = digits[i];
        name[at++] = '/';
    }
    return put_digits(name, at, index);
}

/* Characters in the order of their bytes, none the beginning of another. */
static size_t put_unicode(char *name, uint64_t index)
{
    static const char *const numerals[] = {"-",
                                           "A",
                                           "z",
                                           "\xc3\xa9",
                                           "\xd0\x96",
                                           "\xd7\x90",
                                           "\xe0\xb8\x81",
                                           "\xe4\xb8\xad",
                                           "\xed\x95\x9c",
                                           "\xf0\x9f\x98\x80"};
    char digits[DIGITS];
    put_digits(digits, 0, index);
    size_t at = 0;
    for (unsigned i = 0; i < DIGITS; i++)
        at = shapes_put(name, at, numerals[digits[i] - '0']);
    return at;
}

/* The digits sort before the letter, so all of a run come before the first of a longer one. */
static size_t put_run(char *name, uint64_t count, uint64_t index)
{
    uint64_t each = (count + RUN_MAX - 1) / RUN_MAX;
    size_t length = (size_t)(index / each) + 1;
    memset(name, 'a', length);
    return each > 1 ? put_digits(name, length, index % each) : length;
}

static size_t put_skewed(char *name, uint64_t count, uint64_t index)
{
    uint64_t edge = count / 200;
    const char *folder = index < edge ? "cold-" : index < count - edge ? "hot/" : "warm-";
    return put_digits(name, shapes_put(name, 0, folder), index);
}

static size_t put_marker(char *name, uint64_t index)
{
    size_t at = put_digits(name, shapes_put(name, 0, "dir-"), index / MARKER_N);
    name[at++] = '/';
    if (index % MARKER_N)
        name[at++] = (char)('0' + index % MARKER_N);
    return at;
}

size_t ds_shape_name(enum ds_shape shape, uint64_t count, uint64_t index, char name[MR_NAME_MAX + 1])
{
    size_t length;
    switch (shape) {
    case MR_SHAPE_HASHES:
        length = put_hash(name, count, index);
        break;
    case MR_SHAPE_DEEP:
        length = put_deep(name, index);
        break;
    case MR_SHAPE_PREFIX:
        memset(name, 'p', 200);
        length = put_digits(name, 200, index);
        break;
    case MR_SHAPE_UNICODE:
        length = put_unicode(name, index);
        break;
    case MR_SHAPE_RUNS:
        length = put_run(name, count, index);
        break;
    case MR_SHAPE_SKEWED:
        length = put_skewed(name, count, index);
        break;
    case MR_SHAPE_MARKERS:
        length = put_marker(name, index);
        break;
    default:
        length = put_digits(name, shapes_put(name, 0, "obj-"), index);
        break;
    }
    name[length] = 0;
    return length;
}

bool ds_shape_is_empty(enum ds_shape shape, uint64_t index)
{
    return shape == MR_SHAPE_MARKERS && index % MARKER_N == 0;
}

const char *ds_shape_class(enum ds_shape shape, uint64_t index)
{
    static const char *const classes[] = {"NEARLINE", "COLDLINE", "ARCHIVE"};
    uint64_t draw = mr_mix64(index) % 12;
    return shape == MR_SHAPE_CLASSES && draw < 3 ? classes[draw] : NULL;
}
