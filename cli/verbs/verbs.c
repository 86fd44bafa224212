#include "cli/verbs/verbs.h"

#include <stddef.h>
#include <string.h>

static const struct mr_option options[MR_OPTIONS] = {
    [MR_OPT_CONFIG] = {"config", 'c', MR_VALUE_FILE, "FILE",
                       .help = "the configuration (TOML); without it, the defaults"},
    [MR_OPT_SOCKET] = {"socket", 0, MR_VALUE_FILE, "PATH",
                       .help = "the supervisor's socket, instead of MILLRACE_SOCKET"},
    [MR_OPT_RUN_DIR] = {"run-dir", 0, MR_VALUE_FILE, "DIR", .help = "the run folder"},
    [MR_OPT_PRIVATE] = {"private", 0, .help = "ends with its last client"},
    [MR_OPT_REFERENCE] = {"reference", 0, .help = "print the reference of all keys, as Markdown"},
    [MR_OPT_LONG] = {"long", 'l', .help = "size, generation and crc32c (base64) before each URI, separated by tabs"},
    [MR_OPT_RECURSIVE] = {"recursive", 'r', .help = "everything under the URI"},
    [MR_OPT_HUMAN] = {"human-readable", 'h', .help = "sizes as 18.6 KiB instead of bytes"},
    [MR_OPT_LIMIT] = {"limit", 0, MR_VALUE_NUMBER, "N", 1, UINT32_MAX, "no more than N lines"},
    [MR_OPT_MOUNT] = {"mount", 0, MR_VALUE_FILE, "URI=DIR",
                      .help = "what is under URI is there as files below DIR while COMMAND runs"},
    [MR_OPT_FIFO] = {"fifo", 0, MR_VALUE_FILE, "PATH", .help = "the FIFOs are PATH_0, PATH_1, ..."},
    [MR_OPT_EPOCHS] = {"epochs", 0, MR_VALUE_NUMBER, "N", 1, UINT32_MAX, "how many; default 1"},
    [MR_OPT_SHUFFLE] = {"shuffle", 0, .help = "the objects in another order each epoch"},
    [MR_OPT_SEED] = {"seed", 0, MR_VALUE_NUMBER, "N", 0, UINT64_MAX, "of the order; default 0"},
    [MR_OPT_RANGE] = {"range", 0, MR_VALUE_RANGE, "A-B",
                      .help = "bytes A to B, both inclusive; A- is from A on, -N the last N"},
    [MR_OPT_IF_ABSENT] = {"if-absent", 0, .help = "fail if DST exists"},
    [MR_OPT_CHECKSUMS] = {"checksums", 0, .help = "of all samples of tar shards: reads every byte of them"},
    [MR_OPT_OUTPUT] = {"output", 'o', MR_VALUE_PLACE, "FILE", .help = "where the result goes"},
    [MR_OPT_DRY_RUN] = {"dry-run", 'n', .help = "list only, remove nothing"},
    [MR_OPT_OLDER_THAN] = {"older-than", 0, MR_VALUE_NUMBER, "SECONDS", 0, INT32_MAX,
                           "the least age, in place of the hour and the days"},
    [MR_OPT_WRITE] = {"write", 0, .help = "looks at writes too: objects below each URI, which are removed again"},
    [MR_OPT_ALL] = {"all", 0, .help = "whatever the age"},
    [MR_OPT_DATASET] = {"dataset", 0, MR_VALUE_DATASET, "NAME|URI",
                        .help = "a data set of the configuration, or a URI; default: the only one"},
    [MR_OPT_BATCH_SIZE] = {"batch-size", 0, MR_VALUE_NUMBER, "N", 1, 65536, "samples a step; default 32"},
    [MR_OPT_STEPS] = {"steps", 0, MR_VALUE_NUMBER, "N", 1, UINT32_MAX, "steps to measure; default 300"},
    [MR_OPT_WORKERS] = {"workers", 0, MR_VALUE_NUMBER, "N", 1, 256,
                        "processes that read, as DataLoader workers do; default: the command itself reads"},
    [MR_OPT_INTERVAL] = {"interval", 0, MR_VALUE_SECONDS, "SECONDS", .help = "time between two updates; default 1"},
    [MR_OPT_COUNT] = {"count", 0, MR_VALUE_NUMBER, "N", 1, UINT32_MAX, "end after N updates"},
    [MR_OPT_SECONDS] = {"seconds", 0, MR_VALUE_SECONDS, "SECONDS", .help = "how long; default: until Ctrl-C"},
    [MR_OPT_JSON] = {"json", 0, .help = "output for programs"},
    [MR_OPT_PROMETHEUS] = {"prometheus", 0, .help = "the text format of Prometheus"},
    [MR_OPT_VERBOSE] = {"verbose", 'v', .help = "more lines on standard error; may be repeated"},
    [MR_OPT_QUIET] = {"quiet", 'q', .help = "fewer lines on standard error; may be repeated"},
    [MR_OPT_HELP] = {"help", 'h', .help = "show this text"},
};

/* clang-format off */
#define LOG_LEVEL        {.id = MR_OPT_VERBOSE}, {.id = MR_OPT_QUIET}
#define LOG_LEVEL_UNUSED {.id = MR_OPT_VERBOSE, .hidden = true}, {.id = MR_OPT_QUIET, .hidden = true}
#define OPTIONS          (const struct mr_verb_option[])
/* clang-format on */

static const struct mr_verb verbs[MR_VERBS] = {
    [MR_VERB_RUN] =
        {
            .id = MR_VERB_RUN,
            .name = "run",
            .summary = "runs a training command with a supervisor around it",
            .about =
                "Starts a supervisor, runs COMMAND with MILLRACE_SOCKET set, and ends with it. The exit status is the "
                "command's. Signals sent to millrace are passed on to it.",
            .options = OPTIONS{{.id = MR_OPT_CONFIG},
                               {.id = MR_OPT_SOCKET, .help = "where to listen, instead of a run folder of its own"},
                               {.id = MR_OPT_MOUNT},
                               LOG_LEVEL,
                               {0}},
            .operands = "[--] COMMAND [ARGS...]",
            .operand_type = MR_VALUE_COMMAND,
            .operands_min = 1,
            .operands_max = MR_OPERANDS_ANY,
            .operands_end = true,
        },
    [MR_VERB_SERVE] =
        {
            .id = MR_VERB_SERVE,
            .name = "serve",
            .summary = "a supervisor alone, until SIGTERM or SIGINT",
            .about =
                "A supervisor alone, until SIGTERM or SIGINT. It prints MILLRACE_SOCKET=PATH, which training processes "
                "need in their environment. SIGHUP makes it read the configuration again.",
            .options = OPTIONS{{.id = MR_OPT_CONFIG},
                               {.id = MR_OPT_SOCKET, .help = "where to listen, instead of a run folder of its own"},
                               {.id = MR_OPT_PRIVATE, .hidden = true},
                               {.id = MR_OPT_RUN_DIR, .needs = MR_OPT_PRIVATE, .hidden = true},
                               LOG_LEVEL,
                               {0}},
        },
    [MR_VERB_RELOAD] =
        {
            .id = MR_VERB_RELOAD,
            .name = "reload",
            .summary = "makes a supervisor read its configuration again",
            .about =
                "Makes a running supervisor read its configuration again, and prints what has been applied and what "
                "needs a new start. The supervisor is that of --socket or MILLRACE_SOCKET, else the only one of this "
                "user on this machine.",
            .options = OPTIONS{{.id = MR_OPT_SOCKET}, LOG_LEVEL_UNUSED, {0}},
        },
    [MR_VERB_CHECK] =
        {
            .id = MR_VERB_CHECK,
            .name = "check",
            .summary = "checks a configuration and prints it with all defaults",
            .about = "Checks the configuration and prints it with all defaults filled in.",
            .options = OPTIONS{{.id = MR_OPT_CONFIG}, {.id = MR_OPT_REFERENCE}, LOG_LEVEL_UNUSED, {0}},
        },
    [MR_VERB_DOCTOR] =
        {
            .id = MR_VERB_DOCTOR,
            .name = "doctor",
            .summary = "checks machine, credentials, endpoint, clock and buckets",
            .about = "Checks this machine, the credentials, the endpoint, and the bucket of each data set: one line a "
                     "check, "
                     "with what to do. With a URI, its bucket is checked instead of the configuration's. Nothing is "
                     "changed, but with --write, which says what the store does with the conditions, checksums and "
                     "sizes of writes. The exit status is 1 if a check fails.",
            .options = OPTIONS{{.id = MR_OPT_CONFIG}, {.id = MR_OPT_WRITE}, {.id = MR_OPT_JSON}, LOG_LEVEL_UNUSED, {0}},
            .operands = "[URI...]",
            .operand_type = MR_VALUE_URI,
            .operands_max = MR_OPERANDS_ANY,
        },
    [MR_VERB_LS] =
        {
            .id = MR_VERB_LS,
            .name = "ls",
            .summary = "lists a bucket or a folder",
            .about = "Lists one level under URI, one full URI a line.",
            .options =
                OPTIONS{{.id = MR_OPT_LONG},
                        {.id = MR_OPT_RECURSIVE},
                        {.id = MR_OPT_HUMAN,
                         .help = "with -l: sizes as 18.6 KiB instead of bytes",
                         .excludes = MR_OPT_JSON},
                        {.id = MR_OPT_LIMIT},
                        {.id = MR_OPT_JSON, .help = "one JSON object a line; an error is one too, on standard error"},
                        {.id = MR_OPT_CONFIG},
                        LOG_LEVEL,
                        {0}},
            .operands = "URI",
            .operand_type = MR_VALUE_URI,
            .operands_min = 1,
            .operands_max = 1,
            .json_errors = true,
        },
    [MR_VERB_CAT] =
        {
            .id = MR_VERB_CAT,
            .name = "cat",
            .summary = "writes an object's bytes to standard output",
            .about = "Writes an object's bytes to standard output, checked by its crc32c.",
            .options = OPTIONS{{.id = MR_OPT_RANGE},
                               {.id = MR_OPT_JSON, .help = "an error is a JSON object, on standard error"},
                               {.id = MR_OPT_CONFIG},
                               LOG_LEVEL,
                               {0}},
            .operands = "URI",
            .operand_type = MR_VALUE_OBJECT,
            .operands_min = 1,
            .operands_max = 1,
            .json_errors = true,
        },
    [MR_VERB_CP] =
        {
            .id = MR_VERB_CP,
            .name = "cp",
            .summary = "copies one object or file",
            .about =
                "Copies one object: between a URI, a file and - (standard input or output). A DST that is a folder, or "
                "ends in a slash, takes the last part of SRC's name. What is written appears whole or not at all, and "
                "its "
                "crc32c is checked.",
            .options = OPTIONS{{.id = MR_OPT_IF_ABSENT},
                               {.id = MR_OPT_JSON, .help = "an error is a JSON object, on standard error"},
                               {.id = MR_OPT_CONFIG},
                               LOG_LEVEL,
                               {0}},
            .operands = "SRC DST",
            .operand_type = MR_VALUE_PLACE,
            .operands_min = 2,
            .operands_max = 2,
            .json_errors = true,
        },
    [MR_VERB_RM] =
        {
            .id = MR_VERB_RM,
            .name = "rm",
            .summary = "deletes objects",
            .about =
                "Deletes objects, a hundred in a request. Each delete carries the generation that was found: an object "
                "that was written since then stays.",
            .options =
                OPTIONS{{.id = MR_OPT_RECURSIVE, .help = "everything under each URI, without a question"},
                        {.id = MR_OPT_JSON, .help = "how many were deleted, and which were not; an error is JSON too"},
                        {.id = MR_OPT_CONFIG},
                        LOG_LEVEL,
                        {0}},
            .operands = "URI...",
            .operand_type = MR_VALUE_URI,
            .operands_min = 1,
            .operands_max = MR_OPERANDS_ANY,
            .json_errors = true,
        },
    [MR_VERB_PIPE] =
        {
            .id = MR_VERB_PIPE,
            .name = "pipe",
            .summary = "writes objects into FIFOs, one an epoch",
            .about =
                "Writes the bytes of all objects, one after the other, into the FIFO PATH_0, in a second epoch into "
                "PATH_1, and so on, as SageMaker's Pipe Mode does. A URI is an object, or a folder. A reader that "
                "closes a FIFO early ends that epoch. Each object is checked by its crc32c.",
            .options = OPTIONS{{.id = MR_OPT_FIFO},
                               {.id = MR_OPT_EPOCHS},
                               {.id = MR_OPT_SHUFFLE},
                               {.id = MR_OPT_SEED, .needs = MR_OPT_SHUFFLE},
                               {.id = MR_OPT_JSON, .help = "an error is a JSON object, on standard error"},
                               {.id = MR_OPT_CONFIG},
                               LOG_LEVEL,
                               {0}},
            .operands = "URI...",
            .operand_type = MR_VALUE_URI,
            .operands_min = 1,
            .operands_max = MR_OPERANDS_ANY,
            .json_errors = true,
        },
    [MR_VERB_MOUNT] =
        {
            .id = MR_VERB_MOUNT,
            .name = "mount",
            .summary = "a bucket or a folder of it as read-only files",
            .about = "Lists what is under URI once and shows it as read-only files below DIR, by FUSE, until SIGINT, "
                     "SIGTERM "
                     "or `fusermount3 -u DIR`. What is written to the bucket meanwhile is not seen; an object that is "
                     "replaced cannot be read any more (ESTALE). It runs in the foreground, with a supervisor of its "
                     "own, or, without -c, "
                     "that of MILLRACE_SOCKET.",
            .options = OPTIONS{{.id = MR_OPT_CONFIG}, LOG_LEVEL, {0}},
            .operands = "URI DIR",
            .operand_type = MR_VALUE_PLACE,
            .operands_min = 2,
            .operands_max = 2,
        },
    [MR_VERB_COMPOSE] =
        {
            .id = MR_VERB_COMPOSE,
            .name = "compose",
            .summary = "concatenates objects within the store",
            .about = "Concatenates 1 to 32 objects of DST's bucket into DST, within the store. The result is compared "
                     "with the "
                     "sizes and checksums of the sources.",
            .options = OPTIONS{{.id = MR_OPT_IF_ABSENT},
                               {.id = MR_OPT_JSON, .help = "size, generation and crc32c of DST"},
                               {.id = MR_OPT_CONFIG},
                               LOG_LEVEL,
                               {0}},
            .operands = "DST SRC...",
            .operand_type = MR_VALUE_OBJECT,
            .operands_min = 2,
            .operands_max = 1 + MR_COMPOSE_SOURCES_MAX,
        },
    [MR_VERB_INDEX] =
        {
            .id = MR_VERB_INDEX,
            .name = "index",
            .summary = "saves a listing, or describes a saved one",
            .about = "With -o: lists URI and saves the index, which [dataset.NAME] index = \"FILE\" uses in place of a "
                     "listing. "
                     "Without it: checks all of the saved index FILE, and describes it.",
            .options = OPTIONS{{.id = MR_OPT_OUTPUT,
                                .help = "where to save: a path, or a gs:// or s3:// URI; what is there is replaced"},
                               {.id = MR_OPT_CHECKSUMS, .needs = MR_OPT_OUTPUT},
                               {.id = MR_OPT_JSON, .help = "the description, for programs", .excludes = MR_OPT_OUTPUT},
                               {.id = MR_OPT_CONFIG},
                               LOG_LEVEL,
                               {0}},
            .operands = "URI|FILE",
            .operand_type = MR_VALUE_URI,
            .operands_min = 1,
            .operands_max = 1,
        },
    [MR_VERB_CLEAN] =
        {
            .id = MR_VERB_CLEAN,
            .name = "clean",
            .summary = "removes what dead runs left",
            .about =
                "Removes what dead runs left, and prints URI, size (or \"unfinished upload\") and age of each.\n\n"
                "gs://BUCKET: temporary objects of processes that died on this machine, and all that are older than an "
                "hour (parts of checkpoints: a day), and unfinished multipart uploads that are older than a day.\n\n"
                "gs://BUCKET/PREFIX, s3://BUCKET, s3://BUCKET/PREFIX: such uploads under it.\n\n"
                "file:///FOLDER: temporary files in it and below that no process writes.",
            .options =
                OPTIONS{{.id = MR_OPT_DRY_RUN},
                        {.id = MR_OPT_OLDER_THAN, .excludes = MR_OPT_ALL},
                        {.id = MR_OPT_ALL,
                         .help = "whatever the age, even if a run still uses them: it then downloads objects one by "
                                 "one, and its checkpoints fail"},
                        {.id = MR_OPT_JSON},
                        {.id = MR_OPT_CONFIG},
                        LOG_LEVEL,
                        {0}},
            .operands = "URI",
            .operand_type = MR_VALUE_URI,
            .operands_min = 1,
            .operands_max = 1,
        },
    [MR_VERB_STAT] =
        {
            .id = MR_VERB_STAT,
            .name = "stat",
            .summary = "shows what a supervisor has done",
            .about =
                "What a running supervisor has done, per data set, worker and lane, and the stage that limits it. The "
                "supervisor is that of --socket or MILLRACE_SOCKET, else the only one of this user on this machine.",
            .options = OPTIONS{{.id = MR_OPT_JSON, .excludes = MR_OPT_PROMETHEUS},
                               {.id = MR_OPT_PROMETHEUS},
                               {.id = MR_OPT_SOCKET},
                               LOG_LEVEL_UNUSED,
                               {0}},
        },
    [MR_VERB_TOP] =
        {
            .id = MR_VERB_TOP,
            .name = "top",
            .summary = "shows what a supervisor is doing, with rates",
            .about = "What a running supervisor does now: on a terminal a screen that is drawn again each second (q or "
                     "Ctrl-C ends), else a line each second. The supervisor is that of --socket or MILLRACE_SOCKET, "
                     "else the only "
                     "one of this user on this machine.",
            .options =
                OPTIONS{{.id = MR_OPT_INTERVAL}, {.id = MR_OPT_COUNT}, {.id = MR_OPT_SOCKET}, LOG_LEVEL_UNUSED, {0}},
        },
    [MR_VERB_TRACE] =
        {
            .id = MR_VERB_TRACE,
            .name = "trace",
            .summary = "writes down what each process of a run does, for Perfetto",
            .about = "Writes what all processes of a running supervisor do from now on into FILE, span by span: "
                     "requests, samples and batches, steps and waits of the loop, device copies, checkpoints. It ends "
                     "with --seconds, with Ctrl-C or with the run; then open FILE in https://ui.perfetto.dev, which "
                     "reads it in the browser and uploads nothing. The supervisor is that of --socket or "
                     "MILLRACE_SOCKET, else the only one of this user on this machine.",
            .options = OPTIONS{{.id = MR_OPT_OUTPUT, .help = "the file (JSON), or - for standard output"},
                               {.id = MR_OPT_SECONDS},
                               {.id = MR_OPT_SOCKET},
                               LOG_LEVEL_UNUSED,
                               {0}},
        },
    [MR_VERB_BENCH] =
        {
            .id = MR_VERB_BENCH,
            .name = "bench",
            .summary = "measures the data path with an empty training step",
            .about =
                "Reads a data set with an empty training step, then does as many steps over one batch in memory: the "
                "difference is what the data path costs. Starts a supervisor, or uses that of MILLRACE_SOCKET.",
            .options =
                OPTIONS{{.id = MR_OPT_DATASET},
                        {.id = MR_OPT_BATCH_SIZE},
                        {.id = MR_OPT_STEPS},
                        {.id = MR_OPT_WORKERS},
                        {.id = MR_OPT_JSON},
                        {.id = MR_OPT_CONFIG, .excludes = MR_OPT_SOCKET},
                        {.id = MR_OPT_SOCKET, .help = "a running supervisor's socket, instead of MILLRACE_SOCKET"},
                        LOG_LEVEL,
                        {0}},
        },
    [MR_VERB_DEVSTORE] =
        {
            .id = MR_VERB_DEVSTORE,
            .name = "devstore",
            .summary = "the development object store",
            .about = "A small object store for demos, tests and benchmarks: a program of its own, whose options "
                     "'millrace devstore --help' lists.",
            .options = OPTIONS{{0}},
            .operands = "[--root DIR] [--listen HOST:PORT] ...",
            .operand_type = MR_VALUE_FILE,
            .operands_max = MR_OPERANDS_ANY,
            .foreign = true,
        },
    [MR_VERB_COMPLETION] =
        {
            .id = MR_VERB_COMPLETION,
            .name = "completion",
            .summary = "prints the completion script for bash or zsh",
            .about = "Prints the script that completes millrace's command line. In bash: source <(millrace completion "
                     "bash). In "
                     "zsh, in a folder of $fpath: millrace completion zsh > _millrace.",
            .options = OPTIONS{LOG_LEVEL_UNUSED, {0}},
            .operands = "bash|zsh",
            .operand_type = MR_VALUE_SHELL,
            .operands_min = 1,
            .operands_max = 1,
        },
    [MR_VERB_MAN] =
        {
            .id = MR_VERB_MAN,
            .name = "man",
            .summary = "prints the man page",
            .about = "Prints the man page millrace(1) in roff: millrace man | man -l - shows it.",
            .options = OPTIONS{LOG_LEVEL_UNUSED, {0}},
        },
    [MR_VERB_HELP] =
        {
            .id = MR_VERB_HELP,
            .name = "help",
            .summary = "lists the verbs, or describes one",
            .about = "Lists the verbs, or describes one with all of its options, as 'millrace VERB --help' does.",
            .options = OPTIONS{LOG_LEVEL_UNUSED, {0}},
            .operands = "[VERB]",
            .operand_type = MR_VALUE_VERB,
            .operands_max = 1,
        },
};

const struct mr_verb *mr_verb(enum mr_verb_id id)
{
    return &verbs[id];
}

const struct mr_verb *mr_verb_find(const char *name)
{
    for (unsigned i = 0; i < MR_VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

const struct mr_option *mr_option(enum mr_option_id id)
{
    return &options[id];
}

const struct mr_verb_option *mr_verb_option(const struct mr_verb *verb, unsigned number)
{
    static const struct mr_verb_option help = {.id = MR_OPT_HELP};
    unsigned count = 0;
    while (verb->options[count].id != MR_OPT_NONE)
        count++;
    return number < count ? &verb->options[number] : number == count ? &help : NULL;
}

const char *mr_verb_option_help(const struct mr_verb_option *option)
{
    return option->help ? option->help : options[option->id].help;
}

char mr_verb_option_letter(const struct mr_verb *verb, const struct mr_verb_option *option)
{
    if (option->id == MR_OPT_HELP)
        for (const struct mr_verb_option *other = verb->options; other->id != MR_OPT_NONE; other++)
            if (options[other->id].letter == options[MR_OPT_HELP].letter)
                return '\0';
    return options[option->id].letter;
}
