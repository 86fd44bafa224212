/* `millrace index URI -o FILE`: lists, and saves; `millrace index FILE`: says what a saved index holds. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/size.h"
#include "shm/base/uri.h"
#include "shm/index/index_file.h"
#include "supervisor/supervisor.h"

struct arguments {
    struct mr_options options;
    const char *what, *out;
    bool wrong;
};

/* Options may stand before and behind the operand. */
static struct arguments parse(int argc, char **argv)
{
    struct arguments a = {.what = NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-c") == 0 && i + 1 < argc)
            a.options.config = argv[++i];
        else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
            a.out = argv[++i];
        else if (strcmp(argv[i], "--json") == 0)
            a.options.json = true;
        else if (strcmp(argv[i], "-v") == 0)
            a.options.verbosity++;
        else if (strcmp(argv[i], "-q") == 0)
            a.options.verbosity--;
        else if (argv[i][0] == '-' || a.what)
            a.wrong = true;
        else
            a.what = argv[i];
    }
    return a;
}

static int build(const struct arguments *a)
{
    struct mr_uri uri;
    if (a->options.json) {
        mr_error_set(MR_E_USAGE, "--json is for describing an index");
        return mr_verb_fail();
    }
    if (mr_uri_init(&uri, a->what) != 0)
        return mr_verb_fail();
    mr_uri_close(&uri);
    struct mr_supervisor_options supervisor = {.config_path = a->options.config,
                                               .index_uri = a->what,
                                               .index_place = a->out,
                                               .verbosity = a->options.verbosity};
    return mr_supervisor_main(&supervisor);
}

/* ---- describe ---- */

static json_t *texts(const struct mr_strings *strings)
{
    json_t *list = json_array();
    for (size_t i = 0; i < strings->count; i++) {
        json_t *text = json_string(strings->items[i]);
        json_array_append_new(list, text ? text : json_string("(no UTF-8)"));
    }
    return list;
}

static void print_json(const struct mr_index_file *file)
{
    json_t *dropped = json_object();
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        json_object_set_new(dropped, mr_index_drop_name(kind), json_integer((json_int_t)file->dropped[kind]));
    json_t *root = json_pack("{s:i, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:I, s:s, s:s, s:I, s:I}",
                             "version", MR_INDEX_FILE_VERSION, "scheme", mr_scheme_name(file->scheme), "endpoint",
                             file->endpoint, "bucket", file->bucket, "prefixes", texts(&file->prefixes),
                             "exclude_classes", texts(&file->exclude_classes), "objects", (json_int_t)file->objects,
                             "bytes", (json_int_t)file->bytes, "largest", (json_int_t)file->largest, "dropped", dropped,
                             "requests", (json_int_t)file->requests, "created_ns", (json_int_t)file->created_wall_ns,
                             "digest", file->digest, "versions", mr_index_version_kind_name(file->kind), "image_bytes",
                             (json_int_t)file->image_bytes, "file_bytes", (json_int_t)file->file_bytes);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(root);
}

static void print_text(const struct mr_index_file *file)
{
    time_t created = (time_t)(file->created_wall_ns / 1000000000);
    char when[64] = "?", largest[32];
    struct tm tm;
    if (gmtime_r(&created, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    mr_size_format(file->largest, largest);
    printf("of         %s://%s", mr_scheme_name(file->scheme), file->bucket);
    if (file->prefixes.count == 0)
        printf(", an explicit list of objects");
    for (size_t i = 0; i < file->prefixes.count; i++)
        printf("%s%s%s", i > 0 ? ", " : "", file->scheme == MR_SCHEME_FILE ? "" : "/", file->prefixes.items[i]);
    printf("\nendpoint   %s\n", file->endpoint[0] != '\0' ? file->endpoint : "(the public service)");
    printf("listed     %s, by %" PRIu64 " requests\n", when, file->requests);
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

/* Reads all of it, so that "it is described" means "it is whole". */
static int describe(const struct arguments *a)
{
    struct mr_index_file file;
    struct mr_index index;
    int fd = mr_index_file_open_path(a->what), out = memfd_create("millrace-index", MFD_CLOEXEC), status = -1;
    if (fd >= 0 && out >= 0 && mr_index_file_open(&file, fd) == 0) {
        if (mr_index_file_unpack(&file, fd, out) == 0 && mr_index_map(&index, out) == 0) {
            status = mr_index_verify(&index);
            mr_index_close(&index);
        }
        if (status == 0)
            a->options.json ? print_json(&file) : print_text(&file);
        mr_index_file_close(&file);
    }
    if (status != 0 && fd >= 0)
        mr_error_append("%s", a->what);
    if (fd >= 0)
        close(fd);
    if (out >= 0)
        close(out);
    return status == 0 && fflush(stdout) == 0 ? 0 : mr_verb_fail();
}

int mr_verb_index(int argc, char **argv, const struct mr_verb *verb)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return mr_verb_help(verb, stdout), 0;
    struct arguments a = parse(argc, argv);
    if (a.wrong || !a.what)
        return mr_verb_wrong_usage(verb);
    if (a.out)
        return build(&a);
    if (strstr(a.what, "://")) {
        mr_error_set(MR_E_USAGE,
                     "where shall the index of %.200s go? Add -o FILE, or -o gs://bucket/name" MR_INDEX_FILE_SUFFIX,
                     a.what);
        return mr_verb_fail();
    }
    return describe(&a);
}
