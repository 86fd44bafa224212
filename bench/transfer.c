/*
 * transfer.c - the same GETs as floor.c through mr_transfer: lengths, generations and crc32c checked, bytes put side by
 * side into a buffer as large as an arena, so that they do not stay in cache. CURL_CA_BUNDLE as for floor.c.
 *
 *     millrace-bench-transfer ENDPOINT [s3://]BUCKET NAME-PATTERN COUNT CONNECTIONS SIZE [ARENA-MIB]
 *
 * S3 is asked with the keys of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or without a signature where they are not set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "worker/store/transfer.h"

static unsigned failed, ended;
static unsigned long long bytes;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void on_done(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    ended++;
    if (result->code != MR_OK || !result->verified) {
        if (failed++ == 0)
            fprintf(stderr, "a fetch failed or was not verified: %s\n", result->text);
    }
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr,
                "usage: millrace-bench-transfer ENDPOINT BUCKET NAME-PATTERN COUNT CONNECTIONS SIZE [ARENA-MIB]\n");
        return 2;
    }
    unsigned count = (unsigned)strtoul(argv[4], NULL, 10), connections = (unsigned)strtoul(argv[5], NULL, 10);
    uint64_t size = strtoull(argv[6], NULL, 10), arena = (argc > 7 ? strtoull(argv[7], NULL, 10) : 256) << 20;
    uint64_t slots = size ? arena / size : 1;
    unsigned char *memory = malloc(arena);
    struct mr_http *http = mr_http_new(
        &(struct mr_http_options){.connections = connections, .proxy = "", .ca_bundle = getenv("CURL_CA_BUNDLE")});
    struct mr_transfer_engine *engine =
        http ? mr_transfer_new(&(struct mr_transfer_options){.connections = connections}, http) : NULL;
    bool s3 = strncmp(argv[2], "s3://", 5) == 0;
    const struct mr_store_options options = {.scheme = s3 ? MR_SCHEME_S3 : MR_SCHEME_GS,
                                             .bucket = s3 ? argv[2] + 5 : argv[2],
                                             .endpoint = argv[1],
                                             .auth = s3 && getenv("AWS_ACCESS_KEY_ID") ? "default" : "anonymous",
                                             .http = http};
    struct mr_store *store = engine ? mr_store_open(&options) : NULL;
    if (!store || !memory || slots == 0) {
        fprintf(stderr, "%s\n", mr_error_text());
        exit(EXIT_FAILURE);
    }
    memset(memory, 1, arena);
    double wall = (double)mr_clock_mono_ns(), cpu = cpu_seconds();
    for (unsigned started = 0; ended < count && failed == 0;) {
        while (started < count && mr_transfer_free(engine) > 0) {
            char name[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            int n = snprintf(name, sizeof name, argv[3], started);
#pragma GCC diagnostic pop
            struct mr_transfer_request request = {.store = store,
                                                  .name = name,
                                                  .name_length = (size_t)n,
                                                  .size = size,
                                                  .length = size,
                                                  .dest = memory + started % slots * size};
            if (!mr_transfer_fetch(engine, &request, on_done, NULL)) {
                fprintf(stderr, "%s\n", mr_error_text());
                exit(EXIT_FAILURE);
            }
            started++;
        }
        if (mr_http_step(http, 1000, -1) < 0)
            exit(EXIT_FAILURE);
    }
    wall = ((double)mr_clock_mono_ns() - wall) * 1e-9;
    cpu = cpu_seconds() - cpu;
    bytes = mr_transfer_counters(engine)->bytes;
    printf("transfer: %u objects, %llu bytes, %.3f s, %.0f objects/s, CPU %.1f us an object, %.3f s a GiB\n", count,
           bytes, wall, count / wall, cpu * 1e6 / count, cpu / ((double)bytes / (1 << 30)));
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    free(memory);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
