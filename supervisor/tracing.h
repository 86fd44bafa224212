/*
 * tracing.h - the ring of spans (shm/trace/trace.h) and its reader: at most one client, until its connection ends.
 */
#ifndef MR_SUPERVISOR_TRACING_H
#define MR_SUPERVISOR_TRACING_H

struct mr_supervisor;
struct mr_client_peer;
struct mr_trace_shared;

struct mr_tracing {
    struct mr_trace_shared *shared;
    int fd; /* what workers and clients get */
    const struct mr_client_peer *reader;
};

/* 0 or -1 (NO_MEMORY, IO). */
int mr_tracing_init(struct mr_supervisor *s);
/* Makes the memory; all write from now on. 0 or -1 (BUSY: another client reads, which the text names; NO_MEMORY). */
int mr_tracing_begin(struct mr_supervisor *s, const struct mr_client_peer *client);
void mr_tracing_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client);
void mr_tracing_close(struct mr_supervisor *s);

#endif
