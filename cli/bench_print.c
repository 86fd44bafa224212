/* bench_print.c - what `millrace bench` prints: a table with one line per block, or JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json_text.h"
#include "base/size.h"
#include "cli/bench_impl.h"

static const char *const group_names[] = {"reader", "download", "supervisor"};

static double mean_ms(const struct mr_bench_block *block)
{
    return block->ms_sum / (double)block->steps;
}

static double variance_ms2(const struct mr_bench_block *block)
{
    double mean = mean_ms(block), n = (double)block->steps;
    double variance = n > 1 ? (block->ms_squares - n * mean * mean) / (n - 1) : 0;
    return variance > 0 ? variance : 0;
}

static double seconds(const struct mr_bench_block *block)
{
    return block->ms_sum > 0 ? block->ms_sum / 1e3 : 1e-9;
}

double mr_bench_waiting(const struct mr_bench *b, const struct mr_bench_block *block)
{
    double all_ns = block->ms_sum * 1e6 * (b->workers > 1 ? b->workers : 1);
    double share = all_ns > 0 ? (double)block->wait_ns / all_ns : 0;
    return share < 1 ? share : 1;
}

static double cpu_ms(const struct mr_bench_block *block, enum mr_bench_group group)
{
    return (double)block->cpu_ns[group] / 1e6 / (double)block->steps;
}

static json_t *block_json(const struct mr_bench *b, const struct mr_bench_block *block, const char *kind)
{
    return json_pack(
        "{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "kind", kind, "first_step",
        (json_int_t)block->first, "steps", (json_int_t)block->steps, "step_mean_s", mean_ms(block) / 1e3,
        "step_variance_s2", variance_ms2(block) / 1e6, "samples_per_s", (double)block->samples / seconds(block),
        "bytes_per_s", (double)block->bytes / seconds(block), "waiting_ratio", mr_bench_waiting(b, block), "cpu_s",
        group_names[0], (double)block->cpu_ns[MR_BENCH_READER] / 1e9, group_names[1],
        (double)block->cpu_ns[MR_BENCH_FETCH] / 1e9, group_names[2], (double)block->cpu_ns[MR_BENCH_SUPERVISOR] / 1e9);
}

void mr_bench_print_block(struct mr_bench *b, const struct mr_bench_block *block, bool cached)
{
    if (b->json) {
        json_array_append_new(json_object_get(b->json, "blocks"), block_json(b, block, cached ? "cached" : "data"));
        return;
    }
    char steps[64];
    snprintf(steps, sizeof steps, "%s %" PRIu64 "-%" PRIu64, cached ? "cached" : "data", block->first,
             block->first + block->steps - 1);
    printf("%-16s %9.3f %9.3f %11.0f %9.1f %7.0f%% %9.3f %9.3f %11.3f\n", steps, mean_ms(block),
           sqrt(variance_ms2(block)), (double)block->samples / seconds(block),
           (double)block->bytes / 1048576 / seconds(block), mr_bench_waiting(b, block) * 100,
           cpu_ms(block, MR_BENCH_READER), cpu_ms(block, MR_BENCH_FETCH), cpu_ms(block, MR_BENCH_SUPERVISOR));
    fflush(stdout);
}

void mr_bench_print_head(const struct mr_bench *b)
{
    char readers[40] = "this process reads";
    if (b->json)
        return;
    if (b->workers > 0)
        snprintf(readers, sizeof readers, "%u worker processes read", b->workers);
    char bytes[32], largest[32], name[MR_ERROR_TEXT];
    snprintf(name, sizeof name, "%s", b->name);
    mr_error_make_printable(name);
    printf("%s: %" PRIu64 " objects, %s, the largest %s; batches of %u, %s\n", name, b->info.count,
           mr_size_text((double)b->info.total_bytes, bytes), mr_size_text((double)b->info.max_size, largest), b->batch,
           readers);
    printf("first batch after %.0f ms\n\n", b->first_ms);
    printf("%-16s %9s %9s %11s %9s %8s %31s\n%-16s %9s %9s %11s %9s %8s %9s %9s %11s\n", "", "ms", "standard", "", "",
           "", "CPU ms a step in", "steps", "a step", "deviation", "samples/s", "MiB/s", "waiting", group_names[0],
           group_names[1], group_names[2]);
}

void mr_bench_print_end(struct mr_bench *b, const struct mr_bench_block *data, const struct mr_bench_block *cached)
{
    double step_ms = mean_ms(data), samples = (double)data->samples / (double)data->steps;
    double reader_ms = cpu_ms(data, MR_BENCH_READER) - cpu_ms(cached, MR_BENCH_READER);
    double fetch_ms = cpu_ms(data, MR_BENCH_FETCH) + cpu_ms(data, MR_BENCH_SUPERVISOR);
    if (b->json) {
        json_object_set_new(b->json, "first_batch_s", json_real(b->first_ms / 1e3));
        json_object_set_new(b->json, "data", block_json(b, data, "data"));
        json_object_set_new(b->json, "cached", block_json(b, cached, "cached"));
        json_object_set_new(b->json, "limit", json_string(b->limit));
        json_dumpf(b->json, stdout, JSON_INDENT(2));
        putchar('\n');
        return;
    }
    mr_error_make_printable(b->limit);
    printf("\nA training step that takes longer than %.2f ms for %.0f samples does not wait for data here.\n"
           "The data path costs %.1f us of CPU a sample: %.1f in the reading process, %.1f in the download processes.\n"
           "The same steps over one batch in memory take %.3f ms: that is the copy into a batch alone.\n"
           "While it read it was limited by %s.\n",
           step_ms, samples, (reader_ms + fetch_ms) * 1e3 / samples, reader_ms * 1e3 / samples,
           fetch_ms * 1e3 / samples, mean_ms(cached), b->limit);
}

json_t *mr_bench_head_json(const struct mr_bench *b)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:i, s:i, s:[]}", "dataset", mr_json_from_text(b->name), "objects",
                     (json_int_t)b->info.count, "bytes", (json_int_t)b->info.total_bytes, "largest_bytes",
                     (json_int_t)b->info.max_size, "batch_size", (int)b->batch, "workers", (int)b->workers, "blocks");
}
