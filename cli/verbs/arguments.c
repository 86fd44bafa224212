#include "cli/verbs/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/verbs/arguments_impl.h"

/* One option with its value. name: as it was written, for errors. */
static int arguments_take(struct mr_arguments *arguments, const struct mr_verb_option *wanted, const char *name,
                          const char *text)
{
    const struct mr_option *option = mr_option(wanted->id);
    struct mr_option_value *value = &arguments->values[wanted->id];
    value->count++;
    value->text = text;
    return mr_arguments_check_value(option, name, value);
}

static int fail_missing(const struct mr_option *option, const char *name)
{
    mr_error_set(MR_E_USAGE, "%s needs a value: %s %s", name, name, option->value);
    return -1;
}

static int fail_unknown(const char *word)
{
    mr_error_set(MR_E_USAGE, "unknown option %.60s", word);
    return -1;
}

/* The option of that name, or the only one that begins with it. NULL with mr_error. */
static const struct mr_verb_option *find_long(const struct mr_verb *verb, const char *word, size_t length)
{
    const struct mr_verb_option *option, *found = NULL;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        const char *name = mr_option(option->id)->name;
        if (strncmp(name, word + 2, length) != 0)
            continue;
        if (name[length] == '\0')
            return option;
        if (found) {
            mr_error_set(MR_E_USAGE, "%s is ambiguous: --%s or --%s", word, mr_option(found->id)->name, name);
            return NULL;
        }
        found = option;
    }
    if (!found)
        fail_unknown(word);
    return found;
}

/* --name, --name VALUE or --name=VALUE. Returns how many words after this one were used, or -1. */
static int take_long(struct mr_arguments *arguments, const char *word, const char *next)
{
    size_t length = strcspn(word + 2, "=");
    const char *text = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
    const struct mr_verb_option *found = find_long(arguments->verb, word, length);
    if (!found)
        return -1;
    const struct mr_option *option = mr_option(found->id);
    char name[40];
    snprintf(name, sizeof name, "--%s", option->name);
    if (option->type == MR_VALUE_NONE) {
        if (!text)
            return arguments_take(arguments, found, name, NULL);
        mr_error_set(MR_E_USAGE, "%s takes no value", name);
        return -1;
    }
    if (text)
        return arguments_take(arguments, found, name, text);
    if (!next)
        return fail_missing(option, name);
    return arguments_take(arguments, found, name, next) == 0 ? 1 : -1;
}

static const struct mr_verb_option *find_short(const struct mr_verb *verb, char letter)
{
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++)
        if (mr_verb_option_letter(verb, option) == letter)
            return option;
    return NULL;
}

/* -l, -lr, -c FILE or -cFILE. Returns how many words after this one were used, or -1. */
static int take_short(struct mr_arguments *arguments, const char *word, const char *next)
{
    for (const char *at = word + 1; *at != '\0'; at++) {
        const struct mr_verb_option *found = find_short(arguments->verb, *at);
        char name[] = {'-', *at, '\0'};
        if (!found)
            return fail_unknown(strlen(word) == 2 || (unsigned char)*at >= 0x80 ? word : name);
        const struct mr_option *option = mr_option(found->id);
        if (option->type != MR_VALUE_NONE) {
            const char *text = at[1] != '\0' ? at + 1 : next;
            if (!text)
                return fail_missing(option, name);
            return arguments_take(arguments, found, name, text) == 0 ? at[1] == '\0' : -1;
        }
        if (arguments_take(arguments, found, name, NULL) != 0)
            return -1;
    }
    return 0;
}

int mr_arguments_parse(struct mr_arguments *arguments, const struct mr_verb *verb, char **argv)
{
    size_t count = 0;
    while (argv[count])
        count++;
    *arguments = (struct mr_arguments){.verb = verb, .argv = argv};
    arguments->operands = calloc(count + 1, sizeof *arguments->operands);
    if (!arguments->operands) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu arguments", count);
        return -1;
    }
    bool ended = false;
    for (size_t i = 1; i < count; i++) {
        const char *word = argv[i];
        int used = 0;
        if (ended || word[0] != '-' || word[1] == '\0') {
            arguments->operands[arguments->operand_count++] = argv[i];
            ended = ended || verb->operands_end;
        } else if (strcmp(word, "--") == 0) {
            ended = true;
        } else {
            used = (word[1] == '-' ? take_long : take_short)(arguments, word, argv[i + 1]);
        }
        if (used < 0)
            return -1;
        if (mr_arguments_have(arguments, MR_OPT_HELP))
            return 0;
        i += (size_t)used;
    }
    return mr_arguments_check(arguments);
}

void mr_arguments_close(struct mr_arguments *arguments)
{
    free(arguments->operands);
    *arguments = (struct mr_arguments){.verb = NULL};
}
