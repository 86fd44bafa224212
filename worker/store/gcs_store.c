/* The client of Google Cloud Storage's JSON API as a store: its life, and the table of its operations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/gcs_impl.h"

#define PUBLIC_ENDPOINT "https://storage.googleapis.com"

static void gcs_cancel(struct mr_store_call *base)
{
    struct gcs_call *call = (struct gcs_call *)base;
    if (call->http)
        mr_http_cancel(base->store->http, call->http);
    mr_auth_cancel(mr_gcs_store(call)->auth, &call->waiter);
    mr_gcs_give(call);
}

static void gcs_destroy(struct mr_store *base)
{
    struct gcs_store *store = (struct gcs_store *)base;
    while (store->pool) {
        struct gcs_call *call = store->pool;
        store->pool = call->next_free;
        mr_text_close(&call->name);
        mr_text_close(&call->url);
        mr_text_close(&call->lines);
        mr_text_close(&call->head);
        mr_text_close(&call->tail);
        mr_text_close(&call->permissions);
        free(call);
    }
    mr_auth_destroy(store->auth);
    mr_text_close(&store->objects);
    mr_text_close(&store->user_project);
    mr_text_close(&store->url);
    free(store->endpoint);
    free(store->project);
    free(store);
}

static void gcs_describe(const struct mr_store *base, char *endpoint, size_t endpoint_size, char *credentials,
                         size_t credentials_size)
{
    const struct gcs_store *store = (const struct gcs_store *)(const void *)base;
    snprintf(endpoint, endpoint_size, "%s", store->endpoint);
    mr_auth_describe(store->auth, credentials, credentials_size);
}

static const struct mr_store_ops gcs_ops = {
    .list = mr_gcs_list,
    .get = mr_gcs_get,
    .stat = mr_gcs_stat,
    .insert = mr_gcs_insert,
    .remove = mr_gcs_delete,
    .remove_batch = mr_gcs_delete_batch,
    .compose = mr_gcs_compose,
    .upload_begin = mr_gcs_upload_begin,
    .upload_send = mr_gcs_upload_send,
    .upload_drop = mr_gcs_upload_drop,
    .has_parts = mr_gcs_has_parts,
    .parts_begin = mr_gcs_parts_begin,
    .part_send = mr_gcs_part_send,
    .parts_complete = mr_gcs_parts_complete,
    .parts_abort = mr_gcs_parts_abort,
    .parts_list = mr_gcs_parts_list,
    .bucket = mr_gcs_bucket,
    .permissions = mr_gcs_permissions,
    .describe = gcs_describe,
    .cancel = gcs_cancel,
    .destroy = gcs_destroy,
};

/* mr_uri_endpoint's, http:// for an emulator, as in Google's clients; NULL with mr_error. */
static char *make_endpoint(const char *text, const char *origin, bool is_emulator)
{
    char *endpoint = mr_uri_endpoint(text, is_emulator);
    if (endpoint && !mr_uri_is_endpoint(endpoint, true)) {
        mr_error_set(MR_E_CONFIG, "%s \"%s\" is not of the form http[s]://host[:port]", origin, text);
        free(endpoint);
        return NULL;
    }
    return endpoint;
}

struct mr_store *mr_store_gcs_new(const struct mr_store_options *options)
{
    const char *emulator = getenv("STORAGE_EMULATOR_HOST");
    struct gcs_store *store = calloc(1, sizeof *store);
    if (!store) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        return NULL;
    }
    store->base.ops = &gcs_ops;
    if (!options->bucket || !options->bucket[0]) {
        mr_error_set(MR_E_USAGE, "a gs:// URI needs a bucket");
        goto fail;
    }
    bool from_emulator = !options->endpoint && emulator && emulator[0];
    if (options->endpoint)
        store->endpoint = make_endpoint(options->endpoint, "[gcs] endpoint", false);
    else if (from_emulator)
        store->endpoint = make_endpoint(emulator, "STORAGE_EMULATOR_HOST", true);
    else
        store->endpoint = make_endpoint(PUBLIC_ENDPOINT, "endpoint", false);
    if (!store->endpoint)
        goto fail;
    store->auth = mr_auth_new(options->auth, from_emulator, options->http);
    if (!store->auth) {
        mr_error_append("gs://%s", options->bucket);
        goto fail;
    }
    mr_text_puts(&store->objects, store->endpoint);
    mr_text_puts(&store->objects, "/storage/v1/b/");
    mr_text_put_encoded(&store->objects, options->bucket, strlen(options->bucket));
    mr_text_puts(&store->objects, "/o");
    if (options->user_project && options->user_project[0]) {
        mr_gcs_parameter(&store->user_project, "&userProject=", options->user_project);
        store->project = strdup(options->user_project);
        store->user_project.failed |= !store->project;
    }
    if (store->objects.failed || store->user_project.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        goto fail;
    }
    return &store->base;
fail:
    gcs_destroy(&store->base);
    return NULL;
}
