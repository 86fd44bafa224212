/* trace.c - see trace.h. */
#include "shm/trace/trace.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define TRIES    1000 /* others were quicker; or a process has written wild bytes here, which must not hold us up */
#define STUCK_NS MR_SECOND_NS /* a writer needs less than a microsecond between its two steps */

_Static_assert(sizeof(struct mr_trace_slot) == 128, "two cache lines a slot");
_Static_assert((MR_TRACE_SLOTS & (MR_TRACE_SLOTS - 1)) == 0, "positions wrap without a gap");

struct mr_trace_shared *_Atomic mr_trace_attached;

/* What `turn` is while the slot of that position is empty; one more while it is full. */
static uint32_t empty_turn(uint64_t position)
{
    return (uint32_t)(position / MR_TRACE_SLOTS) * 2;
}

static struct mr_trace_slot *slot_of(struct mr_trace_shared *shared, uint64_t position)
{
    return &shared->slot[position % MR_TRACE_SLOTS];
}

void mr_trace_format(struct mr_trace_shared *shared)
{
    shared->version = MR_TRACE_VERSION;
    shared->slots = MR_TRACE_SLOTS;
    shared->id = mr_random64();
    /* T0: a process that sees the magic sees them. Pairs with T1 in map(). */
    atomic_store_explicit(&shared->magic, MR_TRACE_MAGIC, memory_order_release);
}

void mr_trace_begin(struct mr_trace_shared *shared)
{
    atomic_store_explicit(&shared->on, 1, memory_order_relaxed);
}

void mr_trace_end(struct mr_trace_shared *shared)
{
    atomic_store_explicit(&shared->on, 0, memory_order_relaxed);
}

/* NULL with an error where the segment was made by another version of millrace. */
static struct mr_trace_shared *map(int fd)
{
    struct mr_trace_shared *shared;
    struct stat st;

    if (fstat(fd, &st) != 0 || st.st_size != sizeof *shared) {
        mr_error_set(MR_E_CORRUPT, "the memory for traces is of another size: was millrace upgraded while it ran?");
        return NULL;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map the memory for traces");
        return NULL;
    }
    /* T1: pairs with T0 in mr_trace_format. */
    if (atomic_load_explicit(&shared->magic, memory_order_acquire) != MR_TRACE_MAGIC ||
        shared->version != MR_TRACE_VERSION || shared->slots != MR_TRACE_SLOTS) {
        mr_error_set(MR_E_CORRUPT, "the memory for traces is of another version: was millrace upgraded while it ran?");
        munmap(shared, sizeof *shared);
        return NULL;
    }
    return shared;
}

int mr_trace_attach(int fd)
{
    struct mr_trace_shared *shared = map(fd);

    if (!shared)
        return -1;
    const struct mr_trace_shared *present = atomic_load_explicit(&mr_trace_attached, memory_order_acquire);
    if (present && present->id == shared->id)
        munmap(shared, sizeof *shared);
    else
        /* T6: what map() has checked is visible to a thread that sees the pointer. Pairs with T7. */
        atomic_store_explicit(&mr_trace_attached, shared, memory_order_release);
    return 0;
}

/* Copies as much of the text's end as fits, from a whole UTF-8 character on. */
static void put_text(char out[MR_TRACE_TEXT], const char *text)
{
    size_t length = text ? strlen(text) : 0;

    if (length >= MR_TRACE_TEXT) {
        text += length - (MR_TRACE_TEXT - 1);
        while (((unsigned char)*text & 0xc0) == 0x80)
            text++;
        length = strlen(text);
    }
    if (length > 0)
        memcpy(out, text, length);
    out[length] = '\0';
}

void mr_trace_emit(const struct mr_trace_record *span, const char *text)
{
    struct mr_trace_shared *shared = atomic_load_explicit(&mr_trace_attached, memory_order_acquire); /* T7 */

    if (!shared || atomic_load_explicit(&shared->on, memory_order_relaxed) == 0)
        return;
    uint64_t head = atomic_load_explicit(&shared->head, memory_order_relaxed);
    struct mr_trace_slot *slot;
    unsigned tries = 0;
    for (;;) {
        slot = slot_of(shared, head);
        /* T5: pairs with T4. */
        int32_t ahead = (int32_t)(atomic_load_explicit(&slot->turn, memory_order_acquire) - empty_turn(head));
        if (ahead < 0 || ++tries > TRIES) { /* the slot's record was not read yet */
            atomic_fetch_add_explicit(&shared->lost, 1, memory_order_relaxed);
            return;
        }
        if (ahead > 0) /* another writer has the position */
            head = atomic_load_explicit(&shared->head, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(&shared->head, &head, head + 1, memory_order_relaxed,
                                                       memory_order_relaxed))
            break;
    }
    slot->record = *span;
    slot->record.pid = (uint32_t)getpid();
    slot->record.tid = (uint32_t)gettid();
    put_text(slot->record.text, text);
    /* T2: pairs with T3. It fails if the reader has passed over us. */
    uint32_t turn = empty_turn(head);
    atomic_compare_exchange_strong_explicit(&slot->turn, &turn, turn + 1, memory_order_release, memory_order_relaxed);
}

int mr_trace_reader_open(struct mr_trace_reader *reader, int fd)
{
    *reader = (struct mr_trace_reader){.shared = map(fd)};
    if (!reader->shared)
        return -1;
    reader->at = atomic_load_explicit(&reader->shared->tail, memory_order_relaxed);
    reader->lost = atomic_load_explicit(&reader->shared->lost, memory_order_relaxed);
    return 0;
}

/* The position is taken and not published: its writer is slow, stopped or dead. Passes over it after STUCK_NS; the
 * writer's CAS to publish fails then. */
static void pass_over(struct mr_trace_reader *reader, struct mr_trace_slot *slot, int64_t now_ns)
{
    uint32_t turn = empty_turn(reader->at);

    if (atomic_load_explicit(&reader->shared->head, memory_order_relaxed) <= reader->at)
        return;
    if (reader->stuck_ns == 0)
        reader->stuck_ns = now_ns;
    if (now_ns - reader->stuck_ns < STUCK_NS)
        return;
    /* T4, as in mr_trace_read: no byte of the slot was read. */
    if (atomic_compare_exchange_strong_explicit(&slot->turn, &turn, turn + 2, memory_order_release,
                                                memory_order_relaxed)) {
        reader->at++;
        reader->passed++;
    }
    reader->stuck_ns = 0;
}

static void check(struct mr_trace_record *record)
{
    record->text[MR_TRACE_TEXT - 1] = '\0';
    if (record->kind >= MR_SPAN_KINDS)
        record->kind = MR_SPAN_NONE;
}

bool mr_trace_read(struct mr_trace_reader *reader, int64_t now_ns, struct mr_trace_record *record)
{
    for (unsigned looked = 0; looked <= MR_TRACE_SLOTS; looked++) {
        struct mr_trace_slot *slot = slot_of(reader->shared, reader->at);
        uint32_t empty = empty_turn(reader->at);
        /* T3: pairs with T2. */
        int32_t ahead = (int32_t)(atomic_load_explicit(&slot->turn, memory_order_acquire) - empty);
        if (ahead > 1) { /* an earlier reader died after it had emptied it */
            reader->at++;
            continue;
        }
        if (ahead < 1) {
            uint64_t before = reader->at;
            pass_over(reader, slot, now_ns);
            if (reader->at == before)
                return false;
            continue;
        }
        *record = slot->record;
        /* T4: pairs with T5 in mr_trace_emit. */
        atomic_store_explicit(&slot->turn, empty + 2, memory_order_release);
        atomic_store_explicit(&reader->shared->tail, ++reader->at, memory_order_relaxed);
        reader->stuck_ns = 0;
        check(record);
        return true;
    }
    return false; /* only wild bytes are here */
}

uint64_t mr_trace_reader_lost(const struct mr_trace_reader *reader)
{
    return atomic_load_explicit(&reader->shared->lost, memory_order_relaxed) - reader->lost;
}

void mr_trace_reader_close(struct mr_trace_reader *reader)
{
    if (reader->shared)
        munmap(reader->shared, sizeof *reader->shared);
    *reader = (struct mr_trace_reader){0};
}
