#include "worker/store/get_body.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"

void mr_get_body_init(struct mr_get_body *body, const struct mr_store_get_request *request)
{
    memset(body, 0, sizeof *body);
    body->get = *request;
}

/* A range was requested and the whole object comes: what precedes the range is skipped, what follows it is not read. 0,
 * or -1 with mr_error. */
static int take_whole(struct mr_get_body *body, struct mr_store *store, const char *uri,
                      const struct mr_http_headers *headers)
{
    const struct mr_store_get_request *get = &body->get;
    if (headers->has_content_length && headers->content_length < get->offset + get->length) {
        mr_error_set(MR_E_PROTOCOL, "bytes %llu and %llu more were asked for, and all %llu came",
                     (unsigned long long)get->offset, (unsigned long long)get->length,
                     (unsigned long long)headers->content_length);
        return -1;
    }
    body->whole_came = true;
    body->skip = get->offset;
    body->more_follows = !headers->has_content_length || headers->content_length > get->offset + get->length;
    if (!store->no_ranges)
        mr_log_warning("%s: a range was asked for, and the whole object comes, of which the range is kept: what lies "
                       "between here and the store ignores ranges, and downloads cost more than they should",
                       uri);
    store->no_ranges = true;
    return 0;
}

int mr_get_body_head(struct mr_get_body *body, struct mr_store *store, const char *uri, int status,
                     const struct mr_http_headers *headers)
{
    const struct mr_store_get_request *get = &body->get;
    if (status == 206) {
        if (headers->has_content_range && headers->range_first == get->offset &&
            headers->range_last - headers->range_first < get->length)
            return 0;
        mr_error_set(MR_E_PROTOCOL, "bytes %llu and %llu more were asked for, and others came",
                     (unsigned long long)get->offset, (unsigned long long)get->length);
        return -1;
    }
    if (!get->whole && status == 200)
        return take_whole(body, store, uri, headers);
    if (get->offset > 0) {
        mr_error_set(MR_E_PROTOCOL, "a range was asked for, and something else came (status %d)", status);
        return -1;
    }
    if (headers->has_content_length && headers->content_length != get->length) {
        mr_error_set(get->generation || !get->whole ? MR_E_PROTOCOL : MR_E_CHANGED,
                     "%llu bytes were expected, and %llu came", (unsigned long long)get->length,
                     (unsigned long long)headers->content_length);
        return -1;
    }
    return 0;
}

int mr_get_body_take(struct mr_get_body *body, void *arg, const void *data, size_t length)
{
    uint64_t left = body->get.length - body->got.received;
    bool enough = false;
    if (body->whole_came) {
        size_t skipped = length < body->skip ? length : (size_t)body->skip;
        body->skip -= skipped;
        data = (const char *)data + skipped;
        length -= skipped;
        enough = length > left || (length == left && body->more_follows);
        length = length > left ? (size_t)left : length;
    }
    if (length > left) {
        mr_error_set(MR_E_PROTOCOL, "more than the %llu bytes that were expected came",
                     (unsigned long long)body->get.length);
        return -1;
    }
    if (length > 0 && data != body->get.dest + body->got.received) /* room may have put it there already */
        memcpy(body->get.dest + body->got.received, data, length);
    body->got.received += length;
    if (body->get.progress && length > 0)
        body->get.progress(arg, &body->got, length);
    return enough;
}

void *mr_get_body_room(const struct mr_get_body *body, size_t *length)
{
    if (!body->head_checked || body->whole_came || body->got.received == body->get.length)
        return NULL;
    *length = body->get.length - body->got.received;
    return body->get.dest + body->got.received;
}

int mr_get_body_end(const struct mr_get_body *body)
{
    if (body->got.received >= body->get.length)
        return 0;
    mr_error_set(MR_E_NET, "the answer ended after %llu of %llu bytes", (unsigned long long)body->got.received,
                 (unsigned long long)body->get.length);
    return -1;
}
