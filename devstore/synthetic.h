/*
 * synthetic.h - a bucket's objects made up from a seed: any number of them, without a disk, at the cost of sending
 * them.
 *
 * Names: shapes.h. An object's bytes are a window of one pseudo-random slab; where the window begins depends on the
 * object's index and the seed, and no two of the first 4 million objects of a size share it. The slab is 16 MiB of
 * memory mapped many times in a row, so that any object is one contiguous range. crc32c comes from prefix sums of the
 * slab, without reading the object. Nothing is kept per object. Read-only after creation: any thread may use it.
 */
#ifndef MR_DEVSTORE_SYNTHETIC_H
#define MR_DEVSTORE_SYNTHETIC_H

#include <stdbool.h>
#include <stdint.h>

#include "devstore/shapes.h"

struct ds_object;
struct ds_synthetic;

/* Sizes are uniform in [size_min, size_max]. NULL with an error (USAGE: out of range; NO_MEMORY). */
struct ds_synthetic *ds_synthetic_new(enum ds_shape shape, uint64_t count, uint64_t size_min, uint64_t size_max,
                                      uint64_t seed);
void ds_synthetic_destroy(struct ds_synthetic *synthetic);
/* The index of the first object whose name is >= (after: >) the key; the count when there is none. */
uint64_t ds_synthetic_seek(const struct ds_synthetic *synthetic, const char *key, bool after);
/* Object number index: a new reference. NULL: no memory, or index >= count. */
struct ds_object *ds_synthetic_object(const struct ds_synthetic *synthetic, uint64_t index);

#endif
