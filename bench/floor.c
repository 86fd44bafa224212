/*
 * floor.c - the floor of a libcurl program: GETs over C connections into one warm buffer, nothing checked.
 *
 *     millrace-bench-floor URL-PATTERN COUNT CONNECTIONS
 *
 * URL-PATTERN is a printf format with one %u-like conversion for the object's number, which goes round from 0 to
 * COUNT - 1, such as http://127.0.0.1:4443/storage/v1/b/made/o/obj-%09u?alt=media. It speaks as the other readers do
 * (readers/common.py): "ready", then for each line with {"seconds": S} one line with what was read. With https:// the
 * certificates of CURL_CA_BUNDLE are trusted.
 */
#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *pattern;
static unsigned next_object, object_count;
static unsigned char warm[64 << 20];
static unsigned long long objects, bytes;
static double end_s;

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

/* Whether there was time for one more. */
static bool floor_start(CURLM *multi, struct slot *slot)
{
    if (seconds() >= end_s)
        return false;
    char url[2048];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(url, sizeof url, pattern, next_object++ % object_count);
#pragma GCC diagnostic pop
    slot->at = 0;
    curl_easy_setopt(slot->easy, CURLOPT_URL, url);
    curl_multi_add_handle(multi, slot->easy);
    return true;
}

static void check(CURL *easy, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK || status != 200) {
        fprintf(stderr, "a GET failed: %s, status %ld\n", curl_easy_strerror(code), status);
        exit(EXIT_FAILURE);
    }
    objects++;
}

static void floor_run(CURLM *multi)
{
    int running = 1, left;
    while (running > 0) {
        curl_multi_perform(multi, &running);
        CURLMsg *message;
        while ((message = curl_multi_info_read(multi, &left))) {
            CURL *easy = message->easy_handle;
            check(easy, message->data.result);
            char *slot = NULL;
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, &slot);
            curl_multi_remove_handle(multi, easy);
            running += floor_start(multi, (struct slot *)(void *)slot);
        }
        if (running > 0)
            curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
}

static void serve(CURLM *multi, struct slot *slots, unsigned connections)
{
    puts("ready");
    char line[1024];
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        const char *found = strstr(line, "\"seconds\":");
        double begun = seconds();
        end_s = begun + (found ? strtod(found + strlen("\"seconds\":"), NULL) : 1.0);
        objects = bytes = 0;
        for (unsigned i = 0; i < connections; i++)
            floor_start(multi, &slots[i]);
        floor_run(multi);
        printf("{\"objects\": %llu, \"bytes\": %llu, \"timed_objects\": %llu, \"wall_s\": %.6f, \"checks\": []}\n",
               objects, bytes, objects, seconds() - begun);
    }
}

int main(int argc, char **argv)
{
    unsigned connections = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    object_count = argc == 4 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    if (!connections || !object_count) {
        fprintf(stderr, "usage: millrace-bench-floor URL-PATTERN COUNT CONNECTIONS\n");
        return 2;
    }
    pattern = argv[1];
    struct slot *slots = calloc(connections, sizeof *slots);
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
        if (getenv("CURL_CA_BUNDLE"))
            curl_easy_setopt(slots[i].easy, CURLOPT_CAINFO, getenv("CURL_CA_BUNDLE"));
        curl_easy_setopt(slots[i].easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(slots[i].easy, CURLOPT_WRITEDATA, &slots[i]);
        curl_easy_setopt(slots[i].easy, CURLOPT_PRIVATE, &slots[i]);
    }
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)connections);
    serve(multi, slots, connections);
    for (unsigned i = 0; i < connections; i++)
        curl_easy_cleanup(slots[i].easy);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
    free(slots);
    return EXIT_SUCCESS;
}
