/* gcs_json.h - parsers of GCS's JSON responses. Any bytes are safe to parse. */
#ifndef MR_WORKER_STORE_GCS_JSON_H
#define MR_WORKER_STORE_GCS_JSON_H

#include <stddef.h>

#include "worker/store/store.h"

struct mr_gcs_page;

/*
 * A page of `GET /storage/v1/b/{bucket}/o` checked against the request: names allowed, in order, in range; sizes and
 * generations within 63 bits. NULL with mr_error (PROTOCOL with what was wrong, NO_MEMORY). The view is valid until
 * mr_gcs_page_destroy.
 */
struct mr_gcs_page *mr_gcs_page_parse(const char *json, size_t length, const struct mr_store_list_request *request);
const struct mr_store_page *mr_gcs_page_view(const struct mr_gcs_page *page);
void mr_gcs_page_destroy(struct mr_gcs_page *page);

/* One object resource. *page keeps what *item points to. 0, or -1 with mr_error. */
int mr_gcs_item_parse(const char *json, size_t length, struct mr_store_item *item, struct mr_gcs_page **page);

/* A bucket resource; what it lacks is "" and 0. *page keeps its strings. 0, or -1 with mr_error. */
int mr_gcs_bucket_parse(const char *json, size_t length, struct mr_store_bucket *bucket, struct mr_gcs_page **page);
/* {"permissions": [...]}: bit i is set if the i-th of names is among them. names: each with its NUL. 0, or -1. */
int mr_gcs_permissions_parse(const char *json, size_t length, const char *names, size_t names_length,
                             unsigned *granted);

/* The server's own words in the body of an error response (JSON, XML or text), printable, one line; may be "". Returns
 * out. */
const char *mr_gcs_error_text(const char *body, size_t length, char *out, size_t size);

#endif
