#include "worker/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/checksum.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "worker/net.h"

/* One command: its configuration, store and the answer that it waits for. */
struct tool {
    struct mr_config config;
    struct mr_net net;
    struct mr_uri uri;
    struct mr_store *store;
    bool answered;
    enum mr_code code; /* of the answer; its text is in this thread's mr_error */
};

/* The configuration that `millrace` read, or the defaults when this program is started by hand. */
static int load_config(struct mr_config *config)
{
    const char *text = getenv(MR_ENVIRONMENT_FD);
    if (!text)
        return mr_config_init(config);
    char *end;
    errno = 0;
    long fd = strtol(text, &end, 10);
    if (errno || *end || end == text || fd < 0 || fd > INT_MAX) {
        mr_error_set(MR_E_USAGE, MR_ENVIRONMENT_FD "=\"%s\" is no descriptor", text);
        return -1;
    }
    return mr_config_from_fd(config, (int)fd);
}

static int tool_init(struct tool *tool, const char *uri)
{
    memset(tool, 0, sizeof *tool);
    if (load_config(&tool->config) != 0)
        return -1;
    mr_log_init("tool", (enum mr_log_level)tool->config.log.level);
    if (mr_uri_init(&tool->uri, uri) != 0 || mr_net_init(&tool->net, &tool->config) != 0)
        return -1;
    tool->store = mr_net_store(&tool->net, tool->uri.scheme, tool->uri.bucket);
    if (!tool->store)
        mr_net_close(&tool->net);
    return tool->store ? 0 : -1;
}

static void answer(struct tool *tool, const struct mr_store_result *result)
{
    tool->answered = true;
    tool->code = result->code;
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
}

/* Runs the loop until the answer is there: 0, or -1 with its error. */
static int await(struct tool *tool, const struct mr_transfer *started)
{
    if (!started)
        return -1;
    while (!tool->answered) {
        if (mr_http_step(tool->net.http, 1000, -1) < 0)
            return -1;
    }
    tool->answered = false;
    return tool->code == MR_OK ? 0 : -1;
}

static int fail(const char *verb)
{
    fprintf(stderr, "millrace %s: %s\n", verb, mr_error_text());
    return mr_code_exit_status(mr_error_code());
}

/* ---- ls ---- */

struct ls {
    struct tool tool;
    bool details, recursive;
    const char *prefix; /* names are listed below it; a level ends at the next slash behind it */
    char *folder;       /* the folder printed last, with its slash; NULL: none */
    char *last, *token; /* where the listing stands */
    char *from;         /* start offset of the pages that are being read: a token belongs to its parameters */
    uint64_t printed;
    bool more, bad;
};

static void print_item(struct ls *ls, const struct mr_store_item *item)
{
    const struct mr_uri *uri = &ls->tool.uri;
    char crc[9] = "-";
    if (item->has_crc32c)
        mr_crc32c_to_base64(item->crc32c, crc);
    if (ls->details)
        printf("%" PRIu64 "\t%" PRIu64 "\t%s\t", item->size, item->generation, crc);
    if (uri->scheme == MR_SCHEME_FILE)
        printf("file://%s\n", item->name);
    else
        printf("%s://%s/%s\n", mr_scheme_name(uri->scheme), uri->bucket, item->name);
    ls->printed++;
}

/* The name lies deeper: prints its folder once and remembers it. */
static void print_folder(struct ls *ls, const char *name, size_t length)
{
    const struct mr_uri *uri = &ls->tool.uri;
    if (ls->folder && strncmp(ls->folder, name, length) == 0 && ls->folder[length] == 0)
        return;
    free(ls->folder);
    ls->folder = strndup(name, length);
    if (!ls->folder) {
        ls->bad = true;
        return;
    }
    if (ls->details)
        printf("-\t-\t-\t");
    if (uri->scheme == MR_SCHEME_FILE)
        printf("file://%s\n", ls->folder);
    else
        printf("%s://%s/%s\n", mr_scheme_name(uri->scheme), uri->bucket, ls->folder);
    ls->printed++;
}

static void list_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct ls *ls = arg;
    answer(&ls->tool, result);
    if (result->code != MR_OK)
        return;
    bool within = false; /* the page ends within a folder: the rest of that can be passed over */
    size_t below = strlen(ls->prefix);
    for (size_t i = 0; i < page->count; i++) {
        const struct mr_store_item *item = &page->items[i];
        const char *slash = ls->recursive ? NULL : memchr(item->name + below, '/', item->name_length - below);
        within = slash != NULL;
        if (slash)
            print_folder(ls, item->name, (size_t)(slash - item->name) + 1);
        else
            print_item(ls, item);
    }
    free(ls->token);
    ls->token = page->next_token ? strdup(page->next_token) : NULL;
    ls->more = page->next_token != NULL;
    if (page->count > 0) {
        free(ls->last);
        ls->last = strdup(page->items[page->count - 1].name);
    }
    ls->bad = ls->bad || (page->next_token && !ls->token) || (page->count > 0 && !ls->last);
    if (ls->more && within && ls->folder) { /* the first name behind "folder/" is not below "folder0" */
        free(ls->from);
        free(ls->token);
        ls->token = NULL;
        ls->from = strdup(ls->folder);
        if (ls->from)
            ls->from[strlen(ls->from) - 1] = '/' + 1;
        ls->bad = ls->bad || !ls->from;
    }
}

static int list_below(struct ls *ls, const char *prefix)
{
    ls->prefix = prefix;
    do {
        struct mr_store_list_request request = {
            .prefix = prefix,
            .start_offset = ls->from,
            .page_token = ls->token,
            .after = ls->last,
        };
        if (await(&ls->tool, mr_transfer_list(ls->tool.net.engine, ls->tool.store, &request, list_arrived, ls)) != 0)
            return -1;
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
    answer(&ls->tool, result);
    if (result->code == MR_OK)
        print_item(ls, item);
}

/* "gs://b/x": the object x, and what lies below x/. With a slash or nothing behind it: what lies below. */
static int list(struct ls *ls)
{
    struct tool *tool = &ls->tool;
    size_t length = strlen(tool->uri.key);
    if (length == 0 || tool->uri.key[length - 1] == '/')
        return list_below(ls, tool->uri.key);
    if (await(tool, mr_transfer_stat(tool->net.engine, tool->store, tool->uri.key, length, 0, object_arrived, ls)) !=
            0 &&
        mr_error_code() != MR_E_NOT_FOUND)
        return -1;
    char *folder = NULL;
    if (asprintf(&folder, "%s/", tool->uri.key) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a prefix");
        return -1;
    }
    int rc = list_below(ls, folder);
    free(folder);
    return rc != 0 && mr_error_code() == MR_E_NOT_FOUND && ls->printed > 0 ? 0 : rc;
}

int mr_tool_ls(int argc, char **argv)
{
    struct ls ls = {0};
    bool details = false, recursive = false;
    int option;
    while ((option = getopt(argc, argv, "lr")) != -1) {
        if (option == 'l')
            details = true;
        else if (option == 'r')
            recursive = true;
        else
            return 2;
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: millrace ls [-l] [-r] URI\n");
        return 2;
    }
    if (tool_init(&ls.tool, argv[optind]) != 0)
        return fail("ls");
    ls.details = details;
    ls.recursive = recursive;
    if (list(&ls) != 0) {
        fflush(stdout);
        return fail("ls");
    }
    if (ls.printed == 0 && ls.tool.uri.key[0] != 0) {
        mr_error_set(MR_E_NOT_FOUND, "nothing matches %s", argv[optind]);
        return fail("ls");
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        mr_error_set_errno(errno, "standard output");
        return fail("ls");
    }
    return 0;
}

/* ---- cat ---- */

#define CAT_CHUNK  (UINT64_C(8) << 20)
#define CAT_CHUNKS 4

struct cat;
struct chunk {
    struct cat *cat;
    char *data;
    uint64_t length;
    bool running, arrived;
};

/* CAT_CHUNKS pieces are in flight or waiting for their turn: memory is bounded, and the order that of the object. */
struct cat {
    struct tool tool;
    const char *range;
    uint64_t size, generation, first, end, next;
    uint32_t crc32c;
    bool has_crc32c;
    struct chunk chunks[CAT_CHUNKS];
    unsigned failed;
};

static void cat_looked_up(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct cat *cat = arg;
    answer(&cat->tool, result);
    if (result->code != MR_OK)
        return;
    cat->size = item->size;
    cat->generation = item->generation;
    cat->crc32c = item->crc32c;
    cat->has_crc32c = item->has_crc32c;
}

static void chunk_arrived(void *arg, const struct mr_transfer_result *result)
{
    struct chunk *chunk = arg;
    chunk->running = false;
    chunk->arrived = true;
    if (result->code != MR_OK && chunk->cat->failed++ == 0)
        mr_error_set(result->code, "%s", result->text);
}

/* "A-B", "A-" and "-N" as in HTTP, against the size: 0 or -1 (USAGE). */
static int parse_range(struct cat *cat)
{
    const char *text = cat->range;
    cat->first = 0;
    cat->end = cat->size;
    if (!text)
        return 0;
    char *rest;
    errno = 0;
    const char *dash = strchr(text, '-');
    bool digits = dash && strspn(text, "0123456789-") == strlen(text) && !strchr(dash + 1, '-') && strlen(text) > 1;
    if (!digits)
        goto bad;
    uint64_t a = dash == text ? 0 : strtoull(text, &rest, 10);
    uint64_t b = dash[1] ? strtoull(dash + 1, &rest, 10) : UINT64_MAX;
    if (errno)
        goto bad;
    if (dash == text) {
        cat->first = b < cat->size ? cat->size - b : 0;
        return 0;
    }
    if (b < a)
        goto bad;
    if (a >= cat->size) {
        mr_error_set(MR_E_USAGE, "--range %s starts behind the end: the object has %" PRIu64 " bytes", text, cat->size);
        return -1;
    }
    cat->first = a;
    cat->end = b < cat->size - 1 ? b + 1 : cat->size;
    return 0;
bad:
    mr_error_set(MR_E_USAGE, "--range \"%s\" is not A-B, A- or -N with bytes A to B inclusive", text);
    return -1;
}

static int start_chunk(struct cat *cat, struct chunk *chunk)
{
    uint64_t left = cat->end - cat->next;
    chunk->cat = cat;
    chunk->length = left < CAT_CHUNK ? left : CAT_CHUNK;
    if (!chunk->data && !(chunk->data = malloc(chunk->length ? chunk->length : 1))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %" PRIu64 " bytes", chunk->length);
        return -1;
    }
    struct mr_transfer_request request = {
        .store = cat->tool.store,
        .name = cat->tool.uri.key,
        .name_length = strlen(cat->tool.uri.key),
        .generation = cat->generation,
        .size = cat->size,
        .offset = cat->next,
        .length = chunk->length,
        .dest = chunk->data,
    };
    if (!mr_transfer_fetch(cat->tool.net.engine, &request, chunk_arrived, chunk))
        return -1;
    chunk->running = true;
    cat->next += chunk->length;
    return 0;
}

static int write_all(const char *data, uint64_t length)
{
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, data, length);
        if (n < 0 && errno != EINTR) {
            mr_error_set_errno(errno, "standard output");
            return -1;
        }
        if (n > 0) {
            data += n;
            length -= (uint64_t)n;
        }
    }
    return 0;
}

static int copy_out(struct cat *cat)
{
    uint32_t crc = 0;
    unsigned turn = 0;
    bool whole = cat->first == 0 && cat->end == cat->size;
    cat->next = cat->first;
    for (uint64_t written = cat->first; written < cat->end;) {
        for (unsigned i = 0; i < CAT_CHUNKS; i++) {
            struct chunk *chunk = &cat->chunks[(turn + i) % CAT_CHUNKS];
            if (!chunk->running && !chunk->arrived && cat->next < cat->end && start_chunk(cat, chunk) != 0)
                return -1;
        }
        struct chunk *chunk = &cat->chunks[turn];
        while (!chunk->arrived && !cat->failed) {
            if (mr_http_step(cat->tool.net.http, 1000, -1) < 0)
                return -1;
        }
        if (cat->failed)
            return -1;
        crc = mr_crc32c(crc, chunk->data, chunk->length);
        if (write_all(chunk->data, chunk->length) != 0)
            return -1;
        written += chunk->length;
        chunk->arrived = false;
        turn = (turn + 1) % CAT_CHUNKS;
    }
    if (whole && cat->has_crc32c && crc != cat->crc32c) {
        mr_error_set(MR_E_CORRUPT, "the bytes have crc32c %08x and the store says %08x: do not use the output", crc,
                     cat->crc32c);
        return -1;
    }
    return 0;
}

int mr_tool_cat(int argc, char **argv)
{
    struct cat cat = {0};
    const char *range = NULL;
    static const struct option options[] = {{"range", required_argument, NULL, 'R'}, {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option != 'R')
            return 2;
        range = optarg;
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: millrace cat URI [--range A-B]\n");
        return 2;
    }
    if (tool_init(&cat.tool, argv[optind]) != 0)
        return fail("cat");
    cat.range = range;
    struct tool *tool = &cat.tool;
    if (tool->uri.key[0] == 0) {
        mr_error_set(MR_E_USAGE, "%s names no object", argv[optind]);
        return fail("cat");
    }
    if (await(tool, mr_transfer_stat(tool->net.engine, tool->store, tool->uri.key, strlen(tool->uri.key), 0,
                                     cat_looked_up, &cat)) != 0 ||
        parse_range(&cat) != 0 || copy_out(&cat) != 0)
        return fail("cat");
    return 0;
}
