/* unpack.h - msgpack of unknown origin, decoded without trusting any length in it. */
#ifndef MR_BASE_UNPACK_H
#define MR_BASE_UNPACK_H

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>

/* Decodes exactly one complete value, in which no array or map claims more items than bytes follow; the object points
 * into data and into zone. 0, or -1 (PROTOCOL; also without memory, which msgpack-c does not tell apart from values
 * that are nested too deep). */
int mr_unpack(msgpack_zone *zone, const void *data, size_t length, msgpack_object *object);
/* The value of a string key in a map, or NULL. The first one counts. */
const msgpack_object *mr_unpack_find(const msgpack_object *map, const char *key);
/* Pointer and length of a str or bin value; false for another type. */
bool mr_unpack_bytes(const msgpack_object *object, const char **at, size_t *length);

#endif
