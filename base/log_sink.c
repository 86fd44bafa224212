#include "base/log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * O_NONBLOCK belongs to the open file, which other processes share: it cannot be set on descriptor 2. A pipe or
 * terminal is opened once more for this process alone; a socket has a flag for each send; a file does not block. Where
 * the second open fails, poll comes before each write.
 */
enum kind { KIND_FILE, KIND_OWN, KIND_SOCKET, KIND_POLL };

static struct {
    pid_t pid; /* whose `kept` it is: a forked child begins without its parent's */
    dev_t device;
    ino_t inode; /* of descriptor 2 when it was looked up: the program may put something else there */
    enum kind kind;
    int own; /* KIND_OWN */
    char kept[LOG_SINK_BYTES];
    size_t length;
    uint64_t lost; /* lines */
} sink = {.own = -1};

/* Finds out what standard error is now. A pipe or a terminal is reopened non-blocking, for us alone: setting the flag
 * on the inherited one would change it for other processes too. */
static void resolve(void)
{
    if (sink.pid != getpid()) {
        sink.pid = getpid();
        sink.length = 0;
        sink.lost = 0;
    }
    struct stat now;
    if (fstat(STDERR_FILENO, &now) != 0 || (now.st_dev == sink.device && now.st_ino == sink.inode))
        return;
    if (sink.own >= 0)
        close(sink.own);
    sink.own = -1;
    sink.device = now.st_dev;
    sink.inode = now.st_ino;
    sink.kind = S_ISSOCK(now.st_mode) ? KIND_SOCKET : KIND_FILE;
    if (!S_ISFIFO(now.st_mode) && !isatty(STDERR_FILENO))
        return;
    sink.own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    sink.kind = sink.own >= 0 ? KIND_OWN : KIND_POLL;
}

/* Returns the bytes that went out; 0: it would block. Counts as written if no reader is left: there is nowhere to
 * report to. */
static size_t write_now(const char *bytes, size_t length)
{
    struct pollfd wait = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t n = -1;
    switch (sink.kind) {
    case KIND_FILE:
        n = write(STDERR_FILENO, bytes, length);
        return n < 0 ? length : (size_t)n;
    case KIND_OWN:
        n = write(sink.own, bytes, length);
        break;
    case KIND_SOCKET:
        n = send(STDERR_FILENO, bytes, length, MSG_DONTWAIT);
        break;
    case KIND_POLL: /* a pipe that polls writable has room for PIPE_BUF bytes */
        if (poll(&wait, 1, 0) != 1 || !(wait.revents & POLLOUT))
            return 0;
        n = write(STDERR_FILENO, bytes, length < PIPE_BUF ? length : PIPE_BUF);
        break;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return length; /* EPIPE, EIO: as good as written */
    return n < 0 ? 0 : (size_t)n;
}

bool mr_log_sink_flush(void)
{
    if (sink.length == 0 && sink.lost == 0)
        return true; /* nearly always: after each batch of the supervisor's events */
    resolve();
    size_t done = 0;
    while (done < sink.length) {
        size_t n = write_now(sink.kept + done, sink.length - done);
        if (n == 0)
            break;
        done += n;
    }
    memmove(sink.kept, sink.kept + done, sink.length - done);
    sink.length -= done;
    if (sink.length == 0 && sink.lost > 0) {
        char text[100];
        int length = snprintf(text, sizeof text, "millrace: %llu lines were lost while standard error was blocked\n",
                              (unsigned long long)sink.lost);
        if (write_now(text, (size_t)length) > 0)
            sink.lost = 0;
    }
    return sink.length == 0 && sink.lost == 0;
}

void mr_log_sink_put(const char *line, size_t length)
{
    resolve();
    size_t done = mr_log_sink_flush() ? write_now(line, length) : 0;
    if (done == length)
        return;
    if (sink.lost > 0 || length - done > sizeof sink.kept - sink.length) {
        sink.lost++;
        return;
    }
    memcpy(sink.kept + sink.length, line + done, length - done);
    sink.length += length - done;
}
