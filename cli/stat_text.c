/* stat_text.c - what `millrace stat` prints for people. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cli/json_get.h"
#include "cli/stat_impl.h"

static void print_bytes(long long bytes)
{
    char text[32];
    fputs(mr_size_text((double)bytes, text), stdout);
}

static void print_datasets(const json_t *root)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "datasets"), i, item)
    {
        printf("data set %lld  %-8s %s", mr_json_integer(item, "dataset"), mr_json_text(item, "state"),
               mr_json_text(item, "name"));
        if (strcmp(mr_json_text(item, "state"), "ready") == 0) {
            printf(": %lld objects, ", mr_json_integer(item, "objects"));
            print_bytes(mr_json_integer(item, "bytes"));
            if (mr_json_integer(item, "block_bytes") == 0)
                printf(", %lld list requests", mr_json_integer(item, "requests"));
        } else if (strcmp(mr_json_text(item, "state"), "listing") == 0) {
            printf(": %lld objects so far, %lld list requests", mr_json_integer(item, "listed"),
                   mr_json_integer(item, "requests"));
        }
        if (mr_json_text(item, "compose")[0] != '\0')
            printf("\n            compose %s", mr_json_text(item, "compose"));
        printf("%s%s\n", mr_json_text(item, "error")[0] != '\0' ? ": " : "", mr_json_text(item, "error"));
    }
}

static void print_operations(const json_t *root)
{
    const json_t *o = json_object_get(root, "operations");
    printf("operations    %lld of class A, %lld of class B, %lld free", mr_json_integer(o, "class_a"),
           mr_json_integer(o, "class_b"), mr_json_integer(o, "free"));
    if (mr_json_integer(o, "composites") > 0)
        printf("; %lld composed objects of %.1f, %lld of them there now", mr_json_integer(o, "composites"),
               mr_json_real(o, "objects_a_compose"), mr_json_integer(o, "temporary_objects"));
    printf("\n");
}

static void print_lanes(const json_t *root)
{
    const json_t *lanes = json_object_get(root, "lanes");
    if (json_array_size(lanes) > 0)
        printf("%5s %8s %8s %9s %8s %8s %8s %8s %8s\n", "lane", "process", "state", "samples", "waiting", "asked",
               "fetched", "ready", "held");
    size_t i;
    json_t *item;
    json_array_foreach(lanes, i, item)
    {
        printf("%5lld %8lld %8s %9lld %7.0f%% %8lld %8lld %8lld %8lld\n", mr_json_integer(item, "lane"),
               mr_json_integer(item, "pid"), mr_json_text(item, "state"),
               mr_json_integer(json_object_get(item, "counters"), "samples"), mr_json_real(item, "waiting_ratio") * 100,
               mr_json_integer(item, "pending"), mr_json_integer(item, "filling"), mr_json_integer(item, "ready"),
               mr_json_integer(item, "held"));
    }
}

static void print_workers(const json_t *root)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "workers"), i, item)
    {
        printf("%s worker %lld  %s, process %lld, start %lld\n   ", mr_json_text(item, "role"),
               mr_json_integer(item, "slot"), mr_json_text(item, "state"), mr_json_integer(item, "pid"),
               mr_json_integer(item, "starts"));
        const char *name;
        json_t *value;
        json_object_foreach(json_object_get(item, "counters"), name, value)
        {
            if (json_integer_value(value) != 0)
                printf(" %s=%lld", name, (long long)json_integer_value(value));
        }
        printf("\n");
    }
}

static void print_batches(const json_t *root)
{
    const json_t *batches = json_object_get(root, "batches");
    if (mr_json_integer(batches, "arenas") == 0)
        return;
    printf("batches       ");
    print_bytes(mr_json_integer(batches, "memory_bytes"));
    printf(" of ");
    print_bytes(mr_json_integer(batches, "limit_bytes"));
    printf(", %lld loader%s; %lld batches of ", mr_json_integer(batches, "arenas"),
           mr_json_integer(batches, "arenas") == 1 ? "" : "s", mr_json_integer(batches, "batches"));
    print_bytes(mr_json_integer(batches, "bytes"));
    printf(" together, %lld copied again, %lld without room\n", mr_json_integer(batches, "copies"),
           mr_json_integer(batches, "beside"));
}

static void print_writers(const json_t *root)
{
    const json_t *checkpoint = json_object_get(root, "checkpoint");
    if (mr_json_integer(checkpoint, "arena_bytes") == 0)
        return;
    printf("checkpoints   ");
    print_bytes(mr_json_integer(checkpoint, "arena_free_bytes"));
    printf(" free of ");
    print_bytes(mr_json_integer(checkpoint, "arena_bytes"));
    printf("; %lld open, %lld wait\n", mr_json_integer(checkpoint, "open"), mr_json_integer(checkpoint, "waiting"));
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(checkpoint, "writers"), i, item)
    {
        printf("writer %lld      %-8s process %lld, worker %lld, %lld parts of ", mr_json_integer(item, "writer"),
               mr_json_text(item, "state"), mr_json_integer(item, "pid"), mr_json_integer(item, "worker"),
               mr_json_integer(item, "parts"));
        print_bytes(mr_json_integer(item, "part_bytes"));
        printf(", ");
        print_bytes(mr_json_integer(item, "stored_bytes"));
        printf(" of ");
        print_bytes(mr_json_integer(item, "total_bytes"));
        printf("  %s\n", mr_json_text(item, "uri"));
    }
}

static void print_loops(const json_t *root)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "loops"), i, item)
    {
        printf("rank %-8lld process %lld, epoch %lld: %s\n", mr_json_integer(item, "rank"),
               mr_json_integer(item, "pid"), mr_json_integer(item, "epoch"), mr_json_text(item, "text"));
    }
}

int mr_stat_print_text(const char *text)
{
    json_t *root = mr_json_parse_stat(text);
    if (!root)
        return -1;
    mr_json_make_printable(root);
    const json_t *memory = json_object_get(root, "memory");
    printf("supervisor %lld  %s, %.0f s, run %s\n", mr_json_integer(root, "pid"), mr_json_text(root, "state"),
           mr_json_real(root, "uptime_s"), mr_json_text(root, "run_id"));
    if (mr_json_integer(memory, "arenas") > 0) {
        bool grows = json_is_true(json_object_get(memory, "grows"));
        printf("memory        %lld arenas of %s", mr_json_integer(memory, "arenas"), grows ? "up to " : "");
        print_bytes(mr_json_integer(memory, "arena_bytes"));
        printf("%s", grows ? ", now " : "\n");
        if (grows) {
            print_bytes(mr_json_integer(memory, "backed_bytes"));
            printf(" together\n");
        }
    }
    print_datasets(root);
    print_workers(root);
    print_operations(root);
    print_lanes(root);
    print_batches(root);
    print_writers(root);
    print_loops(root);
    printf("limited by    %s\n", mr_json_text(json_object_get(root, "limit"), "text"));
    json_decref(root);
    return 0;
}
