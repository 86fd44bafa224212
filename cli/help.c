#include "cli/help.h"

#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "cli/cli.h"

#define COLUMNS 96

const char *mr_help_synopsis(const struct mr_verb *verb, const struct mr_verb_option *option,
                             char out[MR_SYNOPSIS_SIZE])
{
    const struct mr_option *common = mr_option(option->id);
    char letter = mr_verb_option_letter(verb, option);
    const char *space = common->value ? " " : "", *value = common->value ? common->value : "";
    if (letter != '\0')
        snprintf(out, MR_SYNOPSIS_SIZE, "-%c%s%s", letter, space, value);
    else
        snprintf(out, MR_SYNOPSIS_SIZE, "--%s%s%s", common->name, space, value);
    return out;
}

bool mr_help_in_usage(const struct mr_verb_option *option)
{
    return !option->hidden && option->id != MR_OPT_VERBOSE && option->id != MR_OPT_QUIET && option->id != MR_OPT_HELP;
}

/* Puts a word of `length` bytes, on the next line if this one is full. Returns the column after it. */
static unsigned put_word(FILE *out, const char *word, size_t length, unsigned indent, unsigned column)
{
    if (column > indent && column + 1 + length > COLUMNS) {
        fprintf(out, "\n%*s", (int)indent, "");
        column = indent;
    } else if (column > indent || column + 1 == indent) { /* after a word, or after the text before the indent */
        putc(' ', out);
        column++;
    }
    fwrite(word, 1, length, out);
    return column + (unsigned)length;
}

/* Puts words from the column `indent` on, which the line has reached already; two newlines begin a paragraph. */
static void put_text(FILE *out, const char *text, unsigned indent)
{
    unsigned column = indent;
    while (*text != '\0') {
        size_t length = strcspn(text, " \n");
        column = put_word(out, text, length, indent, column);
        text += length;
        if (*text == '\n') {
            fprintf(out, "\n\n%*s", (int)indent, "");
            column = indent;
        }
        text += strspn(text, " \n");
    }
    putc('\n', out);
}

void mr_help_usage(const struct mr_verb *verb, FILE *out)
{
    const struct mr_verb_option *option;
    unsigned column = (unsigned)fprintf(out, "usage: millrace %s", verb->name), indent = column + 1;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        if (!mr_help_in_usage(option))
            continue;
        char synopsis[MR_SYNOPSIS_SIZE], word[MR_SYNOPSIS_SIZE + 2];
        snprintf(word, sizeof word, "[%s]", mr_help_synopsis(verb, option, synopsis));
        column = put_word(out, word, strlen(word), indent, column);
    }
    if (verb->operands)
        put_word(out, verb->operands, strlen(verb->operands), indent, column);
    putc('\n', out);
}

/* "-c, --config FILE" */
static int format_option(const struct mr_verb *verb, const struct mr_verb_option *option, char *out, size_t size)
{
    const struct mr_option *common = mr_option(option->id);
    char letter = mr_verb_option_letter(verb, option);
    char letters[] = {'-', letter, ',', ' ', '\0'};
    return snprintf(out, size, "%s--%s%s%s", letter != '\0' ? letters : "    ", common->name, common->value ? " " : "",
                    common->value ? common->value : "");
}

static void put_options(const struct mr_verb *verb, FILE *out)
{
    char text[80];
    const struct mr_verb_option *option;
    int width = 0;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        int length = option->hidden ? 0 : format_option(verb, option, text, sizeof text);
        width = length > width ? length : width;
    }
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        if (option->hidden)
            continue;
        format_option(verb, option, text, sizeof text);
        put_text(out, mr_verb_option_help(option), (unsigned)fprintf(out, "  %-*s  ", width, text));
    }
}

void mr_help_verb(const struct mr_verb *verb, FILE *out)
{
    mr_help_usage(verb, out);
    putc('\n', out);
    put_text(out, verb->about, 0);
    putc('\n', out);
    put_options(verb, out);
}

void mr_help_all(FILE *out)
{
    fprintf(out, "millrace %s: feeds training jobs from object storage through shared memory\n\n", MR_VERSION);
    for (unsigned i = 0; i < MR_VERBS; i++) {
        const struct mr_verb *verb = mr_verb(i);
        fprintf(out, "  millrace %-12s %s\n", verb->name, verb->summary);
    }
    fputs("\n'millrace VERB --help' describes a verb with its options, 'millrace --version' prints the version.\n",
          out);
}

bool mr_cli_put_json_error(const struct mr_arguments *arguments)
{
    json_t *report = NULL;
    if (arguments->verb->json_errors && mr_arguments_have(arguments, MR_OPT_JSON))
        report = json_pack("{s:s, s:s}", "code", mr_code_name(mr_error_code()), "error", mr_error_text());
    if (!report)
        return false;
    json_dumpf(report, stderr, 0);
    fputc('\n', stderr);
    json_decref(report);
    return true;
}

int mr_cli_fail_usage(const struct mr_arguments *arguments)
{
    if (!mr_cli_put_json_error(arguments)) {
        fprintf(stderr, "millrace %s: %s\n", arguments->verb->name, mr_error_text());
        mr_help_usage(arguments->verb, stderr);
        fprintf(stderr, "'millrace %s --help' describes each option.\n", arguments->verb->name);
    }
    return mr_code_exit_status(mr_error_code());
}

int mr_cli_help(const struct mr_arguments *arguments)
{
    if (arguments->operand_count == 0)
        mr_help_all(stdout);
    else
        mr_help_verb(mr_verb_find(arguments->operands[0]), stdout);
    return mr_cli_flush();
}
