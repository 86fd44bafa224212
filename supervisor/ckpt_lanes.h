/*
 * ckpt_lanes.h - the registry of checkpoint lanes: a checkpoint from OPEN_WRITER until its memory is free again.
 *
 *     UPLOADING --(CKPT_ENDED, worker cannot work)--> ENDED --(closed and every word at rest, or the client is dead)
 *         --> DROPPING
 *     DROPPING --(its worker has answered DROPPED, or has exited)--> slot and memory free
 *
 * UPLOADING holds while the worker has anything to do with it, the removal of what an aborted upload left included.
 * "Closed": the client has sent CLOSE_WRITER, or its pidfd is readable. A client that exits, or closes before the
 * end, aborts the lane unless it is sealed; a sealed one is a promise, and what becomes of it is remembered (`lost`)
 * unless the client closed the lane after its end, so that it has seen it.
 *
 * A worker that dies DEATHS_MAX times while nothing of a lane is stored takes the lane with it: FAILED.
 */
#ifndef MR_SUPERVISOR_CKPT_LANES_H
#define MR_SUPERVISOR_CKPT_LANES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "shm/ring/ckpt_part.h"
#include "supervisor/events.h"

struct mr_supervisor;
struct mr_client_peer;

#define MR_CKPT_LANES_MAX    256u /* each has a control segment of 1 MiB */
#define MR_CKPT_PART_URI_MAX 5000u

enum mr_ckpt_state { MR_CKPT_UPLOADING, MR_CKPT_ENDED, MR_CKPT_DROPPING };

struct mr_ckpt_entry {
    struct mr_ckpt_lane lane;
    int fd;
    char *uri;
    bool if_absent;
    enum mr_ckpt_state state;
    struct mr_client_peer *client; /* NULL once it has exited */
    pid_t pid;                     /* its, for people */
    bool closed;                   /* the client no longer uses it */
    bool seen;                     /* ... and had seen its end */
    bool logged;                   /* the log has its end */
    bool sent;                     /* its worker's process was sent CKPT_LANE (write_workers.c) */
    bool drop_sent;                /* ... and DROP_LANE (write_workers.c) */
    bool dropped;                  /* ... and has answered */
    unsigned deaths;               /* of its worker, since something was stored */
    uint64_t stored_at_death;
    int64_t opened_ns;
};

struct mr_ckpt_lanes {
    struct mr_ckpt_entry *slots[MR_CKPT_LANES_MAX];
    unsigned open; /* in any state */
    unsigned next; /* where the search for a free one begins: numbers are not reused at once */
    unsigned lost; /* promised, not saved, and no client has seen it */
    struct mr_timer timer;
    bool send_again; /* for write_workers.c: the timer has run */
    uint64_t wake;   /* for write_workers.c: slots that have to check their lanes again */
};

void mr_ckpt_lanes_init(struct mr_supervisor *s);
void mr_ckpt_lanes_close(struct mr_supervisor *s);

/* 0, or -1 (USAGE, GONE): a checkpoint cannot be written to that URI, or not now. */
int mr_ckpt_lanes_check(const struct mr_supervisor *s, const char *uri);
/* A lane for the object `uri`, which was checked, served by a write slot. NULL: BUSY (no memory now), NO_MEMORY. */
struct mr_ckpt_entry *mr_ckpt_lanes_open(struct mr_supervisor *s, struct mr_client_peer *client, const char *uri,
                                         bool if_absent, uint64_t sharers, unsigned worker);
/* CLOSE_WRITER. -1 (USAGE): it is another client's, or there is none. */
int mr_ckpt_lanes_close_one(struct mr_supervisor *s, const struct mr_client_peer *client, uint64_t number);
/* The client's process has exited: its pidfd is readable. */
void mr_ckpt_lanes_client_died(struct mr_supervisor *s, const struct mr_client_peer *client);
/* Logs ends; lanes that have ended and are closed begin to drop. True when one does. */
bool mr_ckpt_lanes_settle(struct mr_supervisor *s);
/* A lane that is dropping without further use: its worker has dropped it, or has no process. */
void mr_ckpt_lanes_forget(struct mr_supervisor *s, uint32_t number);

unsigned mr_ckpt_lanes_of(const struct mr_supervisor *s, const struct mr_client_peer *client);
/* How many a write slot has to serve. */
unsigned mr_ckpt_lanes_served(const struct mr_supervisor *s, unsigned slot);
/* False, and the lane fails: its trainer has written over the memory that describes it, and a worker could not map
 * it. */
bool mr_ckpt_lanes_is_sound(struct mr_supervisor *s, uint32_t number);

/* CKPT_ENDED and DROPPED from a write slot. */
void mr_ckpt_lanes_ended(struct mr_supervisor *s, uint64_t number, unsigned slot);
void mr_ckpt_lanes_dropped(struct mr_supervisor *s, uint64_t number, unsigned slot);
/* After the worker's pidfd is readable; and when no other one will be started in that slot. */
void mr_ckpt_lanes_worker_died(struct mr_supervisor *s, unsigned slot);
void mr_ckpt_lanes_worker_failed(struct mr_supervisor *s, unsigned slot, enum mr_code code, const char *text);

/* OPEN lanes are aborted, with why. */
void mr_ckpt_lanes_abort_open(struct mr_supervisor *s, const char *why);
/* Every lane that has not ended: FAILED. */
void mr_ckpt_lanes_fail_all(struct mr_supervisor *s, enum mr_code code, const char *text);
/* Bytes of a lane that the store has, and that the trainer has written so far. */
void mr_ckpt_entry_progress(const struct mr_ckpt_entry *entry, uint64_t *stored, uint64_t *total);
/* Bytes of the arena that no lane has. */
uint64_t mr_ckpt_lanes_free_bytes(const struct mr_supervisor *s);

#endif
