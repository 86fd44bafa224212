/* board.c - the supervisor's notice board: made once, mapped read-only by all other processes. */
#include "shm/ring/board.h"

#include <stdio.h>

#include "base/error.h"
#include "shm/memory/segment.h"

void mr_board_format(struct mr_board *board, uint32_t supervisor_pid, const char *run_id)
{
    board->version = MR_BOARD_VERSION;
    board->size = sizeof *board;
    board->supervisor_pid = supervisor_pid;
    snprintf(board->run_id, sizeof board->run_id, "%s", run_id);
    mr_counters_init(&board->node, MR_ROLE_NODE, 0);
    atomic_store_explicit(&board->state, MR_SUP_STARTING, memory_order_relaxed);
    atomic_store_explicit(&board->magic, MR_BOARD_MAGIC, memory_order_release); /* last; pairs with mr_board_map */
}

const struct mr_board *mr_board_map(int fd)
{
    uint64_t size;
    struct mr_board *board = mr_segment_map(fd, sizeof *board, false, &size);

    if (!board) {
        mr_error_append("the supervisor's board");
        return NULL;
    }
    if (atomic_load_explicit(&board->magic, memory_order_acquire) != MR_BOARD_MAGIC ||
        board->version != MR_BOARD_VERSION || board->size != sizeof *board) {
        mr_error_set(MR_E_CORRUPT, "the supervisor's board is not of this version: restart the job");
        mr_segment_unmap(board, sizeof *board);
        return NULL;
    }
    return board;
}
