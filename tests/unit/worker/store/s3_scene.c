#include "s3_scene.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "worker/store/s3.h"

unsigned char data[BIG];
static unsigned char got[BIG];
struct fault_s3 s3;
struct mr_transfer_result fetched;
bool unverified;
const char *s3_bucket;

void open_s3(struct mr_s3_options options, unsigned stall_ms)
{
    static struct mr_s3_options kept;
    kept = options;
    scene_open((struct mr_store_options){.scheme = MR_SCHEME_S3,
                                         .bucket = s3_bucket,
                                         .endpoint = fault_server_host(server),
                                         .auth = "default",
                                         .s3 = &kept,
                                         .stall_timeout_ms = stall_ms},
               20000);
}

void s3_environment(void)
{
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRETS, 1);
    setenv("AWS_CONFIG_FILE", "/dev/null", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    static const char *const unset[] = {"AWS_SESSION_TOKEN", "AWS_REGION",       "AWS_DEFAULT_REGION",
                                        "AWS_PROFILE",       "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"};
    for (int i = 0; i < COUNT(unset); i++)
        unsetenv(unset[i]);
}

void s3_setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    s3_bucket = "bucket";
    s3_environment();
    fault_s3_init(&s3);
    server = fault_server_start(fault_s3_handle, &s3);
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
}

void s3_teardown(void)
{
    scene_close();
    fault_server_stop(server);
    fault_s3_close(&s3);
}

void script(const struct bucket_step *steps, size_t count)
{
    memset(s3.count, 0, sizeof s3.count);
    s3.script = steps;
    s3.steps = (unsigned)count;
}

void insert(const char *name, uint64_t size, uint64_t match)
{
    struct mr_store_insert_request request = {.name = name,
                                              .name_length = strlen(name),
                                              .body = data,
                                              .length = size,
                                              .crc32c = mr_crc32c(0, data, size),
                                              .generation_match = match};
    wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL));
}

void stat_it(const char *name)
{
    wait_for(mr_transfer_stat(engine, store, name, strlen(name), 0, on_item, NULL));
}

static void on_fetched(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    keep(&(struct mr_store_result){.code = result->code, .text = result->text});
    fetched = *result;
}

void fetch(const char *name, uint64_t size, uint64_t generation, const char *etag)
{
    uint64_t before = mr_transfer_counters(engine)->unverified;
    struct mr_transfer_request request = {.store = store,
                                          .name = name,
                                          .name_length = strlen(name),
                                          .generation = generation,
                                          .etag = etag,
                                          .size = size,
                                          .length = size,
                                          .dest = got};
    memset(got, 0, sizeof got);
    wait_for(mr_transfer_fetch(engine, &request, on_fetched, NULL));
    unverified = mr_transfer_counters(engine)->unverified > before;
    if (last.code == MR_OK)
        ck_assert_mem_eq(got, data, size);
}

bool sent(enum bucket_op op, const char *line)
{
    return strstr(s3.last_head[op], line) != NULL;
}

char listed[4000];
static char next_token[300];

void on_page(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    (void)arg;
    keep(result);
    next_token[0] = 0;
    for (size_t i = 0; page && i < page->count; i++)
        snprintf(listed + strlen(listed), sizeof listed - strlen(listed), "%s|", page->items[i].name);
    if (page && page->next_token)
        snprintf(next_token, sizeof next_token, "%s", page->next_token);
}

void list_all(const char *prefix, const char *start, const char *end)
{
    struct mr_store_list_request request = {.prefix = prefix, .start_offset = start, .end_offset = end};
    listed[0] = 0;
    do {
        request.page_token = next_token[0] ? strdup(next_token) : NULL;
        wait_for(mr_transfer_list(engine, store, &request, on_page, NULL));
        free((char *)(uintptr_t)request.page_token);
    } while (next_token[0]);
}
