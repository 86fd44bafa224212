#include "worker/link.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/memory/segment.h"
#include "shm/trace/trace.h"

#define SETUP_TIMEOUT_MS 10000

static int watch(struct mr_link *link, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(link->wait_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot watch a descriptor of the supervisor's");
    return -1;
}

/* Descriptor i of the message, mapped to be written; the descriptor is closed. */
static void *map_fd(struct mr_msg_in *msg, unsigned i, uint64_t size)
{
    int fd = mr_msg_take_fd(msg, i);
    if (fd < 0)
        return NULL;
    void *at = mr_segment_map(fd, size, true, NULL);
    close(fd);
    return at;
}

static int setup_woken(struct mr_link *link, struct mr_msg_in *msg)
{
    link->line = map_fd(msg, 4, sizeof *link->line);
    link->eventfd = mr_msg_take_fd(msg, 5);
    if (!link->line || link->eventfd < 0)
        return -1;
    return watch(link, link->eventfd);
}

void mr_link_set_log_level(uint64_t level)
{
    mr_log_set_level(level <= MR_LOG_DEBUG ? (enum mr_log_level)level : MR_LOG_INFO);
}

static int link_setup(struct mr_link *link, struct mr_msg_in *msg, const struct mr_link_kind *kind)
{
    if (msg->type != MR_MSG_SETUP) {
        mr_error_set(MR_E_PROTOCOL, "the supervisor's first message is of type %d and not SETUP", (int)msg->type);
        return -1;
    }
    const char *named;
    uint64_t slot, level;
    if (mr_msg_get_str(msg, "role", &named) != 0 || mr_msg_get_u64(msg, "slot", &slot) != 0 ||
        mr_msg_get_u64(msg, "generation", &link->generation) != 0 || mr_msg_get_u64(msg, "log_level", &level) != 0)
        return -1;
    if (strcmp(named, kind->role) != 0 || slot != link->slot) {
        mr_error_set(MR_E_PROTOCOL, "SETUP is for %s %u, and this is %s %u", named, (unsigned)slot, kind->role,
                     link->slot);
        return -1;
    }
    mr_link_set_log_level(level);
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = mr_config_from_fd(&link->config, fd);
    close(fd);
    if (rc != 0)
        return -1;
    fd = mr_msg_take_fd(msg, 1);
    if (fd < 0)
        return -1;
    link->board = mr_board_map(fd);
    close(fd);
    link->counters = map_fd(msg, 2, MR_COUNTERS_BYTES);
    fd = mr_msg_take_fd(msg, 3);
    if (!link->board || !link->counters || fd < 0)
        return -1;
    rc = mr_trace_attach(fd);
    close(fd);
    if (rc != 0)
        return -1;
    /* The supervisor may have died before PDEATHSIG was set: no signal would come. */
    if ((uint32_t)getppid() != link->board->supervisor_pid) {
        mr_error_set(MR_E_GONE, "the supervisor (pid %u) has ended", link->board->supervisor_pid);
        return -1;
    }
    return kind->is_woken ? setup_woken(link, msg) : 0;
}

int mr_link_init(struct mr_link *link, const struct mr_link_kind *kind, unsigned slot)
{
    memset(link, 0, sizeof *link);
    link->slot = slot;
    link->wait_fd = link->eventfd = -1;
    link->socket = MR_LINK_SOCKET;
    char name[32];
    snprintf(name, sizeof name, "%s %u", kind->role, slot);
    mr_log_init(name, MR_LOG_INFO);
    if (!kind->survives)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0); /* no core dump: credentials live here */
    signal(SIGPIPE, SIG_IGN);

    struct pollfd wait = {.fd = link->socket, .events = POLLIN};
    int rc;
    do
        rc = poll(&wait, 1, SETUP_TIMEOUT_MS);
    while (rc < 0 && errno == EINTR);
    if (rc <= 0 || (wait.revents & POLLNVAL)) {
        mr_error_set(MR_E_PROTOCOL, "no supervisor speaks on descriptor %d: millrace-worker is started by millrace",
                     link->socket);
        return -1;
    }
    struct mr_msg_in msg;
    if (mr_msg_recv(link->socket, &msg) != 1) {
        mr_error_append("waiting for SETUP");
        return -1;
    }
    link->wait_fd = epoll_create1(EPOLL_CLOEXEC);
    if (link->wait_fd < 0) {
        mr_error_set_errno(errno, "cannot make an epoll descriptor");
        rc = -1;
    } else {
        rc = watch(link, link->socket);
    }
    if (rc == 0 && kind->survives)
        rc = watch(link, MR_LINK_LIFE);
    if (rc == 0)
        rc = link_setup(link, &msg, kind);
    mr_msg_close(&msg);
    if (rc == 0)
        mr_counters_adopt(link->counters, (uint32_t)link->generation, getpid(), mr_clock_mono_ns());
    return rc;
}

bool mr_link_is_orphan(void)
{
    struct pollfd life = {.fd = MR_LINK_LIFE, .events = POLLIN};
    return poll(&life, 1, 0) > 0; /* nothing is written to it: readable is its end */
}

void mr_link_drain_wakeups(struct mr_link *link)
{
    if (link->eventfd >= 0) {
        uint64_t count;
        ssize_t n = read(link->eventfd, &count, sizeof count); /* non-blocking; EAGAIN: none */
        (void)n;
    }
}

int mr_link_send(struct mr_link *link, enum mr_msg_type type)
{
    struct mr_msg_out *msg = mr_msg_new(type);
    return msg ? mr_msg_send(link->socket, msg) : -1;
}

int mr_link_send_failed(struct mr_link *link, uint64_t dataset, uint64_t range)
{
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_FAILED);
    if (!msg)
        return -1;
    if (dataset != UINT64_MAX)
        mr_msg_put_u64(msg, "dataset", dataset);
    if (range != UINT64_MAX)
        mr_msg_put_u64(msg, "range", range);
    mr_msg_put_u64(msg, "code", mr_error_code());
    mr_msg_put_str(msg, "text", mr_error_text());
    return mr_msg_send(link->socket, msg);
}
