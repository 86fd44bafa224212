/* suite.h - the end of a unit test's main: runs one test case under check. */
#ifndef MR_TESTS_UNIT_SUITE_H
#define MR_TESTS_UNIT_SUITE_H

#include <check.h>
#include <stdlib.h>

/* The exit status of main. */
static inline int mr_suite_run(const char *name, TCase *tcase)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
