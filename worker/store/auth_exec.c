/*
 * auth_exec.c - a subject token from a program (https://google.aip.dev/auth/4117, executable-sourced credentials). It
 * runs beside the loop: its output is polled from a timer, and it is ended when its time is over.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/container.h"
#include "shm/base/error.h"
#include "worker/store/auth_impl.h"

#define POLL_MS        20
#define TIMEOUT_MS     30000
#define TIMEOUT_MIN_MS 5000
#define TIMEOUT_MAX_MS 120000
#define WORDS_MAX      64

extern char **environ;

/* ---- the answer ---- */

/* The token in text, which is overwritten, or NULL with mr_error. */
static const char *parse(const struct mr_auth_file *file, char *text, size_t length, bool from_file)
{
    struct mr_auth_member members[] = {{"version", NULL},  {"success", NULL},       {"token_type", NULL},
                                       {"id_token", NULL}, {"saml_response", NULL}, {"expiration_time", NULL},
                                       {"code", NULL},     {"message", NULL}};
    if (mr_auth_members(text, length, members, 8) != 0 || !members[0].value || !members[1].value) {
        mr_error_set(MR_E_DENIED, "what the credentials executable printed is not JSON with \"version\" and "
                                  "\"success\"");
        return NULL;
    }
    if (strcmp(members[0].value, "1") != 0) {
        mr_error_set(MR_E_DENIED, "the credentials executable answers in version %.10s; 1 is known", members[0].value);
        return NULL;
    }
    char quoted[200];
    if (strcmp(members[1].value, "true") != 0) {
        const char *message = members[7].value ? members[7].value : "it does not say why";
        mr_text_quote(quoted, sizeof quoted, message, strlen(message));
        mr_error_set(MR_E_DENIED, "the credentials executable failed: %.40s: %s",
                     members[6].value ? members[6].value : "no code", quoted);
        return NULL;
    }
    const char *type = members[2].value;
    if (!type || strcmp(type, file->subject_token_type) != 0) {
        mr_error_set(MR_E_DENIED, "the credentials executable gives a token of type %.80s; subject_token_type is %.80s",
                     type ? type : "(none)", file->subject_token_type);
        return NULL;
    }
    const char *expires = members[5].value;
    if (!expires && file->from.output_file) {
        mr_error_set(MR_E_DENIED, "the credentials executable gives no \"expiration_time\", which output_file needs");
        return NULL;
    }
    if (expires && strtoll(expires, NULL, 10) <= mr_clock_wall_ns() / MR_SECOND_NS) {
        mr_error_set(MR_E_DENIED, "the token of the credentials executable has expired%s",
                     from_file ? "" : " already (is the machine's clock right?)");
        return NULL;
    }
    const char *token =
        strcmp(type, "urn:ietf:params:oauth:token-type:saml2") == 0 ? members[4].value : members[3].value;
    if (!token || !token[0]) {
        mr_error_set(MR_E_DENIED, "the credentials executable says success and gives no token");
        return NULL;
    }
    return token;
}

static void wipe(struct mr_auth_subject *subject)
{
    if (subject->output)
        OPENSSL_cleanse(subject->output, MR_AUTH_TOKEN_MAX + 1);
    free(subject->output);
    subject->output = NULL;
    subject->output_length = 0;
}

/* A token that an earlier run left in output_file and that is still good. */
static const char *from_output_file(struct mr_auth_subject *subject)
{
    const char *path = subject->file->from.output_file;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (fd < 0)
        return NULL;
    ssize_t got = read(fd, subject->output, MR_AUTH_TOKEN_MAX);
    close(fd);
    if (got <= 0)
        return NULL;
    subject->output[got] = 0;
    return parse(subject->file, subject->output, (size_t)got, true);
}

/* ---- the program ---- */

static int64_t timeout_ms(const struct mr_auth_file *file)
{
    unsigned ms = file->from.timeout_ms ? file->from.timeout_ms : TIMEOUT_MS;
    return ms < TIMEOUT_MIN_MS ? TIMEOUT_MIN_MS : ms > TIMEOUT_MAX_MS ? TIMEOUT_MAX_MS : ms;
}

static void poll_again(struct mr_auth_subject *subject)
{
    mr_http_timer_set(subject->http, &subject->timer, mr_clock_mono_ns() + POLL_MS * MR_MILLISECOND_NS);
}

static void finish(struct mr_auth_subject *subject, int status)
{
    const char *token = NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && subject->output_length == 0) {
        mr_error_clear();
        token = from_output_file(subject);
        if (!token && mr_error_code() == MR_OK)
            mr_error_set(MR_E_DENIED, "the credentials executable printed nothing");
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        subject->output[subject->output_length] = 0;
        token = parse(subject->file, subject->output, subject->output_length, false);
    } else {
        mr_error_set(MR_E_DENIED, "the credentials executable ended with %s %d: run it by hand to see why",
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    subject->done(subject->arg, token);
    wipe(subject);
}

static void run_poll(struct mr_http_timer *timer)
{
    struct mr_auth_subject *subject = MR_CONTAINER_OF(timer, mr_auth_subject, timer);
    int status;
    pid_t ended = waitpid(subject->pid, &status, WNOHANG); /* before the last read: all that it wrote is there */
    ssize_t got;
    while (subject->output_length < MR_AUTH_TOKEN_MAX &&
           (got = read(subject->fd, subject->output + subject->output_length,
                       MR_AUTH_TOKEN_MAX - subject->output_length)) > 0)
        subject->output_length += (size_t)got;
    bool late = mr_clock_mono_ns() >= subject->deadline_ns, full = subject->output_length == MR_AUTH_TOKEN_MAX;
    if (ended == 0 && !late && !full) {
        poll_again(subject);
        return;
    }
    if (ended == subject->pid && !full) {
        subject->pid = -1;
        close(subject->fd);
        subject->fd = -1;
        finish(subject, status);
        return;
    }
    mr_auth_exec_cancel(subject);
    if (full)
        mr_error_set(MR_E_DENIED, "the credentials executable printed %u bytes or more", MR_AUTH_TOKEN_MAX);
    else
        mr_error_set(MR_E_DENIED, "the credentials executable did not end within %lld ms (timeout_millis)",
                     (long long)timeout_ms(subject->file));
    subject->done(subject->arg, NULL);
}

/* The service account in ".../serviceAccounts/<email>:generateAccessToken", for the program's environment. */
static void put_email(struct mr_text *to, const char *url)
{
    const char *at = url ? strstr(url, "/serviceAccounts/") : NULL;
    if (!at)
        return;
    at += strlen("/serviceAccounts/");
    mr_text_puts(to, "GOOGLE_EXTERNAL_ACCOUNT_IMPERSONATED_EMAIL=");
    mr_text_add(to, at, strcspn(at, ":"));
    mr_text_add(to, "", 1);
}

/* Strings, each with its NUL, that come before what the process itself has. */
static void put_environment(struct mr_text *to, const struct mr_auth_file *file)
{
    const struct mr_auth_pair pairs[] = {{"GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE", file->audience},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE", file->subject_token_type},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_INTERACTIVE", "0"},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_REVOKE", "0"},
                                         {"GOOGLE_EXTERNAL_ACCOUNT_OUTPUT_FILE", file->from.output_file}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!pairs[i].value)
            continue;
        mr_text_puts(to, pairs[i].name);
        mr_text_puts(to, "=");
        mr_text_puts(to, pairs[i].value);
        mr_text_add(to, "", 1);
    }
    put_email(to, file->impersonation_url);
}

static int spawn(struct mr_auth_subject *subject, char **words, char **environment, int out)
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
    if (rc != 0) {
        mr_error_set(MR_E_DENIED, "the credentials executable %.200s cannot be run: %s", words[0], strerror(rc));
        return -1;
    }
    subject->pid = pid;
    return 0;
}

/* Splits at white space; quotes keep words together, as in a shell. Overwrites command. */
static size_t split_words(char *command, char **words)
{
    size_t count = 0;
    char *from = command;
    while (count < WORDS_MAX) {
        while (*from && strchr(" \t\n", *from))
            from++;
        if (!*from)
            break;
        char *to = from;
        words[count++] = to;
        char quote = 0;
        for (; *from && (quote || !strchr(" \t\n", *from)); from++) {
            if (quote ? *from == quote : *from == '"' || *from == '\'')
                quote = quote ? 0 : *from;
            else
                *to++ = *from;
        }
        bool last = !*from;
        *to = 0;
        if (last)
            break;
        from++;
    }
    words[count] = NULL;
    return count;
}

static int start_program(struct mr_auth_subject *subject)
{
    char *words[WORDS_MAX + 1], *command = strdup(subject->file->from.command), **environment = NULL;
    struct mr_text added = {0};
    int pipe_fds[2] = {-1, -1}, rc = -1;
    size_t count = 0, at = 0;
    put_environment(&added, subject->file);
    while (environ[count])
        count++;
    environment = calloc(count + 8, sizeof *environment);
    if (!command || !environment || added.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the credentials executable");
        goto out;
    }
    for (char *string = added.data; string < added.data + added.length; string += strlen(string) + 1)
        environment[at++] = string;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "GOOGLE_EXTERNAL_ACCOUNT_", 24) != 0)
            environment[at++] = environ[i];
    }
    if (split_words(command, words) == 0) {
        mr_error_set(MR_E_DENIED, "its executable.command is empty");
        goto out;
    }
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0 || fcntl(pipe_fds[1], F_SETFL, 0) != 0) {
        mr_error_set_errno(errno, "cannot make a pipe to the credentials executable");
        goto out;
    }
    if (spawn(subject, words, environment, pipe_fds[1]) != 0)
        goto out;
    subject->fd = pipe_fds[0];
    pipe_fds[0] = -1;
    rc = 0;
out:
    for (int i = 0; i < 2; i++) {
        if (pipe_fds[i] >= 0)
            close(pipe_fds[i]);
    }
    free(environment);
    free(command);
    mr_text_close(&added);
    return rc;
}

static void run_cached(struct mr_http_timer *timer)
{
    struct mr_auth_subject *subject = MR_CONTAINER_OF(timer, mr_auth_subject, timer);
    const char *token = from_output_file(subject);
    if (token) {
        subject->done(subject->arg, token);
        wipe(subject);
        return;
    }
    if (start_program(subject) != 0) {
        subject->done(subject->arg, NULL);
        wipe(subject);
        return;
    }
    subject->output_length = 0;
    subject->deadline_ns = mr_clock_mono_ns() + timeout_ms(subject->file) * MR_MILLISECOND_NS;
    subject->timer.run = run_poll;
    poll_again(subject);
}

int mr_auth_exec_start(struct mr_auth_subject *subject)
{
    const char *allowed = getenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES");
    if (!allowed || strcmp(allowed, "1") != 0) {
        mr_error_set(MR_E_DENIED,
                     "the credentials file wants to run \"%.200s\": if you trust it, set "
                     "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1",
                     subject->file->from.command);
        return -1;
    }
    wipe(subject);
    subject->output = malloc(MR_AUTH_TOKEN_MAX + 1);
    if (!subject->output) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a subject token");
        return -1;
    }
    subject->timer.run = run_cached;
    mr_http_timer_set(subject->http, &subject->timer, 0);
    return 0;
}

void mr_auth_exec_cancel(struct mr_auth_subject *subject)
{
    mr_http_timer_stop(subject->http, &subject->timer);
    if (subject->pid > 0) {
        kill(-subject->pid, SIGKILL);
        while (waitpid(subject->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    subject->pid = -1;
    if (subject->fd >= 0)
        close(subject->fd);
    subject->fd = -1;
    wipe(subject);
}
