#include "devstore/counts.h"

#include <inttypes.h>

enum { CLASS_A, CLASS_B, FREE };

/* https://cloud.google.com/storage/pricing#operations-by-class. A resumable upload is one operation, its start. */
static const unsigned char classes[MR_OP_COUNT] = {
    [MR_OP_LIST] = CLASS_A,    [MR_OP_GET] = CLASS_B,      [MR_OP_STAT] = CLASS_B,      [MR_OP_UPLOAD] = CLASS_A,
    [MR_OP_COMPOSE] = CLASS_A, [MR_OP_COPY] = CLASS_A,     [MR_OP_DELETE] = FREE,       [MR_OP_BATCH] = FREE,
    [MR_OP_BUCKET] = CLASS_B,  [MR_OP_IAM] = CLASS_B,      [MR_OP_RESUMABLE] = CLASS_A, [MR_OP_CHUNK] = FREE,
    [MR_OP_CANCEL] = FREE,     [MR_OP_INITIATE] = CLASS_A, [MR_OP_PART] = CLASS_A,      [MR_OP_COMPLETE] = CLASS_A,
    [MR_OP_ABORT] = FREE,      [MR_OP_PARTS] = CLASS_A,    [MR_OP_UPLOADS] = CLASS_A,   [MR_OP_SESSION] = FREE,
    [MR_OP_ADMIN] = FREE,      [MR_OP_OTHER] = FREE,
};

static const char *const class_names[] = {"class_a", "class_b", "free"};

void ds_counts_add(atomic_uint_fast64_t *count, uint64_t more)
{
    atomic_fetch_add_explicit(count, more, memory_order_relaxed);
}

void ds_counts_request(struct ds_counts *counts, enum ds_op op, unsigned status, bool batched)
{
    if (!counts)
        return;
    ds_counts_add(batched ? &counts->batched[op] : &counts->requests[op], 1);
    if (status >= 400)
        ds_counts_add(&counts->errors, 1);
    else if (op != MR_OP_ADMIN && op != MR_OP_BATCH)
        ds_counts_add(&counts->billed[classes[op]], 1);
}

static void zero(atomic_uint_fast64_t *counts, int n)
{
    for (int i = 0; i < n; i++)
        atomic_store_explicit(&counts[i], 0, memory_order_relaxed);
}

void ds_counts_reset(struct ds_counts *counts)
{
    zero(counts->requests, MR_OP_COUNT);
    zero(counts->batched, MR_OP_COUNT);
    zero(counts->billed, 3);
    zero(&counts->errors, 1);
    zero(&counts->bytes_in, 1);
    zero(&counts->bytes_out, 1);
    zero(&counts->compose_sources, 1);
}

static void write_table(struct ds_text *out, const char *name, const char *const *names, atomic_uint_fast64_t *counts,
                        int n)
{
    ds_text_printf(out, "\"%s\":{", name);
    for (int i = 0; i < n; i++)
        ds_text_printf(out, "%s\"%s\":%" PRIuFAST64, i ? "," : "", names[i],
                       atomic_load_explicit(&counts[i], memory_order_relaxed));
    ds_text_puts(out, "},");
}

void ds_counts_write(struct ds_counts *counts, struct ds_text *out)
{
    write_table(out, "requests", ds_op_names, counts->requests, MR_OP_COUNT);
    write_table(out, "batched", ds_op_names, counts->batched, MR_OP_COUNT);
    write_table(out, "billed", class_names, counts->billed, 3);
    ds_text_printf(out,
                   "\"errors\":%" PRIuFAST64 ",\"bytes_in\":%" PRIuFAST64 ",\"bytes_out\":%" PRIuFAST64
                   ",\"compose_sources\":%" PRIuFAST64 ",\"connections\":%" PRIuFAST64,
                   atomic_load_explicit(&counts->errors, memory_order_relaxed),
                   atomic_load_explicit(&counts->bytes_in, memory_order_relaxed),
                   atomic_load_explicit(&counts->bytes_out, memory_order_relaxed),
                   atomic_load_explicit(&counts->compose_sources, memory_order_relaxed),
                   atomic_load_explicit(&counts->connections, memory_order_relaxed));
}
