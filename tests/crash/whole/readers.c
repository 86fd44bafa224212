/* readers.c - see cast.h: a training loop that checks what it gets. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/crash/whole/cast.h"

#define STACK_BYTES (128u * 1024)

void reader_open(struct cast *cast, unsigned lane)
{
    struct reader *reader = &cast->reader[lane];
    struct mr_lane handle = cast->world.lane[lane];

    reader->cast = cast;
    reader->lane = lane;
    reader->batch = 2;
    reader->kept = calloc(cast->world.shape.window, sizeof *reader->kept);
    reader->consumer = mr_consumer_new(&handle, cast->views);
    if (!reader->kept || !reader->consumer)
        fail("mr_consumer_new: %s", mr_error_text());
    cast->world.status->reader[lane].alive = 1;
}

void reader_feed(struct cast *cast, unsigned lane, unsigned count)
{
    struct reader *reader = &cast->reader[lane];

    for (unsigned i = 0; i < count; i++) {
        uint64_t object = (uint64_t)lane * OBJECTS + reader->fed++;
        bool cells = cast->world.shape.cells;
        struct mr_sample sample = {
            .request = {.object = object, .cell = cells ? 2 : 0, .flags = cells ? MR_REQUEST_PATIENT : 0},
            .bytes = object_bytes(cast, object),
            .cookie = object};
        if (mr_consumer_feed(reader->consumer, &sample, 1))
            fail("mr_consumer_feed: %s", mr_error_text());
    }
    cast->world.status->reader[lane].finished = 0;
}

static void check_bytes(const struct reader *reader, const struct mr_delivery *got, const char *when)
{
    uint64_t object = got->sample.cookie;
    const uint64_t *data = got->data;

    for (uint64_t i = 0; i < got->length / 8; i++)
        if (data[i] != object_byte8(object, i))
            fail("lane %u: object %llu has wrong bytes at %llu (%s); %s", reader->lane, (unsigned long long)object,
                 (unsigned long long)i * 8, when, words_text(reader->cast));
}

static void check_delivery(const struct reader *reader, const struct mr_delivery *got)
{
    uint64_t object = reader->lane * OBJECTS + reader->cast->world.status->reader[reader->lane].delivered;

    if (got->sample.cookie != object || got->sample.request.object != object)
        fail("lane %u: object %llu came instead of %llu; %s", reader->lane, (unsigned long long)got->sample.cookie,
             (unsigned long long)object, words_text(reader->cast));
    if (got->length != object_bytes(reader->cast, object) || got->generation != object + 7 ||
        got->crc32c != object_crc(object))
        fail("lane %u: object %llu came with another's description; %s", reader->lane, (unsigned long long)object,
             words_text(reader->cast));
    check_bytes(reader, got, "when delivered");
}

static void release(struct reader *reader, const struct mr_delivery *view)
{
    check_bytes(reader, view, "while held");
    mr_lease_release(reader->consumer, view->slot, view->word, view->length);
}

/* A whole batch has been looked at: its views go, but for the first one if that is kept. */
static void end_batch(struct reader *reader)
{
    unsigned first = reader->keep_first && reader->kept_count > 0;

    for (unsigned i = first; i < reader->kept_count; i++)
        release(reader, &reader->kept[i].delivery);
    reader->kept_count = first;
    reader->batch_count = 0;
    reader->cast->world.status->reader[reader->lane].batches++;
}

void reader_release_all(struct reader *reader)
{
    for (unsigned i = 0; i < reader->kept_count; i++)
        release(reader, &reader->kept[i].delivery);
    reader->kept_count = 0;
}

static void account(struct reader *reader, const struct mr_delivery *got)
{
    if (got->copied)
        free((void *)got->data);
    else if (got->data)
        reader->kept[reader->kept_count++].delivery = *got;
    reader->cast->world.status->reader[reader->lane].delivered++;
    if (++reader->batch_count >= reader->batch)
        end_batch(reader);
}

void reader_step(struct reader *reader)
{
    struct status *status = reader->cast->world.status;
    struct mr_delivery got = {0};

    switch (mr_consumer_next(reader->consumer, 200, &got)) {
    case MR_NEXT_OK:
        check_delivery(reader, &got);
        account(reader, &got);
        break;
    case MR_NEXT_FAILED:
        if (!object_may_fail(reader->cast, got.sample.cookie) ||
            got.sample.cookie != reader->lane * OBJECTS + status->reader[reader->lane].delivered)
            fail("lane %u: object %llu failed: %s; %s", reader->lane, (unsigned long long)got.sample.cookie, got.text,
                 words_text(reader->cast));
        got.data = NULL;
        account(reader, &got);
        break;
    case MR_NEXT_END:
        if (status->reader[reader->lane].delivered != reader->fed)
            fail("lane %u ends after %llu of %llu samples; %s", reader->lane,
                 (unsigned long long)status->reader[reader->lane].delivered, (unsigned long long)reader->fed,
                 words_text(reader->cast));
        status->reader[reader->lane].finished = 1;
        break;
    default: /* TIMEOUT, SIGNAL: again */
        break;
    }
}

bool reader_may_take(const struct cast *cast, unsigned lane)
{
    const struct status *status = cast->world.status;
    unsigned other = 1 - lane;

    if (status->reader[lane].delivered >= status->reader[lane].pause_at)
        return false;
    return !status->reader[lane].barrier || !status->reader[other].alive || status->reader[other].finished ||
           status->reader[other].batches >= status->reader[lane].batches;
}

void yield(struct cast *cast)
{
    if (cast->watched) {
        cast->world.kernel->clock_ns += 100 * MR_MILLISECOND_NS; /* nobody comes */
    } else if (cast->in_child) {
        cast->world.status->yields++;
        __asm__ volatile("int3" ::: "memory");
    } else {
        swapcontext(&cast->running->context, &cast->scheduler);
    }
}

long reader_sleep(struct cast *cast, unsigned lane)
{
    struct status *status = cast->world.status;

    if (!cast->in_child && !cast->running)
        fail("the scenario's setup: lane %u would wait", lane);
    status->reader[lane].seen_wakes = cast->world.kernel->wakes[lane];
    status->reader[lane].waiting = 1;
    yield(cast);
    status->reader[lane].waiting = 0;
    if (cast->reader[lane].interrupted) {
        errno = EINTR;
        return -1;
    }
    if (cast->world.kernel->wakes[lane] != status->reader[lane].seen_wakes)
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

void reader_work(struct reader *reader)
{
    while (reader_may_take(reader->cast, reader->lane) && !reader->cast->world.status->reader[reader->lane].finished)
        reader_step(reader);
}

static void entry(void)
{
    for (;; yield(the_cast))
        reader_work(the_cast->running);
}

void reader_turn(struct cast *cast, unsigned lane)
{
    struct reader *reader = &cast->reader[lane];

    if (!reader->stack) {
        reader->stack = malloc(STACK_BYTES);
        if (!reader->stack || getcontext(&reader->context))
            fail("no memory for a stack");
        reader->context.uc_stack.ss_sp = reader->stack;
        reader->context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&reader->context, entry, 0);
    }
    cast->running = reader;
    swapcontext(&cast->scheduler, &reader->context);
    cast->running = NULL;
}

void reader_run(struct cast *cast, unsigned lane, uint64_t upto)
{
    cast->world.status->reader[lane].pause_at = upto;
    reader_turn(cast, lane);
}

void reader_stop(struct cast *cast, unsigned lane)
{
    struct status *status = cast->world.status;

    status->reader[lane].pause_at = 0;
    if (!status->reader[lane].waiting)
        return;
    cast->reader[lane].interrupted = true;
    reader_turn(cast, lane);
    cast->reader[lane].interrupted = false;
}
