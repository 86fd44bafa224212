/*
 * list.c - pages through a bucket with mr_transfer_list and does nothing with the names.
 *
 *     millrace-bench-list ENDPOINT BUCKET [MAX-RESULTS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "worker/store/transfer.h"

static unsigned long long objects, bytes;
static bool more = true, waiting;
static char token[2048], after[2048];

static void on_page(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    waiting = false;
    more = false;
    if (!page) {
        fprintf(stderr, "%s\n", result->text);
        return;
    }
    objects += page->count;
    for (size_t i = 0; i < page->count; i++)
        bytes += page->items[i].size;
    if (page->count)
        snprintf(after, sizeof after, "%s", page->items[page->count - 1].name);
    if (page->next_token) {
        snprintf(token, sizeof token, "%s", page->next_token);
        more = true;
    }
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: millrace-bench-list ENDPOINT BUCKET [MAX-RESULTS]\n");
        return 2;
    }
    struct mr_http *http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    struct mr_transfer_engine *engine = http ? mr_transfer_new(&(struct mr_transfer_options){0}, http) : NULL;
    struct mr_store *store =
        engine ? mr_store_open(&(struct mr_store_options){
                     .scheme = MR_SCHEME_GS, .bucket = argv[2], .endpoint = argv[1], .auth = "anonymous", .http = http})
               : NULL;
    if (!store) {
        fprintf(stderr, "%s\n", mr_error_text());
        return EXIT_FAILURE;
    }
    double wall = (double)mr_clock_mono_ns(), cpu = cpu_seconds();
    while (more) {
        struct mr_store_list_request request = {.page_token = token[0] ? token : NULL,
                                                .after = after[0] ? after : NULL,
                                                .max_results = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0};
        waiting = mr_transfer_list(engine, store, &request, on_page, NULL) != NULL;
        while (waiting) {
            if (mr_http_step(http, 1000, -1) < 0)
                return EXIT_FAILURE;
        }
    }
    wall = ((double)mr_clock_mono_ns() - wall) * 1e-9;
    cpu = cpu_seconds() - cpu;
    printf("list: %llu objects, %llu bytes in them, %.3f s, CPU %.3f us an object\n", objects, bytes, wall,
           cpu * 1e6 / (double)(objects ? objects : 1));
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    return objects ? EXIT_SUCCESS : EXIT_FAILURE;
}
