/* top_draw.c - what `millrace top` shows: the sums and rates between two readings, as a screen or as a line. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "cli/json_get.h"
#include "cli/top_impl.h"
#include "cli/top_screen.h"

#define BREAK "   " /* where a line of the head may be continued on the next one */

/* ---- numbers ---- */

/* The member of root's list whose `key` and `same` are those of `like`; NULL: none, or root is NULL. */
static const json_t *top_draw_find(const json_t *root, const char *list, const json_t *like, const char *key,
                                   const char *same)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, list), i, item)
    {
        if (mr_json_integer(item, key) == mr_json_integer(like, key) &&
            json_equal(json_object_get(item, same), json_object_get(like, same)))
            return item;
    }
    return NULL;
}

/* How much a counter of a worker, lane or loader has grown per second since the reading before; 0 without one. */
static double rate(const struct mr_top *top, const json_t *item, const json_t *before, const char *counter)
{
    double seconds = (double)(top->now_ns - top->before_ns) / 1e9;
    if (!top->before || seconds <= 0)
        return 0;
    long long grown = mr_json_integer(json_object_get(item, "counters"), counter) -
                      mr_json_integer(json_object_get(before, "counters"), counter);
    return grown > 0 ? (double)grown / seconds : 0;
}

struct sums {
    double objects_s, bytes_s, samples_s, waiting;
    long long in_flight, limit, retries, throttled, used, arena, lanes;
};

static bool is_fetch_worker(const json_t *worker)
{
    return strcmp(mr_json_text(worker, "role"), "fetch") == 0;
}

static bool is_writer(const json_t *worker)
{
    return strcmp(mr_json_text(worker, "role"), "write") == 0;
}

static long long arena_used(const json_t *counters)
{
    return mr_json_integer(counters, "arena_bytes") - mr_json_integer(counters, "arena_free_bytes");
}

/* Rates are since the reading before; retries and throttled are totals. `waiting` is the mean of the open lanes. */
static struct sums add_up(const struct mr_top *top)
{
    struct sums sums = {0};
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(top->now, "workers"), i, item)
    {
        const json_t *counters = json_object_get(item, "counters");
        const json_t *before = top_draw_find(top->before, "workers", item, "slot", "role");
        sums.retries += mr_json_integer(counters, "retries");
        sums.throttled += mr_json_integer(counters, "throttled");
        if (!is_fetch_worker(item))
            continue;
        sums.objects_s += rate(top, item, before, "fetched_objects");
        sums.bytes_s += rate(top, item, before, "fetched_bytes");
        sums.in_flight += mr_json_integer(counters, "in_flight");
        sums.limit += mr_json_integer(counters, "connection_limit");
        sums.used += arena_used(counters);
    }
    json_array_foreach(json_object_get(top->now, "lanes"), i, item)
    {
        sums.samples_s += rate(top, item, top_draw_find(top->before, "lanes", item, "lane", "pid"), "samples");
        if (strcmp(mr_json_text(item, "state"), "open") == 0) {
            sums.waiting += mr_json_real(item, "waiting_ratio");
            sums.lanes++;
        }
    }
    if (sums.lanes > 0)
        sums.waiting /= (double)sums.lanes;
    const json_t *memory = json_object_get(top->now, "memory");
    sums.arena = mr_json_integer(memory, "arenas") * mr_json_integer(memory, "arena_bytes");
    return sums;
}

static double percent(long long part, long long whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* ---- what is shown ---- */

static const char *plural(long long count)
{
    return count == 1 ? "" : "s";
}

void mr_top_print_line(const struct mr_top *top)
{
    struct sums sums = add_up(top);
    char clock[16];
    time_t now = time(NULL);
    struct tm tm;
    strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
    printf(
        "%s  %8.0f objects/s %9.1f MiB/s  %lld of %lld in flight  arena %3.0f%%  %lld reader%s %8.0f samples/s waiting "
        "%3.0f%%  %lld retries %lld throttled  limited by %s\n",
        clock, sums.objects_s, sums.bytes_s / 1048576, sums.in_flight, sums.limit, percent(sums.used, sums.arena),
        sums.lanes, plural(sums.lanes), sums.samples_s, sums.waiting * 100, sums.retries, sums.throttled,
        mr_json_text(json_object_get(top->now, "limit"), "text"));
}

static void write_arenas(const struct mr_top *top, const struct sums *sums, unsigned columns, FILE *out)
{
    char used[32], whole[32], size[32], text[256];
    const json_t *memory = json_object_get(top->now, "memory");
    int at = snprintf(text, sizeof text, "%s of %s (%.0f%%)", mr_size_text((double)sums->used, used),
                      mr_size_text((double)sums->arena, whole), percent(sums->used, sums->arena));
    if (json_is_true(json_object_get(memory, "grows")))
        snprintf(text + at, sizeof text - (size_t)at, BREAK "has grown to %s",
                 mr_size_text((double)mr_json_integer(memory, "backed_bytes"), size));
    mr_top_write_wrapped("arena      ", text, BREAK, columns, out);
    const json_t *batches = json_object_get(top->now, "batches");
    long long loaders = mr_json_integer(batches, "arenas");
    snprintf(text, sizeof text, "%s of %s for %lld loader%s",
             mr_size_text((double)mr_json_integer(batches, "memory_bytes"), used),
             mr_size_text((double)mr_json_integer(batches, "limit_bytes"), whole), loaders, plural(loaders));
    if (loaders > 0)
        mr_top_write_wrapped("batches    ", text, BREAK, columns, out);
    const json_t *checkpoint = json_object_get(top->now, "checkpoint");
    snprintf(text, sizeof text, "%s free of %s" BREAK "%lld waiting for memory",
             mr_size_text((double)mr_json_integer(checkpoint, "arena_free_bytes"), used),
             mr_size_text((double)mr_json_integer(checkpoint, "arena_bytes"), whole),
             mr_json_integer(checkpoint, "waiting"));
    if (mr_json_integer(checkpoint, "arena_bytes") > 0)
        mr_top_write_wrapped("checkpoint ", text, BREAK, columns, out);
}

static void write_head(const struct mr_top *top, unsigned columns, FILE *out)
{
    struct sums sums = add_up(top);
    char text[256], speed[32];
    snprintf(text, sizeof text, "%s" BREAK "supervisor %lld %s" BREAK "up %.0f s" BREAK "run %.8s",
             mr_json_text(top->now, "version"), mr_json_integer(top->now, "pid"), mr_json_text(top->now, "state"),
             mr_json_real(top->now, "uptime_s"), mr_json_text(top->now, "run_id"));
    mr_top_write_wrapped("millrace   ", text, BREAK, columns, out);
    snprintf(text, sizeof text,
             "%.0f objects/s" BREAK "%s/s" BREAK "%lld of %lld in flight" BREAK "%lld retries" BREAK "%lld throttled",
             sums.objects_s, mr_size_text(sums.bytes_s, speed), sums.in_flight, sums.limit, sums.retries,
             sums.throttled);
    mr_top_write_wrapped("download   ", text, BREAK, columns, out);
    snprintf(text, sizeof text, "%lld reader%s" BREAK "%.0f samples/s" BREAK "waiting %.0f%% of the time", sums.lanes,
             plural(sums.lanes), sums.samples_s, sums.waiting * 100);
    mr_top_write_wrapped("samples    ", text, BREAK, columns, out);
    write_arenas(top, &sums, columns, out);
    mr_top_write_wrapped("limited by ", mr_json_text(json_object_get(top->now, "limit"), "text"), " ", columns, out);
}

static void write_datasets(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const struct mr_top_column shown[] = {{"data set", -8, 3}, {"state", -8, 2}, {"objects", 12, 0},
                                                 {"bytes", 12, 1},    {"", 0, 0},       {"name", -1, 0}};
    struct mr_top_table table;
    size_t i;
    json_t *item;
    char bytes[32];
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(json_object_get(top->now, "datasets"), i, item)
    {
        const char *state = mr_json_text(item, "state"), *error = mr_json_text(item, "error");
        bool listing = strcmp(state, "listing") == 0;
        mr_top_cell(&table, "%lld", mr_json_integer(item, "dataset"));
        mr_top_cell(&table, "%s", state);
        mr_top_cell(&table, "%lld", mr_json_integer(item, listing ? "listed" : "objects"));
        mr_top_cell(&table, "%s", mr_size_text((double)mr_json_integer(item, "bytes"), bytes));
        mr_top_cell(&table, "%s", "");
        mr_top_cell(&table, "%s%s%s", mr_json_text(item, "name"), *error != '\0' ? ": " : "", error);
    }
}

/* How the number of requests in flight is being found (`connection_phase`), or how many the store accepts per second.
 * text: room for the result, which need not be in it. */
static const char *phase_text(const json_t *counters, char text[24])
{
    long long phase = mr_json_integer(counters, "connection_phase"), most = mr_json_integer(counters, "request_rate");
    if (most > 0) {
        snprintf(text, 24, "%lld/s", most);
        return text;
    }
    static const char *const phases[] = {"set", "growing", "held", "more?", "fewer?"};
    return phase >= 0 && phase < (long long)(sizeof phases / sizeof *phases) ? phases[phase] : "";
}

static void write_workers(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const struct mr_top_column shown[] = {
        {"worker", -8, 0},   {"state", -8, 3}, {"process", 8, 4}, {"objects/s", 9, 0}, {"bytes/s", 10, 0},
        {"in flight", 9, 0}, {"", -7, 5},      {"arena", 9, 1},   {"retries", 7, 2},   {"throttled", 9, 2}};
    struct mr_top_table table;
    size_t i;
    json_t *item;
    char speed[32], used[32], phase[24];
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(json_object_get(top->now, "workers"), i, item)
    {
        const json_t *counters = json_object_get(item, "counters");
        const json_t *before = top_draw_find(top->before, "workers", item, "slot", "role");
        bool fetches = is_fetch_worker(item), writes = is_writer(item);
        if (!fetches && strcmp(mr_json_text(item, "state"), "none") == 0)
            continue; /* a list worker that is done */
        const char *objects = fetches ? "fetched_objects" : writes ? "uploads_done" : "listed_objects";
        mr_top_cell(&table, "%s %lld", mr_json_text(item, "role"), mr_json_integer(item, "slot"));
        mr_top_cell(&table, "%s", mr_json_text(item, "state"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "pid"));
        mr_top_cell(&table, "%.0f", rate(top, item, before, objects));
        mr_top_cell(&table, "%s",
                    mr_size_text(rate(top, item, before, writes ? "stored_part_bytes" : "fetched_bytes"), speed));
        if (fetches)
            mr_top_cell(&table, "%lld/%lld", mr_json_integer(counters, "in_flight"),
                        mr_json_integer(counters, "connection_limit"));
        else
            mr_top_cell(&table, "%s", "-");
        mr_top_cell(&table, "%s", fetches ? phase_text(counters, phase) : "");
        mr_top_cell(&table, "%s", mr_size_text((double)arena_used(counters), used));
        mr_top_cell(&table, "%lld", mr_json_integer(counters, "retries"));
        mr_top_cell(&table, "%lld", mr_json_integer(counters, "throttled"));
    }
}

static void write_lanes(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const struct mr_top_column shown[] = {
        {"reader", -6, 0}, {"state", -8, 2}, {"process", 8, 3}, {"samples/s", 9, 0}, {"waiting", 8, 0},
        {"window", 7, 1},  {"asked", 7, 1},  {"fetched", 7, 1}, {"ready", 7, 0},     {"held", 5, 1}};
    if (json_array_size(json_object_get(top->now, "lanes")) == 0)
        return;
    struct mr_top_table table;
    size_t i;
    json_t *item;
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(json_object_get(top->now, "lanes"), i, item)
    {
        mr_top_cell(&table, "%lld", mr_json_integer(item, "lane"));
        mr_top_cell(&table, "%s", mr_json_text(item, "state"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "pid"));
        mr_top_cell(&table, "%.0f",
                    rate(top, item, top_draw_find(top->before, "lanes", item, "lane", "pid"), "samples"));
        mr_top_cell(&table, "%.0f%%", mr_json_real(item, "waiting_ratio") * 100);
        mr_top_cell(&table, "%lld", mr_json_integer(item, "window"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "pending"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "filling"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "ready"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "held"));
    }
}

/* Ranks side by side: where the time of a step goes. */
static void write_loops(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const char *const stages[] = {"store",     "transform", "collate",   "extent",
                                         "transport", "device",    "checkpoint"};
    static const struct mr_top_column shown[] = {
        {"rank", -4, 0},  {"epoch", 5, 6},     {"workers", 7, 4}, {"step ms", 8, 0},     {"waits", 6, 0},
        {"", 0, 0},       {"for", -22, 0},     {"store", 7, 2},   {"transform", 9, 1},   {"collate", 7, 2},
        {"extent", 8, 8}, {"transport", 9, 2}, {"device", 8, 8},  {"checkpoint", 10, 7}, {"process", 8, 5}};
    const json_t *loops = json_object_get(top->now, "loops");
    if (json_array_size(loops) == 0)
        return;
    struct mr_top_table table;
    size_t i;
    json_t *item;
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(loops, i, item)
    {
        const json_t *waits = json_object_get(item, "waits_ms");
        const char *stage = mr_json_text(item, "stage"), *cause = mr_json_text(item, "cause");
        double step_ms = mr_json_real(item, "step_ms"), share = mr_json_real(item, "wait_ratio");
        if (strcmp(stage, "checkpoint") == 0 && step_ms > 0)
            share = mr_json_real(waits, "checkpoint") / step_ms;
        mr_top_cell(&table, "%lld", mr_json_integer(item, "rank"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "epoch"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "num_workers"));
        mr_top_cell(&table, "%.1f", step_ms);
        mr_top_cell(&table, "%.0f%%", share * 100);
        mr_top_cell(&table, "%s", "");
        if (strcmp(stage, "none") == 0)
            mr_top_cell(&table, "%s", "nothing");
        else
            mr_top_cell(&table, "%s (%s)", stage, cause);
        for (size_t k = 0; k < sizeof stages / sizeof *stages; k++)
            mr_top_cell(&table, "%.1f", mr_json_real(waits, stages[k]));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "pid"));
    }
}

static void write_writers(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const struct mr_top_column shown[] = {{"saving", -8, 2}, {"state", -8, 0}, {"process", 8, 3},
                                                 {"stored", 10, 0}, {"of", 10, 1},    {"", 0, 0},
                                                 {"object", -1, 0}};
    const json_t *writers = json_object_get(json_object_get(top->now, "checkpoint"), "writers");
    if (json_array_size(writers) == 0)
        return;
    struct mr_top_table table;
    size_t i;
    json_t *item;
    char size[32];
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(writers, i, item)
    {
        mr_top_cell(&table, "%lld", mr_json_integer(item, "writer"));
        mr_top_cell(&table, "%s", mr_json_text(item, "state"));
        mr_top_cell(&table, "%lld", mr_json_integer(item, "pid"));
        mr_top_cell(&table, "%s", mr_size_text((double)mr_json_integer(item, "stored_bytes"), size));
        mr_top_cell(&table, "%s", mr_size_text((double)mr_json_integer(item, "total_bytes"), size));
        mr_top_cell(&table, "%s", "");
        mr_top_cell(&table, "%s", mr_json_text(item, "uri"));
    }
}

static void write_loader(struct mr_top_table *table, const struct mr_top *top, const json_t *now, const json_t *before)
{
    static const char *const stages[] = {"store_ns", "transform_ns", "extent_ns", "collate_ns", "pack_ns"};
    double batches_s = rate(top, now, before, "batches"), busy = 0;

    mr_top_cell(table, "%lld", mr_json_integer(now, "loader"));
    mr_top_cell(table, "%.1f", batches_s);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        double ns_s = rate(top, now, before, stages[i]);
        busy += i == 0 || i == 2 ? 0 : ns_s; /* it waits for samples and for memory */
        mr_top_cell(table, "%.1f", batches_s > 0 ? ns_s / batches_s / 1e6 : 0);
    }
    mr_top_cell(table, "%.0f%%", busy > 0 ? 100 * rate(top, now, before, "cpu_ns") / busy : 0);
}

/* How long each DataLoader worker takes for a batch: one may be slower than the others. Returns how many sections it
 * wrote. */
static unsigned write_loaders(const struct mr_top *top, unsigned columns, FILE *out)
{
    static const struct mr_top_column shown[] = {{"rank", -4, 0},    {"worker", 6, 0},    {"batches/s", 9, 0},
                                                 {"store ms", 9, 0}, {"transform", 9, 0}, {"extent", 8, 2},
                                                 {"collate", 8, 1},  {"packing", 8, 1},   {"CPU", 6, 0}};
    const json_t *loops = json_object_get(top->now, "loops");
    struct mr_top_table table;
    size_t i, k;
    json_t *loop, *loader;
    if (json_array_size(loops) == 0)
        return 0;
    mr_top_table_begin(&table, shown, sizeof shown / sizeof *shown, columns, out);
    json_array_foreach(loops, i, loop)
    {
        const json_t *was = json_object_get(top_draw_find(top->before, "loops", loop, "loop", "pid"), "loaders");
        json_array_foreach(json_object_get(loop, "loaders"), k, loader)
        {
            mr_top_cell(&table, "%lld", mr_json_integer(loop, "rank"));
            write_loader(&table, top, loader, json_array_get(was, k));
        }
    }
    return 1;
}

int mr_top_draw(const struct mr_top *top)
{
    struct winsize window = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *lines = open_memstream(&text, &size);
    if (!lines) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a screen");
        return -1;
    }
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && window.ws_col > 0;
    unsigned rows = known ? window.ws_row : 24, columns = known ? window.ws_col : 80;
    write_head(top, columns, lines);
    write_loops(top, columns, lines);
    write_datasets(top, columns, lines);
    write_writers(top, columns, lines);
    write_workers(top, columns, lines);
    write_lanes(top, columns, lines);
    unsigned optional = write_loaders(top, columns, lines);
    fclose(lines);
    int rc = mr_top_put_screen(text, optional, rows, columns, stdout);
    free(text);
    return rc;
}
