#include "worker/tool/stream_order.h"

#include "shm/index/plan.h"

int mr_stream_order(uint64_t *order, uint64_t count, bool shuffle, uint64_t seed, uint64_t epoch)
{
    struct mr_plan_params params = {
        .size = count, .seed = seed, .epoch = epoch, .world = 1, .batch = 1, .shuffle = shuffle};
    struct mr_plan plan;
    if (mr_plan_init(&plan, &params) != 0)
        return -1;
    for (uint64_t i = 0; i < count; i++)
        order[i] = mr_plan_object(&plan, i);
    return 0;
}
