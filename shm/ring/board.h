/*
 * board.h - what the supervisor publishes: one segment, written by the supervisor alone, read-only to all others.
 *
 * Readers check it at each timed wake; it carries hints and failure texts, never ownership. Strings are written
 * before the state word that announces them (release; readers acquire: B0) and not changed after, within one id.
 * The number of a division is written before its P (B1).
 */
#ifndef MR_SHM_RING_BOARD_H
#define MR_SHM_RING_BOARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/ring/counters.h"

#define MR_BOARD_MAGIC   UINT64_C(0x6d696c6c626f6172)
#define MR_BOARD_VERSION 4u
#define MR_PRODUCERS_MAX 64u
#define MR_DATASETS_MAX  64u
#define MR_BOARD_TEXT    464u

enum mr_supervisor_state { MR_SUP_STARTING, MR_SUP_RUNNING, MR_SUP_DRAINING, MR_SUP_STOPPING };
enum mr_dataset_state { MR_DATASET_FREE, MR_DATASET_NEW, MR_DATASET_LISTING, MR_DATASET_READY, MR_DATASET_FAILED };

struct mr_board_producer {
    _Atomic uint32_t alive;      /* 0: dead, its blocks may be taken by others */
    _Atomic uint32_t generation; /* counts starts of the slot */
    _Atomic uint32_t pid;
    _Atomic uint32_t failed; /* 1: will not be started again */
    uint8_t reserved[48];
};

/* A data set's id is unique in its run: its number, that is its place on the board and what lanes have, and
 * MR_DATASETS_MAX times how many had that number before. */
static inline uint32_t mr_dataset_number(uint64_t id)
{
    return (uint32_t)(id % MR_DATASETS_MAX);
}
/* The text of its error for a client; takes the number. */
#define MR_DATASET_IS_GONE \
    "data set %u has failed or was closed, and its number was given to another one: open it again"

struct mr_board_dataset {
    _Atomic uint32_t state;  /* enum mr_dataset_state, stored last (release) */
    uint32_t code;           /* FAILED: enum mr_code */
    _Atomic uint64_t id;     /* stored before the state NEW (B0) */
    _Atomic uint64_t listed; /* objects so far: progress */
    _Atomic uint64_t pages;
    _Atomic uint64_t index_bytes;
    _Atomic uint64_t block_bytes; /* most bytes of one ticket; 0: whole objects. Stored before READY */
    char text[MR_BOARD_TEXT];     /* FAILED: why and what to do */
};

struct mr_board {
    _Atomic uint64_t magic;
    uint32_t version;
    uint32_t reserved0;
    uint64_t size;
    uint32_t supervisor_pid;
    _Atomic uint32_t state;     /* enum mr_supervisor_state */
    _Atomic uint32_t producers; /* P: how the blocks are dealt; 0 until the arenas are divided */
    _Atomic uint32_t division;  /* counts the divisions; stored before that P (B1). A hint: a lane's own field counts */
    char run_id[40];            /* uuid of this run */
    uint32_t silence_ms;        /* supervisor.silence_ms; constant */
    uint32_t reserved1;
    /* The supervisor's sign of life: it alone adds to it, from its loop, at least once a second. A process reads it
     * (relaxed: it orders nothing else) only while it waits for the supervisor: never on the path of a sample that is
     * READY. */
    _Alignas(64) _Atomic uint64_t beat;
    _Alignas(64) struct mr_board_producer producer[MR_PRODUCERS_MAX];
    struct mr_board_dataset dataset[MR_DATASETS_MAX];
    /* MR_ROLE_NODE: what readers wait for, and what the machine is short of. Written by the supervisor alone, once a
     * second; read by trainers (relaxed, each value by itself: counters.h). */
    struct mr_counters node;
};

void mr_board_format(struct mr_board *board, uint32_t supervisor_pid, const char *run_id);
/* Maps and checks fd read-only: NULL on error. Unmap with mr_segment_unmap(board, sizeof *board). */
const struct mr_board *mr_board_map(int fd);

#endif
