/*
 * name_ranges.c - see name_ranges.h. The ranges of a data set are sorted, touch each other, and together cover all
 * names. This file only keeps the books: it sends no message and knows no process.
 */
#include "supervisor/name_ranges.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#define RESERVE     2u  /* cuts that are allowed from the start, */
#define SHARE       14u /* and one more for every SHARE requests: 7% */
#define FIRST_PAGES 2u  /* most data sets are one page, for one worker */
#define UNCUT_PAGES 4u  /* after a range that could not be cut, doubled each time */

/* owner and uri are borrowed; start is copied. */
static struct mr_name_range *new_range(void *owner, uint64_t id, const char *uri, const char *start)
{
    struct mr_name_range *range = calloc(1, sizeof *range);
    char *copy = strdup(start);
    if (!range || !copy) {
        free(range);
        free(copy);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a range of a listing");
        return NULL;
    }
    *range = (struct mr_name_range){
        .owner = owner, .id = id, .uri = uri, .start = copy, .line = id, .failed = -1, .index = -1};
    return range;
}

struct mr_name_range *mr_name_ranges_add(struct mr_name_ranges *ranges, void *owner, uint64_t id, const char *uri)
{
    struct mr_name_range *range = new_range(owner, id, uri, "");
    struct mr_name_range **at = &ranges->first;
    if (!range)
        return NULL;
    while (*at)
        at = &(*at)->next;
    *at = range;
    ranges->count++;
    return range;
}

void mr_name_ranges_clear(struct mr_name_ranges *ranges)
{
    while (ranges->first) {
        struct mr_name_range *range = ranges->first;
        ranges->first = range->next;
        if (range->index >= 0)
            close(range->index);
        free(range->start);
        free(range->end);
        free(range);
    }
    ranges->count = 0;
}

uint64_t mr_name_ranges_objects(const struct mr_name_ranges *ranges)
{
    uint64_t objects = 0;
    for (const struct mr_name_range *range = ranges->first; range; range = range->next)
        objects += range->objects;
    return objects;
}

bool mr_name_ranges_complete(const struct mr_name_ranges *ranges)
{
    bool complete = ranges->first != NULL;
    for (const struct mr_name_range *range = ranges->first; range; range = range->next)
        complete &= range->done;
    return complete;
}

struct mr_name_range *mr_name_ranges_waiting(const struct mr_name_ranges *ranges)
{
    for (struct mr_name_range *range = ranges->first; range; range = range->next)
        if (!range->done && !range->worker)
            return range;
    return NULL;
}

unsigned mr_name_ranges_promised(const struct mr_name_ranges *ranges)
{
    unsigned n = 0;
    for (const struct mr_name_range *range = ranges->first; range; range = range->next)
        n += !range->done && (!range->worker || range->splitting);
    return n;
}

/* How much is left of a range is unknown, so what it has given so far decides. */
struct mr_name_range *mr_name_ranges_busiest(const struct mr_name_ranges *ranges)
{
    struct mr_name_range *best = NULL;
    if (ranges->count >= MR_NAME_RANGES_MAX || ranges->cuts >= RESERVE + ranges->requests / SHARE)
        return NULL;
    for (struct mr_name_range *range = ranges->first; range; range = range->next) {
        if (range->done || !range->worker || range->splitting || range->pages < range->split_after)
            continue;
        if (!best || range->objects > best->objects)
            best = range;
    }
    return best;
}

/* Resets what the last worker has reported. */
static void name_ranges_forget(struct mr_name_range *range)
{
    range->pages = range->objects = range->bytes = 0;
    range->shards = range->shards_done = range->shard_bytes = range->passed = 0;
}

void mr_name_range_begin(struct mr_name_range *range, void *worker)
{
    range->worker = worker;
    range->splitting = false;
    name_ranges_forget(range);
    range->split_after = FIRST_PAGES;
}

void mr_name_range_give_back(struct mr_name_range *range)
{
    range->worker = NULL;
    range->splitting = false;
    name_ranges_forget(range);
}

void mr_name_range_page(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t objects, uint64_t pages)
{
    if (pages > range->pages)
        ranges->requests += pages - range->pages;
    if (objects > range->objects && objects - range->objects > ranges->page)
        ranges->page = objects - range->objects;
    range->objects = objects;
    range->pages = pages;
}

void mr_name_range_uncut(struct mr_name_range *range)
{
    range->splitting = false;
    range->split_after = range->pages + ((uint64_t)UNCUT_PAGES << (range->refused < 10 ? range->refused : 10));
    range->refused++;
    /* What was learnt may be of names that lie after it now. */
    range->level = range->level / 2;
    if (range->level <= (uint64_t)(range->failed + 1)) {
        range->failed = -1;
        range->level = 0;
    }
}

struct mr_name_range *mr_name_range_cut(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t id,
                                        const char *mid, uint64_t level, uint64_t deepest)
{
    range->splitting = false;
    if (strcmp(mid, range->start) <= 0 || (range->end && strcmp(mid, range->end) >= 0)) {
        mr_error_set(MR_E_PROTOCOL, "a range was cut outside of it");
        return NULL;
    }
    struct mr_name_range *upper = new_range(range->owner, id, range->uri, mid);
    char *end = upper ? strdup(mid) : NULL;
    if (!end) {
        if (upper)
            free(upper->start);
        free(upper);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a range of a listing");
        return NULL;
    }
    upper->end = range->end;
    upper->next = range->next;
    upper->line = range->line;
    upper->level = range->level;
    upper->failed = range->failed;
    range->cut_line = range->line;
    range->line = 0;
    range->level = 0;
    range->failed = -1;
    range->end = end;
    range->next = upper;
    range->refused = 0;
    range->cut_id = id;
    range->cut_level = level;
    range->cut_deepest = deepest;
    range->split_after = range->pages + 1;
    ranges->count++;
    ranges->cuts++;
    return upper;
}

/* There was not a full page above the cut: the next one is deeper, by half the distance to the level where the names of
 * a page differ. */
static void cut_was_too_high(struct mr_name_range *lower, const struct mr_name_range *upper)
{
    uint64_t level = lower->cut_level, way = lower->cut_deepest > level ? (lower->cut_deepest - level) / 2 : 0;
    lower->line = upper->line != 0 ? upper->line : lower->id;
    lower->failed = (int64_t)level;
    lower->level = level + (way > 0 ? way : 1);
    lower->cut_id = 0;
}

/* There was less below the cut than above it: moves half the way back to the level that is known to be too high. */
static void cut_was_too_low(struct mr_name_range *upper, uint64_t level)
{
    uint64_t least = (uint64_t)(upper->failed + 1);
    level = level < upper->level ? level : upper->level;
    upper->level = level > least ? least + (level - least) / 2 : least;
}

void mr_name_range_done(struct mr_name_ranges *ranges, struct mr_name_range *range, uint64_t objects)
{
    range->done = true;
    range->worker = NULL;
    range->splitting = false;
    range->objects = objects;
    for (struct mr_name_range *lower = ranges->first; range->pages <= 1 && lower; lower = lower->next)
        if (!lower->done && lower->cut_id == range->id)
            cut_was_too_high(lower, range);
    for (struct mr_name_range *upper = range->next; range->cut_line != 0 && upper; upper = upper->next)
        if (!upper->done && upper->line == range->cut_line)
            cut_was_too_low(upper, range->cut_level);
}
