/* consumer_impl.h - what consumer.c and views.c share: the producers as a consumer's process maps them. */
#ifndef MR_SHM_RING_CONSUMER_IMPL_H
#define MR_SHM_RING_CONSUMER_IMPL_H

#include "shm/ring/consumer.h"

struct mr_views {
    _Atomic unsigned refs;
    unsigned producers;
    uint32_t division; /* of the memory, that these arenas belong to */
    uint64_t mark;     /* fork_mark.h */
    const struct mr_board *board;
    struct mr_producer_view view[MR_PRODUCERS_MAX];
};

/* W2: after a store that a producer may wait for; each wakes those of the producers in question that are asleep. */
void mr_views_wake_one(const struct mr_views *views, unsigned producer);
void mr_views_wake_all(const struct mr_views *views);
/* The bytes that a descriptor of ours names, or NULL: it lies outside of every arena, or in those of another
 * division. */
const void *mr_views_at(const struct mr_views *views, const struct mr_descriptor *desc);

/* A view holds one reference to its consumer, from its delivery to its release. */
void mr_consumer_ref(struct mr_consumer *consumer);
void mr_consumer_unref(struct mr_consumer *consumer);

#endif
