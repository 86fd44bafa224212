/*
 * write_workers.h - the write workers, and the memory that checkpoints pass through.
 *
 * Nothing of it exists before the first checkpoint writer is opened, or is expected (checkpoint.prepare). Then the
 * checkpoint arena is made, write worker 0 reserves its pages, and when it has the others start; meanwhile OPEN_WRITER
 * is answered with BUSY.
 *
 *     NONE --(first OPEN_WRITER, PREPARE)--> RESERVING --(ARENA_READY of worker 0)--> READY
 *       ^                                        |
 *       +----(no memory, or worker 0 cannot work: OPEN_WRITER is answered with why for RETRY_MS, then tries again)
 *
 * A write worker has a session of its own and no PDEATHSIG: when this process dies it finishes what was promised. Its
 * death here: wait for its pidfd, recover its words in its lanes, start the next one in that slot, send it the lanes. A
 * slot that will not work (exit 2, started too often) loses its lanes: they fail with its text, and are not given to
 * another one, which they may have been the reason for. The next OPEN_WRITER after RETRY_MS starts it again.
 */
#ifndef MR_SUPERVISOR_WRITE_WORKERS_H
#define MR_SUPERVISOR_WRITE_WORKERS_H

#include "shm/ring/board.h"
#include "supervisor/arenas.h"
#include "supervisor/child.h"

struct mr_write_slot {
    struct mr_worker_line line;
    bool arena_sent;   /* to its process */
    bool stale;        /* it has an older configuration: started again once it serves no lane */
    int64_t failed_ns; /* when it turned out that it cannot work; 0 */
};

struct mr_write_workers {
    enum mr_arenas_state state;
    struct mr_child workers[MR_PRODUCERS_MAX];
    struct mr_write_slot slots[MR_PRODUCERS_MAX];
    unsigned count;       /* slots that are made: 0 or checkpoint.workers */
    uint64_t arena_bytes; /* 0 until it is made */
    struct mr_arena_fds arena;
    bool ahead;             /* it is made before any client waits for it */
    bool reserved;          /* ARENA_READY came from worker 0 */
    bool no_room;           /* FAILED came instead: its pages could not be reserved */
    enum mr_code fail_code; /* why the last attempt failed; OK */
    char fail_text[MR_CHILD_TEXT];
    int64_t failed_ns;
};

void mr_write_workers_init(struct mr_supervisor *s);
void mr_write_workers_close(struct mr_supervisor *s);
/* A writer is likely: begins to make the arena. 0: *there says whether there is one; none where the configuration says
 * never, or an attempt has just failed. -1 (BUSY): ask again. */
int mr_write_workers_prepare(struct mr_supervisor *s, bool *there);
/* 0 when the arena and a worker are there, and *slot is the one with the fewest lanes; -1: BUSY (ask again), NO_MEMORY,
 * or why no worker can work. */
int mr_write_workers_choose(struct mr_supervisor *s, unsigned *slot);
/* Recovers what the dead held and restarts them; makes the arena; sends the workers what they have not been sent;
 * forgets lanes that are dropped. True when anything has changed. */
bool mr_write_workers_settle(struct mr_supervisor *s);
/* What the arena has, or would have. */
uint64_t mr_write_workers_arena_bytes(const struct mr_supervisor *s);
/* Is there any process? */
bool mr_write_workers_any(const struct mr_supervisor *s);
/* The configuration has changed. A drained write worker aborts what is open: each is started again when it is idle. */
void mr_write_workers_renew(struct mr_supervisor *s);
/* Asks them to finish; or kills them. */
void mr_write_workers_drain(struct mr_supervisor *s);
void mr_write_workers_kill(struct mr_supervisor *s);

#endif
