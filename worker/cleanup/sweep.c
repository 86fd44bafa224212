#include "worker/cleanup/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/cleanup/remove.h"

struct mr_sweep {
    struct mr_sweep_options options;
    struct mr_remover *remover;
    struct mr_transfer *listing;
    struct mr_sweep_result so_far;
    char *token, *last;
    bool bad; /* no memory for a page */
    char failure[400];
};

static int list_page(struct mr_sweep *sweep);

static void sweep_end(struct mr_sweep *sweep, enum mr_code code, const char *text)
{
    sweep->so_far.code = code;
    sweep->so_far.text = text;
    sweep->so_far.failure = sweep->failure;
    sweep->options.done(sweep->options.arg, &sweep->so_far);
    sweep->listing = NULL;
    mr_sweep_destroy(sweep);
}

/* Nothing of the page is under way any more: the next one, or the end. */
static void sweep_go_on(struct mr_sweep *sweep)
{
    if (sweep->options.progress)
        sweep->options.progress(sweep->options.arg, &sweep->so_far);
    if (sweep->bad)
        sweep_end(sweep, MR_E_NO_MEMORY, "no memory for a page of the listing");
    else if (!sweep->token)
        sweep_end(sweep, MR_OK, "");
    else if (list_page(sweep) != 0)
        sweep_end(sweep, mr_error_code(), mr_error_text());
}

static void removed(void *arg, const char *name, uint64_t bytes, enum mr_code code, const char *text)
{
    struct mr_sweep *sweep = arg;
    (void)name;
    if (code == MR_OK || code == MR_E_CHANGED) { /* changed: another process has replaced it; it is theirs now */
        sweep->so_far.removed++;
        sweep->so_far.removed_bytes += bytes;
    } else {
        sweep->so_far.failed++;
        snprintf(sweep->failure, sizeof sweep->failure, "%s", text);
    }
}

/* Judges the names of a page, removes the condemned ones, and requests the next page. A name that cannot be queued for
 * removal makes the sweep's result bad, but does not stop it. */
static void sweep_page_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct mr_sweep *sweep = arg;
    sweep->listing = NULL;
    if (result->code != MR_OK) {
        sweep_end(sweep, result->code, result->text);
        return;
    }
    for (size_t i = 0; i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        int64_t age_s = page->now_s != 0 && item->created_s != 0 ? page->now_s - item->created_s : -1;
        sweep->so_far.seen++;
        if (!sweep->options.verdict(sweep->options.arg, item, age_s))
            continue;
        sweep->so_far.condemned++;
        sweep->so_far.bytes += item->size;
        if (!sweep->options.dry_run && mr_remover_add(sweep->remover, item->name, item->generation, item->size) != 0)
            sweep->bad = true;
    }
    free(sweep->token);
    sweep->token = page->next_token ? strdup(page->next_token) : NULL;
    sweep->bad |= page->next_token && !sweep->token;
    if (page->count > 0) {
        free(sweep->last);
        sweep->last = strdup(page->items[page->count - 1].name);
        sweep->bad |= !sweep->last;
    }
    (void)mr_remover_flush(sweep->remover);
    if (mr_remover_under_way(sweep->remover) == 0)
        sweep_go_on(sweep);
}

static void idle(void *arg)
{
    sweep_go_on(arg);
}

static int list_page(struct mr_sweep *sweep)
{
    struct mr_store_list_request request = {
        .prefix = sweep->options.prefix, .page_token = sweep->token, .after = sweep->last, .with_times = true};
    sweep->listing = mr_transfer_list(sweep->options.engine, sweep->options.store, &request, sweep_page_arrived, sweep);
    return sweep->listing ? 0 : -1;
}

struct mr_sweep *mr_sweep_new(const struct mr_sweep_options *options)
{
    struct mr_sweep *sweep = calloc(1, sizeof *sweep);
    if (!sweep) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return NULL;
    }
    sweep->options = *options;
    sweep->remover = mr_remover_new(options->engine, options->store, removed, idle, sweep);
    if (!sweep->remover || list_page(sweep) != 0) {
        mr_sweep_destroy(sweep);
        return NULL;
    }
    return sweep;
}

void mr_sweep_destroy(struct mr_sweep *sweep)
{
    if (!sweep)
        return;
    if (sweep->listing)
        mr_transfer_cancel(sweep->options.engine, sweep->listing);
    mr_remover_destroy(sweep->remover);
    free(sweep->token);
    free(sweep->last);
    free(sweep);
}
