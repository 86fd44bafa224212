/*
 * split.h - where to cut what is left of a range of names, so that another list worker can take the upper half.
 *
 * Nothing is assumed about digits or letters. Names are read as fractions whose digits are the bytes that have been
 * seen so far in this range, in byte order; the cut is halfway between the last name that was listed and the range's
 * end. A cut above all names that exist costs one empty page, and the next cut lies lower.
 */
#ifndef MR_WORKER_SPLIT_H
#define MR_WORKER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_SPLIT_MAX 1025 /* a cut with its NUL */

struct mr_alphabet {
    bool seen[256];
};

void mr_alphabet_add(struct mr_alphabet *alphabet, const char *name, size_t length);
/*
 * A name m with last < m < end (end NULL: unbounded), valid UTF-8 if last and end are. false: there is no room for one.
 * m shares with `last` at most its first MR_SPLIT_MAX - 8 bytes.
 */
bool mr_split(const struct mr_alphabet *alphabet, const char *last, const char *end, char m[MR_SPLIT_MAX]);

#endif
