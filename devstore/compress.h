/* compress.h - answers that are compressed on the way, as MinIO and many proxies do it. */
#ifndef MR_DEVSTORE_COMPRESS_H
#define MR_DEVSTORE_COMPRESS_H

#include "devstore/request.h"

/* Gives an answer without an object, of 1,000 bytes and more, the Content-Encoding gzip. Without memory it stays as it
 * is. */
void ds_compress(struct ds_reply *reply);

#endif
