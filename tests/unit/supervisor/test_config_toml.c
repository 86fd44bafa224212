/* The configuration's text: what is accepted, and that each mistake names its line and what would be right. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/check.h"
#include "supervisor/config_toml.h"

START_TEST(test_all_keys)
{
    static const char text[] =
        "[dataset.train]\n"
        "uri = \"gs://bucket/train/\"\n"
        "tail = \"drop\"\n"
        "on_error = \"skip\"\n"
        "[dataset.\"val-1\"]\n"
        "uris = [\"gs://bucket/a/\", \"gs://bucket/b/\"]\n"
        "[memory]\narena_bytes = \"512MiB\"\nbacking = \"memfd\"\nhuge_pages = \"never\"\n"
        "[lanes]\nwindow = 64\nmax = 8\n"
        "[list]\nworkers = 2\nexclude_classes = [\"ARCHIVE\"]\n"
        "[fetch]\nworkers = 3\nconnections = 5\nreceive_buffer_bytes = 65536\n"
        "range_threshold_bytes = \"64MiB\"\nrange_bytes = \"8MiB\"\n"
        "[retry]\nattempts = 2\nbase_ms = 1\ncap_ms = 10\ndeadline_ms = 1000\n"
        "[http]\nconnect_timeout_ms = 100\nstall_timeout_ms = 200\nstall_min_ms = 100\nproxy = \"http://p:1\"\n"
        "ca_bundle = \"/x.pem\"\nheaders = { x-a = \"1\", \"x-b\" = \"two words\" }\n"
        "[gcs]\nendpoint = \"http://e\"\nauth = \"anonymous\"\nuser_project = \"p\"\n"
        "[log]\nlevel = \"debug\"\n"
        "[metrics]\ninterval_s = 10\n";
    struct mr_config config;
    ck_assert_msg(mr_config_parse(&config, text, sizeof text - 1, "t.toml") == 0, "%s", mr_error_text());
    ck_assert_uint_eq(config.dataset_count, 2);
    const struct mr_config_dataset *val = mr_config_find_dataset(&config, "val-1");
    ck_assert_ptr_nonnull(val);
    ck_assert_uint_eq(val->uris.count, 2);
    ck_assert_str_eq(val->uris.items[1], "gs://bucket/b/");
    ck_assert_uint_eq(mr_config_find_dataset(&config, "train")->tail, MR_TAIL_DROP);
    ck_assert_uint_eq(mr_config_find_dataset(&config, "train")->on_error, MR_ON_ERROR_SKIP);
    ck_assert_uint_eq(config.memory.arena_bytes, 512 << 20);
    ck_assert_uint_eq(config.memory.backing, MR_BACKING_MEMFD);
    ck_assert_uint_eq(config.fetch.connections, 5);
    ck_assert_uint_eq(config.fetch.receive_buffer_bytes, 65536);
    ck_assert_uint_eq(config.http.headers.count, 2);
    ck_assert_str_eq(config.http.headers.items[0], "x-a: 1");
    ck_assert_str_eq(config.http.headers.items[1], "x-b: two words");
    ck_assert_str_eq(config.list.exclude_classes.items[0], "ARCHIVE");
    ck_assert_uint_eq(config.log.level, MR_LOG_DEBUG);
    ck_assert_uint_eq(config.metrics.interval_s, 10);
    mr_config_close(&config);
}
END_TEST

START_TEST(what_is_found_by_itself)
{
    const char *text = "[memory]\narena_bytes = \"auto\"\n[fetch]\nconnections = \"auto\"\n";
    struct mr_config config;
    ck_assert_int_eq(mr_config_parse(&config, text, strlen(text), "auto.toml"), 0);
    ck_assert_uint_eq(config.memory.arena_bytes, 0);
    ck_assert_uint_eq(config.fetch.connections, 0);
    mr_config_close(&config);
}
END_TEST

static const struct {
    const char *text, *line, *says;
} mistakes[] = {
    {"[fetch]\nconnections = \"many\"\n", "line 2", "'connections' must be a whole number, or \"auto\""},
    {"[fetch]\nworkers = \"auto\"\n", "line 2", "'workers' must be a whole number"},
    {"[memory]\narena_byte = 1\n", "line 2", "did you mean 'arena_bytes'"},
    {"[checkpoint]\nwriters = 65\n", "line 2", "'workers' is 65: it must be 1 to 64"},
    {"[checkpoint]\nworkers = 3\nwriters = 3\n", "line 3",
     "'writers' is the old name of 'workers', which is there too"},
    {"\n[memroy]\n", "line 2", "did you mean 'memory'"},
    {"fetch = 3\n", "line 1", "write [fetch]"},
    {"workers = 3\n", "line 1", "unknown key 'workers'"},
    {"[memory]\narena_bytes = true\n", "line 2", "must be a number of bytes"},
    {"[memory]\narena_bytes = \"12 apples\"\n", "line 2", "is not a size"},
    {"[memory]\narena_bytes = 1\n", "line 2", "1MiB to 16TiB"},
    {"[memory]\narena_bytes = -1\n", "line 2", "negative"},
    {"[memory]\narena_bytes = 1.5\n", "line 2", "number of bytes"},
    {"[memory]\nbacking = \"disk\"\n", "line 2", "auto, posix, memfd"},
    {"[memory]\nbacking = 3\n", "line 2", "must be a string"},
    {"[fetch]\n\nworkers = \"2\"\n", "line 3", "must be a whole number"},
    {"[fetch]\nworkers = 65\n", "line 2", "1 to 64"},
    {"[fetch]\nworkers = 2024-01-01\n", "line 2", "must be a whole number"},
    {"[fetch]\nworkers = 99999999999999999999\n", "line 2", ""},
    {"[fetch]\nworkers = 1\nworkers = 2\n", "line 3", "redefine"},
    {"[fetch]\n[fetch]\n", "line 2", "redefine"},
    {"[fetch\n", "line 1", ""},
    {"\n[fetch]\n[=]\nworkers = 1\n", "line 3", ""},
    {"[fetch]\nworkers = 1\n[[\n", "line 3", ""},
    {"[fetch]\nworkers = \n", "line 2", ""},
    {"[log]\nlevel = \"loud\"\n", "line 2", "error, warning, info, debug"},
    {"[http]\nproxy = \"a\\u0000b\"\n", "line 2", "NUL"},
    {"[fetch]\n\"workers\\u0000x\" = 3\n", "line 2", "NUL"},
    {"[dataset.\"a\\u0000b\"]\nuri = \"gs://b/\"\n", "line 1", "NUL"},
    {"[http]\nproxy = [\"a\"]\n", "line 2", "must be a string"},
    {"[http]\nheaders = [\"a: b\"]\n", "line 2", "table of strings"},
    {"[http]\nheaders = { \"a b\" = \"c\" }\n", "line 2", "bad name or value"},
    {"[http]\nheaders = { a = 1 }\n", "line 2", "table of strings"},
    {"[http.headers]\na = \"x\\ny\"\n", "line 2", "bad name or value"},
    {"[list]\nexclude_classes = [1]\n", "line 2", "array of strings"},
    {"[list]\nexclude_classes = \"\"\n", "line 2", "empty text: for none, leave it out or write []"},
    {"[dataset]\nuri = \"gs://b/\"\n", "line 2", "[dataset.NAME]"},
    {"dataset = 1\n", "line 1", "[dataset.NAME]"},
    {"[dataset.a]\n", "line 1", "neither uri nor uris"},
    {"[dataset.a]\nuri = \"gs://b/\"\nuris = [\"gs://c/\"]\n", "line 1", "both uri and uris"},
    {"[dataset.a]\nurl = \"gs://b/\"\n", "line 2", "did you mean 'uri'"},
    {"[dataset.\"a b\"]\nuri = \"gs://b/\"\n", "line 1", "letters"},
    {"[dataset.a]\nuri = \"http://b/\"\n", "", "'a'"},
    {"[dataset.a]\nuri = \"gs://b/\"\ntail = \"long\"\n", "line 3", "short, drop, pad"},
    {"[endpoint]\nregion = \"a\"\n", "line 2", "[endpoint.NAME]"},
    {"[endpoint.a]\nbucket = \"b\"\n", "line 2", "did you mean 'buckets'"},
    {"[endpoint.\"a+b\"]\n", "line 1", "letters"},
    {"[endpoint.a]\nbuckets = [\"b/c\"]\n", "", "endpoint.a.buckets: \"b/c\" is not a bucket's name"},
    {"[endpoint.a]\nbuckets = [\"b*c\"]\n", "", "\"*\" may stand at its end"},
    {"[endpoint.a]\nbuckets = \"c\"\n[endpoint.b]\nbuckets = \"c\"\n", "", "is in endpoint.a and in endpoint.b"},
    {"[endpoint.a]\nkms_key_id = \"k\"\n", "", "endpoint.a.kms_key_id"},
    {"[retry]\nbase_ms = 100\ncap_ms = 10\n", "", "retry.cap_ms"},
    {"[fetch]\nrange_threshold_bytes = \"8MiB\"\nrange_bytes = \"16MiB\"\n", "",
     "is above fetch.range_threshold_bytes"},
    {"[log]\nlevel = \"\xff\xfe\"\n", "line 2", ""},
    {"\xff", "line 1", ""},
};

START_TEST(test_mistakes)
{
    struct mr_config config;
    const char *text = mistakes[_i].text;
    ck_assert_msg(mr_config_parse(&config, text, strlen(text), "t.toml") == -1, "accepted: %s", text);
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    const char *says = mr_error_text();
    ck_assert_msg(strstr(says, "t.toml") && strstr(says, mistakes[_i].line) && strstr(says, mistakes[_i].says),
                  "'%s' gives '%s'", text, says);
}
END_TEST

/* Deep nesting is an error and no crash. */
/* The text parsed with standard error into `shown`. */
static int parse_shown(struct mr_config *config, const char *text, char *shown, size_t size)
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    ck_assert(file && saved >= 0 && dup2(fileno(file), STDERR_FILENO) == STDERR_FILENO);
    int rc = mr_config_parse(config, text, strlen(text), "t.toml");
    ck_assert_int_eq(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    close(saved);
    rewind(file);
    shown[fread(shown, 1, size - 1, file)] = '\0';
    fclose(file);
    return rc;
}

START_TEST(test_old_names)
{
    struct mr_config config;
    char shown[400];
    ck_assert_int_eq(parse_shown(&config, "[checkpoint]\npart_bytes = \"8MiB\"\nwriters = 5\n", shown, sizeof shown),
                     0);
    ck_assert_uint_eq(config.checkpoint.workers, 5);
    ck_assert_ptr_nonnull(strstr(shown, "t.toml: line 3: 'writers' in [checkpoint] is now 'workers'"));
    ck_assert_ptr_eq(strchr(shown, '\n'), shown + strlen(shown) - 1); /* one line */
    mr_config_close(&config);
    ck_assert_int_eq(parse_shown(&config, "[checkpoint]\nworkers = 5\n", shown, sizeof shown), 0);
    ck_assert_str_eq(shown, "");
    mr_config_close(&config);
}
END_TEST

START_TEST(test_nesting)
{
    char *text = malloc(200001);
    memset(text, '[', 200000);
    memcpy(text, "[log]\nlevel=", 12);
    text[200000] = '\0';
    struct mr_config config;
    ck_assert_int_eq(mr_config_parse(&config, text, 200000, "t.toml"), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    free(text);
}
END_TEST

START_TEST(test_files)
{
    struct mr_config config;
    char path[] = "/tmp/millrace-test-XXXXXX";
    ck_assert_int_eq(mr_config_load(&config, NULL), 0);
    mr_config_close(&config);
    ck_assert_int_eq(mr_config_load(&config, "/does/not/exist.toml"), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "No such file"));
    ck_assert_int_eq(mr_config_load(&config, "/tmp"), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "/tmp"));
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(mr_config_load(&config, path), 0); /* empty: the defaults */
    ck_assert_uint_eq(config.fetch.workers, 2);
    mr_config_close(&config);
    ck_assert_int_eq(write(fd, "[fetch]\nworkers = 7\n", 20), 20);
    ck_assert_int_eq(mr_config_load(&config, path), 0);
    ck_assert_uint_eq(config.fetch.workers, 7);
    mr_config_close(&config);
    close(fd);
    unlink(path);
}
END_TEST

/* What `check` prints is a configuration again, and the same one. */
START_TEST(test_check_prints_what_it_read)
{
    static const char text[] = "[dataset.train]\nuri = \"gs://bucket/\\\"tr\\u0001ain\\\"/\"\ntail = \"pad\"\n"
                               "[endpoint.there]\nbuckets = [\"a\", \"b-*\"]\nregion = \"mars-1\"\n"
                               "[fetch]\nworkers = 3\nreceive_buffer_bytes = 100000\n"
                               "[http]\nheaders = { key = \"secret\" }\n";
    struct mr_config config;
    ck_assert_msg(mr_config_parse(&config, text, sizeof text - 1, "a") == 0, "%s", mr_error_text());
    struct mr_config again;
    char *printed[2];
    size_t length[2];
    for (unsigned i = 0; i < 2; i++) {
        FILE *out = open_memstream(&printed[i], &length[i]);
        mr_check_print(i == 0 ? &config : &again, out);
        fclose(out);
        if (i == 0)
            ck_assert_msg(mr_config_parse(&again, printed[0], length[0], "b") == 0, "%s\n%s", mr_error_text(),
                          printed[0]);
    }
    ck_assert_str_eq(printed[0], printed[1]);
    ck_assert_ptr_null(strstr(printed[0], "secret"));
    ck_assert_ptr_nonnull(strstr(printed[0], "workers = 3"));
    ck_assert_str_eq(again.datasets[0].uris.items[0], config.datasets[0].uris.items[0]);
    ck_assert_str_eq(again.endpoints[0].buckets.items[1], "b-*");
    ck_assert_str_eq(again.endpoints[0].s3.region, "mars-1");
    free(printed[0]);
    free(printed[1]);
    mr_config_close(&config);
    mr_config_close(&again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("supervisor_toml");
    TCase *tcase = tcase_create("toml");
    tcase_add_test(tcase, test_all_keys);
    tcase_add_test(tcase, what_is_found_by_itself);
    tcase_add_loop_test(tcase, test_mistakes, 0, sizeof mistakes / sizeof mistakes[0]);
    tcase_add_test(tcase, test_old_names);
    tcase_add_test(tcase, test_nesting);
    tcase_add_test(tcase, test_files);
    tcase_add_test(tcase, test_check_prints_what_it_read);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
