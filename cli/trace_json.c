/*
 * trace_json.c - spans as trace events (JSON), which ui.perfetto.dev and chrome://tracing open.
 *
 * A span that lies within others of its thread, or beside them, is a complete event ("X"): the threads' tracks. Those
 * that overlap (requests, tickets, checkpoints, the steps of a loop with two loaders) are pairs of "b" and "e" with an id
 * of their own.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "cli/running.h"
#include "cli/trace_impl.h"

/* A reader has as many tickets as it looks ahead: they are shown as a process of their own, or they would hide other
 * spans. */
#define TICKETS_PID 100000000u /* + the reader's; pids are below 2^22 */

enum { LOOP, LOADER, READER, WRITER, WORKER }; /* the order on the screen */

/* What a record's fields are called in the span's arguments; NULL: this kind does not have the field. */
struct row {
    const char *name, *category;
    bool overlaps;
    const char *object, *number, *code, *text;
    const char *const *codes; /* by value, up to NULL; NULL: it is a number */
    bool bytes, dataset;
    int order;
};

static const char *const outcomes[] = {"undecided", "done", "failed", "given up", NULL}; /* enum mr_ckpt_part_outcome */

/* clang-format off */
static const struct row rows[MR_SPAN_KINDS] = {
    [MR_SPAN_REQUEST] = {.name = "request", .category = "request", .overlaps = true, .code = "status", .text = "path", .bytes = true, .order = WORKER},
    [MR_SPAN_TICKET] = {.name = "ticket", .category = "ticket", .overlaps = true, .object = "object", .bytes = true, .dataset = true, .order = READER},
    [MR_SPAN_READ] = {.name = "wait for a sample", .category = "read", .object = "object", .bytes = true, .dataset = true, .order = READER},
    [MR_SPAN_TRANSFORM] = {.name = "transform", .category = "sample", .object = "object", .order = READER},
    [MR_SPAN_SAMPLES] = {.name = "samples", .category = "batch", .number = "worker", .order = LOADER},
    [MR_SPAN_EXTENT] = {.name = "wait for batch memory", .category = "batch", .number = "worker", .order = LOADER},
    [MR_SPAN_COLLATE] = {.name = "collate", .category = "batch", .number = "worker", .order = LOADER},
    [MR_SPAN_PACK] = {.name = "pack", .category = "batch", .number = "worker", .order = LOADER},
    [MR_SPAN_WAIT] = {.name = "wait for a batch", .category = "loop", .object = "epoch", .number = "rank", .code = "worker", .order = LOOP},
    [MR_SPAN_STEP] = {.name = "step", .category = "loop", .object = "epoch", .number = "rank", .order = LOOP},
    [MR_SPAN_DEVICE] = {.name = "copy to the device", .category = "batch", .bytes = true, .order = LOADER},
    [MR_SPAN_SAVE] = {.name = "save", .category = "checkpoint", .overlaps = true, .text = "uri", .bytes = true, .order = READER},
    [MR_SPAN_UPLOAD] = {.name = "upload", .category = "checkpoint", .overlaps = true, .code = "outcome", .codes = outcomes, .text = "uri", .bytes = true, .order = WRITER},
};
/* clang-format on */

/* ---- processes ---- */

/* Names it by its program, without the path, and its arguments: "python train.py". */
static void read_command(struct mr_traced_process *process)
{
    char text[256];
    mr_running_command((pid_t)process->pid, text, sizeof text);
    size_t end = strcspn(text, " "), at = end;
    while (at > 0 && text[at - 1] != '/')
        at--;
    snprintf(process->name, sizeof process->name, "%.*s", (int)sizeof process->name - 1,
             text[at] ? text + at : "process");
}

/* Adds the process, named by its command, if it is new. NULL: the table is full, or could not be allocated. */
static struct mr_traced_process *find_process(struct mr_trace_output *output, uint32_t pid)
{
    for (unsigned i = output->process_count; i-- > 0;)
        if (output->processes[i].pid == pid)
            return &output->processes[i];
    if (output->process_count == MR_TRACE_PROCESSES || !output->processes)
        return NULL;
    struct mr_traced_process *made = &output->processes[output->process_count++];
    *made = (struct mr_traced_process){.pid = pid, .order = WORKER + 1};
    read_command(made);
    return made;
}

static void find_parents(struct mr_traced_process *process)
{
    uint32_t pid = process->pid;
    for (unsigned i = 0; i < MR_TRACE_PARENTS && pid > 1; i++)
        process->parents[i] = pid = (uint32_t)mr_running_parent((pid_t)pid);
}

/* The lowest order among a process's spans says what it is: notes that, and names it. */
static void learn(struct mr_trace_output *output, const struct mr_trace_record *record)
{
    struct mr_traced_process *process = find_process(output, record->pid);
    int order = rows[record->kind].order;
    if (!process)
        return;
    process->has_tickets |= record->kind == MR_SPAN_TICKET;
    if (order >= process->order)
        return;
    process->order = order;
    if (order == LOOP) {
        process->rank = record->number;
        snprintf(process->name, sizeof process->name, "training, rank %u", record->number);
    } else if (order == LOADER && record->kind != MR_SPAN_DEVICE) {
        snprintf(process->name, sizeof process->name, "DataLoader worker %u", record->number);
        find_parents(process);
    }
}

/* Each rank has a worker 0: says which rank's this one is, if the loop of that rank had a span. */
static void add_rank(const struct mr_trace_output *output, struct mr_traced_process *process)
{
    for (unsigned i = 0; process->order == LOADER && i < MR_TRACE_PARENTS && process->parents[i] != 0; i++)
        for (unsigned j = 0; j < output->process_count; j++) {
            const struct mr_traced_process *loop = &output->processes[j];
            size_t length = strlen(process->name);
            if (loop->order != LOOP || loop->pid != process->parents[i])
                continue;
            snprintf(process->name + length, sizeof process->name - length, ", rank %u", loop->rank);
            return;
        }
}

/* Notes the threads that copy, which are named; any other but the first of a process shows its number. */
static void learn_thread(struct mr_trace_output *output, const struct mr_trace_record *record)
{
    if (record->kind != MR_SPAN_DEVICE || record->tid == record->pid)
        return;
    for (unsigned i = 0; i < output->copier_count; i++)
        if (output->copiers[i].tid == record->tid)
            return;
    if (output->copier_count < MR_TRACE_COPIERS)
        output->copiers[output->copier_count++] = (struct mr_traced_thread){record->pid, record->tid};
}

/* ---- spans ---- */

static void put_string(FILE *file, const char *text)
{
    json_t *string = mr_json_from_text(text);
    if (!string || json_dumpf(string, file, JSON_ENCODE_ANY) != 0)
        fputs("\"\"", file);
    json_decref(string);
}

static void put_number(FILE *file, const char **comma, const char *name, uint64_t value)
{
    if (!name)
        return;
    fprintf(file, "%s\"%s\":%llu", *comma, name, (unsigned long long)value);
    *comma = ",";
}

static void put_word(FILE *file, const char **comma, const char *name, const char *const *words, uint32_t which)
{
    unsigned known = 0;
    while (words[known] && known < which)
        known++;
    fprintf(file, "%s\"%s\":\"%s\"", *comma, name, words[known] ? words[known] : "unknown");
    *comma = ",";
}

static void put_arguments(FILE *file, const struct row *row, const struct mr_trace_record *record, const char *text)
{
    const char *comma = "";
    fputs(",\"args\":{", file);
    put_number(file, &comma, row->object, record->object);
    put_number(file, &comma, row->dataset ? "dataset" : NULL, record->dataset);
    put_number(file, &comma, row->number, record->number);
    if (row->codes)
        put_word(file, &comma, row->code, row->codes, record->code);
    else
        put_number(file, &comma, row->code, record->code);
    put_number(file, &comma, row->bytes ? "bytes" : NULL, record->bytes);
    if (row->text) {
        fprintf(file, "%s\"%s\":", comma, row->text);
        put_string(file, text);
    }
    fputc('}', file);
}

/* Whether the span needs a pair of events. A step that begins within another belongs to a loop over several loaders;
 * the end of each other step is remembered, so call this once per span. */
static bool is_among_others(struct mr_trace_output *output, const struct row *row, const struct mr_trace_record *record)
{
    if (row->overlaps || record->kind != MR_SPAN_STEP)
        return row->overlaps;
    struct mr_traced_process *process = find_process(output, record->pid);
    if (!process || record->begin_ns < process->stepped_ns)
        return true;
    process->stepped_ns = record->end_ns;
    return false;
}

static void put_head(struct mr_trace_output *output, const char *phase, const char *name, const struct row *row,
                     const struct mr_trace_record *record, int64_t at_ns)
{
    uint32_t pid = record->kind == MR_SPAN_TICKET ? record->pid + TICKETS_PID : record->pid;
    fprintf(output->file, "%s{\"ph\":\"%s\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f",
            output->written > 0 ? ",\n" : "\n", phase, row->category, name, pid, record->tid,
            (double)at_ns / 1e3); /* of CLOCK_MONOTONIC: viewers begin with the first */
    if (*phase != 'X')
        fprintf(output->file, ",\"id2\":{\"local\":\"0x%llx\"}",
                (unsigned long long)output->async); /* of its process */
}

/* The span's name, and its text. Of a request, the method is the name and the path the text. */
static const char *trace_json_name_of(const struct row *row, const struct mr_trace_record *record, char method[16],
                                      const char **text)
{
    size_t length = strspn(record->text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    *text = record->text;
    if (record->kind != MR_SPAN_REQUEST || length == 0 || length >= 16 || record->text[length] != ' ')
        return row->name;
    snprintf(method, 16, "%.*s", (int)length, record->text);
    *text = record->text + length + 1;
    return method;
}

void mr_trace_output_begin(struct mr_trace_output *output)
{
    output->processes = calloc(MR_TRACE_PROCESSES, sizeof *output->processes);
    fputc('[', output->file);
}

void mr_trace_output_span(struct mr_trace_output *output, const struct mr_trace_record *record)
{
    const struct row *row = &rows[record->kind];
    if (!row->name || record->end_ns < record->begin_ns || record->end_ns < output->begin_ns)
        return; /* left over from the trace before, or of a writer that was stopped */
    char method[16];
    const char *text, *name = trace_json_name_of(row, record, method, &text);
    learn(output, record);
    learn_thread(output, record);
    bool among = is_among_others(output, row, record);
    output->async += among;
    put_head(output, among ? "b" : "X", name, row, record, record->begin_ns);
    output->written++;
    if (!among)
        fprintf(output->file, ",\"dur\":%.3f", (double)(record->end_ns - record->begin_ns) / 1e3);
    put_arguments(output->file, row, record, text);
    fputc('}', output->file);
    if (among) {
        put_head(output, "e", name, row, record, record->end_ns);
        fputc('}', output->file);
    }
}

void mr_trace_output_waiting(struct mr_trace_output *output, const struct mr_trace_record *record)
{
    int64_t shown_ns = record->begin_ns > output->begin_ns ? record->begin_ns : output->begin_ns;
    learn(output, record);
    put_head(output, "X", "wait for a batch, not over", &rows[MR_SPAN_WAIT], record, shown_ns);
    output->written++;
    fprintf(output->file, ",\"dur\":%.3f,\"args\":{\"epoch\":%llu,\"rank\":%u,\"waited_s\":%.3f}}",
            (double)(record->end_ns - shown_ns) / 1e3, (unsigned long long)record->object, record->number,
            (double)(record->end_ns - record->begin_ns) / 1e9);
}

static void put_thread(FILE *file, struct mr_traced_thread thread, const char *name)
{
    fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}",
            thread.pid, thread.tid, name);
}

static void put_name(FILE *file, uint32_t pid, const char *name, int order)
{
    fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":", pid);
    put_string(file, name);
    fprintf(file, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":{\"sort_index\":%d}}", pid,
            order);
}

static void put_process(FILE *file, const struct mr_traced_process *process)
{
    char tickets[100];
    put_name(file, process->pid, process->name, process->order);
    put_thread(file, (struct mr_traced_thread){process->pid, process->pid}, "main thread");
    if (!process->has_tickets)
        return;
    snprintf(tickets, sizeof tickets, "tickets of %s", process->name);
    put_name(file, process->pid + TICKETS_PID, tickets, WORKER + 1);
}

void mr_trace_output_end(struct mr_trace_output *output)
{
    for (unsigned i = 0; i < output->process_count; i++) {
        add_rank(output, &output->processes[i]);
        put_process(output->file, &output->processes[i]);
    }
    for (unsigned i = 0; i < output->copier_count; i++)
        put_thread(output->file, output->copiers[i], "copies to the device");
    fputs("\n]\n", output->file);
    free(output->processes);
    output->processes = NULL;
}
