/* stream_order.h - which object of a stream comes when: the keyed permutation that data sets use (shm/index/plan.h). */
#ifndef MR_WORKER_TOOL_STREAM_ORDER_H
#define MR_WORKER_TOOL_STREAM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* Fills order[count], count >= 1: 0 .. count - 1, with shuffle in the order of (count, seed, epoch). 0 or -1 (USAGE). */
int mr_stream_order(uint64_t *order, uint64_t count, bool shuffle, uint64_t seed, uint64_t epoch);

#endif
