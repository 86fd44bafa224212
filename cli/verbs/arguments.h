/*
 * arguments.h - the arguments of a verb, parsed and checked by the table of verbs.h. No request is made for that.
 *
 * Options may stand before and after the operands, in short and long form: -lr, -c FILE, -cFILE, --config FILE,
 * --config=FILE, and unique beginnings of long names. "--" ends them. An option given twice counts as its last value.
 */
#ifndef MR_CLI_VERBS_ARGUMENTS_H
#define MR_CLI_VERBS_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/verbs/verbs.h"

/* Bytes of an object, as --range names them. */
struct mr_byte_range {
    bool is_suffix;       /* the last `last` bytes */
    uint64_t first, last; /* inclusive; last UINT64_MAX: to the end */
};

struct mr_option_value {
    unsigned count; /* how often it was given */
    const char *text;
    union {
        uint64_t number;
        double seconds;
        struct mr_byte_range range;
    };
};

struct mr_arguments {
    const struct mr_verb *verb;
    struct mr_option_value values[MR_OPTIONS];
    char **operands; /* NULL after the last */
    uint32_t operand_count;
    char **argv; /* all of it, as it was given; argv[0] is the verb's name */
};

/*
 * Parses and checks. Texts and argv are kept by reference; argv ends with NULL. At --help it stops, and nothing is
 * checked. 0, or -1 (USAGE); the values that were parsed before are kept, and mr_arguments_close must be called then,
 * too.
 */
int mr_arguments_parse(struct mr_arguments *arguments, const struct mr_verb *verb, char **argv);
void mr_arguments_close(struct mr_arguments *arguments);

static inline bool mr_arguments_have(const struct mr_arguments *arguments, enum mr_option_id id)
{
    return arguments->values[id].count > 0;
}

/* NULL: not given. */
static inline const char *mr_arguments_text(const struct mr_arguments *arguments, enum mr_option_id id)
{
    return arguments->values[id].text;
}

static inline uint64_t mr_arguments_number(const struct mr_arguments *arguments, enum mr_option_id id,
                                           uint64_t fallback)
{
    return mr_arguments_have(arguments, id) ? arguments->values[id].number : fallback;
}

/* Steps of the log level: -v is 1, -q is -1. */
static inline int mr_arguments_verbosity(const struct mr_arguments *arguments)
{
    return (int)arguments->values[MR_OPT_VERBOSE].count - (int)arguments->values[MR_OPT_QUIET].count;
}

#endif
