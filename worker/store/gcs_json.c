#include "worker/store/gcs_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/checksum.h"
#include "worker/store/text.h"

#define NAME_MAX_BYTES 1024 /* https://cloud.google.com/storage/docs/objects#naming */

struct mr_gcs_page {
    json_t *root; /* owns the strings that the items point to */
    struct mr_store_item *items;
    struct mr_store_page view;
};

static json_t *parse(const char *json, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(json, length, 0, &error);
    if (!root)
        mr_error_set(MR_E_PROTOCOL, "the answer is not JSON: line %d: %s", error.line, error.text);
    else if (!json_is_object(root))
        mr_error_set(MR_E_PROTOCOL, "the answer is not a JSON object");
    else
        return root;
    json_decref(root);
    return NULL;
}

/* int64 in JSON is a string of digits ("size": "17"); emulators send numbers too. */
static int take_u63(const json_t *value, uint64_t *number)
{
    uint64_t sum = 0;
    if (json_is_integer(value)) {
        if (json_integer_value(value) < 0)
            return -1;
        *number = (uint64_t)json_integer_value(value);
        return 0;
    }
    const char *text = json_string_value(value);
    if (!text || !text[0])
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || sum > (INT64_MAX - (uint64_t)(*text - '0')) / 10)
            return -1;
        sum = sum * 10 + (uint64_t)(*text - '0');
    }
    *number = sum;
    return 0;
}

/* An optional string: "" where it is missing. */
static int take_string(const json_t *object, const char *key, const char **text)
{
    const json_t *value = json_object_get(object, key);
    *text = "";
    if (!value)
        return 0;
    *text = json_string_value(value);
    return *text ? 0 : -1;
}

static int take_item(const json_t *object, struct mr_store_item *item)
{
    char quoted[200];
    const char *crc, *what;
    const json_t *name = json_object_get(object, "name");
    memset(item, 0, sizeof *item);
    if (!json_is_string(name) || json_string_length(name) == 0) {
        mr_error_set(MR_E_PROTOCOL, "an item without a name");
        return -1;
    }
    item->name = json_string_value(name);
    item->name_length = json_string_length(name);
    mr_text_quote(quoted, sizeof quoted, item->name, item->name_length);
    if (item->name_length > NAME_MAX_BYTES) {
        mr_error_set(MR_E_PROTOCOL, "the name \"%s\" has %zu bytes; at most %d are allowed", quoted, item->name_length,
                     NAME_MAX_BYTES);
        return -1;
    }
    if (take_u63(json_object_get(object, "size"), &item->size) != 0) {
        what = "size";
    } else if (take_u63(json_object_get(object, "generation"), &item->generation) != 0) {
        what = "generation";
    } else if (take_string(object, "storageClass", &item->storage_class) != 0) {
        what = "storageClass";
    } else if (take_string(object, "etag", &item->etag) != 0) {
        what = "etag";
    } else if (take_string(object, "crc32c", &crc) != 0 ||
               (crc[0] && mr_crc32c_from_base64(crc, strlen(crc), &item->crc32c) != 0)) {
        what = "crc32c";
    } else {
        item->has_crc32c = crc[0] != 0;
        return 0;
    }
    mr_error_set(MR_E_PROTOCOL, "the item \"%s\" has no usable %s", quoted, what);
    return -1;
}

static int compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* previous: the name before it, or NULL. */
static int check_order(const struct mr_store_item *item, const char *previous, size_t previous_length,
                       const struct mr_store_list_request *request)
{
    char quoted[200], other[200];
    const char *what = NULL, *against = NULL;
    const char *name = item->name, *prefix = request->prefix, *start = request->start_offset,
               *end = request->end_offset;
    size_t n = item->name_length;
    if (previous && compare(name, n, previous, previous_length) <= 0) {
        mr_text_quote(other, sizeof other, previous, previous_length);
        mr_error_set(MR_E_PROTOCOL, "the name \"%s\" comes behind \"%s\": names must be in byte order, each once",
                     mr_text_quote(quoted, sizeof quoted, name, n), other);
        return -1;
    }
    if (prefix && (n < strlen(prefix) || memcmp(name, prefix, strlen(prefix)) != 0)) {
        what = "prefix";
        against = prefix;
    } else if (start && compare(name, n, start, strlen(start)) < 0) {
        what = "startOffset";
        against = start;
    } else if (end && compare(name, n, end, strlen(end)) >= 0) {
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

static int take_items(struct mr_gcs_page *page, const json_t *items, const struct mr_store_list_request *request)
{
    const char *previous = request->after;
    size_t count = json_array_size(items), previous_length = previous ? strlen(previous) : 0;
    page->items = malloc((count + 1) * sizeof *page->items);
    if (!page->items) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page of %zu objects", count);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        struct mr_store_item *item = &page->items[i];
        if (take_item(json_array_get(items, i), item) != 0 ||
            check_order(item, previous, previous_length, request) != 0)
            return -1;
        previous = item->name;
        previous_length = item->name_length;
    }
    page->view.items = page->items;
    page->view.count = count;
    return 0;
}

static int take_token(struct mr_gcs_page *page, const struct mr_store_list_request *request)
{
    const char *token;
    if (take_string(page->root, "nextPageToken", &token) != 0) {
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

struct mr_gcs_page *mr_gcs_page_parse(const char *json, size_t length, const struct mr_store_list_request *request)
{
    struct mr_gcs_page *page = calloc(1, sizeof *page);
    if (!page) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page");
        return NULL;
    }
    page->root = parse(json, length);
    if (!page->root)
        goto fail;
    const json_t *items = json_object_get(page->root, "items");
    if (items && !json_is_array(items)) { /* left out where there are none */
        mr_error_set(MR_E_PROTOCOL, "items is not an array");
        goto fail;
    }
    if (take_items(page, items, request) != 0 || take_token(page, request) != 0)
        goto fail;
    return page;
fail:
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
    json_decref(page->root);
    free(page->items);
    free(page);
}

int mr_gcs_item_parse(const char *json, size_t length, struct mr_store_item *item, struct mr_gcs_page **page)
{
    *page = calloc(1, sizeof **page);
    if (!*page) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
        return -1;
    }
    (*page)->root = parse(json, length);
    if ((*page)->root && take_item((*page)->root, item) == 0)
        return 0;
    mr_gcs_page_destroy(*page);
    *page = NULL;
    return -1;
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
    json_t *root = json_loadb(body, length, 0, NULL);
    const char *text = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    size_t n = text ? strlen(text) : length;
    if (!text) {
        text = body;
        find_message(&text, &n);
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '.'))
        n--;
    mr_text_quote(out, size, text, n);
    json_decref(root);
    return out;
}
