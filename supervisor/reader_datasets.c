#include "supervisor/reader_datasets.h"

#include "supervisor/run_impl.h"

int mr_reader_datasets_close(struct mr_dataset *dataset)
{
    if (dataset->block_bytes == 0) {
        mr_error_set(MR_E_USAGE, "data set %u is shared with others, and stays open", dataset->number);
        return -1;
    }
    dataset->closing = true;
    dataset->owner = NULL;
    if (dataset->state != MR_DATASET_READY)
        mr_dataset_fail(dataset, MR_E_USAGE, "it was closed");
    return 0;
}

void mr_reader_datasets_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->owner == client)
            mr_reader_datasets_close(s->datasets[i]);
}

/* True when it is freed. */
static bool settle_one(struct mr_supervisor *s, struct mr_dataset *dataset)
{
    uint32_t number = dataset->number;
    if (!dataset->dropping) {
        if (mr_lanes_of_dataset(s, number) > 0 || mr_dataset_is_at_work(dataset))
            return false;
        dataset->dropping = true;
        dataset->undropped = mr_fetch_workers_drop_dataset(s, dataset);
    }
    if (dataset->undropped != 0)
        return false;
    mr_dataset_close(dataset);
    s->datasets[number] = NULL;
    atomic_store_explicit(&s->board->dataset[number].state, MR_DATASET_FREE, memory_order_release);
    return true;
}

bool mr_reader_datasets_settle(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->closing)
            changed |= settle_one(s, s->datasets[i]);
    return changed;
}
