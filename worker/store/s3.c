/* What the requests of the client of S3 share: calls, signatures, URLs and messages. The requests are in s3_*.c, the
 * store itself in s3_store.c. Facts: docs/protocols.md, "S3"; https://docs.aws.amazon.com/AmazonS3/latest/API/. */
#include "worker/store/s3.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "worker/store/auth_call.h"
#include "worker/store/s3_impl.h"

#define WRITE_PATIENCE 3 /* times the stall timeout: a server takes longer over a write than over a read */
#define EMPTY_PAYLOAD  "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define COMPRESSED                                                                                                 \
    "it came compressed (Content-Encoding: gzip), although Accept-Encoding: identity was sent: what lies between " \
    "here "                                                                                                        \
    "and the store compresses answers; turn that off there"
#define ACCESS_ADVICE                                                                                               \
    "; the caller lacks permission: check the credentials, and that they have s3:GetObject and s3:ListBucket here " \
    "(without the second, S3 says this of an object that does not exist too)"
#define SESSION_ADVICE                                                                                               \
    "; requests to a directory bucket (S3 Express One Zone) are made in a session: check the credentials, and that " \
    "they have s3express:CreateSession here"

uint64_t mr_s3_generation(const char *etag)
{
    if (strncmp(etag, "W/", 2) == 0)
        etag += 2;
    size_t length = strlen(etag);
    if (length >= 2 && etag[0] == '"' && etag[length - 1] == '"') {
        etag++;
        length -= 2;
    }
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)etag[i]) * UINT64_C(0x100000001b3);
    hash = mr_mix64(hash) & INT64_MAX;
    return hash ? hash : 1;
}

/* ---- calls ---- */

struct s3_call *mr_s3_take(struct s3_store *store, enum s3_kind kind, const char *name, size_t name_length, void *arg)
{
    struct s3_call *call = store->pool;
    if (call)
        store->pool = call->next_free;
    else
        call = calloc(1, sizeof *call);
    if (!call) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to s3://%s", store->base.bucket);
        return NULL;
    }
    call->kind = kind;
    call->arg = arg;
    call->http = NULL;
    call->serial = 0;
    call->repaired = 0;
    call->refusal[0] = 0;
    call->generation_match = MR_STORE_ANY;
    call->single = call->owner = NULL;
    call->etag[0] = 0;
    call->sorted = NULL;
    mr_text_clear(&call->name);
    mr_text_clear(&call->head);
    mr_text_add(&call->name, name, name_length);
    mr_store_call_link(&store->base, &call->base);
    return call;
}

static void close_batch(struct s3_batch *batch)
{
    free(batch->names);
    free(batch->each);
    free(batch->answered);
    free(batch->texts);
    mr_text_close(&batch->words);
    memset(batch, 0, sizeof *batch);
}

void mr_s3_give(struct s3_call *call)
{
    struct s3_store *store = mr_s3_store(call);
    mr_store_call_unlink(&call->base);
    if (call->kind == S3_BATCH)
        close_batch(&call->batch);
    call->next_free = store->pool;
    store->pool = call;
}

struct mr_aws_credentials *mr_s3_keys_of(const struct s3_call *call)
{
    const struct s3_store *store = mr_s3_store(call);
    return store->express && call->kind != S3_SESSION ? store->express : store->credentials;
}

/* Whether the request is about the bucket and not about an object in it. */
static bool is_of_bucket(const struct s3_call *call)
{
    return call->kind == S3_BUCKET || call->kind == S3_BATCH || call->kind == S3_UPLOADS || call->kind == S3_SESSION;
}

const char *mr_s3_uri(const struct s3_call *call, char *out, size_t size)
{
    if (is_of_bucket(call))
        return mr_store_uri(call->base.store, out, size, "", 0);
    if (call->kind != S3_LIST)
        return mr_store_uri(call->base.store, out, size, call->name.data, call->name.length);
    const char *prefix = call->list.prefix ? call->list.prefix : "";
    return mr_store_uri(call->base.store, out, size, prefix, strlen(prefix));
}

/* ---- answers ---- */

enum mr_code mr_s3_code(const struct s3_call *call, int status, const char *word)
{
    static const struct {
        const char *word;
        enum mr_code code;
    } words[] = {
        {"RequestTimeout", MR_E_BUSY},
        {"SlowDown", MR_E_BUSY},
        {"InternalError", MR_E_BUSY},
        {"ServiceUnavailable", MR_E_BUSY},
        {"OperationAborted", MR_E_BUSY},
        {"BadDigest", MR_E_CORRUPT},
        {"XAmzContentChecksumMismatch", MR_E_CORRUPT},
        {"XAmzContentSHA256Mismatch", MR_E_CORRUPT},
        {"IncompleteBody", MR_E_NET},
        {"AccessDenied", MR_E_DENIED},
        {"ExpiredToken", MR_E_DENIED},
        {"InvalidToken", MR_E_DENIED},
        {"TokenRefreshRequired", MR_E_DENIED},
        {"AuthorizationHeaderMalformed", MR_E_DENIED},
        {"SignatureDoesNotMatch", MR_E_DENIED},
        {"PreconditionFailed", MR_E_CHANGED},
        {"NoSuchKey", MR_E_NOT_FOUND},
        {"NoSuchBucket", MR_E_NOT_FOUND},
        {"NoSuchUpload", MR_E_NOT_FOUND},
        {"NotImplemented", MR_E_PROTOCOL},
        {"MethodNotAllowed", MR_E_PROTOCOL},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0)
            return words[i].code;
    if (status / 100 == 2)
        return MR_OK;
    switch (status) {
    case 400:
        return MR_E_USAGE;
    case 401:
    case 403:
        return MR_E_DENIED;
    case 404:
        return MR_E_NOT_FOUND;
    case 409: /* another write of the same name; an upload has to start over then */
        return call->kind == S3_COMPLETE ? MR_E_CHANGED : MR_E_BUSY;
    case 412:
    case 416: /* the object is shorter than the requested range */
        return MR_E_CHANGED;
    case 408:
    case 429:
        return MR_E_BUSY;
    default: /* 501, 505: not implemented, and will not be at the next attempt */
        return status / 100 == 5 && status != 501 && status != 505 ? MR_E_BUSY : MR_E_PROTOCOL;
    }
}

/* The remedy for one of S3's error codes; "": none is known. */
static const char *advice_of_word(const char *word)
{
    static const struct {
        const char *word, *advice;
    } all[] = {
        {"ExpiredToken", "; the session token has expired: get new credentials (aws sso login, or whatever made them)"},
        {"InvalidToken", "; the session token is damaged, or not of these keys"},
        {"InvalidAccessKeyId", "; no such access key is known there: check the credentials and the endpoint"},
        {"SignatureDoesNotMatch", "; the secret key is not that of the access key, or a proxy changes requests"},
        {"RequestTimeTooSkewed", "; this machine's clock is wrong: set it by NTP (timedatectl set-ntp true)"},
        {"AuthorizationHeaderMalformed", "; the region is not the bucket's: set [s3] region"},
        {"PermanentRedirect", "; the bucket is not at this endpoint: set [s3] region, or another endpoint"},
        {"InvalidObjectState", "; it is archived: restore it, or leave its storage class out ([list] exclude_classes)"},
        {"NoSuchBucket", "; check the bucket's name and the endpoint"},
        {"SlowDown", "; fewer [fetch] connections or workers may help, and names that spread over prefixes"},
        {"EntityTooSmall", "; parts of an upload have 5 MiB at least"},
        {"KMS.DisabledException", "; the key that it is encrypted with is disabled"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(word, all[i].word) == 0)
            return all[i].advice;
    return "";
}

static const char *advice_of_write(const struct s3_call *call, int status)
{
    switch (status) {
    case 401:
    case 403:
        return call->kind == S3_DELETE || call->kind == S3_BATCH
                   ? "; the caller lacks permission: check the credentials, and that they have s3:DeleteObject here"
                   : "; the caller lacks permission: check the credentials, and that they have s3:PutObject here";
    case 404:
        return "; check the bucket's and the object's name";
    case 409:
        return "; another writer is writing it at this moment";
    case 412:
        return call->generation_match == 0 ? "; it exists already" : "; another version is there by now";
    default:
        return status / 100 == 3 ? "; the answer names no region to go to: check the endpoint" : "";
    }
}

static const char *advice_of_read(const struct s3_call *call, int status)
{
    switch (status) {
    case 401:
    case 403:
        return call->kind == S3_SESSION ? SESSION_ADVICE : ACCESS_ADVICE;
    case 404:
        return "; check the bucket's and the object's name";
    case 416:
        return "; it is shorter than it was when it was listed";
    case 429:
    case 503:
        return "; fewer [fetch] connections or workers may help";
    default:
        return status / 100 == 3 ? "; the answer names no region to go to: check the endpoint" : "";
    }
}

/* <Code> of an error response, and its message; "" if it has none. */
static void read_error(const struct mr_http_result *http, char *word, size_t word_size, char *text, size_t text_size)
{
    word[0] = text[0] = 0;
    if (http->headers.gzip && http->body_length) {
        snprintf(text, text_size, COMPRESSED);
        return;
    }
    struct mr_xml *xml = http->body_length ? mr_xml_parse(http->body, http->body_length) : NULL;
    if (xml && strcmp(mr_xml_root(xml), "Error") == 0) {
        snprintf(word, word_size, "%s", mr_xml_text(xml, "Code"));
        snprintf(text, text_size, "%s: %s", word, mr_xml_text(xml, "Message"));
    } else if (!xml && http->body_length) {
        mr_text_quote(text, text_size, http->body, http->body_length < 200 ? http->body_length : 200);
    }
    mr_xml_destroy(xml);
}

/* Whether the object to be replaced no longer exists. A request that replaces a version looks up its ETag first and
 * then sends it to the store: either gives a 404 then. */
static bool replaces_what_is_gone(const struct s3_call *call, const struct s3_answer *answer)
{
    return answer->result.code == MR_E_NOT_FOUND && (call->kind == S3_INSERT || call->kind == S3_COMPLETE) &&
           mr_store_is_generation(call->generation_match) && strcmp(answer->word, "NoSuchUpload") != 0 &&
           strcmp(answer->word, "NoSuchBucket") != 0;
}

void mr_s3_explain(const struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_result *http = answer->http;
    struct mr_store_result *result = &answer->result;
    *result =
        (struct mr_store_result){.code = http->code, .text = "", .status = http->status, .active_ns = http->active_ns};
    answer->word[0] = 0;
    char uri[400];
    if (http->code != MR_OK) {
        snprintf(answer->text, sizeof answer->text, "%s: %s", mr_s3_uri(call, uri, sizeof uri), http->text);
        result->text = answer->text;
        result->not_sent = http->sent == 0;
        return;
    }
    char words[400] = "";
    if (http->status / 100 != 2)
        read_error(http, answer->word, sizeof answer->word, words, sizeof words);
    result->code = mr_s3_code(call, http->status, answer->word);
    if (result->code == MR_OK)
        return;
    if (result->code == MR_E_CHANGED && http->status == 412 && call->kind >= S3_INSERT && call->generation_match == 0)
        result->code = MR_E_EXISTS;
    result->retry_after_ms = http->headers.retry_after_ms;
    result->is_named = answer->word[0];
    result->rate_limited = http->status == 429 || strcmp(answer->word, "SlowDown") == 0;
    result->text = answer->text;
    if (result->code == MR_E_CORRUPT) {
        snprintf(answer->text, sizeof answer->text,
                 "%s: the store has got other bytes than those which were sent: what lies between here and the store "
                 "damages data (HTTP status %d: %s)",
                 mr_s3_uri(call, uri, sizeof uri), http->status, words);
        return;
    }
    const char *advice = advice_of_word(answer->word);
    if (replaces_what_is_gone(call, answer)) {
        result->code = MR_E_CHANGED;
        advice = "; it was to be replaced, and has been removed meanwhile by another writer";
    }
    if (!advice[0])
        advice = call->kind >= S3_INSERT ? advice_of_write(call, http->status) : advice_of_read(call, http->status);
    snprintf(answer->text, sizeof answer->text, "%s: %s%sHTTP status %d%s%s", mr_s3_uri(call, uri, sizeof uri), words,
             words[0] ? " (" : "", http->status, words[0] ? ")" : "", advice);
}

void mr_s3_refuse(const struct s3_call *call, struct s3_answer *answer)
{
    answer->result.code = mr_error_code();
    char uri[400];
    snprintf(answer->text, sizeof answer->text, "%s: %s", mr_s3_uri(call, uri, sizeof uri), mr_error_text());
    answer->result.text = answer->text;
}

struct mr_xml *mr_s3_xml(struct s3_call *call, struct s3_answer *answer, const char *root)
{
    const struct mr_http_result *http = answer->http;
    const char *at = http->body;
    size_t length = http->body_length;
    for (; length > 0 && strchr(" \t\r\n", *at); at++) /* it kept the connection alive; XML cannot begin with it */
        length--;
    struct mr_xml *xml = http->headers.gzip ? NULL : mr_xml_parse(at, length);
    if (xml && strcmp(mr_xml_root(xml), root) == 0)
        return xml;
    if (http->headers.gzip)
        mr_error_set(MR_E_PROTOCOL, COMPRESSED);
    if (xml && strcmp(mr_xml_root(xml), "Error") == 0) { /* in a 200 */
        const char *word = mr_xml_text(xml, "Code");
        enum mr_code code = mr_s3_code(call, 200, word);
        if (strcmp(word, "PreconditionFailed") == 0 && call->generation_match == 0)
            code = MR_E_EXISTS;
        mr_error_set(code == MR_OK ? MR_E_PROTOCOL : code, "%.60s: %.300s%s", word, mr_xml_text(xml, "Message"),
                     advice_of_word(word));
    } else if (xml) {
        mr_error_set(MR_E_PROTOCOL, "%s was expected, and %.60s came", root, mr_xml_root(xml));
    }
    mr_s3_refuse(call, answer);
    mr_xml_destroy(xml);
    return NULL;
}

int mr_s3_item(const struct s3_call *call, const struct mr_http_headers *headers, uint64_t size,
               struct mr_store_item *item)
{
    if (!headers->etag[0] || strlen(headers->etag) + 1 >= sizeof headers->etag) {
        mr_error_set(MR_E_PROTOCOL, "an object without a usable ETag");
        return -1;
    }
    *item = (struct mr_store_item){
        .name = call->name.data,
        .name_length = call->name.length,
        .size = size,
        .generation = mr_s3_generation(headers->etag),
        .crc32c = headers->checksum.kind == MR_CHECKSUM_CRC32C ? (uint32_t)headers->checksum.value : 0,
        .has_crc32c = headers->checksum.kind == MR_CHECKSUM_CRC32C,
        .storage_class = "",
        .etag = headers->etag,
    };
    return 0;
}

/* ---- requests ---- */

void mr_s3_target(struct s3_call *call, const char *query)
{
    mr_text_clear(&call->target);
    mr_text_clear(&call->lines);
    call->line_count = 0;
    snprintf(call->payload, sizeof call->payload, EMPTY_PAYLOAD);
    mr_text_add(&call->target, "/", 1);
    if (call->kind != S3_LIST && !is_of_bucket(call))
        mr_text_put_path(&call->target, call->name.data, call->name.length);
    mr_text_puts(&call->target, query);
}

void mr_s3_parameter(struct s3_call *call, const char *key, const char *value)
{
    if (!value)
        return;
    mr_text_puts(&call->target, key);
    mr_text_put_encoded(&call->target, value, strlen(value));
}

void mr_s3_line(struct s3_call *call, const char *name, const char *value)
{
    mr_text_puts(&call->lines, name);
    mr_text_add(&call->lines, value, strlen(value) + 1);
    call->line_count++;
}

void mr_s3_more_lines(struct s3_call *call, const struct mr_text *lines)
{
    for (size_t at = 0; at < lines->length; at += strlen(lines->data + at) + 1)
        mr_s3_line(call, lines->data + at, "");
}

void mr_s3_match_line(struct s3_call *call)
{
    if (call->generation_match == 0)
        mr_s3_line(call, "If-None-Match: ", "*");
    else if (call->generation_match != MR_STORE_ANY && call->etag[0])
        mr_s3_line(call, "If-Match: ", call->etag);
}

void mr_s3_checksum_line(struct s3_call *call, const struct mr_checksum *sum)
{
    char text[MR_CHECKSUM_TEXT_SIZE];
    if (!mr_s3_store(call)->sends_checksums)
        return;
    mr_s3_line(call, sum->kind == MR_CHECKSUM_CRC32C ? "x-amz-checksum-crc32c: " : "x-amz-checksum-crc64nvme: ",
               mr_checksum_to_base64(sum, text));
}

void mr_s3_body(struct s3_call *call, struct mr_http_request *request, const void *data, uint64_t length,
                bool signed_data)
{
    call->body[0] = (struct mr_http_piece){data, length};
    request->body = call->body;
    request->body_count = 1;
    size_t size = (size_t)length;
    if (mr_s3_store(call)->is_tls && !signed_data)
        snprintf(call->payload, sizeof call->payload, "UNSIGNED-PAYLOAD");
    else if (length > 0 && mr_aws_payload(&data, &size, 1, call->payload) != 0)
        call->lines.failed = true; /* mr_s3_send reports it */
}

static void s3_on_answer(void *arg, const struct mr_http_result *http);

/* Whether a line has to be signed, besides the signer's own. */
static bool is_signed(const char *line)
{
    return strncasecmp(line, "x-amz-", 6) == 0 || strncasecmp(line, "content-", 8) == 0;
}

/* Leaves the whole Authorization line in store->authorization, until the next request is signed. -1 with mr_error. */
static int s3_sign(struct s3_call *call, const struct mr_aws_keys *keys, const char *const *lines, unsigned count,
                   const char *date)
{
    struct s3_store *store = mr_s3_store(call);
    const char *own[MR_HTTP_MAX_HEADERS];
    unsigned own_count = 0;
    for (unsigned i = 0; i < count; i++)
        if (is_signed(lines[i]))
            own[own_count++] = lines[i];
    const struct mr_aws_sign request = {
        .access_key_id = keys->access_key_id,
        .secret_access_key = keys->secret_access_key,
        .region = store->region,
        .service = store->zone[0] ? "s3express" : "s3",
        .method = call->request.method,
        .url = store->url.data,
        .payload = call->payload,
        .lines = own,
        .line_count = own_count,
        .date = date,
        .signer = store->signer,
    };
    mr_text_clear(&store->authorization);
    mr_text_puts(&store->authorization, "Authorization: ");
    return mr_aws_sign(&store->authorization, &request);
}

static unsigned add_lines(const char **lines, unsigned count, const struct mr_text *from)
{
    for (size_t at = 0; at < from->length && count < MR_HTTP_MAX_HEADERS; at += strlen(from->data + at) + 1)
        lines[count++] = from->data + at;
    return count;
}

/* Sends call->request, signed now. 0, or -1 with mr_error. */
static int send_with(struct s3_call *call, const struct mr_aws_keys *keys)
{
    struct s3_store *store = mr_s3_store(call);
    const char *lines[MR_HTTP_MAX_HEADERS];
    char date[MR_AWS_DATE_SIZE], date_line[40], payload_line[MR_AWS_PAYLOAD_SIZE + 24];
    struct mr_text token = {0};
    struct mr_http_request request = call->request;
    unsigned count = add_lines(lines, 0, &call->lines);
    count = add_lines(lines, count, &store->always);
    mr_text_clear(&store->url);
    mr_text_add(&store->url, store->origin.data, store->origin.length);
    mr_text_add(&store->url, call->target.data, call->target.length);
    int rc = store->url.failed ? -1 : 0;
    if (rc != 0)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to s3://%s", store->base.bucket);
    if (rc == 0 && keys->access_key_id && keys->session_token) {
        mr_auth_text_reserve(&token, strlen(keys->session_token) + 32);
        mr_text_puts(&token,
                     mr_s3_keys_of(call) == store->express ? "x-amz-s3session-token: " : "x-amz-security-token: ");
        mr_text_puts(&token, keys->session_token);
        lines[count++] = token.data;
        rc = token.failed ? -1 : 0;
        if (rc != 0)
            mr_error_set(MR_E_NO_MEMORY, "no memory for a request to s3://%s", store->base.bucket);
    }
    if (rc == 0 && keys->access_key_id) {
        mr_aws_sign_date_at(store->clock_off_s, date);
        snprintf(payload_line, sizeof payload_line, "x-amz-content-sha256: %s", call->payload);
        lines[count++] = payload_line;
        rc = s3_sign(call, keys, lines, count, date);
        snprintf(date_line, sizeof date_line, "x-amz-date: %s", date);
        lines[count++] = date_line;
        lines[count++] = store->authorization.data;
    }
    request.url = store->url.data;
    request.done = s3_on_answer;
    request.headers = lines;
    request.header_count = count;
    call->serial = keys->serial;
    call->place = store->place;
    call->clock_off_s = store->clock_off_s;
    if (rc == 0)
        call->http = mr_http_start(store->base.http, &request);
    mr_auth_text_wipe(&token);
    return rc == 0 && call->http ? 0 : -1;
}

/* `answered` gives the call back or sends another request: the call must not be touched afterwards. */
static void deliver(struct s3_call *call, const struct mr_http_result *http)
{
    struct s3_answer answer;
    answer.http = http;
    mr_s3_explain(call, &answer);
    call->answered(call, &answer);
}

/* Copies text first: it may be mr_error's. As deliver otherwise. */
static void s3_fail(struct s3_call *call, enum mr_code code, const char *text)
{
    struct mr_http_result result = {.code = code, .text = text, .body = "", .location = ""};
    char copy[700];
    snprintf(copy, sizeof copy, "%s", text);
    result.text = copy;
    deliver(call, &result);
}

static void on_keys(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    struct s3_call *call = MR_CONTAINER_OF(waiter, s3_call, waiter);
    struct mr_aws_keys keys;
    bool has_keys = mr_aws_credentials_get(mr_s3_keys_of(call), &keys);
    if (code != MR_OK && (call->refusal[0] || !has_keys)) { /* not if they were refused to other calls alone */
        char words[700];
        snprintf(words, sizeof words, "%s%s%s", call->refusal, call->refusal[0] ? ": " : "", text);
        s3_fail(call, code, words);
    } else if (!has_keys) { /* they expired at once */
        mr_aws_credentials_wait(mr_s3_keys_of(call), waiter);
    } else if (send_with(call, &keys) != 0) {
        s3_fail(call, mr_error_code(), mr_error_text());
    }
}

/* Sends it, the first time or after a repair, at once or when there are keys. 0, or -1 with mr_error. */
static int send_now(struct s3_call *call)
{
    struct mr_aws_credentials *credentials = mr_s3_keys_of(call);
    struct mr_aws_keys keys;
    if (mr_aws_credentials_get(credentials, &keys))
        return send_with(call, &keys);
    mr_aws_credentials_wait(credentials, &call->waiter);
    return 0;
}

/* A response to HEAD has no body: one to GET says why the request was refused. */
static bool may_ask_why(const struct s3_call *call, const struct mr_http_result *http)
{
    int status = http->status;
    return strcmp(call->request.method, "HEAD") == 0 && !(call->repaired & S3_REPAIR_TEXT) &&
           (status == 400 || status == 401 || status == 403 || status / 100 == 3);
}

/* An empty object has no byte to get: what has been put right is asked by HEAD again. */
static void set_asks_why(struct s3_call *call, bool asks)
{
    struct mr_http_request *request = &call->request;
    call->asks_why = asks;
    request->method = asks ? "GET" : "HEAD";
    request->has_range = asks;
    request->range_first = request->range_last = 0;
    request->collect_max = 1 << 20;
    call->repaired = asks ? call->repaired | S3_REPAIR_TEXT : call->repaired & ~(unsigned)S3_REPAIR_TEXT;
}

/* Sends the request again if what was wrong could be put right, or to learn why a HEAD was refused; else delivers. */
static void s3_on_answer(void *arg, const struct mr_http_result *http)
{
    struct s3_call *call = arg;
    call->http = NULL;
    if (http->code != MR_OK || http->status / 100 == 2) {
        deliver(call, http);
        return;
    }
    char word[64], text[8];
    read_error(http, word, sizeof word, text, sizeof text);
    enum s3_repair repair = mr_s3_repair(call, http, word);
    bool again = repair != S3_REPAIR_NONE;
    if (repair == S3_REPAIR_KEYS)
        mr_aws_credentials_refused(mr_s3_keys_of(call), call->serial);
    if (!again && may_ask_why(call, http)) {
        set_asks_why(call, true);
        again = true;
    } else if (again && call->asks_why) {
        set_asks_why(call, false);
    }
    if (!again)
        deliver(call, http);
    else if (send_now(call) != 0)
        s3_fail(call, mr_error_code(), mr_error_text());
}

int mr_s3_send(struct s3_call *call, struct mr_http_request *request, s3_answered_fn *answered)
{
    struct s3_store *store = mr_s3_store(call);
    if (!request->method)
        request->method = "GET";
    if (!request->stall_timeout_ms)
        request->stall_timeout_ms = store->base.stall_timeout_ms;
    if (call->kind >= S3_INSERT && strcmp(request->method, "HEAD") != 0) {
        request->once = true; /* whether to repeat it is a transfer's decision */
        request->stall_timeout_ms *= WRITE_PATIENCE;
    }
    call->refusal[0] = 0;
    request->arg = call;
    request->identity = true; /* with gzip, MinIO and many proxies compress listings and errors */
    call->request = *request;
    call->asks_why = false;
    call->answered = answered;
    call->waiter.ready = on_keys;
    if (call->name.failed || call->target.failed || call->lines.failed || call->head.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to s3://%s", store->base.bucket);
        return -1;
    }
    return send_now(call);
}

struct mr_store_call *mr_s3_start(struct s3_call *call, struct mr_http_request *request, s3_answered_fn *answered)
{
    if (mr_s3_send(call, request, answered) == 0)
        return &call->base;
    mr_s3_give(call);
    return NULL;
}
