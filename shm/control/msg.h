/*
 * msg.h - control messages: msgpack [version, type, {key: value, ...}] plus descriptors, one SOCK_SEQPACKET packet
 * each.
 *
 * At most 64 KiB and 32 descriptors (SCM_RIGHTS). A packet that is longer, cut (MSG_TRUNC, MSG_CTRUNC), of another
 * version, or does not parse is MR_E_PROTOCOL; the supervisor answers a client's bad packet with MR_MSG_ERROR and
 * closes that connection, nothing else. Values are unsigned or negative integers, booleans, strings (UTF-8 or bytes)
 * and arrays of strings. A missing key is an error of mr_msg_get_*, an unknown key is ignored.
 */
#ifndef MR_SHM_CONTROL_MSG_H
#define MR_SHM_CONTROL_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_MSG_VERSION        1u
#define MR_MSG_BYTES_MAX      65536u
#define MR_MSG_FDS_MAX        32u
#define MR_MSG_URIS_BYTES_MAX 60000u /* of the URIs of one data set, so that a message holds them */

/*
 * Client (trainer, DataLoader worker, `millrace stat`) -> supervisor. Each is answered by MR_MSG_OK (with what follows
 * the arrow) or MR_MSG_ERROR, in order.
 *   HELLO         {pid, role: "job"|"tool"}, and {image} (mr_process_image): what earlier programs of this process
 *                 still have is free             -> {run_id, pid}; fds: board (ro), ring of spans (rw)
 *   OPEN_DATASET  {name}, or {uris: [..]},
 *                 or {uris, nth}: the nth listing of these URIs, 1 or more; the first client that asks for it has it
 *                 made, and it ends when each client that has opened it has closed it as many times, or has exited;
 *                 with {block_bytes} its objects are read by ranges of at most that (the board says how many it may
 *                 be), and are of any size,
 *                 or {objects: true} + fd: names, one a line ("\n" in a name is refused),
 *                 or {like, digest}: as the data set `like`, with the listing of this digest,
 *                 or {dataset}: the very one of this id, that another client has opened. ERROR usage: it has gone,
 *                 or {objects: true, block_bytes} + fd: the same names for this client alone, looked up now, read by
 *                 ranges of at most block_bytes (the board says how many it may be) until CLOSE_DATASET;
 *                 with {format}: "tar" (shards, whose samples are wanted), "objects", "" (by the names of the URIs)
 *                                                -> {dataset: its id (board.h), tail, on_error}, at once: its state is
 *                                                    on the board. ERROR busy: no room, but one is being closed
 *   CLOSE_DATASET {dataset}                      -> {}  its lanes are closed, or will be. It ends now (objects with
 *                                                    block_bytes), or once each client that has opened it has closed it
 *                                                    as many times, or exited: at once (nth), or when its number or
 *                                                    its memory is needed
 *   INDEX         {dataset}                      -> {size}; fds: index image (ro). ERROR busy while it is LISTING
 *   PRODUCERS     {}                             -> {producers: P, division}. ERROR busy until the arenas are there
 *   PRODUCER      {slot}                         -> {arena_bytes, division}; fds: arena (ro), producer line (ro),
 *                                                    eventfd. division: counts how often the memory was divided
 *   OPEN_LANE     {dataset, window, least, loop} -> {lane, owner, window, ahead (of it, at first; 0: all), and if a
 *                                                    loop of that key was put: has_loop, epoch, cursor, batch, world,
 *                                                    rank, seed, block, mix}; fds: control segment (rw)
 *   CLOSE_LANE    {lane}                         -> {}  the client has closed it in memory
 *   PUT_LOOP      {loop, epoch, cursor, batch, world, rank, seed, block, mix}
 *                                                -> {}  the main process, before its workers open lanes
 *   OPEN_WRITER   {uri, if_absent, sharers}      -> {lane, worker, part_bytes, arena_bytes, drain_s}; fds: checkpoint
 *                                                    lane's control segment (rw), checkpoint arena (rw), write worker's
 *                                                    producer line (ro), its eventfd. sharers: writers that this node
 *                                                    opens side by side. ERROR busy: no memory or no worker now, ask
 *                                                    again
 *   CLOSE_WRITER  {lane}                         -> {}  the client has seen the end and uses the lane no more
 *   PREPARE       {}                             -> {arena_bytes}; fds: checkpoint arena (rw). A checkpoint writer will
 *                                                    be opened: its workers and memory may be made now. ERROR busy:
 *                                                    they are being made, ask again. arena_bytes 0, no fd: nothing is
 *                                                    made ahead
 *   BATCHES       {}; fds: none, or a batch arena -> {bytes}  how much memory the batches of this node's loaders may
 *                                                    take. An arena is counted until it has ended
 *   METER         {}; fds: a loader's counters (shm/meter/meter.h) -> {epochs: log.epochs}  they are read until it has
 *                                                    ended
 *   TRACE         {}                             -> {}; fds: ring of spans (rw; shm/trace/trace.h). All processes write
 *                                                    to it until this connection ends. ERROR busy: another client
 *                                                    reads it
 *   CONFIG        {}                             -> {}; fds: configuration (memfd, as workers get it), so that a tool's
 *                                                    network code uses the same
 *   STAT          {}                             -> {size}; fds: memfd with the JSON that `millrace stat --json` prints
 *   SHUTDOWN      {}                             -> {}  private supervisor, tests
 *   RELOAD        {}  reread the configuration   -> {text: what has and what has not been applied}
 *
 * Supervisor -> worker, over the socket pair that the worker inherits as descriptor 3. Descriptor 4 is the read end of
 * a pipe that ends with the supervisor. After a worker's restart DATASET and LANE messages come before ARENA, and ARENA
 * means: begin.
 *   SETUP         {role, slot, generation, run_id, log_level, socket?}; fds: config (memfd, msgpack map; config.h),
 *                 board (ro), counters (rw), ring of spans (rw), fetch and write: producer line (rw), eventfd
 *   ARENA         {bytes, reserve, division, fresh, ahead, grows, largest, first}; fds: arena (rw). fresh: reserve its
 *                 pages first, and answer ARENA_READY or FAILED; ahead: at low priority, no client waits for them.
 *                 grows: only [0, largest) and [reserve, reserve + first); the others when they are needed
 *   DATASET       {dataset, uri, ranged}; fds: index (ro). ranged: read by ranges, never composed
 *   DROP_DATASET  {dataset}  no lane of it is left: unmap its index, answer DATASET_DROPPED
 *   LANE          {lane}; fds: control segment (rw)
 *   CKPT_LANE     {lane, uri, if_absent}; fds: control segment (rw). write: upload what comes there; after a restart
 *                 all lanes of the slot come again, before ARENA
 *   DROP_LANE     {lane}  the lane is drained: unmap it, answer DROPPED
 *   RANGE         {dataset, range, uri, start, end, has_end, ranged, shards, checksums}; fds: names (an explicit
 *                 list). list: page through [start, end), or look the names up; shards: and find the samples of what is
 *                 a tar shard; checksums: of all of them
 *   SPLIT         {range, level}  list: give away the upper part of what is left, cut at this place of the names or
 *                 after it
 *   CONCAT        {dataset, uris, names, shards, place, digest, max_age_s, requests, stale, replace, more}; fds: the
 *                 indexes of its ranges in order (<= 30 a message; `more`: another follows). list: one index of them,
 *                 saved at `place` (a path, a URI, or "") unless another process has saved one first
 *   INDEX_LOAD    {dataset, uris, names, shards, place, digest, max_age_s}; fds: with a digest and where it is known,
 *                 the present index. list: take a saved index of these URIs (names: an explicit list), of that digest
 *                 unless ""
 *   DRAIN         {}  finish what is in flight, exit 0
 *   LOG_LEVEL     {level}
 *
 * Worker -> supervisor.
 *   READY         {}  SETUP is done
 *   ARENA_READY   {}
 *   DROPPED       {lane}
 *   DATASET_DROPPED {dataset}  in later messages of this worker the number means another data set
 *   RANGE_PAGE    {range, objects, bytes, pages, shards, shards_done, shard_bytes, passed, last}  progress after each
 *                 page; passed: of shard_bytes
 *   RANGE_SPLIT   {range, mid, level, deepest}  [mid, end) is free now (supervisor/name_ranges.h); or
 *                 {range, none: true}
 *   RANGE_DONE    {range, objects, bytes, largest, dropped_*}; fds: index of the range (memfd)
 *   INDEX_DONE    {dataset, objects, bytes, largest, dropped_*, digest, requests, from}; fds: index image. from: "", or
 *                 the saved index that it is
 *   INDEX_MISSING {dataset, stale}  INDEX_LOAD found none; stale: the generation of one that is too old, or 0
 *   CKPT_ENDED    {lane}  write: its outcome is stored in the lane
 *   COMPOSE       {dataset, text}  fetch: whether its objects are composed, and why
 *   FAILED        {dataset?, range?, code, text}  for good: the data set (or the worker, without dataset) has failed
 */
enum mr_msg_type {
    MR_MSG_OK = 1,
    MR_MSG_ERROR, /* {code, text} */
    MR_MSG_HELLO,
    MR_MSG_OPEN_DATASET,
    MR_MSG_INDEX,
    MR_MSG_PRODUCERS,
    MR_MSG_PRODUCER,
    MR_MSG_OPEN_LANE,
    MR_MSG_CLOSE_LANE,
    MR_MSG_PUT_LOOP,
    MR_MSG_STAT,
    MR_MSG_SHUTDOWN,
    MR_MSG_SETUP,
    MR_MSG_ARENA,
    MR_MSG_DATASET,
    MR_MSG_LANE,
    MR_MSG_DROP_LANE,
    MR_MSG_RANGE,
    MR_MSG_SPLIT,
    MR_MSG_CONCAT,
    MR_MSG_DRAIN,
    MR_MSG_LOG_LEVEL,
    MR_MSG_READY,
    MR_MSG_ARENA_READY,
    MR_MSG_DROPPED,
    MR_MSG_RANGE_PAGE,
    MR_MSG_RANGE_SPLIT,
    MR_MSG_RANGE_DONE,
    MR_MSG_INDEX_DONE,
    MR_MSG_FAILED,
    MR_MSG_RELOAD,  /* from a client */
    MR_MSG_COMPOSE, /* from a worker */
    MR_MSG_INDEX_LOAD,
    MR_MSG_INDEX_MISSING,
    MR_MSG_OPEN_WRITER,  /* from a client */
    MR_MSG_CLOSE_WRITER, /* from a client */
    MR_MSG_CKPT_LANE,
    MR_MSG_CKPT_ENDED,
    MR_MSG_CLOSE_DATASET, /* from a client */
    MR_MSG_DROP_DATASET,
    MR_MSG_DATASET_DROPPED,
    MR_MSG_CONFIG,  /* from a client */
    MR_MSG_BATCHES, /* from a client */
    MR_MSG_PREPARE, /* from a client */
    MR_MSG_METER,   /* from a client */
    MR_MSG_TRACE,   /* from a client */
    MR_MSG_TYPE_COUNT
};

/* Outgoing. put_* may fail only by growing past the limit: the failure is kept and send reports it. */
struct mr_msg_out;
struct mr_msg_out *mr_msg_new(enum mr_msg_type type);
void mr_msg_put_u64(struct mr_msg_out *msg, const char *key, uint64_t value);
void mr_msg_put_bool(struct mr_msg_out *msg, const char *key, bool value);
void mr_msg_put_str(struct mr_msg_out *msg, const char *key, const char *value);
void mr_msg_put_strs(struct mr_msg_out *msg, const char *key, const char *const *values, size_t count);
enum mr_msg_type mr_msg_type_of(const struct mr_msg_out *msg); /* NULL: 0 */
void mr_msg_put_fd(struct mr_msg_out *msg, int fd);            /* stays the caller's; must live until send */
/* Sends and frees msg, also on failure. Blocks as the socket does; with a non-blocking one a full buffer is MR_E_BUSY.
 * GONE: the peer is. */
int mr_msg_send(int socket, struct mr_msg_out *msg);
/* The same for a sender that keeps a queue: 0 sent and freed, 1 the buffer is full and msg is still the caller's, -1
 * failed and freed. */
int mr_msg_try_send(int socket, struct mr_msg_out *msg);
/* For a message that waits in a queue: its descriptors become copies of its own, whatever the caller does with the
 * originals. 0 or -1 (then it can only be discarded). */
int mr_msg_keep_fds(struct mr_msg_out *msg);
void mr_msg_discard(struct mr_msg_out *msg);

/* Incoming. Strings live as long as the message. */
struct mr_msg_in {
    enum mr_msg_type type;
    unsigned fd_count;
    int fds[MR_MSG_FDS_MAX]; /* close-on-exec; owned by the message until taken by mr_msg_take_fd */
    bool lacks_fds;          /* not all came, since this process has no room for more */
    void *impl;
};
/* 1: got one; 0: would block (non-blocking socket); -1: GONE (end of file) or PROTOCOL. Free with mr_msg_close. */
int mr_msg_recv(int socket, struct mr_msg_in *msg);
/* The same, but also a message whose descriptors this process has no room for: that it has opened something must be
 * known, so that it can be closed. mr_msg_take_fd then fails. */
int mr_msg_recv_answer(int socket, struct mr_msg_in *msg);
void mr_msg_close(struct mr_msg_in *msg);
int mr_msg_get_u64(const struct mr_msg_in *msg, const char *key, uint64_t *value);
int mr_msg_get_u32(const struct mr_msg_in *msg, const char *key, uint32_t *value);
int mr_msg_get_bool(const struct mr_msg_in *msg, const char *key, bool *value);
int mr_msg_get_str(const struct mr_msg_in *msg, const char *key, const char **value); /* PROTOCOL if it holds a NUL */
int mr_msg_get_strs(const struct mr_msg_in *msg, const char *key, const char *const **values, size_t *count);
bool mr_msg_has(const struct mr_msg_in *msg, const char *key);
/* Descriptor i becomes the caller's; -1 (PROTOCOL, or NO_MEMORY) when there is none. */
int mr_msg_take_fd(struct mr_msg_in *msg, unsigned i);

#endif
