/*
 * client.h - the trainer's side of the control socket. One handle a process; calls are answered within the supervisor's
 * loop (it never blocks), so each returns promptly; a supervisor that is dead or silent for 10 s is MR_E_GONE. Not
 * thread-safe: the caller serialises. After a fork the child must not use the parent's handle (it checks, MR_E_USAGE):
 * connect again.
 */
#ifndef MR_SHM_CONTROL_CLIENT_H
#define MR_SHM_CONTROL_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/board.h"
#include "shm/ring/ckpt_part.h"
#include "shm/ring/consumer.h"
#include "shm/ring/lane.h"
#include "shm/ring/wake.h"

struct mr_client;

/* Connects to the socket at path and says hello. timeout_ms: how long to keep trying while it does not exist yet or
 * refuses (0: once). */
struct mr_client *mr_client_connect(const char *path, const char *role, unsigned timeout_ms);
void mr_client_destroy(struct mr_client *client);
const struct mr_board *mr_client_board(const struct mr_client *client);
/* 0 while the supervisor lives (its pidfd is not readable), else -1 with GONE and a text that names its pid and how to
 * look further. */
int mr_client_check(struct mr_client *client);

struct mr_opened {
    uint32_t dataset, tail, on_error; /* the latter two as in config.h: the defaults of readers */
};
/* Opens by a name in the TOML, or by URIs (count > 0), or an explicit list of object URIs through names_fd (>= 0: one a
 * line). Returns at once; wait with mr_client_dataset_state. */
int mr_client_open_dataset(struct mr_client *client, const char *name, const char *const *uris, size_t uri_count,
                           int names_fd, struct mr_opened *opened);
/*
 * Objects of this list for this process alone, looked up now and read by ranges (requests with offset and length) of at most
 * block_bytes; mr_client_dataset_block tells once it is READY how many they may be. BUSY: too many are being closed, ask
 * again. NOT_FOUND comes as the data set's failure.
 */
int mr_client_open_ranged(struct mr_client *client, int names_fd, uint64_t block_bytes, struct mr_opened *opened);
uint64_t mr_client_dataset_block(const struct mr_client *client, uint32_t dataset);
/* One that was opened so; its lanes have been closed. The number means nothing to this process any more. */
int mr_client_close_dataset(struct mr_client *client, uint32_t dataset);
/* Reads the board: the state; for FAILED sets the mr_error to the data set's code and text. */
/* The data set `like` of this supervisor, with the listing of a digest (64 hex digits): from the cache of indexes, or from
 * its saved index. Returns at once as well; it FAILs (CHANGED) where that listing is gone. */
int mr_client_open_listing(struct mr_client *client, uint32_t like, const char *digest, struct mr_opened *opened);
enum mr_dataset_state mr_client_dataset_state(struct mr_client *client, uint32_t dataset);
/* The index image, read-only descriptor (caller closes). BUSY while it is not READY. */
int mr_client_index(struct mr_client *client, uint32_t dataset, int *fd, uint64_t *size);
/* Maps every producer's arena and line, once a process. BUSY until the arenas are reserved. The reference is the
 * client's: mr_consumer_new takes its own; whoever keeps it beyond the client takes one with mr_views_ref. */
struct mr_views *mr_client_views(struct mr_client *client);

/* What the main process's loop hands to the worker that opens a lane with the same key (64 hex digits or fewer). */
struct mr_loop {
    uint64_t epoch, cursor, seed;
    uint32_t batch, world, rank, flags; /* flags: the Python layer's */
};
int mr_client_put_loop(struct mr_client *client, const char *key, const struct mr_loop *loop);
/* Opens a lane: *lane is mapped. window 0 is the configuration's; it is never under least. key may be NULL; *has_loop tells whether the supervisor knew it. NO_MEMORY when
 * [lanes] max is reached. */
int mr_client_open_lane(struct mr_client *client, uint32_t dataset, uint32_t window, uint32_t least, const char *key,
                        struct mr_lane *lane, struct mr_loop *loop, bool *has_loop);
/* Tells the supervisor that it is closed; never waits for it to drain. */
int mr_client_close_lane(struct mr_client *client, uint32_t lane);
/* A part lane for an object that the trainer writes (part.h). */
struct mr_ckpt_writer {
    struct mr_ckpt_lane lane; /* mapped */
    unsigned char *arena; /* the part arena, writable: slot i at mr_ckpt_part_offset(&lane, i). The client's mapping */
    const struct mr_producer_line
        *line;                /* of its write worker: mr_wake_producer after publish, seal and abort. Both are */
    int eventfd;              /* the client's too, and live as long as it */
    uint32_t drain_s;         /* a promised save may take so long after the supervisor's death */
    _Atomic uint8_t *touched; /* which chunks of the arena this process has prefaulted (prefault.h). The client's */
};
/*
 * sharers: writers that this node opens side by side (0: one); each is given an equal share. 0, or -1: BUSY (no memory or no worker
 * now: wait a moment and ask again; the text names the setting), USAGE (no such URI), GONE.
 */
int mr_client_open_writer(struct mr_client *client, const char *uri, bool if_absent, uint32_t sharers,
                          struct mr_ckpt_writer *writer);
/* Its end was seen (mr_ckpt_part_result), or it was aborted: unmaps the lane, and tells the supervisor, which may use the memory again. */
int mr_client_close_writer(struct mr_client *client, struct mr_ckpt_writer *writer);
/* The supervisor's configuration, as mr_config_from_fd and MR_ENVIRONMENT_FD take it: a descriptor, the caller's; -1. */
int mr_client_config(struct mr_client *client);
/* malloc'ed JSON text. */
char *mr_client_stat(struct mr_client *client);
/* Lets it reread its configuration: malloc'ed text of what has been applied, or NULL. */
char *mr_client_reload(struct mr_client *client);
int mr_client_shutdown(struct mr_client *client);

#endif
