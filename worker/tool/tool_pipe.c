/* tool_pipe.c - `millrace pipe`: writes the bytes of objects into one FIFO per epoch, as SageMaker's Pipe Mode does. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "worker/tool/out_pipe.h"
#include "worker/tool/stream.h"
#include "worker/tool/stream_order.h"

#define LOOK_MS 10 /* how often it looks for a reader */

struct pipe_run {
    struct mr_tool tool;
    struct mr_stream_list list;
    uint64_t *order;
    const char *path;
    uint64_t epochs, seed;
    bool shuffle;
    uint64_t made, removed; /* FIFOs of epochs below these; each is removed when its epoch has ended */
    struct mr_progress progress;
};

static int fifo_name(const struct pipe_run *run, uint64_t epoch, char name[PATH_MAX])
{
    if (snprintf(name, PATH_MAX, "%s_%" PRIu64, run->path, epoch) < PATH_MAX)
        return 0;
    mr_error_set(MR_E_USAGE, "%.200s...: the name is too long", run->path);
    return -1;
}

/* Makes the epoch's FIFO, if there is such an epoch. An existing one is used: the reader may have made it. 0 or -1. */
static int make_fifo(struct pipe_run *run, uint64_t epoch)
{
    char name[PATH_MAX];
    struct stat st;
    if (epoch == run->epochs) /* the last one has no next */
        return 0;
    if (fifo_name(run, epoch, name) != 0)
        return -1;
    if (mkfifo(name, 0666) != 0 && !(errno == EEXIST && stat(name, &st) == 0 && S_ISFIFO(st.st_mode))) {
        mr_error_set_errno(errno, "cannot make the FIFO %s", name);
        return -1;
    }
    run->made = epoch + 1;
    return 0;
}

/* Removes the FIFO of the first epoch that still has one. */
static void remove_fifo(struct pipe_run *run)
{
    char name[PATH_MAX];
    if (fifo_name(run, run->removed++, name) != 0)
        return;
    int fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC); /* a reader that waits for a writer gets end of file */
    if (fd >= 0)
        close(fd);
    unlink(name);
}

/* Waits for a reader, while the first bytes arrive. The descriptor, or -1, which after a signal has no mr_error. */
static int await_reader(struct pipe_run *run, const char *name)
{
    int fd;
    while ((fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
        if (errno != ENXIO && errno != EINTR) {
            mr_error_set_errno(errno, "%s", name);
            return -1;
        }
        if (mr_http_step(run->tool.net.http, LOOK_MS, -1) < 0 || mr_tool_interrupted())
            return -1;
    }
    return fd;
}

/* 0 also where the reader has left early: it needed no more of the epoch. */
static int write_all(struct pipe_run *run, struct mr_stream *stream, struct mr_out_pipe *out)
{
    const void *data;
    uint64_t length, written = 0;
    int rc;
    while ((rc = mr_stream_next(stream, &data, &length)) > 0) {
        if (mr_out_pipe_write(out, &run->tool, data, length) != 0)
            return out->gone ? 0 : -1;
        mr_progress_update(&run->progress, written += length);
    }
    return rc;
}

/* Writes one epoch and removes its FIFO; the next epoch's FIFO exists before that. */
static int run_epoch(struct pipe_run *run, uint64_t epoch)
{
    char name[PATH_MAX];
    struct mr_out_pipe out = {.own = false};
    struct mr_stream *stream = NULL;
    int rc = -1, fd = -1;
    if (fifo_name(run, epoch, name) != 0 ||
        mr_stream_order(run->order, run->list.count, run->shuffle, run->seed, epoch) != 0)
        return -1;
    mr_progress_begin(&run->progress, name, run->list.bytes, true);
    stream = mr_stream_new(&run->tool, &run->list, run->order);
    if (!stream || mr_stream_ask(stream) != 0 || (fd = await_reader(run, name)) < 0)
        goto out;
    /* The next one is there before this one ends. */
    if (make_fifo(run, epoch + 1) == 0 && mr_out_pipe_init(&out, fd, name) == 0)
        rc = write_all(run, stream, &out);
out:
    mr_progress_end(&run->progress);
    mr_stream_destroy(stream);
    remove_fifo(run);
    mr_http_step(run->tool.net.http, 0, -1); /* the loop forgets out.ready, whose number will be reused */
    mr_out_pipe_close(&out);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int run_all(struct pipe_run *run, const struct mr_arguments *arguments)
{
    if (mr_tool_init(&run->tool) != 0 || make_fifo(run, 0) != 0)
        return -1;
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves its FIFO is seen by EPIPE */
    for (unsigned i = 0; i < arguments->operand_count; i++)
        if (mr_stream_list_add(&run->list, &run->tool, arguments->operands[i]) != 0)
            return -1;
    run->order = calloc(run->list.count, sizeof *run->order);
    if (!run->order) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu objects", run->list.count);
        return -1;
    }
    for (uint64_t epoch = 0; epoch < run->epochs; epoch++)
        if (run_epoch(run, epoch) != 0)
            return -1;
    return 0;
}

static int pipe_main(const struct mr_arguments *arguments)
{
    struct pipe_run run = {.path = mr_arguments_text(arguments, MR_OPT_FIFO),
                           .epochs = mr_arguments_number(arguments, MR_OPT_EPOCHS, 1),
                           .seed = mr_arguments_number(arguments, MR_OPT_SEED, 0),
                           .shuffle = mr_arguments_have(arguments, MR_OPT_SHUFFLE)};
    int rc = run_all(&run, arguments);
    while (run.removed < run.made) /* of an epoch that did not begin */
        remove_fifo(&run);
    mr_stream_list_close(&run.list);
    free(run.order);
    mr_tool_close(&run.tool);
    return rc == 0 ? 0 : mr_tool_fail("pipe");
}

int mr_tool_pipe(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, pipe_main);
}
