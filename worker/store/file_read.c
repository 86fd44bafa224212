/* What the client of local folders reads: listings, a file's attributes, its bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/store/file_impl.h"

#define PAGE_ITEMS 1000

/* ---- list ---- */

struct page {
    struct mr_store_item *items;
    size_t count, size;
    struct mr_text names; /* the items' names, each with its NUL */
};

/* -1: no memory; mr_error is not set. */
static int page_add(struct page *page, const char *path, const struct stat *st)
{
    if (page->count == page->size) {
        size_t size = page->size ? 2 * page->size : 256;
        struct mr_store_item *items = realloc(page->items, size * sizeof *items);
        if (!items)
            return -1;
        page->items = items;
        page->size = size;
    }
    size_t n = strlen(path);
    mr_text_add(&page->names, path, n + 1);
    page->items[page->count++] = (struct mr_store_item){.name_length = n,
                                                        .size = (uint64_t)st->st_size,
                                                        .generation = mr_file_generation(st),
                                                        .storage_class = "",
                                                        .etag = "",
                                                        .created_s = (int64_t)st->st_mtime};
    return page->names.failed ? -1 : 0;
}

void mr_file_walk_close(struct file_store *store)
{
    mr_walk_destroy(store->walk);
    free(store->walk_bounds);
    store->walk = NULL;
    store->walk_bounds = NULL;
}

/* Brings store->walk to the call's token: the current walk if it is there, else a new one. 0, or -1 with mr_error. */
static int find_walk(struct file_store *store, const struct file_call *call)
{
    char *bounds = NULL;
    if (asprintf(&bounds, "%s\n%s\n%d", call->name, call->end ? call->end : "", call->no_links) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return -1;
    }
    if (store->walk && call->token && strcmp(bounds, store->walk_bounds) == 0 &&
        strcmp(call->token, store->walk_token) == 0) {
        free(bounds);
        return 0;
    }
    mr_file_walk_close(store);
    const char *lower = call->token ? call->token : call->start;
    store->walk = mr_walk_new(call->name, lower, call->token != NULL, call->end, call->no_links);
    store->walk_bounds = bounds;
    return store->walk ? 0 : -1;
}

/* 1: the page is full, 0: the walk ended, -1: mr_error. */
static int fill_page(struct file_store *store, const struct file_call *call, struct page *page, uint64_t *skipped)
{
    const char *path;
    struct stat st;
    while (page->count < call->max_results) {
        int rc = mr_walk_next(store->walk, &path, &st, skipped);
        if (rc <= 0)
            return rc;
        if (page_add(page, path, &st) != 0) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a page of %zu files", page->count);
            return -1;
        }
    }
    return 1;
}

static void run_list(struct file_call *call)
{
    struct file_store *store = (struct file_store *)call->base.store;
    struct page page = {0};
    struct mr_store_page view = {0};
    int rc = find_walk(store, call) == 0 ? fill_page(store, call, &page, &view.skipped) : -1;
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc < 0 ? rc : 0, text);
    size_t at = 0;
    for (size_t i = 0; i < page.count; at += page.items[i++].name_length + 1)
        page.items[i].name = page.names.data + at; /* only now: the names' memory moved while it grew */
    view.items = page.items;
    view.count = page.count;
    if (rc > 0 && page.count) {
        snprintf(store->walk_token, sizeof store->walk_token, "%s", page.items[page.count - 1].name);
        view.next_token = store->walk_token;
    } else {
        mr_file_walk_close(store);
    }
    call->done.list(call->arg, &result, rc < 0 ? NULL : &view);
    free(page.items);
    mr_text_close(&page.names);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_list(struct mr_store *base, const struct mr_store_list_request *request,
                                   mr_store_list_fn *done, void *arg)
{
    const char *prefix = request->prefix && request->prefix[0] ? request->prefix : "/";
    struct file_call *call = mr_file_call_new(base, run_list, prefix, strlen(prefix), arg);
    if (!call)
        return NULL;
    call->done.list = done;
    call->max_results = request->max_results ? request->max_results : PAGE_ITEMS;
    call->no_links = request->no_links;
    if (mr_text_dup(&call->start, request->start_offset) || mr_text_dup(&call->end, request->end_offset) ||
        mr_text_dup(&call->token, request->page_token)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        mr_file_call_end(call);
        return NULL;
    }
    return &call->base;
}

/* ---- stat ---- */

static int look_up(const struct file_call *call, struct stat *st)
{
    if (stat(call->name, st) != 0) {
        mr_error_set_errno(errno, "cannot look it up");
        return -1;
    }
    if (!S_ISREG(st->st_mode)) {
        mr_error_set(MR_E_NOT_FOUND, "it is not a regular file");
        return -1;
    }
    return mr_file_check_generation(call->generation, st);
}

static void run_stat(struct file_call *call)
{
    struct stat st;
    int rc = look_up(call, &st);
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    struct mr_store_item item;
    if (rc == 0)
        item = mr_file_item(call, &st);
    call->done.stat(call->arg, &result, rc == 0 ? &item : NULL);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_stat(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                   mr_store_stat_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_stat, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    call->generation = generation;
    return &call->base;
}

/* ---- get ---- */

/* Also checks the generation, and that the requested bytes are there. */
static int open_file(struct file_call *call)
{
    const struct mr_store_get_request *get = &call->get;
    call->fd = open(call->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    struct stat st;
    if (call->fd < 0 || fstat(call->fd, &st) != 0) {
        int errnum = errno;
        mr_error_set_errno(errnum,
                           errnum == ENOENT && get->generation ? "deleted since the listing" : "cannot open it");
        if (errnum == EACCES)
            mr_error_set(mr_error_code(),
                         "%s: user %u may not read it: look at its mode and those of its folders (chmod "
                         "a+r, a+x), or run as a user who may",
                         mr_error_text(), (unsigned)geteuid());
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        mr_error_set(MR_E_NOT_FOUND, "it is not a regular file");
        return -1;
    }
    if (mr_file_check_generation(get->generation, &st) != 0)
        return -1;
    uint64_t size = (uint64_t)st.st_size;
    if (get->whole ? size != get->length : size < get->offset + get->length) {
        mr_error_set(MR_E_CHANGED, "it has %llu bytes, and not the %llu that were expected", (unsigned long long)size,
                     (unsigned long long)(get->offset + get->length));
        return -1;
    }
    call->got.generation = mr_file_generation(&st);
    return 0;
}

/* Of each slice before it is given: what has come may be published at once. */
static int check_unchanged(const struct file_call *call)
{
    struct stat st;
    if (fstat(call->fd, &st) == 0)
        return mr_file_check_generation(call->got.generation, &st);
    mr_error_set_errno(errno, "cannot look it up");
    return -1;
}

/* 1: a slice was read, 0: all bytes are there, -1 with mr_error. */
static int read_slice(struct file_call *call)
{
    const struct mr_store_get_request *get = &call->get;
    uint64_t left = get->length - call->got.received;
    if (left == 0)
        return 0;
    size_t slice = left < MR_FILE_SLICE ? (size_t)left : MR_FILE_SLICE;
    ssize_t n = pread(call->fd, get->dest + call->got.received, slice, (off_t)(get->offset + call->got.received));
    if (n < 0 && errno == EINTR)
        return 1;
    if (n < 0) {
        mr_error_set_errno(errno, "cannot read it");
        return -1;
    }
    if (n == 0) {
        mr_error_set(MR_E_CHANGED, "changed while it was read: it ends after %llu bytes",
                     (unsigned long long)(get->offset + call->got.received));
        return -1;
    }
    if (check_unchanged(call) != 0)
        return -1;
    call->got.received += (uint64_t)n;
    if (get->progress)
        get->progress(call->arg, &call->got, (uint64_t)n);
    return 1;
}

static void run_get(struct file_call *call)
{
    int rc = call->fd < 0 ? open_file(call) : 0;
    if (rc == 0)
        rc = read_slice(call);
    if (rc > 0 && call->got.received < call->get.length) {
        mr_file_call_go_on(call);
        return;
    }
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc < 0 ? rc : 0, text);
    call->done.get(call->arg, &result, &call->got);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_get(struct mr_store *base, const struct mr_store_get_request *request,
                                  mr_store_get_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_get, request->name, request->name_length, arg);
    if (!call)
        return NULL;
    call->done.get = done;
    call->get = *request;
    return &call->base;
}
