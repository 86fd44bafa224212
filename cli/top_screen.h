/*
 * top_screen.h - how `millrace top` fits what it shows to a terminal: tables without the columns that do not fit, and
 * the number of rows in place of those left out. No cell is cut except the last of a row, a name.
 */
#ifndef MR_CLI_TOP_SCREEN_H
#define MR_CLI_TOP_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#define MR_TOP_COLUMNS_MAX 16u

struct mr_top_column {
    const char *title;
    int width;     /* negative: left-aligned */
    unsigned drop; /* on a narrow screen the highest numbers are dropped first; 0: never */
};

/* Owned by the caller; `columns` must live as long. */
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

/* Writes `label` and `text`, in as many lines as that needs: broken at `separator`, each further line starting below
 * the text. */
void mr_top_write_wrapped(const char *label, const char *text, const char *separator, unsigned screen_columns,
                          FILE *out);

/* Puts the sections of `text` (separated by empty lines; it is cut into pieces) on that many rows. Where they do not
 * fit: without the last `optional` ones; then without the empty lines; then with "and 7 more" for rows of the longest
 * section other than the first. 0 or -1 (NO_MEMORY). */
int mr_top_put_screen(char *text, unsigned optional, unsigned rows, unsigned screen_columns, FILE *out);

#endif
