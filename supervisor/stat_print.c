/* What `millrace stat` prints, from the supervisor's JSON. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/counters.h"
#include "supervisor/stat.h"

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (root == NULL)
        mr_error_set(MR_E_PROTOCOL, "the supervisor's statistics are no JSON: %s", error.text);
    return root;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_bytes(long long bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    printf(unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void print_datasets(const json_t *root)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "datasets"), i, item)
    {
        printf("data set %lld  %-8s %s", number_of(item, "dataset"), text_of(item, "state"), text_of(item, "name"));
        if (strcmp(text_of(item, "state"), "ready") == 0) {
            printf(": %lld objects, ", number_of(item, "objects"));
            print_bytes(number_of(item, "bytes"));
        } else if (strcmp(text_of(item, "state"), "listing") == 0) {
            printf(": %lld objects so far", number_of(item, "listed"));
        }
        printf("%s%s\n", text_of(item, "error")[0] != '\0' ? ": " : "", text_of(item, "error"));
    }
}

static void print_lanes(const json_t *root)
{
    size_t i;
    json_t *item;
    const json_t *lanes = json_object_get(root, "lanes");
    if (json_array_size(lanes) > 0)
        printf("%5s %8s %8s %9s %8s %8s %8s %8s %8s\n", "lane", "process", "state", "samples", "waiting", "asked",
               "fetched", "ready", "held");
    json_array_foreach(lanes, i, item)
    {
        printf("%5lld %8lld %8s %9lld %7.0f%% %8lld %8lld %8lld %8lld\n", number_of(item, "lane"),
               number_of(item, "pid"), text_of(item, "state"), number_of(json_object_get(item, "counters"), "samples"),
               json_number_value(json_object_get(item, "waiting_ratio")) * 100, number_of(item, "pending"),
               number_of(item, "filling"), number_of(item, "ready"), number_of(item, "held"));
    }
}

static void print_workers(const json_t *root)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(root, "workers"), i, item)
    {
        const char *name;
        json_t *value;
        printf("%s worker %lld  %s, process %lld, start %lld\n   ", text_of(item, "role"), number_of(item, "slot"),
               text_of(item, "state"), number_of(item, "pid"), number_of(item, "starts"));
        json_object_foreach(json_object_get(item, "counters"), name, value)
        {
            if (json_integer_value(value) != 0)
                printf(" %s=%lld", name, (long long)json_integer_value(value));
        }
        printf("\n");
    }
}

int mr_stat_print_text(const char *text)
{
    json_t *root = parse(text);
    if (root == NULL)
        return -1;
    const json_t *memory = json_object_get(root, "memory");
    printf("supervisor %lld  %s, %.0f s, run %s\n", number_of(root, "pid"), text_of(root, "state"),
           json_number_value(json_object_get(root, "uptime_s")), text_of(root, "run_id"));
    if (number_of(memory, "arenas") > 0) {
        printf("memory        %lld arenas of ", number_of(memory, "arenas"));
        print_bytes(number_of(memory, "arena_bytes"));
        printf("\n");
    }
    print_datasets(root);
    print_workers(root);
    print_lanes(root);
    printf("limited by    %s\n", text_of(json_object_get(root, "limit"), "text"));
    json_decref(root);
    return 0;
}

/* ---- Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/) ---- */

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

/* list: "workers" (of that role) or "lanes"; key: what tells its members apart. */
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
            if (workers && strcmp(text_of(item, "role"), mr_counter_role_name(role)) != 0)
                continue;
            if (!headed)
                printf("# HELP millrace_%s_%s %s\n# TYPE millrace_%s_%s %s\n", mr_counter_role_name(role),
                       labels[i].name, labels[i].help, mr_counter_role_name(role), labels[i].name,
                       labels[i].gauge ? "gauge" : "counter");
            headed = true;
            printf("millrace_%s_%s{%s=\"%lld\"} %lld\n", mr_counter_role_name(role), labels[i].name, key,
                   number_of(item, key), number_of(json_object_get(item, "counters"), labels[i].name));
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
        size_t i;
        json_t *item;
        printf("# HELP millrace_lane_%s %s\n# TYPE millrace_lane_%s %s\n", values[v].key, values[v].help, values[v].key,
               values[v].type);
        json_array_foreach(json_object_get(root, "lanes"), i, item)
        {
            printf("millrace_lane_%s{lane=\"%lld\",pid=\"%lld\"} %g\n", values[v].key, number_of(item, "lane"),
                   number_of(item, "pid"), json_number_value(json_object_get(item, values[v].key)));
        }
    }
}

int mr_stat_print_prometheus(const char *text)
{
    size_t i;
    json_t *item;
    json_t *root = parse(text);
    if (root == NULL)
        return -1;
    printf("# HELP millrace_uptime_seconds Time since the supervisor's start.\n# TYPE millrace_uptime_seconds gauge\n"
           "millrace_uptime_seconds %g\n",
           json_number_value(json_object_get(root, "uptime_s")));
    printf("# HELP millrace_dataset_objects Objects in a data set's index.\n# TYPE millrace_dataset_objects gauge\n");
    json_array_foreach(json_object_get(root, "datasets"), i, item)
    {
        printf("millrace_dataset_objects{dataset=\"%lld\",name=\"", number_of(item, "dataset"));
        print_label(text_of(item, "name"));
        printf("\",state=\"%s\"} %lld\n", text_of(item, "state"), number_of(item, "objects"));
    }
    print_counters(root, "workers", "slot", MR_ROLE_LIST);
    print_counters(root, "workers", "slot", MR_ROLE_FETCH);
    print_counters(root, "lanes", "lane", MR_ROLE_CONSUMER);
    print_lane_values(root);
    json_decref(root);
    return 0;
}
