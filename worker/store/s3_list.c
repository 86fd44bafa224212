/* Listings of the S3 client: ListObjectsV2, and what the bucket is. Facts: docs/protocols.md, "S3". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "worker/store/s3_impl.h"

#define NAME_MAX_ 1024 /* bytes; start-after is no longer either */

/* ---- start-after ---- */

/* The character in front of the last one, in UTF-8, in place of it. false: `name` has no such end. */
static bool step_back(char *name, size_t *length)
{
    size_t at = *length - 1;
    while (at > 0 && *length - at < 4 && ((unsigned char)name[at] & 0xc0) == 0x80)
        at--;
    unsigned char first = (unsigned char)name[at];
    size_t size = *length - at;
    size_t wanted = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (size != wanted)
        return false;
    uint32_t point = size == 1 ? first : first & (0x7fu >> size);
    for (size_t i = 1; i < size; i++)
        point = point << 6 | ((unsigned char)name[at + i] & 0x3f);
    if (point <= 1)
        return false;
    point = point == 0xe000 ? 0xd7ff : point - 1;
    unsigned char out[4];
    size_t n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    out[0] = (unsigned char)(n == 1 ? point : (0xf0u << (4 - n) & 0xff) | point >> (6 * (n - 1)));
    for (size_t i = 1; i < n; i++)
        out[i] = (unsigned char)(0x80 | (point >> (6 * (n - 1 - i)) & 0x3f));
    memcpy(name + at, out, n);
    *length = at + n;
    return true;
}

/*
 * start-after leaves its own name out and our ranges begin with theirs: so a name just before `start` is sent, behind
 * which hardly any other lies before it: the last character, one less, and the greatest character there is. What comes
 * nevertheless is passed over.
 */
static void put_start(struct s3_call *call, const char *start)
{
    char name[NAME_MAX_ + 8];
    size_t length = strlen(start);
    const char *prefix = call->list.prefix ? call->list.prefix : "";
    if (length == 0 || length > NAME_MAX_ + 1 || strcmp(start, prefix) <= 0)
        return;
    memcpy(name, start, length);
    if (!step_back(name, &length))
        length--; /* all that begins so: more than is needed */
    else if (length + 4 <= NAME_MAX_)
        length += (size_t)(stpcpy(name + length, "\xf4\x8f\xbf\xbf") - (name + length));
    else
        length -= length > 1;
    name[length] = 0;
    if (length > 0)
        mr_s3_parameter(call, "&start-after=", name);
}

/* ---- list ---- */

/* Of a listing that comes in no order: nothing but itself says whether a name is wanted. */
static bool is_wanted(const struct mr_store_list_request *list, const char *name)
{
    return (!list->prefix || strncmp(name, list->prefix, strlen(list->prefix)) == 0) &&
           (!list->end_offset || strcmp(name, list->end_offset) < 0) && (!list->after || strcmp(name, list->after) > 0);
}

/* A name of the answer: 0, and *wanted; -1 with mr_error. */
static int check_name(const struct s3_call *call, const struct s3_page *page, const char *name, bool *wanted)
{
    const struct mr_store_list_request *list = &call->list;
    const char *before = call->sorted ? NULL : page->count ? page->items[page->count - 1].name : list->after;
    size_t asked = mr_s3_prefix_length(mr_s3_store(call), list->prefix);
    char quoted[200];
    const char *why = NULL;
    if (!name[0] || strlen(name) > NAME_MAX_)
        why = "a name of no or more than 1,024 bytes";
    else if (asked > 0 && strncmp(name, list->prefix, asked) != 0)
        why = "a name without the prefix that was asked for";
    else if (before && strcmp(name, before) <= 0)
        why = "names that are not in ascending order";
    if (why) {
        mr_error_set(MR_E_PROTOCOL, "the listing has %s: \"%s\"", why,
                     mr_text_quote(quoted, sizeof quoted, name, strlen(name)));
        return -1;
    }
    *wanted =
        (!list->start_offset || strcmp(name, list->start_offset) >= 0) && (!call->sorted || is_wanted(list, name));
    return 0;
}

struct fields {
    char *name;
    const char *etag, *size, *class, *modified;
};

static int add_item(struct s3_call *call, struct s3_page *page, const struct fields *fields, bool encoded)
{
    const struct mr_store_list_request *list = &call->list;
    bool wanted;
    char *end;
    unsigned long long size = strtoull(fields->size, &end, 10);
    if (encoded && mr_xml_decode(fields->name) != 0)
        return -1;
    if (!fields->size[0] || *end || size > INT64_MAX || fields->size[0] == '-' || !fields->etag[0] ||
        strlen(fields->etag) >= MR_ETAG_SIZE) {
        mr_error_set(MR_E_PROTOCOL, "the listing has an object without a %s", fields->etag[0] ? "size" : "usable ETag");
        return -1;
    }
    if (page->over || check_name(call, page, fields->name, &wanted) != 0)
        return page->over ? 0 : -1;
    page->over = !call->sorted && list->end_offset && strcmp(fields->name, list->end_offset) >= 0;
    if (page->over || !wanted)
        return 0;
    page->items[page->count++] = (struct mr_store_item){
        .name = fields->name,
        .name_length = strlen(fields->name),
        .size = size,
        .generation = mr_s3_generation(fields->etag),
        .storage_class = fields->class,
        .etag = fields->etag,
        .created_s = list->with_times ? mr_xml_seconds(fields->modified) : 0,
    };
    return 0;
}

/* The Contents of a ListBucketResult. 0, or -1 with mr_error. */
static int take_items(struct s3_call *call, struct mr_xml *xml, struct s3_page *page)
{
    static const struct fields none = {NULL, "", "", "", ""};
    struct fields fields = none;
    struct mr_xml_leaf leaf;
    bool encoded = mr_xml_is_encoded(xml);
    page->items = calloc(mr_xml_count(xml) + 1, sizeof *page->items);
    if (!page->items) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page of names");
        return -1;
    }
    for (size_t i = 0; mr_xml_leaf(xml, i, &leaf); i++) {
        if (leaf.depth == 1) { /* what is in it came before */
            if (strcmp(leaf.name, "Contents") == 0) {
                if (!fields.name) {
                    mr_error_set(MR_E_PROTOCOL, "the listing has an object without a name");
                    return -1;
                }
                if (add_item(call, page, &fields, encoded) != 0)
                    return -1;
            }
            fields = none;
        } else if (strcmp(leaf.name, "Key") == 0) {
            fields.name = leaf.text;
        } else if (strcmp(leaf.name, "ETag") == 0) {
            fields.etag = leaf.text;
        } else if (strcmp(leaf.name, "Size") == 0) {
            fields.size = leaf.text;
        } else if (strcmp(leaf.name, "StorageClass") == 0) {
            fields.class = leaf.text;
        } else if (strcmp(leaf.name, "LastModified") == 0) {
            fields.modified = leaf.text;
        }
    }
    return 0;
}

bool mr_s3_take_page(struct s3_call *call, struct s3_answer *answer, struct mr_xml **xml, struct s3_page *page)
{
    *xml = answer->result.code == MR_OK ? mr_s3_xml(call, answer, "ListBucketResult") : NULL;
    if (!*xml)
        return false;
    bool good = take_items(call, *xml, page) == 0;
    if (good && !page->over && strcmp(mr_xml_text(*xml, "IsTruncated"), "true") == 0) {
        page->next = mr_xml_text(*xml, "NextContinuationToken");
        if (!page->next[0]) {
            mr_error_set(MR_E_PROTOCOL,
                         "a listing that goes on nowhere: the endpoint may know the old list calls only");
            good = false;
        }
    }
    if (!good)
        mr_s3_refuse(call, answer);
    return good;
}

static void on_list(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_page page = {0};
    struct mr_xml *xml;
    bool good = mr_s3_take_page(call, answer, &xml, &page);
    const struct mr_store_page view = {
        .items = page.items, .count = page.count, .next_token = page.next, .now_s = answer->http->headers.date_s};
    call->done.list(call->arg, &answer->result, good ? &view : NULL);
    free(page.items);
    mr_xml_destroy(xml);
    mr_s3_give(call);
}

static void list_target(struct s3_call *call, const struct mr_store_list_request *request)
{
    mr_s3_target(call, "?list-type=2&encoding-type=url");
    if (request->max_results) {
        mr_text_puts(&call->target, "&max-keys=");
        mr_text_put_u64(&call->target, request->max_results);
    }
    mr_s3_put_prefix(call, request->prefix);
    mr_s3_parameter(call, "&continuation-token=", request->page_token);
    if (request->start_offset && !request->page_token)
        put_start(call, request->start_offset);
}

struct mr_store_call *mr_s3_list(struct mr_store *base, const struct mr_store_list_request *request,
                                 mr_store_list_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_LIST, "", 0, arg);
    if (!call)
        return NULL;
    call->done.list = done;
    if (mr_store_list_copy(&call->list, request, &call->name) != 0) {
        call->name.failed = true; /* mr_s3_send reports it */
    } else if (mr_s3_store(call)->zone[0]) {
        if (mr_s3_sorted_start(call) == 0)
            return &call->base;
        mr_s3_give(call);
        return NULL;
    } else {
        list_target(call, &call->list);
    }
    return mr_s3_start(call, &(struct mr_http_request){0}, on_list);
}

/* ---- the bucket ---- */

/* S3 has no one question for what a bucket is: that it answers, and where it is. */
static void on_bucket(struct s3_call *call, struct s3_answer *answer)
{
    const struct mr_http_headers *headers = &answer->http->headers;
    const struct s3_store *store = mr_s3_store(call);
    bool express = store->zone[0] != 0;
    struct mr_store_bucket bucket = {.storage_class = express ? "EXPRESS_ONEZONE" : "",
                                     .location_type = express ? "zone" : "region"};
    bucket.location = express ? store->zone : headers->region[0] ? headers->region : store->is_aws ? store->region : "";
    if (!bucket.location[0])
        bucket.location_type = "";
    call->done.bucket(call->arg, &answer->result, answer->result.code == MR_OK ? &bucket : NULL);
    mr_s3_give(call);
}

struct mr_store_call *mr_s3_bucket(struct mr_store *base, mr_store_bucket_fn *done, void *arg)
{
    struct s3_call *call = mr_s3_take((struct s3_store *)base, S3_BUCKET, "", 0, arg);
    if (!call)
        return NULL;
    call->done.bucket = done;
    mr_s3_target(call, "?list-type=2&max-keys=1");
    return mr_s3_start(call, &(struct mr_http_request){0}, on_bucket);
}
