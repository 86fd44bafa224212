/*
 * bench.c - `millrace bench`: reads a data set with an empty training step, then the same number of steps over one
 * batch that is kept, and prints both. Without a supervisor it becomes `millrace run` of itself.
 */
#include "cli/bench.h"
#include "shm/base/size.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/json_get.h"
#include "cli/verbs.h"
#include "shm/base/clock.h"
#include "shm/base/error.h"

#define BLOCK         100 /* steps that one line is about */
#define STEPS         300
#define BATCH         32
#define PROCESSES_MAX (256 + MR_PRODUCERS_MAX + 2)

enum group { GROUP_READER, GROUP_FETCH, GROUP_SUPERVISOR, GROUPS };
static const char *const group_names[] = {"reader", "download", "supervisor"};

struct process {
    enum group group;
    clockid_t clock;
    int64_t seen_ns;
};

/* The sums over the steps of a block, or over all of them. */
struct block {
    uint64_t first, steps, samples, bytes, wait_ns;
    double ms_sum, ms_squares;
    int64_t cpu_ns[GROUPS];
};

struct bench {
    struct mr_client *client;
    struct mr_opened dataset;
    struct mr_index_info info;
    const char *name;
    uint32_t batch, workers; /* workers 0: this process reads */
    uint64_t steps;
    struct mr_bench_reader *reader;
    int *sockets; /* of the workers */
    struct process processes[PROCESSES_MAX];
    unsigned process_count;
    json_t *json; /* NULL: text is printed */
    char limit[256];
    double first_ms;
};

/* ---- CPU time ---- */

static int64_t cpu_ns(const struct process *process)
{
    struct timespec now;
    return clock_gettime(process->clock, &now) == 0 ? now.tv_sec * MR_SECOND_NS + now.tv_nsec : process->seen_ns;
}

static void watch(struct bench *b, pid_t pid, enum group group)
{
    struct process *process = &b->processes[b->process_count];
    if (b->process_count == PROCESSES_MAX || pid <= 0 || clock_getcpuclockid(pid, &process->clock) != 0)
        return;
    process->group = group;
    process->seen_ns = 0;
    process->seen_ns = cpu_ns(process);
    b->process_count++;
}

static void add_cpu(struct bench *b, struct block *block)
{
    for (unsigned i = 0; i < b->process_count; i++) {
        struct process *process = &b->processes[i];
        int64_t now_ns = cpu_ns(process);
        block->cpu_ns[process->group] += now_ns - process->seen_ns;
        process->seen_ns = now_ns;
    }
}

static json_t *statistics(struct bench *b)
{
    char *text = mr_client_stat(b->client);
    json_t *root = text ? mr_json_parse_stat(text) : NULL;
    free(text);
    return root;
}

static int watch_supervisor(struct bench *b)
{
    size_t i;
    json_t *item;
    json_t *root = statistics(b);
    if (!root)
        return -1;
    watch(b, (pid_t)mr_json_integer(root, "pid"), GROUP_SUPERVISOR);
    json_array_foreach(json_object_get(root, "workers"), i, item)
    {
        if (strcmp(mr_json_text(item, "role"), "fetch") == 0)
            watch(b, (pid_t)mr_json_integer(item, "pid"), GROUP_FETCH);
    }
    json_decref(root);
    return 0;
}

/* ---- the data set ---- */

/* The one that the supervisor has, when no other was named. */
static int only_dataset(struct bench *b, char name[256])
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
    mr_error_set(MR_E_USAGE, count == 0 ? "which data set? --dataset takes a URI, or a name of the configuration's"
                                        : "there are several data sets: --dataset NAME says which");
    return -1;
}

static int await_dataset(struct bench *b)
{
    bool show = isatty(STDERR_FILENO) == 1;
    enum mr_dataset_state state;
    while ((state = mr_client_dataset_state(b->client, b->dataset.dataset)) != MR_DATASET_READY) {
        const struct mr_board_dataset *entry = &mr_client_board(b->client)->dataset[b->dataset.dataset];
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

static int open_dataset(struct bench *b, const char *wanted)
{
    static char name[256];
    struct mr_index index;
    if (!wanted && only_dataset(b, name) != 0)
        return -1;
    b->name = wanted ? wanted : name;
    bool uri = strstr(b->name, "://") || b->name[0] == '/';
    if (mr_client_open_dataset(b->client, uri ? NULL : b->name, &b->name, uri ? 1 : 0, -1, &b->dataset) != 0 ||
        await_dataset(b) != 0 || mr_bench_index(b->client, b->dataset.dataset, &index) != 0)
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

/* Steps before the ones that are measured, and after them the one that is kept: one of each reader. */
static struct mr_bench_plan plan_of(const struct bench *b, uint32_t worker)
{
    uint32_t readers = b->workers > 0 ? b->workers : 1;
    return (struct mr_bench_plan){.dataset = b->dataset.dataset,
                                  .batch = b->batch,
                                  .worker = worker,
                                  .workers = readers,
                                  .steps = b->steps + 2 * (uint64_t)readers};
}

static bool tell(int socket, const struct mr_bench_step *step)
{
    return send(socket, step, sizeof *step, MSG_NOSIGNAL) == (ssize_t)sizeof *step;
}

/* A reading process, as a DataLoader worker is one: its steps go to the parent, one message each. */
static void worker_main(const struct bench *b, const char *path, uint32_t worker, int socket)
{
    struct mr_bench_plan plan = plan_of(b, worker);
    struct mr_bench_step step = {.code = MR_OK};
    char go;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct mr_client *client = mr_client_connect(path, "trainer", 0);
    struct mr_bench_reader *reader = client ? mr_bench_reader_new(client, &plan) : NULL;
    bool well = reader != NULL;
    for (uint64_t i = worker; well && i < b->steps + plan.workers; i += plan.workers) {
        mr_bench_reader_step(reader, &step);
        well = step.code == MR_OK && tell(socket, &step);
    }
    well = well && mr_bench_reader_keep(reader) == 0 && recv(socket, &go, 1, 0) == 1;
    while (well) {
        mr_bench_reader_cached(reader, &step);
        well = tell(socket, &step);
    }
    if (step.code == MR_OK && mr_error_code() != MR_OK) {
        step.code = mr_error_code();
        snprintf(step.text, sizeof step.text, "%s", mr_error_text());
    }
    tell(socket, &step);
    mr_bench_reader_destroy(reader);
    mr_client_destroy(client);
}

static int start_workers(struct bench *b, const char *path)
{
    b->sockets = calloc(b->workers + 1, sizeof *b->sockets);
    if (!b->sockets) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u workers", b->workers);
        return -1;
    }
    for (uint32_t i = 0; i < b->workers; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
            mr_error_set_errno(errno, "no socket for a reading worker");
            return -1;
        }
        pid_t pid = fork();
        if (pid == 0) {
            for (uint32_t k = 0; k < i; k++) /* its brothers' */
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
        watch(b, pid, GROUP_READER);
    }
    return 0;
}

static int start_readers(struct bench *b, const char *path)
{
    watch(b, getpid(), GROUP_READER);
    if (b->workers > 0)
        return start_workers(b, path);
    struct mr_bench_plan plan = plan_of(b, 0);
    b->reader = mr_bench_reader_new(b->client, &plan);
    return b->reader ? 0 : -1;
}

static int next_step(struct bench *b, uint64_t number, bool cached, struct mr_bench_step *step)
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

/* Between the two passes: each reader keeps a batch. */
static int keep(struct bench *b)
{
    for (uint32_t i = 0; i < b->workers; i++)
        if (send(b->sockets[i], "", 1, MSG_NOSIGNAL) != 1) {
            mr_error_set(MR_E_GONE, "reading worker %u has ended", i);
            return -1;
        }
    return b->workers > 0 ? 0 : mr_bench_reader_keep(b->reader);
}

/* ---- what is printed ---- */

static double mean_ms(const struct block *block)
{
    return block->ms_sum / (double)block->steps;
}

static double variance_ms2(const struct block *block)
{
    double mean = mean_ms(block), n = (double)block->steps;
    double variance = n > 1 ? (block->ms_squares - n * mean * mean) / (n - 1) : 0;
    return variance > 0 ? variance : 0;
}

static double seconds(const struct block *block)
{
    return block->ms_sum > 0 ? block->ms_sum / 1e3 : 1e-9;
}

/* Of all readers' time. */
static double waiting(const struct bench *b, const struct block *block)
{
    double all_ns = block->ms_sum * 1e6 * (b->workers > 1 ? b->workers : 1);
    double share = all_ns > 0 ? (double)block->wait_ns / all_ns : 0;
    return share < 1 ? share : 1;
}

static double cpu_ms(const struct block *block, enum group group)
{
    return (double)block->cpu_ns[group] / 1e6 / (double)block->steps;
}

static json_t *block_json(const struct bench *b, const struct block *block, const char *kind)
{
    return json_pack(
        "{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "kind", kind, "first_step",
        (json_int_t)block->first, "steps", (json_int_t)block->steps, "step_mean_s", mean_ms(block) / 1e3,
        "step_variance_s2", variance_ms2(block) / 1e6, "samples_per_s", (double)block->samples / seconds(block),
        "bytes_per_s", (double)block->bytes / seconds(block), "waiting_ratio", waiting(b, block), "cpu_s",
        group_names[0], (double)block->cpu_ns[GROUP_READER] / 1e9, group_names[1],
        (double)block->cpu_ns[GROUP_FETCH] / 1e9, group_names[2], (double)block->cpu_ns[GROUP_SUPERVISOR] / 1e9);
}

static void print_block(struct bench *b, const struct block *block, bool cached)
{
    char steps[64];
    if (b->json) {
        json_array_append_new(json_object_get(b->json, "blocks"), block_json(b, block, cached ? "cached" : "data"));
        return;
    }
    snprintf(steps, sizeof steps, "%s %" PRIu64 "-%" PRIu64, cached ? "cached" : "data", block->first,
             block->first + block->steps - 1);
    printf("%-16s %9.3f %9.3f %11.0f %9.1f %7.0f%% %9.3f %9.3f %11.3f\n", steps, mean_ms(block),
           sqrt(variance_ms2(block)), (double)block->samples / seconds(block),
           (double)block->bytes / 1048576 / seconds(block), waiting(b, block) * 100, cpu_ms(block, GROUP_READER),
           cpu_ms(block, GROUP_FETCH), cpu_ms(block, GROUP_SUPERVISOR));
    fflush(stdout);
}

static void print_head(const struct bench *b)
{
    char bytes[32], largest[32], readers[40] = "this process reads";
    if (b->json)
        return;
    if (b->workers > 0)
        snprintf(readers, sizeof readers, "%u worker processes read", b->workers);
    printf("%s: %" PRIu64 " objects, %s, the largest %s; batches of %u, %s\n", b->name, b->info.count,
           mr_size_text((double)b->info.total_bytes, bytes), mr_size_text((double)b->info.max_size, largest), b->batch,
           readers);
    printf("first batch after %.0f ms\n\n", b->first_ms);
    printf("%-16s %9s %9s %11s %9s %8s %31s\n%-16s %9s %9s %11s %9s %8s %9s %9s %11s\n", "", "ms", "standard", "", "",
           "", "CPU ms a step in", "steps", "a step", "deviation", "samples/s", "MiB/s", "waiting", group_names[0],
           group_names[1], group_names[2]);
}

static void print_end(struct bench *b, const struct block *data, const struct block *cached)
{
    double step_ms = mean_ms(data), samples = (double)data->samples / (double)data->steps;
    double reader_ms = cpu_ms(data, GROUP_READER) - cpu_ms(cached, GROUP_READER);
    double fetch_ms = cpu_ms(data, GROUP_FETCH) + cpu_ms(data, GROUP_SUPERVISOR);
    if (b->json) {
        json_object_set_new(b->json, "first_batch_s", json_real(b->first_ms / 1e3));
        json_object_set_new(b->json, "data", block_json(b, data, "data"));
        json_object_set_new(b->json, "cached", block_json(b, cached, "cached"));
        json_object_set_new(b->json, "limit", json_string(b->limit));
        json_dumpf(b->json, stdout, JSON_INDENT(2));
        putchar('\n');
        return;
    }
    printf("\nA training step that takes longer than %.2f ms for %.0f samples does not wait for data here.\n"
           "The data path costs %.1f us of CPU a sample: %.1f in the reading process, %.1f in the download processes.\n"
           "The same steps over one batch in memory take %.3f ms: that is the copy into a batch alone.\n"
           "While it read it was limited by %s.\n",
           step_ms, samples, (reader_ms + fetch_ms) * 1e3 / samples, reader_ms * 1e3 / samples,
           fetch_ms * 1e3 / samples, mean_ms(cached), b->limit);
}

/* ---- the measurement ---- */

static void add_step(struct block *block, const struct mr_bench_step *step, double ms)
{
    block->steps++;
    block->samples += step->samples;
    block->bytes += step->bytes;
    block->wait_ns += step->wait_ns;
    block->ms_sum += ms;
    block->ms_squares += ms * ms;
}

static void add_block(struct block *sum, const struct block *block)
{
    sum->first = 1;
    sum->steps += block->steps;
    sum->samples += block->samples;
    sum->bytes += block->bytes;
    sum->wait_ns += block->wait_ns;
    sum->ms_sum += block->ms_sum;
    sum->ms_squares += block->ms_squares;
    for (unsigned i = 0; i < GROUPS; i++)
        sum->cpu_ns[i] += block->cpu_ns[i];
}

static int pass(struct bench *b, bool cached, struct block *sum)
{
    uint64_t readers = b->workers > 0 ? b->workers : 1;
    struct block block = {0};
    add_cpu(b, &block); /* what was before does not count */
    block = (struct block){.first = 1};
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
        print_block(b, &block, cached);
        block = (struct block){.first = i + 2};
        last_ns = mr_clock_mono_ns();
    }
    return 0;
}

/* The supervisor's own view is a mean of some seconds: a shorter run is judged by what was measured here. */
static int note_limit(struct bench *b, const struct block *data)
{
    double share = waiting(b, data);
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

static int measure(struct bench *b, const char *path)
{
    struct block data = {0}, cached = {0};
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
    print_head(b);
    if (pass(b, false, &data) != 0 || note_limit(b, &data) != 0 || keep(b) != 0 || pass(b, true, &cached) != 0)
        return -1;
    print_end(b, &data, &cached);
    if (fflush(stdout) == 0)
        return 0;
    mr_error_set_errno(errno, "standard output");
    return -1;
}

static json_t *head_json(const struct bench *b)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:i, s:i, s:[]}", "dataset", b->name, "objects", (json_int_t)b->info.count,
                     "bytes", (json_int_t)b->info.total_bytes, "largest_bytes", (json_int_t)b->info.max_size,
                     "batch_size", (int)b->batch, "workers", (int)b->workers, "blocks");
}

static int bench(const struct mr_options *options)
{
    const char *path = options->socket ? options->socket : getenv("MILLRACE_SOCKET");
    struct bench b = {.batch = options->batch_size > 0 ? (uint32_t)options->batch_size : BATCH,
                      .steps = options->steps > 0 ? options->steps : STEPS,
                      .workers = (uint32_t)options->workers};
    int rc = -1;
    b.client = mr_client_connect(path, "trainer", 0);
    if (!b.client || open_dataset(&b, options->dataset) != 0)
        goto out;
    if (options->json)
        b.json = head_json(&b);
    rc = measure(&b, path);
out:
    for (uint32_t i = 0; b.sockets && i < b.workers; i++)
        close(b.sockets[i]);
    free(b.sockets);
    mr_bench_reader_destroy(b.reader);
    mr_client_destroy(b.client);
    json_decref(b.json);
    return rc == 0 ? 0 : mr_verb_fail();
}

/* `millrace run [-c FILE] -- millrace bench ...` without the -c. */
static int supervise_self(const struct mr_options *options, int argc, char **argv)
{
    char self[PATH_MAX];
    char **command = calloc((size_t)argc + 2, sizeof *command);
    struct mr_options run = {.config = options->config, .verbosity = options->verbosity - 1};
    int count = 0;
    if (!command || mr_verb_sibling("millrace", self) != 0) {
        free(command);
        return mr_verb_fail();
    }
    command[count++] = self;
    command[count++] = argv[0];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "--config") == 0)
            i++;
        else if (strncmp(argv[i], "-c", 2) != 0 && strncmp(argv[i], "--config=", 9) != 0)
            command[count++] = argv[i];
    }
    int status = mr_verb_supervise(&run, command);
    free(command);
    return status;
}

int mr_verb_bench(int argc, char **argv, const struct mr_verb *verb)
{
    struct mr_options options;
    int status = mr_verb_parse(argc, argv, verb,
                               (const int[]){'c', MR_OPT_SOCKET, MR_OPT_DATASET, MR_OPT_BATCH_SIZE, MR_OPT_STEPS,
                                             MR_OPT_WORKERS, MR_OPT_JSON, 0},
                               &options);
    if (status >= 0)
        return status;
    const char *socket = options.socket ? options.socket : getenv("MILLRACE_SOCKET");
    bool joined = !options.config && socket && socket[0] != '\0';
    if (optind < argc || (options.config && options.socket))
        return mr_verb_wrong_usage(verb);
    if (!joined && !options.config && !options.dataset) {
        fprintf(stderr, "millrace bench needs -c FILE, --dataset URI, or a running supervisor (MILLRACE_SOCKET)\n");
        return mr_verb_wrong_usage(verb);
    }
    return joined ? bench(&options) : supervise_self(&options, argc, argv);
}
