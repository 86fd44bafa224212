/* tool_ls.c - `millrace ls`: one level of names, or all of them, page by page. */
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/process.h"
#include "base/size.h"
#include "worker/store/text.h"
#include "worker/tool/progress.h"
#include "worker/tool/tool.h"

#define LIMIT_MORE     2
#define LIMIT_PAGE_MAX 1000 /* what every store gives in one answer */

struct ls {
    struct mr_tool tool;
    struct mr_uri uri;
    struct mr_store *store;
    bool details, recursive, human, json;
    const char *prefix; /* names are listed below it; a level ends at the next slash after it */
    char *folder;       /* the folder printed last, with its slash; NULL: none */
    char *last, *token; /* where the listing stands */
    char *from;         /* start offset of the pages that are being read: a token belongs to its parameters */
    uint64_t printed, limit;
    struct mr_progress progress; /* where the names themselves do not go to the terminal */
    bool more, bad;
    bool terminal; /* standard output is one */
};

/* The beginning of a JSON object. */
static void print_uri(const struct ls *ls, const char *name)
{
    char *uri = mr_uri_format(ls->uri.scheme, ls->uri.bucket, name);
    printf("{\"uri\": ");
    mr_tool_print_json(stdout, uri ? uri : name);
    free(uri);
}

/* Prints the name's line, quoted on a terminal: it obeys control bytes, and anyone who can write to the bucket chooses
 * its names. A pipe gets the name as it is. */
static void print_name(const struct ls *ls, const char *name)
{
    const struct mr_uri *uri = &ls->uri;
    char root[MR_URI_PLACE_SIZE];
    fputs(mr_uri_root(uri->scheme, uri->bucket, root), stdout);
    char quoted[4 * PATH_MAX];
    puts(ls->terminal ? mr_text_quote(quoted, sizeof quoted, name, strlen(name)) : name);
}

static void print_item(struct ls *ls, const struct mr_store_item *item)
{
    char crc[9] = "-";
    if (item->has_crc32c)
        mr_crc32c_to_base64(item->crc32c, crc);
    ls->printed++;
    if (ls->json) {
        print_uri(ls, item->name);
        printf(", \"size\": %" PRIu64 ", \"generation\": %" PRIu64, item->size, item->generation);
        if (item->has_crc32c)
            printf(", \"crc32c\": \"%s\"", crc);
        if (item->etag[0]) {
            printf(", \"etag\": ");
            mr_tool_print_json(stdout, item->etag);
        }
        if (item->created_s > 0)
            printf(", \"created\": %" PRId64, item->created_s);
        puts("}");
        return;
    }
    if (ls->details) {
        char size[32];
        if (ls->human)
            mr_size_text((double)item->size, size);
        else
            snprintf(size, sizeof size, "%" PRIu64, item->size);
        printf("%s\t%" PRIu64 "\t%s\t", size, item->generation, crc);
    }
    print_name(ls, item->name);
}

/* The name lies deeper: prints its folder once and remembers it. */
static void print_folder(struct ls *ls, const char *name, size_t length)
{
    if (ls->folder && strncmp(ls->folder, name, length) == 0 && ls->folder[length] == 0)
        return;
    free(ls->folder);
    ls->folder = strndup(name, length);
    if (!ls->folder) {
        ls->bad = true;
        return;
    }
    ls->printed++;
    if (ls->json) {
        print_uri(ls, ls->folder);
        puts("}");
        return;
    }
    if (ls->details)
        printf("-\t-\t-\t");
    print_name(ls, ls->folder);
}

/* Prints the page and sets where the next one starts, which may be after a folder whose rest would print nothing. */
static void list_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct ls *ls = arg;
    mr_tool_answer(&ls->tool, result);
    if (result->code != MR_OK)
        return;
    bool within = false; /* the page ends within a folder, whose rest can be skipped */
    size_t below = strlen(ls->prefix);
    for (size_t i = 0; i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        if (ls->printed == ls->limit)
            break;
        const char *slash = ls->recursive ? NULL : memchr(item->name + below, '/', item->name_length - below);
        within = slash != NULL;
        if (slash)
            print_folder(ls, item->name, (size_t)(slash - item->name) + 1);
        else
            print_item(ls, item);
    }
    free(ls->token);
    ls->token = page->next_token ? strdup(page->next_token) : NULL;
    ls->more = page->next_token != NULL && ls->printed < ls->limit;
    if (page->count > 0) {
        free(ls->last);
        ls->last = strdup(page->items[page->count - 1].name);
    }
    ls->bad = ls->bad || (page->next_token && !ls->token) || (page->count > 0 && !ls->last);
    /* The first name after "folder/" is not below "folder0". */
    if (ls->more && within && ls->folder && mr_store_lists_ranges(ls->store)) {
        free(ls->from);
        free(ls->token);
        ls->token = NULL;
        ls->from = strdup(ls->folder);
        if (ls->from)
            ls->from[strlen(ls->from) - 1] = '/' + 1;
        ls->bad = ls->bad || !ls->from;
    }
}

/* A few more than the lines still wanted, for a folder's marker and names that are skipped. 0: the store's default. */
static unsigned page_size(const struct ls *ls)
{
    uint64_t left = ls->limit - ls->printed + LIMIT_MORE;
    return left < LIMIT_PAGE_MAX ? (unsigned)left : 0;
}

/* Prints what is below the prefix, up to the limit. 0, or -1 with mr_error. */
static int list_below(struct ls *ls, const char *prefix)
{
    ls->prefix = prefix;
    do {
        struct mr_store_list_request request = {
            .prefix = prefix,
            .start_offset = ls->from,
            .page_token = ls->token,
            .after = ls->last,
            .with_times = ls->json,
            .max_results = page_size(ls),
        };
        if (mr_tool_await(&ls->tool, mr_transfer_list(ls->tool.net.engine, ls->store, &request, list_arrived, ls)) != 0)
            return -1;
        if (ls->progress.shown)
            mr_progress_update(&ls->progress, ls->printed);
        if (ls->bad) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a page");
            return -1;
        }
    } while (ls->more);
    return 0;
}

static void object_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct ls *ls = arg;
    mr_tool_answer(&ls->tool, result);
    if (result->code == MR_OK)
        print_item(ls, item);
}

/* "gs://b/x": the object x, and what lies below x/. With a slash or nothing after it: what lies below. */
static int list(struct ls *ls)
{
    struct mr_tool *tool = &ls->tool;
    size_t length = strlen(ls->uri.key);
    if (length == 0 || ls->uri.key[length - 1] == '/')
        return list_below(ls, ls->uri.key);
    if (mr_tool_await(tool,
                      mr_transfer_stat(tool->net.engine, ls->store, ls->uri.key, length, 0, object_arrived, ls)) != 0 &&
        mr_error_code() != MR_E_NOT_FOUND)
        return -1;
    if (ls->printed == ls->limit)
        return 0;
    char *folder = NULL;
    if (asprintf(&folder, "%s/", ls->uri.key) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a prefix");
        return -1;
    }
    int rc = list_below(ls, folder);
    free(folder);
    return rc != 0 && mr_error_code() == MR_E_NOT_FOUND && ls->printed > 0 ? 0 : rc;
}

/* 0, or -1 with mr_error: NOT_FOUND where a key was given and nothing was printed. */
static int tool_ls_run(struct ls *ls, const char *uri)
{
    if (mr_tool_init(&ls->tool) != 0 || !(ls->store = mr_tool_open(&ls->tool, uri, &ls->uri)))
        return -1;
    ls->terminal = isatty(STDOUT_FILENO) == 1;
    if (!ls->terminal)
        mr_progress_begin(&ls->progress, "listed", 0, false);
    int rc = list(ls);
    if (ls->progress.shown)
        mr_progress_end(&ls->progress);
    if (rc == 0 && ls->printed == 0 && ls->uri.key[0] != 0) {
        mr_error_set(MR_E_NOT_FOUND, "nothing matches %s", uri);
        rc = -1;
    }
    return rc;
}

static int ls_main(const struct mr_arguments *arguments)
{
    struct ls ls = {.details = mr_arguments_have(arguments, MR_OPT_LONG),
                    .recursive = mr_arguments_have(arguments, MR_OPT_RECURSIVE),
                    .human = mr_arguments_have(arguments, MR_OPT_HUMAN),
                    .json = mr_arguments_have(arguments, MR_OPT_JSON),
                    .limit = mr_arguments_number(arguments, MR_OPT_LIMIT, UINT64_MAX - LIMIT_MORE)};
    int rc = tool_ls_run(&ls, arguments->operands[0]);
    if (rc == 0)
        rc = mr_process_flush();
    free(ls.folder);
    free(ls.last);
    free(ls.token);
    free(ls.from);
    mr_uri_close(&ls.uri);
    mr_tool_close(&ls.tool);
    return rc == 0 ? 0 : mr_tool_fail("ls");
}

int mr_tool_ls(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, ls_main);
}
