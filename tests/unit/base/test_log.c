/* test_log.c - a standard error that takes nothing: lines are kept, then lost and counted; nobody waits. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_sink.h"

static int saved;
static int ends[2];

/* Descriptor 2 is the write end of a pipe, or one end of a socket pair. */
static void replace(bool socket)
{
    saved = dup(STDERR_FILENO);
    if (socket)
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    else
        ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    mr_log_init("test", MR_LOG_INFO);
}

static void restore(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
}

/* Reads what there is, until `end` was seen where it is not NULL. */
static char *drain(const char *end)
{
    char *text = calloc(1, 1 << 22);
    size_t used = 0;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    for (unsigned empty = 0; empty < 3 && !(end && strstr(text, end));) {
        ssize_t n = read(ends[0], text + used, (1 << 22) - 1 - used);
        used += n > 0 ? (size_t)n : 0;
        empty = n > 0 ? 0 : empty + 1;
        mr_log_flush();
    }
    return text;
}

static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        n++;
    return n;
}

/* One call is one line, whatever a server or a name has in it. */
START_TEST(a_line_has_no_control_characters)
{
    replace(false);
    mr_log(MR_LOG_WARNING, "the store says: %s", "x\nmillrace[supervisor] error: y\x1b[2J");
    char *text = drain("y?[2J");
    restore();
    ck_assert_str_eq(text, "millrace[test] warning: the store says: x millrace[supervisor] error: y?[2J\n");
    free(text);
}
END_TEST

/* Ten, and later one more that says how many there were. */
START_TEST(lines_of_a_kind_have_a_limit)
{
    struct mr_log_limit limit = {0}, other = {0};
    char name[1400];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    replace(false);
    for (unsigned i = 0; i < 1010; i++)
        mr_log_limited(&limit, MR_LOG_WARNING, "cannot read object %u", i);
    mr_log_limited(&other, MR_LOG_WARNING, "another kind");
    mr_log_limited(&other, MR_LOG_DEBUG, "not at this level");
    limit.spent_ns -= INT64_C(10000000000); /* 10 s later */
    for (unsigned i = 0; i < 2; i++)
        mr_log_limited(&limit, MR_LOG_WARNING, "cannot read %s", name);
    mr_log_info("end");
    char *text = drain("end\n");
    restore();
    ck_assert_uint_eq(count(text, "cannot read object "), 10);
    ck_assert(strstr(text, "cannot read object 9\nmillrace[test] warning: another kind\n"));
    ck_assert_uint_eq(count(text, "cannot read nnn"), 1);
    ck_assert(strstr(text, "nnn (before it, 1000 more of the kind)\nmillrace[test] info: end\n"));
    ck_assert_uint_eq(limit.left_out, 1);
    ck_assert_uint_eq(other.left_out, 0);
    free(text);
}
END_TEST

START_TEST(a_full_pipe_is_not_waited_for)
{
    replace(_i == 1);
    for (unsigned i = 0; i < 20000; i++) /* far more than a pipe and what is kept */
        mr_log_info("line %u", i);
    ck_assert(!mr_log_flush());
    ck_assert_int_eq(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0); /* others share it */
    char *text = drain("were lost while standard error was blocked");
    ck_assert(mr_log_flush());
    unsigned lines = count(text, "info: line "), lost = (unsigned)atoi(strstr(text, "\nmillrace: ") + 11);
    ck_assert_uint_eq(lines + lost, 20000);
    ck_assert_uint_gt(lines, LOG_SINK_BYTES / 40);
    for (unsigned i = 0; i < lines; i++) { /* whole, and the first ones */
        char line[60];
        snprintf(line, sizeof line, "millrace[test] info: line %u\n", i);
        ck_assert(strstr(text, line));
    }
    free(text);
    mr_log_info("afterwards");
    text = drain(NULL);
    ck_assert_str_eq(text, "millrace[test] info: afterwards\n");
    free(text);
    restore();
}
END_TEST

START_TEST(a_forked_child_does_not_repeat_what_its_parent_keeps)
{
    replace(false);
    for (unsigned i = 0; i < 5000; i++)
        mr_log_info("line %u", i);
    pid_t pid = fork();
    if (pid == 0) {
        mr_log_flush();
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    char *text = drain("were lost");
    ck_assert_uint_eq(count(text, "line 4\n"), 1);
    ck_assert_uint_eq(count(text, "line 1800\n"), 1); /* from what was kept */
    free(text);
    restore();
}
END_TEST

START_TEST(nobody_reads)
{
    replace(false);
    mr_log_info("first");
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    for (unsigned i = 0; i < 20000; i++)
        mr_log_info("line %u", i);
    restore();
    mr_log_info("there is another standard error now");
    ck_assert(mr_log_flush());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tc = tcase_create("blocked");
    tcase_add_loop_test(tc, a_full_pipe_is_not_waited_for, 0, 2);
    tcase_add_test(tc, a_line_has_no_control_characters);
    tcase_add_test(tc, lines_of_a_kind_have_a_limit);
    tcase_add_test(tc, a_forked_child_does_not_repeat_what_its_parent_keeps);
    tcase_add_test(tc, nobody_reads);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
