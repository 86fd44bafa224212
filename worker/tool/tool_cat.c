/* tool_cat.c - `millrace cat`: an object, or a range of it, to standard output. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "worker/tool/download.h"
#include "worker/tool/out_pipe.h"

/* The bytes [*first, *end) that --range names in an object of that size. 0 or -1 (USAGE). */
static int resolve_range(const struct mr_arguments *arguments, uint64_t size, uint64_t *first, uint64_t *end)
{
    const struct mr_option_value *value = &arguments->values[MR_OPT_RANGE];
    const struct mr_byte_range *range = &value->range;
    *first = 0;
    *end = size;
    if (value->count == 0)
        return 0;
    if (range->is_suffix) {
        *first = range->last < size ? size - range->last : 0;
        return 0;
    }
    if (range->first >= size) {
        mr_error_set(MR_E_USAGE, "--range %s starts after the end: the object has %" PRIu64 " bytes", value->text,
                     size);
        return -1;
    }
    *first = range->first;
    *end = range->last < size ? range->last + 1 : size;
    return 0;
}

static int write_out(struct mr_tool *tool, struct mr_download *download, struct mr_out_pipe *out)
{
    const void *data;
    uint64_t length;
    int rc;
    while ((rc = mr_download_next(download, &data, &length)) > 0)
        if (mr_out_pipe_write(out, tool, data, length) != 0)
            return -1;
    return rc;
}

static int cat_main(const struct mr_arguments *arguments)
{
    const char *text = arguments->operands[0];
    struct mr_tool tool = {.answered = false};
    struct mr_uri uri = {0};
    struct mr_download_object object;
    struct mr_download *download = NULL;
    struct mr_out_pipe out = {.own = false};
    uint64_t first, end;
    int rc = -1;
    struct mr_store *store = mr_tool_init(&tool) == 0 ? mr_tool_open(&tool, text, &uri) : NULL;
    if (!store || mr_download_look_up(&tool, store, uri.key, &object) != 0 ||
        resolve_range(arguments, object.size, &first, &end) != 0)
        goto out;
    mr_tool_end_with_reader();
    if (mr_out_pipe_init(&out, STDOUT_FILENO, "standard output") != 0)
        goto out;
    download = mr_download_new(&tool, &object, first, end);
    rc = download ? write_out(&tool, download, &out) : -1;
out:
    mr_download_destroy(download);
    mr_uri_close(&uri);
    mr_tool_close(&tool);
    mr_out_pipe_close(&out);
    return rc == 0 ? 0 : mr_tool_fail("cat");
}

int mr_tool_cat(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, cat_main);
}
