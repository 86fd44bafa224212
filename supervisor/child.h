/*
 * child.h - one slot of worker processes: start, messages, end, restart. A handle is (slot, generation).
 *
 *            start                    READY
 *     FREE ---------> STARTING --------------> RUNNING
 *      ^                 |                        |
 *      |                 +--> ENDED <-------------+   its pidfd is readable, its last messages are read
 *      |                        |
 *      |    mr_child_settle, after the role has recovered what the process held:
 *      +-- exit 0 after DRAIN --+--> WAITING --(at once, or backoff)--> STARTING
 *                               +--> FAILED     exit 2, or eight starts in a row that published nothing
 *
 * Events only record: a process that has exited is ENDED, a restart that is due is marked. The role acts on both in its
 * own settle function (supervisor/README.md, "One place decides"), which recovers first and calls mr_child_settle then.
 */
#ifndef MR_SUPERVISOR_CHILD_H
#define MR_SUPERVISOR_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/log.h"
#include "base/silence.h"
#include "shm/control/msg.h"
#include "shm/ring/counters.h"
#include "supervisor/events.h"

struct mr_supervisor;
struct mr_child;

enum mr_child_state {
    MR_CHILD_FREE,
    MR_CHILD_STARTING,
    MR_CHILD_RUNNING,
    MR_CHILD_ENDED, /* the process has exited; what it held is not recovered yet */
    MR_CHILD_WAITING,
    MR_CHILD_FAILED
};

#define MR_CHILD_TEXT 480

/* How a process ended. */
struct mr_child_end {
    int status; /* exit status, or -1 */
    int signal; /* what killed it, or 0 */
};

struct mr_child_role {
    const char *name; /* "list", "fetch", "write": the worker's first argument */
    bool session;     /* in a session of its own: it may outlive us, to finish what was promised */
    enum mr_counter_role counters;
    unsigned first_counter, last_counter; /* their sum grows when the worker has published something */
    /* Adds the role's own descriptors to SETUP. */
    void (*setup)(struct mr_child *child, struct mr_msg_out *setup);
    /* A new process: nothing but SETUP has been sent to it. May be NULL. */
    void (*started)(struct mr_child *child);
    /* A message other than READY. 0, or -1 (mr_error): the worker broke the protocol and is killed. */
    int (*message)(struct mr_child *child, struct mr_msg_in *in);
};

struct mr_child_message;

struct mr_child {
    struct mr_supervisor *supervisor;
    const struct mr_child_role *role;
    unsigned slot, generation;
    enum mr_child_state state;
    pid_t pid;               /* 0: no process */
    int pidfd, socket;       /* -1 without a process */
    bool draining;           /* DRAIN was sent: exit 0 is wanted */
    bool renew;              /* ... and the slot starts again afterwards, with the new configuration */
    bool writing;            /* the socket is watched for room */
    bool restart_due;        /* WAITING: the backoff is over */
    bool at_rest;            /* it has become FREE or FAILED, and mr_child_has_rested was not called yet */
    struct mr_child_end end; /* ENDED: how */
    struct mr_watch process, messages;
    struct mr_timer restart;
    struct mr_child_message *queue; /* what did not fit the socket yet, in order */
    struct mr_counters *counters;
    int counters_fd;
    uint64_t published;   /* sum of the role's counters at the start */
    unsigned idle_starts; /* starts in a row that published nothing, kills by SIGKILL left out */
    unsigned backoff;     /* starts in a row that published nothing */
    int64_t started_ns;   /* of the last start */
    unsigned deaths;      /* in a row, each soon after its start, of those that have published something */
    struct mr_log_limit deaths_logged, oom_logged;
    enum mr_code fail_code;
    char fail_text[MR_CHILD_TEXT];
    void *job;                 /* the role's */
    struct mr_silence silence; /* while it is stopped (heartbeat.c) */
    bool is_stopped;           /* and that was said */
};

/* Makes the slot (its counters); no process. 0 or -1. */
int mr_child_init(struct mr_child *child, struct mr_supervisor *supervisor, const struct mr_child_role *role,
                  unsigned slot);
/* Only without a process. */
void mr_child_close(struct mr_child *child);
/* Starts a process in a slot without one. A failure is treated like a start that failed: it is tried again. */
void mr_child_start(struct mr_child *child);
/* Sends and frees msg, or queues it. A slot without a process drops it: a restart sends everything. */
void mr_child_send(struct mr_child *child, struct mr_msg_out *msg);
/* ENDED: restarts the slot, now or later, or leaves it FREE or FAILED. WAITING: restarts it when that is due. True when
 * anything has changed. */
bool mr_child_settle(struct mr_child *child);
/* True once each time that the slot has become FREE or FAILED (fail_code, fail_text). */
bool mr_child_has_rested(struct mr_child *child);
/* Asks the process to finish and exit 0; a slot that waits for its restart becomes FREE. */
void mr_child_drain(struct mr_child *child, bool renew);
/* SIGKILL; the rest happens when its pidfd is readable. */
void mr_child_kill(struct mr_child *child);
bool mr_child_has_process(const struct mr_child *child);

#endif
