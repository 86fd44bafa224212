/*
 * clients.h - the listening socket and the processes that have connected to it.
 *
 * Each packet is answered at once and in order; nothing here waits. A packet that is not understood is answered with
 * ERROR and ends that connection, nothing else. A client's socket may end while its process lives and holds leases:
 * its lanes are closed by itself, or when its pidfd is readable. `struct mr_client` (shm/control/client.h) is the other
 * end.
 */
#ifndef MR_SUPERVISOR_CLIENTS_H
#define MR_SUPERVISOR_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/control/loop.h"
#include "shm/ring/board.h"
#include "supervisor/events.h"

struct mr_supervisor;

#define MR_LOOPS_MAX 256u

struct mr_client_peer {
    struct mr_client_peer *next;
    struct mr_supervisor *supervisor;
    int socket; /* -1 once the connection has ended */
    int pidfd;
    pid_t pid;
    uint64_t image; /* of the program that has connected; an exec may have followed. 0: unknown */
    bool gone;      /* its pidfd is readable, or its program is over */
    bool left;      /* the connection has ended, and its ranged data sets are closed */
    bool greeted;
    bool of_job;                     /* not a tool: keeps a private supervisor alive */
    uint64_t ids[MR_DATASETS_MAX];   /* of the last data set of that number that it has opened; UINT64_MAX: none */
    uint32_t opens[MR_DATASETS_MAX]; /* how often it has opened that one, less how often it has closed it */
    int64_t refused_ns;              /* its last OPEN_WRITER was answered with BUSY; 0 */
    struct mr_watch messages, process;
};

/* PUT_LOOP, for the OPEN_LANE of another process. */
struct mr_kept_loop {
    char key[MR_LOOP_KEY_MAX + 1];
    struct mr_loop loop;
    uint64_t used; /* when, in calls: the oldest one is replaced */
};

struct mr_clients {
    int listener; /* -1 */
    int spare;    /* a descriptor to close when no other is left, so that a client can get an answer; -1 */
    struct mr_watch accept;
    struct mr_timer again; /* private: accepts again, where it could not */
    struct mr_client_peer *first;
    bool any_yet; /* a process of a job has connected */
    struct mr_kept_loop loops[MR_LOOPS_MAX];
    unsigned loop_count;
    uint64_t loop_clock;
    struct mr_timer unused; /* private: ends the supervisor once no process of a job is connected */
    /* private: a socket as standard output. Whoever started it keeps the other end until it is connected: if that closes
     * before anyone has come, nobody will. */
    struct mr_watch starter;
};

/* Takes over the listening socket. 0 or -1. */
int mr_clients_init(struct mr_supervisor *s, int listener);
void mr_clients_close(struct mr_supervisor *s);
/* Ends clients whose process or connection has ended: first their data sets, lanes and checkpoints. True when anything
 * has changed. */
bool mr_clients_settle(struct mr_supervisor *s);

#endif
