/* stat_prometheus.c - what `millrace stat --prometheus` prints:
 * https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_get.h"
#include "cli/stat_impl.h"
#include "shm/ring/counters.h"

static void print_label(const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            fputs("\\n", stdout);
        else if (*value == '"' || *value == '\\')
            printf("\\%c", *value);
        else
            putchar(*value);
    }
}

static void print_head(unsigned role, const struct mr_counter_label *label)
{
    const char *name = mr_counter_role_name(role);
    printf("# HELP millrace_%s_%s %s\n# TYPE millrace_%s_%s %s\n", name, label->name, label->help, name, label->name,
           label->gauge ? "gauge" : "counter");
}

/* list: "workers" (of that role) or "lanes"; key: what distinguishes its members. */
static void print_counters(const json_t *root, const char *list, const char *key, unsigned role)
{
    bool workers = strcmp(list, "workers") == 0;
    unsigned count;
    const struct mr_counter_label *labels = mr_counter_labels(role, &count);
    for (unsigned i = 0; i < count; i++) {
        size_t j;
        json_t *item;
        bool headed = false;
        json_array_foreach(json_object_get(root, list), j, item)
        {
            if (workers && strcmp(mr_json_text(item, "role"), mr_counter_role_name(role)) != 0)
                continue;
            if (!headed)
                print_head(role, &labels[i]);
            headed = true;
            printf("millrace_%s_%s{%s=\"%lld\"} %lld\n", mr_counter_role_name(role), labels[i].name, key,
                   mr_json_integer(item, key), mr_json_integer(json_object_get(item, "counters"), labels[i].name));
        }
    }
}

static void print_lane_values(const json_t *root)
{
    static const struct {
        const char *key, *type, *help;
    } values[] = {
        {"waiting_ratio", "gauge", "Share of the last seconds that the lane's reader waited for data."},
        {"ready", "gauge", "Samples in memory that were not taken yet."},
        {"held", "gauge", "Samples that the reader holds views of."},
        {"filling", "gauge", "Samples that are being downloaded."},
        {"pending", "gauge", "Samples that wait for a fetch worker."},
    };
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        printf("# HELP millrace_lane_%s %s\n# TYPE millrace_lane_%s %s\n", values[v].key, values[v].help, values[v].key,
               values[v].type);
        size_t i;
        json_t *item;
        json_array_foreach(json_object_get(root, "lanes"), i, item)
        {
            printf("millrace_lane_%s{lane=\"%lld\",pid=\"%lld\"} %g\n", values[v].key, mr_json_integer(item, "lane"),
                   mr_json_integer(item, "pid"), mr_json_real(item, values[v].key));
        }
    }
}

static void print_checkpoint_values(const json_t *root)
{
    static const struct {
        const char *key, *type, *help;
    } totals[] =
        {
            {"arena_bytes", "gauge", "Shared memory for checkpoints; 0 until the first one."},
            {"arena_free_bytes", "gauge", "Bytes of it that no writer has."},
            {"open", "gauge", "Checkpoint writers that are open."},
            {"waiting", "gauge", "Processes that wait for a checkpoint writer."},
            {"lost", "counter", "Promised checkpoints that were not saved, and whose trainer does not know."},
        },
      values[] = {
          {"stored_bytes", "gauge", "Bytes of a checkpoint that the store has."},
          {"total_bytes", "gauge", "Bytes of a checkpoint that were written so far."},
      };
    const json_t *checkpoint = json_object_get(root, "checkpoint");
    for (size_t v = 0; v < sizeof totals / sizeof totals[0]; v++)
        printf("# HELP millrace_checkpoint_%s %s\n# TYPE millrace_checkpoint_%s %s\nmillrace_checkpoint_%s %lld\n",
               totals[v].key, totals[v].help, totals[v].key, totals[v].type, totals[v].key,
               mr_json_integer(checkpoint, totals[v].key));
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        printf("# HELP millrace_writer_%s %s\n# TYPE millrace_writer_%s %s\n", values[v].key, values[v].help,
               values[v].key, values[v].type);
        size_t i;
        json_t *item;
        json_array_foreach(json_object_get(checkpoint, "writers"), i, item)
        {
            printf("millrace_writer_%s{writer=\"%lld\",pid=\"%lld\",uri=\"", values[v].key,
                   mr_json_integer(item, "writer"), mr_json_integer(item, "pid"));
            print_label(mr_json_text(item, "uri"));
            printf("\",state=\"%s\"} %lld\n", mr_json_text(item, "state"), mr_json_integer(item, values[v].key));
        }
    }
}

static void print_batch_values(const json_t *root)
{
    static const struct {
        const char *key, *type, *help;
    } values[] = {
        {"arenas", "gauge", "Loaders whose batches go through shared memory."},
        {"memory_bytes", "gauge", "Bytes that their batches take."},
        {"limit_bytes", "gauge", "Bytes that they may take (memory.batch_bytes)."},
    };
    const json_t *batches = json_object_get(root, "batches");
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++)
        printf("# HELP millrace_batch_%s %s\n# TYPE millrace_batch_%s %s\nmillrace_batch_%s %lld\n", values[v].key,
               values[v].help, values[v].key, values[v].type, values[v].key, mr_json_integer(batches, values[v].key));
}

/* A counter of a loop: the loop's own, or one of each of its loaders. */
static void print_loop_value(const json_t *loop, unsigned role, const char *name)
{
    long long number = mr_json_integer(loop, "loop"), rank = mr_json_integer(loop, "rank");
    size_t i;
    json_t *loader;
    if (role == MR_ROLE_LOOP)
        printf("millrace_loop_%s{loop=\"%lld\",rank=\"%lld\"} %lld\n", name, number, rank,
               mr_json_integer(json_object_get(loop, "counters"), name));
    else
        json_array_foreach(json_object_get(loop, "loaders"), i, loader)
            printf("millrace_loader_%s{loop=\"%lld\",rank=\"%lld\",loader=\"%zu\"} %lld\n", name, number, rank, i,
                   mr_json_integer(json_object_get(loader, "counters"), name));
}

static void print_loops(const json_t *root, unsigned role)
{
    unsigned count;
    const struct mr_counter_label *labels = mr_counter_labels(role, &count);
    for (unsigned i = 0; i < count; i++) {
        size_t j;
        json_t *loop;
        print_head(role, &labels[i]);
        json_array_foreach(json_object_get(root, "loops"), j, loop)
        {
            print_loop_value(loop, role, labels[i].name);
        }
    }
}

/* The verdicts: 1 for the stage and the cause that hold, of the node and of each loop. */
static void print_verdicts(const json_t *root)
{
    size_t i;
    json_t *loop;
    const json_t *limit = json_object_get(root, "limit");
    printf("# HELP millrace_limit What limits this node now: 1 for the stage and cause that hold.\n"
           "# TYPE millrace_limit gauge\nmillrace_limit{stage=\"%s\",cause=\"%s\"} 1\n",
           mr_json_text(limit, "stage"), mr_json_text(limit, "cause"));
    printf("# HELP millrace_loop_limit What a loop waits for: 1 for the stage and cause that hold.\n"
           "# TYPE millrace_loop_limit gauge\n");
    json_array_foreach(json_object_get(root, "loops"), i, loop)
    {
        printf("millrace_loop_limit{loop=\"%lld\",rank=\"%lld\",stage=\"%s\",cause=\"%s\"} 1\n",
               mr_json_integer(loop, "loop"), mr_json_integer(loop, "rank"), mr_json_text(loop, "stage"),
               mr_json_text(loop, "cause"));
    }
    printf("# HELP millrace_loop_wait_ratio Share of the last seconds that a loop waited for batches.\n"
           "# TYPE millrace_loop_wait_ratio gauge\n");
    json_array_foreach(json_object_get(root, "loops"), i, loop)
    {
        printf("millrace_loop_wait_ratio{loop=\"%lld\",rank=\"%lld\"} %g\n", mr_json_integer(loop, "loop"),
               mr_json_integer(loop, "rank"), mr_json_real(loop, "wait_ratio"));
    }
}

static void print_node(const json_t *root)
{
    unsigned count;
    const struct mr_counter_label *labels = mr_counter_labels(MR_ROLE_NODE, &count);
    for (unsigned i = 0; i < count; i++) {
        print_head(MR_ROLE_NODE, &labels[i]);
        printf("millrace_node_%s %lld\n", labels[i].name,
               mr_json_integer(json_object_get(root, "node"), labels[i].name));
    }
}

int mr_stat_print_prometheus(const char *text)
{
    json_t *root = mr_json_parse_stat(text);
    if (!root)
        return -1;
    printf("# HELP millrace_uptime_seconds Time since the supervisor's start.\n# TYPE millrace_uptime_seconds gauge\n"
           "millrace_uptime_seconds %.3f\n",
           mr_json_real(root, "uptime_s"));
    printf("# HELP millrace_dataset_objects Objects in a data set's index.\n# TYPE millrace_dataset_objects gauge\n");
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "datasets"), i, item)
    {
        if (mr_json_integer(item, "block_bytes") > 0)
            continue; /* of a checkpoint reader: each name would be a time series of its own */
        printf("millrace_dataset_objects{dataset=\"%lld\",name=\"", mr_json_integer(item, "dataset"));
        print_label(mr_json_text(item, "name"));
        printf("\",state=\"%s\"} %lld\n", mr_json_text(item, "state"), mr_json_integer(item, "objects"));
    }
    print_batch_values(root);
    print_counters(root, "workers", "slot", MR_ROLE_LIST);
    print_counters(root, "workers", "slot", MR_ROLE_FETCH);
    print_counters(root, "workers", "slot", MR_ROLE_WRITE);
    print_counters(root, "lanes", "lane", MR_ROLE_CONSUMER);
    print_lane_values(root);
    print_checkpoint_values(root);
    print_node(root);
    print_loops(root, MR_ROLE_LOOP);
    print_loops(root, MR_ROLE_LOADER);
    print_verdicts(root);
    json_decref(root);
    return 0;
}
