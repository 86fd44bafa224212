/*
 * dataset_end.c - see dataset_end.h. A number becomes free only after the last lane has left the registry and each
 * fetch worker has answered DATASET_DROPPED or exited, so no message or ticket can name the old data set by then.
 */
#include "supervisor/dataset_end.h"

#include "base/log.h"
#include "supervisor/run_impl.h"

/* Ends the data sets that are like this one: a reader of one of them had this listing open as well. */
static void end_those_like(const struct mr_dataset *dataset)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *other = dataset->supervisor->datasets[i];
        if (other && !other->closing && other->wanted[0] != '\0' && other->like == dataset->id)
            mr_dataset_end_begin(other);
    }
}

void mr_dataset_end_begin(struct mr_dataset *dataset)
{
    dataset->closing = true;
    dataset->owner = NULL;
    end_those_like(dataset);
    if (dataset->state != MR_DATASET_READY)
        mr_dataset_fail(dataset, MR_E_USAGE, "it was closed");
}

/* Whether a client has a listing open that was opened as one like this. */
static bool has_followers(const struct mr_dataset *dataset)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        const struct mr_dataset *other = dataset->supervisor->datasets[i];
        if (other && other->wanted[0] != '\0' && other->like == dataset->id && other->clients > 0)
            return true;
    }
    return false;
}

/* One of the configuration will be opened sooner than one that some client has named. */
static bool is_less_wanted(const struct mr_dataset *a, const struct mr_dataset *b)
{
    return a->name && b->name ? a->left_ns < b->left_ns : !a->name && (b->name || a->left_ns < b->left_ns);
}

/* Of the data sets that no client has open, the one that was left first: it is there only to save another listing. */
static struct mr_dataset *least_wanted(const struct mr_supervisor *s)
{
    struct mr_dataset *found = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (dataset->clients == 0 && !dataset->closing && (!found || is_less_wanted(dataset, found)) &&
            mr_lanes_of_dataset(s, i) == 0 && !has_followers(dataset))
            found = dataset;
    }
    return found;
}

bool mr_dataset_end_make_room(struct mr_supervisor *s)
{
    bool comes_free = false, may_come = false;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        const struct mr_dataset *dataset = s->datasets[i];
        if (!dataset)
            return false;
        bool ends = dataset->closing || (dataset->state == MR_DATASET_FAILED && mr_dataset_is_at_work(dataset));
        comes_free |= ends && mr_lanes_of_dataset(s, i) == 0;
        may_come |= ends;
    }
    struct mr_dataset *least = comes_free ? NULL : least_wanted(s);
    if (!comes_free && !least && !may_come)
        return false;
    if (least) {
        mr_log_info("data set %u (%s) makes room: nobody has it open", least->number, mr_dataset_label(least));
        mr_dataset_end_begin(least);
    }
    mr_error_set(MR_E_BUSY, "%u data sets are open, and some of them are being closed", MR_DATASETS_MAX);
    return true;
}

void mr_dataset_end_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i] && s->datasets[i]->owner == client)
            mr_dataset_end_begin(s->datasets[i]);
}

/* True when it is freed. */
static bool dataset_end_settle_one(struct mr_supervisor *s, struct mr_dataset *dataset)
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

bool mr_dataset_end_settle(struct mr_supervisor *s)
{
    bool changed = false;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (dataset && dataset->nth > 0 && dataset->clients == 0 && !dataset->closing) {
            mr_dataset_end_begin(dataset);
            changed = true;
        }
        if (dataset && dataset->closing)
            changed |= dataset_end_settle_one(s, dataset);
    }
    return changed;
}
