#include "devstore/pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/bucket.h"

static int set_key(struct ds_page *page, const char *bytes, size_t length, bool after)
{
    char *key = strndup(bytes, length);
    if (!key) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return -1;
    }
    free(page->key);
    page->key = key;
    page->after = after;
    return 0;
}

int ds_page_begin(struct ds_page *page, const char *name, bool after)
{
    return set_key(page, name, strlen(name), after);
}

/*
 * The place after all names that begin with these bytes: the bytes with the last one incremented. It cannot be 0xff,
 * which UTF-8 never contains; the result need not be UTF-8, since it is only compared.
 */
int ds_page_skip(struct ds_page *page, const char *bytes, size_t length)
{
    if (set_key(page, bytes, length, false) < 0)
        return -1;
    page->key[length - 1] = (char)((unsigned char)page->key[length - 1] + 1);
    return 0;
}

static int found_group(struct ds_page *page, const char *name, size_t length)
{
    char *text = strndup(name, length);
    int rc = text ? page->group(page->cls, text) : -1;
    if (!text)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
    free(text);
    return rc;
}

enum taken { FAILED = -1, PAGE_FULL, ITEM, PREFIX, BEYOND };

/* Takes one entry: an item, or a prefix and with it all names that begin with it. PAGE_FULL: the object is the first of
 * the next page. */
static enum taken pages_take(struct ds_page *page, struct ds_object *object)
{
    const char *name = object->name;
    size_t n = strlen(page->prefix);
    if (strncmp(name, page->prefix, n) != 0)
        return BEYOND; /* the key is >= the prefix, so what does not begin with it lies after it */
    if (page->wanted && !page->wanted(page->cls, name))
        return ITEM;
    const char *cut = *page->delimiter ? strstr(name + n, page->delimiter) : NULL;
    if (page->left == 0) {
        page->next = strdup(name);
        if (!page->next)
            mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return page->next ? PAGE_FULL : FAILED;
    }
    page->left--;
    if (!cut)
        return page->item(page->cls, object) < 0 ? FAILED : ITEM;
    size_t length = (size_t)(cut - name) + strlen(page->delimiter);
    return ds_page_skip(page, name, length) < 0 || found_group(page, name, length) < 0 ? FAILED : PREFIX;
}

int ds_page_run(struct ds_page *page)
{
    enum { MOST = 256 };
    struct ds_object *objects[MOST];
    /* With a delimiter most of what is fetched may be skipped. */
    size_t most = *page->delimiter ? 8 : page->left + 1 < MOST ? page->left + 1 : MOST;
    for (;;) {
        enum taken taken = ITEM;
        size_t n = ds_bucket_range(page->bucket, page->key, page->after, page->end, objects, most), used = 0;
        while (used < n && taken == ITEM)
            taken = pages_take(page, objects[used++]);
        if (n > 0 && taken == ITEM && ds_page_begin(page, objects[n - 1]->name, true) < 0)
            taken = FAILED;
        for (size_t i = 0; i < n; i++)
            ds_object_unref(objects[i]);
        if (taken == FAILED)
            return -1;
        if (taken == PAGE_FULL || taken == BEYOND || (n < most && taken != PREFIX))
            return 0;
    }
}

void ds_page_close(struct ds_page *page)
{
    free(page->key);
    free(page->next);
    page->key = page->next = NULL;
}
