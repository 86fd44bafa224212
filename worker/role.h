/*
 * role.h - what the roles list, fetch and write have in common: start, messages, the loop, counters, the end.
 *
 *     SETUP -> init -> READY
 *     again and again, until DRAIN or the supervisor's death, and is_done:
 *         start       begins what may be begun
 *         rest        checks that nothing is left to begin, and asks for wake-ups
 *         wait        at most 100 ms: requests, messages, wake-ups (mr_http_step, which calls back)
 *         messages    handle; ARENA, DRAIN and LOG_LEVEL are dealt with here
 *         time        the wait was busy or idle; tick each 100 ms
 *     finish -> the last counters -> exit status
 *
 * A role is a structure with a struct mr_role in it, and a table of functions. The frame calls them, one at a time, on
 * the worker's only thread. Whatever a role needs of the supervisor, the network and its slot is in struct mr_role.
 */
#ifndef MR_WORKER_ROLE_H
#define MR_WORKER_ROLE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/link.h"
#include "worker/net.h"

#define MR_ROLE_STEP_MS 100 /* the longest wait, and the time between two ticks */

struct mr_role;

enum mr_role_rest {
    MR_ROLE_AGAIN, /* something came meanwhile: start again, without a wait */
    MR_ROLE_WAIT,  /* wait; a wake-up would change nothing */
    MR_ROLE_SLEEP, /* wait; `asleep` is set in the producer line, so others write the eventfd (shm/ring/wake.h) */
};

/* NULL where a role has nothing to do, unless the comment says what it must have. */
struct mr_role_ops {
    struct mr_link_kind kind;
    /* Before READY. 0, or -1 with mr_error. */
    int (*init)(struct mr_role *role);
    /* A message that the frame does not know; mr_role_unknown for one that the role does not know either. Required.
     * 0, or -1 with mr_error: the worker ends with status 1. */
    int (*handle)(struct mr_role *role, struct mr_msg_in *msg);

    /* The memory of ARENA, as errors call it; NULL: the role has none. */
    const char *arena_name;
    bool arena_populated; /* its pages are entered into the page tables at once */
    /* It is mapped: role->arena. ARENA_READY is sent when this returns 0; -1: as in handle. */
    int (*arena_mapped)(struct mr_role *role, struct mr_msg_in *msg);

    void (*start)(struct mr_role *role);
    enum mr_role_rest (*rest)(struct mr_role *role);
    /* Is the time of the coming wait busy? NULL: time and transfers are not counted. */
    bool (*is_busy)(struct mr_role *role);
    void (*tick)(struct mr_role *role, int64_t now_ns);
    /* Adds what the role itself counts: after each tick, and after finish. */
    void (*count)(struct mr_role *role);

    /* DRAIN has come, or the supervisor has died: role->draining is set. It may be called twice. */
    void (*drain)(struct mr_role *role);
    /* Draining: is it over? NULL: at once. */
    bool (*is_done)(struct mr_role *role);
    /* The end, also where role->failed. Returns whether something was lost: exit status 1. */
    bool (*finish)(struct mr_role *role);
};

struct mr_role {
    const struct mr_role_ops *ops;
    struct mr_link link;
    struct mr_net net;
    void *arena; /* NULL until ARENA */
    uint64_t arena_bytes;
    bool arena_grows; /* its first pages are there, and those of mr_role_back */
    int arena_fd;
    bool draining; /* DRAIN has come, or the supervisor has died */
    bool orphan;   /* the supervisor has died; only where kind.survives, the others fail then */
    bool failed;   /* a message or a send failed: the worker ends with status 1 */
    /* private */
    struct mr_transfer_counters counted;
    int64_t since_ns; /* start of the current busy or idle stretch */
    int64_t ticked_ns;
};

/* The whole life of a worker; role is zeroed but for what its user keeps beside it. The process's exit status: 0
 * done, 1 start me again, 2 do not. */
int mr_role_main(struct mr_role *role, const struct mr_role_ops *ops, unsigned slot);

/* For a message that no role of this kind expects: -1 with mr_error (PROTOCOL). */
int mr_role_unknown(const struct mr_role *role, const struct mr_msg_in *msg);
/* A message with a lane's number, or a data set's: {key: number}. Where it cannot be sent the supervisor has gone,
 * which shows in role->orphan or role->failed. */
void mr_role_send(struct mr_role *role, enum mr_msg_type type, const char *key, uint64_t number);
/* The supervisor does not listen any more. */
void mr_role_lost(struct mr_role *role);

/* Adds to a counter what `now` is above `last`, which becomes `now`. */
void mr_role_count(struct mr_role *role, unsigned counter, uint64_t *last, uint64_t now);
/* Operations by the class that they are billed in; the frame does it where it counts transfers at all (is_busy). */
void mr_role_count_operations(struct mr_role *role);

/* Memory for a range of an arena that grows, entered into the page tables: 0, or -1 with mr_error (NO_MEMORY). Takes some
 * milliseconds for 10 MiB. What is there already stays as it is. */
int mr_role_back(struct mr_role *role, uint64_t offset, uint64_t bytes);
/* Gives it back. */
void mr_role_unback(struct mr_role *role, uint64_t offset, uint64_t bytes);

/* At the end: steps the loop until `is_busy` is false, but not past until_ns (monotonic). Blocks. */
void mr_role_wait(struct mr_role *role, bool (*is_busy)(struct mr_role *role), int64_t until_ns);

#endif
