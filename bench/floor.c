/*
 * floor.c - the floor of a libcurl program: N GETs over C connections into one warm buffer, nothing checked.
 *
 *     millrace-bench-floor URL-PATTERN COUNT CONNECTIONS
 *
 * URL-PATTERN is a printf format with one %u-like conversion for the object's number, such as
 * http://127.0.0.1:4443/storage/v1/b/made/o/obj-%09u?alt=media. Prints one line: objects, bytes, wall and CPU time.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const char *pattern;
static unsigned next_object, object_count;
static unsigned char warm[64 << 20];
static unsigned long long bytes;

struct slot {
    CURL *easy;
    size_t at;
};

static size_t on_body(char *data, size_t unit, size_t count, void *arg)
{
    struct slot *slot = arg;
    size_t length = unit * count;
    if (slot->at + length > sizeof warm)
        slot->at = 0;
    memcpy(warm + slot->at, data, length);
    slot->at += length;
    bytes += length;
    return length;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void start(CURLM *multi, struct slot *slot)
{
    char url[2048];
    if (next_object == object_count)
        return;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(url, sizeof url, pattern, next_object++);
#pragma GCC diagnostic pop
    slot->at = 0;
    curl_easy_setopt(slot->easy, CURLOPT_URL, url);
    curl_multi_add_handle(multi, slot->easy);
}

static void check(CURL *easy, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK || status != 200) {
        fprintf(stderr, "a GET failed: %s, status %ld\n", curl_easy_strerror(code), status);
        exit(EXIT_FAILURE);
    }
}

static void run(CURLM *multi)
{
    int running = 1, left;
    while (running > 0) {
        CURLMsg *message;
        curl_multi_perform(multi, &running);
        while ((message = curl_multi_info_read(multi, &left))) {
            char *slot = NULL;
            CURL *easy = message->easy_handle;
            check(easy, message->data.result);
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, &slot);
            curl_multi_remove_handle(multi, easy);
            start(multi, (struct slot *)(void *)slot);
            running = 1;
        }
        if (running > 0)
            curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: millrace-bench-floor URL-PATTERN COUNT CONNECTIONS\n");
        return 2;
    }
    pattern = argv[1];
    object_count = (unsigned)strtoul(argv[2], NULL, 10);
    unsigned connections = (unsigned)strtoul(argv[3], NULL, 10);
    struct slot *slots = calloc(connections ? connections : 1, sizeof *slots);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURLM *multi = curl_multi_init();
    if (!slots || !multi)
        exit(EXIT_FAILURE);
    memset(warm, 1, sizeof warm);
    struct curl_slist *headers = curl_slist_append(NULL, "Accept-Encoding: gzip");
    for (unsigned i = 0; i < connections; i++) {
        slots[i].easy = curl_easy_init();
        curl_easy_setopt(slots[i].easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        curl_easy_setopt(slots[i].easy, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(slots[i].easy, CURLOPT_BUFFERSIZE, 512L << 10);
        curl_easy_setopt(slots[i].easy, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(slots[i].easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(slots[i].easy, CURLOPT_WRITEDATA, &slots[i]);
        curl_easy_setopt(slots[i].easy, CURLOPT_PRIVATE, &slots[i]);
        start(multi, &slots[i]);
    }
    double wall = seconds(), cpu = cpu_seconds();
    run(multi);
    wall = seconds() - wall;
    cpu = cpu_seconds() - cpu;
    printf("floor: %u objects, %llu bytes, %.3f s, %.0f objects/s, CPU %.1f us an object, %.3f s a GiB\n", object_count,
           bytes, wall, object_count / wall, cpu * 1e6 / object_count, cpu / ((double)bytes / (1 << 30)));
    for (unsigned i = 0; i < connections; i++)
        curl_easy_cleanup(slots[i].easy);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
    free(slots);
    return EXIT_SUCCESS;
}
