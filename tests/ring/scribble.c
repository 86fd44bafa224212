/*
 * scribble.c - a wild process writes random bytes anywhere into one lane's control segment while both sides use it.
 *
 * Whatever it does to that lane, nobody crashes or reads or writes out of bounds (the address sanitizer's run tells),
 * no call hangs, and another lane of the same producers is delivered whole, in order, with its bytes. The headers are
 * spared in part of the rounds, so that the words themselves are reached.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/ring/world.h"

#define ROUNDS  20u
#define SAMPLES 4000u

static struct world world;
static _Atomic bool ended; /* the good lane has been read */
static unsigned lanes[2];  /* the good one, the damaged one */

static void *run_producer(void *arg)
{
    unsigned slot = (unsigned)(uintptr_t)arg;

    for (unsigned life = 0; !atomic_load(&ended); life++) {
        struct mr_producer *producer = world_producer(&world, slot);
        for (unsigned i = 0; i < 2; i++) {
            struct mr_lane lane = world.lanes[lanes[1 - i]]; /* the damaged one first */
            if (mr_producer_add_lane(producer, &lane))
                world_fail("%s", mr_error_text());
        }
        /* It dies now and then, so that descriptors full of garbage are read at a start, too. */
        for (unsigned jobs = 0; jobs < 50 && !atomic_load(&ended); jobs++) {
            struct mr_job job;
            struct pollfd fd = {.fd = world.eventfd[slot], .events = POLLIN};
            uint64_t n;
            if (!mr_producer_next_job(producer, 4, 50000, 0, &job)) {
                if (!mr_producer_sleep(producer))
                    poll(&fd, 1, 5);
                mr_producer_awake(producer);
                if (read(fd.fd, &n, sizeof n) < 0 && errno != EAGAIN)
                    world_fail("eventfd");
                continue;
            }
            for (unsigned i = 0; i < job.count; i++) {
                struct mr_claim *claim = &job.claims[i];
                world_fill(claim->dest, claim->request.object, claim->bytes);
                mr_producer_publish(producer, claim, claim->bytes, claim->request.object, 0, 0);
            }
        }
        mr_producer_destroy(producer);
        for (unsigned i = 0; i < 2; i++)
            mr_lane_recover(&world.lanes[lanes[i]], slot);
        world_wake_all(&world);
    }
    return NULL;
}

static struct mr_consumer *open_consumer(unsigned index)
{
    struct mr_lane lane = world.lanes[index];
    struct mr_views *views = world_views(&world);
    struct mr_consumer *consumer = mr_consumer_new(&lane, views);

    if (!consumer)
        world_fail("%s", mr_error_text());
    mr_views_unref(views);
    return consumer;
}

static void feed(struct mr_consumer *consumer, uint64_t object)
{
    struct mr_sample sample = {.request.object = object, .bytes = world_size(&world, object), .cookie = object};

    if (mr_consumer_feed(consumer, &sample, 1))
        world_fail("%s", mr_error_text());
}

static void *read_good(void *arg)
{
    struct mr_consumer *consumer = open_consumer(lanes[0]);
    int64_t start = mr_clock_mono_ns();

    (void)arg;
    struct mr_delivery got;
    for (unsigned i = 0; i < SAMPLES;) {
        while (mr_consumer_backlog(consumer) < 16)
            feed(consumer, i + (uint64_t)mr_consumer_backlog(consumer));
        enum mr_next next = mr_consumer_next(consumer, 100, &got);
        if (next == MR_NEXT_OK) {
            if (got.sample.cookie != i || !world_matches(got.data, i, world_size(&world, i)))
                world_fail("the good lane delivered a wrong sample %u", i);
            if (got.copied)
                free((void *)got.data);
            else
                mr_lease_release(consumer, got.slot, got.word, got.length);
            i++;
        } else if (next != MR_NEXT_TIMEOUT) {
            world_fail("the good lane: %d %s", next, next == MR_NEXT_FAILED ? got.text : "");
        }
        if (mr_clock_mono_ns() - start > 300 * MR_SECOND_NS)
            world_fail("the good lane has stopped at %u", i);
    }
    atomic_store(&ended, true);
    mr_consumer_destroy(consumer);
    return NULL;
}

static void *read_bad(void *arg)
{
    struct mr_consumer *consumer = open_consumer(lanes[1]);
    volatile unsigned char sum = 0;
    uint64_t object = 1u << 20;

    (void)arg;
    struct mr_delivery got;
    while (!atomic_load(&ended)) {
        while (mr_consumer_backlog(consumer) < 16)
            feed(consumer, object++);
        if (mr_consumer_next(consumer, 2, &got) != MR_NEXT_OK)
            continue;
        for (uint64_t i = 0; i < got.length; i += 512) /* whatever it says is readable */
            sum = (unsigned char)(sum + ((const unsigned char *)got.data)[i]);
        if (got.copied)
            free((void *)got.data);
        else
            mr_lease_release(consumer, got.slot, got.word, got.length);
    }
    mr_consumer_destroy(consumer);
    return NULL;
}

static void *scribble(void *arg)
{
    uint64_t random = (uintptr_t)arg;
    struct mr_lane *lane = &world.lanes[lanes[1]];
    size_t from = random % 3 ? sizeof *lane->shared : 0; /* with the header in every third round */

    while (!atomic_load(&ended)) {
        random = mr_mix64(random);
        unsigned char *at = (unsigned char *)lane->shared + from + random % (lane->size - from);
        __atomic_store_n(at, (unsigned char)(random >> 40), __ATOMIC_RELAXED);
        if (random % 4 == 0) { /* a word that looks right */
            struct mr_ticket *ticket = &lane->tickets[random >> 8 & lane->mask];
            atomic_store(&ticket->word,
                         mr_word(random >> 20 & 7, random >> 24 & 1, random >> 28 & 3, random >> 32 & 15));
        }
        if (random % 64 == 0)
            usleep(50);
    }
    return NULL;
}

int main(void)
{
    for (uintptr_t round = 0; round < ROUNDS; round++) {
        void *(*const run[])(void *) = {run_producer, run_producer, read_good, read_bad, scribble};
        void *const args[] = {(void *)0, (void *)1, NULL, NULL, (void *)(round + 1)};
        world_init(&world, 2, (uint64_t)12 * 8192, 8000);
        atomic_store(&ended, false);
        for (unsigned i = 0; i < 2; i++)
            lanes[i] = world_open_lane(&world, 16, 1 << 20, 0);
        pthread_t threads[5];
        for (unsigned i = 0; i < 5; i++)
            pthread_create(&threads[i], NULL, run[i], args[i]);
        for (unsigned i = 0; i < 5; i++)
            pthread_join(threads[i], NULL);
        world_close(&world);
    }
    printf("%u rounds\n", ROUNDS);
    return EXIT_SUCCESS;
}
