/*
 * s3_chunked.h - a body of Content-Encoding aws-chunked, decoded as it arrives.
 * https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
 *
 *     SIZE[;chunk-signature=HEX] CRLF BYTES CRLF ... 0[;chunk-signature=HEX] CRLF [NAME:VALUE CRLF ...] CRLF
 */
#ifndef MR_DEVSTORE_S3_CHUNKED_H
#define MR_DEVSTORE_S3_CHUNKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/text.h"

enum ds_s3_chunked_state {
    MR_S3_CHUNK_HEAD,
    MR_S3_CHUNK_DATA,
    MR_S3_CHUNK_END, /* the CRLF after its bytes */
    MR_S3_CHUNK_TRAILER,
    MR_S3_CHUNK_DONE
};

struct ds_s3_chunked {
    bool is_signed; /* each chunk must have its signature */
    /* Called with bytes of the body. 0 or -1. */
    int (*data)(void *cls, const void *bytes, size_t length);
    /* Called after the bytes of each chunk, also the last and empty one, with its signature or "". May be NULL. 0 or
     * -1. */
    int (*chunk)(void *cls, const char *signature);
    void *cls;
    /* Read by the caller once it is done: lines NAME:VALUE, each with a newline. */
    struct ds_text trailer;
    /* Private to the decoder. */
    enum ds_s3_chunked_state state;
    uint64_t left, total;
    bool last;
    char line[1024]; /* one that is not complete yet */
    size_t line_length;
    char signature[65];
};

/* The next bytes as they were sent. 0, or -1: USAGE where the framing is wrong, or what a callback set. */
int ds_s3_chunked_write(struct ds_s3_chunked *chunked, const char *bytes, size_t length);
/* The value of a line of the trailer, malloc'ed, or NULL. */
char *ds_s3_chunked_trailer(const struct ds_s3_chunked *chunked, const char *name);
void ds_s3_chunked_close(struct ds_s3_chunked *chunked);

#endif
