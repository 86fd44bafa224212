/*
 * names.h - objects ordered by name, byte-wise as unsigned (the order in which GCS lists): a skip list.
 *
 * Not thread-safe: the bucket's lock guards it. Each object in it is one reference that the list owns.
 */
#ifndef MR_DEVSTORE_NAMES_H
#define MR_DEVSTORE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

struct ds_object;
struct ds_names;

struct ds_names *ds_names_new(void); /* NULL: no memory */
void ds_names_destroy(struct ds_names *names);
size_t ds_names_count(const struct ds_names *names);
/* The object of that name, or NULL. A borrowed pointer. */
struct ds_object *ds_names_find(const struct ds_names *names, const char *name);
/* The first object whose name is >= (after: >) the key, or NULL. Borrowed. */
struct ds_object *ds_names_next(const struct ds_names *names, const char *key, bool after);
/* The first `most` of those, as new references. Returns how many. */
size_t ds_names_range(const struct ds_names *names, const char *key, bool after, struct ds_object **out, size_t most);
/* Adds it, or replaces the one of the same name; takes the caller's reference. 0 or -1 (NO_MEMORY, nothing taken). */
int ds_names_put(struct ds_names *names, struct ds_object *object);
/* Removes the name and drops the list's reference; nothing where there is none. */
void ds_names_remove(struct ds_names *names, const char *name);

#endif
