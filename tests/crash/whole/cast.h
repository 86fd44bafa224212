/*
 * cast.h - the processes of one small run, and the shared memory between them.
 *
 * A scenario has up to two producers, two readers (consumers with their training loop) and a supervisor. All of them
 * are real code over one memory file; one role, the one under test, runs in a child process that is single-stepped, the
 * others run here, each in turns: a producer until it goes to sleep, a reader (a coroutine) until it waits or has to.
 * The kernel's part (futex, eventfd, clock, fork mark) is replaced by counters in the same memory, so that "asleep" and
 * "woken" are states that a check can see, time passes only when everybody sleeps, and a copy of the memory is a copy
 * of everything that processes share.
 */
#ifndef MR_CRASH_CAST_H
#define MR_CRASH_CAST_H

#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

#include "shm/ring/consumer.h"
#include "shm/ring/producer.h"

#define LANES     2u
#define PRODUCERS 2u
#define OBJECTS   1000u /* lane l reads objects l * OBJECTS, l * OBJECTS + 1, ... in this order */
#define TURNS_MAX 4000u /* of one drain: more is a loop without end */
#define JOBS_MAX  600u  /* of one producer's turn, likewise */
#define NO_OBJECT UINT64_MAX
#define GRANULE   64u  /* every object's size is a multiple: extents are checked in these */
#define EVENTFD   1000 /* + slot: descriptors that only the replaced write() knows */

enum role { PRODUCER0, PRODUCER1, READER0, READER1, SUPERVISOR, NOBODY };

/* Sizes of a scenario. */
struct shape {
    uint32_t window, first_lap;
    unsigned producers;
    unsigned arena_pages, reserve_pages;
    uint64_t object_bytes; /* 0: mixed sizes */
    uint64_t quota_bytes;  /* 0: no limit */
    bool grows, no_memory; /* the arenas grow, from nothing behind the reserve; or could, if there were memory */
    bool cells;            /* objects are neighbours in one stored object a lane, and are read together by twos */
};

/* What the kernel would know; in the world's memory. */
struct kernel {
    uint32_t event[PRODUCERS]; /* the eventfd is readable */
    uint32_t wakes[LANES];     /* FUTEX_WAKE calls */
    int64_t clock_ns;
    uint64_t backed[PRODUCERS]; /* arenas that grow: a bit for each page that has memory */
};

enum phase { PHASE_RUN, PHASE_REST, PHASE_CLOSE };

/* What the scheduler has to know of a role wherever it runs; in the world's memory. */
struct status {
    uint32_t yields, op_done, phase;
    struct {
        uint32_t sleeping, alive;
    } producer[PRODUCERS];
    struct {
        uint32_t alive, finished, waiting, seen_wakes, barrier;
        uint64_t delivered, pause_at, batches;
    } reader[LANES];
};

/* The memory, mapped once at `base`. Everything up to `compared` decides what a survivor does. */
struct world {
    int fd;
    unsigned char *base;
    uint64_t size, compared;
    struct shape shape;
    struct mr_producer_line *line[PRODUCERS];
    struct mr_lane lane[LANES];
    unsigned char *arena[PRODUCERS];
    uint64_t arena_bytes;
    struct kernel *kernel;
    struct status *status;
    struct mr_board *board;
};

struct producer_role {
    struct mr_producer *handle;
    struct mr_job job; /* in flight; claims from `done` on */
    unsigned done, max_tickets;
};

struct kept {
    struct mr_delivery delivery;
};

struct reader {
    struct cast *cast;
    unsigned lane, batch;
    bool interrupted;
    bool keep_first; /* its first view is never released before the end */
    struct mr_consumer *consumer;
    uint64_t fed;
    struct kept *kept;
    unsigned kept_count, batch_count;
    ucontext_t context;
    void *stack;
};

struct cast {
    struct world world;
    struct producer_role producer[PRODUCERS];
    struct reader reader[LANES];
    struct mr_views *views;
    ucontext_t scheduler;
    struct reader *running;           /* the coroutine that runs now */
    bool in_child, watched, reversed; /* watched: access.h; reversed: turns in the other order */
    enum role stepped;                /* who runs in the child; NOBODY: nobody any more */
    bool (*child_turn)(void *arg);    /* lets the child run on until it yields */
    bool (*child_is_dead)(void *arg);
    bool reclaimed; /* the supervisor has recovered and restarted the process under test */
    void *child_arg;
    uint64_t bad_object;    /* its size cannot be had */
    uint64_t broken_object; /* its download fails */
    uint64_t poisoned_object;
    unsigned timed_waits, timed_waits_allowed;
    int mutant;
};

/* The cast that the replaced system calls belong to. */
extern struct cast *the_cast;

/* cast.c */
void cast_build(struct cast *cast, const struct shape *shape, int mutant);
/* Maps a private copy of the shared memory over it: what happens from now on happens to the copy. */
void cast_use_copy(struct cast *cast);
uint64_t object_bytes(const struct cast *cast, uint64_t object);
uint64_t object_byte8(uint64_t object, uint64_t index); /* the index-th 8 bytes of its content */
uint32_t object_crc(uint64_t object);
bool object_may_fail(const struct cast *cast, uint64_t object);

/* producers.c: each of these is one producer's own doing */
void producer_start(struct cast *cast, unsigned slot);
bool producer_next_job(struct cast *cast, unsigned slot, unsigned max_tickets);
void producer_finish_job(struct cast *cast, unsigned slot);
/* next_job and finish_job; it is an error of the scenario when there is no job. */
void producer_serve(struct cast *cast, unsigned slot, unsigned max_tickets);
void producer_fill(struct cast *cast, const struct mr_claim *claim);
void producer_publish(struct cast *cast, unsigned slot, struct mr_claim *claim);
void producer_sleep(struct cast *cast, unsigned slot);
void producer_turn(struct cast *cast, unsigned slot); /* until it sleeps */
void producer_check_rest(struct cast *cast, unsigned slot);
void producer_drop_lanes(struct cast *cast, unsigned slot);

/* readers.c */
void reader_open(struct cast *cast, unsigned lane);
void reader_feed(struct cast *cast, unsigned lane, unsigned count);
void reader_step(struct reader *reader);                          /* one next(), checked and accounted for */
void reader_run(struct cast *cast, unsigned lane, uint64_t upto); /* until it has so many samples, or waits */
void reader_work(struct reader *reader);                          /* until it may take no more, or has all */
/* A signal ends its wait, and it takes no more for now: whoever waits holds the lock that feed and close need. */
void reader_stop(struct cast *cast, unsigned lane);
void reader_turn(struct cast *cast, unsigned lane);
void reader_release_all(struct reader *reader);
bool reader_may_take(const struct cast *cast, unsigned lane);
void yield(struct cast *cast);
long reader_sleep(struct cast *cast, unsigned lane); /* FUTEX_WAIT: 0 woken, -1 timed out (errno) */

/* supervisor.c */
void supervisor_recover(struct cast *cast, unsigned slot);
void supervisor_restart(struct cast *cast, unsigned slot);
/* Every producer dies too and starts again: what is in use is known from the words alone. */
void supervisor_restart_all(struct cast *cast);
void supervisor_close_lane(struct cast *cast, unsigned lane);
void supervisor_wake_all(struct cast *cast);

/* drain.c */
/* Turns until every living reader has had everything. */
void drain(struct cast *cast);
/* The same without some role's turns, and no error when the others come to rest before. */
void drain_others(struct cast *cast, enum role without);
/* Leases dropped, memory whole; lanes closed, every word EMPTY, lanes dropped. */
void check_rest(struct cast *cast);

/* check.c */
/* Words, extents and bytes as they are now. */
void check_world(const struct cast *cast, const char *when);
/* One step from the words of `before` (a copy of the memory from base on): legal? Returns how many words changed. */
unsigned check_transitions(const struct cast *cast, const unsigned char *before);
/* From `before` to now only this producer was recovered: each ticket that it was filling is PENDING with one attempt
 * more, or swept with its lane; every other word is as it was. */
void check_recovered(const struct cast *cast, const unsigned char *before, unsigned producer);
const char *words_text(const struct cast *cast);

/* report.c */
/* Ends this process with a failure; the first text is kept. */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
