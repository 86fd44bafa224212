/* index.c - `millrace index URI -o FILE`: lists and saves; `millrace index FILE`: describes a saved index. */
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/process.h"
#include "base/size.h"
#include "base/uri.h"
#include "cli/cli.h"
#include "shm/index/index_file.h"
#include "supervisor/supervisor.h"

static int build(const struct mr_arguments *arguments)
{
    struct mr_supervisor_options supervisor = {.config_path = mr_arguments_text(arguments, MR_OPT_CONFIG),
                                               .index_uri = arguments->operands[0],
                                               .index_place = mr_arguments_text(arguments, MR_OPT_OUTPUT),
                                               .index_checksums = mr_arguments_have(arguments, MR_OPT_CHECKSUMS),
                                               .verbosity = mr_arguments_verbosity(arguments)};
    if (supervisor.index_place && mr_index_file_check_place(supervisor.index_place) != 0)
        return mr_cli_fail();
    int status = mr_supervisor_main(&supervisor);
    if (status > 128) { /* a signal, by which we end as well: a shell's loop ends with Ctrl-C */
        mr_process_restore_signals();
        raise(status - 128);
    }
    return status;
}

/* ---- describe ---- */

static json_t *texts(const struct mr_strings *strings)
{
    json_t *list = json_array();
    for (size_t i = 0; i < strings->count; i++)
        json_array_append_new(list, mr_json_from_text(strings->items[i]));
    return list;
}

static void print_json(const struct mr_index_file *file)
{
    json_t *dropped = json_object();
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        json_object_set_new(dropped, mr_index_drop_name(kind), json_integer((json_int_t)file->dropped[kind]));
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:s, s:s, s:I, s:I}", "version",
        MR_INDEX_FILE_VERSION, "scheme", mr_scheme_name(file->scheme), "endpoint", file->endpoint, "bucket",
        file->bucket, "prefixes", texts(&file->prefixes), "exclude_classes", texts(&file->exclude_classes), "objects",
        (json_int_t)file->objects, "shards", (json_int_t)file->shards, "bytes", (json_int_t)file->bytes, "largest",
        (json_int_t)file->largest, "dropped", dropped, "requests", (json_int_t)file->requests, "created_ns",
        (json_int_t)file->created_wall_ns, "digest", file->digest, "versions", mr_index_version_kind_name(file->kind),
        "image_bytes", (json_int_t)file->image_bytes, "file_bytes", (json_int_t)file->file_bytes);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(root);
}

static void print_text(const struct mr_index_file *file)
{
    time_t created = (time_t)(file->created_wall_ns / 1000000000);
    char when[64] = "?";
    struct tm tm;
    if (gmtime_r(&created, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    char largest[32];
    mr_size_format(file->largest, largest);
    char place[MR_URI_PLACE_SIZE];
    printf("of         %s", mr_uri_place(file->scheme, file->bucket, place));
    if (file->prefixes.count == 0)
        printf(", an explicit list of objects");
    for (size_t i = 0; i < file->prefixes.count; i++)
        printf("%s%s%s", i > 0 ? ", " : "", file->scheme == MR_SCHEME_FILE ? "" : "/", file->prefixes.items[i]);
    if (file->scheme == MR_SCHEME_FILE)
        putchar('\n');
    else
        printf("\nendpoint   %s\n", file->endpoint[0] != '\0' ? file->endpoint : "(the public service)");
    printf("listed     %s, by %" PRIu64 " requests\n", when, file->requests);
    if (file->shards > 0)
        printf("samples    %" PRIu64 " in %" PRIu64 " tar shards, %" PRIu64 " bytes, the largest %s\n", file->objects,
               file->shards, file->bytes, largest);
    else
        printf("objects    %" PRIu64 ", %" PRIu64 " bytes, the largest %s\n", file->objects, file->bytes, largest);
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        if (file->dropped[kind] > 0)
            printf("left out   %" PRIu64 " (%s)\n", file->dropped[kind], mr_index_drop_name(kind));
    for (size_t i = 0; i < file->exclude_classes.count; i++)
        printf("without    storage class %s\n", file->exclude_classes.items[i]);
    printf("digest     %s\n", file->digest);
    printf("size       %" PRIu64 " bytes; %" PRIu64 " in memory, %.1f an object\n", file->file_bytes, file->image_bytes,
           file->objects > 0 ? (double)file->image_bytes / (double)file->objects : 0);
}

/* Reads and verifies all of it: an index that is described is intact. Returns the exit status. */
static int describe(const char *path, bool json)
{
    struct mr_index_file file;
    struct mr_index index;
    int fd = mr_index_file_open_path(path), out = memfd_create("millrace-index", MFD_CLOEXEC), status = -1;
    if (fd >= 0 && out >= 0 && mr_index_file_open(&file, fd) == 0) {
        if (mr_index_file_unpack(&file, fd, out) == 0 && mr_index_map(&index, out) == 0) {
            status = mr_index_verify(&index);
            mr_index_close(&index);
        }
        if (status == 0)
            json ? print_json(&file) : print_text(&file);
        mr_index_file_close(&file);
    }
    if (status != 0 && fd >= 0)
        mr_error_append("%s", path);
    if (fd >= 0)
        close(fd);
    if (out >= 0)
        close(out);
    return status == 0 ? mr_cli_flush() : mr_cli_fail();
}

int mr_cli_index(const struct mr_arguments *arguments)
{
    if (mr_arguments_have(arguments, MR_OPT_OUTPUT))
        return build(arguments);
    return describe(arguments->operands[0], mr_arguments_have(arguments, MR_OPT_JSON));
}
