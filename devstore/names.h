/*
 * names.h - objects ordered by name, byte-wise as unsigned (the order in which GCS lists): a skip list.
 *
 * Not thread-safe: the bucket's lock guards it. Each object in it is one reference that the list owns.
 */
#ifndef MR_DEVSTORE_NAMES_H
#define MR_DEVSTORE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

struct mr_object;
struct mr_names;

struct mr_names *mr_names_new(void); /* NULL: no memory */
void mr_names_destroy(struct mr_names *names);
size_t mr_names_count(const struct mr_names *names);
/* The object of that name, or NULL. A borrowed pointer. */
struct mr_object *mr_names_find(const struct mr_names *names, const char *name);
/* The first object whose name is >= (after: >) the key, or NULL. Borrowed. */
struct mr_object *mr_names_next(const struct mr_names *names, const char *key, bool after);
/* The first `most` of those, as new references; how many there are. */
size_t mr_names_range(const struct mr_names *names, const char *key, bool after, struct mr_object **out, size_t most);
/* Puts it in place of one of the same name, if any; takes the caller's reference. 0 or -1 (NO_MEMORY, nothing taken).
 */
int mr_names_put(struct mr_names *names, struct mr_object *object);
/* Removes the name and drops the list's reference; nothing where there is none. */
void mr_names_remove(struct mr_names *names, const char *name);

#endif
