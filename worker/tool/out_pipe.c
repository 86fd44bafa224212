#include "worker/tool/out_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "worker/tool/tool.h"

#define PIPE_BYTES (1 << 20) /* wanted; /proc/sys/fs/pipe-max-size allows this much */

/* The pipe once more, in a description of its own. -1: no pipe, or it cannot be opened. */
static int reopen(int fd)
{
    struct stat st;
    char path[64];
    if (fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

int mr_out_pipe_init(struct mr_out_pipe *pipe, int fd, const char *what)
{
    *pipe = (struct mr_out_pipe){.fd = fd, .ready = -1, .what = what};
    int own = reopen(fd);
    if (own < 0)
        return 0;
    pipe->fd = own;
    pipe->own = true;
    (void)fcntl(own, F_SETPIPE_SZ, PIPE_BYTES); /* fewer turns between the two; refused, it works as it is */
    struct epoll_event event = {.events = EPOLLOUT};
    pipe->ready = epoll_create1(EPOLL_CLOEXEC);
    if (pipe->ready >= 0 && epoll_ctl(pipe->ready, EPOLL_CTL_ADD, own, &event) == 0)
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
        if (n > 0) {
            at += n;
            length -= (uint64_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            if (mr_tool_step_or(tool, pipe->ready) != 0)
                return -1;
        } else if (n < 0 && errno != EINTR) {
            mr_error_set_errno(errno, "cannot write to %s", pipe->what);
            return -1;
        }
    }
    return 0;
}

void mr_out_pipe_close(struct mr_out_pipe *pipe)
{
    if (!pipe->own)
        return;
    if (pipe->ready >= 0)
        close(pipe->ready);
    close(pipe->fd);
    pipe->own = false;
}
