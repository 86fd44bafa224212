/* get_body.h - the answer to a get over HTTP, into the caller's memory: its range and length checked. Only the clients
 * of stores (gcs_read.c, s3_read.c) include it. */
#ifndef MR_WORKER_STORE_GET_BODY_H
#define MR_WORKER_STORE_GET_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/store/store_impl.h"

struct mr_get_body {
    struct mr_store_get_request get; /* its strings are not copied */
    struct mr_store_got got;
    bool head_checked, whole_came; /* whole_came: instead of the range that was asked for */
    bool more_follows;             /* there are bytes of it behind the range, or may be */
    uint64_t skip;                 /* bytes of it before the range, still to come */
};

void mr_get_body_init(struct mr_get_body *body, const struct mr_store_get_request *request);
/*
 * After what the client checks of a head: are the bytes that come those that were asked for? A whole object in place of a
 * range is taken, with a warning once a store. uri: for messages. 0, or -1 with mr_error.
 */
int mr_get_body_head(struct mr_get_body *body, struct mr_store *store, const char *uri, int status,
                     const struct mr_http_headers *headers);
/* Bytes that came, for a sink: 0, 1 (it is enough), or -1 with mr_error. arg: of progress. */
int mr_get_body_take(struct mr_get_body *body, void *arg, const void *data, size_t length);
/* Where the next bytes belong, for a room: NULL where that is not known, or they are not wanted. */
void *mr_get_body_room(const struct mr_get_body *body, size_t *length);
/* The answer has ended. 0, or -1 with mr_error (NET): too early. */
int mr_get_body_end(const struct mr_get_body *body);

#endif
