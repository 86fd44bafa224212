/*
 * list.c - GET /storage/v1/b/BUCKET/o, and GET /BUCKET of the XML API: pages of objects and prefixes, in the byte-wise
 * order of their names.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/fields.h"
#include "devstore/pages.h"
#include "devstore/resource.h"
#include "devstore/xml.h"

struct listing {
    struct ds_bucket *bucket;
    struct ds_page page;
    struct ds_resource resource;
    bool xml;             /* as the XML API writes a listing */
    bool items, prefixes; /* whether these parts of the answer are wanted */
    struct ds_text *out;
    struct ds_text found; /* the prefixes' JSON, without the brackets */
    unsigned n_items;
};

static void emit_xml(struct listing *l, const struct ds_object *object)
{
    const char *class = object->attributes[MR_ATTR_STORAGE_CLASS];
    ds_text_puts(l->out, "<Contents>");
    ds_xml_put(l->out, "Key", object->name);
    ds_xml_put_number(l->out, "Generation", object->generation);
    ds_xml_put_number(l->out, "MetaGeneration", object->metageneration);
    ds_text_puts(l->out, "<LastModified>");
    ds_text_time(l->out, object->updated_us);
    ds_text_printf(l->out, "</LastModified><ETag>&quot;%016" PRIx64 "&quot;</ETag>", object->generation);
    ds_xml_put_number(l->out, "Size", object->size);
    ds_xml_put(l->out, "StorageClass", class ? class : l->resource.storage_class);
    ds_text_puts(l->out, "</Contents>");
}

/* A page's item. An object whose file has changed is refreshed; 0 also where it no longer exists. */
static int emit_item(void *cls, struct ds_object *object)
{
    struct listing *l = cls;
    if (!l->items)
        return 0;
    if (l->xml) {
        l->n_items++;
        emit_xml(l, object);
        return 0;
    }
    uint32_t crc;
    struct ds_object *fresh = NULL;
    if (ds_resource_wants_crc(&l->resource) && ds_object_crc(object, &crc) < 0) {
        if (mr_error_code() != MR_E_CHANGED && mr_error_code() != MR_E_NOT_FOUND)
            return -1;
        object = fresh = ds_bucket_refresh(l->bucket, object);
        if (!fresh)
            return 0; /* deleted by another program since the scan */
    }
    ds_text_puts(l->out, l->n_items++ ? "," : ",\"items\":[");
    ds_resource_write(&l->resource, object, l->out);
    ds_object_unref(fresh);
    return 0;
}

static int emit_prefix(void *cls, const char *prefix)
{
    struct listing *l = cls;
    if (l->xml) {
        ds_text_puts(&l->found, "<CommonPrefixes>");
        ds_xml_put(&l->found, "Prefix", prefix);
        ds_text_puts(&l->found, "</CommonPrefixes>");
    } else if (l->prefixes) {
        ds_text_puts(&l->found, l->found.length ? "," : "");
        ds_text_json_string(&l->found, prefix);
    }
    return 0;
}

/* Finds out what the answer is to contain (*token: nextPageToken), and writes its beginning. 0 or -1 (USAGE). */
static int select_fields(struct listing *l, const struct ds_request *request, struct ds_fields *fields, bool *token)
{
    static const char *const known[] = {"kind", "nextPageToken", "prefixes", "items", NULL};
    if (ds_fields_parse(fields, l->xml ? NULL : ds_request_query(request, "fields")) < 0 ||
        ds_fields_known(fields, 0, known) < 0)
        return -1;
    int items = ds_fields_under(fields, 0, "items"); /* XML has no fields parameter: everything */
    if (ds_resource_init(&l->resource, l->bucket, request, fields, items) < 0)
        return -1;
    l->items = items >= 0;
    l->prefixes = ds_fields_under(fields, 0, "prefixes") >= 0;
    *token = ds_fields_under(fields, 0, "nextPageToken") >= 0;
    if (l->xml)
        ds_xml_begin(l->out, "ListBucketResult");
    else
        ds_text_puts(l->out, ds_fields_under(fields, 0, "kind") >= 0 ? "{\"kind\":\"storage#objects\"" : "{");
    return 0;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Where the page begins: the greatest of prefix, startOffset and the token. */
static int set_start(struct listing *l, const struct ds_request *request)
{
    const char *start = or_empty(ds_request_query(request, l->xml ? "start-after" : "startOffset"));
    const char *token = or_empty(ds_request_query(request, l->xml ? "continuation-token" : "pageToken"));
    const char *marker = l->xml ? ds_request_query(request, "marker") : NULL;
    if (marker && strcmp(marker, start) > 0)
        start = marker;
    const char *first = l->page.prefix;
    bool after = false;
    if (*start && strcmp(start, first) >= 0) {
        first = start;
        after = l->xml;
    }
    char *from = ds_token_decode(token);
    if (!from) {
        mr_error_set(MR_E_USAGE, "Invalid pageToken");
        return -1;
    }
    if (strcmp(from, first) > 0) {
        first = from;
        after = false;
    }
    int rc = ds_page_begin(&l->page, first, after);
    free(from);
    return rc;
}

static void list_finish(struct listing *l, bool token, struct ds_reply *reply)
{
    struct ds_text *out = l->out;
    if (l->n_items)
        ds_text_puts(out, "]");
    if (l->found.length) {
        ds_text_puts(out, ",\"prefixes\":[");
        ds_text_append(out, l->found.data, l->found.length);
        ds_text_puts(out, "]");
    }
    if (l->page.next && token) {
        char *text = ds_token_encode(l->page.next);
        ds_text_printf(out, ",\"nextPageToken\":\"%s\"", text ? text : "");
        out->failed |= !text;
        free(text);
    }
    ds_text_puts(out, "}");
    if (out->length > 1 && out->data[1] == ',') /* nothing came before the first comma */
        out->data[1] = ' ';
    ds_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
}

/* The root was opened before the items. */
static void finish_xml(struct listing *l, uint64_t max, struct ds_reply *reply)
{
    struct ds_text *out = l->out;
    char *token = l->page.next ? ds_token_encode(l->page.next) : NULL;
    ds_text_append(out, l->found.data, l->found.length);
    ds_xml_put(out, "Name", ds_bucket_name(l->bucket));
    ds_xml_put(out, "Prefix", l->page.prefix);
    ds_xml_put_number(out, "MaxKeys", max);
    ds_xml_put_number(out, "KeyCount", l->n_items);
    ds_xml_put(out, "IsTruncated", l->page.next ? "true" : "false");
    if (token) {
        ds_xml_put(out, "NextContinuationToken", token);
    }
    free(token);
    ds_text_puts(out, "</ListBucketResult>");
    ds_reply_header(reply, "Content-Type", "application/xml; charset=UTF-8");
}

/* A parameter that would change what the real service lists, and that is not supported here, or NULL. */
static const char *asks_for_more(const struct ds_request *request)
{
    const char *soft = ds_request_query(request, "softDeleted");
    if (ds_request_query(request, "matchGlob"))
        return "matchGlob";
    return soft && strcasecmp(soft, "true") == 0 ? "softDeleted" : NULL;
}

void ds_api_list(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct listing l = {.out = &reply->body, .xml = request->xml};
    l.bucket = ds_api_bucket(api, request, reply);
    l.page.bucket = l.bucket;
    l.page.item = emit_item;
    l.page.group = emit_prefix;
    l.page.cls = &l;
    uint64_t max;
    if (!l.bucket || ds_api_number(request, l.xml ? "max-keys" : "maxResults", 1000, &max, reply) < 0)
        return;
    const char *other = asks_for_more(request);
    if (other) {
        ds_reply_error(reply, request, 400, "invalid", "The development store does not do %s.", other);
        return;
    }
    l.page.left = max == 0 || max > api->page_max ? api->page_max : (unsigned)max;
    l.page.prefix = or_empty(ds_request_query(request, "prefix"));
    l.page.delimiter = or_empty(ds_request_query(request, "delimiter"));
    l.page.end = l.xml ? "" : or_empty(ds_request_query(request, "endOffset"));
    struct ds_fields fields;
    bool token;
    if (set_start(&l, request) < 0 || select_fields(&l, request, &fields, &token) < 0 || ds_page_run(&l.page) < 0)
        goto fail;
    if (l.xml)
        finish_xml(&l, max, reply);
    else
        list_finish(&l, token, reply);
    goto out;
fail:
    ds_reply_from_error(reply, request);
out:
    ds_text_close(&l.found);
    ds_page_close(&l.page);
}
