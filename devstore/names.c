#include "devstore/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "devstore/object.h"

#define LEVELS 24 /* a node is on level n with probability 4^-n: enough for any number of objects that fits memory */

struct node {
    struct ds_object *object;
    struct node *next[];
};

struct ds_names {
    size_t count;
    unsigned height;
    struct node *heads[LEVELS];
};

struct ds_names *ds_names_new(void)
{
    struct ds_names *names = calloc(1, sizeof *names);
    if (!names) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a bucket");
        return NULL;
    }
    names->height = 1;
    return names;
}

void ds_names_destroy(struct ds_names *names)
{
    if (!names)
        return;
    for (struct node *node = names->heads[0]; node;) {
        struct node *next = node->next[0];
        ds_object_unref(node->object);
        free(node);
        node = next;
    }
    free(names);
}

size_t ds_names_count(const struct ds_names *names)
{
    return names->count;
}

/*
 * The first node whose name is >= key (after: >). links[i], unless NULL, becomes the address of the pointer that
 * passes over that place on level i. strcmp compares as unsigned char (C11 7.24.4).
 */
static struct node *seek(const struct ds_names *names, const char *key, bool after, struct node **links[LEVELS])
{
    struct node *const *level = names->heads;
    for (unsigned i = names->height; i-- > 0;) {
        for (struct node *node; (node = level[i]); level = node->next) {
            int order = strcmp(node->object->name, key);
            if (order > 0 || (order == 0 && !after))
                break;
        }
        if (links)
            links[i] = (struct node **)&level[i];
    }
    return level[0];
}

struct ds_object *ds_names_find(const struct ds_names *names, const char *name)
{
    struct node *node = seek(names, name, false, NULL);
    return node && strcmp(node->object->name, name) == 0 ? node->object : NULL;
}

struct ds_object *ds_names_next(const struct ds_names *names, const char *key, bool after)
{
    struct node *node = seek(names, key, after, NULL);
    return node ? node->object : NULL;
}

size_t ds_names_range(const struct ds_names *names, const char *key, bool after, struct ds_object **out, size_t most)
{
    size_t n = 0;
    for (struct node *node = seek(names, key, after, NULL); node && n < most; node = node->next[0])
        out[n++] = ds_object_ref(node->object);
    return n;
}

int ds_names_put(struct ds_names *names, struct ds_object *object)
{
    struct node **links[LEVELS];
    struct node *node = seek(names, object->name, false, links);
    if (node && strcmp(node->object->name, object->name) == 0) {
        ds_object_unref(node->object);
        node->object = object;
        return 0;
    }
    unsigned height = 1;
    for (uint64_t coin = mr_random64(); height < LEVELS && (coin & 3) == 0; coin >>= 2)
        height++;
    node = malloc(sizeof *node + height * sizeof(struct node *));
    if (!node) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for another object");
        return -1;
    }
    node->object = object;
    for (; names->height < height; names->height++)
        links[names->height] = &names->heads[names->height];
    for (unsigned i = 0; i < height; i++) {
        node->next[i] = *links[i];
        *links[i] = node;
    }
    names->count++;
    return 0;
}

void ds_names_remove(struct ds_names *names, const char *name)
{
    struct node **links[LEVELS];
    struct node *node = seek(names, name, false, links);
    if (!node || strcmp(node->object->name, name) != 0)
        return;
    for (unsigned i = 0; i < names->height && *links[i] == node; i++)
        *links[i] = node->next[i];
    names->count--;
    ds_object_unref(node->object);
    free(node);
}
