/* What `millrace top` leaves out where the terminal is small. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cli/top_screen.h"
#include "tests/unit/suite.h"

static char *seen;
static size_t seen_size;
static FILE *out;

static void setup(void)
{
    out = open_memstream(&seen, &seen_size);
}

static void teardown(void)
{
    free(seen);
}

/* As written, without what moves the cursor. */
static const char *written(void)
{
    fclose(out);
    char *to = seen;
    for (const char *from = seen; *from != '\0';) {
        if (*from == '\033')
            from += strcspn(from, "HKJ") + 1;
        else
            *to++ = *from++;
    }
    *to = '\0';
    return seen;
}

static void put(const char *text, unsigned optional, unsigned rows, unsigned columns)
{
    char *ours = strdup(text);
    ck_assert_int_eq(mr_top_put_screen(ours, optional, rows, columns, out), 0);
    free(ours);
}

#define TEXT "head\nlimit\n\nrank\n0\n1\n\nworker\na\nb\nc\nd\n"

START_TEST(all_of_it)
{
    put(TEXT "\nloader\n0\n", 1, 16, 20);
    ck_assert_str_eq(written(), "head\nlimit\n\nrank\n0\n1\n\nworker\na\nb\nc\nd\n\nloader\n0");
}
END_TEST

START_TEST(without_what_is_more)
{
    put(TEXT "\nloader\n0\n", 1, 14, 20);
    ck_assert_str_eq(written(), "head\nlimit\n\nrank\n0\n1\n\nworker\na\nb\nc\nd");
}
END_TEST

START_TEST(without_empty_lines)
{
    put(TEXT, 0, 10, 20);
    ck_assert_str_eq(written(), "head\nlimit\nrank\n0\n1\nworker\na\nb\nc\nd");
}
END_TEST

START_TEST(the_longest_section_is_shortened)
{
    put(TEXT, 0, 8, 20);
    ck_assert_str_eq(written(), "head\nlimit\nrank\n0\n1\nworker\na\nand 3 more");
}
END_TEST

START_TEST(no_more_can_be_left_out)
{
    put(TEXT, 0, 6, 20);
    ck_assert_str_eq(written(), "head\nlimit\nrank\n0\n1\n...");
}
END_TEST

/* Characters of several bytes are one; what a name brings along moves nothing. */
START_TEST(lines_are_cut)
{
    put("\xc3\xa4"
        "bcde\n\x1b[2Jxyz\n",
        0, 9, 4);
    ck_assert_str_eq(written(), "\xc3\xa4"
                                "bcd\n?[2J");
}
END_TEST

static const struct mr_top_column COLUMNS[] = {{"name", -6, 0}, {"pid", 5, 2}, {"rate", 5, 1}};

static void table(unsigned columns)
{
    struct mr_top_table table;
    mr_top_table_begin(&table, COLUMNS, 3, columns, out);
    mr_top_cell(&table, "%s", "a\nb");
    mr_top_cell(&table, "%d", 17);
    mr_top_cell(&table, "%.1f", 2.5);
}

START_TEST(a_table)
{
    table(18);
    ck_assert_str_eq(written(), "\nname     pid  rate\na?b       17   2.5\n");
}
END_TEST

START_TEST(columns_that_fit)
{
    table(17);
    table(11);
    ck_assert_str_eq(written(), "\nname    rate\na?b      2.5\n\nname  \na?b   \n");
}
END_TEST

/* Where the first column goes, the row begins with the next one, and is as wide as was counted. */
START_TEST(the_first_column_does_not_fit)
{
    static const struct mr_top_column shown[] = {{"number", 6, 1}, {"name", -6, 0}, {"rate", 5, 0}};
    struct mr_top_table made;
    mr_top_table_begin(&made, shown, 3, 12, out);
    mr_top_cell(&made, "%d", 17);
    mr_top_cell(&made, "%s", "a");
    mr_top_cell(&made, "%.1f", 2.5);
    ck_assert_str_eq(written(), "\nname    rate\na        2.5\n");
}
END_TEST

START_TEST(wrapped)
{
    mr_top_write_wrapped("label ", "one two   three   four", "   ", 20, out);
    mr_top_write_wrapped("label ", "longer-than-the-screen   b", "   ", 10, out);
    ck_assert_str_eq(written(), "label one two\n      three   four\nlabel longer-than-the-screen\n      b\n");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("top_screen");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_of_it);
    tcase_add_test(tc, without_what_is_more);
    tcase_add_test(tc, without_empty_lines);
    tcase_add_test(tc, the_longest_section_is_shortened);
    tcase_add_test(tc, no_more_can_be_left_out);
    tcase_add_test(tc, lines_are_cut);
    tcase_add_test(tc, a_table);
    tcase_add_test(tc, columns_that_fit);
    tcase_add_test(tc, the_first_column_does_not_fit);
    tcase_add_test(tc, wrapped);
    return mr_suite_run("top_screen", tc);
}
