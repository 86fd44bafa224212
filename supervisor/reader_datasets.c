#include "supervisor/reader_datasets.h"

#include "supervisor/supervisor.h"

static void advance(struct mr_dataset *dataset)
{
    struct mr_supervisor *s = dataset->supervisor;
    uint32_t number = dataset->number;
    if (!dataset->closing)
        return;
    if (!dataset->dropping) {
        if (mr_lanes_of_dataset(s, number) > 0)
            return;
        dataset->dropping = true;
        dataset->undropped = dataset->indexed ? mr_fetch_workers_drop_dataset(s, number) : 0;
    }
    if (dataset->undropped != 0)
        return;
    mr_dataset_close(dataset);
    s->datasets[number] = NULL;
    atomic_store_explicit(&s->board->dataset[number].state, MR_DATASET_FREE, memory_order_release);
}

int mr_reader_datasets_close(struct mr_dataset *dataset)
{
    if (dataset->block_bytes == 0) {
        mr_error_set(MR_E_USAGE, "data set %u is shared with others, and stays open", dataset->number);
        return -1;
    }
    mr_clients_forget(dataset->supervisor, dataset->number);
    dataset->closing = true;
    dataset->owner = NULL;
    if (dataset->state != MR_DATASET_READY)
        mr_dataset_fail(dataset, MR_E_USAGE, "it was closed");
    advance(dataset);
    return 0;
}

void mr_reader_datasets_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->owner == client)
            mr_reader_datasets_close(s->datasets[i]);
}

void mr_reader_datasets_lane_gone(struct mr_supervisor *s, uint32_t dataset)
{
    if (dataset < MR_DATASETS_MAX && s->datasets[dataset])
        advance(s->datasets[dataset]);
}

void mr_reader_datasets_dropped(struct mr_supervisor *s, uint64_t dataset, unsigned slot)
{
    if (dataset >= MR_DATASETS_MAX || !s->datasets[dataset] || !s->datasets[dataset]->dropping)
        return;
    s->datasets[dataset]->undropped &= ~(UINT64_C(1) << slot);
    advance(s->datasets[dataset]);
}

void mr_reader_datasets_producer_died(struct mr_supervisor *s, unsigned slot)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->dropping)
            mr_reader_datasets_dropped(s, i, slot);
}
