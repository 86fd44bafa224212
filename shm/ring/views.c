/* views.c - see consumer.h. */
#include "shm/ring/consumer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/fork_mark.h"
#include "shm/memory/segment.h"

struct mr_views *mr_views_new(const struct mr_board *board, uint32_t division, unsigned producers,
                              const struct mr_producer_view *view)
{
    uint64_t mark = mr_fork_mark();
    if (producers == 0 || producers > MR_PRODUCERS_MAX) {
        mr_error_set(MR_E_USAGE, "a lane with %u producers: 1 to %u are possible", producers, MR_PRODUCERS_MAX);
        return NULL;
    }
    struct mr_views *views = mark ? calloc(1, sizeof *views) : NULL;
    if (!views) {
        if (mark)
            mr_error_set(MR_E_NO_MEMORY, "no memory for the table of producers");
        return NULL;
    }
    atomic_store_explicit(&views->refs, 1, memory_order_relaxed);
    views->mark = mark;
    views->board = board;
    views->division = division;
    views->producers = producers;
    memcpy(views->view, view, producers * sizeof *view);
    return views;
}

struct mr_views *mr_views_ref(struct mr_views *views)
{
    atomic_fetch_add_explicit(&views->refs, 1, memory_order_relaxed);
    return views;
}

void mr_views_unref(struct mr_views *views)
{
    if (!views || atomic_fetch_sub_explicit(&views->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned i = 0; mr_fork_mark_is(views->mark) && i < views->producers; i++) {
        mr_segment_unmap((void *)views->view[i].arena, views->view[i].arena_bytes);
        mr_segment_unmap((void *)views->view[i].line, sizeof *views->view[i].line);
        if (views->view[i].eventfd >= 0)
            close(views->view[i].eventfd);
    }
    free(views);
}

uint32_t mr_views_division(const struct mr_views *views)
{
    return views->division;
}

int mr_views_find(const struct mr_views *views, const void *address)
{
    for (unsigned i = 0; i < views->producers; i++) {
        uintptr_t start = (uintptr_t)views->view[i].arena;
        if (start && (uintptr_t)address >= start && (uintptr_t)address - start < views->view[i].arena_bytes)
            return (int)i;
    }
    return -1;
}

void mr_views_wake_one(const struct mr_views *views, unsigned producer)
{
    if (producer < views->producers && views->view[producer].line)
        mr_wake_producer(views->view[producer].line, views->view[producer].eventfd);
}

void mr_views_wake_all(const struct mr_views *views)
{
    for (unsigned i = 0; i < views->producers; i++)
        mr_views_wake_one(views, i);
}

const void *mr_views_at(const struct mr_views *views, const struct mr_descriptor *desc)
{
    const struct mr_producer_view *view = &views->view[desc->arena < views->producers ? desc->arena : 0];

    if (desc->length == 0)
        return "";
    if (desc->division != views->division || desc->arena >= views->producers || !view->arena ||
        desc->extent_length > view->arena_bytes || desc->extent_offset > view->arena_bytes - desc->extent_length ||
        desc->length > desc->extent_length)
        return NULL;
    return (const unsigned char *)view->arena + desc->extent_offset;
}
