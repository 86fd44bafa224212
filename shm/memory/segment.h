/*
 * segment.h - shared memory without a name: made by the supervisor, passed by SCM_RIGHTS, freed with its last holder.
 *
 * "posix": O_TMPFILE in /dev/shm; where that fails, shm_open and shm_unlink (a kill in between leaves a name
 * "millrace.<run>.<n>", which mr_segment_sweep removes once its run is dead). "memfd": memfd_create. "auto": posix if
 * /dev/shm has room, else memfd.
 */
#ifndef MR_SHM_MEMORY_SEGMENT_H
#define MR_SHM_MEMORY_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mr_backing { MR_BACKING_AUTO, MR_BACKING_POSIX, MR_BACKING_MEMFD };

/* A descriptor (close-on-exec) of a zeroed segment of size bytes, or -1. With reserve its pages are allocated here and
 * now (posix_fallocate), so that lack of memory is an error (NO_MEMORY, with the setting to change) and never a SIGBUS;
 * this takes about 0.3 s a GiB: big ones are made without and reserved by mr_segment_reserve in a child. */
int mr_segment_new(enum mr_backing backing, const char *what, uint64_t size, bool reserve);
/* Allocates the pages of bytes [offset, offset + size): 0, or -1 (NO_MEMORY). Checks the cgroup's memory.max first,
 * since populating past it means the OOM killer. Pages that are there stay as they are. */
int mr_segment_reserve(int fd, const char *what, uint64_t offset, uint64_t size);
/* Gives the pages of a range back: it reads as zeros. Best effort. */
void mr_segment_release(int fd, uint64_t offset, uint64_t size);
/*
 * The pages of a writable mapping, or of a part of it, are entered into this process's page tables, so that no write
 * faults: 1.3 us a page of 4 KiB otherwise, which is more than a download of 4 KiB costs. About 0.3 s a GiB. Best
 * effort.
 */
void mr_segment_populate(void *at, uint64_t size);
/* Whether a memfd may have huge pages here (/sys/kernel/mm/transparent_hugepage/shmem_enabled). */
bool mr_segment_huge_possible(void);
/*
 * In place of reserve and populate, for a range of a whole segment that is mapped at `at`: its pages are allocated huge
 * where the system has such memory, which takes 0.05 s a GiB and leaves nothing to fault, and small elsewhere. 0, or -1
 * (NO_MEMORY) as mr_segment_reserve.
 */
int mr_segment_reserve_huge(int fd, void *at, const char *what, uint64_t offset, uint64_t size);
/* The same file opened read-only through /proc/self/fd: a mapping of it can never become writable. -1 on error. */
int mr_segment_reopen_readonly(int fd);
/* Maps size bytes (0: the whole file, its size stored in *size_out). NULL on error. A file smaller than size is
 * CORRUPT. */
void *mr_segment_map(int fd, uint64_t size, bool writable, uint64_t *size_out);
void mr_segment_unmap(void *at, uint64_t size);
/* Removes names left in /dev/shm by runs of this user whose supervisor is dead (shm_open fallback). Returns how many.
 */
unsigned mr_segment_sweep(void);
/* min(physical memory, this process's cgroup limit) in bytes. */
uint64_t mr_memory_limit_bytes(void);
/* Bytes that may still be allocated before that limit, best effort. */
uint64_t mr_memory_available_bytes(void);

#endif
