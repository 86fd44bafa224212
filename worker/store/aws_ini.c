#include "worker/store/aws_ini.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "worker/store/auth_program.h"
#include "worker/store/text.h"

#define DEFAULTS (-1) /* the number of [DEFAULT] */
#define BOM      "\xef\xbb\xbf"

struct section {
    const char *name;
    unsigned line;
};

struct entry {
    int section;
    const char *key;
    char *value;
    unsigned line;
};

struct mr_aws_ini {
    char *text; /* the strings point into it, unfolded in place */
    size_t size;
    struct section *sections;
    struct entry *entries;
    int section_count;
    size_t entry_count, sections_size, entries_size;
};

/* What the lines so far mean for the next one. */
struct reader {
    struct mr_aws_ini *ini;
    unsigned line;
    size_t indent;
    int section;
    bool in_section;
    bool open; /* the last entry may continue */
    char *end; /* of the last entry's value */
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); /* as str.isspace of Python */
}

/* Room for one more. 0, or -1 with mr_error. */
static int aws_ini_grow(void **array, size_t *size, size_t count, size_t each)
{
    if (count < *size)
        return 0;
    size_t larger = *size ? 2 * *size : 32;
    void *more = realloc(*array, larger * each);
    if (!more) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return -1;
    }
    *array = more;
    *size = larger;
    return 0;
}

/* Ends the open value, if any: trailing white space is removed, and a nested one must be lines "key = value". 0, or -1
 * with mr_error. */
static int close_value(struct reader *reader)
{
    if (!reader->open)
        return 0;
    reader->open = false;
    struct entry *entry = &reader->ini->entries[reader->ini->entry_count - 1];
    while (reader->end > entry->value && is_space(reader->end[-1]))
        reader->end--;
    *reader->end = 0;
    if (entry->value[0] != '\n')
        return 0;
    for (const char *at = entry->value; *at;) {
        size_t length = strcspn(++at, "\n");
        if (length > 0 && !memchr(at, '=', length)) {
            mr_error_set(MR_E_DENIED, "line %u: a line of the value of \"%.60s\" has no \"=\"", entry->line,
                         entry->key);
            return -1;
        }
        at += length;
    }
    return 0;
}

static int open_section(struct reader *reader, char *name)
{
    struct mr_aws_ini *ini = reader->ini;
    reader->in_section = true;
    reader->section = DEFAULTS;
    if (strcmp(name, "DEFAULT") == 0)
        return 0;
    if (mr_aws_ini_section(ini, name) >= 0) {
        mr_error_set(MR_E_DENIED, "line %u: the section [%.100s] is there twice; merge the two", reader->line, name);
        return -1;
    }
    if (aws_ini_grow((void **)&ini->sections, &ini->sections_size, (size_t)ini->section_count, sizeof *ini->sections) !=
        0)
        return -1;
    ini->sections[ini->section_count] = (struct section){name, reader->line};
    reader->section = ini->section_count++;
    return 0;
}

/* One option: text is the line without white space around it, up to end. */
static int open_value(struct reader *reader, char *text, char *end)
{
    struct mr_aws_ini *ini = reader->ini;
    char *sign = text + strcspn(text, "=:");
    if (sign == end || sign == text) {
        mr_error_set(MR_E_DENIED, "line %u: it is neither [section] nor key = value", reader->line);
        return -1;
    }
    char *value = sign + 1;
    while (value < end && is_space(*value))
        value++;
    do {
        *sign-- = 0;
    } while (sign > text && is_space(*sign));
    for (char *at = text; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    for (size_t i = 0; i < ini->entry_count; i++) {
        if (ini->entries[i].section == reader->section && strcmp(ini->entries[i].key, text) == 0) {
            mr_error_set(MR_E_DENIED, "line %u: \"%.60s\" is there twice in its section (line %u)", reader->line, text,
                         ini->entries[i].line);
            return -1;
        }
    }
    if (aws_ini_grow((void **)&ini->entries, &ini->entries_size, ini->entry_count, sizeof *ini->entries) != 0)
        return -1;
    ini->entries[ini->entry_count++] = (struct entry){reader->section, text, value, reader->line};
    reader->open = true;
    reader->end = end;
    return 0;
}

/* One line from start up to end, where its line break is: that is overwritten. */
static int read_line(struct reader *reader, char *start, char *end)
{
    char *text = start;
    while (text < end && is_space(*text))
        text++;
    size_t indent = (size_t)(text - start);
    while (end > text && is_space(end[-1]))
        end--;
    *end = 0;
    if (*text == '#' || *text == ';')
        return 0;
    bool goes_on = text == end || indent > reader->indent;
    if (reader->open && goes_on) { /* what went before is longer by at least the newline, so there is room */
        *reader->end++ = '\n';
        memmove(reader->end, text, (size_t)(end - text));
        reader->end += end - text;
        return 0;
    }
    if (text == end)
        return 0;
    if (close_value(reader) != 0)
        return -1;
    reader->indent = indent;
    char *bracket = *text == '[' ? strrchr(text, ']') : NULL;
    if (bracket && bracket > text + 1) {
        *bracket = 0;
        return open_section(reader, text + 1);
    }
    if (!reader->in_section) {
        mr_error_set(MR_E_DENIED, "line %u: it stands before the first [section]", reader->line);
        return -1;
    }
    return open_value(reader, text, end);
}

static int read_all(struct mr_aws_ini *ini)
{
    struct reader reader = {.ini = ini};
    char *at = ini->text, *end = ini->text + ini->size - 1;
    if (strncmp(at, BOM, strlen(BOM)) == 0)
        at += strlen(BOM);
    while (at < end) {
        reader.line++;
        char *line = at;
        at += strcspn(at, "\r\n");
        if (at < end && *at == 0) {
            mr_error_set(MR_E_DENIED, "line %u: it has a NUL byte: this is not a text file", reader.line);
            return -1;
        }
        char *line_end = at;
        at += at < end ? (at[0] == '\r' && at[1] == '\n' ? 2 : 1) : 0;
        if (read_line(&reader, line, line_end) != 0)
            return -1;
    }
    return close_value(&reader);
}

struct mr_aws_ini *mr_aws_ini_parse(const char *text, size_t length)
{
    struct mr_aws_ini *ini = calloc(1, sizeof *ini);
    if (ini)
        ini->text = malloc(length + 1);
    if (!ini || !ini->text) {
        free(ini);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    ini->size = length + 1;
    memcpy(ini->text, text, length);
    ini->text[length] = 0;
    if (read_all(ini) != 0) {
        mr_aws_ini_destroy(ini);
        return NULL;
    }
    return ini;
}

void mr_aws_ini_destroy(struct mr_aws_ini *ini)
{
    if (!ini)
        return;
    OPENSSL_cleanse(ini->text, ini->size);
    free(ini->text);
    free(ini->sections);
    free(ini->entries);
    free(ini);
}

int mr_aws_ini_section(const struct mr_aws_ini *ini, const char *name)
{
    for (int i = 0; i < ini->section_count; i++) {
        if (strcmp(ini->sections[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* Whether the title is two words, of which the second is name. */
static bool names(const char *title, const char *name)
{
    char *copy, *words[3];
    if (mr_text_dup(&copy, title) != 0)
        return false;
    bool yes = mr_auth_split_words(copy, words, 2) == 2 && strcmp(words[1], name) == 0;
    free(copy);
    return yes;
}

int mr_aws_ini_titled(const struct mr_aws_ini *ini, const char *kind, const char *name)
{
    bool is_default = strcmp(kind, "profile") == 0 && strcmp(name, "default") == 0;
    for (int i = ini->section_count - 1; i >= 0; i--) {
        const char *title = ini->sections[i].name;
        if (strncmp(title, kind, strlen(kind)) == 0 ? names(title, name) : is_default && strcmp(title, "default") == 0)
            return i;
    }
    return -1;
}

const char *mr_aws_ini_get(const struct mr_aws_ini *ini, int section, const char *key, unsigned *line)
{
    const struct entry *found = NULL;
    for (size_t i = 0; i < ini->entry_count; i++) {
        const struct entry *entry = &ini->entries[i];
        if ((entry->section == section || (entry->section == DEFAULTS && !found)) && strcmp(entry->key, key) == 0)
            found = entry;
    }
    if (found && line)
        *line = found->line;
    return found ? found->value : NULL;
}

unsigned mr_aws_ini_line(const struct mr_aws_ini *ini, int section)
{
    return ini->sections[section].line;
}

const char *mr_aws_ini_nested(const char *value, const char *key, size_t *length)
{
    if (value[0] != '\n')
        return NULL;
    const char *found = NULL;
    for (const char *at = value; *at;) {
        size_t n = strcspn(++at, "\n");
        const char *sign = memchr(at, '=', n), *end = at + n, *name_end = sign;
        while (sign && name_end > at && is_space(name_end[-1]))
            name_end--;
        if (sign && (size_t)(name_end - at) == strlen(key) && strncmp(at, key, strlen(key)) == 0) {
            found = sign + 1;
            while (found < end && is_space(*found))
                found++;
            *length = (size_t)(end - found);
        }
        at = end;
    }
    return found;
}
