/*
 * wake.h - who wakes whom. Pairings (W = wake):
 *
 *   consumer waits for number n                    publisher of n
 *     s = seq (acquire)                              CAS word -> READY/FAILED (seq_cst)
 *     want = n + 1 (seq_cst)                         fence seq_cst                         W0 pairs with W1
 *     fence seq_cst                        W1        want != 0 ?
 *     word READY/FAILED? -> take                       seq += 1 (release); FUTEX_WAKE
 *     FUTEX_WAIT(seq, s), <= 100 ms
 *
 *   producer goes to sleep                         consumer after post / want / release / close
 *     asleep = 1 (seq_cst)                           fence seq_cst                         W2 pairs with W3
 *     fence seq_cst                        W3        asleep of each producer that may serve it?
 *     scan every lane again                            write its eventfd
 *     poll(eventfd, ...), <= 100 ms; asleep = 0
 */
#ifndef MR_SHM_RING_WAKE_H
#define MR_SHM_RING_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/lane.h"

#define MR_PRODUCER_LINE_BYTES 4096u /* a page, so that it can be mapped read-only by itself */

/* The producer line: one page a producer slot; RW to it, read-only to consumers and the supervisor. */
struct mr_producer_line {
    _Alignas(64) _Atomic uint32_t asleep; /* 1 from before its last scan until it is awake again */
    uint8_t reserved[60];
};

/* How a wait ended. */
enum mr_wake_result {
    MR_WAKE_CHANGED, /* woken, or the word differs from what was seen */
    MR_WAKE_TIMEOUT,
    MR_WAKE_SIGNAL, /* a signal interrupted it */
};

/* The two halves of a futex between processes: wait until *word differs from `seen`, a wake, a signal, or timeout_ms;
 * add one and wake all that wait. */
enum mr_wake_result mr_wake_word_wait(_Atomic uint32_t *word, uint32_t seen, unsigned timeout_ms);
void mr_wake_word(_Atomic uint32_t *word);

/* Consumer: store want (0 clears it: only after the CAS to HELD). */
void mr_wake_set_want(struct mr_lane *lane, uint64_t want);
/* Consumer: waits until seq differs from `seen`, a wake, a signal, or timeout_ms. Blocks: release the GIL around it. */
enum mr_wake_result mr_wake_wait(struct mr_lane *lane, uint32_t seen, unsigned timeout_ms);
uint32_t mr_wake_seq(const struct mr_lane *lane);
/* Publisher (producer or supervisor): after the CAS. */
void mr_wake_consumer(struct mr_lane *lane);
/* The supervisor, after any death: wakes regardless of `want`. */
void mr_wake_consumer_always(struct mr_lane *lane);

/* Producer. */
void mr_wake_producer_asleep(struct mr_producer_line *line); /* asleep = 1, fence; then scan again, then poll */
void mr_wake_producer_awake(struct mr_producer_line *line);
/* Consumer (or supervisor): fence, and if it is asleep one write to its non-blocking eventfd. line may be a read-only
 * mapping. */
void mr_wake_producer(const struct mr_producer_line *line, int eventfd);

#endif
