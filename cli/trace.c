/*
 * trace.c - `millrace trace`: writes what each process of a run does, span by span, into a file for Perfetto.
 *
 * The supervisor has the processes write spans while this one is connected. It reads the ring often enough that it does
 * not fill up, and says at the end how many spans it missed.
 */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/cli.h"
#include "cli/json_get.h"
#include "cli/trace_impl.h"

#define LOOK_NS (10 * MR_MILLISECOND_NS) /* a ring of 32,768 spans is full after 0.3 s at 100,000 per second */

static volatile sig_atomic_t ended;

static void trace_on_signal(int number)
{
    ended = number;
}

static bool trace_is_to_end(void)
{
    return ended != 0;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        mr_process_catch(numbers[i], trace_on_signal, SA_RESTART); /* no write is cut short */
}

/* "-" is standard output. NULL with mr_error. */
static FILE *open_output(const char *path)
{
    if (strcmp(path, "-") == 0)
        return stdout;
    FILE *file = fopen(path, "we");
    if (!file)
        mr_error_set_errno(errno, "cannot write %s", path);
    return file;
}

/* Takes a full ring at most: spans may arrive faster than they are written out. */
static void take_some(struct mr_trace_reader *reader, struct mr_trace_output *output)
{
    struct mr_trace_record record;
    int64_t now_ns = mr_clock_mono_ns();
    for (unsigned i = 0; i < MR_TRACE_SLOTS && !ferror(output->file) && mr_trace_read(reader, now_ns, &record); i++)
        mr_trace_output_span(output, &record);
}

/* Writes spans until the time is over, a signal comes, the run ends, or nothing more can be written; then ends the
 * trace. */
static void follow(struct mr_client *client, struct mr_trace_reader *reader, struct mr_trace_output *output,
                   int64_t until_ns)
{
    const struct timespec pause = {0, LOOK_NS};
    while (!ended && !ferror(output->file) && mr_clock_mono_ns() < until_ns && !mr_client_has_ended(client)) {
        take_some(reader, output);
        fflush(output->file); /* what is written can be opened, however we end */
        nanosleep(&pause, NULL);
    }
    mr_trace_end(reader->shared); /* by us: the supervisor may have been killed while training processes live on */
    take_some(reader, output);
}

/* Adds the loops that are waiting for a batch now, as the supervisor knows them: their spans would come with the
 * batches. */
static void take_waits(struct mr_client *client, struct mr_trace_output *output)
{
    int64_t now_ns = mr_clock_mono_ns();
    char *text = mr_client_has_ended(client) ? NULL : mr_client_stat(client);
    json_t *root = text ? json_loads(text, 0, NULL) : NULL, *loop;
    size_t i;
    json_array_foreach(json_object_get(root, "loops"), i, loop)
    {
        int64_t asked_ns = mr_json_integer(json_object_get(loop, "counters"), "asked_ns");
        if (asked_ns > 0 && asked_ns < now_ns)
            mr_trace_output_waiting(output,
                                    &(struct mr_trace_record){.kind = MR_SPAN_WAIT,
                                                              .begin_ns = asked_ns,
                                                              .end_ns = now_ns,
                                                              .pid = (uint32_t)mr_json_integer(loop, "pid"),
                                                              .tid = (uint32_t)mr_json_integer(loop, "pid"),
                                                              .object = (uint64_t)mr_json_integer(loop, "epoch"),
                                                              .number = (uint32_t)mr_json_integer(loop, "rank")});
    }
    json_decref(root);
    free(text);
}

/* Closes the file, and logs what it has and how many spans are missing. -1 with mr_error: not all was written. */
static int trace_finish(struct mr_trace_output *output, const struct mr_trace_reader *reader, const char *path)
{
    uint64_t lost = mr_trace_reader_lost(reader) + reader->passed;
    errno = EIO; /* of a write that failed earlier, whose errno is lost */
    bool failed = fflush(output->file) != 0 || ferror(output->file);
    int why = errno;
    if (output->file != stdout && fclose(output->file) != 0 && !failed) {
        failed = true;
        why = errno;
    }
    if (failed) {
        mr_error_set_errno(why, "cannot write %s", output->file == stdout ? "to standard output" : path);
        return -1;
    }
    if (lost > 0)
        mr_log_warning("%llu spans are missing: more came than could be written down", (unsigned long long)lost);
    mr_log_info("%llu spans of %.1f s%s%s: open it in https://ui.perfetto.dev", (unsigned long long)output->written,
                (double)(mr_clock_mono_ns() - output->begin_ns) / 1e9, output->file == stdout ? "" : " in ",
                output->file == stdout ? "" : path);
    return 0;
}

static int trace(struct mr_client *client, const char *path, double seconds)
{
    struct mr_trace_reader reader;
    struct mr_trace_output output = {.begin_ns = mr_clock_mono_ns()};
    int fd = mr_client_trace(client);
    if (fd < 0)
        return -1;
    int rc = mr_trace_reader_open(&reader, fd);
    close(fd);
    if (rc != 0)
        return -1;
    output.file = open_output(path); /* a FIFO waits for its reader here, and a signal ends that */
    if (output.file) {
        catch_signals();
        int64_t until_ns = seconds > 0 ? output.begin_ns + (int64_t)(seconds * 1e9) : INT64_MAX;
        mr_trace_output_begin(&output);
        follow(client, &reader, &output, until_ns);
        ended = 0; /* the next signal is for a supervisor that does not answer */
        mr_client_set_interrupt(client, trace_is_to_end);
        take_waits(client, &output);
        mr_trace_output_end(&output);
        rc = trace_finish(&output, &reader, path);
    }
    mr_trace_reader_close(&reader);
    return output.file ? rc : -1;
}

int mr_cli_trace(const struct mr_arguments *arguments)
{
    struct mr_client *client = mr_cli_connect(arguments);
    if (!client)
        return mr_cli_fail();
    double seconds = mr_arguments_have(arguments, MR_OPT_SECONDS) ? arguments->values[MR_OPT_SECONDS].seconds : 0;
    int rc = trace(client, mr_arguments_text(arguments, MR_OPT_OUTPUT), seconds);
    mr_client_destroy(client);
    return rc == 0 ? 0 : mr_cli_fail();
}
