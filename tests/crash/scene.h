/*
 * scene.h - a small ring in one block of shared memory, with a record of what must come out of it.
 *
 * Two producers, two lanes. Everything shared but the board lies in one block, so that a tracer can copy it whole and
 * then let everybody go on, in the copy, from the very instruction at which somebody died. The record says what was
 * posted, delivered, held and claimed; drain() plays the survivors and the supervisor and checks the invariants.
 */
#ifndef MR_TESTS_CRASH_SCENE_H
#define MR_TESTS_CRASH_SCENE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/memory/arena.h"
#include "shm/ring/consumer.h"
#include "shm/ring/mutant.h"
#include "shm/ring/producer.h"

#define LANES       2u
#define PRODUCERS   2u
#define LARGEST     5000u               /* bytes of the largest object */
#define RESERVE     (2 * MR_ARENA_PAGE) /* holds it */
#define SPARE       (2 * MR_ARENA_PAGE) /* at an arena's end, for what a peer of the stepped function does */
#define ARENA_MAX   (24 * MR_ARENA_PAGE)
#define RECORDS_MAX 64u
#define NOBODY      99u

struct view { /* a lease that its consumer holds */
    unsigned lane;
    uint32_t slot;
    uint64_t word, object;
};

struct claim { /* a FILLING ticket whose producer lives */
    unsigned producer, lane;
    uint32_t slot;
    uint64_t filling, object, offset, bytes;
    bool reserve;
};

/* Copied as it is, to go back to the start. */
struct record {
    uint64_t posted[LANES];    /* samples: object = lane << 32 | count */
    uint64_t delivered[LANES]; /* of them */
    uint64_t number[LANES];    /* the next that is taken is this one or higher */
    bool closed[LANES];
    struct view views[RECORDS_MAX];
    unsigned view_count;
    struct claim claims[RECORDS_MAX];
    unsigned claim_count;
};

struct scene {
    uint32_t window;
    uint64_t arena_bytes; /* of each producer, SPARE included */
    void *block;
    size_t block_bytes;
    struct mr_board *board;
    struct mr_lane lanes[LANES]; /* over block */
    int eventfd[PRODUCERS];
    struct mr_producer *producers[PRODUCERS];
    struct mr_consumer *consumers[LANES];
    uint64_t fed[LANES];
    struct record record;
};

/* Who is dead when a scene is drained. */
struct dead {
    unsigned producer, owner; /* NOBODY, or a slot, a lane */
    bool supervisor;          /* in the middle of what it did for that dead one: it is done again */
};

void scene_init(struct scene *scene, uint32_t window, unsigned arena_pages);
void scene_close(struct scene *scene);
size_t scene_bytes(const struct scene *scene);

/* Steps that make a scene, by the real functions. */
void scene_feed(struct scene *scene, unsigned lane, unsigned count);
/* The producer claims up to count tickets and leaves them FILLING: the index of the first in record.claims. */
unsigned scene_claim(struct scene *scene, unsigned producer, unsigned count);
void scene_publish(struct scene *scene, unsigned claim);
struct mr_claim *scene_handle(unsigned claim);
/* A new handle over the block, as after a start. */
struct mr_producer *new_producer(const struct scene *scene, void *block, unsigned slot);
void scene_fail(struct scene *scene, unsigned claim);
/* Takes the lane's next sample, which must be READY; as a view it is recorded. */
void scene_take(struct scene *scene, unsigned lane);
void scene_release(struct scene *scene, unsigned view);

/* Lane-level steps on the block, with the record, that leave every private handle as it was. */
void peer_close(struct scene *scene, unsigned lane);
void peer_publish(struct scene *scene, unsigned claim);
void publish_claim(const struct scene *scene, void *block, struct mr_lane *lanes, const struct claim *claim);
void remove_claim(struct record *record, unsigned claim);
void add_claims(struct scene *scene, unsigned producer, const struct mr_job *job);

void fill_claim(void *block, const struct scene *scene, const struct claim *claim);
uint64_t object_bytes(uint64_t object);
unsigned char *arena_of(const struct scene *scene, void *block, unsigned producer);
struct mr_producer_line *line_at(void *block, unsigned producer);
void attach_lanes(const struct scene *scene, void *block, struct mr_lane lanes[LANES]);
bool bytes_match(const void *at, uint64_t object, uint64_t bytes);

/* NULL, or what is wrong with the words as they stand (static text). */
const char *check_words(const struct scene *scene, void *block);
/* NULL, or why this is no step of the table: from `before` to `after` at a lane's slot. */
const char *check_step(const struct scene *scene, void *block, unsigned lane, uint64_t before, uint64_t after);
/* Lets the survivors finish, in the given block, and checks everything: NULL, or what is wrong. */
const char *drain(const struct scene *scene, const struct record *record, void *block, struct dead dead);

void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
