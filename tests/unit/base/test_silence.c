/* test_silence.c - what counts as silence: the other one's, and not our own. */
#include <check.h>

#include "base/clock.h"
#include "base/silence.h"
#include "tests/unit/suite.h"

#define LIMIT (10 * MR_SECOND_NS)

static struct mr_silence silence;
static int64_t now;

static int64_t look(int64_t later_ns, uint64_t sign)
{
    now += later_ns;
    return mr_silence_look(&silence, sign, now, LIMIT);
}

static void set_up(void)
{
    silence = (struct mr_silence){0};
    now = 1000 * MR_SECOND_NS;
}

START_TEST(silence_is_counted_from_the_last_change)
{
    ck_assert_int_eq(look(0, 7), 0);
    ck_assert_int_eq(look(MR_SECOND_NS, 7), MR_SECOND_NS);
    ck_assert_int_eq(look(MR_SECOND_NS, 7), 2 * MR_SECOND_NS);
    ck_assert_int_eq(look(MR_SECOND_NS, 8), 0);
    ck_assert_int_eq(look(MR_SECOND_NS, 8), MR_SECOND_NS);
    ck_assert_int_eq(look(MR_SECOND_NS, 7), 0); /* any change is one, the wrap too */
}
END_TEST

START_TEST(a_pause_of_ours_counts_little)
{
    look(0, 7);
    look(MR_SECOND_NS, 7);
    /* We were stopped for an hour, and the other one perhaps too. */
    ck_assert_int_eq(look(3600 * MR_SECOND_NS, 7), MR_SECOND_NS + LIMIT / 4);
    ck_assert_int_eq(look(MR_SECOND_NS, 8), 0);
    /* The clock does not go back; if it did, nothing would count. */
    ck_assert_int_eq(look(-5 * MR_SECOND_NS, 8), 0);
}
END_TEST

START_TEST(it_reaches_the_limit)
{
    look(0, 7);
    for (int i = 1; i < 100; i++)
        ck_assert_int_lt(look(LIMIT / 100, 7), LIMIT);
    ck_assert_int_eq(look(LIMIT / 100, 7), LIMIT);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("silence");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, silence_is_counted_from_the_last_change);
    tcase_add_test(tc, a_pause_of_ours_counts_little);
    tcase_add_test(tc, it_reaches_the_limit);
    return mr_suite_run("silence", tc);
}
