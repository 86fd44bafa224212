#include "worker/tool/clean_uploads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json_text.h"
#include "worker/cleanup/upload_record.h"
#include "worker/store/upload_parts.h"

#define AGE_S 86400 /* until this age an upload in a bucket may still be in progress */

struct upload {
    char *name, *id;
    int64_t started_s;
};

struct page {
    struct mr_tool *tool;
    struct upload *items;
    size_t count;
    char *next_name, *next_id; /* NULL: it was the last one */
    int64_t now_s;
    int status;
    bool is_named; /* the store says by a name what is wrong */
    bool bad;      /* no memory */
};

static void page_close(struct page *page)
{
    for (size_t i = 0; i < page->count; i++) {
        free(page->items[i].name);
        free(page->items[i].id);
    }
    free(page->items);
    free(page->next_name);
    free(page->next_id);
}

/* NULL for NULL, and without memory, which sets page->bad. */
static char *clean_uploads_copy(struct page *page, const char *text)
{
    char *copied = text ? strdup(text) : NULL;
    page->bad |= text && !copied;
    return copied;
}

/* Copies the page, which is valid only during the call. */
static void clean_uploads_page_arrived(void *arg, const struct mr_store_result *result,
                                       const struct mr_store_pending_page *from)
{
    struct page *page = arg;
    page->status = result->status;
    page->is_named = result->is_named;
    mr_tool_answer(page->tool, result);
    if (!from)
        return;
    page->now_s = from->now_s;
    page->items = calloc(from->count + 1, sizeof *page->items);
    page->bad = !page->items;
    for (size_t i = 0; i < from->count && !page->bad; i++)
        page->items[page->count++] = (struct upload){
            .name = clean_uploads_copy(page, from->items[i].name),
            .id = clean_uploads_copy(page, from->items[i].id),
            .started_s = from->items[i].started_s,
        };
    page->next_name = clean_uploads_copy(page, from->next_name);
    page->next_id = clean_uploads_copy(page, from->next_id);
}

/* Prints the upload, or adds it to the list of --json. A negative (unknown) age is shown as 0. */
static void clean_uploads_show(const struct mr_clean_uploads *clean, const struct upload *upload, int64_t age_s)
{
    char *uri = mr_uri_format(clean->uri->scheme, clean->uri->bucket, upload->name);
    if (clean->list)
        json_array_append_new(clean->list,
                              json_pack("{s:o, s:o, s:I}", "uri", mr_json_from_text(uri), "upload_id",
                                        mr_json_from_text(upload->id), "age_s", (json_int_t)(age_s > 0 ? age_s : 0)));
    else
        printf("%s\tunfinished upload\t%" PRId64 "\n", uri ? uri : upload->name, age_s > 0 ? age_s : 0);
    free(uri);
}

/* Called for each upload that a dead run of this machine has recorded. Without memory it is skipped: its age
 * decides. */
static void note_dead(void *arg, const struct mr_upload_entry *entry, const char *path)
{
    struct mr_clean_uploads *clean = arg;
    (void)path;
    char place[MR_UPLOAD_PLACE_SIZE];
    if (strcmp(entry->bucket, mr_upload_place(clean->uri->scheme, clean->uri->bucket, place)) != 0)
        return;
    char **ids = realloc(clean->dead_ids, (clean->dead_count + 1) * sizeof *ids);
    if (ids)
        clean->dead_ids = ids;
    if (ids && (ids[clean->dead_count] = strdup(entry->id)))
        clean->dead_count++;
}

static bool is_dead_ones(const struct mr_clean_uploads *clean, const char *id)
{
    for (unsigned i = 0; i < clean->dead_count; i++)
        if (strcmp(clean->dead_ids[i], id) == 0)
            return true;
    return false;
}

/* Whether the upload may be removed. age_s < 0: unknown, and only --all or a dead run's record condemns it. */
static bool is_condemned(const struct mr_clean_uploads *clean, const struct upload *upload, int64_t age_s)
{
    if (clean->all)
        return true;
    bool file = clean->uri->scheme == MR_SCHEME_FILE;
    char place[MR_UPLOAD_PLACE_SIZE];
    mr_upload_place(clean->uri->scheme, clean->uri->bucket, place);
    if (mr_upload_is_live(file ? MR_UPLOAD_FILE : place, upload->id))
        return false;
    if (is_dead_ones(clean, upload->id))
        return true;
    int64_t limit_s = file ? 0 : AGE_S;
    if (clean->older_than_s >= 0)
        limit_s = clean->older_than_s;
    return age_s >= 0 && age_s >= limit_s;
}

static void aborted(void *arg, const struct mr_store_result *result)
{
    mr_tool_answer(arg, result);
}

/* Removes the upload if it is condemned. A removal that fails is only counted: -1 only after a signal. */
static int deal_with(struct mr_clean_uploads *clean, const struct upload *upload, int64_t now_s)
{
    int64_t age_s = upload->started_s && now_s ? now_s - upload->started_s : -1;
    mr_progress_update(&clean->progress, ++clean->seen);
    if (!is_condemned(clean, upload, age_s))
        return 0;
    clean->condemned++;
    clean_uploads_show(clean, upload, age_s);
    if (clean->dry_run)
        return 0;
    if (mr_tool_await(clean->tool, mr_transfer_parts_abort(clean->tool->net.engine, clean->store, upload->name,
                                                           strlen(upload->name), upload->id, aborted, clean->tool)) ==
        0) {
        clean->removed++;
        return 0;
    }
    if (mr_tool_interrupted())
        return -1;
    clean->failed++;
    snprintf(clean->failure, sizeof clean->failure, "%s", mr_error_text());
    return 0;
}

/* The answer of an endpoint that has no such uploads. */
static bool has_none(const struct page *page)
{
    int status = page->status;
    return status == 405 || status == 501 || ((status == 400 || status == 404) && !page->is_named);
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* 1: there are more; 0: that was all, or listing is denied (clean->denied); -1 with mr_error. */
static int next_page(struct mr_clean_uploads *clean, struct page *page, const char *prefix)
{
    struct page next = {.tool = clean->tool};
    int rc = mr_tool_await(clean->tool,
                           mr_transfer_parts_list(clean->tool->net.engine, clean->store, prefix, page->next_name,
                                                  page->next_id, clean_uploads_page_arrived, &next));
    bool stuck = next.next_name && is_same(next.next_name, page->next_name) && is_same(next.next_id, page->next_id);
    page_close(page);
    *page = next;
    if (stuck) {
        mr_error_set(MR_E_PROTOCOL, "the markers of the next page of uploads do not change: the list would never end");
        return -1;
    }
    if (rc != 0 && !mr_tool_interrupted() && has_none(page))
        return 0;
    if (rc != 0 && mr_error_code() == MR_E_DENIED) {
        clean->denied = true;
        snprintf(clean->failure, sizeof clean->failure, "%s", mr_error_text());
        return 0;
    }
    if (rc == 0 && page->bad) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page of the uploads");
        rc = -1;
    }
    for (size_t i = 0; rc == 0 && i < page->count; i++)
        rc = deal_with(clean, &page->items[i], page->now_s);
    return rc != 0 ? -1 : page->next_name != NULL;
}

int mr_clean_uploads(struct mr_clean_uploads *clean)
{
    struct page page = {.tool = clean->tool};
    const char *prefix = clean->uri->key[0] ? clean->uri->key : NULL;
    int rc;
    if (clean->uri->scheme != MR_SCHEME_FILE)
        mr_upload_each_dead(note_dead, clean);
    mr_progress_begin(&clean->progress, "unfinished uploads looked at", 0, false);
    do
        rc = next_page(clean, &page, prefix);
    while (rc > 0);
    mr_progress_end(&clean->progress);
    page_close(&page);
    while (clean->dead_count > 0)
        free(clean->dead_ids[--clean->dead_count]);
    free(clean->dead_ids);
    clean->dead_ids = NULL;
    return rc;
}
