/* top_screen.c - see top_screen.h. */
#include "cli/top_screen.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- tables ---- */

static unsigned width_of(const struct mr_top_table *table)
{
    unsigned width = 0;
    for (unsigned i = 0; i < table->count; i++)
        if (table->shown[i])
            width += (unsigned)abs(table->columns[i].width) + (width > 0 ? 1 : 0);
    return width;
}

/* Drops the column with the highest `drop`. False: all that are left must stay. */
static bool drop_one(struct mr_top_table *table)
{
    unsigned most = table->count;
    for (unsigned i = 0; i < table->count; i++)
        if (table->shown[i] && table->columns[i].drop > 0 &&
            (most == table->count || table->columns[i].drop > table->columns[most].drop))
            most = i;
    if (most == table->count)
        return false;
    table->shown[most] = false;
    return true;
}

void mr_top_table_begin(struct mr_top_table *table, const struct mr_top_column *columns, unsigned count,
                        unsigned screen_columns, FILE *out)
{
    *table = (struct mr_top_table){.columns = columns, .out = out, .count = count};
    for (unsigned i = 0; i < count; i++)
        table->shown[i] = true;
    while (width_of(table) > screen_columns && drop_one(table))
        ;
    while (table->first + 1 < count && !table->shown[table->first])
        table->first++;
    fputc('\n', out);
    for (unsigned i = 0; i < count; i++)
        mr_top_cell(table, "%s", columns[i].title);
}

void mr_top_cell(struct mr_top_table *table, const char *format, ...)
{
    unsigned at = table->at;
    table->at = (at + 1) % table->count;
    if (table->shown[at]) {
        char cell[1024];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(cell, sizeof cell, format, arguments);
        va_end(arguments);
        for (char *c = cell; (c = strchr(c, '\n')) != NULL;) /* names come from stores: they must not end a line */
            *c = '?';
        fprintf(table->out, "%s%*s", at > table->first ? " " : "", table->columns[at].width, cell);
    }
    if (table->at == 0)
        fputc('\n', table->out);
}

/* ---- text ---- */

void mr_top_write_wrapped(const char *label, const char *text, const char *separator, unsigned screen_columns,
                          FILE *out)
{
    unsigned indent = (unsigned)fprintf(out, "%s", label), at = indent;
    const char *between = "";

    while (*text != '\0') {
        const char *end = strstr(text, separator);
        size_t length = end ? (size_t)(end - text) : strlen(text);
        if (at + strlen(between) + length > screen_columns && at > indent) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            between = "";
        }
        at += (unsigned)fprintf(out, "%s%.*s", between, (int)length, text);
        between = separator;
        text += length + (end ? strlen(separator) : 0);
    }
    fputc('\n', out);
}

/* ---- the screen ---- */

/* Puts a line, cut to the screen's width, without what could move the cursor: names come from stores. */
static void put_line(const char *line, unsigned screen_columns, FILE *out)
{
    unsigned column = 0;
    for (; *line != '\0'; line++) {
        unsigned char c = (unsigned char)*line;
        if ((c & 0xc0) != 0x80 && column++ >= screen_columns)
            break;
        putc(c < 0x20 || c == 0x7f ? '?' : c, out);
    }
    fputs("\033[K", out);
}

struct section {
    unsigned first, lines; /* of the lines of the text: its title and rows */
    unsigned shown;        /* rows of the screen */
};

struct screen {
    char **lines;
    struct section *sections;
    unsigned line_count, section_count;
    unsigned rows, columns, row; /* row: how many have been put */
    bool spaced;                 /* an empty line between sections */
    FILE *out;
};

/* Divides text into lines, in place, and sections. The arrays have room for the most there can be. 0 or -1
 * (NO_MEMORY). */
static int divide(struct screen *screen, char *text)
{
    size_t most = 1;
    for (const char *at = text; *at != '\0'; at++)
        most += *at == '\n';
    screen->lines = calloc(most, sizeof *screen->lines);
    screen->sections = calloc(most, sizeof *screen->sections);
    if (!screen->lines || !screen->sections) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a screen");
        return -1;
    }
    bool begins = true;
    for (char *line; (line = strsep(&text, "\n")) != NULL && text;) {
        if (*line == '\0') {
            begins = true;
            continue;
        }
        if (begins)
            screen->sections[screen->section_count++].first = screen->line_count;
        begins = false;
        struct section *section = &screen->sections[screen->section_count - 1];
        section->shown = ++section->lines;
        screen->lines[screen->line_count++] = line;
    }
    return 0;
}

static bool fits(const struct screen *screen)
{
    unsigned rows = screen->spaced && screen->section_count > 0 ? screen->section_count - 1 : 0;
    for (unsigned i = 0; i < screen->section_count; i++)
        rows += screen->sections[i].shown;
    return rows <= screen->rows;
}

/* Takes a row from the longest section, whose last row then says how many more there are. False: each section already
 * has its title and two rows at most. */
static bool shorten_one(struct screen *screen)
{
    struct section *longest = NULL;
    for (unsigned i = 1; i < screen->section_count; i++)
        if (screen->sections[i].shown > 3 && (!longest || screen->sections[i].shown > longest->shown))
            longest = &screen->sections[i];
    if (!longest)
        return false;
    longest->shown--;
    return true;
}

/* The text of a section's row; the last row says how many are left out, in `text`. */
static const char *line_of(const struct screen *screen, const struct section *section, unsigned row, char text[32])
{
    if (row + 1 < section->shown || section->shown == section->lines)
        return screen->lines[section->first + row];
    snprintf(text, 32, "and %u more", section->lines - row);
    return text;
}

/* Puts the next row, unless the screen is full. Its last row is "..." where more would follow. */
static void put_row(struct screen *screen, const char *line)
{
    if (screen->row == screen->rows)
        return;
    fputs(screen->row > 0 ? "\n" : "", screen->out);
    bool last = ++screen->row == screen->rows;
    put_line(last && !fits(screen) ? "..." : line, screen->columns, screen->out);
}

static void put_sections(struct screen *screen)
{
    char text[32];
    for (unsigned i = 0; i < screen->section_count; i++) {
        const struct section *section = &screen->sections[i];
        if (i > 0 && screen->spaced)
            put_row(screen, "");
        for (unsigned k = 0; k < section->shown; k++)
            put_row(screen, line_of(screen, section, k, text));
    }
}

int mr_top_put_screen(char *text, unsigned optional, unsigned rows, unsigned screen_columns, FILE *out)
{
    struct screen screen = {.rows = rows, .columns = screen_columns, .spaced = true, .out = out};
    int rc = divide(&screen, text);
    if (rc == 0) {
        if (!fits(&screen))
            screen.section_count -= optional;
        screen.spaced = fits(&screen);
        while (!fits(&screen) && shorten_one(&screen))
            ;
        fputs("\033[H", out);
        put_sections(&screen);
        fputs("\033[J", out);
    }
    free(screen.lines);
    free(screen.sections);
    return rc;
}
