/*
 * split.h - where to cut what is left of a range of names, so that another list worker can take the upper part.
 *
 * Names are bytes; nothing is assumed about digits or letters. What is known is how the names that were listed differ:
 * `branch` holds the bytes at which neighbours differ. A cut is made at a level, a place in the last name that was
 * listed: the name up to there, then a greater byte out of `branch`. Levels of bytes at which names never differed (the
 * letters of "img0001234") are passed over. A cut at a level too low in number lies above all names and costs one
 * request; one too high gives too little away. The supervisor learns which it was and moves the level
 * (supervisor/name_ranges.h).
 */
#ifndef MR_WORKER_LIST_SPLIT_H
#define MR_WORKER_LIST_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/index.h"

#define MR_SPLIT_MAX MR_INDEX_NAME_SIZE /* a cut with its NUL */

struct mr_shape {
    bool branch[256]; /* bytes at which two neighbouring names differ */
    uint32_t deepest; /* bytes that the first and the last name of the last page share */
};

/* The next name, and the one listed before it (NULL: none), both NUL-terminated. */
void mr_shape_add(struct mr_shape *shape, const char *before, const char *name);
/* A page has ended, from its first to its last name. */
void mr_shape_page(struct mr_shape *shape, const char *first, const char *last);

struct mr_split_place {
    const char *first; /* the first name of the range that was listed */
    const char *last;  /* the last one */
    const char *end;   /* of the range; NULL: unbounded */
    size_t prefix;     /* bytes that all names share: the URI's prefix */
    uint64_t level;    /* no cut at a place before this */
};
/*
 * A name m with last < m < end, valid UTF-8 if last and end are; *level: where it differs from `last`. false: no cut
 * seems sensible.
 */
bool mr_split(const struct mr_shape *shape, const struct mr_split_place *place, char m[MR_SPLIT_MAX], uint64_t *level);

#endif
