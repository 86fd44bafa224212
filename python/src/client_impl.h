/*
 * client_impl.h - a Client between its type (client.c) and what lanes, readers and writers do with it (connection.c).
 *
 * Calls from several threads are put in line by a lock, and wait for the answer without the GIL. A forked child makes its
 * own Client. No code of Python's runs between begin and end: a signal handler or a finaliser that came to this Client
 * again, by a call or by the end of a lane, would wait for its own thread.
 */
#ifndef RING_CLIENT_IMPL_H
#define RING_CLIENT_IMPL_H

#include "ring.h"

typedef struct {
    PyObject_HEAD
    struct mr_client *client; /* NULL after close */
    struct mr_views *views;   /* known to the fault handler; our reference */
    PyThread_type_lock lock;
    uint64_t mark;              /* of the process that connected */
    unsigned lanes, writers;    /* open ones: they use what the client has mapped */
    struct ring_unused *unused; /* data sets to be closed: by the GIL alone */
} Client;

/* It was opened before a fork. */
bool ring_client_is_foreign(const Client *self);
/* Takes the lock: 0, or -1 with an exception (foreign, closed, the interpreter ends). */
int ring_client_begin(Client *self);
void ring_client_end(Client *self);
/* Of a data set that is READY. NULL with mr_error. Blocks, without the GIL. */
struct mr_views *ring_client_await_views(struct mr_client *client);

#endif
