/*
 * datasets.h - the data sets that a fetch worker was given: index, store, and whether their objects are composed.
 */
#ifndef MR_WORKER_FETCH_DATASETS_H
#define MR_WORKER_FETCH_DATASETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "shm/index/index.h"
#include "shm/index/shards.h"
#include "shm/ring/board.h"
#include "shm/ring/producer.h"
#include "worker/fetch/compose_choice.h"

struct mr_open_dataset {
    bool open;
    bool ranged; /* a ranged data set (supervisor/dataset_end.h): read in blocks, never composed */
    struct mr_index index;
    struct mr_store *store;
    struct mr_compose_choice *choice; /* NULL: its store cannot compose */
    unsigned jobs;                    /* that have not ended: a compose continues when nothing waits for it any more */
    bool dropping;                    /* goes once they have */
    struct mr_log_limit failed[MR_E_COUNT]; /* samples not read, and composes not begun */
};

struct mr_datasets {
    struct mr_net *net;
    struct mr_link *link;
    struct mr_temporaries *temporaries;
    struct mr_open_dataset items[MR_DATASETS_MAX];
};

/* The message DATASET. 0, or -1 with mr_error: the worker cannot continue. */
int mr_datasets_add(struct mr_datasets *datasets, struct mr_msg_in *msg);
/* The message DROP_DATASET: no lane names it any more. DATASET_DROPPED is answered once no job does. 0 or -1. */
int mr_datasets_drop(struct mr_datasets *datasets, const struct mr_msg_in *msg);
/* NULL: this worker was never given it. */
struct mr_open_dataset *mr_datasets_find(struct mr_datasets *datasets, uint64_t id);
/* The bytes that a request stands for. */
struct mr_located {
    struct mr_index_entry entry; /* size and crc32c: of the sample, or of the whole object; version: the object's */
    struct mr_index_range range; /* of the entry in the object */
    uint64_t offset, bytes;      /* what is wanted of the object */
};
/* Checked against the index. name: a buffer of MR_INDEX_NAME_SIZE for the object's, or NULL. 0, or -1 with mr_error. */
int mr_datasets_locate(struct mr_datasets *datasets, const struct mr_request *request, char *name,
                       struct mr_located *found);
/* May both be of one composed object now? */
bool mr_datasets_may_join(struct mr_datasets *datasets, const struct mr_request *first, const struct mr_request *next);
/* Where a sample of a shard lies, to be read together with its neighbours; false: it is none. */
bool mr_datasets_place(struct mr_datasets *datasets, const struct mr_request *request, struct mr_place *place);
/* Does any of them compose now? */
bool mr_datasets_any_composes(const struct mr_datasets *datasets);
/* Every 100 ms or so. */
void mr_datasets_step(struct mr_datasets *datasets);

#endif
