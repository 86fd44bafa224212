/*
 * bench.c - `millrace bench`: reads a data set with an empty training step, then runs the same number of steps over one
 * batch that is kept, and prints both. Without a supervisor it becomes `millrace run` of itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"
#include "cli/bench_impl.h"
#include "cli/cli.h"
#include "cli/json_get.h"
#include "cli/programs.h"

#define BLOCK 100 /* steps per line */
#define STEPS 300
#define BATCH 32

/* ---- CPU time ---- */

/* The CPU time so far; the last value seen where the process has ended. */
static int64_t cpu_ns(const struct mr_bench_process *process)
{
    struct timespec now;
    return clock_gettime(process->clock, &now) == 0 ? now.tv_sec * MR_SECOND_NS + now.tv_nsec : process->seen_ns;
}

/* Counts the CPU time of the process from now on. Does nothing where it has ended already or the table is full. */
static void watch(struct mr_bench *b, pid_t pid, enum mr_bench_group group)
{
    struct mr_bench_process *process = &b->processes[b->process_count];
    if (b->process_count == MR_BENCH_PROCESSES_MAX || pid <= 0 || clock_getcpuclockid(pid, &process->clock) != 0)
        return;
    process->group = group;
    process->seen_ns = 0;
    process->seen_ns = cpu_ns(process);
    b->process_count++;
}

/* Adds the CPU time since the last call to the block. */
static void add_cpu(struct mr_bench *b, struct mr_bench_block *block)
{
    for (unsigned i = 0; i < b->process_count; i++) {
        struct mr_bench_process *process = &b->processes[i];
        int64_t now_ns = cpu_ns(process);
        block->cpu_ns[process->group] += now_ns - process->seen_ns;
        process->seen_ns = now_ns;
    }
}

/* Free with json_decref. NULL with mr_error. */
static json_t *statistics(struct mr_bench *b)
{
    char *text = mr_client_stat(b->client);
    json_t *root = text ? mr_json_parse_stat(text) : NULL;
    free(text);
    return root;
}

/* Watches the supervisor and its present fetch workers; those started later are not counted. 0 or -1. */
static int watch_supervisor(struct mr_bench *b)
{
    json_t *root = statistics(b);
    if (!root)
        return -1;
    watch(b, (pid_t)mr_json_integer(root, "pid"), MR_BENCH_SUPERVISOR);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "workers"), i, item)
    {
        if (strcmp(mr_json_text(item, "role"), "fetch") == 0)
            watch(b, (pid_t)mr_json_integer(item, "pid"), MR_BENCH_FETCH);
    }
    json_decref(root);
    return 0;
}

/* ---- the data set ---- */

/* The name of the supervisor's only data set, for when none was given. 0, or -1 (USAGE: there is none, or several). */
static int only_dataset(struct mr_bench *b, char name[256])
{
    json_t *root = statistics(b);
    if (!root)
        return -1;
    const json_t *list = json_object_get(root, "datasets");
    size_t count = json_array_size(list);
    if (count == 1)
        snprintf(name, 256, "%s", mr_json_text(json_array_get(list, 0), "name"));
    json_decref(root);
    if (count == 1)
        return 0;
    mr_error_set(MR_E_USAGE, count == 0
                                 ? "no data set is named: --dataset takes a URI, or a name from the configuration"
                                 : "there are several data sets: choose one with --dataset NAME");
    return -1;
}

/* Waits until it is listed, and shows the progress on a terminal. -1 where the listing or the supervisor has failed. */
static int await_dataset(struct mr_bench *b)
{
    bool show = isatty(STDERR_FILENO) == 1;
    enum mr_dataset_state state;
    while ((state = mr_client_dataset_state(b->client, b->dataset.dataset)) != MR_DATASET_READY) {
        const struct mr_board_dataset *entry =
            &mr_client_board(b->client)->dataset[mr_dataset_number(b->dataset.dataset)];
        if (state == MR_DATASET_FAILED || mr_client_check(b->client) != 0)
            return -1;
        if (show)
            fprintf(stderr, "\rlisting: %" PRIu64 " objects\033[K",
                    atomic_load_explicit(&entry->listed, memory_order_relaxed));
        nanosleep(&(struct timespec){.tv_nsec = 20 * MR_MILLISECOND_NS}, NULL);
    }
    if (show)
        fputs("\r\033[K", stderr);
    return 0;
}

/* Sets b->info, and reduces a batch that is larger than the data set. 0, or -1, also for a data set without objects. */
static int open_dataset(struct mr_bench *b, const char *wanted)
{
    static char name[256];
    if (!wanted && only_dataset(b, name) != 0)
        return -1;
    b->name = wanted ? wanted : name;
    bool uri = strstr(b->name, "://") || b->name[0] == '/';
    const struct mr_to_open what = {.name = b->name, .uris = &b->name, .uri_count = uri ? 1 : 0, .names_fd = -1};
    struct mr_index index;
    if (mr_client_open_dataset(b->client, &what, &b->dataset) != 0 || await_dataset(b) != 0 ||
        mr_bench_index(b->client, b->dataset.dataset, &index) != 0)
        return -1;
    b->info = index.info;
    mr_index_close(&index);
    if (b->info.count == 0) {
        mr_error_set(MR_E_NOT_FOUND, "%s has no objects", b->name);
        return -1;
    }
    if (b->batch > b->info.count)
        b->batch = (uint32_t)b->info.count;
    return 0;
}

/* ---- readers ---- */

/* Besides the measured steps each reader makes one before them, and one after them that is kept. */
static struct mr_bench_plan plan_of(const struct mr_bench *b, uint32_t worker)
{
    uint32_t readers = b->workers > 0 ? b->workers : 1;
    return (struct mr_bench_plan){.dataset = b->dataset.dataset,
                                  .batch = b->batch,
                                  .worker = worker,
                                  .workers = readers,
                                  .steps = b->steps + 2 * (uint64_t)readers};
}

static bool send_step(int socket, const struct mr_bench_step *step)
{
    return send(socket, step, sizeof *step, MSG_NOSIGNAL) == (ssize_t)sizeof *step;
}

/* A reading process, like a DataLoader worker: sends its steps to the parent, one message each; the last one has the
 * error. */
static void worker_main(const struct mr_bench *b, const char *path, uint32_t worker, int socket)
{
    struct mr_bench_plan plan = plan_of(b, worker);
    struct mr_bench_step step = {.code = MR_OK};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct mr_client *client = mr_client_connect(path, "job", 0);
    struct mr_bench_reader *reader = client ? mr_bench_reader_new(client, &plan) : NULL;
    bool good = reader != NULL;
    for (uint64_t i = worker; good && i < b->steps + plan.workers; i += plan.workers) {
        mr_bench_reader_step(reader, &step);
        good = step.code == MR_OK && send_step(socket, &step);
    }
    char go;
    good = good && mr_bench_reader_keep(reader) == 0 && recv(socket, &go, 1, 0) == 1;
    while (good) {
        mr_bench_reader_cached(reader, &step);
        good = send_step(socket, &step);
    }
    if (step.code == MR_OK && mr_error_code() != MR_OK) {
        step.code = mr_error_code();
        snprintf(step.text, sizeof step.text, "%s", mr_error_text());
    }
    send_step(socket, &step);
    mr_bench_reader_destroy(reader);
    mr_client_destroy(client);
}

/* Forks the reading processes. They end once their sockets are closed. 0 or -1. */
static int start_workers(struct mr_bench *b, const char *path)
{
    b->sockets = calloc(b->workers + 1, sizeof *b->sockets);
    if (!b->sockets) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u workers", b->workers);
        return -1;
    }
    for (uint32_t i = 0; i < b->workers; i++)
        b->sockets[i] = -1;
    for (uint32_t i = 0; i < b->workers; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
            mr_error_set_errno(errno, "cannot make a socket for a reading worker");
            return -1;
        }
        pid_t pid = fork();
        if (pid == 0) {
            for (uint32_t k = 0; k < i; k++) /* those of the workers before it */
                close(b->sockets[k]);
            close(pair[0]);
            worker_main(b, path, i, pair[1]);
            _exit(0);
        }
        close(pair[1]);
        b->sockets[i] = pair[0];
        if (pid < 0) {
            mr_error_set_errno(errno, "cannot start a reading worker");
            return -1;
        }
        watch(b, pid, MR_BENCH_READER);
    }
    return 0;
}

static int start_readers(struct mr_bench *b, const char *path)
{
    watch(b, getpid(), MR_BENCH_READER);
    if (b->workers > 0)
        return start_workers(b, path);
    struct mr_bench_plan plan = plan_of(b, 0);
    b->reader = mr_bench_reader_new(b->client, &plan);
    return b->reader ? 0 : -1;
}

/* The next step of the reader whose turn `number` is. 0, or -1 with that reader's error. Blocks. */
static int next_step(struct mr_bench *b, uint64_t number, bool cached, struct mr_bench_step *step)
{
    if (b->workers > 0) {
        ssize_t n = recv(b->sockets[number % b->workers], step, sizeof *step, 0);
        if (n != (ssize_t)sizeof *step) {
            mr_error_set(MR_E_GONE, "reading worker %" PRIu64 " has ended", number % b->workers);
            return -1;
        }
    } else if (cached) {
        mr_bench_reader_cached(b->reader, step);
    } else {
        mr_bench_reader_step(b->reader, step);
    }
    if (step->code == MR_OK)
        return 0;
    step->text[sizeof step->text - 1] = '\0';
    mr_error_set(step->code < MR_E_COUNT ? (enum mr_code)step->code : MR_E_INTERNAL, "%s", step->text);
    return -1;
}

/* Between the two passes: makes each reader keep a batch. 0 or -1. */
static int bench_keep(struct mr_bench *b)
{
    for (uint32_t i = 0; i < b->workers; i++)
        if (send(b->sockets[i], "", 1, MSG_NOSIGNAL) != 1) {
            mr_error_set(MR_E_GONE, "reading worker %u has ended", i);
            return -1;
        }
    return b->workers > 0 ? 0 : mr_bench_reader_keep(b->reader);
}

/* ---- the measurement ---- */

static void add_step(struct mr_bench_block *block, const struct mr_bench_step *step, double ms)
{
    block->steps++;
    block->samples += step->samples;
    block->bytes += step->bytes;
    block->wait_ns += step->wait_ns;
    block->ms_sum += ms;
    block->ms_squares += ms * ms;
}

static void add_block(struct mr_bench_block *sum, const struct mr_bench_block *block)
{
    sum->first = 1;
    sum->steps += block->steps;
    sum->samples += block->samples;
    sum->bytes += block->bytes;
    sum->wait_ns += block->wait_ns;
    sum->ms_sum += block->ms_sum;
    sum->ms_squares += block->ms_squares;
    for (unsigned i = 0; i < MR_BENCH_GROUPS; i++)
        sum->cpu_ns[i] += block->cpu_ns[i];
}

/* Runs b->steps steps, prints them block by block, and adds them to *sum. 0 or -1. */
static int pass(struct mr_bench *b, bool cached, struct mr_bench_block *sum)
{
    uint64_t readers = b->workers > 0 ? b->workers : 1;
    struct mr_bench_block block = {0};
    add_cpu(b, &block); /* what came before does not count */
    block = (struct mr_bench_block){.first = 1};
    int64_t last_ns = mr_clock_mono_ns();
    for (uint64_t i = 0; i < b->steps; i++) {
        struct mr_bench_step step;
        if (next_step(b, readers + i, cached, &step) != 0)
            return -1;
        int64_t now_ns = mr_clock_mono_ns();
        add_step(&block, &step, (double)(now_ns - last_ns) / 1e6);
        last_ns = now_ns;
        if (block.steps < BLOCK && i + 1 < b->steps)
            continue;
        add_cpu(b, &block);
        add_block(sum, &block);
        mr_bench_print_block(b, &block, cached);
        block = (struct mr_bench_block){.first = i + 2};
        last_ns = mr_clock_mono_ns();
    }
    return 0;
}

/* Sets b->limit. The supervisor's own verdict is a mean over some seconds: a shorter run is judged by what was measured
 * here. */
static int note_limit(struct mr_bench *b, const struct mr_bench_block *data)
{
    double share = mr_bench_waiting(b, data);
    if (data->ms_sum < 3000) {
        snprintf(b->limit, sizeof b->limit, "%s: readers wait %.0f%% of the time",
                 share < 0.1 ? "the reading side" : "the download side", share * 100);
        return 0;
    }
    json_t *root = statistics(b);
    if (!root)
        return -1;
    snprintf(b->limit, sizeof b->limit, "%s", mr_json_text(json_object_get(root, "limit"), "text"));
    json_decref(root);
    return 0;
}

static int measure(struct mr_bench *b, const char *path)
{
    struct mr_bench_block data = {0}, cached = {0};
    int64_t began_ns = mr_clock_mono_ns();
    if (watch_supervisor(b) != 0 || start_readers(b, path) != 0)
        return -1;
    for (uint32_t i = 0; i < (b->workers > 0 ? b->workers : 1); i++) { /* the first steps wait for the first objects */
        struct mr_bench_step step;
        if (next_step(b, i, false, &step) != 0)
            return -1;
        if (i == 0)
            b->first_ms = (double)(mr_clock_mono_ns() - began_ns) / 1e6;
    }
    mr_bench_print_head(b);
    if (pass(b, false, &data) != 0 || note_limit(b, &data) != 0 || bench_keep(b) != 0 || pass(b, true, &cached) != 0)
        return -1;
    mr_bench_print_end(b, &data, &cached);
    return mr_process_flush();
}

static int bench(const struct mr_arguments *arguments)
{
    const char *path = mr_cli_socket(arguments);
    struct mr_bench b = {.batch = (uint32_t)mr_arguments_number(arguments, MR_OPT_BATCH_SIZE, BATCH),
                         .steps = mr_arguments_number(arguments, MR_OPT_STEPS, STEPS),
                         .workers = (uint32_t)mr_arguments_number(arguments, MR_OPT_WORKERS, 0)};
    int rc = -1;
    b.client = mr_client_connect(path, "job", 0);
    if (!b.client || open_dataset(&b, mr_arguments_text(arguments, MR_OPT_DATASET)) != 0)
        goto out;
    if (mr_arguments_have(arguments, MR_OPT_JSON) && !(b.json = mr_bench_head_json(&b))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a report");
        goto out;
    }
    rc = measure(&b, path);
out:
    for (uint32_t i = 0; b.sockets && i < b.workers && b.sockets[i] >= 0; i++)
        close(b.sockets[i]);
    free(b.sockets);
    mr_bench_reader_destroy(b.reader);
    mr_client_destroy(b.client);
    json_decref(b.json);
    return rc == 0 ? 0 : mr_cli_fail();
}

/* "--steps=300" */
static int add_option(struct mr_strings *command, const struct mr_option *option, const char *value)
{
    char *text = NULL;
    if (asprintf(&text, "--%s%s%s", option->name, value ? "=" : "", value ? value : "") < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the command line");
        return -1;
    }
    int rc = mr_strings_add(command, text);
    free(text);
    return rc;
}

/* `millrace bench` with the same options, except for the configuration, which is the supervisor's. 0 or -1. */
static int own_command(const struct mr_arguments *arguments, struct mr_strings *command)
{
    char self[PATH_MAX];
    if (mr_program_path("millrace", self) != 0 || mr_strings_add(command, self) != 0 ||
        mr_strings_add(command, arguments->verb->name) != 0)
        return -1;
    const struct mr_verb_option *option;
    for (unsigned i = 0; (option = mr_verb_option(arguments->verb, i)); i++) {
        const struct mr_option_value *value = &arguments->values[option->id];
        for (unsigned k = 0; k < value->count && option->id != MR_OPT_CONFIG; k++)
            if (add_option(command, mr_option(option->id), value->text) != 0)
                return -1;
    }
    return 0;
}

/* `millrace run -q [-c FILE] -- millrace bench ...` */
static int supervise_self(const struct mr_arguments *arguments)
{
    struct mr_strings command = {.count = 0};
    char **argv = NULL;
    int status = -1;
    if (own_command(arguments, &command) == 0)
        argv = calloc(command.count + 1, sizeof *argv);
    if (argv) {
        struct mr_arguments run = {.verb = mr_verb(MR_VERB_RUN)};
        run.values[MR_OPT_CONFIG] = arguments->values[MR_OPT_CONFIG];
        run.values[MR_OPT_VERBOSE] = arguments->values[MR_OPT_VERBOSE];
        run.values[MR_OPT_QUIET].count = arguments->values[MR_OPT_QUIET].count + 1;
        memcpy(argv, command.items, command.count * sizeof *argv);
        status = mr_cli_supervise(&run, argv);
    }
    free(argv);
    mr_strings_close(&command);
    return status >= 0 ? status : mr_cli_fail();
}

int mr_cli_bench(const struct mr_arguments *arguments)
{
    bool configured = mr_arguments_have(arguments, MR_OPT_CONFIG);
    if (!configured && mr_cli_socket(arguments))
        return bench(arguments);
    if (configured || mr_arguments_have(arguments, MR_OPT_DATASET))
        return supervise_self(arguments);
    mr_error_set(MR_E_USAGE,
                 "nothing to read is named: give -c FILE, --dataset URI, or a running supervisor (MILLRACE_SOCKET)");
    return mr_cli_fail_usage(arguments);
}
