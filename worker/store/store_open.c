/* Which client serves a bucket: the one place that knows all of them. */
#include <stdlib.h>
#include <string.h>

#include "worker/store/store_impl.h"

#define STALL_TIMEOUT_MS 20000 /* gcsfuse's initial read deadline: docs/protocols.md, "Google Cloud Storage" */

struct mr_store *mr_store_open(const struct mr_store_options *options)
{
    struct mr_store *store = NULL;
    switch (options->scheme) {
    case MR_SCHEME_FILE:
        store = mr_store_file_new(options);
        break;
    case MR_SCHEME_GS:
        store = mr_store_gcs_new(options);
        break;
    case MR_SCHEME_S3:
        store = mr_store_s3_new(options);
        break;
    }
    if (!store)
        return NULL;
    store->scheme = options->scheme;
    store->http = options->http;
    store->stall_timeout_ms = options->stall_timeout_ms ? options->stall_timeout_ms : STALL_TIMEOUT_MS;
    const char *bucket = options->bucket ? options->bucket : "";
    mr_uri_root(options->scheme, options->named ? options->named : bucket, store->root);
    store->bucket = strdup(bucket);
    if (!store->bucket) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        mr_store_close(store);
        return NULL;
    }
    return store;
}
