/*
 * arenas.c - see arenas.h. An arena and a line are made once for a slot and outlive its processes: only the functions
 * here open and close their descriptors, and each is -1 when it is closed. Nothing here knows what a slot is for.
 */
#include "supervisor/arenas.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/control/msg.h"
#include "shm/memory/segment.h"
#include "shm/ring/board.h"
#include "shm/ring/wake.h"
#include "supervisor/child.h"
#include "supervisor/run_impl.h"

void mr_arenas_close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int mr_arenas_make(struct mr_supervisor *s, struct mr_arena_fds *arena, const char *what, uint64_t bytes)
{
    enum mr_backing backing = arena->memfd ? MR_BACKING_MEMFD : (enum mr_backing)s->config.memory.backing;
    if (backing == MR_BACKING_AUTO && s->config.memory.huge_pages == MR_HUGE_PAGES_AUTO && mr_segment_huge_possible())
        backing = MR_BACKING_MEMFD; /* /dev/shm has them only where it was mounted so */
    mr_arenas_close(arena);
    arena->fd = mr_segment_new(backing, what, bytes, 0);
    if (arena->fd < 0)
        return -1;
    arena->readonly = mr_segment_reopen_readonly(arena->fd);
    return arena->readonly < 0 ? -1 : 0;
}

void mr_arenas_close(struct mr_arena_fds *arena)
{
    mr_arenas_close_fd(&arena->fd);
    mr_arenas_close_fd(&arena->readonly);
}

bool mr_arenas_fall_back(const struct mr_supervisor *s, struct mr_arena_fds *arena)
{
    if (s->config.memory.backing != MR_BACKING_AUTO || arena->memfd)
        return false;
    arena->memfd = true;
    return true;
}

int mr_arenas_make_line(struct mr_worker_line *line)
{
    if (line->eventfd >= 0)
        return 0;
    mr_arenas_close_line(line);
    line->fd = mr_segment_new(MR_BACKING_MEMFD, "worker line", MR_PRODUCER_LINE_BYTES, 1);
    if (line->fd < 0)
        return -1;
    line->readonly = mr_segment_reopen_readonly(line->fd);
    if (line->readonly < 0)
        return -1;
    line->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (line->eventfd >= 0)
        return 0;
    mr_error_set_errno(errno, "cannot make an event descriptor for a worker");
    return -1;
}

void mr_arenas_close_line(struct mr_worker_line *line)
{
    mr_arenas_close_fd(&line->fd);
    mr_arenas_close_fd(&line->readonly);
    mr_arenas_close_fd(&line->eventfd);
}

void mr_arenas_put_line(const struct mr_worker_line *line, struct mr_msg_out *out)
{
    mr_msg_put_fd(out, line->fd);
    mr_msg_put_fd(out, line->eventfd);
}

void mr_arenas_wake(const struct mr_worker_line *line)
{
    if (line->eventfd >= 0)
        eventfd_write(line->eventfd, 1);
}

void mr_arenas_send(struct mr_child *child, const struct mr_arena_fds *arena, const struct mr_arena_size *size,
                    bool fresh)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_ARENA);
    mr_msg_put_u64(out, "bytes", size->bytes);
    mr_msg_put_u64(out, "reserve", size->reserve_bytes);
    mr_msg_put_u64(out, "division", size->division);
    mr_msg_put_bool(out, "fresh", fresh);
    mr_msg_put_bool(out, "ahead", size->ahead);
    mr_msg_put_bool(out, "grows", size->grows);
    mr_msg_put_u64(out, "largest", size->largest_bytes);
    mr_msg_put_u64(out, "first", size->first_bytes);
    mr_msg_put_fd(out, arena->fd);
    mr_child_send(child, out);
}
