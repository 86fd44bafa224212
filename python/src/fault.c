/*
 * fault.c - a write through a read-only view kills the process by SIGSEGV, and torch makes such writes without a Python
 * error. The handler here names the object and the remedy, then lets the signal take its course.
 *
 * The handler may run in any thread at any instruction, so it only reads atomics in static memory, the index image, and
 * calls write(2). Entries are written by whichever thread takes or drops a view: `data` is set last (release) and
 * cleared first; the handler reads it first (acquire).
 */
#include "ring.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WATCHED   4096u /* views with a name; more get the message without one */
#define PROBES    8u
#define VIEWS_MAX 16u

struct watched {
    _Atomic uintptr_t data; /* 0: free, 1: being filled */
    _Atomic uint64_t length, object;
    _Atomic(struct ring_index *) index;
};

static struct watched table[WATCHED];
static _Atomic uint32_t next_entry;
static _Atomic(struct mr_views *) known_views[VIEWS_MAX];
static struct sigaction previous;

uint32_t ring_fault_watch(const struct ring_hold *hold)
{
    uint32_t at = atomic_fetch_add_explicit(&next_entry, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < PROBES; i++) {
        struct watched *w = &table[(at + i) % WATCHED];
        uintptr_t free_entry = 0;
        if (!atomic_compare_exchange_strong_explicit(&w->data, &free_entry, 1, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        atomic_store_explicit(&w->length, hold->length, memory_order_relaxed);
        atomic_store_explicit(&w->object, hold->object, memory_order_relaxed);
        atomic_store_explicit(&w->index, hold->index, memory_order_relaxed);
        atomic_store_explicit(&w->data, (uintptr_t)hold->data, memory_order_release);
        return (at + i) % WATCHED;
    }
    return RING_UNWATCHED;
}

void ring_fault_unwatch(uint32_t watch)
{
    if (watch != RING_UNWATCHED)
        atomic_store_explicit(&table[watch].data, 0, memory_order_release);
}

void ring_fault_swap_views(struct mr_views *old, struct mr_views *new)
{
    for (unsigned i = 0; i < VIEWS_MAX; i++) {
        struct mr_views *expected = old;
        if (atomic_compare_exchange_strong(&known_views[i], &expected, new))
            return;
    }
}

/* The entry whose bytes address lies in, or NULL. */
static const struct watched *fault_find(const void *address)
{
    for (unsigned i = 0; i < WATCHED; i++) {
        uintptr_t data = atomic_load_explicit(&table[i].data, memory_order_acquire);
        uint64_t length = atomic_load_explicit(&table[i].length, memory_order_relaxed);
        if (data > 1 && (uintptr_t)address >= data && (uintptr_t)address - data < length)
            return &table[i];
    }
    return NULL;
}

/* In an arena, but in no view that is alive. */
static bool is_stale(const void *address)
{
    for (unsigned i = 0; i < VIEWS_MAX; i++) {
        const struct mr_views *views = atomic_load_explicit(&known_views[i], memory_order_acquire);
        if (views && mr_views_find(views, address) >= 0)
            return true;
    }
    return false;
}

static void print(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void print_object(const struct watched *w)
{
    static char name[MR_INDEX_NAME_SIZE]; /* one fault at a time: the process ends with it */
    struct mr_index_entry entry;
    struct ring_index *index = atomic_load_explicit(&w->index, memory_order_relaxed);
    if (mr_index_get(&index->index, atomic_load_explicit(&w->object, memory_order_relaxed), &entry, name))
        return;
    print(" of object \"");
    print(name);
    print("\"");
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    const struct watched *view = info->si_code == SEGV_ACCERR ? fault_find(info->si_addr) : NULL;
    if (view || (info->si_code == SEGV_ACCERR && is_stale(info->si_addr))) {
        print("millrace: write into the shared, read-only bytes");
        if (view)
            print_object(view);
        print(". Open the data set with writable=True, or use .copy() of the Lease, to get private bytes that may be "
              "changed.\n");
    }
    /* Back to who was there before; the instruction runs again and faults again. A signal that was sent does not come
     * by itself. */
    sigaction(number, &previous, NULL);
    if (info->si_code <= 0)
        raise(number);
}

static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous);
}

void ring_fault_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}
