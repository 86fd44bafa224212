/* What a bucket is, and what the caller may do there. https://cloud.google.com/storage/docs/json_api/v1/buckets. */
#include <stdio.h>
#include <string.h>

#include "worker/store/gcs_impl.h"

/* ".../b/bucket" */
static void bucket_url(struct gcs_store *store, const char *rest)
{
    mr_text_clear(&store->url);
    mr_text_add(&store->url, store->objects.data, store->objects.length - 2); /* without "/o" */
    mr_text_puts(&store->url, rest);
}

static void on_bucket(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_bucket bucket;
    struct mr_gcs_page *page = NULL;
    if (answer->result.code == MR_OK && mr_gcs_bucket_parse(http->body, http->body_length, &bucket, &page) != 0)
        mr_gcs_refuse(call, answer);
    call->done.bucket(call->arg, &answer->result, page ? &bucket : NULL);
    mr_gcs_page_destroy(page);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_bucket(struct mr_store *base, mr_store_bucket_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_BUCKET, arg);
    if (!call)
        return NULL;
    call->done.bucket = done;
    bucket_url(store, "?projection=noAcl");
    return mr_gcs_start(call, &(struct mr_http_request){0}, on_bucket);
}

static void on_permissions(struct gcs_call *call, struct gcs_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    unsigned granted = 0;
    if (answer->result.code == MR_OK && mr_gcs_permissions_parse(http->body, http->body_length, call->permissions.data,
                                                                 call->permissions.length, &granted) != 0)
        mr_gcs_refuse(call, answer);
    call->done.permissions(call->arg, &answer->result, answer->result.code == MR_OK ? granted : 0);
    mr_gcs_give(call);
}

struct mr_store_call *mr_gcs_permissions(struct mr_store *base, const char *const *names, unsigned count,
                                         mr_store_permissions_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_BUCKET, arg);
    if (!call)
        return NULL;
    call->done.permissions = done;
    bucket_url(store, "/iam/testPermissions");
    mr_text_clear(&call->permissions);
    for (unsigned i = 0; i < count; i++) {
        mr_gcs_parameter(&store->url, i ? "&permissions=" : "?permissions=", names[i]);
        mr_text_add(&call->permissions, names[i], strlen(names[i]) + 1);
    }
    if (call->permissions.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to gs://%s", base->bucket);
        mr_gcs_give(call);
        return NULL;
    }
    return mr_gcs_start(call, &(struct mr_http_request){0}, on_permissions);
}
