/* s3_uploads.c - ListParts and ListMultipartUploads. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/multipart_impl.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

static void put_part(struct ds_text *out, const struct ds_session *session, const struct ds_session_part *part)
{
    ds_text_puts(out, "<Part>");
    ds_xml_put_number(out, "PartNumber", part->number);
    ds_xml_time(out, "LastModified", part->object->created_us);
    ds_text_printf(out, "<ETag>&quot;%s&quot;</ETag>", part->etag);
    ds_xml_put_number(out, "Size", part->object->size);
    if (session->announced)
        ds_xml_put(out, ds_s3_sum_elements[session->algorithm], part->sum);
    ds_text_puts(out, "</Part>");
}

void ds_s3_parts(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_text *out = &reply->body;
    unsigned most, n = 0;
    uint64_t after;
    size_t i = 0;
    if (ds_s3_page(request, "max-parts", &most, reply) < 0 ||
        ds_api_number(request, "part-number-marker", 0, &after, reply) < 0)
        return;
    struct ds_session *session = ds_multipart_find(api, request, reply);
    if (!session)
        return;
    ds_xml_begin(out, "ListPartsResult");
    ds_xml_put(out, "Bucket", request->bucket);
    ds_xml_put(out, "Key", request->object);
    ds_xml_put(out, "UploadId", session->id);
    ds_xml_put(out, "StorageClass", "STANDARD");
    if (session->announced) {
        ds_xml_put(out, "ChecksumAlgorithm", ds_s3_algorithm_names[session->algorithm]);
        ds_xml_put(out, "ChecksumType", session->composite ? "COMPOSITE" : "FULL_OBJECT");
    }
    ds_xml_put_number(out, "PartNumberMarker", after);
    ds_xml_put_number(out, "MaxParts", most);
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
        ds_xml_put_number(out, "NextPartNumberMarker", after);
    ds_xml_put(out, "IsTruncated", more ? "true" : "false");
    ds_text_puts(out, "</ListPartsResult>");
    ds_s3_xml(reply);
    ds_session_unref(session);
}

/* ---- uploads ---- */

/* By key, then in the order in which they began. */
static int s3_uploads_compare(const void *a, const void *b)
{
    const struct ds_session *left = *(struct ds_session *const *)a, *right = *(struct ds_session *const *)b;
    int order = strcmp(left->metadata.name, right->metadata.name);
    if (order == 0)
        order = (left->started_us > right->started_us) - (left->started_us < right->started_us);
    return order ? order : strcmp(left->id, right->id);
}

/* All multipart uploads of the bucket, sorted, each a reference. Without memory some are left out. NULL with *n 0:
 * none. */
static struct ds_session **collect(const struct ds_api *api, const struct ds_bucket *bucket, size_t *n)
{
    struct ds_session **found = NULL, *session;
    size_t place = 0, capacity = 0;
    for (*n = 0; (session = ds_sessions_next(api->sessions, &place, bucket));) {
        if (*n == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            struct ds_session **more = realloc(found, capacity * sizeof(struct ds_session *));
            if (!more) {
                ds_session_unref(session);
                break;
            }
            found = more;
        }
        found[(*n)++] = session;
    }
    if (found)
        qsort(found, *n, sizeof(struct ds_session *), s3_uploads_compare);
    return found;
}

struct uploads {
    const struct ds_request *request;
    const char *prefix, *delimiter, *key_marker, *id_marker;
    bool url;
    unsigned left;
    struct ds_text items, groups;
    const char *key, *id; /* of the last entry */
    char *group;          /* the last one */
    bool passed;          /* the upload that the markers name was met */
};

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Whether it comes after the markers: of their key, the uploads after id_marker do. Call it once for each upload, in
 * their order: it remembers that id_marker was met. */
static bool behind(struct uploads *u, const struct ds_session *session)
{
    int order = strcmp(session->metadata.name, u->key_marker);
    if (order != 0 || !*u->key_marker || !*u->id_marker)
        return order > 0;
    bool is_behind = u->passed;
    u->passed |= strcmp(session->id, u->id_marker) == 0;
    return is_behind;
}

static void put_upload(struct uploads *u, const struct ds_session *session)
{
    ds_text_puts(&u->items, "<Upload>");
    ds_s3_put(&u->items, "Key", session->metadata.name, u->url);
    ds_xml_put(&u->items, "UploadId", session->id);
    ds_xml_put(&u->items, "StorageClass", "STANDARD");
    ds_xml_time(&u->items, "Initiated", session->started_us);
    ds_text_puts(&u->items, "</Upload>");
    u->key = session->metadata.name;
    u->id = session->id;
}

/* Takes one upload, or the prefix that stands for it. 1: the page is full. */
static int s3_uploads_take(struct uploads *u, const struct ds_session *session)
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
    ds_text_puts(&u->groups, "<CommonPrefixes>");
    ds_s3_put(&u->groups, "Prefix", or_empty(u->group), u->url);
    ds_text_puts(&u->groups, "</CommonPrefixes>");
    u->key = or_empty(u->group);
    u->id = "";
    return 0;
}

static void put_page(struct uploads *u, unsigned most, bool more, struct ds_text *out)
{
    ds_xml_begin(out, "ListMultipartUploadsResult");
    ds_xml_put(out, "Bucket", u->request->bucket);
    ds_s3_put(out, "KeyMarker", u->key_marker, u->url);
    ds_xml_put(out, "UploadIdMarker", u->id_marker);
    if (more && u->key) {
        ds_s3_put(out, "NextKeyMarker", u->key, u->url);
        ds_xml_put(out, "NextUploadIdMarker", u->id);
    }
    ds_s3_put(out, "Prefix", u->prefix, u->url);
    if (*u->delimiter)
        ds_s3_put(out, "Delimiter", u->delimiter, u->url);
    if (u->url)
        ds_xml_put(out, "EncodingType", "url");
    ds_xml_put_number(out, "MaxUploads", most);
    ds_xml_put(out, "IsTruncated", more ? "true" : "false");
    ds_text_append(out, u->items.data, u->items.length);
    ds_text_append(out, u->groups.data, u->groups.length);
    ds_text_puts(out, "</ListMultipartUploadsResult>");
    out->failed |= u->items.failed || u->groups.failed;
}

void ds_s3_uploads(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct uploads u = {.request = request,
                        .prefix = or_empty(ds_request_query(request, "prefix")),
                        .delimiter = or_empty(ds_request_query(request, "delimiter")),
                        .key_marker = or_empty(ds_request_query(request, "key-marker")),
                        .id_marker = or_empty(ds_request_query(request, "upload-id-marker"))};
    unsigned most;
    int url = bucket ? ds_s3_encoding(request, reply) : -1;
    if (url < 0 || ds_s3_page(request, "max-uploads", &most, reply) < 0)
        return;
    size_t length = strlen(u.prefix);
    if (ds_s3_is_express(request->bucket) && length > 0 && u.prefix[length - 1] != '/') {
        ds_s3_error_said(reply, request, "InvalidArgument", "A directory bucket lists prefixes that end in /");
        return;
    }
    u.url = url > 0;
    u.left = most;
    size_t n;
    struct ds_session **sessions = collect(api, bucket, &n);
    bool more = false;
    for (size_t i = 0; i < n && most > 0 && !more; i++)
        more = s3_uploads_take(&u, sessions[i]) != 0;
    put_page(&u, most, more, &reply->body);
    ds_s3_xml(reply);
    for (size_t i = 0; i < n; i++)
        ds_session_unref(sessions[i]);
    free(sessions);
    free(u.group);
    ds_text_close(&u.items);
    ds_text_close(&u.groups);
}
