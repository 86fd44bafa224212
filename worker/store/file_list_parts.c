/* Unfinished uploads below a folder: temporary files that no process writes any more. Those of live writers are not
 * listed. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker/store/file_impl.h"
#include "worker/store/leftovers.h"

struct found {
    struct mr_store_pending *items;
    size_t count, size;
    struct mr_text names; /* each with its NUL */
};

/* -1: no memory; mr_error is not set. */
static int found_add(struct found *found, const char *path, size_t length, int64_t written_s)
{
    if (found->count == found->size) {
        size_t size = found->size ? 2 * found->size : 64;
        struct mr_store_pending *items = realloc(found->items, size * sizeof *items);
        if (!items)
            return -1;
        found->items = items;
        found->size = size;
    }
    mr_text_add(&found->names, path, length + 1);
    found->items[found->count++] = (struct mr_store_pending){.name_length = length, .started_s = written_s};
    return found->names.failed ? -1 : 0;
}

static int look_at(struct found *found, const FTSENT *entry)
{
    int64_t written_s;
    if (entry->fts_info != FTS_F || mr_leftover_kind(entry->fts_name) == MR_LEFTOVER_NONE ||
        !mr_leftover_is_dead(AT_FDCWD, entry->fts_path, &written_s))
        return 0;
    if (found_add(found, entry->fts_path, entry->fts_pathlen, written_s) == 0)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for the files of a folder");
    return -1;
}

/* 0, or -1 with mr_error. */
static int search(struct found *found, char *folder)
{
    char *const roots[] = {folder, NULL};
    FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (!fts) {
        mr_error_set_errno(errno, "cannot read the folder");
        return -1;
    }
    int rc = 0;
    FTSENT *entry;
    while (rc == 0 && (errno = 0, entry = fts_read(fts))) {
        if (entry->fts_level == 0 && (entry->fts_info == FTS_NS || entry->fts_info == FTS_DNR)) {
            mr_error_set_errno(entry->fts_errno, "cannot read the folder");
            rc = -1;
        } else {
            rc = look_at(found, entry);
        }
    }
    if (rc == 0 && errno != 0) {
        mr_error_set_errno(errno, "cannot read the folder");
        rc = -1;
    }
    fts_close(fts);
    return rc;
}

static void run_list(struct file_call *call)
{
    struct found found = {0};
    int rc = search(&found, call->name);
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    size_t at = 0;
    for (size_t i = 0; i < found.count && rc == 0; i++) { /* only now: their memory moved while it grew */
        found.items[i].name = found.names.data + at;
        found.items[i].id = strrchr(found.items[i].name, '/') + 1;
        at += found.items[i].name_length + 1;
    }
    struct mr_store_pending_page page = {.items = found.items, .count = found.count, .now_s = time(NULL)};
    call->done.pending(call->arg, &result, rc == 0 ? &page : NULL);
    free(found.items);
    mr_text_close(&found.names);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                         const char *from_id, mr_store_parts_list_fn *done, void *arg)
{
    const char *folder = prefix && prefix[0] ? prefix : "/";
    (void)from_name; /* there is one page */
    (void)from_id;
    struct file_call *call = mr_file_call_new(base, run_list, folder, strlen(folder), arg);
    if (!call)
        return NULL;
    call->done.pending = done;
    return &call->base;
}
