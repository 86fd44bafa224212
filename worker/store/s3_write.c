/* Inserts and deletes of the S3 client, and what they make. Facts: docs/protocols.md, "S3". */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/s3_impl.h"

/* ---- insert ---- */

static void fail_stat(struct s3_call *call, struct s3_answer *answer)
{
    call->done.stat(call->arg, &answer->result, NULL);
    mr_s3_give(call);
}

/* Reports its ETag and what was sent, which the store has compared with a checksum, or the transport has. */
static void on_inserted(struct s3_call *call, struct s3_answer *answer)
{
    struct mr_store_item item;
    bool good = answer->result.code == MR_OK;
    if (good && mr_s3_item(call, &answer->http->headers, call->insert.length, &item) != 0) {
        mr_s3_refuse(call, answer);
        good = false;
    }
    if (good && mr_s3_store(call)->sends_checksums) {
        item.has_crc32c = true;
        item.crc32c = call->insert.crc32c;
    }
    call->done.stat(call->arg, &answer->result, good ? &item : NULL);
    mr_s3_give(call);
}

static int send_insert(struct s3_call *call)
{
    const struct mr_store_insert_request *insert = &call->insert;
    const struct mr_checksum sum = {MR_CHECKSUM_CRC32C, insert->crc32c};
    struct mr_http_request http = {.method = "PUT", .fresh_connection = call->generation_match == MR_STORE_ANY};
    mr_s3_target(call, "");
    mr_s3_line(call, "Content-Type: ", call->head.length ? call->head.data : MR_S3_CONTENT_TYPE);
    mr_s3_match_line(call);
    mr_s3_checksum_line(call, &sum);
    mr_s3_more_lines(call, &mr_s3_store(call)->writes);
    mr_s3_body(call, &http, insert->body, insert->length, false);
    return mr_s3_send(call, &http, on_inserted);
}

struct mr_store_call *mr_s3_insert(struct mr_store *base, const struct mr_store_insert_request *request,
                                   mr_store_stat_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_INSERT, request->name, request->name_length, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    call->insert = *request;
    call->generation_match = request->generation_match;
    if (request->etag && strlen(request->etag) < sizeof call->etag)
        snprintf(call->etag, sizeof call->etag, "%s", request->etag);
    if (request->content_type)
        mr_text_puts(&call->head, request->content_type);
    if (mr_s3_resolve(call, send_insert, fail_stat) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- delete ---- */

void mr_s3_on_removed(struct s3_call *call, struct s3_answer *answer)
{
    call->done.remove(call->arg, &answer->result);
    mr_s3_give(call);
}

/* If the store has no conditions on a delete, that is remembered, and the delete is sent without one. */
static void on_deleted(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_store *store = mr_s3_store(call);
    if (answer->result.status == 501 && call->etag[0] && !store->no_delete_match) {
        store->no_delete_match = true; /* the look-up before it has to suffice */
        if (mr_s3_send_delete(call) == 0)
            return;
        mr_s3_refuse(call, answer);
    }
    mr_s3_on_removed(call, answer);
}

int mr_s3_send_delete(struct s3_call *call)
{
    struct s3_store *store = mr_s3_store(call);
    struct mr_http_request http = {.method = "DELETE",
                                   .fresh_connection = !mr_store_is_generation(call->generation_match)};
    mr_s3_target(call, "");
    if (call->etag[0] && !store->no_delete_match)
        mr_s3_line(call, "If-Match: ", call->etag);
    return mr_s3_send(call, &http, on_deleted);
}

struct mr_store_call *mr_s3_delete(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                   mr_store_delete_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_DELETE, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.remove = done;
    call->generation_match = generation ? generation : MR_STORE_ANY;
    if (mr_s3_resolve(call, mr_s3_send_delete, mr_s3_on_removed) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}

/* ---- what a write makes ---- */

static void hex(const unsigned char *bytes, unsigned count, char *out)
{
    for (unsigned i = 0; i < count; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", bytes[i]);
}

/* The 16 bytes of a part's ETag, "\"0123...\"". false: it is not an MD5 sum. */
static bool unhex(const char *etag, unsigned char out[16])
{
    if (etag[0] == '"')
        etag++;
    for (unsigned i = 0; i < 16; i++) {
        unsigned byte;
        if (strspn(etag, "0123456789abcdefABCDEF") < 2 || sscanf(etag, "%2x", &byte) != 1)
            return false;
        out[i] = (unsigned char)byte;
        etag += 2;
    }
    return etag[0] == 0 || strcmp(etag, "\"") == 0;
}

int mr_s3_etag_of_parts(const struct mr_upload_part *parts, unsigned count, char out[MR_ETAG_SIZE])
{
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    bool good = digest && EVP_DigestInit_ex(digest, EVP_md5(), NULL) == 1;
    for (unsigned i = 0; good && i < count; i++)
        good = unhex(parts[i].etag, sum) && EVP_DigestUpdate(digest, sum, 16) == 1;
    good = good && EVP_DigestFinal_ex(digest, sum, &n) == 1;
    EVP_MD_CTX_free(digest);
    if (!good)
        return -1;
    char text[2 * EVP_MAX_MD_SIZE + 1];
    hex(sum, n, text);
    snprintf(out, MR_ETAG_SIZE, "\"%.32s-%u\"", text, count);
    return 0;
}

uint64_t mr_s3_generation_of(const struct mr_store_made *by)
{
    char etag[MR_ETAG_SIZE];
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (by->parts)
        return mr_s3_etag_of_parts(by->parts, by->count, etag) == 0 ? mr_s3_generation(etag) : 0;
    if (EVP_Digest(by->body ? by->body : "", (size_t)by->length, sum, &n, EVP_md5(), NULL) != 1)
        return 0;
    char text[2 * EVP_MAX_MD_SIZE + 1];
    hex(sum, n, text);
    return mr_s3_generation(text);
}
