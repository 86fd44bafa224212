#include "devstore/graves.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"

#define GRAVES_MAX 1000000 /* of a bucket; then the oldest are forgotten, half of them at a time */

void mr_graves_close(struct mr_graves *graves)
{
    for (size_t i = 0; i < graves->n; i++)
        mr_object_unref(graves->stubs[i]);
    free(graves->stubs);
    memset(graves, 0, sizeof *graves);
}

static void forget_oldest(struct mr_graves *graves, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mr_object_unref(graves->stubs[i]);
    graves->n -= n;
    memmove(graves->stubs, graves->stubs + n, graves->n * sizeof(struct mr_object *));
}

void mr_graves_bury(struct mr_graves *graves, struct mr_object *object, int64_t now_us, uint64_t keep_s)
{
    uint32_t crc;
    if (!object->path && mr_object_crc(object, &crc) < 0)
        return;
    struct mr_object *stub = mr_object_stub(object);
    if (!stub)
        goto forgotten;
    stub->path =
        object->path ? strdup(object->path) : NULL; /* no longer its bytes: it has no crc32c unless it is known */
    stub->soft_deleted_us = now_us;
    stub->hard_delete_us = now_us + (int64_t)keep_s * 1000000;
    if (graves->n == GRAVES_MAX)
        forget_oldest(graves, GRAVES_MAX / 2);
    if (graves->n == graves->capacity) {
        size_t capacity = graves->capacity ? graves->capacity * 2 : 64;
        struct mr_object **stubs = realloc(graves->stubs, capacity * sizeof(struct mr_object *));
        if (!stubs) {
            mr_object_unref(stub);
            return;
        }
        graves->stubs = stubs;
        graves->capacity = capacity;
    }
    graves->stubs[graves->n++] = stub;
    return;
forgotten:
    mr_error_clear();
}

static int by_name(const void *a, const void *b)
{
    const struct mr_object *x = *(struct mr_object *const *)a, *y = *(struct mr_object *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->generation < y->generation ? -1 : x->generation > y->generation;
}

struct mr_object **mr_graves_list(struct mr_graves *graves, int64_t now_us, const char *prefix, const char *start,
                                  const char *end, size_t *n)
{
    *n = 0;
    size_t over = 0;
    while (over < graves->n && graves->stubs[over]->hard_delete_us <= now_us)
        over++;
    forget_oldest(graves, over);
    struct mr_object **found = graves->n ? malloc(graves->n * sizeof(struct mr_object *)) : NULL;
    for (size_t i = 0; found && i < graves->n; i++) {
        struct mr_object *stub = graves->stubs[i];
        if (strncmp(stub->name, prefix, strlen(prefix)) == 0 && strcmp(stub->name, start) >= 0 &&
            (!*end || strcmp(stub->name, end) < 0))
            found[(*n)++] = mr_object_ref(stub);
    }
    if (*n)
        qsort(found, *n, sizeof(struct mr_object *), by_name);
    return found;
}
