#include "devstore/fields.h"

#include <jansson.h>
#include <string.h>

#include "base/error.h"

struct cursor {
    struct ds_fields *fields;
    const char *text, *at;
    int depth;
};

static int fields_fail(const struct cursor *c, const char *why)
{
    mr_error_set(MR_E_USAGE, "Invalid field selection: %s at byte %zu of \"%.200s\"", why, (size_t)(c->at - c->text),
                 c->text);
    return -1;
}

/* The node of that name under `node`, or -1. */
static int child(const struct ds_fields *fields, int node, const char *name, size_t length)
{
    for (int i = 1; i < fields->count; i++) {
        if (fields->nodes[i].parent == node && fields->nodes[i].length == length &&
            memcmp(fields->nodes[i].name, name, length) == 0)
            return i;
    }
    return -1;
}

static int parse_list(struct cursor *c, int parent, bool closed);

/* name ['/' item | '(' list ')'] */
static int parse_item(struct cursor *c, int parent)
{
    size_t length = strcspn(c->at, ",/()");
    if (length == 0)
        return fields_fail(c, "a name is missing");
    int node = child(c->fields, parent, c->at, length);
    if (node < 0) {
        if (c->fields->count == MR_FIELDS_MAX)
            return fields_fail(c, "too many names");
        node = c->fields->count++;
        c->fields->nodes[node].name = c->at;
        c->fields->nodes[node].length = length;
        c->fields->nodes[node].parent = parent;
        c->fields->nodes[node].whole = false;
    }
    c->at += length;
    if (*c->at == '/') {
        if (++c->depth > 16)
            return fields_fail(c, "too deep");
        c->at++;
        int rc = parse_item(c, node);
        c->depth--;
        return rc;
    }
    if (*c->at == '(') {
        c->at++;
        return parse_list(c, node, true);
    }
    c->fields->nodes[node].whole = true;
    return 0;
}

static int parse_list(struct cursor *c, int parent, bool closed)
{
    int rc = -1;
    if (++c->depth > 16)
        return fields_fail(c, "too deep");
    for (;;) {
        if (parse_item(c, parent) < 0)
            goto out;
        if (*c->at != ',')
            break;
        c->at++;
    }
    if (*c->at != (closed ? ')' : 0)) {
        fields_fail(c, closed ? "')' is missing" : "unexpected character");
        goto out;
    }
    c->at += closed;
    rc = 0;
out:
    c->depth--;
    return rc;
}

int ds_fields_parse(struct ds_fields *fields, const char *text)
{
    struct cursor c = {.fields = fields, .text = text, .at = text};
    fields->count = 1;
    fields->nodes[0].name = "";
    fields->nodes[0].length = 0;
    fields->nodes[0].parent = -1;
    fields->nodes[0].whole = !text;
    return text ? parse_list(&c, 0, false) : 0;
}

int ds_fields_under(const struct ds_fields *fields, int node, const char *name)
{
    if (node < 0 || fields->nodes[node].whole)
        return node;
    int found = child(fields, node, name, strlen(name));
    return found >= 0 ? found : child(fields, node, "*", 1);
}

int ds_fields_known(const struct ds_fields *fields, int node, const char *const *names)
{
    for (int i = 1; i < fields->count; i++) {
        const char *name = fields->nodes[i].name;
        size_t length = fields->nodes[i].length;
        if (fields->nodes[i].parent != node || (length == 1 && *name == '*'))
            continue;
        size_t k = 0;
        while (names[k] && (strlen(names[k]) != length || memcmp(names[k], name, length) != 0))
            k++;
        if (!names[k]) {
            mr_error_set(MR_E_USAGE, "Invalid field selection %.*s", (int)(length > 100 ? 100 : length), name);
            return -1;
        }
    }
    return 0;
}

json_t *ds_fields_filter(const struct ds_fields *fields, int node, json_t *json)
{
    if (!json || fields->nodes[node].whole || (!json_is_object(json) && !json_is_array(json)))
        return json_incref(json);
    json_t *out = json_is_array(json) ? json_array() : json_object();
    size_t i;
    json_t *value;
    if (json_is_array(json)) {
        json_array_foreach(json, i, value) json_array_append_new(out, ds_fields_filter(fields, node, value));
        return out;
    }
    const char *key;
    json_object_foreach(json, key, value)
    {
        int below = ds_fields_under(fields, node, key);
        if (below >= 0)
            json_object_set_new(out, key, ds_fields_filter(fields, below, value));
    }
    return out;
}
