/*
 * multipart.h - the parser of a batch's response: multipart/mixed of application/http. Any bytes are safe to parse.
 *
 * https://cloud.google.com/storage/docs/batch: each part has a status, header lines and a body of its own, and the
 * Content-ID of its call with "response-" in front; the parts may come in any order.
 */
#ifndef MR_WORKER_STORE_MULTIPART_H
#define MR_WORKER_STORE_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/store/http.h"

struct mr_multipart {
    const char *at, *end;
    const char *delimiter; /* "--boundary", of the text's first line that begins so */
    size_t delimiter_length;
};

struct mr_multipart_part {
    long id;    /* the number at the end of its Content-ID; -1: none */
    int status; /* 0: not an HTTP response */
    struct mr_http_headers headers;
    const char *body; /* within the text */
    size_t body_length;
};

/* The text must outlive it. 0, or -1 with mr_error (PROTOCOL) if it has no delimiter. */
int mr_multipart_init(struct mr_multipart *multipart, const char *text, size_t length);
/* true and the next part; false: there is none, though the text may have been cut off. */
bool mr_multipart_next(struct mr_multipart *multipart, struct mr_multipart_part *part);

#endif
