#include "worker/fetch/datasets.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

struct mr_open_dataset *mr_datasets_find(struct mr_datasets *datasets, uint64_t id)
{
    return id < MR_DATASETS_MAX && datasets->items[id].open ? &datasets->items[id] : NULL;
}

int mr_datasets_locate(struct mr_datasets *datasets, const struct mr_request *request, char *name,
                       struct mr_located *found)
{
    struct mr_index_entry *entry = &found->entry;
    struct mr_open_dataset *ds = mr_datasets_find(datasets, request->dataset);
    if (!ds) {
        mr_error_set(MR_E_PROTOCOL, "a ticket asks for data set %" PRIu32 ", which this worker was never given",
                     request->dataset);
        return -1;
    }
    if (mr_index_locate(&ds->index, request->object, entry, name, &found->range) != 0)
        return -1;
    if (request->offset > entry->size || request->length > entry->size - request->offset) {
        mr_error_set(MR_E_USAGE, "bytes %" PRIu64 " to %" PRIu64 " are not within an object of %" PRIu64 " bytes",
                     request->offset, request->offset + request->length, entry->size);
        return -1;
    }
    found->offset = found->range.offset + request->offset;
    found->bytes = request->length ? request->length : entry->size - request->offset;
    return 0;
}

bool mr_datasets_may_join(struct mr_datasets *datasets, const struct mr_request *first, const struct mr_request *next)
{
    struct mr_open_dataset *ds = mr_datasets_find(datasets, first->dataset);
    return ds && ds->choice && mr_compose_choice_composes(ds->choice) && next->dataset == first->dataset &&
           first->offset == 0 && first->length == 0 && next->offset == 0 && next->length == 0;
}

bool mr_datasets_place(struct mr_datasets *datasets, const struct mr_request *request, struct mr_place *place)
{
    struct mr_open_dataset *ds = mr_datasets_find(datasets, request->dataset);
    struct mr_located at;
    if (!ds || mr_index_shard_count(&ds->index) == 0 || mr_datasets_locate(datasets, request, NULL, &at) != 0)
        return false;
    *place = (struct mr_place){.stored = at.range.first, .offset = at.offset, .bytes = at.bytes};
    return at.bytes > 0;
}

bool mr_datasets_any_composes(const struct mr_datasets *datasets)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (datasets->items[i].choice && mr_compose_choice_composes(datasets->items[i].choice))
            return true;
    return false;
}

/* Forgets the data set and tells the supervisor, which only then gives its number to another. No job may be using
 * it. */
static int datasets_drop(struct mr_datasets *datasets, uint64_t id)
{
    struct mr_open_dataset *ds = &datasets->items[id];
    if (ds->open) { /* the store stays: others may use it, and the next one of this bucket will */
        mr_compose_choice_destroy(ds->choice);
        mr_index_close(&ds->index);
    }
    *ds = (struct mr_open_dataset){0};
    struct mr_msg_out *out = mr_msg_new(MR_MSG_DATASET_DROPPED);
    if (!out)
        return -1;
    mr_msg_put_u64(out, "dataset", id);
    return mr_msg_send(datasets->link->socket, out);
}

void mr_datasets_step(struct mr_datasets *datasets)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_open_dataset *ds = &datasets->items[i];
        if (ds->dropping && ds->jobs == 0)
            (void)datasets_drop(datasets, i); /* its failure shows at the next receive */
        if (ds->choice)
            mr_compose_choice_step(ds->choice);
    }
}

/* The worker of slot 0 removes temporary objects of dead runs of other machines, where composing is allowed at all. */
static int open_choice(struct mr_datasets *datasets, struct mr_open_dataset *ds, uint64_t id, const struct mr_uri *uri)
{
    struct mr_compose_choice_options options = {
        .net = datasets->net, .link = datasets->link, .store = ds->store, .info = &ds->index.info, .dataset = id};
    bool list_soon = datasets->link->slot == 0 && datasets->net->config->fetch.compose != MR_COMPOSE_NEVER;
    if (uri->scheme != MR_SCHEME_GS || ds->ranged || mr_index_shard_count(&ds->index) > 0)
        return 0;
    options.bucket =
        mr_temporaries_bucket(datasets->temporaries, ds->store, ds->index.info.endpoint, uri->bucket, list_soon);
    ds->choice = options.bucket ? mr_compose_choice_new(&options) : NULL;
    return ds->choice ? 0 : -1;
}

static int open_dataset(struct mr_datasets *datasets, struct mr_open_dataset *ds, uint64_t id, int fd,
                        const struct mr_uri *uri)
{
    if (mr_index_map(&ds->index, fd) != 0)
        return -1;
    ds->store = mr_net_store(datasets->net, uri->scheme, uri->bucket);
    if (ds->store && open_choice(datasets, ds, id, uri) == 0)
        return 0;
    mr_index_close(&ds->index);
    return -1;
}

int mr_datasets_add(struct mr_datasets *datasets, struct mr_msg_in *msg)
{
    uint64_t id;
    const char *text;
    bool ranged;
    if (mr_msg_get_u64(msg, "dataset", &id) != 0 || mr_msg_get_str(msg, "uri", &text) != 0 ||
        mr_msg_get_bool(msg, "ranged", &ranged) != 0)
        return -1;
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    struct mr_uri uri;
    if (id >= MR_DATASETS_MAX || datasets->items[id].open || mr_uri_init(&uri, text) != 0) {
        close(fd);
        mr_error_set(MR_E_PROTOCOL, "a bad DATASET message for data set %" PRIu64, id);
        return -1;
    }
    struct mr_open_dataset *ds = &datasets->items[id];
    ds->ranged = ranged;
    int rc = 0;
    ds->open = open_dataset(datasets, ds, id, fd, &uri) == 0;
    if (!ds->open) { /* no memory, bad configuration or credentials: this data set fails, the others continue */
        *ds = (struct mr_open_dataset){0};
        rc = mr_link_send_failed(datasets->link, id, UINT64_MAX);
    }
    close(fd);
    mr_uri_close(&uri);
    return rc;
}

int mr_datasets_drop(struct mr_datasets *datasets, const struct mr_msg_in *msg)
{
    uint64_t id;
    if (mr_msg_get_u64(msg, "dataset", &id) != 0)
        return -1;
    if (id >= MR_DATASETS_MAX) {
        mr_error_set(MR_E_PROTOCOL, "a bad DROP_DATASET message for data set %" PRIu64, id);
        return -1;
    }
    if (datasets->items[id].jobs == 0)
        return datasets_drop(datasets, id);
    datasets->items[id].dropping = true;
    return 0;
}
