/*
 * graves.h - what a bucket with soft delete remembers of the objects that were deleted or overwritten: everything but
 * their bytes, until the time of its policy is over. They cannot be restored.
 *
 * Not thread-safe: the bucket's lock guards it.
 */
#ifndef MR_DEVSTORE_GRAVES_H
#define MR_DEVSTORE_GRAVES_H

#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

struct mr_graves {
    struct mr_object **stubs; /* in the order of their deletion */
    size_t n, capacity;
};

void mr_graves_close(struct mr_graves *graves);
/* Remembers the object for so long. Out of memory it is lost: nothing else depends on it. */
void mr_graves_bury(struct mr_graves *graves, struct mr_object *object, int64_t now_us, uint64_t keep_s);
/*
 * Those that are still kept, begin with the prefix, are >= start and, unless end is "", < end: a malloc'ed array of new
 * references, by name and generation. NULL: no memory, or none (*n is 0).
 */
struct mr_object **mr_graves_list(struct mr_graves *graves, int64_t now_us, const char *prefix, const char *start,
                                  const char *end, size_t *n);

#endif
