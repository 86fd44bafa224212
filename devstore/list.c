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
    struct mr_bucket *bucket;
    struct mr_page page;
    struct mr_resource resource;
    bool xml;             /* as the XML API writes a listing */
    bool items, prefixes; /* whether these parts of the answer are wanted */
    struct mr_text *out;
    struct mr_text found; /* the prefixes' JSON, without the brackets */
    unsigned n_items;
};

static void emit_xml(struct listing *l, const struct mr_object *object)
{
    const char *class = object->attributes[MR_ATTR_STORAGE_CLASS];
    mr_text_puts(l->out, "<Contents>");
    mr_xml_put(l->out, "Key", object->name);
    mr_xml_put_number(l->out, "Generation", object->generation);
    mr_xml_put_number(l->out, "MetaGeneration", object->metageneration);
    mr_text_puts(l->out, "<LastModified>");
    mr_text_time(l->out, object->updated_us);
    mr_text_printf(l->out, "</LastModified><ETag>&quot;%016" PRIx64 "&quot;</ETag>", object->generation);
    mr_xml_put_number(l->out, "Size", object->size);
    mr_xml_put(l->out, "StorageClass", class ? class : l->resource.storage_class);
    mr_text_puts(l->out, "</Contents>");
}

static int emit_item(void *cls, struct mr_object *object)
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
    struct mr_object *fresh = NULL;
    if (mr_resource_wants_crc(&l->resource) && mr_object_crc(object, &crc) < 0) {
        if (mr_error_code() != MR_E_CHANGED && mr_error_code() != MR_E_NOT_FOUND)
            return -1;
        object = fresh = mr_bucket_refresh(l->bucket, object);
        if (!fresh)
            return 0; /* deleted by another program since the scan */
    }
    mr_text_puts(l->out, l->n_items++ ? "," : ",\"items\":[");
    mr_resource_write(&l->resource, object, l->out);
    mr_object_unref(fresh);
    return 0;
}

static int emit_prefix(void *cls, const char *prefix)
{
    struct listing *l = cls;
    if (l->xml) {
        mr_text_puts(&l->found, "<CommonPrefixes>");
        mr_xml_put(&l->found, "Prefix", prefix);
        mr_text_puts(&l->found, "</CommonPrefixes>");
    } else if (l->prefixes) {
        mr_text_puts(&l->found, l->found.length ? "," : "");
        mr_text_json_string(&l->found, prefix);
    }
    return 0;
}

static int select_fields(struct listing *l, const struct mr_request *request, struct mr_fields *fields, bool *token)
{
    static const char *const known[] = {"kind", "nextPageToken", "prefixes", "items", NULL};
    if (mr_fields_parse(fields, l->xml ? NULL : mr_request_query(request, "fields")) < 0 ||
        mr_fields_known(fields, 0, known) < 0)
        return -1;
    int items = mr_fields_under(fields, 0, "items"); /* XML has no fields parameter: everything */
    if (mr_resource_init(&l->resource, l->bucket, request, fields, items) < 0)
        return -1;
    l->items = items >= 0;
    l->prefixes = mr_fields_under(fields, 0, "prefixes") >= 0;
    *token = mr_fields_under(fields, 0, "nextPageToken") >= 0;
    if (l->xml)
        mr_xml_begin(l->out, "ListBucketResult");
    else
        mr_text_puts(l->out, mr_fields_under(fields, 0, "kind") >= 0 ? "{\"kind\":\"storage#objects\"" : "{");
    return 0;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* Where the page begins: the greatest of prefix, startOffset and the token. */
static int set_start(struct listing *l, const struct mr_request *request)
{
    const char *start = or_empty(mr_request_query(request, l->xml ? "start-after" : "startOffset"));
    const char *token = or_empty(mr_request_query(request, l->xml ? "continuation-token" : "pageToken"));
    const char *marker = l->xml ? mr_request_query(request, "marker") : NULL;
    if (marker && strcmp(marker, start) > 0)
        start = marker;
    const char *first = l->page.prefix;
    bool after = false;
    if (*start && strcmp(start, first) >= 0) {
        first = start;
        after = l->xml;
    }
    char *from = mr_token_decode(token);
    if (!from) {
        mr_error_set(MR_E_USAGE, "Invalid pageToken");
        return -1;
    }
    if (strcmp(from, first) > 0) {
        first = from;
        after = false;
    }
    int rc = mr_page_begin(&l->page, first, after);
    free(from);
    return rc;
}

static void finish(struct listing *l, bool token, struct mr_reply *reply)
{
    struct mr_text *out = l->out;
    if (l->n_items)
        mr_text_puts(out, "]");
    if (l->found.length) {
        mr_text_puts(out, ",\"prefixes\":[");
        mr_text_append(out, l->found.data, l->found.length);
        mr_text_puts(out, "]");
    }
    if (l->page.next && token) {
        char *text = mr_token_encode(l->page.next);
        mr_text_printf(out, ",\"nextPageToken\":\"%s\"", text ? text : "");
        out->failed |= !text;
        free(text);
    }
    mr_text_puts(out, "}");
    if (out->length > 1 && out->data[1] == ',') /* nothing came before the first comma */
        out->data[1] = ' ';
    mr_reply_header(reply, "Content-Type", "application/json; charset=UTF-8");
}

/* The root is there already, in front of the items. */
static void finish_xml(struct listing *l, uint64_t max, struct mr_reply *reply)
{
    struct mr_text *out = l->out;
    char *token = l->page.next ? mr_token_encode(l->page.next) : NULL;
    mr_text_append(out, l->found.data, l->found.length);
    mr_xml_put(out, "Name", mr_bucket_name(l->bucket));
    mr_xml_put(out, "Prefix", l->page.prefix);
    mr_xml_put_number(out, "MaxKeys", max);
    mr_xml_put_number(out, "KeyCount", l->n_items);
    mr_xml_put(out, "IsTruncated", l->page.next ? "true" : "false");
    if (token) {
        mr_xml_put(out, "NextContinuationToken", token);
    }
    free(token);
    mr_text_puts(out, "</ListBucketResult>");
    mr_reply_header(reply, "Content-Type", "application/xml; charset=UTF-8");
}

/* A parameter of the real service that would change what is listed, and is not done here; or NULL. */
static const char *asks_for_more(const struct mr_request *request)
{
    const char *soft = mr_request_query(request, "softDeleted");
    if (mr_request_query(request, "matchGlob"))
        return "matchGlob";
    return soft && strcasecmp(soft, "true") == 0 ? "softDeleted" : NULL;
}

void mr_api_list(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    struct listing l = {.out = &reply->body, .xml = request->xml};
    l.bucket = mr_api_bucket(api, request, reply);
    l.page.bucket = l.bucket;
    l.page.item = emit_item;
    l.page.group = emit_prefix;
    l.page.cls = &l;
    uint64_t max;
    if (!l.bucket || mr_api_number(request, l.xml ? "max-keys" : "maxResults", 1000, &max, reply) < 0)
        return;
    const char *other = asks_for_more(request);
    if (other) {
        mr_reply_error(reply, request, 400, "invalid", "The development store does not do %s.", other);
        return;
    }
    l.page.left = max == 0 || max > api->page_max ? api->page_max : (unsigned)max;
    l.page.prefix = or_empty(mr_request_query(request, "prefix"));
    l.page.delimiter = or_empty(mr_request_query(request, "delimiter"));
    l.page.end = l.xml ? "" : or_empty(mr_request_query(request, "endOffset"));
    struct mr_fields fields;
    bool token;
    if (set_start(&l, request) < 0 || select_fields(&l, request, &fields, &token) < 0 || mr_page_run(&l.page) < 0)
        goto fail;
    if (l.xml)
        finish_xml(&l, max, reply);
    else
        finish(&l, token, reply);
    goto out;
fail:
    mr_reply_from_error(reply, request);
out:
    mr_text_close(&l.found);
    mr_page_close(&l.page);
}
