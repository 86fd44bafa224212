/* Words to values: spellings, wrong values and combinations, each without a request. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/verbs/arguments.h"

#define WORDS_MAX 48

static struct mr_arguments arguments;
static char *words[WORDS_MAX];
static char *line;

/* Parses a line that begins with the verb; its words are separated by single spaces. */
static int parse(const char *text)
{
    unsigned count = 0;
    free(line);
    char *rest;
    line = rest = strdup(text);
    memset(words, 0, sizeof words);
    while (rest && count + 1 < WORDS_MAX)
        words[count++] = strsep(&rest, " ");
    mr_arguments_close(&arguments);
    return mr_arguments_parse(&arguments, mr_verb_find(words[0]), words);
}

static void teardown(void)
{
    mr_arguments_close(&arguments);
    free(line);
    line = NULL;
}

START_TEST(test_spellings_of_an_option)
{
    static const char *const lines[] = {
        "check -c F", "check -cF", "check --config F", "check --config=F", "check --conf F", "check -v -c E --config=F",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        ck_assert_msg(parse(lines[i]) == 0, "%s: %s", lines[i], mr_error_text());
        ck_assert_str_eq(mr_arguments_text(&arguments, MR_OPT_CONFIG), "F");
        ck_assert_uint_eq(arguments.operand_count, 0);
    }
}
END_TEST

START_TEST(test_flags_stand_together_and_anywhere)
{
    static const char *const lines[] = {
        "ls -lr gs://b/x",   "ls -l -r gs://b/x",  "ls gs://b/x --long --recursive",
        "ls -r gs://b/x -l", "ls -lr -- gs://b/x",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        ck_assert_msg(parse(lines[i]) == 0, "%s: %s", lines[i], mr_error_text());
        ck_assert(mr_arguments_have(&arguments, MR_OPT_LONG) && mr_arguments_have(&arguments, MR_OPT_RECURSIVE));
        ck_assert(!mr_arguments_have(&arguments, MR_OPT_HUMAN) && !mr_arguments_have(&arguments, MR_OPT_JSON));
        ck_assert_uint_eq(arguments.operand_count, 1);
        ck_assert_str_eq(arguments.operands[0], "gs://b/x");
        ck_assert_ptr_null(arguments.operands[1]);
    }
    ck_assert_int_eq(parse("ls -vvq -v gs://b/x"), 0);
    ck_assert_int_eq(mr_arguments_verbosity(&arguments), 2);
}
END_TEST

START_TEST(test_h_is_help_unless_the_verb_has_another)
{
    ck_assert_int_eq(parse("cat -h"), 0);
    ck_assert(mr_arguments_have(&arguments, MR_OPT_HELP));
    ck_assert_int_eq(parse("ls -lh gs://b/"), 0);
    ck_assert(!mr_arguments_have(&arguments, MR_OPT_HELP) && mr_arguments_have(&arguments, MR_OPT_HUMAN));
    ck_assert_int_eq(parse("ls --help"), 0);
    ck_assert(mr_arguments_have(&arguments, MR_OPT_HELP));
}
END_TEST

START_TEST(test_a_command_keeps_its_own_options)
{
    ck_assert_int_eq(parse("run -c F python -c print --help"), 0);
    ck_assert_uint_eq(arguments.operand_count, 4);
    ck_assert_str_eq(arguments.operands[1], "-c");
    ck_assert_str_eq(mr_arguments_text(&arguments, MR_OPT_CONFIG), "F");
    ck_assert(!mr_arguments_have(&arguments, MR_OPT_HELP));
    ck_assert_int_eq(parse("run -- --help -- x"), 0);
    ck_assert_uint_eq(arguments.operand_count, 3);
    ck_assert_str_eq(arguments.operands[0], "--help");
    ck_assert_str_eq(arguments.operands[1], "--");
}
END_TEST

START_TEST(test_ranges)
{
    static const struct {
        const char *line;
        struct mr_byte_range range;
    } cases[] = {
        {"cat --range 3-9 gs://b/x", {false, 3, 9}},
        {"cat --range=5- gs://b/x", {false, 5, UINT64_MAX}},
        {"cat gs://b/x --range -7", {true, 0, 7}},
        {"cat --range 4-4 gs://b/x", {false, 4, 4}},
        {"cat --range 0-18446744073709551614 gs://b/x", {false, 0, UINT64_MAX - 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_msg(parse(cases[i].line) == 0, "%s: %s", cases[i].line, mr_error_text());
        const struct mr_byte_range *range = &arguments.values[MR_OPT_RANGE].range;
        ck_assert(range->is_suffix == cases[i].range.is_suffix);
        ck_assert_uint_eq(range->first, cases[i].range.first);
        ck_assert_uint_eq(range->last, cases[i].range.last);
    }
}
END_TEST

START_TEST(test_numbers)
{
    ck_assert_int_eq(parse("bench --steps 7 --batch-size 65536"), 0);
    ck_assert_uint_eq(mr_arguments_number(&arguments, MR_OPT_STEPS, 300), 7);
    ck_assert_uint_eq(mr_arguments_number(&arguments, MR_OPT_BATCH_SIZE, 32), 65536);
    ck_assert_uint_eq(mr_arguments_number(&arguments, MR_OPT_WORKERS, 0), 0);
    ck_assert_int_eq(parse("clean --older-than 0 gs://b"), 0);
    ck_assert_int_eq(parse("top --interval 0.5"), 0);
    ck_assert_double_eq(arguments.values[MR_OPT_INTERVAL].seconds, 0.5);
}
END_TEST

START_TEST(test_places)
{
    static const char *const lines[] = {
        "cp - gs://b/x",
        "cp gs://b/x -",
        "cp a b",
        "cp file:///a gs://b/",
        "cp ./-x gs://b/",
        "cp -- -x gs://b/",
        "ls x",
        "ls gs://b",
        "ls gcs://b/a//b?c",
        "rm -r gs://b",
        "doctor",
        "doctor gs://b gs://c/x",
        "index gs://b/x -o F",
        "index F",
        "index F --json",
        "compose gs://b/x gs://b/y",
        "compose gcs://b/x gs://b/y",
        "bench --dataset train",
        "bench --dataset gs://b/x",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(parse(lines[i]) == 0, "%s: %s", lines[i], mr_error_text());
}
END_TEST

static const struct {
    const char *line, *error; /* a part of it */
} wrong[] = {
    {"check --nonsense", "unknown option --nonsense"},
    {"check -x", "unknown option -x"},
    {"ls -lx gs://b/", "unknown option -x"},
    {"check -r", "unknown option -r"},
    {"stat --config F", "unknown option --config"},
    {"check -", "unexpected argument \"-\""},
    {"check --", NULL},
    {"bench --s 3", "--s is ambiguous: --steps or --socket"},
    {"ls --json=yes gs://b/", "--json takes no value"},
    {"check -c", "-c needs a value: -c FILE"},
    {"check --config", "--config needs a value: --config FILE"},
    {"check extra", "unexpected argument \"extra\""},
    {"ls", "an argument is missing: URI"},
    {"ls a b", "2 arguments, and at most 1 are allowed: URI"},
    {"cp a", "an argument is missing: SRC DST"},
    {"run", "an argument is missing"},
    {"run --", "an argument is missing"},
    {"compose gs://b/x", "an argument is missing: DST SRC..."},
    {"bench --steps 0", "--steps \"0\" is not a number from 1 to 4294967295"},
    {"bench --steps -1", "--steps \"-1\" is not a number"},
    {"bench --steps 7x", "--steps \"7x\" is not a number"},
    {"bench --steps ", "--steps \"\" is not a number"},
    {"bench --workers 257", "--workers \"257\" is not a number from 1 to 256"},
    {"bench --batch-size 99999999999999999999", "is not a number"},
    {"clean --older-than x gs://b", "--older-than \"x\" is not a number from 0 to 2147483647"},
    {"clean --older-than 2147483648 gs://b", "--older-than"},
    {"top --interval 0", "--interval \"0\" is not a number of seconds from 0.1 to 86400"},
    {"top --interval nan", "--interval"},
    {"cat --range 9-3 gs://b/x", "--range \"9-3\" ends before it starts"},
    {"cat --range 9 gs://b/x", "--range \"9\" is not A-B, A- or -N"},
    {"cat --range - gs://b/x", "is not A-B"},
    {"cat --range 1-2-3 gs://b/x", "is not A-B"},
    {"cat --range a-b gs://b/x", "is not A-B"},
    {"cat --range 1-99999999999999999999 gs://b/x", "is not A-B"},
    {"cat gs://b", "gs://b names no object"},
    {"cat gs://b/", "gs://b/ names no object"},
    {"ls gs://", "\"gs://\" names no bucket"},
    {"ls http://b/x", "the scheme is not gs, s3 or file"},
    {"ls file://x", "a file URI is file:///absolute/path"},
    {"ls ", "an empty URI"},
    {"doctor gs://b ftp://x", "the scheme is not"},
    {"cp gs://b/ x", "gs://b/ names no object"},
    {"cp x http://b/y", "the scheme is not"},
    {"rm gs://b", "gs://b names no object; -r deletes everything under it"},
    {"rm gs://b/x gs://b/", "gs://b/ names no object; -r"},
    {"compose gs://b/x gs://c/y", "gs://c/y and gs://b/x are not in one bucket"},
    {"compose gs://b/x gs://b/", "gs://b/ names no object"},
    {"index gs://b/x", "add -o FILE"},
    {"index gs://b/x -o -", "not written to standard output"},
    {"index gs://b/x -o gs://", "-o: \"gs://\" names no bucket"},
    {"index gs://b/x -o F --json", "--json and --output exclude each other"},
    {"index http://b/x -o F", "the scheme is not"},
    {"bench --dataset http://x", "--dataset: \"http://x\": the scheme is not"},
    {"bench -c F --socket S", "--config and --socket exclude each other"},
    {"stat --json --prometheus", "--json and --prometheus exclude each other"},
    {"ls -h --json gs://b/", "--human-readable and --json exclude each other"},
    {"clean --all --older-than 3 gs://b", "--older-than and --all exclude each other"},
    {"serve --run-dir D", "--run-dir needs --private"},
    {"completion fish", "there is no completion for \"fish\": bash or zsh"},
    {"help nothing", "there is no verb \"nothing\""},
};

START_TEST(test_what_is_wrong)
{
    const char *text = wrong[_i].line, *error = wrong[_i].error;
    int rc = parse(text);
    if (!error) {
        ck_assert_msg(rc == 0, "%s: %s", text, mr_error_text());
        return;
    }
    ck_assert_msg(rc == -1, "%s is taken", text);
    ck_assert_msg(strstr(mr_error_text(), error) != NULL, "%s: %s", text, mr_error_text());
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_int_eq(mr_code_exit_status(mr_error_code()), 2);
}
END_TEST

START_TEST(test_compose_takes_32_sources)
{
    char text[1024] = "compose gs://b/x";
    for (unsigned i = 0; i < MR_COMPOSE_SOURCES_MAX; i++)
        strcat(text, " gs://b/y");
    ck_assert_int_eq(parse(text), 0);
    strcat(text, " gs://b/y");
    ck_assert_int_eq(parse(text), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "34 arguments, and at most 33 are allowed: DST SRC..."));
}
END_TEST

START_TEST(test_options_that_were_read_before_an_error_are_kept)
{
    ck_assert_int_eq(parse("ls --json gs://"), -1);
    ck_assert(mr_arguments_have(&arguments, MR_OPT_JSON)); /* decides how the error is printed */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arguments");
    TCase *tests = tcase_create("parse");
    tcase_add_checked_fixture(tests, NULL, teardown);
    tcase_add_test(tests, test_spellings_of_an_option);
    tcase_add_test(tests, test_flags_stand_together_and_anywhere);
    tcase_add_test(tests, test_h_is_help_unless_the_verb_has_another);
    tcase_add_test(tests, test_a_command_keeps_its_own_options);
    tcase_add_test(tests, test_ranges);
    tcase_add_test(tests, test_numbers);
    tcase_add_test(tests, test_places);
    tcase_add_loop_test(tests, test_what_is_wrong, 0, sizeof wrong / sizeof wrong[0]);
    tcase_add_test(tests, test_compose_takes_32_sources);
    tcase_add_test(tests, test_options_that_were_read_before_an_error_are_kept);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
