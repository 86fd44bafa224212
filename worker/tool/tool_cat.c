/* tool_cat.c - `millrace cat`: an object, or a range of it, to standard output. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "worker/tool/download.h"

/* "A-B", "A-" and "-N" as in HTTP, against the size: 0 or -1 (USAGE). */
static int parse_range(const char *text, uint64_t size, uint64_t *first, uint64_t *end)
{
    char *rest;
    *first = 0;
    *end = size;
    if (!text)
        return 0;
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
        *first = b < size ? size - b : 0;
        return 0;
    }
    if (b < a)
        goto bad;
    if (a >= size) {
        mr_error_set(MR_E_USAGE, "--range %s starts behind the end: the object has %" PRIu64 " bytes", text, size);
        return -1;
    }
    *first = a;
    *end = b < size - 1 ? b + 1 : size;
    return 0;
bad:
    mr_error_set(MR_E_USAGE, "--range \"%s\" is not A-B, A- or -N with bytes A to B inclusive", text);
    return -1;
}

static int write_out(struct mr_download *download)
{
    const void *data;
    uint64_t length;
    int rc;
    while ((rc = mr_download_next(download, &data, &length)) > 0)
        if (mr_tool_write(STDOUT_FILENO, data, length, "standard output") != 0)
            return -1;
    return rc;
}

int mr_tool_cat(int argc, char **argv)
{
    static const struct option options[] = {{"range", required_argument, NULL, 'R'}, {0}};
    struct mr_tool tool = {.answered = false};
    struct mr_uri uri = {0};
    struct mr_download_object object;
    struct mr_download *download = NULL;
    const char *range = NULL;
    uint64_t first, end;
    int option, rc = -1;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option != 'R')
            return 2;
        range = optarg;
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: millrace cat URI [--range A-B]\n");
        return 2;
    }
    struct mr_store *store = mr_tool_init(&tool) == 0 ? mr_tool_open(&tool, argv[optind], &uri) : NULL;
    if (!store)
        goto out;
    if (uri.key[0] == '\0') {
        mr_error_set(MR_E_USAGE, "%s names no object", argv[optind]);
        goto out;
    }
    if (mr_download_look_up(&tool, store, uri.key, &object) != 0 || parse_range(range, object.size, &first, &end) != 0)
        goto out;
    download = mr_download_new(&tool, &object, first, end);
    rc = download ? write_out(download) : -1;
out:
    mr_download_destroy(download);
    mr_uri_close(&uri);
    mr_tool_close(&tool);
    return rc == 0 ? 0 : mr_tool_fail("cat");
}
