/* pages.h - one page of a bucket's objects and of the prefixes that a delimiter makes of them, in the order of names. */
#ifndef MR_DEVSTORE_PAGES_H
#define MR_DEVSTORE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

struct ds_bucket;
struct ds_object;

struct ds_page {
    struct ds_bucket *bucket;
    const char *prefix, *delimiter, *end; /* "": none */
    unsigned left;                        /* entries that it has room for */
    /* Each entry: an object, or a prefix that stands for all names that begin with it. 0, or -1 to fail. */
    int (*item)(void *cls, struct ds_object *object);
    int (*group)(void *cls, const char *prefix);
    /* Whether a name is one of this listing; NULL: all are. */
    bool (*wanted)(void *cls, const char *name);
    void *cls;
    char *next; /* the name with which the next page begins; NULL: this is the last */
    /* Private. */
    char *key;  /* the next name is >= this */
    bool after; /* the next name is > key */
};

/* Begins the page at that name, or after it. 0 or -1 (NO_MEMORY). */
int ds_page_begin(struct ds_page *page, const char *name, bool after);
/* Begins the page after all names that start with these bytes; there must be at least one byte. */
int ds_page_skip(struct ds_page *page, const char *bytes, size_t length);
/* Calls item and group for each entry. 0 or -1. */
int ds_page_run(struct ds_page *page);
void ds_page_close(struct ds_page *page);

#endif
