/* The help of each verb as it is printed: its parts, its width, and what it leaves out. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/help.h"

static char *text;

/* What a function prints. */
static void print(void (*help)(const struct mr_verb *verb, FILE *out), const struct mr_verb *verb)
{
    free(text);
    size_t size;
    FILE *out = open_memstream(&text, &size);
    help(verb, out);
    fclose(out);
}

static void teardown(void)
{
    free(text);
    text = NULL;
}

START_TEST(test_each_verb)
{
    const struct mr_verb *verb = mr_verb((enum mr_verb_id)_i);
    print(mr_help_verb, verb);
    char start[64];
    snprintf(start, sizeof start, "usage: millrace %s", verb->name);
    ck_assert(strncmp(text, start, strlen(start)) == 0);
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++) {
        char name[64];
        snprintf(name, sizeof name, " --%s", mr_option(option->id)->name);
        ck_assert_msg((strstr(text, name) == NULL) == option->hidden, "%s%s", verb->name, name);
    }
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(length <= 100, "%s: %.*s", verb->name, (int)length, line);
        ck_assert_msg(length == 0 || line[length - 1] != ' ', "%s: %.*s|", verb->name, (int)length, line);
    }
}
END_TEST

START_TEST(test_options_have_columns)
{
    print(mr_help_verb, mr_verb(MR_VERB_CLEAN));
    ck_assert_ptr_nonnull(strstr(text, "\n  -n, --dry-run             list only"));
    ck_assert_ptr_nonnull(strstr(text, "\n      --older-than SECONDS  the least age"));
    ck_assert_ptr_nonnull(strstr(text, "\n  -h, --help                show"));
    ck_assert_ptr_nonnull(strstr(text, "\n                            ")); /* a text of two lines */
    ck_assert_ptr_nonnull(strstr(text, "\n\ngs://BUCKET/PREFIX, s3:"));    /* a paragraph of its own */
}
END_TEST

START_TEST(test_ls_leaves_its_h_to_the_sizes)
{
    print(mr_help_verb, mr_verb(MR_VERB_LS));
    ck_assert_ptr_nonnull(strstr(text, "\n  -h, --human-readable "));
    ck_assert_ptr_nonnull(strstr(text, "\n      --help "));
    print(mr_help_usage, mr_verb(MR_VERB_LS));
    ck_assert_str_eq(text, "usage: millrace ls [-l] [-r] [-h] [--limit N] [--json] [-c FILE] URI\n");
}
END_TEST

START_TEST(test_a_long_usage_goes_on_in_the_next_line)
{
    print(mr_help_usage, mr_verb(MR_VERB_BENCH));
    ck_assert_ptr_nonnull(strstr(text, "\n                      ["));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("help");
    TCase *tests = tcase_create("text");
    tcase_add_checked_fixture(tests, NULL, teardown);
    tcase_add_loop_test(tests, test_each_verb, 0, MR_VERBS);
    tcase_add_test(tests, test_options_have_columns);
    tcase_add_test(tests, test_ls_leaves_its_h_to_the_sizes);
    tcase_add_test(tests, test_a_long_usage_goes_on_in_the_next_line);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
