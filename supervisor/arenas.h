/*
 * arenas.h - the segments of worker slots: what fetch workers and write workers have in common.
 *
 * A slot has a line (its `asleep` word), an eventfd that wakes it, and an arena: a fetch worker one of its own, the
 * write workers one together. All outlive the processes of the slot, so that the next one finds them.
 */
#ifndef MR_SUPERVISOR_ARENAS_H
#define MR_SUPERVISOR_ARENAS_H

#include <stdbool.h>
#include <stdint.h>

struct mr_supervisor;
struct mr_child;
struct mr_msg_out;

/* NONE: no memory is needed yet, or the last attempt failed. RESERVING: the workers touch the pages. */
enum mr_arenas_state { MR_ARENAS_NONE, MR_ARENAS_RESERVING, MR_ARENAS_READY };

/* One arena. Both descriptors are -1 where there is none. */
struct mr_arena_fds {
    int fd, readonly;
    bool memfd; /* /dev/shm had no room: memfd from now on */
};

/* A slot's line, which others may read, and its eventfd; -1 where there is none. */
struct mr_worker_line {
    int fd, readonly;
    int eventfd;
};

#define MR_ARENA_FDS_NONE   ((struct mr_arena_fds){.fd = -1, .readonly = -1})
#define MR_WORKER_LINE_NONE ((struct mr_worker_line){.fd = -1, .readonly = -1, .eventfd = -1})

/* Closes the descriptor and sets it to -1. */
void mr_arenas_close_fd(int *fd);

/* A new segment in place of the old one, without pages: a worker reserves them. what: for errors. 0 or -1. */
int mr_arenas_make(struct mr_supervisor *s, struct mr_arena_fds *arena, const char *what, uint64_t bytes);
void mr_arenas_close(struct mr_arena_fds *arena);
/* /dev/shm had no room for it: true, once, where memory.backing lets a memfd be tried, which mr_arenas_make does
 * then. */
bool mr_arenas_fall_back(const struct mr_supervisor *s, struct mr_arena_fds *arena);

/* Keeps what is there already. 0 or -1. */
int mr_arenas_make_line(struct mr_worker_line *line);
void mr_arenas_close_line(struct mr_worker_line *line);
/* Adds them to SETUP. */
void mr_arenas_put_line(const struct mr_worker_line *line, struct mr_msg_out *out);
/* Wakes the slot's process, if there is one. */
void mr_arenas_wake(const struct mr_worker_line *line);

struct mr_arena_size {
    uint64_t bytes, reserve_bytes;
    uint32_t division; /* fetch workers: of the memory */
    bool ahead;        /* no client waits for its pages yet: they are reserved at low priority */
    bool grows;        /* only these pages are there at first: of the reserve's beginning, and behind the reserve */
    uint64_t largest_bytes, first_bytes;
};

/* ARENA: the last that a new process is sent, which means "begin". fresh: its pages are not reserved yet. */
void mr_arenas_send(struct mr_child *child, const struct mr_arena_fds *arena, const struct mr_arena_size *size,
                    bool fresh);

#endif
