/* wake.c - see wake.h for the two pairings, W0/W1 (consumer sleeps) and W2/W3 (producer sleeps). */
#include "shm/ring/wake.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/memory/fence.h"

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0); /* not FUTEX_PRIVATE: between processes */
}

void mr_wake_set_want(struct mr_lane *lane, uint64_t want)
{
    atomic_store_explicit(&lane->shared->want, want, memory_order_seq_cst);
    if (want)
        mr_fence_full(); /* W1: the caller loads the word again now */
}

uint32_t mr_wake_seq(const struct mr_lane *lane)
{
    return atomic_load_explicit(&lane->shared->seq, memory_order_acquire);
}

enum mr_wake_result mr_wake_word_wait(_Atomic uint32_t *word, uint32_t seen, unsigned timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};

    if (futex(word, FUTEX_WAIT, seen, &timeout) == 0 || errno == EAGAIN)
        return MR_WAKE_CHANGED;
    return errno == EINTR ? MR_WAKE_SIGNAL : MR_WAKE_TIMEOUT;
}

void mr_wake_word(_Atomic uint32_t *word)
{
    atomic_fetch_add_explicit(word, 1, memory_order_release); /* pairs with mr_wake_seq, mr_ckpt_part_seq, batch.c */
    futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

enum mr_wake_result mr_wake_wait(struct mr_lane *lane, uint32_t seen, unsigned timeout_ms)
{
    return mr_wake_word_wait(&lane->shared->seq, seen, timeout_ms);
}

void mr_wake_consumer(struct mr_lane *lane)
{
    mr_fence_full(); /* W0 pairs with W1: our CAS, then `want` */
    if (atomic_load_explicit(&lane->shared->want, memory_order_relaxed))
        mr_wake_consumer_always(lane);
}

void mr_wake_consumer_always(struct mr_lane *lane)
{
    mr_wake_word(&lane->shared->seq);
}

void mr_wake_producer_asleep(struct mr_producer_line *line)
{
    atomic_store_explicit(&line->asleep, 1, memory_order_seq_cst);
    mr_fence_full(); /* W3 pairs with W2: the caller scans every lane again now */
}

void mr_wake_producer_awake(struct mr_producer_line *line)
{
    atomic_store_explicit(&line->asleep, 0, memory_order_relaxed);
}

void mr_wake_producer(const struct mr_producer_line *line, int eventfd)
{
    static const uint64_t one = 1;

    mr_fence_full(); /* W2 pairs with W3: our word or `want`, then `asleep` */
    if (!atomic_load_explicit(&line->asleep, memory_order_relaxed))
        return;
    /* EAGAIN: the counter is full, so it is readable anyway. */
    if (write(eventfd, &one, sizeof one) < 0)
        return;
}
