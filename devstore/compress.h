/* compress.h - answers that are compressed for transfer, as MinIO and many proxies do. */
#ifndef MR_DEVSTORE_COMPRESS_H
#define MR_DEVSTORE_COMPRESS_H

#include "devstore/request.h"

/* Compresses an answer of 1,000 bytes or more that sends no object (Content-Encoding: gzip). Without memory it stays as
 * it is. */
void ds_compress(struct ds_reply *reply);

#endif
