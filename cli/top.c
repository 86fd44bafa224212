/*
 * top.c - `millrace top`: the supervisor's statistics at intervals, with rates between two readings: a screen on a
 * terminal, otherwise one line per reading.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/process.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/json_get.h"
#include "cli/top_impl.h"

#define SCREEN_ON  "\033[?1049h\033[?25l" /* the alternate screen, without a cursor */
#define SCREEN_OFF "\033[?25h\033[?1049l"

#define FIRST_NS (MR_SECOND_NS / 4)

static volatile sig_atomic_t ended;   /* the signal */
static volatile sig_atomic_t stopped; /* Ctrl-Z */
static sigset_t ending;               /* signals that end us: not those that were ignored at the start (nohup) */

static void top_on_signal(int number)
{
    if (number == SIGTSTP)
        stopped = number;
    else if (number != SIGWINCH)
        ended = number;
}

/* Ends the wait for a supervisor that does not answer: a signal that will end us has come, and is blocked. */
static bool top_is_to_end(void)
{
    sigset_t pending, both;
    sigpending(&pending);
    sigandset(&both, &pending, &ending);
    return !sigisemptyset(&both);
}

/* 0, or -1 with mr_error, when both readings stay as they are. */
static int read_statistics(struct mr_top *top)
{
    char *text = mr_client_stat(top->client);
    json_t *now = text ? mr_json_parse_stat(text) : NULL;
    free(text);
    if (!now)
        return -1;
    mr_json_make_printable(now);
    json_decref(top->before);
    top->before = top->now;
    top->before_ns = top->now_ns;
    top->now = now;
    top->now_ns = mr_clock_mono_ns();
    return 0;
}

/* Signals are delivered only here: none is missed before it. timeout NULL: for ever. Else as ppoll. */
static int top_poll(struct pollfd *waits, const struct timespec *timeout)
{
    sigset_t none;
    sigemptyset(&none);
    return ppoll(waits, 1, timeout, &none);
}

/* Waits for a reader, or a terminal, that takes nothing at the moment; hears signals meanwhile. False: one ends us. */
static bool await_output(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    while (!ended && top_poll(&out, NULL) < 0 && errno == EINTR)
        ;
    return !ended;
}

static int top_show(const struct mr_top *top)
{
    int rc = 0;
    if (!await_output())
        return 0;
    if (top->screen)
        rc = mr_top_draw(top);
    else
        mr_top_print_line(top);
    return rc == 0 ? mr_process_flush() : rc;
}

/* ---- the terminal ---- */

/* A background job must not take the terminal's keys: it would be stopped. */
static void take_terminal(struct mr_top *top)
{
    top->keys = top->screen && tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &top->saved) == 0;
    if (top->keys) {
        struct termios raw = top->saved;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    if (top->screen)
        fputs(SCREEN_ON, stdout);
}

static void give_terminal_back(const struct mr_top *top)
{
    if (top->screen) {
        fputs(SCREEN_OFF, stdout);
        fflush(stdout);
    }
    if (top->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &top->saved);
}

/* Ctrl-Z: stops with the terminal as it was before, and returns when continued. */
static void top_stop(struct mr_top *top)
{
    stopped = 0;
    give_terminal_back(top);
    mr_process_stop();
    if (top->keys) /* in the background (bg) this stops us again, until the terminal is ours (fg) */
        tcsetattr(STDIN_FILENO, TCSANOW, &top->saved);
    take_terminal(top);
}

/* ---- readings ---- */

/* Waits until the time has come, q is pressed, a signal ends us, or the screen has to be drawn anew; true only for the
 * last. Where the time is over already it still sees keys and signals. */
static bool rest(struct mr_top *top, int64_t until_ns)
{
    while (!ended) {
        if (stopped) {
            top_stop(top);
            return true;
        }
        struct pollfd keys = {.fd = top->keys ? STDIN_FILENO : -1, .events = POLLIN};
        int64_t left_ns = until_ns - mr_clock_mono_ns();
        if (left_ns < 0)
            left_ns = 0;
        struct timespec left = {left_ns / MR_SECOND_NS, left_ns % MR_SECOND_NS};
        int ready = top_poll(&keys, &left);
        char key = 0;
        if (ready == 0)
            return false;
        if (ready < 0 && !stopped)
            return !ended; /* EINTR */
        if (ready > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
            ended = SIGINT;
    }
    return false;
}

/* Rates need two readings: takes one that is not shown, a moment before the first that is. */
static int read_first(struct mr_top *top, int64_t interval_ns)
{
    if (read_statistics(top) != 0)
        return -1;
    int64_t due_ns = mr_clock_mono_ns() + (interval_ns < FIRST_NS ? interval_ns : FIRST_NS);
    while (rest(top, due_ns))
        ;
    return 0;
}

static int top_run(struct mr_top *top, int64_t interval_ns, uint64_t count)
{
    if (read_first(top, interval_ns) != 0)
        return -1;
    int64_t due_ns = mr_clock_mono_ns();
    for (uint64_t done = 0; !ended && (count == 0 || done < count); done++) {
        if (read_statistics(top) != 0 || top_show(top) != 0)
            return -1;
        if (done + 1 == count)
            break;
        int64_t now_ns = mr_clock_mono_ns();
        due_ns = due_ns + interval_ns > now_ns ? due_ns + interval_ns : now_ns; /* what is missed is not made up for */
        while (rest(top, due_ns))
            if (top_show(top) != 0)
                return -1;
    }
    return 0;
}

/* Blocks signals outside top_poll(), and takes over the terminal's screen and keys until top_end. */
static void top_begin(struct mr_top *top)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigemptyset(&ending);
    top->screen = isatty(STDOUT_FILENO) == 1;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i] == SIGTSTP && !top->screen)
            continue;
        if (!mr_process_catch(numbers[i], top_on_signal, 0))
            continue;
        sigaddset(&blocked, numbers[i]);
        if (numbers[i] != SIGWINCH && numbers[i] != SIGTSTP)
            sigaddset(&ending, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    mr_client_set_interrupt(top->client, top_is_to_end);
    take_terminal(top);
}

static void top_end(struct mr_top *top)
{
    give_terminal_back(top);
    json_decref(top->now);
    json_decref(top->before);
    mr_client_destroy(top->client);
}

int mr_cli_top(const struct mr_arguments *arguments)
{
    struct mr_top top = {.client = mr_cli_connect(arguments)};
    if (!top.client)
        return mr_cli_fail();
    double interval_s = mr_arguments_have(arguments, MR_OPT_INTERVAL) ? arguments->values[MR_OPT_INTERVAL].seconds : 1;
    top_begin(&top);
    int rc = top_run(&top, (int64_t)(interval_s * 1e9), mr_arguments_number(arguments, MR_OPT_COUNT, 0));
    top_end(&top);
    return rc == 0 || top_is_to_end() ? 0 : mr_cli_fail();
}
