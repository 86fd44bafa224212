/*
 * top_screen.h - how `millrace top` fits what it shows to a terminal: tables without the columns that find no place,
 * and rows left out with their number. No cell is cut but the last of a row, a name.
 */
#ifndef MR_CLI_TOP_SCREEN_H
#define MR_CLI_TOP_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#define MR_TOP_COLUMNS_MAX 16u

struct mr_top_column {
    const char *title;
    int width;     /* negative: to the left */
    unsigned drop; /* on a narrow screen those with the highest number go first; 0: it stays */
};

/* The caller's; `columns` lives as long. */
struct mr_top_table {
    const struct mr_top_column *columns;
    FILE *out;
    unsigned count, at; /* at: the column of the next cell */
    unsigned first;     /* the first column that is shown */
    bool shown[MR_TOP_COLUMNS_MAX];
};

/* Begins a section: an empty line, and the titles of the columns that fit. count: MR_TOP_COLUMNS_MAX at most. */
void mr_top_table_begin(struct mr_top_table *table, const struct mr_top_column *columns, unsigned count,
                        unsigned screen_columns, FILE *out);
/* The next cell; the last one of a row ends it. */
void mr_top_cell(struct mr_top_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* `text` behind `label`, in as many lines as it needs: broken where `separator` is, the rest below each other. */
void mr_top_write_wrapped(const char *label, const char *text, const char *separator, unsigned screen_columns,
                          FILE *out);

/* The sections of `text` (with empty lines between them; it is cut into pieces), on so many rows. Where they do not fit:
 * without the last `optional` ones; then without the empty lines; then with "and 7 more" for the rows of the longest
 * section, but for the first. 0 or -1 (NO_MEMORY). */
int mr_top_put_screen(char *text, unsigned optional, unsigned rows, unsigned screen_columns, FILE *out);

#endif
