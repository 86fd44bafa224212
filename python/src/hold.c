/* hold.c - what keeps the bytes of one delivery: a HELD ticket or private memory, counted by atomics alone. */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "shm/memory/fork_mark.h"

static struct ring_hold *hold_alloc(struct ring_index *index, uint64_t object)
{
    struct ring_hold *hold = malloc(sizeof(*hold));
    if (!hold)
        return NULL;
    memset(hold, 0, sizeof(*hold));
    atomic_init(&hold->refs, 1);
    hold->watch = RING_UNWATCHED;
    hold->index = index ? ring_index_ref(index) : NULL;
    hold->object = object;
    return hold;
}

struct ring_hold *ring_hold_new(struct mr_consumer *consumer, struct ring_index *index,
                                const struct mr_delivery *delivery)
{
    static char nothing; /* an empty object has no extent */
    struct ring_hold *hold = hold_alloc(index, delivery->sample.request.object);
    if (!hold) {
        if (delivery->copied)
            free((void *)(uintptr_t)delivery->data);
        else
            mr_lease_release(consumer, delivery->slot, delivery->word, delivery->length);
        return NULL;
    }
    hold->data = (void *)(uintptr_t)delivery->data;
    hold->length = delivery->length;
    if (!delivery->copied) {
        hold->consumer = consumer;
        hold->slot = delivery->slot;
        hold->word = delivery->word;
        if (!hold->data)
            hold->data = &nothing;
        hold->watch = ring_fault_watch(hold);
    }
    return hold;
}

struct ring_hold *ring_hold_copy(const struct ring_hold *from)
{
    struct ring_hold *hold = ring_hold_private(from->data, from->length);
    if (hold && from->index) {
        hold->index = ring_index_ref(from->index);
        hold->object = from->object;
    }
    return hold;
}

struct ring_hold *ring_hold_private(const void *data, uint64_t length)
{
    struct ring_hold *hold = hold_alloc(NULL, 0);
    if (!hold)
        return NULL;
    hold->length = length;
    hold->data = malloc(length ? length : 1);
    if (!hold->data) {
        ring_hold_unref(hold);
        return NULL;
    }
    if (length <= RING_SMALL) {
        memcpy(hold->data, data, length);
        return hold;
    }
    Py_BEGIN_ALLOW_THREADS
        memcpy(hold->data, data, length);
    Py_END_ALLOW_THREADS
    return hold;
}

struct ring_hold *ring_hold_owned(void *data, uint64_t length, void *owner, void (*drop)(void *owner), uint64_t mark)
{
    struct ring_hold *hold = hold_alloc(NULL, 0);
    if (!hold) {
        drop(owner);
        return NULL;
    }
    hold->data = data;
    hold->length = length;
    hold->owner = owner;
    hold->drop = drop;
    hold->owner_mark = mark;
    return hold;
}

struct ring_hold *ring_hold_ref(struct ring_hold *hold)
{
    atomic_fetch_add_explicit(&hold->refs, 1, memory_order_relaxed);
    return hold;
}

void ring_hold_unref(struct ring_hold *hold)
{
    if (!hold || atomic_fetch_sub_explicit(&hold->refs, 1, memory_order_acq_rel) != 1)
        return;
    ring_fault_unwatch(hold->watch);
    if (hold->consumer)
        mr_lease_release(hold->consumer, hold->slot, hold->word, hold->length);
    else if (hold->drop)
        hold->drop(hold->owner);
    else
        free(hold->data);
    ring_index_unref(hold->index);
    free(hold);
}

bool ring_hold_is_foreign(const struct ring_hold *hold)
{
    if (hold->consumer)
        return mr_consumer_is_foreign(hold->consumer);
    return hold->owner_mark && !mr_fork_mark_is(hold->owner_mark);
}
