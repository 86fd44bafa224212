/* prefault.c - see prefault.h. */
#include "shm/memory/prefault.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct mr_prefault {
    unsigned char *arena;
    uint64_t offset, bytes;
    _Atomic uint8_t *touched;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t to; /* under the lock, as `ends` */
    bool ends;
};

/* Touches the chunk that the byte at `at` lies in: false if the kernel cannot. */
static bool touch(struct mr_prefault *prefault, uint64_t at, uint64_t end)
{
    uint64_t chunk = at / MR_PREFAULT_CHUNK, from = chunk * MR_PREFAULT_CHUNK, bytes = MR_PREFAULT_CHUNK;

    /* A hint between threads: nothing is read by it. */
    if (atomic_load_explicit(&prefault->touched[chunk], memory_order_relaxed))
        return true;
    if (from < prefault->offset) { /* the neighbour's */
        bytes -= prefault->offset - from;
        from = prefault->offset;
    }
    if (bytes > end - from)
        bytes = end - from;
    if (madvise(prefault->arena + from, bytes, MADV_POPULATE_WRITE))
        return false;
    if (bytes == MR_PREFAULT_CHUNK)
        atomic_store_explicit(&prefault->touched[chunk], 1, memory_order_relaxed);
    return true;
}

bool mr_prefault_step(unsigned char *arena, uint64_t bytes, _Atomic uint8_t *touched)
{
    struct mr_prefault all = {.arena = arena, .bytes = bytes, .touched = touched};
    uint64_t chunk = 0;

    /* Relaxed, as in touch. */
    while (chunk < bytes / MR_PREFAULT_CHUNK && atomic_load_explicit(&touched[chunk], memory_order_relaxed))
        chunk++;
    return chunk >= bytes / MR_PREFAULT_CHUNK || !touch(&all, chunk * MR_PREFAULT_CHUNK, bytes);
}

/* Touches the pages up to `to`, which rises as they are needed. Stops early where the kernel refuses them. */
static void *prefault_run(void *arg)
{
    struct mr_prefault *prefault = arg;
    uint64_t end = prefault->offset + prefault->bytes, at = prefault->offset;
    bool works = true;

    pthread_mutex_lock(&prefault->lock);
    while (!prefault->ends && works && at < end) {
        if (at >= prefault->offset + prefault->to) {
            pthread_cond_wait(&prefault->changed, &prefault->lock);
            continue;
        }
        pthread_mutex_unlock(&prefault->lock);
        works = touch(prefault, at, end);
        at = (at / MR_PREFAULT_CHUNK + 1) * MR_PREFAULT_CHUNK;
        pthread_mutex_lock(&prefault->lock);
    }
    pthread_mutex_unlock(&prefault->lock);
    return NULL;
}

struct mr_prefault *mr_prefault_new(unsigned char *arena, uint64_t offset, uint64_t bytes, _Atomic uint8_t *touched)
{
    struct mr_prefault *prefault = calloc(1, sizeof *prefault);

    if (!prefault)
        return NULL;
    *prefault = (struct mr_prefault){.arena = arena, .offset = offset, .bytes = bytes, .touched = touched};
    pthread_mutex_init(&prefault->lock, NULL);
    pthread_cond_init(&prefault->changed, NULL);
    sigset_t all;
    sigfillset(&all); /* the process's signals are for the threads that expect them */
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&prefault->thread, NULL, prefault_run, prefault);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        return prefault;
    pthread_cond_destroy(&prefault->changed);
    pthread_mutex_destroy(&prefault->lock);
    free(prefault);
    return NULL;
}

void mr_prefault_ahead(struct mr_prefault *prefault, uint64_t to)
{
    pthread_mutex_lock(&prefault->lock);
    if (to > prefault->to) {
        prefault->to = to;
        pthread_cond_signal(&prefault->changed);
    }
    pthread_mutex_unlock(&prefault->lock);
}

void mr_prefault_destroy(struct mr_prefault *prefault)
{
    if (!prefault)
        return;
    pthread_mutex_lock(&prefault->lock);
    prefault->ends = true;
    pthread_cond_signal(&prefault->changed);
    pthread_mutex_unlock(&prefault->lock);
    pthread_join(prefault->thread, NULL);
    pthread_cond_destroy(&prefault->changed);
    pthread_mutex_destroy(&prefault->lock);
    free(prefault);
}
