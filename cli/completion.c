/*
 * completion.c - `millrace completion bash|zsh`: a script made from the table of verbs. It completes verbs, options and
 * local files, and makes no request: what a bucket holds is not completed.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* ---- bash ---- */

static bool is_file(enum mr_value_type type)
{
    return type == MR_VALUE_FILE || type == MR_VALUE_URI || type == MR_VALUE_OBJECT || type == MR_VALUE_PLACE ||
           type == MR_VALUE_DATASET;
}

enum which { ALL, WITH_FILE, WITH_OTHER }; /* options by the kind of their value */

static void bash_options(const struct mr_verb *verb, const char *variable, enum which which)
{
    printf("        %s='", variable);
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        const struct mr_option *common = mr_option(option->id);
        char letter = mr_verb_option_letter(verb, option);
        bool chosen = which == ALL || (common->type != MR_VALUE_NONE && is_file(common->type) == (which == WITH_FILE));
        if (option->hidden || !chosen)
            continue;
        printf(" --%s", common->name);
        if (letter != '\0')
            printf(" -%c", letter);
    }
    puts(" '");
}

static void bash_verbs(void)
{
    for (unsigned i = 0; i < MR_VERBS; i++)
        printf("%s%s", i > 0 ? " " : "", mr_verb(i)->name);
}

static void bash_verb(const struct mr_verb *verb)
{
    printf("    %s)\n", verb->name);
    if (!verb->foreign) {
        bash_options(verb, "options", ALL);
        bash_options(verb, "files", WITH_FILE);
        bash_options(verb, "others", WITH_OTHER);
    }
    if (verb->operand_type == MR_VALUE_SHELL) {
        puts("        words='bash zsh'");
    } else if (verb->operand_type == MR_VALUE_VERB) {
        fputs("        words='", stdout);
        bash_verbs();
        puts("'");
    } else if (verb->operand_type == MR_VALUE_COMMAND) {
        puts("        command=yes");
    }
    puts("        ;;");
}

static void print_bash(void)
{
    fputs("# bash completion for millrace, made by `millrace completion bash`.\n"
          "_millrace()\n"
          "{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local options=' --help ' files='' others='' words='' command=''\n"
          "    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    bash_verbs();
    fputs(" --help --version' -- \"$cur\"))\n"
          "        return\n"
          "    fi\n"
          "    if [[ $cur == = ]]; then\n"
          "        cur=\n"
          "    elif [[ $prev == = ]]; then # --config=FILE is three words\n"
          "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n"
          "    case ${COMP_WORDS[1]} in\n",
          stdout);
    for (unsigned i = 0; i < MR_VERBS; i++)
        bash_verb(mr_verb(i));
    fputs("    esac\n"
          "    if [[ $files == *\" $prev \"* ]]; then\n"
          "        return # files, by readline\n"
          "    elif [[ $others == *\" $prev \"* ]]; then\n"
          "        compopt +o default +o bashdefault\n"
          "    elif [[ $prev == -- && $command ]]; then\n"
          "        COMPREPLY=($(compgen -c -- \"$cur\"))\n"
          "    elif [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "    elif [[ $words ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "    fi\n"
          "}\n"
          "complete -o bashdefault -o default -F _millrace millrace\n",
          stdout);
}

/* ---- zsh ---- */

/* Between single quotes; in an option's brackets "]" and ":" are special as well. */
static void zsh_text(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

/* What _arguments completes for such a value; " ": nothing. */
static const char *zsh_action(enum mr_value_type type)
{
    switch (type) {
    case MR_VALUE_SHELL:
        return "(bash zsh)";
    case MR_VALUE_VERB:
        return "($verb_names)";
    default:
        return is_file(type) ? "_files" : " ";
    }
}

static void zsh_option(const struct mr_verb *verb, const struct mr_verb_option *option)
{
    const struct mr_option *common = mr_option(option->id);
    char letter = mr_verb_option_letter(verb, option);
    bool repeats = option->id == MR_OPT_VERBOSE || option->id == MR_OPT_QUIET;
    const char *plus = common->value ? "+" : "", *equals = common->value ? "=" : "";
    fputs("            ", stdout);
    if (repeats)
        fputs("'*'", stdout);
    else if (option->id == MR_OPT_HELP)
        fputs("'(- *)'", stdout);
    else if (letter != '\0')
        printf("'(-%c --%s)'", letter, common->name);
    if (letter != '\0')
        printf("{-%c%s,--%s%s}'[", letter, plus, common->name, equals);
    else
        printf("'--%s%s[", common->name, equals);
    zsh_text(mr_verb_option_help(option));
    putchar(']');
    if (common->value) {
        putchar(':');
        zsh_text(common->value);
        printf(":%s", zsh_action(common->type));
    }
    puts("' \\");
}

static void zsh_verb(const struct mr_verb *verb)
{
    printf("        %s)\n            _arguments -s -S \\\n", verb->name);
    const struct mr_verb_option *option;
    for (unsigned i = 0; !verb->foreign && (option = mr_verb_option(verb, i)); i++)
        if (!option->hidden)
            zsh_option(verb, option);
    if (verb->operand_type == MR_VALUE_COMMAND)
        puts("            '(-)1:command:_command_names -e' '*::arguments:_normal' && return");
    else if (verb->operands_max == 0)
        puts("            && return");
    else
        printf("            '*:%s:%s' && return\n", verb->name, zsh_action(verb->operand_type));
    puts("            ;;");
}

static void print_zsh(void)
{
    fputs("#compdef millrace\n"
          "# zsh completion for millrace, made by `millrace completion zsh`.\n"
          "_millrace()\n"
          "{\n"
          "    local curcontext=$curcontext state line\n"
          "    local -a verbs verb_names\n"
          "    typeset -A opt_args\n"
          "    verbs=(\n",
          stdout);
    for (unsigned i = 0; i < MR_VERBS; i++) {
        printf("        '%s:", mr_verb(i)->name);
        zsh_text(mr_verb(i)->summary);
        puts("'");
    }
    fputs("    )\n"
          "    verb_names=(${verbs%%:*})\n"
          "    _arguments -C '(- *)'{-h,--help}'[list the verbs]' '(- *)--version[print the version]' \\\n"
          "        '1:verb:->verb' '*::argument:->arguments' && return\n"
          "    case $state in\n"
          "    verb)\n"
          "        _describe -t verbs verb verbs\n"
          "        ;;\n"
          "    arguments)\n"
          "        curcontext=${curcontext%:*:*}:millrace-$words[1]:\n"
          "        case $words[1] in\n",
          stdout);
    for (unsigned i = 0; i < MR_VERBS; i++)
        zsh_verb(mr_verb(i));
    fputs("        esac\n"
          "        ;;\n"
          "    esac\n"
          "}\n"
          "if [[ $funcstack[1] == _millrace ]]; then\n"
          "    _millrace \"$@\"\n"
          "else\n"
          "    compdef _millrace millrace\n"
          "fi\n",
          stdout);
}

int mr_cli_completion(const struct mr_arguments *arguments)
{
    if (strcmp(arguments->operands[0], "bash") == 0)
        print_bash();
    else
        print_zsh();
    return mr_cli_flush();
}
