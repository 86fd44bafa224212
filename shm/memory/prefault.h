/*
 * prefault.h - pages of the checkpoint arena that will be written, put into this process's page tables by a thread
 * (MADV_POPULATE_WRITE, Linux 5.14; where it is missing nothing happens).
 *
 * The pages themselves are there: a write worker has reserved them. What is saved is a fault at each 4 KiB, which costs
 * five times the copy of these bytes. What a process has prefaulted once stays, for its later saves too.
 */
#ifndef MR_SHM_MEMORY_PREFAULT_H
#define MR_SHM_MEMORY_PREFAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_PREFAULT_CHUNK ((uint64_t)2 << 20)

struct mr_prefault;

/* touched: a byte for each chunk of the arena, 1 once it is in the page tables; shared by the threads of this process.
 * NULL: no thread could be started. Both outlive the handle. */
struct mr_prefault *mr_prefault_new(unsigned char *arena, uint64_t offset, uint64_t bytes, _Atomic uint8_t *touched);
/* Lets the thread continue up to `to` bytes from the offset. Does not wait. */
void mr_prefault_ahead(struct mr_prefault *prefault, uint64_t to);
/* Waits for the chunk that is being done. NULL is allowed. */
void mr_prefault_destroy(struct mr_prefault *prefault);
/* The first chunk of the arena that is not touched, by the calling thread. True when none is left, or the kernel
 * cannot. */
bool mr_prefault_step(unsigned char *arena, uint64_t bytes, _Atomic uint8_t *touched);

#endif
