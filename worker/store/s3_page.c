/* A page of a listing of S3: what its XML says, and whether that is plausible. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/s3_impl.h"

/* For a listing in no order: only the name itself says whether it is wanted. */
static bool is_wanted(const struct mr_store_list_request *list, const char *name)
{
    return (!list->prefix || strncmp(name, list->prefix, strlen(list->prefix)) == 0) &&
           (!list->end_offset || strcmp(name, list->end_offset) < 0) && (!list->after || strcmp(name, list->after) > 0);
}

/* Checks a name of the response: 0, and *wanted; -1 with mr_error. */
static int s3_page_check_name(const struct s3_call *call, const struct s3_page *page, const char *name, bool *wanted)
{
    const struct mr_store_list_request *list = &call->list;
    const char *before = call->sorted ? NULL : page->count ? page->items[page->count - 1].name : list->after;
    size_t asked = mr_s3_prefix_length(mr_s3_store(call), list->prefix);
    char quoted[200];
    const char *why = NULL;
    if (!name[0] || strlen(name) > MR_S3_NAME_MAX)
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

/* Leaves out what the listing does not want, and sets page->over at its end. -1 with mr_error: the listing is wrong. */
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
    if (page->over || s3_page_check_name(call, page, fields->name, &wanted) != 0)
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
        if (page->next[0] && page->sent && strcmp(page->next, page->sent) == 0) {
            mr_error_set(MR_E_PROTOCOL, "the token of the next page does not change: the listing would never end");
            good = false;
        }
        if (!page->next[0]) {
            mr_error_set(
                MR_E_PROTOCOL,
                "a truncated listing without a token for its next page: the endpoint may know the old list calls only");
            good = false;
        }
    }
    if (!good)
        mr_s3_refuse(call, answer);
    return good;
}
