/*
 * access.h - which instructions touch what processes share.
 *
 * Another role's step between two instructions that touch only private memory is the same as before the first of them:
 * so peers step in before each instruction that touches the shared memory, and nowhere else.
 */
#ifndef MR_CRASH_ACCESS_H
#define MR_CRASH_ACCESS_H

#include "tests/crash/whole/cast.h"

/* Does the operation once, in a child. The result is by offset into the code under test, 1: it touches the shared
 * memory, at least sometimes; munmap it (tracee_code_size() bytes). The shared memory is as after the operation. */
uint8_t *access_find(struct cast *cast, void (*op)(struct cast *));

#endif
