/*
 * shapes.h - how the names of made-up objects look. Each is a function of the object's number that grows byte-wise with
 * it, so that a name is found by bisection and nothing is kept per object.
 */
#ifndef MR_DEVSTORE_SHAPES_H
#define MR_DEVSTORE_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/object.h"

enum ds_shape {
    MR_SHAPE_FLAT,    /* obj-000000000, obj-000000001, ... */
    MR_SHAPE_HASHES,  /* 16 hexadecimal digits, evenly spread */
    MR_SHAPE_DEEP,    /* a folder for each digit of the number: l0=0/l1=0/.../000000000 */
    MR_SHAPE_PREFIX,  /* all after the same 200 bytes */
    MR_SHAPE_UNICODE, /* digits of 1 to 4 bytes of UTF-8 */
    MR_SHAPE_RUNS,    /* "a", "aa", "aaa", ..., up to 1,015 of them, and a number where the count needs it */
    MR_SHAPE_SKEWED,  /* 99 of 100 under hot/, the others before and after it */
    MR_SHAPE_MARKERS, /* folders of nine objects and a marker: an empty object whose name ends in '/' */
    MR_SHAPE_CLASSES, /* as flat; one in four is NEARLINE, COLDLINE or ARCHIVE */
    MR_SHAPES
};
extern const char *const ds_shape_names[MR_SHAPES];

/* The name of object `index` of `count`: its length; NUL-terminated. */
size_t ds_shape_name(enum ds_shape shape, uint64_t count, uint64_t index, char name[MR_NAME_MAX + 1]);
/* true for what is always empty: folder markers. */
bool ds_shape_is_empty(enum ds_shape shape, uint64_t index);
/* The object's storage class; NULL: the bucket's. */
const char *ds_shape_class(enum ds_shape shape, uint64_t index);

#endif
