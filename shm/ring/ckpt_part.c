/* ckpt_part.c - see ckpt_part.h for the table and the pairing labels P0 to P8. */
#include "shm/ring/ckpt_part.h"

#include <string.h>

#include "base/error.h"
#include "shm/memory/fence.h"
#include "shm/memory/segment.h"
#include "shm/ring/mutant.h"
#include "shm/ring/wake.h"

static inline struct mr_ckpt_part_ticket *ticket_at(const struct mr_ckpt_lane *lane, uint64_t number)
{
    return &lane->tickets[number & lane->mask];
}

static inline uint32_t lap_of(const struct mr_ckpt_lane *lane, uint64_t number)
{
    return lane->first_lap + (uint32_t)(number >> lane->shift);
}

/* Changes the word from *old, or loads what is there instead. */
static inline bool swap(struct mr_ckpt_part_ticket *ticket, uint64_t *old, uint64_t next, memory_order order)
{
    return atomic_compare_exchange_strong_explicit(
        &ticket->word, old, next, order, order == memory_order_release ? memory_order_relaxed : memory_order_acquire);
}

size_t mr_ckpt_part_size(uint32_t slots)
{
    return sizeof(struct mr_ckpt_part_shared) + (size_t)slots * sizeof(struct mr_ckpt_part_ticket) +
           (size_t)MR_CKPT_PARTS_MAX * sizeof(struct mr_ckpt_part_record);
}

void mr_ckpt_part_format(void *segment, const struct mr_ckpt_part_format *format)
{
    struct mr_ckpt_part_shared *shared = segment;

    shared->version = MR_CKPT_PART_VERSION;
    shared->slots = format->slots;
    shared->size = mr_ckpt_part_size(format->slots);
    shared->part_bytes = format->part_bytes;
    shared->arena_offset = format->arena_offset;
    shared->lane = format->lane;
    shared->trainer = format->trainer;
    shared->worker = format->worker;
    shared->first_lap = format->first_lap;
    /* Last, with release: pairs with the acquire in attach. The words are zero, which is EMPTY; the fate is OPEN. */
    atomic_store_explicit(&shared->magic, MR_CKPT_PART_MAGIC, memory_order_release);
}

/* slots * part_bytes from arena_offset lie in the arena, without overflow. */
static bool lies_in_arena(const struct mr_ckpt_lane *lane, uint64_t arena_bytes)
{
    return lane->part_bytes > 0 && lane->part_bytes <= arena_bytes / lane->slots &&
           lane->arena_offset <= arena_bytes - lane->part_bytes * lane->slots;
}

int mr_ckpt_part_attach(struct mr_ckpt_lane *lane, void *segment, size_t size, uint64_t arena_bytes)
{
    struct mr_ckpt_part_shared *shared = segment;
    struct mr_ckpt_lane seen = {.shared = shared, .size = size};

    if (size < sizeof *shared || atomic_load_explicit(&shared->magic, memory_order_acquire) != MR_CKPT_PART_MAGIC) {
        mr_error_set(MR_E_CORRUPT, "the control segment of %zu bytes is not a checkpoint lane", size);
        return -1;
    }
    if (shared->version != MR_CKPT_PART_VERSION) {
        mr_error_set(
            MR_E_PROTOCOL,
            "the checkpoint lane has layout version %u, this program needs %u: millrace was upgraded while it ran; "
            "restart the job",
            shared->version, MR_CKPT_PART_VERSION);
        return -1;
    }
    seen.slots = __atomic_load_n(&shared->slots, __ATOMIC_RELAXED); /* once: they are checked below */
    seen.part_bytes = __atomic_load_n(&shared->part_bytes, __ATOMIC_RELAXED);
    seen.arena_offset = __atomic_load_n(&shared->arena_offset, __ATOMIC_RELAXED);
    seen.lane = __atomic_load_n(&shared->lane, __ATOMIC_RELAXED);
    seen.trainer = __atomic_load_n(&shared->trainer, __ATOMIC_RELAXED);
    seen.worker = __atomic_load_n(&shared->worker, __ATOMIC_RELAXED);
    seen.first_lap = __atomic_load_n(&shared->first_lap, __ATOMIC_RELAXED);
    if (seen.slots < MR_CKPT_PART_SLOTS_MIN || seen.slots > MR_CKPT_PART_SLOTS_MAX || (seen.slots & (seen.slots - 1)) ||
        mr_ckpt_part_size(seen.slots) > size || !lies_in_arena(&seen, arena_bytes) ||
        seen.trainer >= MR_OWNER_SUPERVISOR || seen.worker >= MR_OWNER_SUPERVISOR) {
        mr_error_set(MR_E_CORRUPT,
                     "the checkpoint lane's header is damaged (%u slots of %llu bytes at %llu, %zu bytes)", seen.slots,
                     (unsigned long long)seen.part_bytes, (unsigned long long)seen.arena_offset, size);
        return -1;
    }
    seen.mask = seen.slots - 1;
    seen.shift = (uint32_t)__builtin_ctz(seen.slots);
    seen.tickets = (struct mr_ckpt_part_ticket *)(shared + 1);
    seen.records = (struct mr_ckpt_part_record *)(seen.tickets + seen.slots);
    *lane = seen;
    return 0;
}

int mr_ckpt_part_map(struct mr_ckpt_lane *lane, int fd, uint64_t arena_bytes)
{
    uint64_t size;
    void *at = mr_segment_map(fd, 0, true, &size);

    if (!at) {
        mr_error_append("control segment of a checkpoint lane");
        return -1;
    }
    if (mr_ckpt_part_attach(lane, at, size, arena_bytes)) {
        mr_segment_unmap(at, size);
        return -1;
    }
    return 0;
}

void mr_ckpt_part_unmap(struct mr_ckpt_lane *lane)
{
    if (lane->shared)
        mr_segment_unmap(lane->shared, lane->size);
    memset(lane, 0, sizeof *lane);
}

enum mr_fate mr_ckpt_part_fate(const struct mr_ckpt_lane *lane)
{
    uint32_t fate = atomic_load_explicit(&lane->shared->fate, memory_order_acquire); /* P6 pairs with P5 */

    if (fate == MR_FATE_ADOPTED)
        return MR_FATE_OPEN;
    return fate < MR_FATE_ADOPTED ? (enum mr_fate)fate : MR_FATE_ABORTED; /* damage promises nothing */
}

bool mr_ckpt_part_is_adopted(const struct mr_ckpt_lane *lane)
{
    return atomic_load_explicit(&lane->shared->fate, memory_order_acquire) != MR_FATE_OPEN;
}

/* Changes the fate, if it is `from`. Returns what it was before. */
static uint32_t change_fate(struct mr_ckpt_lane *lane, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong_explicit(&lane->shared->fate, &from, to, memory_order_seq_cst, memory_order_acquire);
    return from;
}

/* P7: we have just changed the word to `word`; if the lane was aborted meanwhile, the sweep may have missed it. */
static void check_fate(struct mr_ckpt_lane *lane, struct mr_ckpt_part_ticket *ticket, uint64_t word)
{
    if (MR_MUTANT_IS(MR_MUTANT_CKPT_PART_NO_SECOND_LOOK))
        return;
    mr_fence_full(); /* P7 pairs with P8 */
    if (mr_ckpt_part_fate(lane) == MR_FATE_ABORTED)
        swap(ticket, &word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_acq_rel);
}

bool mr_ckpt_part_fill(struct mr_ckpt_lane *lane, uint64_t number, uint64_t *filling)
{
    struct mr_ckpt_part_ticket *ticket = ticket_at(lane, number);
    uint64_t word = atomic_load_explicit(&ticket->word, memory_order_acquire); /* P3 pairs with P2 */

    if ((mr_word_state(word) != MR_EMPTY && mr_word_state(word) != MR_RELEASED) ||
        mr_ckpt_part_fate(lane) == MR_FATE_ABORTED)
        return false;
    *filling = mr_word(MR_FILLING, lane->trainer, 0, lap_of(lane, number));
    return swap(ticket, &word, *filling, memory_order_acquire);
}

void mr_ckpt_part_publish(struct mr_ckpt_lane *lane, uint64_t number, uint64_t filling, uint64_t length)
{
    struct mr_ckpt_part_ticket *ticket = ticket_at(lane, number);
    uint64_t ready = mr_word(MR_READY, lane->trainer, 0, mr_word_lap(filling));

    ticket->length = length;
    if (swap(ticket, &filling, ready, memory_order_seq_cst)) /* P0 pairs with P1 */
        check_fate(lane, ticket, ready);
}

void mr_ckpt_part_unfill(struct mr_ckpt_lane *lane, uint64_t number, uint64_t filling)
{
    /* Trainer: the word was its own. Release pairs with P3, should another thread of it fill the slot next. */
    swap(ticket_at(lane, number), &filling, mr_word(MR_EMPTY, 0, 0, mr_word_lap(filling)), memory_order_release);
}

enum mr_fate mr_ckpt_part_seal(struct mr_ckpt_lane *lane, uint32_t parts, uint64_t bytes)
{
    lane->shared->parts = parts;
    lane->shared->bytes = bytes;
    if (MR_MUTANT_IS(MR_MUTANT_CKPT_PART_PLAIN_SEAL)) {
        if (mr_ckpt_part_fate(lane) == MR_FATE_OPEN)
            atomic_store_explicit(&lane->shared->fate, MR_FATE_SEALED, memory_order_seq_cst);
        return MR_FATE_SEALED;
    }
    if (MR_MUTANT_IS(MR_MUTANT_CKPT_PART_SEAL_UNADOPTED))
        change_fate(lane, MR_FATE_OPEN, MR_FATE_ADOPTED);
    uint32_t fate = change_fate(lane, MR_FATE_ADOPTED, MR_FATE_SEALED); /* P5 pairs with P6 */
    if (fate == MR_FATE_OPEN)
        return MR_FATE_OPEN;
    return fate == MR_FATE_ADOPTED || fate == MR_FATE_SEALED ? MR_FATE_SEALED : MR_FATE_ABORTED;
}

uint32_t mr_ckpt_part_seq(const struct mr_ckpt_lane *lane)
{
    return atomic_load_explicit(&lane->shared->seq, memory_order_acquire); /* pairs with mr_wake_word */
}

void mr_ckpt_part_set_want(struct mr_ckpt_lane *lane, uint64_t want)
{
    atomic_store_explicit(&lane->shared->want, want, memory_order_seq_cst); /* trainer alone; W1 */
    if (want)
        mr_fence_full(); /* W1: the caller loads the word or the outcome again now */
}

enum mr_wake_result mr_ckpt_part_wait(struct mr_ckpt_lane *lane, uint32_t seen, unsigned timeout_ms)
{
    return mr_wake_word_wait(&lane->shared->seq, seen, timeout_ms);
}

void mr_ckpt_part_wake_trainer(struct mr_ckpt_lane *lane)
{
    mr_fence_full(); /* W0 pairs with W1: the word, the fate or the outcome, then `want` */
    if (atomic_load_explicit(&lane->shared->want, memory_order_relaxed))
        mr_wake_word(&lane->shared->seq);
}

void mr_ckpt_part_sweep(struct mr_ckpt_lane *lane)
{
    mr_fence_full(); /* P8 pairs with P7 */
    for (uint32_t slot = 0; slot < lane->slots; slot++) {
        uint64_t word = mr_ckpt_part_load(lane, slot);
        while ((mr_word_state(word) == MR_READY || mr_word_state(word) == MR_RELEASED) &&
               !swap(&lane->tickets[slot], &word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_acq_rel)) {
        }
    }
}

enum mr_fate mr_ckpt_part_abort(struct mr_ckpt_lane *lane)
{
    uint32_t fate = MR_FATE_OPEN, from;

    do { /* again where it was adopted, or its worker recovered from, meanwhile */
        from = fate;
        fate = change_fate(lane, from, MR_FATE_ABORTED);
    } while (fate != from && (fate == MR_FATE_OPEN || fate == MR_FATE_ADOPTED));
    if (fate == MR_FATE_SEALED)
        return MR_FATE_SEALED;
    mr_ckpt_part_sweep(lane);
    return MR_FATE_ABORTED;
}

bool mr_ckpt_part_in_use(const struct mr_ckpt_lane *lane, uint32_t slot)
{
    enum mr_state state = mr_word_state(mr_ckpt_part_load(lane, slot));
    return state != MR_EMPTY && state != MR_RELEASED;
}

bool mr_ckpt_part_is_at_rest(const struct mr_ckpt_lane *lane)
{
    for (uint32_t slot = 0; slot < lane->slots; slot++)
        if (mr_ckpt_part_in_use(lane, slot))
            return false;
    return true;
}

int mr_ckpt_part_totals(const struct mr_ckpt_lane *lane, uint32_t *parts, uint64_t *bytes)
{
    *parts = __atomic_load_n(&lane->shared->parts, __ATOMIC_RELAXED);
    *bytes = __atomic_load_n(&lane->shared->bytes, __ATOMIC_RELAXED);
    if (*parts > MR_CKPT_PARTS_MAX || *bytes > *parts * lane->part_bytes) {
        mr_error_set(MR_E_CORRUPT, "checkpoint lane %u claims %u parts and %llu bytes: damaged", lane->lane, *parts,
                     (unsigned long long)*bytes);
        return -1;
    }
    return 0;
}

void mr_ckpt_part_adopt(struct mr_ckpt_lane *lane)
{
    change_fate(lane, MR_FATE_OPEN, MR_FATE_ADOPTED); /* worker */
}

bool mr_ckpt_part_take(struct mr_ckpt_lane *lane, uint64_t *number, uint64_t *held, uint64_t *length)
{
    for (;;) {
        uint64_t best_word = 0;
        uint32_t best = lane->slots;
        for (uint32_t slot = 0; slot < lane->slots; slot++) {
            uint64_t word = mr_ckpt_part_load(lane, slot);
            if (mr_word_state(word) != MR_READY)
                continue;
            /* Laps are compared as signed distances, so that they may wrap; slots of one lap lie in order. */
            if (best == lane->slots || (int32_t)(mr_word_lap(word) - mr_word_lap(best_word)) < 0) {
                best = slot;
                best_word = word;
            }
        }
        if (best == lane->slots)
            return false;
        uint64_t next = mr_word(MR_HELD, lane->worker, mr_word_attempt(best_word), mr_word_lap(best_word));
        if (!swap(&lane->tickets[best], &best_word, next, memory_order_acquire)) /* P1 pairs with P0 */
            continue;
        *number = (uint64_t)(uint32_t)(mr_word_lap(next) - lane->first_lap) << lane->shift | best;
        *held = next;
        uint64_t bytes = __atomic_load_n(&lane->tickets[best].length, __ATOMIC_RELAXED);
        *length = bytes <= lane->part_bytes ? bytes : lane->part_bytes; /* a wild trainer spoils its own object only */
        return true;
    }
}

/* Ignores a number beyond the table. */
static void write_record(struct mr_ckpt_lane *lane, uint64_t number, const struct mr_ckpt_part_record *record)
{
    if (number >= MR_CKPT_PARTS_MAX)
        return;
    struct mr_ckpt_part_record *to = &lane->records[number];
    to->crc32c = record->crc32c;
    to->length = record->length;
    to->generation = record->generation;
    memcpy(to->etag, record->etag, sizeof to->etag);
    to->etag[sizeof to->etag - 1] = '\0';
    atomic_store_explicit(&to->stored, 1, memory_order_release); /* P2 pairs with P4 */
}

void mr_ckpt_part_done(struct mr_ckpt_lane *lane, uint64_t number, uint64_t held,
                       const struct mr_ckpt_part_record *record)
{
    struct mr_ckpt_part_ticket *ticket = ticket_at(lane, number);
    uint64_t released = mr_word(MR_RELEASED, 0, 0, mr_word_lap(held));

    if (!MR_MUTANT_IS(MR_MUTANT_CKPT_PART_LATE_RECORD))
        write_record(lane, number, record);
    if (swap(ticket, &held, released, memory_order_seq_cst)) /* P2 pairs with P3 */
        swap(ticket, &released, mr_word(MR_EMPTY, 0, 0, mr_word_lap(released)), memory_order_seq_cst);
    if (MR_MUTANT_IS(MR_MUTANT_CKPT_PART_LATE_RECORD))
        write_record(lane, number, record);
}

void mr_ckpt_part_put_back(struct mr_ckpt_lane *lane, uint64_t number, uint64_t held)
{
    struct mr_ckpt_part_ticket *ticket = ticket_at(lane, number);
    uint64_t ready = mr_word(MR_READY, lane->trainer, mr_word_attempt(held), mr_word_lap(held));

    if (swap(ticket, &held, ready, memory_order_seq_cst)) /* worker, as P0: the next take pairs with it by P1 */
        check_fate(lane, ticket, ready);
}

bool mr_ckpt_part_record_get(const struct mr_ckpt_lane *lane, uint64_t number, struct mr_ckpt_part_record *record)
{
    if (number >= MR_CKPT_PARTS_MAX)
        return false;
    const struct mr_ckpt_part_record *from = &lane->records[number];
    if (!atomic_load_explicit(&from->stored, memory_order_acquire)) /* P4 pairs with P2 */
        return false;
    record->crc32c = from->crc32c;
    record->length = from->length;
    record->generation = from->generation;
    memcpy(record->etag, from->etag, sizeof record->etag);
    record->etag[sizeof record->etag - 1] = '\0';
    atomic_init(&record->stored, 1);
    return true;
}

bool mr_ckpt_part_set_upload(struct mr_ckpt_lane *lane, uint32_t method, const char *id)
{
    size_t length = strlen(id);

    if (length >= MR_CKPT_PART_UPLOAD_ID)
        return false;
    lane->shared->method = method;
    memcpy(lane->shared->upload_id, id, length + 1);
    atomic_store_explicit(&lane->shared->upload_known, 1,
                          memory_order_release); /* pairs with mr_ckpt_part_get_upload */
    return true;
}

bool mr_ckpt_part_get_upload(const struct mr_ckpt_lane *lane, uint32_t *method, char *id)
{
    if (!atomic_load_explicit(&lane->shared->upload_known,
                              memory_order_acquire)) /* pairs with mr_ckpt_part_set_upload */
        return false;
    *method = lane->shared->method;
    memcpy(id, lane->shared->upload_id, MR_CKPT_PART_UPLOAD_ID);
    id[MR_CKPT_PART_UPLOAD_ID - 1] = '\0';
    return true;
}

void mr_ckpt_part_set_complete_sent(struct mr_ckpt_lane *lane)
{
    /* Worker, before the request; its successor reads it once the writer is dead. Nothing else is ordered by it: a
     * process that has been reaped has stored all that it stored. */
    atomic_store_explicit(&lane->shared->complete_sent, 1, memory_order_release);
}

bool mr_ckpt_part_complete_sent(const struct mr_ckpt_lane *lane)
{
    return atomic_load_explicit(&lane->shared->complete_sent, memory_order_acquire) != 0;
}

void mr_ckpt_part_finish(struct mr_ckpt_lane *lane, enum mr_ckpt_part_outcome outcome, uint32_t code, const char *text,
                         uint64_t generation, uint32_t crc32c)
{
    struct mr_ckpt_part_shared *shared = lane->shared;

    if (atomic_load_explicit(&shared->outcome, memory_order_acquire) != MR_CKPT_PART_UNDECIDED)
        return; /* the worker's successor, or the supervisor after it: one at a time */
    shared->code = code;
    shared->generation = generation;
    shared->crc32c = crc32c;
    strncpy(shared->text, text ? text : "", sizeof shared->text - 1);
    atomic_store_explicit(&shared->outcome, outcome, memory_order_release); /* pairs with mr_ckpt_part_result */
}

enum mr_ckpt_part_outcome mr_ckpt_part_result(const struct mr_ckpt_lane *lane, uint32_t *code, char *text,
                                              uint64_t *generation, uint32_t *crc32c)
{
    const struct mr_ckpt_part_shared *shared = lane->shared;
    uint32_t outcome =
        atomic_load_explicit(&shared->outcome, memory_order_acquire); /* pairs with mr_ckpt_part_finish */

    if (outcome == MR_CKPT_PART_UNDECIDED)
        return MR_CKPT_PART_UNDECIDED;
    *code = shared->code;
    *generation = shared->generation;
    *crc32c = shared->crc32c;
    if (text) {
        memcpy(text, shared->text, MR_CKPT_PART_TEXT);
        text[MR_CKPT_PART_TEXT - 1] = '\0';
    }
    return outcome <= MR_CKPT_PART_GONE ? (enum mr_ckpt_part_outcome)outcome : MR_CKPT_PART_FAILED;
}

unsigned mr_ckpt_part_recover_worker(struct mr_ckpt_lane *lane)
{
    unsigned count = 0;

    if (!MR_MUTANT_IS(MR_MUTANT_CKPT_PART_STALE_ADOPTED))
        change_fate(lane, MR_FATE_ADOPTED, MR_FATE_OPEN); /* supervisor, the worker being dead: its successor adopts */
    for (uint32_t slot = 0; slot < lane->slots; slot++) {
        uint64_t word = mr_ckpt_part_load(lane, slot);
        unsigned attempt = mr_word_attempt(word);
        uint64_t ready =
            mr_word(MR_READY, lane->trainer, attempt < MR_ATTEMPT_MAX ? attempt + 1 : attempt, mr_word_lap(word));
        if (mr_word_state(word) != MR_HELD)
            continue;
        if (MR_MUTANT_IS(MR_MUTANT_CKPT_PART_LOST_HELD))
            ready = mr_word(MR_EMPTY, 0, 0, mr_word_lap(word));
        /* Supervisor, the worker being dead: acquire its P1, release to the next one's P1. */
        if (!swap(&lane->tickets[slot], &word, ready, memory_order_acq_rel))
            continue; /* no other process may change a dead worker's word: damage */
        check_fate(lane, &lane->tickets[slot], ready);
        count++;
    }
    if (mr_ckpt_part_fate(lane) == MR_FATE_ABORTED)
        mr_ckpt_part_sweep(lane); /* the dead one may have aborted the lane and swept half of it */
    return count;
}

enum mr_fate mr_ckpt_part_recover_trainer(struct mr_ckpt_lane *lane)
{
    for (uint32_t slot = 0; slot < lane->slots; slot++) {
        uint64_t word = mr_ckpt_part_load(lane, slot);
        if (mr_word_state(word) == MR_FILLING) /* supervisor, the trainer being dead: no other process may change it */
            swap(&lane->tickets[slot], &word, mr_word(MR_EMPTY, 0, 0, mr_word_lap(word)), memory_order_acq_rel);
    }
    enum mr_fate fate = mr_ckpt_part_fate(lane);
    return fate == MR_FATE_SEALED ? fate : mr_ckpt_part_abort(lane); /* also finishes a sweep that the dead one began */
}
