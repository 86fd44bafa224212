/* client_impl.h - what client.c, client_ckpt.c and client_node.c share. */
#ifndef MR_SHM_CONTROL_CLIENT_IMPL_H
#define MR_SHM_CONTROL_CLIENT_IMPL_H

#include <sys/types.h>

#include "base/silence.h"
#include "shm/control/client.h"
#include "shm/control/msg.h"

/* The checkpoint arena and the lines of the write workers, as this process maps them. The pages of the arena that it
 * has touched stay in its page tables from one save to the next. */
struct mr_ckpt_part_memory {
    void *arena;
    uint64_t arena_bytes;
    _Atomic uint8_t *touched; /* a byte a chunk */
    struct {
        const struct mr_producer_line *line; /* NULL: not known yet */
        int eventfd;
    } workers[MR_PRODUCERS_MAX];
};

struct mr_client {
    int socket;
    int supervisor; /* its pidfd; -1 when it lies outside our pid namespace: then the socket's end must do */
    pid_t supervisor_pid;
    pid_t made_by; /* a forked child must not use its parent's socket */
    const struct mr_board *board;
    struct mr_views *views;            /* NULL until mr_client_views */
    struct mr_ckpt_part_memory *parts; /* NULL until mr_client_open_writer */
    bool (*is_interrupted)(void);      /* NULL, or ends the wait for an answer */
    bool owed;                         /* the last call was not answered in time: its answer comes before the next */
    bool given_up;                     /* ... and it would have given us something: the connection was shut down */
    struct mr_silence silence;         /* of mr_client_check, all its waits together */
    uint64_t warned;                   /* the beat, plus 1, at which a silence was warned about; 0: none */
    char warning[MR_CLIENT_WARNING];   /* what mr_client_warning gives next; "" */
};

/* Sends (and frees) a request and takes its answer: 0 and *in, which the caller closes, or -1 with the answer's
 * error. */
int mr_client_call(struct mr_client *client, struct mr_msg_out *out, struct mr_msg_in *in);

#endif
