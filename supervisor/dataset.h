/*
 * dataset.h - the data sets of a run. The same URIs share one, unless clients count their listings (`nth`).
 *
 * A data set with a saved index, or that may take a cached one, first has a list worker search for it (`load`).
 *
 *     NEW --(a list worker takes a range)--> LISTING --> indexed --(arenas are there)--> READY
 *                                               |            |                              |
 *                                               +------------+-----------> FAILED <---------+
 *
 * "Indexed" is LISTING on the board still: READY there means that a reader can begin. Ranges of names lie between the
 * data set's URIs and its index: the name space is cut where list workers are idle (listing.c), each range gives one
 * index, and these are put together in order.
 */
#ifndef MR_SUPERVISOR_DATASET_H
#define MR_SUPERVISOR_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "shm/control/config.h"
#include "shm/control/msg.h"
#include "shm/index/index.h"
#include "shm/ring/board.h"
#include "supervisor/name_ranges.h"
#include "supervisor/shard_uris.h"

struct mr_supervisor;
struct mr_child;
struct mr_client_peer;

/* A saved index instead of a listing (INDEX_LOAD). */
enum mr_dataset_load {
    MR_LOAD_NO,      /* the data set is listed */
    MR_LOAD_WANTED,  /* the next idle list worker searches for one */
    MR_LOAD_RUNNING, /* one searches */
    MR_LOAD_WAITS    /* the listing of `wanted` is not saved anywhere: `like` may turn out to be it */
};

struct mr_dataset {
    struct mr_supervisor *supervisor;
    uint32_t number;
    uint64_t nth;                /* of the listings of these URIs that clients count; 0: the one that all share */
    uint64_t id;                 /* unique in this run (shm/ring/board.h): by this, clients name it */
    unsigned clients;            /* connected ones that have opened it (clients.c) */
    enum mr_dataset_state state; /* as on the board */
    bool indexed;
    bool shards;            /* its objects are tar shards, and its index is of their samples */
    bool checksums;         /* shards: of all samples, so that every byte is read for the index */
    char *name;             /* in the TOML; NULL */
    struct mr_strings uris; /* sorted, none a prefix of another */
    int names;              /* an explicit list instead (of shards: what the patterns in `uris` stand for); -1 */
    struct mr_name_ranges ranges;
    struct mr_child *concat; /* the worker that puts the ranges' indexes together, or searches for a saved one */
    enum mr_dataset_load load;
    char *place;                       /* path or URI of its saved index; "" */
    char wanted[MR_INDEX_DIGEST_SIZE]; /* only the listing of this digest will do; "" */
    uint64_t like;                     /* with `wanted`: id of the data set that is the same but for that */
    uint64_t stale;                    /* generation or inode of a saved index that is too old; 0 */
    bool replace;                      /* `millrace index -o`: what is at `place` is replaced */
    int index;                         /* read-only descriptor; -1 */
    uint64_t index_bytes, objects, bytes, largest;
    uint64_t index_requests; /* that made the index, now or when it was saved */
    uint64_t dropped[MR_DROP_KINDS];
    char from[256]; /* the saved index that it is; "" */
    char digest[MR_INDEX_DIGEST_SIZE];
    int64_t opened_ns;
    int64_t left_ns;   /* when the last client that had it open left it; 0: never */
    bool admitted;     /* fetch_workers.c has seen its index: its blocks fit, and it was not refused */
    uint64_t sent_to;  /* fetch slots whose process was sent DATASET */
    int64_t waits_ns;  /* since when lanes that are open keep the memory from being divided for it; 0 */
    char compose[500]; /* whether its objects are composed, and why, as a worker reports; "" */
    /* Its end (dataset_end.h): */
    bool closing;         /* no lane is opened any more, */
    int64_t closing_ns;   /* since then */
    bool dropping;        /* no lane is left, and the fetch workers were sent DROP_DATASET */
    uint64_t undropped;   /* fetch slots that have not answered */
    uint64_t block_bytes; /* most of one ticket; 0: whole objects */
    /* Objects that were looked up for one client, to be read by ranges: */
    bool ranged;                  /* else the rest is unused */
    struct mr_client_peer *owner; /* NULL once it has exited */
};

/* Opens by name in the configuration, by URIs, or by a file of names (taken over on success). Returns at once. NULL:
 * USAGE, CONFIG, NO_MEMORY (also where no number is free: mr_dataset_end_make_room). A file of names is of objects,
 * unless the format says otherwise. */
struct mr_dataset *mr_dataset_open_named(struct mr_supervisor *s, const char *name, enum mr_format format);
/* nth > 0: the listing of these URIs that has this number. A client that lists anew counts on, so that processes which
 * do the same share what each of them lists for the nth time. It ends when no client has it open (dataset_end.h).
 * block_bytes > 0: its objects are read by ranges of at most that (a mount), so that they may be of any size. */
struct mr_dataset *mr_dataset_open_uris(struct mr_supervisor *s, const char *const *uris, size_t count,
                                        enum mr_format format, uint64_t nth, uint64_t block_bytes);
struct mr_dataset *mr_dataset_open_names(struct mr_supervisor *s, int fd, enum mr_format format);
/* A list of names for `owner` alone, looked up anew and read by ranges of at most block_bytes (dataset_end.h). */
struct mr_dataset *mr_dataset_open_ranged(struct mr_supervisor *s, int fd, uint64_t block_bytes,
                                          struct mr_client_peer *owner);
/* The most bytes that one ticket of it needs. */
uint64_t mr_dataset_extent(const struct mr_dataset *dataset);
/* The data set of that id with the listing of this digest: itself, or one that is looked for in the cache and at its
 * saved index. Returns at once. NULL: USAGE, NO_MEMORY. */
struct mr_dataset *mr_dataset_open_like(struct mr_supervisor *s, uint64_t id, const char *digest);
/* `millrace index URI -o FILE`: lists, and saves at `place`, replacing what is there. checksums: of all samples of tar
 * shards. NULL: USAGE (they are not shards), NO_MEMORY. */
struct mr_dataset *mr_dataset_open_to_save(struct mr_supervisor *s, const char *uri, const char *place, bool checksums);
/* NEW becomes LISTING. */
void mr_dataset_begun(struct mr_dataset *dataset);
/* INDEX_MISSING came: it is listed, or waits for the data set that it is like. */
void mr_dataset_not_saved(struct mr_dataset *dataset, uint64_t stale);
/* With `wanted`: the data set that it is like, or NULL when that has gone. */
const struct mr_dataset *mr_dataset_base(const struct mr_dataset *dataset);
/* Takes over the index of the data set that it is like, if that has turned out to be the listing that is wanted: true,
 * and it is indexed now. */
bool mr_dataset_adopt(struct mr_dataset *dataset);
/* INDEX_LOAD's and CONCAT's keys of the data set. */
void mr_dataset_put(const struct mr_dataset *dataset, struct mr_msg_out *out);
/* NULL (USAGE) when there is none of that id, any more or at all. */
struct mr_dataset *mr_dataset_find(struct mr_supervisor *s, uint64_t id);
/* As workers name it. NULL (USAGE): none has that number now. */
struct mr_dataset *mr_dataset_at(struct mr_supervisor *s, uint64_t number);
/* An explicit list of objects (of shards: not what the patterns in its URIs stand for). */
bool mr_dataset_is_list(const struct mr_dataset *dataset);
/* A list worker works on it, or is still to release it (listing.c): it cannot be closed yet. */
bool mr_dataset_is_at_work(const struct mr_dataset *dataset);
void mr_dataset_close(struct mr_dataset *dataset);
/* A client that had it open has closed it as often as it had opened it, or has gone. */
void mr_dataset_left(struct mr_dataset *dataset);

/* INDEX_DONE: fd is taken over. 0, or -1 (PROTOCOL) for an answer that makes no sense. */
int mr_dataset_indexed(struct mr_dataset *dataset, struct mr_msg_in *in);
/* Readers may begin. */
void mr_dataset_ready(struct mr_dataset *dataset);
/* Final: the board shows it. Its list workers drop it, and its lanes' waiting tickets fail, in the next settle. */
void mr_dataset_fail(struct mr_dataset *dataset, enum mr_code code, const char *text);
/* Sets the mr_error to why it is FAILED. */
void mr_dataset_explain(const struct mr_dataset *dataset);
/* Fails all that are not FAILED. */
void mr_dataset_fail_all(struct mr_supervisor *s, enum mr_code code, const char *text);
/* DATASET for a fetch worker. */
void mr_dataset_send(const struct mr_dataset *dataset, struct mr_child *fetch_worker);
/* Objects and pages so far, for the board. */
void mr_dataset_progress(struct mr_dataset *dataset);
/* For log lines. */
const char *mr_dataset_label(const struct mr_dataset *dataset);

#endif
