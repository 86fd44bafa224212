/*
 * world.h - a ring with everything around it, for tests: board, arenas, producer lines, lanes, and the two kinds of
 * thread that use them. Objects are made up: an object's id gives its size, its bytes, and whether reading it fails.
 *
 * Everything is mapped once and used by all threads through that mapping (ThreadSanitizer sees races only within one
 * mapping), so the test wraps mr_segment_unmap: see world.c.
 */
#ifndef MR_TESTS_RING_WORLD_H
#define MR_TESTS_RING_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "shm/memory/arena.h"
#include "shm/ring/consumer.h"
#include "shm/ring/producer.h"

#define WORLD_LANES     4096u
#define WORLD_PRODUCERS 8u
#define WORLD_NO_SIZE   1u

struct world {
    struct mr_board *board;
    unsigned producers;
    uint32_t division; /* of what is made from now on */
    uint64_t arena_bytes, reserve_bytes, largest;
    void *arena[WORLD_PRODUCERS];
    struct mr_producer_line *line[WORLD_PRODUCERS];
    int eventfd[WORLD_PRODUCERS];
    uint64_t gap_bytes;  /* not 0: neighbours are read together, over gaps of so many bytes */
    unsigned fail_every; /* objects of which every so-manyth cannot be read; 0: none */
    struct mr_lane lanes[WORLD_LANES];
    _Atomic unsigned lane_count;
    pthread_mutex_t lock; /* of opening a lane */
    _Atomic uint64_t progress;
    _Atomic bool stop;
};

/* Aborts the program when something cannot be made. */
void world_init(struct world *world, unsigned producers, uint64_t arena_bytes, uint64_t largest);
void world_close(struct world *world);
void *world_map(uint64_t size);
/* A new lane, visible to producers when this returns; its index. */
unsigned world_open_lane(struct world *world, uint32_t window, uint64_t quota, uint32_t first_lap);
struct mr_views *world_views(struct world *world);
struct mr_producer *world_producer(struct world *world, unsigned slot);
/* What the supervisor does after a death: wakes every consumer and producer. */
void world_wake_all(struct world *world);

uint64_t world_size(const struct world *world, uint64_t object);
bool world_fails(const struct world *world, uint64_t object);
void world_fill(void *at, uint64_t object, uint64_t bytes);
bool world_matches(const void *at, uint64_t object, uint64_t bytes);
/* A request with a length has that size; with WORLD_NO_SIZE none. */
int world_size_fn(void *world, const struct mr_request *request, uint64_t *bytes);

/* Objects of the same upper 32 bits lie in one stored object, WORLD_GAP bytes and more apart. */
#define WORLD_GAP 64u
bool world_place_fn(void *world, const struct mr_request *request, struct mr_place *place);

/* Prints (printf's arguments, the format a literal) and ends the process with status 1. */
#define world_fail(...)                          \
    do {                                         \
        fprintf(stderr, "FAILED: " __VA_ARGS__); \
        fputc('\n', stderr);                     \
        _exit(1);                                \
    } while (0)

#endif
