/*
 * arena.h - the allocator of one producer slot's arena: private memory of that producer, rebuilt after its death.
 *
 * Units are pages (MR_ARENA_PAGE). Best fit over page runs, most recently freed first among equal fits (its lines are
 * in cache); neighbours are joined when freed. The reserve is a fixed run at the arena's start that alloc never gives
 * out: the producer gives it to heads of lanes itself (shm/ring/producer.h). The arena's bytes are shared, these tables
 * are not.
 *
 * An arena that grows has memory for its first pages only, the backed ones: nothing beyond them is given out. Its owner
 * adds to them (mr_arena_extend), and reclaims them once nothing is in use (mr_arena_shrink).
 */
#ifndef MR_SHM_MEMORY_ARENA_H
#define MR_SHM_MEMORY_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#define MR_ARENA_PAGE 4096u

struct mr_arena;

/* size_bytes and backed_bytes are rounded down to pages, reserve_bytes up; backed_bytes is at least the reserve, and at
 * most the size. NULL: NO_MEMORY, or USAGE. */
struct mr_arena *mr_arena_new(uint64_t size_bytes, uint64_t reserve_bytes, uint64_t backed_bytes);
void mr_arena_destroy(struct mr_arena *arena);
/* A run of bytes rounded up to pages (bytes > 0): its offset, or -1: no room now. */
int64_t mr_arena_alloc(struct mr_arena *arena, uint64_t bytes);
/* The first backed_bytes of it have memory now. */
void mr_arena_extend(struct mr_arena *arena, uint64_t backed_bytes);
/* Only the first backed_bytes of it, from now on. false: a run is in use, and nothing was done. */
bool mr_arena_shrink(struct mr_arena *arena, uint64_t backed_bytes);
uint64_t mr_arena_backed_bytes(const struct mr_arena *arena);
/* Marks a run as used: after a restart, before any alloc. false: it overlaps one that is used, or lies outside of what
 * is backed, so its origin is corrupt. */
bool mr_arena_claim(struct mr_arena *arena, uint64_t offset, uint64_t bytes);
/* Gives back a whole run, as allocated or claimed. */
void mr_arena_free(struct mr_arena *arena, uint64_t offset, uint64_t bytes);
/* Backed or not. */
uint64_t mr_arena_free_bytes(const struct mr_arena *arena);
uint64_t mr_arena_reserve_bytes(const struct mr_arena *arena);
/* The largest alloc that would succeed now. */
uint64_t mr_arena_largest_bytes(const struct mr_arena *arena);

#endif
