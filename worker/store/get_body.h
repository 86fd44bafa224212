/* get_body.h - the response to a get over HTTP, received into the caller's memory, its range and length checked. Only
 * the clients of stores (gcs_read.c, s3_read.c) include it. */
#ifndef MR_WORKER_STORE_GET_BODY_H
#define MR_WORKER_STORE_GET_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/store/store_impl.h"

struct mr_get_body {
    struct mr_store_get_request get; /* its strings are not copied */
    struct mr_store_got got;
    bool head_checked, whole_came; /* whole_came: instead of the requested range */
    bool more_follows;             /* bytes of it follow the range, or may follow it */
    uint64_t skip;                 /* bytes of it before the range, still to come */
};

void mr_get_body_init(struct mr_get_body *body, const struct mr_store_get_request *request);
/* After the client's own checks of the header: checks that the requested bytes are coming. A whole object in place of a
 * range is accepted, with one warning per store. uri: for messages. 0, or -1 with mr_error. */
int mr_get_body_head(struct mr_get_body *body, struct mr_store *store, const char *uri, int status,
                     const struct mr_http_headers *headers);
/* Takes received bytes, for a sink: 0, 1 (no more are needed), or -1 with mr_error. arg: of progress. */
int mr_get_body_take(struct mr_get_body *body, void *arg, const void *data, size_t length);
/* Where the next bytes belong, for a room: NULL if that is not known, or none are wanted. */
void *mr_get_body_room(const struct mr_get_body *body, size_t *length);
/* The response has ended. 0, or -1 with mr_error (NET) if bytes are missing. */
int mr_get_body_end(const struct mr_get_body *body);

#endif
