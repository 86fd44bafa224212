/*
 * client.h - the control socket as its clients use it: trainers, their DataLoader workers, tools. One handle per
 * process.
 *
 * The supervisor never blocks, so each call is answered within one turn of its loop; a supervisor that is dead, or does
 * not answer for supervisor.silence_ms (10 s before it is known), is MR_E_GONE. One that was stopped and continues can
 * be asked again, unless the call that it did not answer opens something: then MR_E_GONE is final. Not thread-safe: the
 * caller serialises. A forked child must connect again: with its parent's handle every call is MR_E_USAGE.
 *
 * Calls return 0, or -1 with mr_error (a pointer or NULL) unless described otherwise.
 */
#ifndef MR_SHM_CONTROL_CLIENT_H
#define MR_SHM_CONTROL_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/silence.h"
#include "shm/control/loop.h"
#include "shm/meter/verdict.h"
#include "shm/ring/board.h"
#include "shm/ring/ckpt_part.h"
#include "shm/ring/consumer.h"
#include "shm/ring/lane.h"
#include "shm/ring/wake.h"

struct mr_client;

/* Connects to the socket at path and sends HELLO. timeout_ms: how long to keep trying while the socket does not exist
 * or refuses (0: once). */
struct mr_client *mr_client_connect(const char *path, const char *role, unsigned timeout_ms);
void mr_client_destroy(struct mr_client *client);
const struct mr_board *mr_client_board(const struct mr_client *client);
/* 0 while the supervisor lives (its pidfd is not readable) and gives signs of life, else -1 (GONE) with a text that
 * names its pid and what to do. A caller that waits for the supervisor calls this about ten times a second; calls that
 * are far apart count little (silence.h). */
int mr_client_check(struct mr_client *client);
/* The same for a wait that continues without the supervisor as long as the workers live: *wait is zeroed before it and
 * after each progress, so that silence counts only while nothing came. */
int mr_client_check_wait(struct mr_client *client, struct mr_silence *wait);
/* Its pidfd is readable. */
bool mr_client_has_ended(const struct mr_client *client);
/* For calls: is_interrupted is asked about four times a second while the answer is awaited; once it says true, the call
 * ends with -1 (GONE), and its answer is dropped when it comes. */
void mr_client_set_interrupt(struct mr_client *client, bool (*is_interrupted)(void));
/* A line for the user about a supervisor that has been silent for half of that time, once for each silence; "": none.
 * Valid until the next call. */
#define MR_CLIENT_WARNING 400
const char *mr_client_warning(struct mr_client *client);

/* ---- data sets ---- */

struct mr_opened {
    uint64_t dataset;        /* its id (shm/ring/board.h) */
    uint32_t tail, on_error; /* as in config.h: the defaults of readers */
};
/* What is to be opened: the first of these that is there. */
struct mr_to_open {
    const uint64_t *known; /* the id of a data set that another process has open, or had until shortly before */
    const char *digest;    /* the listing of this digest (64 hex digits), from the cache of indexes or a saved index, */
    uint64_t like;         /* of the same as this data set */
    int names_fd;          /* an explicit list of object URIs, one a line; -1: none */
    const char *const *uris;
    size_t uri_count;
    const char *name; /* in the TOML */
    /* What its objects are: NULL or "" (by their names), "objects", or "tar" (shards, whose samples are wanted). */
    const char *format;
    /* Of `uris`, 0 or the nth listing of these, which this process has listed nth - 1 times before: others that do the
     * same share it, and it ends when no process has it open. With block_bytes its objects are of any size, and read by
     * ranges of at most that, or fewer bytes (mr_client_dataset_block). */
    uint64_t nth, block_bytes;
};
/* Returns at once: the listing has ended when mr_client_dataset_state is READY or FAILED (CHANGED: the listing of that
 * digest no longer exists). USAGE, also for a known one that has gone. BUSY: there is no room, but one of those that
 * are open is being closed: ask again. NO_MEMORY: there is no room. */
int mr_client_open_dataset(struct mr_client *client, const struct mr_to_open *what, struct mr_opened *opened);
/*
 * Opens a reader's data set: the objects in names_fd for this process alone, looked up now and read by ranges (requests
 * with offset and length) of at most block_bytes, or fewer: mr_client_dataset_block, once it is READY. BUSY, NO_MEMORY:
 * as above. A missing object is the data set's failure (NOT_FOUND).
 */
int mr_client_open_ranged(struct mr_client *client, int names_fd, uint64_t block_bytes, struct mr_opened *opened);
uint64_t mr_client_dataset_block(const struct mr_client *client, uint64_t dataset);
/* Ends a reader's data set, whose lanes have been closed, or one opening of another one, which this process cannot name
 * any more unless it has opened it more often. The supervisor keeps what no process has open until it needs its number
 * (an nth listing: it ends at once). */
int mr_client_close_dataset(struct mr_client *client, uint64_t dataset);
/* The state on the board; for FAILED sets mr_error to the data set's code and text (USAGE: it has gone). */
enum mr_dataset_state mr_client_dataset_state(struct mr_client *client, uint64_t dataset);
/* The index image, as a read-only descriptor that the caller closes. BUSY while the data set is not READY. */
int mr_client_index(struct mr_client *client, uint64_t dataset, int *fd, uint64_t *size);

/* ---- lanes ---- */

/*
 * Maps every producer's arena and line, once for each process and division of the memory. BUSY until the arenas are
 * reserved. The reference is the client's, until the next call of this or of mr_client_open_lane, which release the
 * arenas of an older division: mr_consumer_new takes its own; a caller that keeps them longer takes one with
 * mr_views_ref.
 */
struct mr_views *mr_client_views(struct mr_client *client);

int mr_client_put_loop(struct mr_client *client, const char *key, const struct mr_loop *loop);
/* Opens and maps a lane. Its window is `window`, or the configuration's for 0, and never under `least`. key may be
 * NULL; *has_loop: the supervisor had a loop of that key, which is in *loop. Arenas that are mapped are those of the
 * lane afterwards. NO_MEMORY when [lanes] max is reached. BUSY: the memory is divided anew meanwhile. */
int mr_client_open_lane(struct mr_client *client, uint64_t dataset, uint32_t window, uint32_t least, const char *key,
                        struct mr_lane *lane, struct mr_loop *loop, bool *has_loop);
/* Notifies the supervisor that the lane is closed; does not wait until it is empty. */
int mr_client_close_lane(struct mr_client *client, uint32_t lane);

/* ---- checkpoint writers ---- */

/* An object that the trainer writes, by its checkpoint lane (shm/ring/ckpt_part.h). All but the lane is the client's
 * and lives as long as the client. After publish, seal and abort: mr_wake_producer(line, eventfd). */
struct mr_ckpt_writer {
    struct mr_ckpt_lane lane;            /* mapped */
    unsigned char *arena;                /* of checkpoints, writable: slot i at mr_ckpt_part_offset(&lane, i) */
    const struct mr_producer_line *line; /* the write worker's, and */
    int eventfd;                         /* its eventfd */
    uint32_t drain_s;                    /* how long a promised save may take after the supervisor's death */
    _Atomic uint8_t *touched;            /* which chunks of the arena this process has prefaulted (prefault.h) */
};
/* sharers: checkpoint writers that this node opens side by side (0: one); each is given an equal share. BUSY: no memory
 * or no worker now, ask again (the text names the setting). USAGE: no such URI. GONE. */
int mr_client_open_writer(struct mr_client *client, const char *uri, bool if_absent, uint32_t sharers,
                          struct mr_ckpt_writer *writer);
/* After its outcome was read (mr_ckpt_part_result) or it was aborted: unmaps the lane and notifies the supervisor,
 * which may then use the memory again. */
int mr_client_close_writer(struct mr_client *client, struct mr_ckpt_writer *writer);

/* One step of preparing for a writer that will be opened: asks the supervisor for its memory, then enters that into the
 * page tables, 2 MiB a call. Sets *done when nothing is left to do. 0 or -1; BUSY: ask again a moment later. */
int mr_client_prepare(struct mr_client *client, bool *done);

/* ---- the rest ---- */

/* The supervisor's configuration as mr_config_from_fd and MR_ENVIRONMENT_FD take it: a descriptor, the caller's; or
 * -1. */
int mr_client_config(struct mr_client *client);
/* How much memory the batches of this node's loaders may take; fd: a batch arena that is to be counted, or -1. It stays
 * the caller's. */
int mr_client_batches(struct mr_client *client, int fd, uint64_t *bytes);
/* Has a loader's counters read, behind this descriptor, which stays the caller's. malloc'ed: log.epochs, or "". */
char *mr_client_meter(struct mr_client *client, int fd);
/* Makes all processes of the run write their spans, until this client is destroyed: a descriptor of the ring
 * (shm/trace/trace.h), the caller's. -1 (BUSY: another client reads it; NO_MEMORY). */
int mr_client_trace(struct mr_client *client);
/* What the supervisor has counted of the node; does not block. */
void mr_client_node(const struct mr_client *client, struct mr_node *node);
/* malloc'ed JSON text. */
char *mr_client_stat(struct mr_client *client);
/* Lets it reread its configuration: malloc'ed text of what has been applied. */
char *mr_client_reload(struct mr_client *client);

#endif
