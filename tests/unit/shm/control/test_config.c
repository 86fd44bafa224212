/* The key table, values, sizes, and the way of a configuration to a worker. */
#include "shm/control/config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/suite.h"

static struct mr_config config;

static void setup(void)
{
    ck_assert_int_eq(mr_config_init(&config), 0);
}

static void teardown(void)
{
    mr_config_close(&config);
}

static const struct mr_config_key *key(const char *section, const char *name)
{
    const struct mr_config_key *found = mr_config_key_find(section, name);
    ck_assert_msg(found != NULL, "no key %s.%s", section, name);
    return found;
}

static void expect_config_error(const char *part)
{
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    ck_assert_msg(strstr(mr_error_text(), part) != NULL, "'%s' does not say '%s'", mr_error_text(), part);
    mr_error_clear();
}

START_TEST(test_table_is_sane)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    ck_assert_uint_gt(count, 20);
    for (unsigned i = 0; i < count; i++) {
        const struct mr_config_key *k = &keys[i];
        ck_assert(k->name[0] != '\0' && k->section[0] != '\0' && k->unit);
        ck_assert_msg(strlen(k->meaning) > 20 && k->meaning[strlen(k->meaning) - 1] == '.', "%s: meaning", k->name);
        ck_assert_ptr_null(strchr(k->meaning, '\n'));
        ck_assert_ptr_eq(mr_config_key_find(k->section, k->name), k); /* no name twice */
        ck_assert_int_eq(k->type == MR_KEY_CHOICE, k->choices != NULL);
        if (k->type == MR_KEY_U64 || k->type == MR_KEY_BYTES) {
            ck_assert(k->min < k->max);
            ck_assert_msg((k->fallback >= k->min && k->fallback <= k->max) || k->special, "%s", k->name);
        }
    }
}
END_TEST

START_TEST(test_defaults)
{
    ck_assert_uint_eq(config.fetch.workers, 2);
    ck_assert_uint_eq(config.fetch.receive_buffer_bytes, 512 * 1024);
    ck_assert_uint_eq(config.memory.backing, MR_BACKING_AUTO);
    ck_assert_str_eq(config.http.proxy, "");
    ck_assert_uint_eq(config.log.level, MR_LOG_INFO);
    ck_assert_uint_eq(config.dataset_count, 0);
    ck_assert_int_eq(mr_config_check(&config), 0);
    ck_assert_uint_eq(mr_config_arena_bytes(&config, UINT64_C(16) << 30, UINT64_MAX), UINT64_C(2) << 30);
    ck_assert_uint_eq(mr_config_arena_bytes(&config, UINT64_C(1) << 30, UINT64_MAX), UINT64_C(256) << 20);
    ck_assert_uint_eq(mr_config_arena_bytes(&config, UINT64_C(1) << 40, UINT64_MAX), UINT64_C(8) << 30);
    ck_assert_uint_eq(mr_config_arena_bytes(&config, UINT64_C(1) << 40, UINT64_C(1) << 30), UINT64_C(512) << 20);
    config.memory.arena_bytes = 5 << 20;
    ck_assert_uint_eq(mr_config_arena_bytes(&config, UINT64_C(1) << 40, UINT64_MAX), 5 << 20);
}
END_TEST

START_TEST(test_values)
{
    ck_assert_int_eq(mr_config_set_u64(key("fetch", "workers"), &config, 64), 0);
    ck_assert_uint_eq(config.fetch.workers, 64);
    ck_assert_int_eq(mr_config_set_u64(key("fetch", "workers"), &config, 65), -1);
    expect_config_error("'workers' is 65: it must be 1 to 64");
    ck_assert_int_eq(mr_config_set_u64(key("fetch", "workers"), &config, 0), -1);
    ck_assert_uint_eq(config.fetch.workers, 64); /* unchanged */
    mr_error_clear();
    ck_assert_int_eq(mr_config_set_text(key("memory", "arena_bytes"), &config, "512MiB"), 0);
    ck_assert_uint_eq(config.memory.arena_bytes, 512 << 20);
    ck_assert_int_eq(mr_config_set_text(key("memory", "arena_bytes"), &config, "1KiB"), -1);
    expect_config_error("is 1KiB: it must be 1MiB to 16TiB");
    ck_assert_int_eq(mr_config_set_u64(key("memory", "arena_bytes"), &config, 0), 0); /* the default is allowed */
    ck_assert_int_eq(mr_config_set_text(key("memory", "backing"), &config, "memfd"), 0);
    ck_assert_uint_eq(config.memory.backing, MR_BACKING_MEMFD);
    ck_assert_int_eq(mr_config_set_text(key("memory", "backing"), &config, "disk"), -1);
    expect_config_error("auto, posix, memfd");
    ck_assert_int_eq(mr_config_set_text(key("fetch", "workers"), &config, "2"), -1);
    expect_config_error("a whole number");
    ck_assert_int_eq(mr_config_set_u64(key("http", "proxy"), &config, 1), -1);
    expect_config_error("a string");
    ck_assert_int_eq(mr_config_set_text(key("http", "headers"), &config, "x-a: b"), 0);
    ck_assert_int_eq(mr_config_set_text(key("http", "headers"), &config, "x a: b"), -1);
    expect_config_error("x a");
    ck_assert_int_eq(mr_config_set_text(key("http", "headers"), &config, "x-a: b\r\nevil: 1"), -1);
    ck_assert_ptr_null(strstr(mr_error_text(), "evil")); /* values stay out of messages */
    ck_assert_uint_eq(config.http.headers.count, 1);
}
END_TEST

static const char *region_of(const char *bucket, const char *own_name)
{
    const char *plain;
    const struct mr_config_s3 *s3 = mr_config_s3_of(&config, bucket, &plain);
    ck_assert_str_eq(plain, own_name);
    return s3 ? s3->region : NULL;
}

/* Which store a bucket is at, also as a worker reads it. */
START_TEST(test_endpoints)
{
    struct mr_config_endpoint *a = mr_config_add_endpoint(&config, "a");
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "buckets"), a, "mine"), 0);
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "buckets"), a, "logs-*"), 0);
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "region"), a, "of-a"), 0);
    struct mr_config_endpoint *b = mr_config_add_endpoint(&config, "b.2");
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "buckets"), b, "logs-1*"), 0);
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "buckets"), b, "logs-70"), 0);
    ck_assert_int_eq(mr_config_set_text(key("endpoint", "region"), b, "of-b"), 0);
    ck_assert_ptr_null(mr_config_add_endpoint(&config, "a"));
    expect_config_error("there twice");
    ck_assert_int_eq(mr_config_check(&config), 0);
    int fd = mr_config_to_fd(&config);
    mr_config_close(&config);
    ck_assert_int_eq(mr_config_from_fd(&config, fd), 0);
    close(fd);
    ck_assert_str_eq(region_of("mine", "mine"), "of-a");
    ck_assert_str_eq(region_of("logs-7", "logs-7"), "of-a");
    ck_assert_str_eq(region_of("logs-12", "logs-12"), "of-b"); /* the longer beginning */
    ck_assert_str_eq(region_of("logs-70", "logs-70"), "of-b"); /* the whole name */
    ck_assert_str_eq(region_of("logs", "logs"), "");           /* [s3] */
    ck_assert_str_eq(region_of("mine2", "mine2"), "");
    ck_assert_str_eq(region_of("b.2+mine", "mine"), "of-b");
    ck_assert_ptr_null(region_of("b+mine", "mine"));
    expect_config_error("s3+b://mine: the configuration has no [endpoint.b]");
}
END_TEST

START_TEST(test_renamed)
{
    ck_assert_str_eq(mr_config_renamed("checkpoint", "writers"), "workers");
    ck_assert_ptr_null(mr_config_renamed("checkpoint", "workers"));
    ck_assert_ptr_null(mr_config_renamed("fetch", "writers"));
    ck_assert_ptr_null(mr_config_key_find("checkpoint", "writers")); /* the old name is in no list and no reference */
    ck_assert_ptr_nonnull(mr_config_key_find("checkpoint", "workers"));
}
END_TEST

START_TEST(test_nearest)
{
    ck_assert_str_eq(mr_config_nearest("memory", "arena_byte"), "arena_bytes");
    ck_assert_str_eq(mr_config_nearest("memory", "arean_bytes"), "arena_bytes");
    ck_assert_str_eq(mr_config_nearest("memory", "arena"), "arena_bytes");
    ck_assert_str_eq(mr_config_nearest(NULL, "memroy"), "memory");
    ck_assert_str_eq(mr_config_nearest("dataset", "url"), "uri");
    ck_assert_ptr_null(mr_config_nearest("memory", "zzzzzzzz"));
    ck_assert_ptr_null(mr_config_nearest("no_such_section", "arena_bytes"));
    char huge[1000];
    memset(huge, 'a', sizeof huge);
    huge[sizeof huge - 1] = '\0';
    ck_assert_ptr_null(mr_config_nearest(NULL, huge));
}
END_TEST

START_TEST(test_check)
{
    struct mr_config_dataset *train = mr_config_add_dataset(&config, "train");
    ck_assert_ptr_nonnull(train);
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("'train' has neither uri nor uris");
    ck_assert_int_eq(mr_config_set_text(key("dataset", "uri"), train, "http://x/y"), 0);
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("'train'");
    ck_assert_ptr_null(mr_config_add_dataset(&config, "train"));
    expect_config_error("twice");
    ck_assert_ptr_null(mr_config_add_dataset(&config, ""));
    ck_assert_ptr_null(mr_config_add_dataset(&config, "a b"));
    mr_config_close(&config);
    ck_assert_int_eq(mr_config_init(&config), 0);
    config.retry.cap_ms = config.retry.base_ms - 1;
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("retry.cap_ms");
    config.retry.cap_ms = config.retry.base_ms;
    ck_assert_int_eq(mr_config_set_text(key("s3", "kms_key_id"), &config, "key-1"), 0);
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("s3.encryption is neither aws:kms");
    ck_assert_int_eq(mr_config_set_text(key("s3", "encryption"), &config, "aws:kms"), 0);
    ck_assert_int_eq(mr_config_check(&config), 0);
    ck_assert_int_eq(mr_config_set_text(key("s3", "endpoint"), &config, "ftp://store.example.org"), 0);
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("s3.endpoint = \"ftp://store.example.org\" is not of the form http[s]://host[:port]");
    ck_assert_int_eq(mr_config_set_text(key("s3", "endpoint"), &config, ""), 0);
    ck_assert_int_eq(mr_config_set_text(key("gcs", "endpoint"), &config, "http://store.example.org:9000"), 0);
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("credentials in clear text");
    config.gcs.cleartext_credentials = MR_CLEARTEXT_ALLOW;
    ck_assert_int_eq(mr_config_check(&config), 0);
    config.gcs.cleartext_credentials = MR_CLEARTEXT_REFUSE;
    config.gcs.auth = MR_AUTH_ANONYMOUS;
    ck_assert_int_eq(mr_config_check(&config), 0);
    config.gcs.auth = MR_AUTH_DEFAULT;
    static const char *const good[] = {"https://store.example.org", "store.example.org", "http://127.0.0.1:1",
                                       "http://localhost/", "http://[::1]:9"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_int_eq(mr_config_set_text(key("gcs", "endpoint"), &config, good[i]), 0);
        ck_assert_msg(mr_config_check(&config) == 0, "%s", good[i]);
    }
    static const char *const bad[] = {"http://127.example.org", "HTTP://10.0.0.1", "http://localhost.evil",
                                      "http://[::10]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(mr_config_set_text(key("gcs", "endpoint"), &config, bad[i]), 0);
        ck_assert_msg(mr_config_check(&config) != 0, "%s", bad[i]);
    }
    ck_assert_int_eq(mr_config_set_text(key("gcs", "endpoint"), &config, ""), 0);
    config.checkpoint.arena_bytes = UINT64_C(16) << 20; /* the default part_bytes is larger: parts become smaller */
    ck_assert_int_eq(mr_config_check(&config), 0);
    config.checkpoint.part_bytes = UINT64_C(8) << 20;
    ck_assert_int_eq(mr_config_check(&config), 0);
    config.checkpoint.part_bytes++;
    ck_assert_int_eq(mr_config_check(&config), -1);
    expect_config_error("checkpoint.part_bytes");
}
END_TEST

START_TEST(test_to_a_worker_and_back)
{
    ck_assert_int_eq(mr_config_set_u64(key("fetch", "connections"), &config, 77), 0);
    ck_assert_int_eq(mr_config_set_text(key("gcs", "endpoint"), &config, "http://127.0.0.1:1"), 0);
    ck_assert_int_eq(mr_config_set_text(key("gcs", "auth"), &config, "anonymous"), 0);
    ck_assert_int_eq(mr_config_set_text(key("http", "headers"), &config, "a: 1"), 0);
    ck_assert_int_eq(mr_config_set_text(key("http", "headers"), &config, "b: 2"), 0);
    struct mr_config_dataset *train = mr_config_add_dataset(&config, "train");
    ck_assert_int_eq(mr_config_set_text(key("dataset", "uris"), train, "gs://b/1"), 0);
    ck_assert_int_eq(mr_config_set_text(key("dataset", "uris"), train, "gs://b/2"), 0);
    ck_assert_int_eq(mr_config_set_text(key("dataset", "tail"), train, "pad"), 0);
    int fd = mr_config_to_fd(&config);
    ck_assert_int_ge(fd, 0);
    struct mr_config back;
    ck_assert_int_eq(mr_config_from_fd(&back, fd), 0);
    close(fd);
    ck_assert_uint_eq(back.fetch.connections, 77);
    ck_assert_uint_eq(back.memory.arena_bytes, 0);
    ck_assert_str_eq(back.gcs.endpoint, "http://127.0.0.1:1");
    ck_assert_uint_eq(back.gcs.auth, MR_AUTH_ANONYMOUS);
    ck_assert_uint_eq(back.http.headers.count, 2);
    ck_assert_str_eq(back.http.headers.items[1], "b: 2");
    ck_assert_uint_eq(back.dataset_count, 1);
    const struct mr_config_dataset *found = mr_config_find_dataset(&back, "train");
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(found->uris.count, 2);
    ck_assert_str_eq(found->uris.items[1], "gs://b/2");
    ck_assert_uint_eq(found->tail, MR_TAIL_PAD);
    ck_assert_ptr_null(mr_config_find_dataset(&back, "test"));
    mr_config_close(&back);
}
END_TEST

START_TEST(test_damaged_encodings)
{
    ck_assert_ptr_nonnull(mr_config_add_dataset(&config, "train"));
    int fd = mr_config_to_fd(&config);
    char good[65536];
    ssize_t length = pread(fd, good, sizeof good, 0);
    ck_assert_int_gt(length, 100);
    struct mr_config back;
    for (unsigned round = 0; round < 3000; round++) {
        char bytes[sizeof good];
        memcpy(bytes, good, (size_t)length);
        bytes[mr_random64() % (uint64_t)length] = (char)mr_random64();
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ssize_t keep = round % 2 == 0 ? length : (ssize_t)(mr_random64() % (uint64_t)length);
        ck_assert_int_eq(pwrite(fd, bytes, (size_t)keep, 0), keep);
        if (mr_config_from_fd(&back, fd) == 0)
            mr_config_close(&back); /* a changed number, say */
        else
            ck_assert_ptr_null(back.datasets);
    }
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert_int_eq(mr_config_from_fd(&back, fd), -1);
    ck_assert_int_eq(ftruncate(fd, 1 << 30), 0);
    ck_assert_int_eq(mr_config_from_fd(&back, fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    close(fd);
    ck_assert_int_eq(mr_config_from_fd(&back, -1), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_IO);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("config");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_table_is_sane);
    tcase_add_test(tcase, test_defaults);
    tcase_add_test(tcase, test_values);
    tcase_add_test(tcase, test_renamed);
    tcase_add_test(tcase, test_endpoints);
    tcase_add_test(tcase, test_nearest);
    tcase_add_test(tcase, test_check);
    tcase_add_test(tcase, test_to_a_worker_and_back);
    tcase_add_test(tcase, test_damaged_encodings);
    return mr_suite_run("config", tcase);
}
