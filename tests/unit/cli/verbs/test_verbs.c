/* The table of verbs holds together: what is printed and parsed from it relies on this. */
#include <check.h>
#include <ctype.h>
#include <string.h>

#include "cli/verbs/verbs.h"

START_TEST(test_a_verb)
{
    const struct mr_verb *verb = mr_verb((enum mr_verb_id)_i);
    ck_assert_int_eq(verb->id, _i);
    ck_assert_ptr_eq(mr_verb_find(verb->name), verb);
    ck_assert(strlen(verb->summary) > 0 && strlen(verb->summary) <= 60 && !strchr(verb->summary, '\n'));
    size_t length = strlen(verb->about);
    ck_assert(length > 0 && verb->about[length - 1] == '.');
    for (const char *at = verb->about; (at = strchr(at, '\n')); at += 2)
        ck_assert_msg(at[1] == '\n' && at[2] != '\n', "%s: a line break within a paragraph", verb->name);
    ck_assert(verb->operands_min <= verb->operands_max);
    ck_assert((verb->operands != NULL) == (verb->operands_max > 0));
    ck_assert((verb->operand_type != MR_VALUE_NONE) == (verb->operands_max > 0));
}
END_TEST

static bool takes(const struct mr_verb *verb, enum mr_option_id id)
{
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++)
        if (option->id == id)
            return true;
    return false;
}

START_TEST(test_the_options_of_a_verb)
{
    const struct mr_verb *verb = mr_verb((enum mr_verb_id)_i);
    const struct mr_verb_option *option;
    bool letters[256] = {false}, seen[MR_OPTIONS] = {false};
    unsigned count = 0;
    for (unsigned i = 0; (option = mr_verb_option(verb, i)); i++, count++) {
        unsigned char letter = (unsigned char)mr_verb_option_letter(verb, option);
        ck_assert(option->id > MR_OPT_NONE && option->id < MR_OPTIONS);
        ck_assert_msg(!seen[option->id], "%s takes --%s twice", verb->name, mr_option(option->id)->name);
        seen[option->id] = true;
        ck_assert_msg(letter == 0 || !letters[letter], "%s takes -%c twice", verb->name, letter);
        letters[letter] = true;
        ck_assert_msg(option->excludes == MR_OPT_NONE || takes(verb, option->excludes), "%s --%s excludes", verb->name,
                      mr_option(option->id)->name);
        ck_assert_msg(option->needs == MR_OPT_NONE || takes(verb, option->needs), "%s --%s needs", verb->name,
                      mr_option(option->id)->name);
        ck_assert(strlen(mr_verb_option_help(option)) > 0 && !strchr(mr_verb_option_help(option), '\n'));
    }
    ck_assert(seen[MR_OPT_HELP] && mr_verb_option(verb, count) == NULL);
}
END_TEST

START_TEST(test_an_option)
{
    const struct mr_option *option = mr_option((enum mr_option_id)_i);
    ck_assert(option->name && strlen(option->name) > 1 && option->help);
    for (const char *at = option->name; *at != '\0'; at++)
        ck_assert(islower((unsigned char)*at) || *at == '-');
    ck_assert((option->type != MR_VALUE_NONE) == (option->value != NULL));
    ck_assert(option->type != MR_VALUE_NUMBER || option->min < option->max);
    bool taken = _i == MR_OPT_HELP;
    for (unsigned i = 0; i < MR_VERBS; i++)
        taken = taken || takes(mr_verb((enum mr_verb_id)i), (enum mr_option_id)_i);
    ck_assert_msg(taken, "no verb takes --%s", option->name);
    for (int other = MR_OPT_NONE + 1; other < _i; other++)
        ck_assert_str_ne(mr_option((enum mr_option_id)other)->name, option->name);
}
END_TEST

START_TEST(test_unknown_names)
{
    ck_assert_ptr_null(mr_verb_find(""));
    ck_assert_ptr_null(mr_verb_find("lsx"));
    ck_assert_ptr_null(mr_verb_find("--help"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verbs");
    TCase *tests = tcase_create("table");
    tcase_add_loop_test(tests, test_a_verb, 0, MR_VERBS);
    tcase_add_loop_test(tests, test_the_options_of_a_verb, 0, MR_VERBS);
    tcase_add_loop_test(tests, test_an_option, MR_OPT_NONE + 1, MR_OPTIONS);
    tcase_add_test(tests, test_unknown_names);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
