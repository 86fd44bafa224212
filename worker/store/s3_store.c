/* The client of S3 as a store: its life, the header lines that its configuration requires, the table of its
 * operations. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/auth_call.h"
#include "worker/store/s3_impl.h"

#define CUSTOMER_KEY 32 /* bytes of an SSE-C key */

/* A batch's single delete is cancelled with it. */
static void s3_cancel(struct mr_store_call *base)
{
    struct s3_call *call = (struct s3_call *)base;
    if (call->single)
        s3_cancel(&call->single->base);
    if (call->owner)
        call->owner->single = NULL;
    if (call->http)
        mr_http_cancel(base->store->http, call->http);
    mr_aws_credentials_cancel(mr_s3_keys_of(call), &call->waiter);
    mr_http_timer_stop(base->store->http, &call->timer);
    if (call->sorted)
        mr_s3_sorted_leave(call);
    if (call->kind == S3_SESSION)
        mr_s3_session_forget(call);
    mr_s3_give(call);
}

static void s3_destroy(struct mr_store *base)
{
    struct s3_store *store = (struct s3_store *)base;
    mr_aws_credentials_destroy(store->express); /* it may return a call to the pool */
    mr_s3_sorted_close(store);
    while (store->pool) {
        struct s3_call *call = store->pool;
        store->pool = call->next_free;
        mr_text_close(&call->target);
        mr_auth_text_wipe(&call->lines); /* keys of encryption */
        mr_text_close(&call->name);
        mr_text_close(&call->head);
        mr_text_close(&call->id);
        mr_text_close(&call->session);
        free(call);
    }
    mr_s3_sessions_close(store);
    mr_aws_credentials_destroy(store->credentials);
    mr_aws_signer_destroy(store->signer);
    mr_text_close(&store->origin);
    mr_text_close(&store->always);
    mr_text_close(&store->of_session);
    mr_auth_text_wipe(&store->reads);
    mr_auth_text_wipe(&store->writes);
    mr_text_close(&store->url);
    mr_text_close(&store->authorization);
    free(store->endpoint);
    free(store->region);
    free(store);
}

static void s3_describe(const struct mr_store *base, char *endpoint, size_t endpoint_size, char *credentials,
                        size_t credentials_size)
{
    const struct s3_store *store = (const struct s3_store *)(const void *)base;
    mr_s3_service(store, endpoint, endpoint_size);
    mr_aws_credentials_describe(store->credentials, credentials, credentials_size);
}

static const struct mr_store_ops s3_ops = {
    .list = mr_s3_list,
    .get = mr_s3_get,
    .stat = mr_s3_stat,
    .insert = mr_s3_insert,
    .remove = mr_s3_delete,
    .remove_batch = mr_s3_delete_batch,
    .upload_begin = mr_s3_upload_begin,
    .upload_send = mr_s3_upload_send,
    .upload_drop = mr_s3_upload_drop,
    .has_parts = mr_s3_has_parts,
    .parts_begin = mr_s3_parts_begin,
    .part_send = mr_s3_part_send,
    .parts_complete = mr_s3_parts_complete,
    .parts_abort = mr_s3_parts_abort,
    .parts_list = mr_s3_parts_list,
    .bucket = mr_s3_bucket,
    .made = mr_s3_made,
    .describe = s3_describe,
    .cancel = s3_cancel,
    .destroy = s3_destroy,
};

static void add_line(struct mr_text *to, const char *name, const char *value)
{
    mr_text_puts(to, name);
    mr_text_add(to, value, strlen(value) + 1);
}

/* SSE-C: the key is sent with each request for an object's bytes. 0, or -1 with mr_error. */
static int set_customer_key(struct s3_store *store, const char *path)
{
    struct mr_text key = {0}, encoded = {0};
    unsigned char md5[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int rc = -1;
    mr_auth_text_reserve(&encoded, 128);
    if (mr_auth_text_read(&key, path, CUSTOMER_KEY) != 0 || key.length != CUSTOMER_KEY) {
        mr_error_set(MR_E_CONFIG, "[s3] customer_key_file: \"%s\" is not a readable file of %d bytes", path,
                     CUSTOMER_KEY);
    } else if (!store->is_tls) {
        mr_error_set(MR_E_CONFIG,
                     "[s3] customer_key_file: the key is sent with each request, and the endpoint is http://");
    } else if (EVP_Digest(key.data, key.length, md5, &n, EVP_md5(), NULL) != 1) {
        mr_error_set(MR_E_CONFIG, "[s3] customer_key_file needs MD5, which this machine's OpenSSL does not allow");
    } else {
        struct mr_text *lists[] = {&store->reads, &store->writes};
        for (unsigned i = 0; i < 2; i++) {
            add_line(lists[i], "x-amz-server-side-encryption-customer-algorithm: ", "AES256");
            mr_text_clear(&encoded);
            mr_auth_put_base64(&encoded, key.data, key.length, false);
            add_line(lists[i], "x-amz-server-side-encryption-customer-key: ", encoded.data ? encoded.data : "");
            mr_text_clear(&encoded);
            mr_auth_put_base64(&encoded, md5, n, false);
            add_line(lists[i], "x-amz-server-side-encryption-customer-key-MD5: ", encoded.data ? encoded.data : "");
        }
        rc = 0;
    }
    mr_auth_text_wipe(&key);
    mr_auth_text_wipe(&encoded);
    return rc;
}

/* zone, is_tls and is_aws must be set. -1 with mr_error. */
static int set_lines(struct s3_store *store, const struct mr_s3_options *s3)
{
    static const char *const encryptions[] = {"", "AES256", "aws:kms", "aws:kms:dsse"};
    struct mr_text *encryption = store->zone[0] ? &store->of_session : &store->writes;
    if (s3->requester_pays && !store->zone[0]) /* a directory bucket's readers cannot */
        add_line(&store->always, "x-amz-request-payer: ", "requester");
    if (s3->encryption != MR_S3_ENCRYPTION_NONE)
        add_line(encryption, "x-amz-server-side-encryption: ", encryptions[s3->encryption]);
    if (s3->kms_key_id && s3->kms_key_id[0])
        add_line(encryption, "x-amz-server-side-encryption-aws-kms-key-id: ", s3->kms_key_id);
    if (s3->customer_key_file && s3->customer_key_file[0] && set_customer_key(store, s3->customer_key_file) != 0)
        return -1;
    store->sends_checksums =
        s3->checksums == MR_S3_CHECKSUMS_ALWAYS || (s3->checksums == MR_S3_CHECKSUMS_AUTO && store->is_aws);
    store->asks_checksums = s3->checksums != MR_S3_CHECKSUMS_NEVER;
    if (!store->always.failed && !store->reads.failed && !store->writes.failed && !store->of_session.failed)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
    return -1;
}

struct mr_store *mr_store_s3_new(const struct mr_store_options *options)
{
    static const struct mr_s3_options none;
    const struct mr_s3_options *s3 = options->s3 ? options->s3 : &none;
    struct s3_store *store = calloc(1, sizeof *store);
    if (!store) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        return NULL;
    }
    store->base.ops = &s3_ops;
    struct mr_aws_options aws = {
        .anonymous = options->auth && strcmp(options->auth, "anonymous") == 0,
        .profile = s3->profile && s3->profile[0] ? s3->profile : NULL,
        .region = s3->region,
        .cleartext = s3->cleartext,
    };
    if (!options->bucket || !options->bucket[0]) {
        mr_error_set(MR_E_USAGE, "an s3:// URI needs a bucket");
        goto fail;
    }
    if (mr_s3_place_init(store, options) != 0 || set_lines(store, s3) != 0)
        goto fail;
    store->signer = mr_aws_signer_new();
    store->credentials = store->signer ? mr_aws_credentials_new(&aws, options->http) : NULL;
    if (!store->credentials) {
        mr_error_append("s3://%s", options->bucket);
        goto fail;
    }
    if (store->zone[0] && mr_s3_express_init(store, options) != 0)
        goto fail;
    return &store->base;
fail:
    s3_destroy(&store->base);
    return NULL;
}
