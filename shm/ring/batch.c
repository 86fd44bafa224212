/* batch.c - see batch.h for the table and the pairing labels B0 to B6. */
#include "shm/ring/batch.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/fence.h"
#include "shm/memory/segment.h"
#include "shm/ring/counters.h"
#include "shm/ring/mutant.h"

#define PAGE_BYTES      UINT64_C(4096)
#define HEAD_ALIGN      (UINT64_C(2) << 20) /* huge pages begin at multiples of it */
#define SLOT_BYTES_MIN  (UINT64_C(64) << 20)
#define ADDRESSES_MAX   (UINT64_C(4) << 40)  /* of 128 TiB: a process needs the rest for other things */
#define GROW_SMALL      (UINT64_C(64) << 10) /* extents are multiples of this, */
#define GROW_LARGE      (UINT64_C(2) << 20)  /* and of this from this size on */
#define GROW_AHEAD_PART 8u                   /* an eighth more than is asked for: sizes differ from batch to batch */

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* Changes the word from `old`. */
static bool swap(struct mr_batch_slot *slot, uint64_t old, uint64_t next, memory_order order)
{
    return atomic_compare_exchange_strong_explicit(&slot->word, &old, next, order, memory_order_relaxed);
}

uint64_t mr_batch_head_bytes(uint32_t lanes, uint32_t slots)
{
    return round_up(sizeof(struct mr_batch_shared) + lanes * sizeof(struct mr_batch_lane_shared) +
                        (uint64_t)lanes * slots * sizeof(struct mr_batch_slot),
                    PAGE_BYTES);
}

static uint64_t memory_offset(const struct mr_batch_format *format)
{
    uint64_t align = format->slot_bytes >= HEAD_ALIGN ? HEAD_ALIGN : PAGE_BYTES;

    return round_up(mr_batch_head_bytes(format->lanes, format->slots), align);
}

uint64_t mr_batch_size(const struct mr_batch_format *format)
{
    return memory_offset(format) + (uint64_t)format->lanes * format->slots * round_up(format->slot_bytes, PAGE_BYTES);
}

void mr_batch_format(void *segment, const struct mr_batch_format *format)
{
    struct mr_batch_shared *shared = segment;

    shared->version = MR_BATCH_VERSION;
    shared->lanes = format->lanes;
    shared->slots = format->slots;
    shared->first_lap = format->first_lap;
    shared->size = mr_batch_size(format);
    shared->memory_offset = memory_offset(format);
    shared->slot_bytes = round_up(format->slot_bytes, PAGE_BYTES);
    shared->limit_bytes = format->limit_bytes;
    struct mr_batch_lane_shared *lanes = (struct mr_batch_lane_shared *)(shared + 1);
    struct mr_batch_slot *slots = (struct mr_batch_slot *)(lanes + format->lanes);
    for (uint32_t i = 0; i < format->lanes * format->slots; i++)
        atomic_store_explicit(&slots[i].word, mr_word(MR_EMPTY, 0, 0, format->first_lap), memory_order_relaxed);
    /* Last, with release: pairs with the acquire in attach. */
    atomic_store_explicit(&shared->magic, MR_BATCH_MAGIC, memory_order_release);
}

/* The slots' memory lies in `size` bytes, without overflow. */
static bool is_sound(const struct mr_batch_arena *arena)
{
    if (arena->lanes < 1 || arena->lanes > MR_BATCH_LANES_MAX || arena->slots < MR_BATCH_SLOTS_MIN ||
        arena->slots > MR_BATCH_SLOTS_MAX)
        return false;
    uint64_t slots = (uint64_t)arena->lanes * arena->slots;
    return arena->memory_offset >= mr_batch_head_bytes(arena->lanes, arena->slots) &&
           arena->memory_offset <= arena->size && arena->slot_bytes > 0 &&
           arena->slot_bytes <= (arena->size - arena->memory_offset) / slots;
}

int mr_batch_attach(struct mr_batch_arena *arena, void *segment, uint64_t size, int fd)
{
    struct mr_batch_shared *shared = segment;
    struct mr_batch_arena seen = {.shared = shared, .size = size, .fd = fd};

    if (size < sizeof *shared || atomic_load_explicit(&shared->magic, memory_order_acquire) != MR_BATCH_MAGIC) {
        mr_error_set(MR_E_CORRUPT, "a segment of %llu bytes is not a batch arena", (unsigned long long)size);
        return -1;
    }
    if (shared->version != MR_BATCH_VERSION) {
        mr_error_set(MR_E_PROTOCOL,
                     "the batch arena has layout version %u, this program needs %u: millrace was upgraded while it "
                     "ran; restart the job",
                     shared->version, MR_BATCH_VERSION);
        return -1;
    }
    seen.lanes = __atomic_load_n(&shared->lanes, __ATOMIC_RELAXED); /* once: they are checked below */
    seen.slots = __atomic_load_n(&shared->slots, __ATOMIC_RELAXED);
    seen.memory_offset = __atomic_load_n(&shared->memory_offset, __ATOMIC_RELAXED);
    seen.slot_bytes = __atomic_load_n(&shared->slot_bytes, __ATOMIC_RELAXED);
    seen.limit_bytes = __atomic_load_n(&shared->limit_bytes, __ATOMIC_RELAXED);
    if (!is_sound(&seen)) {
        mr_error_set(MR_E_CORRUPT, "the batch arena's header is damaged (%u lanes of %u slots of %llu bytes)",
                     seen.lanes, seen.slots, (unsigned long long)seen.slot_bytes);
        return -1;
    }
    seen.lane_lines = (struct mr_batch_lane_shared *)(shared + 1);
    seen.slot_lines = (struct mr_batch_slot *)(seen.lane_lines + seen.lanes);
    *arena = seen;
    return 0;
}

/* Attaches a mapping, which is the arena's from here on; unmapped on error. */
static int adopt(struct mr_batch_arena *arena, void *at, uint64_t size, int fd)
{
    if (mr_batch_attach(arena, at, size, fd) == 0)
        return 0;
    mr_segment_unmap(at, size);
    return -1;
}

int mr_batch_map(struct mr_batch_arena *arena, int fd)
{
    uint64_t size;
    void *at = mr_segment_map(fd, 0, true, &size);

    if (!at) {
        mr_error_append("batch arena");
        return -1;
    }
    return adopt(arena, at, size, fd);
}

/* One attempt with format->slot_bytes addresses for each slot. */
static int make(struct mr_batch_arena *arena, const struct mr_batch_format *format)
{
    uint64_t size = mr_batch_size(format);
    int fd = mr_segment_new(MR_BACKING_MEMFD, "batches", size, false);

    if (fd < 0)
        return -1;
    void *at = mr_segment_map(fd, size, true, NULL);
    if (at)
        mr_batch_format(at, format);
    if (at && adopt(arena, at, size, fd) == 0)
        return 0;
    close(fd);
    return -1;
}

int mr_batch_new(struct mr_batch_arena *arena, const struct mr_batch_format *format)
{
    struct mr_batch_format tried = *format;

    if (format->lanes < 1 || format->lanes > MR_BATCH_LANES_MAX || format->slots < MR_BATCH_SLOTS_MIN ||
        format->slots > MR_BATCH_SLOTS_MAX || format->slot_bytes == 0) {
        mr_error_set(MR_E_USAGE, "a batch arena has 1 to %u lanes of %u to %u slots", MR_BATCH_LANES_MAX,
                     MR_BATCH_SLOTS_MIN, MR_BATCH_SLOTS_MAX);
        return -1;
    }
    uint64_t most = ADDRESSES_MAX / ((uint64_t)format->lanes * format->slots) / HEAD_ALIGN * HEAD_ALIGN;
    if (tried.slot_bytes > most)
        tried.slot_bytes = most;
    while (make(arena, &tried)) {
        if (tried.slot_bytes <= SLOT_BYTES_MIN)
            return -1;
        tried.slot_bytes /= 2;
    }
    return 0;
}

void mr_batch_end(struct mr_batch_arena *arena)
{
    atomic_store_explicit(&arena->shared->ended, 1, memory_order_relaxed);
}

void mr_batch_close(struct mr_batch_arena *arena)
{
    if (!arena->shared)
        return;
    mr_segment_unmap(arena->shared, arena->size);
    close(arena->fd);
    memset(arena, 0, sizeof *arena);
}

uint64_t mr_batch_bytes(const struct mr_batch_arena *arena)
{
    uint64_t sum = 0;

    for (uint32_t lane = 0; lane < arena->lanes; lane++)
        for (uint32_t slot = 0; slot < arena->slots; slot++)
            sum += atomic_load_explicit(&mr_batch_slot_at(arena, lane, slot)->claim, memory_order_relaxed);
    return sum;
}

void mr_batch_count(const struct mr_batch_arena *arena, struct mr_batch_counts *counts)
{
    counts->memory_bytes += mr_batch_bytes(arena);
    for (uint32_t i = 0; i < arena->lanes; i++) {
        struct mr_batch_lane_shared *line = &arena->lane_lines[i];
        counts->batches += atomic_load_explicit(&line->batches, memory_order_relaxed);
        counts->bytes += atomic_load_explicit(&line->bytes, memory_order_relaxed);
        counts->beside += atomic_load_explicit(&line->beside, memory_order_relaxed);
        counts->waited_ns += atomic_load_explicit(&line->waited_ns, memory_order_relaxed);
        counts->copies += atomic_load_explicit(&line->copies, memory_order_relaxed);
        counts->held += atomic_load_explicit(&line->held, memory_order_relaxed);
    }
}

void mr_batch_since(struct mr_batch_counts *counts, const struct mr_batch_counts *before)
{
    counts->batches = mr_counter_grown(counts->batches, before->batches);
    counts->bytes = mr_counter_grown(counts->bytes, before->bytes);
    counts->beside = mr_counter_grown(counts->beside, before->beside);
    counts->waited_ns = mr_counter_grown(counts->waited_ns, before->waited_ns);
    counts->copies = mr_counter_grown(counts->copies, before->copies);
    counts->held = mr_counter_grown(counts->held, before->held);
}

/* ---- worker ---- */

bool mr_batch_reserve(struct mr_batch_arena *arena, uint32_t lane, uint64_t viewed, uint32_t *slot, uint64_t *filling)
{
    struct mr_batch_slot *best = NULL;
    uint64_t word = 0;

    for (uint32_t i = 0; i < arena->slots; i++) {
        struct mr_batch_slot *each = mr_batch_slot_at(arena, lane, i);
        uint64_t seen = atomic_load_explicit(&each->word, memory_order_relaxed);
        bool mine = !MR_MUTANT_IS(MR_MUTANT_BATCH_REUSE_UNDER_VIEW) && (viewed >> i & 1);
        if (mr_word_state(seen) != MR_EMPTY || mine)
            continue;
        if (best && mr_batch_extent(arena, lane, *slot) >= mr_batch_extent(arena, lane, i))
            continue;
        best = each;
        word = seen;
        *slot = i;
    }
    if (!best)
        return false;
    *filling = mr_word(MR_FILLING, 0, 0, mr_word_lap(word) + 1);
    /* B3 pairs with B2: no other process changes an EMPTY word, so this fails only in a damaged segment. */
    return swap(best, word, *filling, memory_order_acquire);
}

static uint64_t offset_of(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot)
{
    return (uint64_t)(mr_batch_memory(arena, lane, slot) - (unsigned char *)arena->shared);
}

/* Pages that were allocated, or are in part, and that no extent counts. */
static void give_back(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t from, uint64_t to)
{
    if (to > from)
        mr_segment_release(arena->fd, offset_of(arena, lane, slot) + from, to - from);
}

bool mr_batch_grow(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t bytes)
{
    struct mr_batch_slot *line = mr_batch_slot_at(arena, lane, slot);
    uint64_t before = mr_batch_extent(arena, lane, slot);

    if (bytes <= before)
        return true;
    if (bytes > arena->slot_bytes)
        return false;
    uint64_t wanted = bytes + bytes / GROW_AHEAD_PART;
    wanted = round_up(wanted, wanted >= GROW_LARGE ? GROW_LARGE : GROW_SMALL);
    if (wanted > arena->slot_bytes)
        wanted = arena->slot_bytes;
    /* Counted first, then allocated: two workers that grow at once may both be refused, but never exceed the limit
     * together. Free memory is checked here: the segment's own check is for files without holes. */
    atomic_store_explicit(&line->claim, wanted, memory_order_seq_cst);
    mr_fence_full(); /* B6 pairs with itself */
    uint64_t offset = offset_of(arena, lane, slot);
    if (mr_batch_bytes(arena) > arena->limit_bytes || mr_memory_available_bytes() < wanted - before ||
        mr_segment_reserve_huge(arena->fd, arena->shared, "batches", offset + before, wanted - before)) {
        give_back(arena, lane, slot, before, wanted);
        atomic_store_explicit(&line->claim, before, memory_order_relaxed);
        return false;
    }
    atomic_store_explicit(&line->extent, wanted, memory_order_relaxed);
    return true;
}

uint64_t mr_batch_publish(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t filling, uint64_t length)
{
    struct mr_batch_slot *line = mr_batch_slot_at(arena, lane, slot);
    struct mr_batch_lane_shared *mine = &arena->lane_lines[lane];
    uint64_t ready = mr_word(MR_READY, 0, 0, mr_word_lap(filling));

    line->length = length;
    atomic_fetch_add_explicit(&mine->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&mine->bytes, length, memory_order_relaxed);
    swap(line, filling, ready, memory_order_release); /* B0 */
    return ready;
}

void mr_batch_withdraw(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t word)
{
    swap(mr_batch_slot_at(arena, lane, slot), word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_relaxed);
}

static void set_want(struct mr_batch_arena *arena, uint32_t lane, bool want)
{
    atomic_store_explicit(&arena->lane_lines[lane].want, want, memory_order_seq_cst);
    if (want)
        mr_fence_full(); /* B5 pairs with B4: the caller looks at the words again now */
}

bool mr_batch_reserve_or_want(struct mr_batch_arena *arena, uint32_t lane, uint64_t viewed, uint32_t *slot,
                              uint64_t *filling, uint32_t *seen)
{
    *seen = atomic_load_explicit(&arena->lane_lines[lane].seq, memory_order_acquire); /* pairs with mr_wake_word */
    if (!MR_MUTANT_IS(MR_MUTANT_BATCH_LATE_WANT))
        set_want(arena, lane, true);
    if (mr_batch_reserve(arena, lane, viewed, slot, filling)) {
        set_want(arena, lane, false);
        return true;
    }
    if (MR_MUTANT_IS(MR_MUTANT_BATCH_LATE_WANT))
        set_want(arena, lane, true);
    return false;
}

enum mr_wake_result mr_batch_wait(struct mr_batch_arena *arena, uint32_t lane, uint32_t seen, unsigned timeout_ms)
{
    return mr_wake_word_wait(&arena->lane_lines[lane].seq, seen, timeout_ms);
}

/* ---- trainer ---- */

bool mr_batch_take(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t ready, uint64_t *held,
                   uint64_t *length)
{
    if (lane >= arena->lanes || slot >= arena->slots || mr_word_state(ready) != MR_READY)
        return false;
    struct mr_batch_slot *line = mr_batch_slot_at(arena, lane, slot);
    if (MR_MUTANT_IS(MR_MUTANT_BATCH_NO_LAP))
        ready = atomic_load_explicit(&line->word, memory_order_relaxed);
    *held = mr_word(MR_HELD, 0, 0, mr_word_lap(ready));
    if (mr_word_state(ready) != MR_READY || !swap(line, ready, *held, memory_order_acquire)) /* B1 pairs with B0 */
        return false;
    uint32_t before = atomic_fetch_add_explicit(&arena->shared->held, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&arena->lane_lines[lane].held, before, memory_order_relaxed);
    *length = __atomic_load_n(&line->length, __ATOMIC_RELAXED);
    if (*length <= mr_batch_extent(arena, lane, slot))
        return true;
    mr_batch_release(arena, lane, slot, *held); /* damaged */
    return false;
}

bool mr_batch_holds_many(const struct mr_batch_arena *arena, uint32_t lane)
{
    uint32_t held = 0, free = arena->slots / 4;

    for (uint32_t i = 0; i < arena->slots; i++)
        held += mr_word_state(atomic_load_explicit(&mr_batch_slot_at(arena, lane, i)->word, memory_order_relaxed)) ==
                MR_HELD;
    return held + (free ? free : 1) >= arena->slots;
}

void mr_batch_release(struct mr_batch_arena *arena, uint32_t lane, uint32_t slot, uint64_t held)
{
    struct mr_batch_lane_shared *line = &arena->lane_lines[lane];

    if (swap(mr_batch_slot_at(arena, lane, slot), held, mr_word(MR_EMPTY, 0, 0, mr_word_lap(held)),
             memory_order_release)) /* B2 */
        atomic_fetch_sub_explicit(&arena->shared->held, 1, memory_order_relaxed);
    mr_fence_full(); /* B4 pairs with B5: our word, then `want` */
    if (atomic_load_explicit(&line->want, memory_order_relaxed))
        mr_wake_word(&line->seq);
}

void mr_batch_recover(struct mr_batch_arena *arena, uint32_t lane)
{
    for (uint32_t i = 0; i < arena->slots; i++) {
        struct mr_batch_slot *line = mr_batch_slot_at(arena, lane, i);
        uint64_t extent = mr_batch_extent(arena, lane, i);
        uint64_t claim = atomic_load_explicit(&line->claim, memory_order_relaxed);
        /* It died while it grew: the pages first, or they would be there and count nowhere. */
        give_back(arena, lane, i, extent, claim < arena->slot_bytes ? claim : arena->slot_bytes);
        atomic_store_explicit(&line->claim, extent, memory_order_relaxed);
        uint64_t word = atomic_load_explicit(&line->word, memory_order_relaxed);
        enum mr_state state = mr_word_state(word);
        if (state == MR_FILLING || (state == MR_READY && !MR_MUTANT_IS(MR_MUTANT_BATCH_KEEP_READY)))
            swap(line, word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_release); /* B2 */
    }
    set_want(arena, lane, false); /* its successor's word */
}
