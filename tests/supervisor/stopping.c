/*
 * stopping.c - a library for LD_PRELOAD that stops a supervisor between an answer and what is to follow from it.
 *
 *   STOP_AFTER_DESCRIPTORS=N   the process stops itself (SIGSTOP) after a message with N descriptors: 4 are the answer
 *                              to OPEN_WRITER
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    ssize_t sent = next(socket, message, flags);
    int number = errno;
    const char *count = getenv("STOP_AFTER_DESCRIPTORS");
    const struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (sent >= 0 && count && header && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int) * strtoul(count, NULL, 10)))
        raise(SIGSTOP);
    errno = number;
    return sent;
}
