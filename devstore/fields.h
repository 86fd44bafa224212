/*
 * fields.h - the `fields` parameter of Google's JSON APIs (partial responses): "items(name,size),nextPageToken",
 * "items/name", "*". https://cloud.google.com/storage/docs/json_api#partial-response
 */
#ifndef MR_DEVSTORE_FIELDS_H
#define MR_DEVSTORE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

struct json_t;

#define MR_FIELDS_MAX 64 /* names in one selection */

/* A tree of the names asked for; node 0 is the whole answer. Points into the text that it was parsed from. */
struct ds_fields {
    int count;
    struct {
        const char *name;
        size_t length;
        int parent;
        bool whole; /* asked for by itself: everything beneath is included */
    } nodes[MR_FIELDS_MAX];
};

/* text NULL: everything. text must outlive fields. 0, or -1 (USAGE) with the reason. */
int ds_fields_parse(struct ds_fields *fields, const char *text);
/* The node for `name` under `node`, or -1 when it is not asked for. node -1 gives -1. */
int ds_fields_under(const struct ds_fields *fields, int node, const char *name);
/* 0 when each name asked for under node is in the NULL-terminated list; otherwise -1 (USAGE), naming the first that is
 * not. */
int ds_fields_known(const struct ds_fields *fields, int node, const char *const *names);
/* A new reference to what the selection under node leaves of json; arrays are filtered element by element. NULL: no
 * memory. */
struct json_t *ds_fields_filter(const struct ds_fields *fields, int node, struct json_t *json);

#endif
