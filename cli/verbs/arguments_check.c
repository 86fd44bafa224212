/* What can be wrong with arguments that the syntax allows: values, operands, and combinations. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/uri.h"
#include "cli/verbs/arguments_impl.h"

/* ---- values ---- */

static int check_number(const struct mr_option *option, const char *name, struct mr_option_value *value)
{
    errno = 0;
    char *end;
    value->number = strtoull(value->text, &end, 10);
    if (errno == 0 && *value->text >= '0' && *value->text <= '9' && *end == '\0' && value->number >= option->min &&
        value->number <= option->max)
        return 0;
    mr_error_set(MR_E_USAGE, "%s \"%.60s\" is not a number from %" PRIu64 " to %" PRIu64, name, value->text,
                 option->min, option->max);
    return -1;
}

static int check_seconds(const char *name, struct mr_option_value *value)
{
    char *end;
    value->seconds = strtod(value->text, &end);
    if (end != value->text && *end == '\0' && value->seconds >= 0.1 && value->seconds <= 86400)
        return 0;
    mr_error_set(MR_E_USAGE, "%s \"%.60s\" is not a number of seconds from 0.1 to 86400", name, value->text);
    return -1;
}

/* "A-B", "A-" and "-N" as in HTTP. */
static int check_range(const char *name, struct mr_option_value *value)
{
    static const char digits[] = "0123456789";
    const char *text = value->text;
    size_t before = strspn(text, digits), after = text[before] == '-' ? strspn(text + before + 1, digits) : 0;
    if (text[before] != '-' || text[before + 1 + after] != '\0' || before + after == 0)
        goto bad;
    errno = 0;
    value->range = (struct mr_byte_range){.is_suffix = before == 0,
                                          .first = before > 0 ? strtoull(text, NULL, 10) : 0,
                                          .last = after > 0 ? strtoull(text + before + 1, NULL, 10) : UINT64_MAX};
    if (errno != 0)
        goto bad;
    if (value->range.last >= value->range.first)
        return 0;
    mr_error_set(MR_E_USAGE, "%s \"%.60s\" ends before it starts", name, text);
    return -1;
bad:
    mr_error_set(MR_E_USAGE, "%s \"%.60s\" is not A-B, A- or -N (bytes A to B, both inclusive)", name, text);
    return -1;
}

/* A URI or a path. With must_name it names an object and not just a bucket. */
static int check_uri(const char *text, bool must_name)
{
    struct mr_uri uri;
    if (mr_uri_init(&uri, text) != 0)
        return -1;
    bool named = uri.key[0] != '\0';
    mr_uri_close(&uri);
    if (named || !must_name)
        return 0;
    mr_error_set(MR_E_USAGE, "%s names no object", text);
    return -1;
}

static int check_text(enum mr_value_type type, const char *text)
{
    switch (type) {
    case MR_VALUE_URI:
        return check_uri(text, false);
    case MR_VALUE_OBJECT:
        return check_uri(text, true);
    case MR_VALUE_PLACE:
    case MR_VALUE_DATASET:
        return strstr(text, "://") || text[0] == '\0' ? check_uri(text, false) : 0;
    case MR_VALUE_SHELL:
        if (strcmp(text, "bash") == 0 || strcmp(text, "zsh") == 0)
            return 0;
        mr_error_set(MR_E_USAGE, "there is no completion for \"%.60s\": bash or zsh", text);
        return -1;
    case MR_VALUE_VERB:
        if (mr_verb_find(text))
            return 0;
        mr_error_set(MR_E_USAGE, "there is no verb \"%.60s\"", text);
        return -1;
    default:
        return 0;
    }
}

int mr_arguments_check_value(const struct mr_option *option, const char *name, struct mr_option_value *value)
{
    switch (option->type) {
    case MR_VALUE_NUMBER:
        return check_number(option, name, value);
    case MR_VALUE_SECONDS:
        return check_seconds(name, value);
    case MR_VALUE_RANGE:
        return check_range(name, value);
    default:
        if (check_text(option->type, value->text ? value->text : "-") == 0)
            return 0;
        mr_error_append("%s", name);
        return -1;
    }
}

/* ---- combinations ---- */

static int check_options(const struct mr_arguments *arguments)
{
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(arguments->verb, i)); i++) {
        const char *name = mr_option(option->id)->name;
        if (!mr_arguments_have(arguments, option->id))
            continue;
        if (option->excludes != MR_OPT_NONE && mr_arguments_have(arguments, option->excludes)) {
            mr_error_set(MR_E_USAGE, "--%s and --%s exclude each other", name, mr_option(option->excludes)->name);
            return -1;
        }
        if (option->needs != MR_OPT_NONE && !mr_arguments_have(arguments, option->needs)) {
            mr_error_set(MR_E_USAGE, "--%s needs --%s", name, mr_option(option->needs)->name);
            return -1;
        }
    }
    return 0;
}

static int check_operands(const struct mr_arguments *arguments)
{
    const struct mr_verb *verb = arguments->verb;
    if (arguments->operand_count > verb->operands_max) {
        if (verb->operands_max == 0)
            mr_error_set(MR_E_USAGE, "unexpected argument \"%.60s\"", arguments->operands[0]);
        else
            mr_error_set(MR_E_USAGE, "%u arguments, and at most %u are allowed: %s", arguments->operand_count,
                         verb->operands_max, verb->operands);
        return -1;
    }
    if (arguments->operand_count < verb->operands_min) {
        mr_error_set(MR_E_USAGE, "an argument is missing: %s", verb->operands);
        return -1;
    }
    for (uint32_t i = 0; i < arguments->operand_count; i++)
        if (check_text(verb->operand_type, arguments->operands[i]) != 0)
            return -1;
    return 0;
}

/* A source that is a URI must name an object; the copy itself finds out what the target is called. */
static int check_cp(const struct mr_arguments *arguments)
{
    const char *source = arguments->operands[0];
    return strstr(source, "://") ? check_uri(source, true) : 0;
}

/* All URIs are checked first: nothing is deleted where one of them is wrong. */
static int check_rm(const struct mr_arguments *arguments)
{
    for (uint32_t i = 0; i < arguments->operand_count; i++)
        if (!mr_arguments_have(arguments, MR_OPT_RECURSIVE) && check_uri(arguments->operands[i], true) != 0) {
            mr_error_set(MR_E_USAGE, "%s names no object; -r deletes everything under it", arguments->operands[i]);
            return -1;
        }
    return 0;
}

static int check_compose(const struct mr_arguments *arguments)
{
    struct mr_uri to;
    if (mr_uri_init(&to, arguments->operands[0]) != 0)
        return -1;
    int rc = 0;
    struct mr_uri from;
    for (uint32_t i = 1; rc == 0 && i < arguments->operand_count; i++) {
        rc = mr_uri_init(&from, arguments->operands[i]);
        if (rc == 0 && (from.scheme != to.scheme || strcmp(from.bucket, to.bucket) != 0)) {
            mr_error_set(MR_E_USAGE, "%s and %s are not in one bucket: copy it there first", arguments->operands[i],
                         arguments->operands[0]);
            rc = -1;
        }
        mr_uri_close(&from);
    }
    mr_uri_close(&to);
    return rc;
}

static int check_mounted(const char *uri, const char *dir)
{
    if (!strstr(uri, "://")) {
        mr_error_set(MR_E_USAGE, "\"%.200s\" is not a URI: gs://bucket/folder/, s3://bucket/ or file:///folder/", uri);
        return -1;
    }
    if (dir[0] != '\0' && !strstr(dir, "://") && strcmp(dir, "-") != 0)
        return check_uri(uri, false);
    mr_error_set(MR_E_USAGE, "\"%.200s\" is not a folder to mount at", dir);
    return -1;
}

/* --mount URI=DIR: the URI may hold a "=", the folder may not. */
static int check_run(const struct mr_arguments *arguments)
{
    char uri[2048];
    const char *text = mr_arguments_text(arguments, MR_OPT_MOUNT), *equals = text ? strrchr(text, '=') : NULL;
    if (!text)
        return 0;
    if (arguments->values[MR_OPT_MOUNT].count > 1) {
        mr_error_set(MR_E_USAGE, "--mount is given twice: one bucket can be mounted, or a folder of it");
        return -1;
    }
    if (!equals || (size_t)(equals - text) >= sizeof uri) {
        mr_error_set(MR_E_USAGE, "--mount \"%.200s\" is not URI=DIR", text);
        return -1;
    }
    memcpy(uri, text, (size_t)(equals - text));
    uri[equals - text] = '\0';
    return check_mounted(uri, equals + 1);
}

static int check_pipe(const struct mr_arguments *arguments)
{
    if (mr_arguments_have(arguments, MR_OPT_FIFO))
        return 0;
    mr_error_set(MR_E_USAGE, "the bytes have no place to go: add --fifo PATH");
    return -1;
}

static int check_index(const struct mr_arguments *arguments)
{
    const char *out = mr_arguments_text(arguments, MR_OPT_OUTPUT);
    if (out && strcmp(out, "-") == 0) {
        mr_error_set(MR_E_USAGE, "-o names a file or an object: an index is not written to standard output");
        return -1;
    }
    if (out || !strstr(arguments->operands[0], "://"))
        return 0;
    mr_error_set(MR_E_USAGE, "the index of %.200s has no place to go: add -o FILE, or -o URI", arguments->operands[0]);
    return -1;
}

static int check_trace(const struct mr_arguments *arguments)
{
    const char *out = mr_arguments_text(arguments, MR_OPT_OUTPUT);
    if (out && !strstr(out, "://"))
        return 0;
    if (out)
        mr_error_set(MR_E_USAGE, "-o %.200s: a trace goes into a local file, or - for standard output", out);
    else
        mr_error_set(MR_E_USAGE, "a trace has no place to go: add -o FILE");
    return -1;
}

int mr_arguments_check(const struct mr_arguments *arguments)
{
    if (check_options(arguments) != 0 || check_operands(arguments) != 0)
        return -1;
    switch (arguments->verb->id) {
    case MR_VERB_CP:
        return check_cp(arguments);
    case MR_VERB_RM:
        return check_rm(arguments);
    case MR_VERB_RUN:
        return check_run(arguments);
    case MR_VERB_MOUNT:
        return check_mounted(arguments->operands[0], arguments->operands[1]);
    case MR_VERB_PIPE:
        return check_pipe(arguments);
    case MR_VERB_COMPOSE:
        return check_compose(arguments);
    case MR_VERB_INDEX:
        return check_index(arguments);
    case MR_VERB_TRACE:
        return check_trace(arguments);
    default:
        return 0;
    }
}
