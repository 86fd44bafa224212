#include "cli/check.h"

#include <string.h>

#include "base/size.h"
#include "cli/cli.h"
#include "supervisor/config_toml.h"

static void print_string(const char *text, FILE *out)
{
    putc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            putc(c, out);
    }
    putc('"', out);
}

/* A text; of a URL, also one without a scheme, everything but the password, which may have a '/' or '@' that should be
 * escaped. */
static void print_text(const char *text, FILE *out)
{
    const char *scheme = strstr(text, "://"), *user = scheme ? scheme + 3 : text;
    const char *colon = user + strcspn(user, ":/@");
    const char *at = *colon == ':' ? strrchr(colon, '@') : NULL;
    bool is_port = at && strchr("/", colon[1 + strspn(colon + 1, "0123456789")]) != NULL; /* what the colon begins */
    char shown[1000];
    if (at && !is_port) {
        snprintf(shown, sizeof shown, "%.*s:(not shown)%s", (int)(colon - text), text, at);
        text = shown;
    }
    print_string(text, out);
}

static void print_strings(const struct mr_strings *strings, FILE *out)
{
    putc('[', out);
    for (size_t i = 0; i < strings->count; i++) {
        fputs(i > 0 ? ", " : "", out);
        print_string(strings->items[i], out);
    }
    putc(']', out);
}

/* Headers may carry keys: only their names are shown. */
static void print_lines(const struct mr_strings *lines, FILE *out)
{
    fputs("{ ", out);
    for (size_t i = 0; i < lines->count; i++) {
        const char *line = lines->items[i];
        fprintf(out, "%s\"%.*s\" = \"(not shown)\"", i > 0 ? ", " : "", (int)strcspn(line, ":"), line);
    }
    fputs(lines->count > 0 ? " }" : "}", out);
}

static void print_number(const struct mr_config_key *key, uint64_t value, FILE *out)
{
    char text[32];
    if (key->type == MR_KEY_BYTES && value >= 1024) {
        mr_size_format(value, text);
        fprintf(out, strpbrk(text, "KMGT") ? "\"%s\"" : "%s", text);
    } else {
        fprintf(out, "%llu", (unsigned long long)value);
    }
}

static void print_value(const struct mr_config_key *key, const void *base, FILE *out)
{
    const void *at = (const char *)base + key->offset;
    switch (key->type) {
    case MR_KEY_U64:
    case MR_KEY_BYTES:
        print_number(key, *(const uint64_t *)at, out);
        break;
    case MR_KEY_CHOICE:
        print_string(key->choices[*(const uint64_t *)at], out);
        break;
    case MR_KEY_STRING:
        print_text(*(char *const *)at, out);
        break;
    case MR_KEY_STRINGS:
        print_strings(at, out);
        break;
    case MR_KEY_LINES:
        print_lines(at, out);
        break;
    }
}

/* All keys of a section but `uri`; a special value has a comment that explains it. */
static void print_section(const char *section, const void *base, FILE *out)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(keys[i].section, section) != 0 || strcmp(keys[i].name, "uri") == 0)
            continue;
        fprintf(out, "%s = ", keys[i].name);
        bool special = keys[i].special &&
                       *(const uint64_t *)(const void *)((const char *)base + keys[i].offset) == keys[i].fallback;
        if (special && keys[i].has_auto)
            fputs("\"auto\"", out);
        else
            print_value(&keys[i], base, out);
        fprintf(out, special ? " # %s\n" : "\n", keys[i].special);
    }
}

void mr_check_print(const struct mr_config *config, FILE *out)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    for (size_t i = 0; i < config->dataset_count; i++) {
        fprintf(out, "[dataset.\"%s\"]\n", config->datasets[i].name);
        print_section("dataset", &config->datasets[i], out);
        putc('\n', out);
    }
    for (size_t i = 0; i < config->endpoint_count; i++) {
        fprintf(out, "[endpoint.\"%s\"]\n", config->endpoints[i].name);
        print_section("endpoint", &config->endpoints[i], out);
        putc('\n', out);
    }
    const char *last = "";
    for (unsigned i = 0; i < count; i++) {
        if (mr_config_key_is_named(&keys[i]) || strcmp(keys[i].section, last) == 0)
            continue;
        fprintf(out, "%s[%s]\n", last[0] ? "\n" : "", keys[i].section);
        print_section(keys[i].section, config, out);
        last = keys[i].section;
    }
}

/* ---- the reference ---- */

static void print_default(const struct mr_config_key *key, FILE *out)
{
    if (key->special) {
        fprintf(out, "%s%s", key->has_auto ? "`\"auto\"`: " : "", key->special);
        return;
    }
    char text[32];
    switch (key->type) {
    case MR_KEY_BYTES:
        mr_size_format(key->fallback, text);
        fprintf(out, "`\"%s\"`", text);
        break;
    case MR_KEY_U64:
        fprintf(out, "`%llu`", (unsigned long long)key->fallback);
        break;
    case MR_KEY_CHOICE:
        fprintf(out, "`\"%s\"`", key->choices[key->fallback]);
        break;
    case MR_KEY_STRING:
    case MR_KEY_STRINGS:
    case MR_KEY_LINES:
        fputs("empty", out);
        break;
    }
}

static void print_range(const struct mr_config_key *key, FILE *out)
{
    char low[32], high[32];
    switch (key->type) {
    case MR_KEY_BYTES:
        mr_size_format(key->min, low);
        mr_size_format(key->max, high);
        fprintf(out, "%s to %s", low, high);
        break;
    case MR_KEY_U64:
        fprintf(out, "%llu to %llu %s", (unsigned long long)key->min, (unsigned long long)key->max, key->unit);
        break;
    case MR_KEY_CHOICE:
        for (unsigned i = 0; key->choices[i]; i++)
            fprintf(out, "%s\"%s\"", i > 0 ? ", " : "", key->choices[i]);
        break;
    case MR_KEY_STRING:
        fputs("text", out);
        break;
    case MR_KEY_STRINGS:
        fputs("text, or an array of texts", out);
        break;
    case MR_KEY_LINES:
        fputs("`{ name = \"value\" }`", out);
        break;
    }
}

void mr_check_print_reference(FILE *out)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    fputs(
        "# Configuration\n\n"
        "<!-- Made by `millrace check --reference` from shm/control/config_keys.c: change it there. -->\n\n"
        "A TOML file, named by `-c FILE`. Every section and key may be left out. A key that does not exist is an "
        "error. "
        "Sizes are\nnumbers of bytes or text: `\"512MiB\"` (1024), `\"500MB\"` (1000). `millrace check -c FILE` prints "
        "a file with all\ndefaults filled in. Keys marked *live* are applied by `millrace reload`; the others need a "
        "new start.\n",
        out);
    const char *last = "";
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(keys[i].section, last) != 0) {
            last = keys[i].section;
            fprintf(out, "\n## [%s%s]\n\n| key | default | values | meaning |\n|---|---|---|---|\n", last,
                    mr_config_key_is_named(&keys[i]) ? ".NAME" : "");
        }
        fprintf(out, "| `%s`%s | ", keys[i].name, keys[i].live ? " *(live)*" : "");
        print_default(&keys[i], out);
        fputs(" | ", out);
        print_range(&keys[i], out);
        fprintf(out, " | %s |\n", keys[i].meaning);
    }
}

int mr_cli_check(const struct mr_arguments *arguments)
{
    if (mr_arguments_have(arguments, MR_OPT_REFERENCE)) {
        mr_check_print_reference(stdout);
        return mr_cli_flush();
    }
    struct mr_config config;
    if (mr_config_load(&config, mr_arguments_text(arguments, MR_OPT_CONFIG)) != 0)
        return mr_cli_fail();
    mr_check_print(&config, stdout);
    mr_config_close(&config);
    return mr_cli_flush();
}
