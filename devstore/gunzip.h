/* gunzip.h - an object stored with Content-Encoding: gzip, for a client that does not accept gzip. */
#ifndef MR_DEVSTORE_GUNZIP_H
#define MR_DEVSTORE_GUNZIP_H

#include <stdint.h>

#include "devstore/object.h"
#include "devstore/text.h"

/* Appends the object's decompressed bytes, at most `most`. fd: as for ds_object_read. 0, or -1 (IO: not gzip, too
 * many). */
int ds_gunzip(const struct ds_object *object, int fd, uint64_t most, struct ds_text *out);

#endif
