/* s3_uploads.c - ListParts and ListMultipartUploads. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/multipart_impl.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

static void put_part(struct mr_text *out, const struct mr_session *session, const struct mr_session_part *part)
{
    mr_text_puts(out, "<Part>");
    mr_xml_put_number(out, "PartNumber", part->number);
    mr_xml_time(out, "LastModified", part->object->created_us);
    mr_text_printf(out, "<ETag>&quot;%s&quot;</ETag>", part->etag);
    mr_xml_put_number(out, "Size", part->object->size);
    if (session->announced)
        mr_xml_put(out, mr_s3_sum_elements[session->algorithm], part->sum);
    mr_text_puts(out, "</Part>");
}

void mr_s3_parts(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    struct mr_text *out = &reply->body;
    unsigned most, n = 0;
    uint64_t after;
    size_t i = 0;
    if (mr_s3_page(request, "max-parts", &most, reply) < 0 ||
        mr_api_number(request, "part-number-marker", 0, &after, reply) < 0)
        return;
    struct mr_session *session = mr_multipart_find(api, request, reply);
    if (!session)
        return;
    mr_xml_begin(out, "ListPartsResult");
    mr_xml_put(out, "Bucket", request->bucket);
    mr_xml_put(out, "Key", request->object);
    mr_xml_put(out, "UploadId", session->id);
    mr_xml_put(out, "StorageClass", "STANDARD");
    if (session->announced) {
        mr_xml_put(out, "ChecksumAlgorithm", mr_s3_algorithm_names[session->algorithm]);
        mr_xml_put(out, "ChecksumType", session->composite ? "COMPOSITE" : "FULL_OBJECT");
    }
    mr_xml_put_number(out, "PartNumberMarker", after);
    mr_xml_put_number(out, "MaxParts", most);
    pthread_mutex_lock(&session->lock);
    while (i < session->n_parts && session->parts[i].number <= after)
        i++;
    for (; i < session->n_parts && n < most; i++, n++) {
        put_part(out, session, &session->parts[i]);
        after = session->parts[i].number;
    }
    bool more = i < session->n_parts;
    pthread_mutex_unlock(&session->lock);
    if (more)
        mr_xml_put_number(out, "NextPartNumberMarker", after);
    mr_xml_put(out, "IsTruncated", more ? "true" : "false");
    mr_text_puts(out, "</ListPartsResult>");
    mr_s3_xml(reply);
    mr_session_unref(session);
}

/* ---- uploads ---- */

/* By key, then in the order in which they began. */
static int compare(const void *a, const void *b)
{
    const struct mr_session *left = *(struct mr_session *const *)a, *right = *(struct mr_session *const *)b;
    int order = strcmp(left->metadata.name, right->metadata.name);
    if (order == 0)
        order = (left->started_us > right->started_us) - (left->started_us < right->started_us);
    return order ? order : strcmp(left->id, right->id);
}

/* All of the bucket's, sorted, each a reference. NULL with *n 0: there are none, or no memory. */
static struct mr_session **collect(const struct mr_api *api, const struct mr_bucket *bucket, size_t *n)
{
    struct mr_session **found = NULL, *session;
    size_t place = 0, capacity = 0;
    for (*n = 0; (session = mr_sessions_next(api->sessions, &place, bucket));) {
        if (*n == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            struct mr_session **more = realloc(found, capacity * sizeof(struct mr_session *));
            if (!more) {
                mr_session_unref(session);
                break;
            }
            found = more;
        }
        found[(*n)++] = session;
    }
    if (found)
        qsort(found, *n, sizeof(struct mr_session *), compare);
    return found;
}

struct uploads {
    const struct mr_request *request;
    const char *prefix, *delimiter, *key_marker, *id_marker;
    bool url;
    unsigned left;
    struct mr_text items, groups;
    const char *key, *id; /* of the last entry */
    char *group;          /* the last one */
    bool passed;          /* the upload that the markers name was met */
};

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Whether it lies behind the markers: those of its key do from the one behind id_marker on. */
static bool behind(struct uploads *u, const struct mr_session *session)
{
    int order = strcmp(session->metadata.name, u->key_marker);
    if (order != 0 || !*u->key_marker || !*u->id_marker)
        return order > 0;
    bool is_behind = u->passed;
    u->passed |= strcmp(session->id, u->id_marker) == 0;
    return is_behind;
}

static void put_upload(struct uploads *u, const struct mr_session *session)
{
    mr_text_puts(&u->items, "<Upload>");
    mr_s3_put(&u->items, "Key", session->metadata.name, u->url);
    mr_xml_put(&u->items, "UploadId", session->id);
    mr_xml_put(&u->items, "StorageClass", "STANDARD");
    mr_xml_time(&u->items, "Initiated", session->started_us);
    mr_text_puts(&u->items, "</Upload>");
    u->key = session->metadata.name;
    u->id = session->id;
}

/* 1: the page is full. */
static int take(struct uploads *u, const struct mr_session *session)
{
    const char *name = session->metadata.name;
    size_t n = strlen(u->prefix);
    if (!behind(u, session) || strncmp(name, u->prefix, n) != 0)
        return 0;
    const char *cut = *u->delimiter ? strstr(name + n, u->delimiter) : NULL;
    size_t length = cut ? (size_t)(cut - name) + strlen(u->delimiter) : 0;
    if (cut && ((u->group && strncmp(u->group, name, length) == 0 && strlen(u->group) == length) ||
                (strlen(u->key_marker) == length && strncmp(u->key_marker, name, length) == 0)))
        return 0;
    if (u->left == 0)
        return 1;
    u->left--;
    if (!cut) {
        put_upload(u, session);
        return 0;
    }
    free(u->group);
    u->group = strndup(name, length);
    mr_text_puts(&u->groups, "<CommonPrefixes>");
    mr_s3_put(&u->groups, "Prefix", or_empty(u->group), u->url);
    mr_text_puts(&u->groups, "</CommonPrefixes>");
    u->key = or_empty(u->group);
    u->id = "";
    return 0;
}

static void put_page(struct uploads *u, unsigned most, bool more, struct mr_text *out)
{
    mr_xml_begin(out, "ListMultipartUploadsResult");
    mr_xml_put(out, "Bucket", u->request->bucket);
    mr_s3_put(out, "KeyMarker", u->key_marker, u->url);
    mr_xml_put(out, "UploadIdMarker", u->id_marker);
    if (more && u->key) {
        mr_s3_put(out, "NextKeyMarker", u->key, u->url);
        mr_xml_put(out, "NextUploadIdMarker", u->id);
    }
    mr_s3_put(out, "Prefix", u->prefix, u->url);
    if (*u->delimiter)
        mr_s3_put(out, "Delimiter", u->delimiter, u->url);
    if (u->url)
        mr_xml_put(out, "EncodingType", "url");
    mr_xml_put_number(out, "MaxUploads", most);
    mr_xml_put(out, "IsTruncated", more ? "true" : "false");
    mr_text_append(out, u->items.data, u->items.length);
    mr_text_append(out, u->groups.data, u->groups.length);
    mr_text_puts(out, "</ListMultipartUploadsResult>");
    out->failed |= u->items.failed || u->groups.failed;
}

void mr_s3_uploads(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    struct mr_bucket *bucket = mr_api_bucket(api, request, reply);
    struct uploads u = {.request = request,
                        .prefix = or_empty(mr_request_query(request, "prefix")),
                        .delimiter = or_empty(mr_request_query(request, "delimiter")),
                        .key_marker = or_empty(mr_request_query(request, "key-marker")),
                        .id_marker = or_empty(mr_request_query(request, "upload-id-marker"))};
    unsigned most;
    int url = bucket ? mr_s3_encoding(request, reply) : -1;
    if (url < 0 || mr_s3_page(request, "max-uploads", &most, reply) < 0)
        return;
    size_t length = strlen(u.prefix);
    if (mr_s3_is_express(request->bucket) && length > 0 && u.prefix[length - 1] != '/') {
        mr_s3_error_said(reply, request, "InvalidArgument", "A directory bucket lists prefixes that end in /");
        return;
    }
    u.url = url > 0;
    u.left = most;
    size_t n;
    struct mr_session **sessions = collect(api, bucket, &n);
    bool more = false;
    for (size_t i = 0; i < n && most > 0 && !more; i++)
        more = take(&u, sessions[i]) != 0;
    put_page(&u, most, more, &reply->body);
    mr_s3_xml(reply);
    for (size_t i = 0; i < n; i++)
        mr_session_unref(sessions[i]);
    free(sessions);
    free(u.group);
    mr_text_close(&u.items);
    mr_text_close(&u.groups);
}
