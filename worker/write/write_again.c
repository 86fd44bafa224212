#include "worker/write/write_again.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker/store/upload_parts.h"

enum stage { WAITING, ASKED, ABORTED, FAILED };

struct mr_write_again {
    struct mr_write_again *next;
    struct mr_store *store;
    char *name, *id;
    uint64_t number;
    int64_t due_ns;
    enum stage stage;
    struct mr_transfer *transfer;
};

static void free_one(struct mr_write_again *one)
{
    free(one->name);
    free(one->id);
    free(one);
}

void mr_write_again_add(struct mr_write_again **list, struct mr_store *store, const char *name, const char *id,
                        uint64_t number, int late_s)
{
    struct mr_write_again *one = calloc(1, sizeof *one);
    if (!one)
        return;
    *one = (struct mr_write_again){.next = *list,
                                   .store = store,
                                   .name = strdup(name),
                                   .id = strdup(id),
                                   .number = number,
                                   .due_ns = mr_clock_mono_ns() + late_s * MR_SECOND_NS};
    if (one->name && one->id)
        *list = one;
    else
        free_one(one);
}

static void on_aborted(void *arg, const struct mr_store_result *result)
{
    struct mr_write_again *one = arg;
    one->transfer = NULL;
    one->stage = result->code == MR_OK ? ABORTED : FAILED;
    if (result->code != MR_OK)
        mr_log_warning("what may have come of an aborted upload was not removed: %s; a later run or millrace clean "
                       "does it",
                       result->text);
}

void mr_write_again_step(struct mr_write_again **list, struct mr_net *net, struct mr_upload_log *log)
{
    int64_t now_ns = *list ? mr_clock_mono_ns() : 0;
    for (struct mr_write_again **at = list, *one; (one = *at);) {
        if (one->stage == WAITING && now_ns >= one->due_ns) {
            one->transfer = mr_transfer_parts_abort(net->engine, one->store, one->name, strlen(one->name), one->id,
                                                    on_aborted, one);
            one->stage = one->transfer ? ASKED : FAILED;
        }
        if (one->stage == ABORTED)
            mr_upload_log_end(log, one->number);
        if (one->stage < ABORTED) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        free_one(one);
    }
}

void mr_write_again_close(struct mr_write_again **list, struct mr_net *net)
{
    for (struct mr_write_again *next; *list; *list = next) {
        next = (*list)->next;
        if ((*list)->transfer)
            mr_transfer_cancel(net->engine, (*list)->transfer);
        free_one(*list);
    }
}
