/* names.h - an explicit list of objects: one URI a line, all of one bucket, made ascending and unique. */
#ifndef MR_WORKER_LIST_NAMES_H
#define MR_WORKER_LIST_NAMES_H

#include <stddef.h>

#include "base/uri.h"

struct mr_names {
    char **names; /* object names without the bucket, ascending in byte order */
    size_t count;
};

/* Reads fd from offset 0 to its end. 0, or -1: USAGE names the line that is no URI of this scheme and bucket. */
int mr_names_init(struct mr_names *names, int fd, enum mr_scheme scheme, const char *bucket);
void mr_names_close(struct mr_names *names);

#endif
