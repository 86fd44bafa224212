/* container.h - from a member of a structure to the structure. */
#ifndef MR_BASE_CONTAINER_H
#define MR_BASE_CONTAINER_H

#include <stddef.h>

/* The `struct type` whose `member` is at `pointer`; a pointer to another type than the member's is a compile error. */
#define MR_CONTAINER_OF(pointer, type, member) \
    ((struct type *)(void *)((char *)(1 ? (pointer) : &((struct type *)0)->member) - offsetof(struct type, member)))

#endif
