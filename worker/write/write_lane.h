/*
 * write_lane.h - one checkpoint lane of the write role: from its parts in shared memory to an object in the store, and
 * an outcome in the lane.
 *
 *     WAITING ---------> LOOKING_UP ---> BEGINNING ------> SENDING --------> ENDING -----> ENDED: DONE
 *     for a whole part   what has the    an upload (write_  parts, side by    the request
 *     or the seal        name now?       parts.c), or none  side, any order   that makes it appear
 *        |                  |               |                 |                 |
 *        '------------------'---- failure, ABORTED -----------'-----------------'--> UNDOING --> ENDED: FAILED, GONE
 *
 * What a successor needs is in the lane before it is needed (shm/ring/ckpt_part.h): method, generation and upload id
 * before the first part, an answer before its part's memory is free, complete_sent before the request. A lane that
 * comes with them continues from there: worker/write/README.md.
 *
 * In the worker's loop; nothing here waits. One process at a time serves a lane.
 */
#ifndef MR_WORKER_WRITE_WRITE_LANE_H
#define MR_WORKER_WRITE_WRITE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/ring/ckpt_part.h"
#include "shm/ring/counters.h"
#include "worker/cleanup/temporary.h"
#include "worker/cleanup/upload_log.h"
#include "worker/net.h"
#include "worker/write/write_again.h"

/* Of a worker; must outlive its lanes. */
struct mr_write_context {
    struct mr_net *net;
    struct mr_counters *counters;
    struct mr_temporaries *temporaries;
    struct mr_upload_log *uploads; /* NULL: there can be none */
    struct mr_write_again *again;  /* uploads whose second abort is to come */
    int late_s;                    /* until then: MR_LATE_S except in tests */
    const unsigned char *arena;    /* the checkpoint arena */
    /* the lanes': the folder that was last scanned for leftovers, and when */
    char swept[MR_STORE_NAME_MAX + 1];
    int64_t swept_ns;
};

struct mr_write_lane;

/*
 * Takes *ckpt over (mr_ckpt_part_map), also where it fails: NULL with mr_error (NO_MEMORY). What is wrong with the URI
 * or the store becomes the lane's outcome.
 */
struct mr_write_lane *mr_write_lane_new(struct mr_write_context *context, struct mr_ckpt_lane *ckpt, const char *uri,
                                        bool if_absent);
/* Cancels what is under way, leaves the lane as it is, as death would, and unmaps it. NULL is allowed. */
void mr_write_lane_destroy(struct mr_write_lane *lane);

/*
 * Begins at most one request. false: there is nothing to begin now. To be called until then, with
 * mr_transfer_free(engine) > 0, after each wake-up and each step of the loop.
 */
bool mr_write_lane_start(struct mr_write_lane *lane);
/* Every 100 ms or so, whatever is free: notices an abort, and an undo that takes too long. */
void mr_write_lane_step(struct mr_write_lane *lane, int64_t now_ns);
/* Gives it up unless it is sealed: for a lane that will not be filled any more. */
void mr_write_lane_abort(struct mr_write_lane *lane);
/* Gives it up, sealed or not: FAILED with this reason, unless it has an outcome. */
void mr_write_lane_give_up(struct mr_write_lane *lane, const char *why);
/* Its outcome is stored, and nothing of ours is in its memory. */
bool mr_write_lane_is_ended(const struct mr_write_lane *lane);

#endif
