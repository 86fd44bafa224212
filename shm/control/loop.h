/*
 * loop.h - where an epoch stands: what the main process's loop hands, by way of the supervisor, to the worker that opens a
 * lane under the same key (PUT_LOOP, OPEN_LANE).
 */
#ifndef MR_SHM_CONTROL_LOOP_H
#define MR_SHM_CONTROL_LOOP_H

#include <stdint.h>

struct mr_msg_in;
struct mr_msg_out;

#define MR_LOOP_KEY_MAX 64 /* characters */

struct mr_loop {
    uint64_t epoch, cursor, seed;
    uint64_t block; /* objects, of the order in blocks that a state was loaded of, or 0: the data set's own */
    uint32_t batch, world, rank, mix;
};

/* Its fields of a message. get: 0, or -1 (PROTOCOL), and *loop may be partly set. */
void mr_loop_put(struct mr_msg_out *out, const struct mr_loop *loop);
int mr_loop_get(const struct mr_msg_in *in, struct mr_loop *loop);

#endif
