/*
 * dataset_end.c - see dataset_end.h. A number becomes free only after the last lane has left the registry and each
 * fetch worker has answered DATASET_DROPPED or exited, so no message or ticket can name the old data set by then.
 */
#include "supervisor/dataset_end.h"

#include "base/clock.h"
#include "base/log.h"
#include "supervisor/run_impl.h"

#define UNUSED_BYTES (UINT64_C(256) << 20) /* of the indexes of lists that nobody has open */
#define PATIENCE_NS  (5 * MR_SECOND_NS)    /* so long, one that is being closed is waited for */

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
    dataset->closing_ns = mr_clock_mono_ns();
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

/* It is there only to save another listing. */
static bool is_unused(const struct mr_dataset *dataset)
{
    return dataset->clients == 0 && !dataset->closing && !has_followers(dataset);
}

/* One of the configuration will be opened sooner than one that some client has named. */
static bool is_less_wanted(const struct mr_dataset *a, const struct mr_dataset *b)
{
    if ((a->state == MR_DATASET_FAILED) != (b->state == MR_DATASET_FAILED))
        return a->state == MR_DATASET_FAILED;
    if (!a->name != !b->name)
        return !a->name;
    return a->left_ns < b->left_ns;
}

/* Of the unused ones that are not read any more either, the one that was left first. */
static struct mr_dataset *least_wanted(const struct mr_supervisor *s)
{
    struct mr_dataset *found = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (is_unused(dataset) && mr_lanes_of_dataset(s, i) == 0 && (!found || is_less_wanted(dataset, found)))
            found = dataset;
    }
    return found;
}

/* The FAILED one that was opened first, though a client has it open: it can only be told why once more. */
static struct mr_dataset *oldest_failed(const struct mr_supervisor *s)
{
    struct mr_dataset *found = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (dataset->state == MR_DATASET_FAILED && !dataset->closing && !dataset->ranged &&
            mr_lanes_of_dataset(s, i) == 0 && (!found || dataset->opened_ns < found->opened_ns))
            found = dataset;
    }
    return found;
}

bool mr_dataset_end_make_room(struct mr_supervisor *s)
{
    int64_t now_ns = mr_clock_mono_ns();
    bool comes_free = false, may_come = false;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        const struct mr_dataset *dataset = s->datasets[i];
        if (!dataset)
            return false;
        bool ends = dataset->closing && now_ns - dataset->closing_ns < PATIENCE_NS;
        comes_free |= ends && mr_lanes_of_dataset(s, i) == 0;
        may_come |= ends;
    }
    struct mr_dataset *least = comes_free ? NULL : least_wanted(s);
    if (!comes_free && !least)
        least = oldest_failed(s);
    if (!comes_free && !least && !may_come)
        return false;
    if (least) {
        mr_log_info("data set %u (%s) makes room for another one", least->number, mr_dataset_label(least));
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

/*
 * Explicit lists that no client has open stay for one that names the same objects: the one that was left last, and as
 * many before it as memory allows. Begins to end the one that was left first of the others: true.
 */
static bool end_unused_list(struct mr_supervisor *s)
{
    uint64_t bytes = 0;
    unsigned count = 0;
    struct mr_dataset *first = NULL;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (!dataset || !mr_dataset_is_list(dataset) || dataset->ranged || !is_unused(dataset))
            continue;
        bytes += dataset->index_bytes;
        count++;
        if (!first || dataset->left_ns < first->left_ns)
            first = dataset;
    }
    if (count < 2 || bytes <= UNUSED_BYTES)
        return false;
    mr_dataset_end_begin(first);
    return true;
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
    bool changed = end_unused_list(s);
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
