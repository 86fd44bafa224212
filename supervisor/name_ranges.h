/*
 * name_ranges.h - the ranges of names of one data set: which worker lists which, and which to cut when one is idle.
 *
 * Pure bookkeeping: no messages, no processes. Requests are billed, so cuts are rationed. A cut costs at most one
 * request (its last page is not full, or nothing is there): with at most RESERVE + requests / SHARE cuts a listing of
 * N objects takes at most N / page + that many requests, and with one worker exactly N / page, rounded up.
 *
 * Where to cut is a guess (worker/list/split.h), made at a level of the names. Between two ranges that both have names
 * the first level at which they differ is right. Where nothing is known above, in the last range and below a cut that
 * had nothing above it, the level is searched: `failed` is the deepest one that gave an empty upper range, `level` the
 * one to try. An empty upper range moves it half the way to where the names of a page differ; a lower range that ends
 * while there is more above moves it half the way back. So the level of a prefix of 1,000 bytes is found in about ten
 * cuts, and most names need none. What is learnt goes with the upper range (`line`), since that is where it is needed.
 */
#ifndef MR_SUPERVISOR_NAME_RANGES_H
#define MR_SUPERVISOR_NAME_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#define MR_NAME_RANGES_MAX 512u /* of one data set: each costs a descriptor until their indexes are put together */

/* Names from start (""; inclusive) to end (NULL: no bound) under one URI. */
struct mr_name_range {
    struct mr_name_range *next; /* in the order of names */
    uint64_t id;
    void *owner;     /* the data set, as it was given to mr_name_ranges_add */
    const char *uri; /* the owner's */
    char *start, *end;
    void *worker;         /* the worker that lists it now; NULL */
    bool done, splitting; /* splitting: it was asked for a cut and has not answered */
    uint64_t objects, pages, bytes;
    uint64_t shards, shards_done, shard_bytes, passed; /* archives that are read; passed: of shard_bytes */
    uint64_t split_after;                              /* pages before which it is not worth asking again */
    unsigned refused;                                  /* times in a row that no cut was found */
    uint64_t line;   /* the search of a level that it continues; 0: none, there are names above its end */
    uint64_t level;  /* where to cut next */
    int64_t failed;  /* deepest level that gave an empty upper range; -1 */
    uint64_t cut_id; /* the range that was cut off last; 0: none */
    uint64_t cut_line, cut_level, cut_deepest;
    int index; /* descriptor of its index once done; -1 */
};

struct mr_name_ranges {
    struct mr_name_range *first;
    unsigned count, cuts;
    uint64_t requests; /* pages that came, those of workers that died included */
    uint64_t page;     /* most objects of one page */
};

/* One more URI, after the others. NULL: NO_MEMORY. ids are not 0. */
struct mr_name_range *mr_name_ranges_add(struct mr_name_ranges *ranges, void *owner, uint64_t id, const char *uri);
/* Frees all, and closes their indexes. The counts of requests stay. */
void mr_name_ranges_clear(struct mr_name_ranges *ranges);
uint64_t mr_name_ranges_objects(const struct mr_name_ranges *ranges);
/* There are some, and all are done. */
bool mr_name_ranges_complete(const struct mr_name_ranges *ranges);
/* The first that no worker lists; NULL. */
struct mr_name_range *mr_name_ranges_waiting(const struct mr_name_ranges *ranges);
/* The range that has given the most and may be cut now; NULL. */
struct mr_name_range *mr_name_ranges_busiest(const struct mr_name_ranges *ranges);
/* Ranges that wait, and those that were asked for a cut. */
unsigned mr_name_ranges_promised(const struct mr_name_ranges *ranges);

void mr_name_range_begin(struct mr_name_range *range, void *worker);
/* Its worker has exited: all of it waits again. */
void mr_name_range_give_back(struct mr_name_range *range);
/* A page came: objects and pages since begin. */
void mr_name_range_page(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t objects, uint64_t pages);
/* The worker found no cut. */
void mr_name_range_uncut(struct mr_name_range *range);
/* [mid, end) becomes a range of its own, after this one. NULL: NO_MEMORY, or PROTOCOL (mid lies outside). */
struct mr_name_range *mr_name_range_cut(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t id,
                                        const char *mid, uint64_t level, uint64_t deepest);
/* All of it is listed. */
void mr_name_range_done(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t objects);

#endif
