/*
 * fork_mark.h - are we still the process that made this handle? One load, safe in signal handlers.
 *
 * The mark lies in a page that the kernel wipes in a forked child (MADV_WIPEONFORK), so a child reads 0 where its
 * parent reads the mark that its handles remember. A child that makes handles of its own gets a mark of its own.
 */
#ifndef MR_SHM_MEMORY_FORK_MARK_H
#define MR_SHM_MEMORY_FORK_MARK_H

#include <stdbool.h>
#include <stdint.h>

/* This process's mark, made at the first call; 0 with mr_error set: no page. */
uint64_t mr_fork_mark(void);
bool mr_fork_mark_is(uint64_t mark);

#endif
