/* gunzip.h - an object stored with Content-Encoding: gzip, for a client that does not take it so. */
#ifndef MR_DEVSTORE_GUNZIP_H
#define MR_DEVSTORE_GUNZIP_H

#include <stdint.h>

#include "devstore/object.h"
#include "devstore/text.h"

/* Appends the object's decompressed bytes, at most `most`. fd: as for mr_object_read. 0, or -1 (IO: not gzip, too
 * many). */
int mr_gunzip(const struct mr_object *object, int fd, uint64_t most, struct mr_text *out);

#endif
