#include "worker/tool/out_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "worker/tool/tool.h"

#define PIPE_BYTES (1 << 20) /* wanted; /proc/sys/fs/pipe-max-size allows this much */

int mr_out_pipe_init(struct mr_out_pipe *pipe, int fd, const char *what)
{
    struct stat st;
    *pipe = (struct mr_out_pipe){.fd = fd, .ready = -1, .what = what};
    if (fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode))
        return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (own >= 0) { /* otherwise, without /proc, a write may block */
        pipe->fd = own;
        pipe->own = true;
    }
    (void)fcntl(pipe->fd, F_SETPIPE_SZ, PIPE_BYTES); /* fewer switches between the two; it works without */
    struct epoll_event event = {.events = EPOLLOUT};
    pipe->ready = epoll_create1(EPOLL_CLOEXEC);
    if (pipe->ready >= 0 && epoll_ctl(pipe->ready, EPOLL_CTL_ADD, pipe->fd, &event) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot wait for %s", what);
    mr_out_pipe_close(pipe);
    return -1;
}

int mr_out_pipe_write(struct mr_out_pipe *pipe, struct mr_tool *tool, const void *data, uint64_t length)
{
    const char *at = data;
    if (pipe->ready < 0)
        return mr_tool_write(pipe->fd, data, length, pipe->what);
    while (length > 0) {
        ssize_t n = write(pipe->fd, at, length);
        if (mr_tool_interrupted())
            return mr_tool_step_or(tool, -1);
        if (n > 0) {
            at += n;
            length -= (uint64_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            if (mr_tool_step_or(tool, pipe->ready) != 0)
                return -1;
        } else if (n < 0 && errno != EINTR) {
            pipe->gone = errno == EPIPE;
            mr_error_set_errno(errno, "cannot write to %s", pipe->what);
            return -1;
        }
    }
    return 0;
}

void mr_out_pipe_close(struct mr_out_pipe *pipe)
{
    if (pipe->ready > 0) /* 0: a zeroed one; mr_process_begin has filled the first descriptors */
        close(pipe->ready);
    if (pipe->own)
        close(pipe->fd);
    *pipe = (struct mr_out_pipe){.ready = -1};
}
