#include "worker/store/auth_program.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "worker/store/auth_call.h"

#define POLL_MS   20
#define WORDS_MAX 64

extern char **environ;

static void wipe(struct mr_auth_program *program)
{
    if (program->output)
        OPENSSL_cleanse(program->output, MR_AUTH_TOKEN_MAX + 1);
    free(program->output);
    program->output = NULL;
    program->output_length = 0;
}

static void poll_again(struct mr_auth_program *program)
{
    mr_http_timer_set(program->http, &program->timer, mr_clock_mono_ns() + POLL_MS * MR_MILLISECOND_NS);
}

/* Calls done, which may start the program again: then its new output is kept. */
static void auth_program_finish(struct mr_auth_program *program, int status)
{
    program->pid = 0;
    close(program->fd);
    program->output[program->output_length] = 0;
    int rc = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        mr_error_set(MR_E_DENIED, "%s ended with %s %d: run it by hand to see why", program->name,
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        rc = -1;
    }
    program->done(program, rc);
    if (program->pid == 0)
        wipe(program);
}

/* Reads what the program has printed. Calls done once it has ended, is late, or has printed too much; the latter two
 * kill it. */
static void run_poll(struct mr_http_timer *timer)
{
    struct mr_auth_program *program = MR_CONTAINER_OF(timer, mr_auth_program, timer);
    siginfo_t info = {0};
    /* Before the last read: all that it wrote is there. It is not reaped yet: its number is still its group's. */
    bool ended = waitid(P_PID, (id_t)program->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    int status;
    ssize_t got;
    while (program->output_length < MR_AUTH_TOKEN_MAX &&
           (got = read(program->fd, program->output + program->output_length,
                       MR_AUTH_TOKEN_MAX - program->output_length)) > 0)
        program->output_length += (size_t)got;
    bool late = mr_clock_mono_ns() >= program->deadline_ns, full = program->output_length == MR_AUTH_TOKEN_MAX;
    if (!ended && !late && !full) {
        poll_again(program);
        return;
    }
    if (ended && !full && waitpid(program->pid, &status, 0) == program->pid) {
        auth_program_finish(program, status);
        return;
    }
    mr_auth_program_stop(program);
    if (full)
        mr_error_set(MR_E_DENIED, "%s printed %u bytes or more", program->name, MR_AUTH_TOKEN_MAX);
    else
        mr_error_set(MR_E_DENIED, "%s did not end within %u ms", program->name, program->timeout_ms);
    program->done(program, -1);
}

/* 0, or an errno. Sets program->pid. */
static int spawn(struct mr_auth_program *program, char **words, char **environment, int out)
{
    sigset_t none;
    sigemptyset(&none);
    sigset_t all;
    sigfillset(&all);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0); /* the token may be in it */
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0); /* it is ended with all that it started */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    pid_t pid;
    int rc = posix_spawnp(&pid, words[0], &actions, &attributes, words, environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (rc == 0)
        program->pid = pid;
    return rc;
}

/* The next word from *at, unquoted in place; NULL if a quote is left open. */
static char *take_word(char **at)
{
    char *from = *at, *to = from, *word = from, quote = 0;
    for (; *from && (quote || !strchr(" \t\r\n", *from)); from++) {
        if (*from == '\\' && quote != '\'' && from[1] && (!quote || strchr("\"\\", from[1])))
            *to++ = *++from;
        else if (quote ? *from == quote : *from == '"' || *from == '\'')
            quote = quote ? 0 : *from;
        else
            *to++ = *from;
    }
    *at = *from ? from + 1 : from;
    *to = 0;
    return quote ? NULL : word;
}

int mr_auth_split_words(char *text, char **words, int max)
{
    int count = 0;
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (!*text)
            break;
        if (count == max || !(words[count] = take_word(&text)))
            return -1;
        count++;
    }
    words[count] = NULL;
    return count;
}

static bool is_added(const char *variable, const char *added, size_t added_length)
{
    size_t name = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < added_length; i += strlen(added + i) + 1) {
        if (strncmp(added + i, variable, name) == 0)
            return true;
    }
    return false;
}

/* The program's environment; NULL: no memory. The caller frees the array, but not its strings. */
static char **make_environment(const char *added, size_t added_length)
{
    size_t count = 1, at = 0;
    for (size_t i = 0; i < added_length; i += strlen(added + i) + 1)
        count++;
    for (size_t i = 0; environ[i]; i++)
        count++;
    char **strings = calloc(count, sizeof *strings);
    if (!strings)
        return NULL;
    for (size_t i = 0; i < added_length; i += strlen(added + i) + 1)
        strings[at++] = (char *)added + i;
    for (size_t i = 0; environ[i]; i++) {
        if (!is_added(environ[i], added, added_length))
            strings[at++] = environ[i];
    }
    return strings;
}

/* copy: of the command; it is overwritten. */
static int auth_program_start(struct mr_auth_program *program, char *copy, char **environment)
{
    char *words[WORDS_MAX + 1];
    int pipe_fds[2] = {-1, -1}, count = mr_auth_split_words(copy, words, WORDS_MAX);
    if (count <= 0) {
        mr_error_set(MR_E_DENIED, "%s: its command %s", program->name,
                     count == 0 ? "is empty" : "has a quote that is left open, or too many words");
        return -1;
    }
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0 || fcntl(pipe_fds[1], F_SETFL, 0) != 0) {
        mr_error_set_errno(errno, "cannot make a pipe to %s", program->name);
        if (pipe_fds[0] >= 0) {
            close(pipe_fds[0]);
            close(pipe_fds[1]);
        }
        return -1;
    }
    int error = spawn(program, words, environment, pipe_fds[1]);
    close(pipe_fds[1]);
    if (error != 0) {
        mr_error_set(MR_E_DENIED, "%s %.200s cannot be run: %s", program->name, words[0], strerror(error));
        close(pipe_fds[0]);
        return -1;
    }
    program->fd = pipe_fds[0];
    return 0;
}

int mr_auth_program_start(struct mr_auth_program *program, struct mr_http *http, const char *command, const char *added,
                          size_t added_length)
{
    wipe(program);
    program->http = http;
    program->output = malloc(MR_AUTH_TOKEN_MAX + 1);
    char *copy = strdup(command), **environment = make_environment(added, added_length);
    int rc = -1;
    if (!program->output || !copy || !environment)
        mr_error_set(MR_E_NO_MEMORY, "no memory for %s", program->name);
    else
        rc = auth_program_start(program, copy, environment);
    free(environment);
    free(copy);
    if (rc != 0) {
        wipe(program);
        return -1;
    }
    program->deadline_ns = mr_clock_mono_ns() + program->timeout_ms * MR_MILLISECOND_NS;
    program->timer.run = run_poll;
    poll_again(program);
    return 0;
}

void mr_auth_program_stop(struct mr_auth_program *program)
{
    if (program->pid > 0) {
        mr_http_timer_stop(program->http, &program->timer);
        kill(-program->pid, SIGKILL);
        while (waitpid(program->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        close(program->fd);
    }
    program->pid = 0;
    wipe(program);
}
