/*
 * verbs.h - the command line of `millrace` as one table: each verb, its operands and its options.
 *
 * The parser (arguments.h), the help, the completions and the man page (cli/) are all made from it. Some verbs run in
 * millrace-worker, which parses the same arguments by the same table. The table is constant data.
 */
#ifndef MR_CLI_VERBS_VERBS_H
#define MR_CLI_VERBS_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#define MR_COMPOSE_SOURCES_MAX 32         /* of one `compose` */
#define MR_OPERANDS_ANY        UINT32_MAX /* no upper limit */

/* What an option's value or an operand is: how it is checked, and what a shell completes. */
enum mr_value_type {
    MR_VALUE_NONE,    /* a flag */
    MR_VALUE_FILE,    /* a local path */
    MR_VALUE_URI,     /* a URI or a path: a bucket, a prefix or an object */
    MR_VALUE_OBJECT,  /* a URI or a path that names an object */
    MR_VALUE_PLACE,   /* a URI, a path, or - */
    MR_VALUE_DATASET, /* a URI, or the name of a configured data set */
    MR_VALUE_NUMBER,  /* a whole number from min to max */
    MR_VALUE_SECONDS, /* 0.1 to 86400, with a fraction */
    MR_VALUE_RANGE,   /* A-B, A- or -N: bytes */
    MR_VALUE_SHELL,   /* bash or zsh */
    MR_VALUE_VERB,    /* the name of a verb */
    MR_VALUE_COMMAND, /* a program and its arguments */
};

enum mr_option_id {
    MR_OPT_NONE, /* ends a verb's list */
    MR_OPT_CONFIG,
    MR_OPT_SOCKET,
    MR_OPT_RUN_DIR,
    MR_OPT_PRIVATE,
    MR_OPT_REFERENCE,
    MR_OPT_LONG,
    MR_OPT_RECURSIVE,
    MR_OPT_HUMAN,
    MR_OPT_LIMIT,
    MR_OPT_MOUNT,
    MR_OPT_FIFO,
    MR_OPT_EPOCHS,
    MR_OPT_SHUFFLE,
    MR_OPT_SEED,
    MR_OPT_RANGE,
    MR_OPT_IF_ABSENT,
    MR_OPT_OUTPUT,
    MR_OPT_CHECKSUMS,
    MR_OPT_DRY_RUN,
    MR_OPT_OLDER_THAN,
    MR_OPT_WRITE,
    MR_OPT_ALL,
    MR_OPT_DATASET,
    MR_OPT_BATCH_SIZE,
    MR_OPT_STEPS,
    MR_OPT_WORKERS,
    MR_OPT_INTERVAL,
    MR_OPT_COUNT,
    MR_OPT_SECONDS,
    MR_OPT_JSON,
    MR_OPT_PROMETHEUS,
    MR_OPT_VERBOSE,
    MR_OPT_QUIET,
    MR_OPT_HELP,
    MR_OPTIONS
};

/* An option: the same wherever it is taken. */
struct mr_option {
    const char *name; /* without its dashes */
    char letter;      /* the short form; 0: none */
    enum mr_value_type type;
    const char *value; /* its value's name in the help; NULL for a flag */
    uint64_t min, max; /* of MR_VALUE_NUMBER */
    const char *help;  /* where the verb has no text of its own */
};

/* An option as a verb takes it. */
struct mr_verb_option {
    enum mr_option_id id;
    const char *help;           /* NULL: the option's */
    enum mr_option_id excludes; /* must not be given with it; MR_OPT_NONE */
    enum mr_option_id needs;    /* must be given with it; MR_OPT_NONE */
    bool hidden;                /* taken, but not shown: between our own programs, or without effect */
};

enum mr_verb_id {
    MR_VERB_RUN,
    MR_VERB_SERVE,
    MR_VERB_RELOAD,
    MR_VERB_CHECK,
    MR_VERB_DOCTOR,
    MR_VERB_LS,
    MR_VERB_CAT,
    MR_VERB_CP,
    MR_VERB_RM,
    MR_VERB_PIPE,
    MR_VERB_MOUNT,
    MR_VERB_COMPOSE,
    MR_VERB_INDEX,
    MR_VERB_CLEAN,
    MR_VERB_STAT,
    MR_VERB_TOP,
    MR_VERB_TRACE,
    MR_VERB_BENCH,
    MR_VERB_DEVSTORE,
    MR_VERB_COMPLETION,
    MR_VERB_MAN,
    MR_VERB_HELP,
    MR_VERBS
};

struct mr_verb {
    enum mr_verb_id id;
    const char *name;
    const char *summary;                  /* what it does, in one line: "lists a bucket or a folder" */
    const char *about;                    /* paragraphs, with an empty line between them; no other line breaks */
    const struct mr_verb_option *options; /* ends with MR_OPT_NONE; every verb takes --help besides */
    const char *operands;                 /* as the usage shows them; NULL: none */
    enum mr_value_type operand_type;
    uint32_t operands_min, operands_max;
    bool operands_end; /* the options end at the first operand: the rest belongs to the command */
    bool json_errors;  /* with --json an error is JSON too */
    bool foreign;      /* a program of its own, with its own options */
};

/* All verbs, in the order of their numbers. */
const struct mr_verb *mr_verb(enum mr_verb_id id);
/* NULL: there is none of that name. */
const struct mr_verb *mr_verb_find(const char *name);
const struct mr_option *mr_option(enum mr_option_id id);
/* The options of a verb by number from 0, --help at the end; NULL after it. */
const struct mr_verb_option *mr_verb_option(const struct mr_verb *verb, unsigned number);
const char *mr_verb_option_help(const struct mr_verb_option *option);
/* -h stands for --help, unless the verb has another option of that letter. */
char mr_verb_option_letter(const struct mr_verb *verb, const struct mr_verb_option *option);

#endif
