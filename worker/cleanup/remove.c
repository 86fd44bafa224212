#include "worker/cleanup/remove.h"

#include <stdlib.h>
#include <string.h>

struct batch {
    struct mr_remover *remover;
    struct batch *previous, *next; /* under way */
    struct mr_transfer *transfer;
    unsigned count;
    struct mr_store_name names[MR_STORE_BATCH_MAX]; /* their text is ours */
    uint64_t bytes[MR_STORE_BATCH_MAX];
};

struct mr_remover {
    struct mr_transfer_engine *engine;
    struct mr_store *store;
    mr_removed_fn *done;
    mr_remover_idle_fn *idle;
    void *arg;
    struct batch *filling; /* NULL: none waits */
    struct batch *sent;
    unsigned under_way;
};

static void batch_free(struct batch *batch)
{
    for (unsigned i = 0; i < batch->count; i++)
        free((char *)(uintptr_t)batch->names[i].name);
    free(batch);
}

static void remove_report(struct batch *batch, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct mr_remover *remover = batch->remover;
    for (unsigned i = 0; i < batch->count; i++) {
        const struct mr_store_result *one = each ? &each[i] : result;
        enum mr_code code = one->code == MR_E_NOT_FOUND ? MR_OK : one->code;
        remover->done(remover->arg, batch->names[i].name, batch->bytes[i], code, code == MR_OK ? "" : one->text);
    }
}

/* A batch has been answered as a whole or name by name. May call `idle`, after which the remover may not exist. */
static void answered(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct batch *batch = arg;
    struct mr_remover *remover = batch->remover;
    *(batch->previous ? &batch->previous->next : &remover->sent) = batch->next;
    if (batch->next)
        batch->next->previous = batch->previous;
    remover->under_way -= batch->count;
    remove_report(batch, result, result->code == MR_OK ? each : NULL);
    batch_free(batch);
    if (remover->under_way == 0 && remover->idle)
        remover->idle(remover->arg);
}

struct mr_remover *mr_remover_new(struct mr_transfer_engine *engine, struct mr_store *store, mr_removed_fn *done,
                                  mr_remover_idle_fn *idle, void *arg)
{
    struct mr_remover *remover = calloc(1, sizeof *remover);
    if (!remover) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for deletes");
        return NULL;
    }
    remover->engine = engine;
    remover->store = store;
    remover->done = done;
    remover->idle = idle;
    remover->arg = arg;
    return remover;
}

void mr_remover_destroy(struct mr_remover *remover)
{
    if (!remover)
        return;
    for (struct batch *at = remover->sent, *next; at; at = next) {
        next = at->next;
        mr_transfer_cancel(remover->engine, at->transfer);
        batch_free(at);
    }
    if (remover->filling)
        batch_free(remover->filling);
    free(remover);
}

int mr_remover_add(struct mr_remover *remover, const char *name, uint64_t generation, uint64_t bytes)
{
    struct batch *batch = remover->filling;
    size_t length = strlen(name);
    char *copy = strdup(name);
    if (!batch && copy)
        batch = remover->filling = calloc(1, sizeof *batch);
    if (!batch || !copy) {
        free(copy);
        mr_error_set(MR_E_NO_MEMORY, "no memory for deletes");
        return -1;
    }
    batch->remover = remover;
    batch->bytes[batch->count] = bytes;
    batch->names[batch->count++] =
        (struct mr_store_name){.name = copy, .name_length = length, .generation = generation};
    if (batch->count == MR_STORE_BATCH_MAX)
        (void)mr_remover_flush(remover); /* `done` is called for each name */
    return 0;
}

int mr_remover_flush(struct mr_remover *remover)
{
    struct batch *batch = remover->filling;
    if (!batch)
        return 0;
    remover->filling = NULL;
    batch->transfer =
        mr_transfer_delete_batch(remover->engine, remover->store, batch->names, batch->count, answered, batch);
    if (!batch->transfer) {
        struct mr_store_result result = {.code = mr_error_code(), .text = mr_error_text()};
        remove_report(batch, &result, NULL);
        batch_free(batch);
        return -1;
    }
    batch->next = remover->sent;
    if (remover->sent)
        remover->sent->previous = batch;
    remover->sent = batch;
    remover->under_way += batch->count;
    return 0;
}

unsigned mr_remover_waiting(const struct mr_remover *remover)
{
    return remover->filling ? remover->filling->count : 0;
}

unsigned mr_remover_under_way(const struct mr_remover *remover)
{
    return remover->under_way;
}
