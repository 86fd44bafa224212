/*
 * out_pipe.h - standard output, or a FIFO, that is written while transfers go on: where its reader leaves no room, the
 * loop is stepped until there is some, so that what the store sends next is there when the reader comes back.
 */
#ifndef MR_WORKER_TOOL_OUT_PIPE_H
#define MR_WORKER_TOOL_OUT_PIPE_H

#include <stdbool.h>
#include <stdint.h>

struct mr_tool;

struct mr_out_pipe {
    int fd;           /* what is written to */
    int ready;        /* an epoll descriptor: readable while fd has room; -1: no pipe, and writes wait */
    bool own;         /* fd is ours to close */
    bool gone;        /* a write found that nobody reads any more */
    const char *what; /* for errors; the caller's */
};

/* A pipe is opened again, so that its O_NONBLOCK is ours alone; anything else is written as it is. 0 or -1. */
int mr_out_pipe_init(struct mr_out_pipe *pipe, int fd, const char *what);
/* All of it: 0, or -1, also after a signal. */
int mr_out_pipe_write(struct mr_out_pipe *pipe, struct mr_tool *tool, const void *data, uint64_t length);
/* After the tool is closed, or has been stepped without `ready`, which it knows. Safe on a zeroed one. */
void mr_out_pipe_close(struct mr_out_pipe *pipe);

#endif
