/*
 * temporary.h - the temporary objects of a fetch or write worker: their names, their removal, and that of the dead.
 *
 * Names are <prefix><run uuid>/<slot>-<start>-<number>; no other process ever makes one of them. Before the first one
 * the bucket is written into this process's mark (run_mark.h), so that later workers of this machine know where to
 * list. Each is deleted after its download, with its generation, 100 to a request, at most FLUSH_MS later.
 *
 * What the dead have left is found by listing the prefix: at the worker's start, again MR_LATE_S later where a death
 * was fresh, and at its end where something is uncertain. Deleted are
 *   - objects of processes whose marks are not held (death on this machine, seconds ago or days);
 *   - our own ones that are not in use: a compose whose answer was lost;
 *   - any that are older than MR_TEMPORARY_AGE_S by the store's clock, unless their run lives on this machine. A live
 *     worker drops its own ones at half that age (mr_temporary_too_old), so what is older has no owner, wherever
 *     its node is. (A worker that was stopped for so long finds 404 and downloads the objects one by one.)
 *
 * Those of write workers are parts of a checkpoint: their bytes exist nowhere else, and a worker that dies has a
 * successor that continues with them. So for them (the maker's slot tells)
 *   - they belong to the slot, not to one of its processes: a successor adopts what its lanes name and removes the
 *     rest;
 *   - a mark that is not held counts MR_LATE_S after it was noticed, and only where no process of the run lives;
 *   - the age is MR_TEMPORARY_PART_AGE_S, and an upload that takes half of it is given up.
 */
#ifndef MR_WORKER_CLEANUP_TEMPORARY_H
#define MR_WORKER_CLEANUP_TEMPORARY_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/counters.h"
#include "worker/cleanup/run_mark.h"
#include "worker/net.h"

#define MR_TEMPORARY_PREFIX     "dataflux-composed-objects/"
#define MR_TEMPORARY_AGE_S      3600
#define MR_TEMPORARY_PART_AGE_S 86400 /* of a part of a checkpoint */
#define MR_TEMPORARY_NAME_SIZE  128

/* Whether an object of this name is a temporary one, ours or another program's. */
bool mr_temporary_has_name(const char *name);

struct mr_temporaries;      /* a worker's */
struct mr_temporary_bucket; /* in one bucket */

/* net and counters must outlive it. NULL with mr_error (NO_MEMORY). */
struct mr_temporaries *mr_temporaries_new(struct mr_net *net, struct mr_counters *counters,
                                          const struct mr_maker *maker);
/* The worker's end. NULL is allowed. */
void mr_temporaries_destroy(struct mr_temporaries *temporaries);
/*
 * The bucket, once; it lives as long as the whole. list_soon: even where no mark of a dead process names it.
 * NULL with mr_error.
 */
struct mr_temporary_bucket *mr_temporaries_bucket(struct mr_temporaries *temporaries, struct mr_store *store,
                                                  const char *endpoint, const char *bucket, bool list_soon);

/*
 * Has an object no owner any more? maker: NULL for a name of another form; age_s: -1 where it is not known; limit_s:
 * the age of the dead, -1: as above; marks: of the dead; run_lives: a process of the maker's run lives on this machine.
 */
bool mr_temporary_is_dead(const struct mr_maker *maker, int64_t age_s, int64_t limit_s,
                          const struct mr_dead_mark *marks, bool run_lives);
/* A new name, recorded, in use from now on; *number is its handle. 0, or -1 (IO, NO_MEMORY): then nothing is made. */
int mr_temporary_begin(struct mr_temporary_bucket *bucket, char name[MR_TEMPORARY_NAME_SIZE], uint64_t *number);
/* A predecessor of this slot may have left something in the bucket, or have had it under way: the bucket is listed. */
void mr_temporary_inherit(struct mr_temporary_bucket *bucket);
/* In use from now on: what that one has made, by its handle. 0 or -1 (NO_MEMORY). */
int mr_temporary_adopt(struct mr_temporary_bucket *bucket, uint64_t number);
/* The name that begin gave, here or in a predecessor. */
void mr_temporary_name_of(const struct mr_temporary_bucket *bucket, uint64_t number, char name[MR_TEMPORARY_NAME_SIZE]);
/* Each begin is ended by one of these: delete this generation; it was never made; it is unknown whether it was. */
void mr_temporary_remove(struct mr_temporary_bucket *bucket, uint64_t number, uint64_t generation);
void mr_temporary_not_made(struct mr_temporary_bucket *bucket, uint64_t number);
void mr_temporary_lost(struct mr_temporary_bucket *bucket, uint64_t number);
/* In use since begun_ns for so long that others may soon think its worker dead. */
bool mr_temporary_too_old(int64_t begun_ns, int64_t now_ns);

/* Every 100 ms or so: deletes and listings that are due. */
void mr_temporaries_step(struct mr_temporaries *temporaries, int64_t now_ns);
/* The end is near: everything that waits goes out now, and buckets with something uncertain are listed. */
void mr_temporaries_finish(struct mr_temporaries *temporaries);
/* Deletes or listings are under way. */
bool mr_temporaries_busy(const struct mr_temporaries *temporaries);

#endif
