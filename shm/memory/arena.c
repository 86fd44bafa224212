/*
 * arena.c - best fit over page runs.
 *
 * Free runs of equal length form a stack (most recently freed first); which lengths exist is a bitmap of three levels,
 * so the best fit is found in a few words. Each run, free or used, has its length at its first and its last page: that
 * is how neighbours are found when a run is freed. All tables are indexed by page and come from calloc, so that only
 * what is used of them costs memory.
 */
#include "shm/memory/arena.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"

#define NONE      UINT32_MAX
#define FREE      UINT32_C(0x80000000) /* in a length: the run is free */
#define LEVELS    6                    /* 64^6 > 2^31 lengths */
#define PAGES_MAX (FREE - 1)

struct mr_arena {
    uint32_t first, pages;    /* first: the reserve's pages, never given out */
    uint32_t backed;          /* pages that may be given out: first .. backed */
    uint64_t used;            /* pages */
    uint32_t *length;         /* [pages]: at each run's first and last page, FREE set if free */
    uint32_t *next, *prev;    /* [pages]: the stack of a free run's length, page + 1, 0: none */
    uint32_t *top;            /* [pages + 1]: by length, page + 1, 0: none */
    uint64_t *exists[LEVELS]; /* bit n of level 0: top[n] != 0; bit n of level k + 1: word n of level k is not 0 */
    uint32_t words[LEVELS];
    unsigned levels;
};

static void bit_set(struct mr_arena *arena, uint32_t n)
{
    for (unsigned k = 0; k < arena->levels; k++, n /= 64)
        arena->exists[k][n / 64] |= UINT64_C(1) << n % 64;
}

static void bit_clear(struct mr_arena *arena, uint32_t n)
{
    for (unsigned k = 0; k < arena->levels; k++, n /= 64) {
        arena->exists[k][n / 64] &= ~(UINT64_C(1) << n % 64);
        if (arena->exists[k][n / 64])
            break;
    }
}

/* The least bit >= n, or NONE. */
static uint32_t bit_find(const struct mr_arena *arena, uint32_t n)
{
    for (unsigned k = 0; k < arena->levels; k++) {
        if (n / 64 >= arena->words[k])
            return NONE;
        uint64_t word = arena->exists[k][n / 64] >> n % 64;
        if (word) {
            n += (uint32_t)__builtin_ctzll(word);
            while (k-- > 0)
                n = n * 64 + (uint32_t)__builtin_ctzll(arena->exists[k][n]);
            return n;
        }
        n = n / 64 + 1; /* the bit of the next word, one level up */
    }
    return NONE;
}

static void label(struct mr_arena *arena, uint32_t page, uint32_t pages, uint32_t flag)
{
    arena->length[page] = pages | flag;
    arena->length[page + pages - 1] = pages | flag;
}

/* Puts a free extent at the top of the list of its length. */
static void push(struct mr_arena *arena, uint32_t page, uint32_t pages)
{
    uint32_t top = arena->top[pages];

    label(arena, page, pages, FREE);
    arena->prev[page] = 0;
    arena->next[page] = top;
    if (top)
        arena->prev[top - 1] = page + 1;
    else
        bit_set(arena, pages);
    arena->top[pages] = page + 1;
}

/* Takes a free extent out of the list of its length. */
static void arena_drop(struct mr_arena *arena, uint32_t page)
{
    uint32_t pages = arena->length[page] & ~FREE;
    uint32_t next = arena->next[page], prev = arena->prev[page];

    if (next)
        arena->prev[next - 1] = prev;
    if (prev)
        arena->next[prev - 1] = next;
    else
        arena->top[pages] = next;
    if (!arena->top[pages])
        bit_clear(arena, pages);
}

static uint64_t to_pages(uint64_t bytes)
{
    return bytes / MR_ARENA_PAGE + (bytes % MR_ARENA_PAGE != 0);
}

struct mr_arena *mr_arena_new(uint64_t size_bytes, uint64_t reserve_bytes, uint64_t backed_bytes)
{
    uint64_t pages = size_bytes / MR_ARENA_PAGE, reserve = to_pages(reserve_bytes), bits = pages + 1;
    uint64_t backed = backed_bytes / MR_ARENA_PAGE;

    if (pages == 0 || pages > PAGES_MAX || reserve > pages || backed < reserve || backed > pages) {
        mr_error_set(MR_E_USAGE, "an arena of %llu bytes cannot hold a reserve of %llu", (unsigned long long)size_bytes,
                     (unsigned long long)reserve_bytes);
        return NULL;
    }
    struct mr_arena *arena;
    arena = calloc(1, sizeof *arena);
    if (!arena)
        goto fail;
    arena->pages = (uint32_t)pages;
    arena->first = arena->backed = (uint32_t)reserve;
    arena->length = calloc(pages, sizeof *arena->length);
    arena->next = calloc(pages, sizeof *arena->next);
    arena->prev = calloc(pages, sizeof *arena->prev);
    arena->top = calloc(pages + 1, sizeof *arena->top);
    if (!arena->length || !arena->next || !arena->prev || !arena->top)
        goto fail;
    do {
        bits = bits / 64 + 1;
        arena->words[arena->levels] = (uint32_t)bits;
        arena->exists[arena->levels] = calloc(bits, sizeof(uint64_t));
        if (!arena->exists[arena->levels++])
            goto fail;
    } while (bits > 1);
    mr_arena_extend(arena, backed_bytes);
    return arena;

fail:
    mr_error_set(MR_E_NO_MEMORY, "no memory for the tables of an arena of %llu pages", (unsigned long long)pages);
    mr_arena_destroy(arena);
    return NULL;
}

void mr_arena_extend(struct mr_arena *arena, uint64_t backed_bytes)
{
    uint64_t backed = backed_bytes / MR_ARENA_PAGE;
    uint32_t page = arena->backed;

    if (backed > arena->pages)
        backed = arena->pages;
    if (backed <= page)
        return;
    arena->backed = (uint32_t)backed;
    if (page > arena->first && arena->length[page - 1] & FREE) {
        page -= arena->length[page - 1] & ~FREE;
        arena_drop(arena, page);
    }
    push(arena, page, arena->backed - page);
}

bool mr_arena_shrink(struct mr_arena *arena, uint64_t backed_bytes)
{
    uint64_t backed = backed_bytes / MR_ARENA_PAGE;

    if (arena->used > 0)
        return false;
    if (backed >= arena->backed || backed < arena->first)
        return true;
    arena_drop(arena, arena->first); /* all of it is one run */
    arena->backed = (uint32_t)backed;
    if (arena->backed > arena->first)
        push(arena, arena->first, arena->backed - arena->first);
    return true;
}

uint64_t mr_arena_backed_bytes(const struct mr_arena *arena)
{
    return (uint64_t)arena->backed * MR_ARENA_PAGE;
}

void mr_arena_destroy(struct mr_arena *arena)
{
    if (!arena)
        return;
    for (unsigned k = 0; k < arena->levels; k++)
        free(arena->exists[k]);
    free(arena->top);
    free(arena->prev);
    free(arena->next);
    free(arena->length);
    free(arena);
}

/* Makes pages [page, page + pages) of the free run at `run` used; what is left on both sides stays free. */
static void carve(struct mr_arena *arena, uint32_t run, uint32_t page, uint32_t pages)
{
    uint32_t all = arena->length[run] & ~FREE;

    arena_drop(arena, run);
    if (page > run)
        push(arena, run, page - run);
    if (page + pages < run + all)
        push(arena, page + pages, run + all - page - pages);
    label(arena, page, pages, 0);
    arena->used += pages;
}

int64_t mr_arena_alloc(struct mr_arena *arena, uint64_t bytes)
{
    uint64_t pages = to_pages(bytes);

    if (pages == 0 || pages > arena->pages)
        return -1;
    uint32_t best = bit_find(arena, (uint32_t)pages);
    if (best == NONE)
        return -1;
    uint32_t run = arena->top[best] - 1;
    carve(arena, run, run, (uint32_t)pages);
    return (int64_t)run * MR_ARENA_PAGE;
}

bool mr_arena_claim(struct mr_arena *arena, uint64_t offset, uint64_t bytes)
{
    uint64_t page = offset / MR_ARENA_PAGE;

    if (bytes == 0 || offset + bytes < offset || to_pages(offset + bytes) > arena->backed || page < arena->first)
        return false;
    uint64_t end = to_pages(offset + bytes);
    for (uint32_t run = arena->first; run < arena->backed; run += arena->length[run] & ~FREE) {
        uint32_t after = run + (arena->length[run] & ~FREE);
        if (page >= after)
            continue;
        if (!(arena->length[run] & FREE) || end > after)
            return false;
        carve(arena, run, (uint32_t)page, (uint32_t)(end - page));
        return true;
    }
    return false;
}

void mr_arena_free(struct mr_arena *arena, uint64_t offset, uint64_t bytes)
{
    uint64_t at = offset / MR_ARENA_PAGE, n = to_pages(offset % MR_ARENA_PAGE + bytes);
    uint32_t page = (uint32_t)at, pages = (uint32_t)n;

    if (at < arena->first || n == 0 || at + n > arena->backed || arena->length[page] != pages) {
        mr_log_error("internal error: the run at %llu of %llu bytes that is freed was not allocated",
                     (unsigned long long)offset, (unsigned long long)bytes);
        return;
    }
    arena->used -= pages;
    uint32_t after = page + pages;
    if (after < arena->backed && arena->length[after] & FREE) {
        arena_drop(arena, after);
        pages += arena->length[after] & ~FREE;
    }
    if (page > arena->first && arena->length[page - 1] & FREE) {
        uint32_t before = arena->length[page - 1] & ~FREE;
        page -= before;
        pages += before;
        arena_drop(arena, page);
    }
    push(arena, page, pages);
}

uint64_t mr_arena_free_bytes(const struct mr_arena *arena)
{
    return (arena->pages - arena->first - arena->used) * MR_ARENA_PAGE;
}

uint64_t mr_arena_reserve_bytes(const struct mr_arena *arena)
{
    return (uint64_t)arena->first * MR_ARENA_PAGE;
}

uint64_t mr_arena_largest_bytes(const struct mr_arena *arena)
{
    uint32_t n = 0;

    /* From the bitmap's top level down, the highest bit of each word. */
    for (unsigned k = arena->levels; k-- > 0;) {
        uint64_t word = arena->exists[k][n];
        if (!word)
            return 0;
        n = n * 64 + 63 - (uint32_t)__builtin_clzll(word);
    }
    return (uint64_t)n * MR_ARENA_PAGE;
}
