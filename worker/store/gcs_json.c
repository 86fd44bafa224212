#include "worker/store/gcs_json.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checksum.h"
#include "worker/store/json.h"
#include "worker/store/text.h"

#define NAME_MAX_BYTES 1024 /* https://cloud.google.com/storage/docs/objects#naming */

struct mr_gcs_page {
    char *text; /* a copy of the response; the items point into it */
    struct mr_store_item *items;
    size_t size; /* of items */
    struct mr_store_page view;
};

/* int64 in JSON is a string of digits ("size": "17"); emulators send numbers too. -1: neither, or negative, or over 63
 * bits. */
static int take_u63(struct mr_json *json, uint64_t *number)
{
    enum mr_json_kind kind = mr_json_peek(json);
    if (kind != MR_JSON_STRING && kind != MR_JSON_NUMBER) {
        mr_json_skip(json);
        return -1;
    }
    const char *text;
    size_t length;
    int rc = kind == MR_JSON_STRING ? mr_json_string(json, &text, &length) : mr_json_number(json, &text, &length);
    if (rc != 0 || length == 0)
        return -1;
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || sum > (INT64_MAX - (uint64_t)(text[i] - '0')) / 10)
            return -1;
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    *number = sum;
    return 0;
}

/* -1: bad JSON, which json->error tells, or a value of another kind, which is skipped. */
static int take_string(struct mr_json *json, const char **text)
{
    if (mr_json_peek(json) == MR_JSON_STRING)
        return mr_json_string(json, text, NULL);
    mr_json_skip(json);
    return -1;
}

static int take_crc(struct mr_json *json, struct mr_store_item *item)
{
    const char *text;
    if (take_string(json, &text) != 0 || mr_crc32c_from_base64(text, strlen(text), &item->crc32c) != 0)
        return -1;
    item->has_crc32c = true;
    return 0;
}

/* "2026-01-31T23:59:59.123Z" (RFC 3339). Any other form counts as unknown. */
static int take_time(struct mr_json *json, struct mr_store_item *item)
{
    const char *text = "";
    if (take_string(json, &text) != 0)
        return -1;
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (rest && *rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    item->created_s = rest && strcmp(rest, "Z") == 0 ? (int64_t)timegm(&tm) : 0;
    return 0;
}

/* Takes one value. A bad one leaves its key in *bad, so that the message can name the item as well. */
static void take_field(struct mr_json *json, const char *key, struct mr_store_item *item, bool *has_generation,
                       const char **bad)
{
    int rc;
    if (strcmp(key, "name") == 0) {
        rc = mr_json_peek(json) == MR_JSON_STRING ? mr_json_string(json, &item->name, &item->name_length)
                                                  : mr_json_skip(json);
    } else if (strcmp(key, "size") == 0) {
        rc = take_u63(json, &item->size);
    } else if (strcmp(key, "generation") == 0) {
        rc = take_u63(json, &item->generation);
        *has_generation = true;
    } else if (strcmp(key, "crc32c") == 0) {
        rc = take_crc(json, item);
    } else if (strcmp(key, "storageClass") == 0) {
        rc = take_string(json, &item->storage_class);
    } else if (strcmp(key, "etag") == 0) {
        rc = take_string(json, &item->etag);
    } else if (strcmp(key, "timeCreated") == 0) {
        rc = take_time(json, item);
    } else {
        rc = mr_json_skip(json);
    }
    if (rc != 0)
        *bad = key;
}

/* Sets mr_error from json->error. Always -1. */
static int not_json(const struct mr_json *json)
{
    mr_error_set(MR_E_PROTOCOL, "the answer is not JSON: at byte %zu: %s", (size_t)(json->at - json->begin),
                 json->error);
    return -1;
}

/* Reads the whole item even if a field is bad, so that the message can name it. -1 with mr_error. */
static int take_item(struct mr_json *json, struct mr_store_item *item)
{
    *item = (struct mr_store_item){.storage_class = "", .etag = ""};
    const char *key, *bad = NULL;
    bool has_generation = false;
    if (mr_json_peek(json) != MR_JSON_OBJECT) {
        mr_json_skip(json);
    } else {
        mr_json_enter(json);
        while (mr_json_key(json, &key) > 0)
            take_field(json, key, item, &has_generation, &bad);
    }
    if (json->error)
        return not_json(json);
    if (item->name_length == 0) {
        mr_error_set(MR_E_PROTOCOL, "an item without a name");
        return -1;
    }
    if (!bad && !has_generation)
        bad = "generation"; /* an absent size is 0: Google's JSON leaves out default values */
    if (!bad && item->name_length <= NAME_MAX_BYTES)
        return 0;
    char quoted[200];
    mr_text_quote(quoted, sizeof quoted, item->name, item->name_length);
    if (bad)
        mr_error_set(MR_E_PROTOCOL, "the item \"%s\" has no usable %s", quoted, bad);
    else
        mr_error_set(MR_E_PROTOCOL, "the name \"%s\" has %zu bytes; at most %d are allowed", quoted, item->name_length,
                     NAME_MAX_BYTES);
    return -1;
}

static int gcs_json_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* previous: the name before it, or NULL. -1 with mr_error: out of order, or outside of what was requested. */
static int check_order(const struct mr_store_item *item, const char *previous, size_t previous_length,
                       const struct mr_store_list_request *request)
{
    char quoted[200], other[200];
    const char *name = item->name, *prefix = request->prefix, *start = request->start_offset,
               *end = request->end_offset;
    size_t n = item->name_length;
    if (previous && gcs_json_compare(name, n, previous, previous_length) <= 0) {
        mr_text_quote(other, sizeof other, previous, previous_length);
        mr_error_set(MR_E_PROTOCOL, "the name \"%s\" comes after \"%s\": names must be in byte order, each once",
                     mr_text_quote(quoted, sizeof quoted, name, n), other);
        return -1;
    }
    const char *what = NULL, *against = NULL;
    if (prefix && (n < strlen(prefix) || memcmp(name, prefix, strlen(prefix)) != 0)) {
        what = "prefix";
        against = prefix;
    } else if (start && gcs_json_compare(name, n, start, strlen(start)) < 0) {
        what = "startOffset";
        against = start;
    } else if (end && gcs_json_compare(name, n, end, strlen(end)) >= 0) {
        what = "endOffset";
        against = end;
    }
    if (!what)
        return 0;
    mr_text_quote(other, sizeof other, against, strlen(against));
    mr_error_set(MR_E_PROTOCOL, "the name \"%s\" is outside of what was asked for (%s \"%s\"): the server ignores %s",
                 mr_text_quote(quoted, sizeof quoted, name, n), what, other, what);
    return -1;
}

/* Room for one more item, which the caller counts. NULL with mr_error. */
static struct mr_store_item *next_item(struct mr_gcs_page *page)
{
    if (page->view.count == page->size) {
        size_t size = page->size ? 2 * page->size : 1024;
        struct mr_store_item *items = realloc(page->items, size * sizeof *items);
        if (!items) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a page of %zu objects", size);
            return NULL;
        }
        page->items = items;
        page->size = size;
    }
    return &page->items[page->view.count];
}

static int take_items(struct mr_gcs_page *page, struct mr_json *json, const struct mr_store_list_request *request)
{
    const char *previous = request->after;
    size_t previous_length = previous ? strlen(previous) : 0;
    if (page->items || mr_json_peek(json) != MR_JSON_ARRAY) {
        if (mr_json_skip(json) != 0)
            return not_json(json);
        mr_error_set(MR_E_PROTOCOL, page->items ? "items is there twice" : "items is not an array");
        return -1;
    }
    mr_json_enter(json);
    int rc;
    while ((rc = mr_json_element(json)) > 0) {
        struct mr_store_item *item = next_item(page);
        if (!item || take_item(json, item) != 0 || check_order(item, previous, previous_length, request) != 0)
            return -1;
        previous = item->name;
        previous_length = item->name_length;
        page->view.count++;
    }
    return rc == 0 ? 0 : not_json(json);
}

static int take_token(struct mr_gcs_page *page, struct mr_json *json, const struct mr_store_list_request *request)
{
    const char *token;
    if (take_string(json, &token) != 0) {
        if (json->error)
            return not_json(json);
        mr_error_set(MR_E_PROTOCOL, "nextPageToken is not a string");
        return -1;
    }
    if (token[0] && request->page_token && strcmp(token, request->page_token) == 0) {
        mr_error_set(MR_E_PROTOCOL, "the page token does not change: the listing would never end");
        return -1;
    }
    page->view.next_token = token[0] ? token : NULL;
    return 0;
}

static int take_page(struct mr_gcs_page *page, struct mr_json *json, const struct mr_store_list_request *request)
{
    if (mr_json_peek(json) != MR_JSON_OBJECT) {
        if (mr_json_skip(json) != 0)
            return not_json(json);
        mr_error_set(MR_E_PROTOCOL, "the answer is not a JSON object");
        return -1;
    }
    mr_json_enter(json);
    const char *key;
    int rc;
    while ((rc = mr_json_key(json, &key)) > 0) {
        if (strcmp(key, "items") == 0)
            rc = take_items(page, json, request);
        else if (strcmp(key, "nextPageToken") == 0)
            rc = take_token(page, json, request);
        else
            rc = mr_json_skip(json) == 0 ? 0 : not_json(json);
        if (rc != 0)
            return -1;
    }
    page->view.items = page->items;
    return rc == 0 && mr_json_finish(json) == 0 ? 0 : not_json(json);
}

/* A page with a copy of the response, which *json reads. NULL with mr_error. */
static struct mr_gcs_page *page_new(const char *text, size_t length, struct mr_json *json)
{
    struct mr_gcs_page *page = calloc(1, sizeof *page);
    if (page)
        page->text = malloc(length + 1);
    if (!page || !page->text) {
        free(page);
        mr_error_set(MR_E_NO_MEMORY, "no memory for an answer of %zu bytes", length);
        return NULL;
    }
    memcpy(page->text, text, length);
    mr_json_init(json, page->text, length);
    return page;
}

struct mr_gcs_page *mr_gcs_page_parse(const char *json, size_t length, const struct mr_store_list_request *request)
{
    struct mr_json reader;
    struct mr_gcs_page *page = page_new(json, length, &reader);
    if (page && take_page(page, &reader, request) == 0)
        return page;
    mr_gcs_page_destroy(page);
    return NULL;
}

const struct mr_store_page *mr_gcs_page_view(const struct mr_gcs_page *page)
{
    return &page->view;
}

void mr_gcs_page_destroy(struct mr_gcs_page *page)
{
    if (!page)
        return;
    free(page->text);
    free(page->items);
    free(page);
}

int mr_gcs_item_parse(const char *json, size_t length, struct mr_store_item *item, struct mr_gcs_page **page)
{
    struct mr_json reader;
    *page = page_new(json, length, &reader);
    if (*page && take_item(&reader, item) == 0) {
        if (mr_json_finish(&reader) == 0)
            return 0;
        not_json(&reader);
    }
    mr_gcs_page_destroy(*page);
    *page = NULL;
    return -1;
}

/* ---- buckets ---- */

/* Whether the value is true; anything else counts as false. */
static bool take_flag(struct mr_json *json)
{
    bool is_word = mr_json_peek(json) == MR_JSON_WORD;
    const char *at = json->at;
    return mr_json_skip(json) == 0 && is_word && *at == 't';
}

/* The member `wanted` of an object: its flag, or, if number is not NULL, its number. */
static bool take_inner(struct mr_json *json, const char *wanted, uint64_t *number)
{
    if (mr_json_peek(json) != MR_JSON_OBJECT) {
        mr_json_skip(json);
        return false;
    }
    mr_json_enter(json);
    const char *key;
    bool flag = false;
    while (mr_json_key(json, &key) > 0) {
        if (strcmp(key, wanted) != 0)
            mr_json_skip(json);
        else if (number)
            take_u63(json, number);
        else
            flag = take_flag(json);
    }
    return flag;
}

/* A value of an unexpected type counts as absent. */
static void take_bucket_field(struct mr_json *json, const char *key, struct mr_store_bucket *bucket)
{
    if (strcmp(key, "storageClass") == 0)
        take_string(json, &bucket->storage_class);
    else if (strcmp(key, "location") == 0)
        take_string(json, &bucket->location);
    else if (strcmp(key, "locationType") == 0)
        take_string(json, &bucket->location_type);
    else if (strcmp(key, "hierarchicalNamespace") == 0)
        bucket->hierarchical = take_inner(json, "enabled", NULL);
    else if (strcmp(key, "versioning") == 0)
        bucket->versioning = take_inner(json, "enabled", NULL);
    else if (strcmp(key, "autoclass") == 0)
        bucket->autoclass = take_inner(json, "enabled", NULL);
    else if (strcmp(key, "billing") == 0)
        bucket->requester_pays = take_inner(json, "requesterPays", NULL);
    else if (strcmp(key, "softDeletePolicy") == 0)
        take_inner(json, "retentionDurationSeconds", &bucket->soft_delete_s);
    else
        mr_json_skip(json);
}

int mr_gcs_bucket_parse(const char *json, size_t length, struct mr_store_bucket *bucket, struct mr_gcs_page **page)
{
    *bucket = (struct mr_store_bucket){.storage_class = "", .location = "", .location_type = ""};
    struct mr_json reader;
    *page = page_new(json, length, &reader);
    if (!*page)
        return -1;
    const char *key;
    if (mr_json_peek(&reader) == MR_JSON_OBJECT && mr_json_enter(&reader) == 0) {
        while (mr_json_key(&reader, &key) > 0)
            take_bucket_field(&reader, key, bucket);
    } else {
        mr_json_skip(&reader);
    }
    if (mr_json_finish(&reader) == 0)
        return 0;
    not_json(&reader);
    mr_gcs_page_destroy(*page);
    *page = NULL;
    return -1;
}

static unsigned bit_of(const char *name, const char *names, size_t names_length)
{
    unsigned bit = 1;
    for (const char *at = names; at < names + names_length; at += strlen(at) + 1, bit <<= 1) {
        if (strcmp(at, name) == 0)
            return bit;
    }
    return 0;
}

int mr_gcs_permissions_parse(const char *json, size_t length, const char *names, size_t names_length, unsigned *granted)
{
    struct mr_json reader;
    struct mr_gcs_page *page = page_new(json, length, &reader);
    *granted = 0;
    if (!page)
        return -1;
    const char *key, *name;
    if (mr_json_peek(&reader) == MR_JSON_OBJECT && mr_json_enter(&reader) == 0) {
        while (mr_json_key(&reader, &key) > 0) {
            if (strcmp(key, "permissions") != 0 || mr_json_peek(&reader) != MR_JSON_ARRAY) {
                mr_json_skip(&reader);
                continue;
            }
            mr_json_enter(&reader);
            while (mr_json_element(&reader) > 0) {
                if (take_string(&reader, &name) == 0)
                    *granted |= bit_of(name, names, names_length);
            }
        }
    } else {
        mr_json_skip(&reader);
    }
    int rc = mr_json_finish(&reader) == 0 ? 0 : not_json(&reader);
    mr_gcs_page_destroy(page);
    return rc;
}

/* ---- errors ---- */

/* {"error": {"message": "..."}}: whether there is a message, which lies in *json's text. */
static bool json_message(struct mr_json *json, const char **message)
{
    *message = NULL;
    if (mr_json_peek(json) != MR_JSON_OBJECT)
        return false;
    mr_json_enter(json);
    const char *key;
    while (mr_json_key(json, &key) > 0) {
        if (strcmp(key, "error") != 0 || mr_json_peek(json) != MR_JSON_OBJECT) {
            mr_json_skip(json);
            continue;
        }
        mr_json_enter(json);
        while (mr_json_key(json, &key) > 0) {
            if (strcmp(key, "message") == 0 && mr_json_peek(json) == MR_JSON_STRING)
                mr_json_string(json, message, NULL);
            else
                mr_json_skip(json);
        }
    }
    return !json->error && *message;
}

/* Between <Message> and </Message>, else the whole text. */
static void find_message(const char **text, size_t *length)
{
    const char *open = memmem(*text, *length, "<Message>", 9);
    if (!open)
        return;
    open += 9;
    const char *close = memmem(open, (size_t)(*text + *length - open), "</", 2);
    if (!close)
        return;
    *text = open;
    *length = (size_t)(close - open);
}

const char *mr_gcs_error_text(const char *body, size_t length, char *out, size_t size)
{
    struct mr_json json;
    const char *text = body;
    size_t n = length;
    struct mr_gcs_page *page = page_new(body, length, &json);
    if (page && json_message(&json, &text)) {
        n = strlen(text);
    } else {
        text = body;
        find_message(&text, &n);
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '.'))
        n--;
    mr_text_quote(out, size, text, n);
    mr_gcs_page_destroy(page);
    return out;
}
