/*
 * consumer.h - the owner's side of a lane: feed it samples, take them in order, drop the leases.
 *
 * One handle per lane. feed, next and close are for one thread at a time (they take a process-local lock with each
 * other); leases may be released from any thread at any time, without a lock, also after close: the handle is kept
 * alive by its leases. After a fork the child's handle and leases are inert: every call does nothing or returns
 * MR_E_USAGE ("opened before a fork").
 *
 * Rules that live here (README.md has the reasons): posting in blocks of max(1, min(32, A/4)) or when next() is
 * about to wait, where A is how far it looks ahead (ahead.h; W, unless the lane says less); skipping a slot that is
 * HELD; copying out when a take would leave more than 3/4 of W or of the quota as views, and anything that came from a
 * reserve; over the quota only the ticket that next() is about to wait for; want cleared after the CAS.
 */
#ifndef MR_SHM_RING_CONSUMER_H
#define MR_SHM_RING_CONSUMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/ring/board.h"
#include "shm/ring/lane.h"
#include "shm/ring/wake.h"

struct mr_consumer;

/* One producer slot as a consumer sees it. All mappings are read-only; the consumer takes them over and unmaps them
 * with its last lease. */
struct mr_producer_view {
    const void *arena;
    uint64_t arena_bytes;
    const struct mr_producer_line *line;
    int eventfd;
};
/* Shared by all lanes of a process that were opened in one division of the memory, reference-counted: new returns one
 * reference, the caller's. In a forked child unref frees memory and unmaps and closes nothing. board must outlive it.
 * NULL on error (the mappings stay the caller's). */
struct mr_views;
struct mr_views *mr_views_new(const struct mr_board *board, uint32_t division, unsigned producers,
                              const struct mr_producer_view *views);
uint32_t mr_views_division(const struct mr_views *views);
struct mr_views *mr_views_ref(struct mr_views *views);
void mr_views_unref(struct mr_views *views);
/* The producer slot whose arena address lies in, or -1. For the SIGSEGV handler: async-signal-safe. */
int mr_views_find(const struct mr_views *views, const void *address);

struct mr_sample {
    struct mr_request request;
    uint64_t bytes;  /* from the index: for the quota */
    uint64_t cookie; /* the caller's, handed back with the delivery */
};

enum mr_next { MR_NEXT_OK, MR_NEXT_FAILED, MR_NEXT_END, MR_NEXT_TIMEOUT, MR_NEXT_SIGNAL };

/* What next() delivers. A view (data points into an arena, read-only, until mr_lease_release) or a copy (malloc'ed,
 * owned by the caller: free). */
struct mr_delivery {
    struct mr_sample sample;
    const void *data;
    uint64_t length, generation;
    uint32_t crc32c, desc_flags;
    bool copied;
    uint32_t slot; /* view: for release */
    uint64_t word;
    uint32_t code; /* FAILED: enum mr_code */
    char text[MR_FAIL_TEXT + 16];
};

struct mr_consumer_stats { /* of this lane, readable from any thread of the process */
    uint64_t delivered, delivered_bytes, copies, copied_bytes, failed, waits, wait_ns, held, held_bytes, skipped_slots;
};

/* Takes over lane's mapping (*lane is copied; on NULL it stays the caller's) and takes a reference of its own to
 * views. BUSY: they are not of the division that the lane was opened in; map the arenas anew, and open another lane. */
struct mr_consumer *mr_consumer_new(struct mr_lane *lane, struct mr_views *views);
/* Closes the lane if needed and drops the caller's reference; leases that live keep the rest. */
void mr_consumer_destroy(struct mr_consumer *consumer);

/* Appends to the private queue after the window; returns 0, or -1 (NO_MEMORY, or USAGE after close). Posts what may be
 * posted. */
int mr_consumer_feed(struct mr_consumer *consumer, const struct mr_sample *samples, size_t count);
/* Samples fed and not yet delivered: the caller keeps this at about W. */
size_t mr_consumer_backlog(const struct mr_consumer *consumer);
uint32_t mr_consumer_window(const struct mr_consumer *consumer);

/*
 * The next sample in the order of feeding. OK and FAILED fill *out (FAILED's ticket is already released); END: nothing
 * is fed. TIMEOUT after timeout_ms (0: does not wait, and `want` stays 0), SIGNAL when a signal interrupted the wait:
 * call again. Waits in slices of at most 100 ms and checks nothing else between them: pass timeout_ms <= 100, and check
 * the supervisor and the data set (mr_board) between calls. Blocks: release the GIL when timeout_ms > 0.
 */
enum mr_next mr_consumer_next(struct mr_consumer *consumer, unsigned timeout_ms, struct mr_delivery *out);

/* Releases a view (not a copy). Any thread, no lock; safe after close; does nothing in a forked child. */
void mr_lease_release(struct mr_consumer *consumer, uint32_t slot, uint64_t word, uint64_t length);

/* Ends the epoch: closes the lane, drops the queue; live leases stay valid. Idempotent. */
void mr_consumer_close(struct mr_consumer *consumer);
/* In a forked child of the process that made it (a MADV_WIPEONFORK page reads 0). */
bool mr_consumer_is_foreign(const struct mr_consumer *consumer);
/* Adds to one of the lane's counters (enum mr_consumer_counter) what only the caller knows: skipped samples, say. */
void mr_consumer_count(struct mr_consumer *consumer, unsigned which, uint64_t more);
void mr_consumer_stats(const struct mr_consumer *consumer, struct mr_consumer_stats *stats);

#endif
