/* tool_compose.c - `millrace compose DST SRC...`: one compose call; the store concatenates objects of one bucket. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json_text.h"
#include "worker/tool/download.h"

_Static_assert(MR_COMPOSE_SOURCES_MAX == MR_STORE_COMPOSE_MAX, "what the arguments allow");

struct compose {
    struct mr_tool tool;
    struct mr_store *store;
    struct mr_uri to, from[MR_STORE_COMPOSE_MAX];
    struct mr_store_name sources[MR_STORE_COMPOSE_MAX];
    unsigned count;
    struct mr_store_compose_request request;
    bool if_absent;
    uint64_t size, generation; /* of the composed object */
    uint32_t crc32c;
};

static int open_all(struct compose *c, char **uris)
{
    if (mr_tool_init(&c->tool) != 0 || !(c->store = mr_tool_open(&c->tool, uris[0], &c->to)))
        return -1;
    for (unsigned i = 0; i < c->count; i++)
        if (mr_uri_init(&c->from[i], uris[i + 1]) != 0)
            return -1;
    return 0;
}

/* Looks up the sources, pins their generations, and sets the size and crc32c that the result must have. 0 or -1. */
static int look_up_sources(struct compose *c)
{
    c->request.has_size = c->request.has_crc32c = true;
    for (unsigned i = 0; i < c->count; i++) {
        struct mr_download_object object;
        if (mr_download_look_up(&c->tool, c->store, c->from[i].key, &object) != 0)
            return -1;
        c->sources[i] = (struct mr_store_name){object.name, strlen(object.name), object.generation, NULL};
        c->request.crc32c = mr_crc32c_combine(c->request.crc32c, object.crc32c, object.size);
        c->request.size += object.size;
        c->request.has_crc32c &= object.has_crc32c;
    }
    return 0;
}

/* Sets the precondition: the target's current generation, or 0, which requires that it is absent. */
static int look_up_target(struct compose *c)
{
    c->request.generation_match = 0;
    if (c->if_absent)
        return 0;
    struct mr_download_object object;
    if (mr_download_look_up(&c->tool, c->store, c->to.key, &object) == 0)
        c->request.generation_match = object.generation;
    else if (mr_error_code() != MR_E_NOT_FOUND)
        return -1;
    return 0;
}

static void composed(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct compose *c = arg;
    mr_tool_answer(&c->tool, result);
    if (result->code != MR_OK)
        return;
    c->size = item->size;
    c->generation = item->generation;
    c->crc32c = item->crc32c;
}

static int tool_compose_run(struct compose *c, char **uris)
{
    if (open_all(c, uris) != 0 || look_up_sources(c) != 0 || look_up_target(c) != 0)
        return -1;
    c->request.name = c->to.key;
    c->request.name_length = strlen(c->to.key);
    c->request.sources = c->sources;
    c->request.count = c->count;
    return mr_tool_await(&c->tool, mr_transfer_compose(c->tool.net.engine, c->store, &c->request, composed, c));
}

/* 0, or -1 with mr_error. */
static int print_json(const struct compose *c, const char *uri)
{
    char crc[9];
    mr_crc32c_to_base64(c->crc32c, crc);
    json_t *report = json_pack("{s:o, s:I, s:I, s:s, s:i}", "uri", mr_json_from_text(uri), "size", (json_int_t)c->size,
                               "generation", (json_int_t)c->generation, "crc32c", crc, "sources", (int)c->count);
    return mr_tool_print_report(report);
}

static int compose_main(const struct mr_arguments *arguments)
{
    struct compose compose = {.count = arguments->operand_count - 1,
                              .if_absent = mr_arguments_have(arguments, MR_OPT_IF_ABSENT)};
    int rc = tool_compose_run(&compose, arguments->operands);
    if (rc == 0 && mr_arguments_have(arguments, MR_OPT_JSON))
        rc = print_json(&compose, arguments->operands[0]);
    mr_uri_close(&compose.to);
    for (unsigned i = 0; i < compose.count; i++)
        mr_uri_close(&compose.from[i]);
    mr_tool_close(&compose.tool);
    return rc == 0 ? 0 : mr_tool_fail("compose");
}

int mr_tool_compose(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, compose_main);
}
