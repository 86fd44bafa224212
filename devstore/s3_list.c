/*
 * s3_list.c - GET /BUCKET: ListObjectsV2, and ListObjects for requests without list-type=2.
 * https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/pages.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"
#include "devstore/xml.h"

struct listing {
    struct ds_page page;
    const struct ds_request *request;
    bool second, url; /* version 2; keys are percent-encoded */
    bool owner, sums; /* what each entry has: its owner; the kind of its checksum */
    char pass;        /* of the two in which a directory bucket is listed; 0: another kind of bucket */
    const char *start, *token;
    struct ds_text items, groups;
    unsigned n;
    char *last; /* version 1: the entry that came last */
    const char *storage_class;
};

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Counts an entry, and remembers it for version 1. 0, or -1: no memory. */
static int s3_list_count(struct listing *l, const char *entry)
{
    l->n++;
    if (l->second)
        return 0;
    free(l->last);
    l->last = strdup(entry);
    if (!l->last)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
    return l->last ? 0 : -1;
}

static int emit_item(void *cls, struct ds_object *object)
{
    struct listing *l = cls;
    struct ds_text *out = &l->items;
    const char *class = object->attributes[MR_ATTR_STORAGE_CLASS];
    const struct ds_s3_info *info = object->s3;
    char etag[48];
    ds_s3_etag(object, false, etag);
    ds_text_puts(out, "<Contents>");
    ds_s3_put(out, "Key", object->name, l->url);
    ds_xml_time(out, "LastModified", object->updated_us);
    ds_text_printf(out, "<ETag>&quot;%s&quot;</ETag>", etag);
    if (l->sums) {
        ds_xml_put(out, "ChecksumAlgorithm",
                   ds_s3_algorithm_names[info && info->algorithm ? info->algorithm : MR_S3_CRC32C]);
        ds_xml_put(out, "ChecksumType", info && info->composite ? "COMPOSITE" : "FULL_OBJECT");
    }
    ds_xml_put_number(out, "Size", object->size);
    if (l->owner)
        ds_text_puts(out, "<Owner><ID>devstore</ID><DisplayName>devstore</DisplayName></Owner>");
    ds_xml_put(out, "StorageClass", class ? class : l->storage_class);
    ds_text_puts(out, "</Contents>");
    return s3_list_count(l, object->name);
}

static int emit_group(void *cls, const char *prefix)
{
    struct listing *l = cls;
    ds_text_puts(&l->groups, "<CommonPrefixes>");
    ds_s3_put(&l->groups, "Prefix", prefix, l->url);
    ds_text_puts(&l->groups, "</CommonPrefixes>");
    return s3_list_count(l, prefix);
}

/* A directory bucket lists in no order: here one half of the names comes first, then the other. */
static bool is_of_pass(void *cls, const char *name)
{
    const struct listing *l = cls;
    unsigned hash = 0;
    for (; *name; name++)
        hash = hash * 31 + (unsigned char)*name;
    return ((hash >> 3 ^ hash) & 1) == (l->pass == '2');
}

/* Makes the token of the page after a directory bucket's: its pass, and the name that it begins with. 0 or -1. */
static int next_of_pass(struct listing *l)
{
    if (!l->page.next && l->pass == '2')
        return 0;
    const char *name = l->page.next ? l->page.next : l->page.prefix;
    size_t size = strlen(name) + 1;
    char *next = malloc(size + 1);
    if (!next) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return -1;
    }
    next[0] = l->page.next ? l->pass : '2';
    memcpy(next + 1, name, size);
    free(l->page.next);
    l->page.next = next;
    return 0;
}

/* Begins the page after start, or at the token. A prefix that start lies in was given before, and is not given again.
 * 0, or -1 with the reply. */
static int s3_list_begin(struct listing *l, struct ds_reply *reply)
{
    size_t n = strlen(l->page.prefix);
    char *from = ds_token_decode(or_empty(l->token));
    if (!from || (l->token && !*from)) {
        ds_s3_error_said(reply, l->request, "InvalidArgument", "The continuation token provided is incorrect");
        free(from);
        return -1;
    }
    if (l->pass && *from) {
        l->pass = *from;
        memmove(from, from + 1, strlen(from));
    }
    const char *cut = NULL;
    int rc;
    if (!*from && *l->page.delimiter && strncmp(l->start, l->page.prefix, n) == 0)
        cut = strstr(l->start + n, l->page.delimiter);
    if (cut)
        rc = ds_page_skip(&l->page, l->start, (size_t)(cut - l->start) + strlen(l->page.delimiter));
    else if (*from && strcmp(from, l->page.prefix) > 0)
        rc = ds_page_begin(&l->page, from, false);
    else if (!*from && *l->start && strcmp(l->start, l->page.prefix) >= 0)
        rc = ds_page_begin(&l->page, l->start, true);
    else
        rc = ds_page_begin(&l->page, l->page.prefix, false);
    if (rc < 0)
        ds_reply_from_error(reply, l->request);
    free(from);
    return rc;
}

/* What only version 2 has. */
static void put_second(struct listing *l, struct ds_text *out)
{
    char *next = l->page.next ? ds_token_encode(l->page.next) : NULL;
    if (*l->start)
        ds_s3_put(out, "StartAfter", l->start, l->url);
    if (l->token)
        ds_xml_put(out, "ContinuationToken", l->token);
    if (next)
        ds_xml_put(out, "NextContinuationToken", next);
    ds_xml_put_number(out, "KeyCount", l->n);
    free(next);
}

static void s3_list_finish(struct listing *l, unsigned most, struct ds_reply *reply)
{
    struct ds_text *out = &reply->body;
    ds_xml_begin(out, "ListBucketResult");
    ds_xml_put(out, "Name", l->request->bucket);
    ds_s3_put(out, "Prefix", l->page.prefix, l->url);
    if (l->second) {
        put_second(l, out);
    } else {
        ds_s3_put(out, "Marker", l->start, l->url);
        if (l->page.next && *l->page.delimiter && l->last)
            ds_s3_put(out, "NextMarker", l->last, l->url);
    }
    ds_xml_put_number(out, "MaxKeys", most);
    if (*l->page.delimiter)
        ds_s3_put(out, "Delimiter", l->page.delimiter, l->url);
    if (l->url)
        ds_xml_put(out, "EncodingType", "url");
    ds_xml_put(out, "IsTruncated", l->page.next ? "true" : "false");
    ds_text_append(out, l->items.data, l->items.length);
    ds_text_append(out, l->groups.data, l->groups.length);
    ds_text_puts(out, "</ListBucketResult>");
    out->failed |= l->items.failed || l->groups.failed;
    ds_s3_xml(reply);
}

/* A directory bucket lists folders, and nothing in between. 0, or -1 with the reply. */
static int check_express(struct listing *l, struct ds_reply *reply)
{
    const char *prefix = l->page.prefix;
    if (!ds_s3_is_express(l->request->bucket))
        return 0;
    if (!*l->page.delimiter) {
        l->pass = '1';
        l->page.wanted = is_of_pass;
    }
    if (!*l->start && (!*prefix || prefix[strlen(prefix) - 1] == '/') &&
        (!*l->page.delimiter || strcmp(l->page.delimiter, "/") == 0))
        return 0;
    ds_s3_error_said(reply, l->request, "InvalidArgument",
                     "A directory bucket lists from the start, and prefixes that end in /");
    return -1;
}

void ds_s3_list(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    const char *type = ds_request_query(request, "list-type"), *owner = ds_request_query(request, "fetch-owner");
    struct listing l = {.request = request, .second = type && strcmp(type, "2") == 0};
    l.owner = !l.second || (owner && strcmp(owner, "true") == 0);
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    int url = bucket ? ds_s3_encoding(request, reply) : -1;
    unsigned most;
    if (url < 0 || ds_s3_page(request, "max-keys", &most, reply) < 0)
        return;
    l.url = url > 0;
    l.sums = !api->s3->ignore_checksums;
    l.storage_class = ds_bucket_settings(bucket)->storage_class;
    l.token = l.second ? ds_request_query(request, "continuation-token") : NULL;
    l.start = or_empty(ds_request_query(request, l.second ? "start-after" : "marker"));
    l.page = (struct ds_page){.bucket = bucket,
                              .prefix = or_empty(ds_request_query(request, "prefix")),
                              .delimiter = or_empty(ds_request_query(request, "delimiter")),
                              .end = "",
                              .left = most < api->page_max ? most : api->page_max,
                              .item = emit_item,
                              .group = emit_group,
                              .cls = &l};
    if (check_express(&l, reply) < 0 || s3_list_begin(&l, reply) < 0)
        return;
    if (most > 0 && (ds_page_run(&l.page) < 0 || (l.pass && next_of_pass(&l) < 0)))
        ds_reply_from_error(reply, request);
    else
        s3_list_finish(&l, most, reply);
    ds_page_close(&l.page);
    ds_text_close(&l.items);
    ds_text_close(&l.groups);
    free(l.last);
}
