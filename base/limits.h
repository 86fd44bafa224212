/* limits.h - sizes that the store clients and the shared memory must agree on. */
#ifndef MR_BASE_LIMITS_H
#define MR_BASE_LIMITS_H

/* An ETag or another name for a version of an object, with its NUL. Longer ones are refused. */
#define MR_ETAG_SIZE 96

#endif
