#include "worker/tool/tool.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/utf8.h"

#define STEP_MS 200 /* how long a signal that comes just before a wait goes unnoticed */

static volatile sig_atomic_t interrupted; /* the signal */
static bool json_errors;
static bool early_end_is_success;

static void tool_on_signal(int number)
{
    interrupted = number;
}

/*
 * The reader of our output has left: as for any filter, that ends the command. A server that closes its connection
 * raises the same signal where TLS is written without MSG_NOSIGNAL (libcurl 7.81); then the write fails, and its caller
 * handles that.
 */
static void on_broken_pipe(int number)
{
    int errnum = errno;
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP))) {
        if (early_end_is_success)
            _exit(0);
        signal(number, SIG_DFL);
        raise(number); /* it is blocked here, and delivered at our return */
    }
    errno = errnum;
}

void mr_tool_end_with_reader(void)
{
    early_end_is_success = true;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        mr_process_catch(numbers[i], tool_on_signal, 0);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = on_broken_pipe}, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a write past `ulimit -f` fails instead */
}

/* The configuration that `millrace` read, or the defaults when this program is started by hand. */
static int load_config(struct mr_config *config)
{
    const char *text = getenv(MR_ENVIRONMENT_FD);
    if (!text)
        return mr_config_init(config);
    errno = 0;
    char *end;
    long fd = strtol(text, &end, 10);
    if (errno || *end || end == text || fd < 0 || fd > INT_MAX) {
        mr_error_set(MR_E_USAGE, MR_ENVIRONMENT_FD "=\"%s\" is not a descriptor", text);
        return -1;
    }
    return mr_config_from_fd(config, (int)fd);
}

int mr_tool_load(struct mr_tool *tool)
{
    memset(tool, 0, sizeof *tool);
    if (load_config(&tool->config) != 0)
        return -1;
    mr_log_init("tool", (enum mr_log_level)tool->config.log.level);
    return 0;
}

int mr_tool_init(struct mr_tool *tool)
{
    return mr_tool_load(tool) == 0 ? mr_tool_start(tool) : -1;
}

int mr_tool_start(struct mr_tool *tool)
{
    if (mr_net_init(&tool->net, &tool->config) != 0) {
        memset(&tool->net, 0, sizeof tool->net); /* it has closed what it had opened */
        return -1;
    }
    catch_signals();
    return 0;
}

void mr_tool_close(struct mr_tool *tool)
{
    mr_net_close(&tool->net);
    mr_config_close(&tool->config);
}

struct mr_store *mr_tool_open(struct mr_tool *tool, const char *text, struct mr_uri *uri)
{
    if (mr_uri_init(uri, text) != 0)
        return NULL;
    return mr_net_store(&tool->net, uri->scheme, uri->bucket);
}

void mr_tool_answer(struct mr_tool *tool, const struct mr_store_result *result)
{
    tool->answered = true;
    tool->code = result->code;
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
}

bool mr_tool_interrupted(void)
{
    return interrupted != 0;
}

static int fail_interrupted(void)
{
    mr_error_set(MR_E_GONE, "ended by a signal (%s)", strsignal(interrupted));
    return -1;
}

int mr_tool_step(struct mr_tool *tool)
{
    return mr_tool_step_or(tool, -1);
}

int mr_tool_step_or(struct mr_tool *tool, int fd)
{
    if (mr_http_step(tool->net.http, STEP_MS, fd) < 0)
        return -1;
    if (tool->received)
        mr_progress_update(tool->received, mr_transfer_counters(tool->net.engine)->bytes);
    return interrupted ? fail_interrupted() : 0;
}

/* Waits for a descriptor that whoever else has it made not block; not past a signal. */
static void wait_until(int fd, short events)
{
    struct pollfd ready = {.fd = fd, .events = events};
    (void)poll(&ready, 1, STEP_MS);
}

ssize_t mr_tool_read(int fd, void *data, size_t size, const char *what)
{
    for (;;) {
        ssize_t n = read(fd, data, size);
        int errnum = errno;
        if (interrupted)
            return fail_interrupted();
        if (n >= 0)
            return n;
        if (errnum == EAGAIN) {
            wait_until(fd, POLLIN);
        } else if (errnum != EINTR) {
            mr_error_set_errno(errnum, "%s", what);
            return -1;
        }
    }
}

int mr_tool_write(int fd, const void *data, uint64_t length, const char *what)
{
    const char *at = data;
    while (length > 0) {
        ssize_t n = write(fd, at, length);
        if (interrupted)
            return fail_interrupted();
        if (n < 0 && errno == EAGAIN) {
            wait_until(fd, POLLOUT);
        } else if (n < 0 && errno != EINTR) {
            mr_error_set_errno(errno, "cannot write to %s", what);
            return -1;
        }
        if (n > 0) {
            at += n;
            length -= (uint64_t)n;
        }
    }
    return 0;
}

int mr_tool_wait(struct mr_tool *tool, bool *answered)
{
    *answered = false;
    while (!tool->answered)
        if (mr_tool_step(tool) != 0 && !tool->answered) /* it may fail after it has called back */
            return -1;
    *answered = true;
    tool->answered = false;
    return tool->code == MR_OK ? 0 : -1;
}

int mr_tool_await(struct mr_tool *tool, struct mr_transfer *started)
{
    if (!started)
        return -1;
    bool answered;
    int rc = mr_tool_wait(tool, &answered);
    if (!answered) /* its argument does not outlive our caller */
        mr_transfer_cancel(tool->net.engine, started);
    return rc;
}

int mr_tool_main(char **argv, int (*run)(const struct mr_arguments *arguments))
{
    const struct mr_verb *verb = mr_verb_find(argv[0]);
    if (!verb) {
        mr_error_set(MR_E_USAGE, "there is no such verb");
        return mr_tool_fail(argv[0]);
    }
    struct mr_arguments arguments;
    int rc = mr_arguments_parse(&arguments, verb, argv);
    json_errors = verb->json_errors && mr_arguments_have(&arguments, MR_OPT_JSON);
    int status = rc == 0 ? run(&arguments) : mr_tool_fail(verb->name);
    mr_arguments_close(&arguments);
    return status;
}

int mr_tool_print_report(json_t *report)
{
    if (!report) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the report");
        return -1;
    }
    json_dumpf(report, stdout, JSON_INDENT(2)); /* mr_process_flush sees its failure */
    putchar('\n');
    json_decref(report);
    return mr_process_flush();
}

void mr_tool_print_json(FILE *out, const char *text)
{
    putc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0';) {
        unsigned length = mr_utf8_length(at);
        if (*at == '"' || *at == '\\')
            putc('\\', out);
        if (length == 0)
            fprintf(out, "\\udc%02x", *at);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fwrite(at, 1, length, out);
        at += length > 0 ? length : 1;
    }
    putc('"', out);
}

int mr_tool_fail(const char *verb)
{
    if (interrupted) { /* so that a shell's loop ends too */
        int number = interrupted;
        mr_process_uncatch();
        fflush(stdout); /* what was done is said; the next signal ends that, too */
        raise(number);
    }
    if (json_errors) {
        fprintf(stderr, "{\"code\": \"%s\", \"error\": ", mr_code_name(mr_error_code()));
        mr_tool_print_json(stderr, mr_error_text());
        fputs("}\n", stderr);
    } else {
        fprintf(stderr, "millrace %s: %s\n", verb, mr_error_text());
    }
    return mr_code_exit_status(mr_error_code());
}
