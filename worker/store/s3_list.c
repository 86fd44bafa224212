/* Listings of the S3 client: ListObjectsV2, and what the bucket is. Facts: docs/protocols.md, "S3". */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/s3_impl.h"

/* ---- start-after ---- */

/* Replaces the last character, in UTF-8, by the one before it. false: `name` does not end with such a character. */
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
 * start-after excludes its own name, and our ranges include theirs. So a name just before `start` is sent, with hardly
 * any name between the two: its last character less one, and the greatest character there is. Names that come
 * nevertheless are skipped.
 */
static void put_start(struct s3_call *call, const char *start)
{
    char name[MR_S3_NAME_MAX + 8];
    size_t length = strlen(start);
    const char *prefix = call->list.prefix ? call->list.prefix : "";
    if (length == 0 || length > MR_S3_NAME_MAX + 1 || strcmp(start, prefix) <= 0)
        return;
    memcpy(name, start, length);
    if (!step_back(name, &length))
        length--; /* all that begins with it: more than is needed */
    else if (length + 4 <= MR_S3_NAME_MAX)
        length += (size_t)(stpcpy(name + length, "\xf4\x8f\xbf\xbf") - (name + length));
    else
        length -= length > 1;
    name[length] = 0;
    if (length > 0)
        mr_s3_parameter(call, "&start-after=", name);
}

/* ---- list ---- */

static void s3_list_on_list(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_page page = {.sent = call->list.page_token};
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
    return mr_s3_start(call, &(struct mr_http_request){0}, s3_list_on_list);
}

/* ---- the bucket ---- */

/* S3 has no single request for what a bucket is, only for whether it responds and where it is. */
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
