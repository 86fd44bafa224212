/*
 * sidecar.h - what another program has written beside a tar shard about its members: where their data lie, and their
 * names. Two kinds of text are read:
 *
 *     v1.2 COUNT                      DALI's wds2idx: a line a sample,
 *     SUFFIX OFFSET SIZE NAME ...     four words a member
 *
 *     NAME OFFSET SIZE                tarindexer: a line a member
 *
 * OFFSET is that of the data, in bytes from the archive's beginning. Such a file says nothing about which version of the
 * shard it was made of, so nothing of it is believed that the shard's own headers contradict, and what it leaves open
 * (headers before a member's own, empty members) is read from the shard. No I/O.
 */
#ifndef MR_WORKER_LIST_SIDECAR_H
#define MR_WORKER_LIST_SIDECAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/tar.h"

struct mr_sidecar_member {
    uint64_t data, size;
    const char *name; /* in the text, NUL-terminated */
    size_t name_length;
};

struct mr_sidecar {
    char *text; /* owned */
    struct mr_sidecar_member *members;
    size_t count, room, next; /* next: the first that lies behind what has been read or left out */
    uint64_t extended;        /* bytes of headers before a member's own, as the last header that was read had them */
};

/* Takes text (malloc'ed, `length` bytes and room for one more) in any case. 0, or -1 with mr_error: CORRUPT (the line
 * that is neither, or lies outside of a shard of that size), NO_MEMORY. */
int mr_sidecar_init(struct mr_sidecar *sidecar, char *text, size_t length, uint64_t shard_size);
/* A zeroed one is allowed. */
void mr_sidecar_close(struct mr_sidecar *sidecar);

/* The shard's header of `member` was read, as its next one. 0, or -1 with mr_error (CORRUPT): the sidecar says otherwise. */
int mr_sidecar_compare(struct mr_sidecar *sidecar, const struct mr_tar_member *member);
/* The shard ends. As above: the sidecar has more. */
int mr_sidecar_end(const struct mr_sidecar *sidecar);
/* The member whose first header lies at `at`, without its header. False: it is to be read (also the one in the middle
 * and the last one, by which a sidecar of another shard is found out). */
bool mr_sidecar_next(struct mr_sidecar *sidecar, uint64_t at, struct mr_tar_member *member);

#endif
