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

/* ---- numbers ---- */

static const json_t *find(const json_t *root, const char *list, const json_t *like, const char *key, const char *same)
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

/* A counter of a worker or lane: its growth a second since the reading before. */
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
    long long in_flight, limit, retries, throttled, used, arena, lanes, pending, filling, ready, held;
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

static struct sums add_up(const struct mr_top *top)
{
    struct sums sums = {0};
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(top->now, "workers"), i, item)
    {
        const json_t *counters = json_object_get(item, "counters");
        const json_t *before = find(top->before, "workers", item, "slot", "role");
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
        sums.samples_s += rate(top, item, find(top->before, "lanes", item, "lane", "pid"), "samples");
        sums.pending += mr_json_integer(item, "pending");
        sums.filling += mr_json_integer(item, "filling");
        sums.ready += mr_json_integer(item, "ready");
        sums.held += mr_json_integer(item, "held");
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

void mr_top_print_line(const struct mr_top *top)
{
    struct sums sums = add_up(top);
    char clock[16];
    time_t now = time(NULL);
    struct tm tm;
    strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
    printf(
        "%s  %8.0f objects/s %9.1f MiB/s  %lld of %lld in flight  arena %3.0f%%  %lld readers %8.0f samples/s waiting "
        "%3.0f%%  %lld retries %lld throttled  limited by %s\n",
        clock, sums.objects_s, sums.bytes_s / 1048576, sums.in_flight, sums.limit, percent(sums.used, sums.arena),
        sums.lanes, sums.samples_s, sums.waiting * 100, sums.retries, sums.throttled,
        mr_json_text(json_object_get(top->now, "limit"), "text"));
}

/* The verdict, in as many lines as it needs. */
static void write_limit(const struct mr_top *top, unsigned columns, FILE *out)
{
    const char *text = mr_json_text(json_object_get(top->now, "limit"), "text");
    unsigned at = (unsigned)fprintf(out, "limited by"), indent = at;

    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (at + 1 + length > columns && at > indent) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
        }
        at += (unsigned)fprintf(out, " %.*s", (int)length, text);
        text += length + strspn(text + length, " ");
    }
    fputs("\n", out);
}

static void write_head(const struct mr_top *top, unsigned columns, FILE *out)
{
    struct sums sums = add_up(top);
    fprintf(out, "millrace %s   supervisor %lld %s   up %.0f s   run %.8s\n\n", mr_json_text(top->now, "version"),
            mr_json_integer(top->now, "pid"), mr_json_text(top->now, "state"), mr_json_real(top->now, "uptime_s"),
            mr_json_text(top->now, "run_id"));
    char speed[32];
    fprintf(out, "download  %.0f objects/s   %s/s   %lld of %lld in flight   %lld retries   %lld throttled\n",
            sums.objects_s, mr_size_text(sums.bytes_s, speed), sums.in_flight, sums.limit, sums.retries,
            sums.throttled);
    fprintf(out, "readers   %lld open   %.0f samples/s   waiting %.0f%% of the time\n", sums.lanes, sums.samples_s,
            sums.waiting * 100);
    const json_t *memory = json_object_get(top->now, "memory");
    char used[32], arena[32], backed[64] = "", size[32];
    if (json_is_true(json_object_get(memory, "grows")))
        snprintf(backed, sizeof backed, "; it has grown to %s",
                 mr_size_text((double)mr_json_integer(memory, "backed_bytes"), size));
    fprintf(out, "arena     %s of %s (%.0f%%)%s\n", mr_size_text((double)sums.used, used),
            mr_size_text((double)sums.arena, arena), percent(sums.used, sums.arena), backed);
    const json_t *batches = json_object_get(top->now, "batches");
    if (mr_json_integer(batches, "arenas") > 0)
        fprintf(out, "batches   %s of %s for %lld loaders\n",
                mr_size_text((double)mr_json_integer(batches, "memory_bytes"), used),
                mr_size_text((double)mr_json_integer(batches, "limit_bytes"), arena),
                mr_json_integer(batches, "arenas"));
    write_limit(top, columns, out);
}

static void write_datasets(const struct mr_top *top, FILE *out)
{
    fprintf(out, "\n%-8s %-8s %12s %12s  %s\n", "data set", "state", "objects", "bytes", "name");
    size_t i;
    json_t *item;
    char bytes[32];
    json_array_foreach(json_object_get(top->now, "datasets"), i, item)
    {
        const char *state = mr_json_text(item, "state");
        bool listing = strcmp(state, "listing") == 0;
        fprintf(out, "%-8lld %-8s %12lld %12s  %s%s%s\n", mr_json_integer(item, "dataset"), state,
                mr_json_integer(item, listing ? "listed" : "objects"),
                mr_size_text((double)mr_json_integer(item, "bytes"), bytes), mr_json_text(item, "name"),
                mr_json_text(item, "error")[0] != '\0' ? ": " : "", mr_json_text(item, "error"));
    }
}

/* How the number of requests in flight is found: `connection_phase`; or what the store takes in a second. */
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

static void write_workers(const struct mr_top *top, FILE *out)
{
    fprintf(out, "\n%-8s %-8s %8s %9s %10s %9s %-7s %9s %7s %7s\n", "worker", "state", "process", "objects/s",
            "bytes/s", "in flight", "", "arena", "retries", "429s");
    size_t i;
    json_t *item;
    char speed[32], used[32], phase[24];
    json_array_foreach(json_object_get(top->now, "workers"), i, item)
    {
        const json_t *counters = json_object_get(item, "counters");
        const json_t *before = find(top->before, "workers", item, "slot", "role");
        char flight[48] = "-";
        if (!is_fetch_worker(item) && strcmp(mr_json_text(item, "state"), "none") == 0)
            continue; /* a list worker that is done */
        char name[32];
        snprintf(name, sizeof name, "%s %lld", mr_json_text(item, "role"), mr_json_integer(item, "slot"));
        if (is_fetch_worker(item))
            snprintf(flight, sizeof flight, "%lld/%lld", mr_json_integer(counters, "in_flight"),
                     mr_json_integer(counters, "connection_limit"));
        fprintf(out, "%-8s %-8s %8lld %9.0f %10s %9s %-7s %9s %7lld %7lld\n", name, mr_json_text(item, "state"),
                mr_json_integer(item, "pid"),
                rate(top, item, before,
                     is_fetch_worker(item) ? "fetched_objects"
                     : is_writer(item)     ? "uploads_done"
                                           : "listed_objects"),
                mr_size_text(rate(top, item, before, is_writer(item) ? "stored_part_bytes" : "fetched_bytes"), speed),
                flight, is_fetch_worker(item) ? phase_text(counters, phase) : "",
                mr_size_text((double)arena_used(counters), used), mr_json_integer(counters, "retries"),
                mr_json_integer(counters, "throttled"));
    }
}

static void write_lanes(const struct mr_top *top, FILE *out)
{
    if (json_array_size(json_object_get(top->now, "lanes")) == 0)
        return;
    fprintf(out, "\n%-6s %-8s %8s %9s %8s %7s %7s %7s %7s %5s\n", "reader", "state", "process", "samples/s", "waiting",
            "window", "asked", "fetched", "ready", "held");
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(top->now, "lanes"), i, item)
    {
        fprintf(out, "%-6lld %-8s %8lld %9.0f %7.0f%% %7lld %7lld %7lld %7lld %5lld\n", mr_json_integer(item, "lane"),
                mr_json_text(item, "state"), mr_json_integer(item, "pid"),
                rate(top, item, find(top->before, "lanes", item, "lane", "pid"), "samples"),
                mr_json_real(item, "waiting_ratio") * 100, mr_json_integer(item, "window"),
                mr_json_integer(item, "pending"), mr_json_integer(item, "filling"), mr_json_integer(item, "ready"),
                mr_json_integer(item, "held"));
    }
}

/* Ranks side by side: where the time of a step goes. */
static void write_loops(const struct mr_top *top, FILE *out)
{
    const json_t *loops = json_object_get(top->now, "loops");
    if (json_array_size(loops) == 0)
        return;
    fprintf(out, "\n%-4s %5s %7s %8s %6s  %-22s %8s %9s %8s %9s %8s\n", "rank", "epoch", "workers", "step ms", "waits",
            "for", "store", "transform", "collate", "transport", "process");
    size_t i;
    json_t *item;
    json_array_foreach(loops, i, item)
    {
        const json_t *waits = json_object_get(item, "waits_ms");
        const char *stage = mr_json_text(item, "stage"), *cause = mr_json_text(item, "cause");
        char what[64] = "nothing";
        if (strcmp(stage, "none") != 0)
            snprintf(what, sizeof what, "%s (%s)", stage, cause);
        fprintf(out, "%-4lld %5lld %7lld %8.1f %5.0f%%  %-22s %8.1f %9.1f %8.1f %9.1f %8lld\n",
                mr_json_integer(item, "rank"), mr_json_integer(item, "epoch"), mr_json_integer(item, "num_workers"),
                mr_json_real(item, "step_ms"), mr_json_real(item, "wait_ratio") * 100, what,
                mr_json_real(waits, "store"), mr_json_real(waits, "transform"), mr_json_real(waits, "collate"),
                mr_json_real(waits, "transport"), mr_json_integer(item, "pid"));
    }
}

static void write_writers(const struct mr_top *top, FILE *out)
{
    const json_t *checkpoint = json_object_get(top->now, "checkpoint");
    if (mr_json_integer(checkpoint, "arena_bytes") == 0)
        return;
    char free_text[32], arena[32];
    fprintf(out, "\ncheckpoints   %s free of %s   %lld wait\n",
            mr_size_text((double)mr_json_integer(checkpoint, "arena_free_bytes"), free_text),
            mr_size_text((double)mr_json_integer(checkpoint, "arena_bytes"), arena),
            mr_json_integer(checkpoint, "waiting"));
    size_t i;
    json_t *item;
    char stored[32], total[32];
    json_array_foreach(json_object_get(checkpoint, "writers"), i, item)
    {
        fprintf(out, "%-8lld %-8s %8lld %10s of %10s  %s\n", mr_json_integer(item, "writer"),
                mr_json_text(item, "state"), mr_json_integer(item, "pid"),
                mr_size_text((double)mr_json_integer(item, "stored_bytes"), stored),
                mr_size_text((double)mr_json_integer(item, "total_bytes"), total), mr_json_text(item, "uri"));
    }
}

/* A line cut to the screen's width; what could move the cursor is not let through: names come from stores. */
static void put_line(const char *line, size_t length, unsigned columns, FILE *out)
{
    unsigned column = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)line[i];
        if ((c & 0xc0) != 0x80 && column++ >= columns)
            break;
        putc(c < 0x20 || c == 0x7f ? '?' : c, out);
    }
    fputs("\033[K", out);
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
    unsigned rows = known ? window.ws_row : 24, columns = known ? window.ws_col : 80, row = 0;
    write_head(top, columns, lines);
    write_loops(top, lines);
    write_datasets(top, lines);
    write_workers(top, lines);
    write_lanes(top, lines);
    write_writers(top, lines);
    fclose(lines);
    fputs("\033[H", stdout);
    for (const char *line = text; *line != '\0' && row < rows; row++) {
        const char *end = strchrnul(line, '\n');
        bool last = row + 1 == rows && *end != '\0' && end[1] != '\0';
        fputs(row > 0 ? "\n" : "", stdout);
        put_line(last ? "..." : line, last ? 3 : (size_t)(end - line), columns, stdout);
        line = *end != '\0' ? end + 1 : end;
    }
    fputs("\033[J", stdout);
    free(text);
    return 0;
}
