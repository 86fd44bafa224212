/*
 * out_pipe.h - standard output, or a FIFO, written while transfers go on: when the pipe is full, the loop is stepped
 * until there is room, so that the store's next bytes have arrived when the reader continues.
 */
#ifndef MR_WORKER_TOOL_OUT_PIPE_H
#define MR_WORKER_TOOL_OUT_PIPE_H

#include <stdbool.h>
#include <stdint.h>

struct mr_tool;

struct mr_out_pipe {
    int fd;           /* what is written to */
    int ready;        /* an epoll descriptor: readable while fd has room; -1: not a pipe, and writes block */
    bool own;         /* fd is ours to close */
    bool gone;        /* a write failed because the pipe has no reader any more */
    const char *what; /* for errors; the caller's */
};

/* Reopens a pipe, so that O_NONBLOCK affects no other process; anything else is written as it is. 0 or -1. */
int mr_out_pipe_init(struct mr_out_pipe *pipe, int fd, const char *what);
/* Writes all of it: 0, or -1, also after a signal. */
int mr_out_pipe_write(struct mr_out_pipe *pipe, struct mr_tool *tool, const void *data, uint64_t length);
/* Only after the tool is closed, or has been stepped without `ready`, which its loop watches. Safe on a zeroed one. */
void mr_out_pipe_close(struct mr_out_pipe *pipe);

#endif
