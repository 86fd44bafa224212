/*
 * tool_rm.c - `millrace rm`: deletes objects in batches. Each delete carries the generation that was looked up or
 * listed, so it can be repeated and never deletes an object that was written meanwhile.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json_text.h"
#include "worker/tool/download.h"
#include "worker/tool/progress.h"

#define BATCHES 8 /* under way at once */

struct rm;

struct batch {
    struct rm *rm;
    struct mr_store_name names[MR_STORE_BATCH_MAX]; /* each name and ETag is malloc'ed */
    unsigned count;
    bool running;
};

struct rm {
    struct mr_tool tool;
    struct mr_store *store; /* of what is collected now */
    struct mr_uri uri;
    bool recursive, bad;
    struct batch batches[BATCHES];
    struct batch *filling; /* NULL: none */
    uint64_t deleted, found, failures;
    json_t *failed; /* NULL: no --json */
    char *token, *last;
    bool more;
    struct mr_progress progress;
};

static void free_name(const struct mr_store_name *name)
{
    free((char *)(uintptr_t)name->name);
    free((char *)(uintptr_t)name->etag);
}

/* Counts the failure, prints it at once, and adds it to the report of --json. name NULL: the URI itself. */
static void note_failure(struct rm *rm, const struct mr_store_name *name, enum mr_code code, const char *text)
{
    char *uri = mr_uri_format(rm->uri.scheme, rm->uri.bucket, name ? name->name : rm->uri.key);
    rm->failures++;
    mr_progress_end(&rm->progress);
    fprintf(stderr, "millrace rm: %s\n", text);
    if (rm->failed)
        json_array_append_new(rm->failed, json_pack("{s:o, s:s, s:o}", "uri", mr_json_from_text(uri), "code",
                                                    mr_code_name(code), "error", mr_json_from_text(text)));
    free(uri);
}

/* ---- batches ---- */

/* Frees the batch's names; it can be filled again. */
static void batch_done(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct batch *batch = arg;
    struct rm *rm = batch->rm;
    for (unsigned i = 0; i < batch->count; i++) {
        const struct mr_store_result *one = each ? &each[i] : result;
        if (one->code == MR_OK)
            rm->deleted++;
        else if (one->code != MR_E_NOT_FOUND || !rm->recursive) /* others may delete there too */
            note_failure(rm, &batch->names[i], one->code, one->text);
        free_name(&batch->names[i]);
    }
    mr_progress_update(&rm->progress, rm->deleted);
    batch->count = 0;
    batch->running = false;
}

/* Sends the batch that is being filled, if any; after that, also on failure, none is being filled. 0 or -1. */
static int send_batch(struct rm *rm)
{
    struct batch *batch = rm->filling;
    if (!batch || batch->count == 0)
        return 0;
    rm->filling = NULL;
    batch->running =
        mr_transfer_delete_batch(rm->tool.net.engine, rm->store, batch->names, batch->count, batch_done, batch) != NULL;
    return batch->running ? 0 : -1;
}

static unsigned running(const struct rm *rm)
{
    unsigned count = 0;
    for (unsigned i = 0; i < BATCHES; i++)
        count += rm->batches[i].running;
    return count;
}

/* A batch that has room; waits for one when all are under way. NULL on an error, and after a signal. */
static struct batch *batch_with_room(struct rm *rm)
{
    if (rm->filling && rm->filling->count == MR_STORE_BATCH_MAX && send_batch(rm) != 0)
        return NULL;
    while (!rm->filling) {
        for (unsigned i = 0; i < BATCHES && !rm->filling; i++)
            if (!rm->batches[i].running)
                rm->filling = &rm->batches[i];
        if (!rm->filling && mr_tool_step(&rm->tool) != 0)
            return NULL;
    }
    rm->filling->rm = rm;
    return rm->filling;
}

/* Copies the name into a batch, which may send a full one and wait for another. 0 or -1. */
static int tool_rm_add(struct rm *rm, const struct mr_store_name *name)
{
    struct batch *batch = batch_with_room(rm);
    char *copy = batch ? strndup(name->name, name->name_length) : NULL;
    char *etag = copy && name->etag ? strdup(name->etag) : NULL;
    if (!copy || (name->etag && !etag)) {
        if (batch)
            mr_error_set(MR_E_NO_MEMORY, "no memory for a name");
        free(copy);
        return -1;
    }
    rm->found++;
    batch->names[batch->count++] = (struct mr_store_name){copy, name->name_length, name->generation, etag};
    return 0;
}

/* Sends the last batch and waits for all of them. 0, or -1 with mr_error. */
static int tool_rm_finish(struct rm *rm)
{
    if (send_batch(rm) != 0)
        return -1;
    while (running(rm) > 0)
        if (mr_tool_step(&rm->tool) != 0)
            return -1;
    return 0;
}

/* ---- one object ---- */

/* Adds the URI's object. 0 even where it could not be looked up, which is noted as a failure. */
static int remove_one(struct rm *rm)
{
    struct mr_download_object found;
    if (mr_download_look_up(&rm->tool, rm->store, rm->uri.key, &found) == 0)
        return tool_rm_add(rm, &(struct mr_store_name){rm->uri.key, strlen(rm->uri.key), found.generation, found.etag});
    if (mr_tool_interrupted())
        return -1;
    if (!rm->recursive || mr_error_code() != MR_E_NOT_FOUND)
        note_failure(rm, NULL, mr_error_code(), mr_error_text());
    return 0;
}

/* ---- everything below a prefix ---- */

struct page {
    struct rm *rm;
    struct mr_store_name *names; /* malloc'ed, as each name is */
    size_t count;
};

/* Copies the page, which is valid only during the call. Without memory rm->bad is set. */
static void tool_rm_page_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct page *kept = arg;
    struct rm *rm = kept->rm;
    mr_tool_answer(&rm->tool, result);
    if (result->code != MR_OK)
        return;
    free(rm->token);
    rm->token = page->next_token ? strdup(page->next_token) : NULL;
    rm->more = page->next_token != NULL;
    kept->names = calloc(page->count + 1, sizeof *kept->names);
    rm->bad |= !kept->names || (rm->more && !rm->token);
    for (size_t i = 0; !rm->bad && i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        char *name = strndup(item->name, item->name_length), *etag = item->etag[0] ? strdup(item->etag) : NULL;
        rm->bad |= !name || (item->etag[0] && !etag);
        kept->names[kept->count++] = (struct mr_store_name){name, item->name_length, item->generation, etag};
    }
    if (!rm->bad && page->count > 0) {
        free(rm->last);
        rm->last = strdup(kept->names[page->count - 1].name);
        rm->bad |= !rm->last;
    }
}

/* Adds one page of names; rm->more then says whether there is another. 0 or -1. */
static int remove_page(struct rm *rm, const char *prefix)
{
    struct page page = {.rm = rm};
    struct mr_store_list_request request = {
        .prefix = prefix, .page_token = rm->token, .after = rm->last, .no_links = true};
    int rc = mr_tool_await(&rm->tool,
                           mr_transfer_list(rm->tool.net.engine, rm->store, &request, tool_rm_page_arrived, &page));
    if (rc == 0 && rm->bad) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page of names");
        rc = -1;
    }
    for (size_t i = 0; i < page.count; i++) {
        if (rc == 0)
            rc = tool_rm_add(rm, &page.names[i]);
        free_name(&page.names[i]);
    }
    free(page.names);
    return rc;
}

static int remove_below(struct rm *rm, const char *prefix)
{
    free(rm->token);
    free(rm->last);
    rm->token = rm->last = NULL;
    int rc;
    do
        rc = remove_page(rm, prefix);
    while (rc == 0 && rm->more);
    return rc;
}

/* What it leads to is somebody else's folder, unless the URI names that by a slash at its end. */
static bool is_link_to_folder(const struct mr_uri *uri)
{
    struct stat link, target;
    return uri->scheme == MR_SCHEME_FILE && lstat(uri->key, &link) == 0 && S_ISLNK(link.st_mode) &&
           stat(uri->key, &target) == 0 && S_ISDIR(target.st_mode);
}

/* As `ls -r` sees it: "gs://b/x" is the object x and what lies below x/, but nothing behind links to folders. */
static int remove_tree(struct rm *rm)
{
    size_t length = strlen(rm->uri.key);
    if (is_link_to_folder(&rm->uri)) {
        char text[400];
        snprintf(text, sizeof text,
                 "\"%.300s\" is a symbolic link to a folder: end it in a slash to remove what is in the folder",
                 rm->uri.key);
        note_failure(rm, NULL, MR_E_USAGE, text);
        return 0;
    }
    uint64_t found = rm->found, failures = rm->failures;
    char *folder = NULL;
    if (length > 0 && rm->uri.key[length - 1] != '/' && remove_one(rm) != 0)
        return -1;
    const char *slash = length == 0 || rm->uri.key[length - 1] == '/' ? "" : "/";
    if (asprintf(&folder, "%s%s", rm->uri.key, slash) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a prefix");
        return -1;
    }
    int rc = remove_below(rm, folder);
    free(folder);
    if (rc != 0 && mr_error_code() == MR_E_NOT_FOUND && rm->uri.scheme == MR_SCHEME_FILE)
        rc = 0; /* no such folder */
    if (rc == 0 && rm->found == found && rm->failures == failures) {
        char *uri = mr_uri_format(rm->uri.scheme, rm->uri.bucket, rm->uri.key), text[400];
        snprintf(text, sizeof text, "nothing matches %s", uri ? uri : "it");
        note_failure(rm, NULL, MR_E_NOT_FOUND, text);
        free(uri);
    }
    return rc;
}

/* ---- the command ---- */

/* Moves on to this URI (rm->uri, rm->store), after the batches of another store have ended. 0 or -1. */
static int remove_uri(struct rm *rm, const char *text)
{
    struct mr_uri uri;
    if (mr_uri_init(&uri, text) != 0)
        return -1;
    struct mr_store *store = mr_net_store(&rm->tool.net, uri.scheme, uri.bucket);
    /* A batch is of one bucket. */
    if (!store || (store != rm->store && tool_rm_finish(rm) != 0)) {
        mr_uri_close(&uri);
        return -1;
    }
    mr_uri_close(&rm->uri);
    rm->uri = uri;
    rm->store = store;
    return rm->recursive ? remove_tree(rm) : remove_one(rm);
}

static int tool_rm_run(struct rm *rm, char **uris)
{
    if (mr_tool_init(&rm->tool) != 0)
        return -1;
    mr_progress_begin(&rm->progress, "objects deleted", 0, false);
    for (; *uris; uris++)
        if (remove_uri(rm, *uris) != 0)
            return -1;
    return tool_rm_finish(rm);
}

static int rm_main(const struct mr_arguments *arguments)
{
    struct rm rm = {.recursive = mr_arguments_have(arguments, MR_OPT_RECURSIVE)};
    bool json = mr_arguments_have(arguments, MR_OPT_JSON);
    rm.failed = json ? json_array() : NULL;
    int rc = tool_rm_run(&rm, arguments->operands);
    mr_progress_end(&rm.progress);
    if (json && (rc == 0 || rm.found > 0)) {
        json_t *report = json_pack("{s:I, s:o}", "deleted", (json_int_t)rm.deleted, "failed", rm.failed);
        if (mr_tool_print_report(report) != 0)
            rc = -1;
    } else {
        json_decref(rm.failed);
    }
    mr_tool_close(&rm.tool); /* before the names of what was under way */
    for (unsigned i = 0; i < BATCHES; i++)
        for (unsigned k = 0; k < rm.batches[i].count; k++)
            free_name(&rm.batches[i].names[k]);
    mr_uri_close(&rm.uri);
    free(rm.token);
    free(rm.last);
    if (rc != 0)
        return mr_tool_fail("rm");
    return rm.failures == 0 ? 0 : 1;
}

int mr_tool_rm(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, rm_main);
}
