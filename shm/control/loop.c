/* loop.c - see loop.h. */
#include "shm/control/loop.h"

#include "shm/control/msg.h"

void mr_loop_put(struct mr_msg_out *out, const struct mr_loop *loop)
{
    mr_msg_put_u64(out, "epoch", loop->epoch);
    mr_msg_put_u64(out, "cursor", loop->cursor);
    mr_msg_put_u64(out, "seed", loop->seed);
    mr_msg_put_u64(out, "batch", loop->batch);
    mr_msg_put_u64(out, "world", loop->world);
    mr_msg_put_u64(out, "rank", loop->rank);
    mr_msg_put_u64(out, "block", loop->block);
    mr_msg_put_u64(out, "mix", loop->mix);
}

int mr_loop_get(const struct mr_msg_in *in, struct mr_loop *loop)
{
    return mr_msg_get_u64(in, "epoch", &loop->epoch) == 0 && mr_msg_get_u64(in, "cursor", &loop->cursor) == 0 &&
                   mr_msg_get_u64(in, "seed", &loop->seed) == 0 && mr_msg_get_u32(in, "batch", &loop->batch) == 0 &&
                   mr_msg_get_u32(in, "world", &loop->world) == 0 && mr_msg_get_u32(in, "rank", &loop->rank) == 0 &&
                   mr_msg_get_u64(in, "block", &loop->block) == 0 && mr_msg_get_u32(in, "mix", &loop->mix) == 0
               ? 0
               : -1;
}
