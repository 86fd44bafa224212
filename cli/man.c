/* man.c - `millrace man`: the page millrace(1) in roff, made from the table of verbs. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/help.h"

/* Pairs of a term and its description. */
struct entry {
    const char *term, *text;
};

static const char description[] =
    "millrace feeds PyTorch training jobs from object storage. A supervisor lists the data set once, a few fetch "
    "workers download the objects into shared memory, and the training processes read them there without a copy.\n\n"
    "A URI is gs://BUCKET/NAME, s3://BUCKET/NAME or file:///PATH; a plain path is a file. Data goes to standard "
    "output, everything else to standard error. Options may stand before and after the other arguments, -- ends them, "
    "and a long name may be cut short where it stays unique. Arguments are checked before the first request.";

static const struct entry statuses[] = {
    {"0", "Done."},
    {"1", "Failed: for good, or after repeats."},
    {"2", "Wrong arguments or a wrong configuration."},
    {"other", "Of run: the command's own; 128 + n if signal n ended it."},
};

static const struct entry variables[] = {
    {"MILLRACE_SOCKET", "The socket of a running supervisor. run sets it for its command."},
    {"GOOGLE_APPLICATION_CREDENTIALS",
     "A file with credentials; without it they are found as Google's tools find them."},
    {"STORAGE_EMULATOR_HOST", "The URL of an emulator or of millrace devstore, instead of the public service."},
    {"AWS_PROFILE", "The profile for S3. The other AWS_ variables count too, as for Amazon's own tools."},
    {"AWS_ENDPOINT_URL_S3", "The URL of a store that speaks S3, instead of Amazon's."},
    {"XDG_RUNTIME_DIR", "Where run folders are made; without it, in /tmp/millrace-UID."},
};

static const struct entry examples[] = {
    {"millrace run -c train.toml -- torchrun --nproc-per-node 8 train.py",
     "A training job with a supervisor around it."},
    {"millrace ls -lrh gs://bucket/train/", "Everything under a prefix, with sizes for people."},
    {"millrace cp gs://bucket/state.pt - | sha256sum", "An object as a stream."},
    {"source <(millrace completion bash)", "Completion in this shell."},
};

/* Text as roff: no control line, no escape, and hyphens that can be copied. */
static void man_put(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text != '\0'; text++) {
        if (strncmp(text, "\n\n", 2) == 0) {
            fputs("\n.PP\n", stdout);
            text++;
        } else if (*text == '-') {
            fputs("\\-", stdout);
        } else if (*text == '\\') {
            fputs("\\e", stdout);
        } else if (*text == '\'') {
            fputs("\\(aq", stdout);
        } else {
            putchar(*text);
        }
    }
}

static void put_line(const char *text)
{
    man_put(text);
    putchar('\n');
}

static void put_in(const char *font, const char *text)
{
    printf("\\f%s", font);
    man_put(text);
    fputs("\\fR", stdout);
}

static void put_entries(const char *title, const struct entry *entries, size_t count)
{
    printf(".SH %s\n", title);
    for (size_t i = 0; i < count; i++) {
        fputs(".TP\n", stdout);
        put_in("B", entries[i].term);
        putchar('\n');
        put_line(entries[i].text);
    }
}

static void put_usage(const struct mr_verb *verb)
{
    put_in("B", "millrace ");
    put_in("B", verb->name);
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        if (!mr_help_in_usage(option))
            continue;
        fputs(" [", stdout);
        char synopsis[MR_SYNOPSIS_SIZE];
        man_put(mr_help_synopsis(verb, option, synopsis));
        putchar(']');
    }
    if (verb->operands) {
        putchar(' ');
        put_in("I", verb->operands);
    }
    putchar('\n');
}

static void put_option(const struct mr_verb *verb, const struct mr_verb_option *option)
{
    const struct mr_option *common = mr_option(option->id);
    char letter = mr_verb_option_letter(verb, option), name[40];
    fputs(".TP\n", stdout);
    if (letter != '\0') {
        printf("\\fB\\-%c\\fR, ", letter);
    }
    snprintf(name, sizeof name, "--%s", common->name);
    put_in("B", name);
    if (common->value) {
        putchar(' ');
        put_in("I", common->value);
    }
    putchar('\n');
    put_line(mr_verb_option_help(option));
}

static void put_verb(const struct mr_verb *verb)
{
    printf(".SS %s\n", verb->name);
    put_usage(verb);
    fputs(".PP\n", stdout);
    put_line(verb->about);
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++)
        if (!option->hidden && option->id != MR_OPT_HELP)
            put_option(verb, option);
}

int mr_cli_man(const struct mr_arguments *arguments)
{
    (void)arguments;
    printf(".TH MILLRACE 1 \"\" \"millrace %s\" \"User Commands\"\n.ad l\n.nh\n", MR_VERSION);
    fputs(".SH NAME\nmillrace \\- feed training jobs from object storage through shared memory\n", stdout);
    fputs(".SH SYNOPSIS\n\\fBmillrace\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n.br\n"
          "\\fBmillrace\\fR \\fIVERB\\fR \\fB\\-\\-help\\fR\n.br\n\\fBmillrace \\-\\-version\\fR\n",
          stdout);
    fputs(".SH DESCRIPTION\n", stdout);
    put_line(description);
    fputs(".SH VERBS\n", stdout);
    for (unsigned i = 0; i < MR_VERBS; i++)
        put_verb(mr_verb(i));
    put_entries("EXIT STATUS", statuses, sizeof statuses / sizeof statuses[0]);
    put_entries("ENVIRONMENT", variables, sizeof variables / sizeof variables[0]);
    put_entries("EXAMPLES", examples, sizeof examples / sizeof examples[0]);
    return mr_cli_flush();
}
