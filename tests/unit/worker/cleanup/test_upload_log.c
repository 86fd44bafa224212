/* What dead write workers have left of multipart uploads: who records it, who lives, and what a later one aborts. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault_bucket.h"
#include "shm/control/run_lock.h"
#include "worker/cleanup/upload_log.h"
#include "worker/store/upload_parts.h"

#define RUN   "0f8fad5b-d9cb-469f-a165-70867728950e"
#define OTHER "1f8fad5b-d9cb-469f-a165-70867728950e"
#define NOW   (-2) /* any death is late enough; a file time may be some milliseconds ahead of time(2) */

static char runtime[64], logs_path[128];
static struct fault_bucket bucket;
static struct fault_server *server;
static struct mr_config config;
static struct mr_net net;
static struct mr_store *store;
static char begun_id[200];
static int ended;

/* time(2) in the whole program, by the linker's --wrap. */
time_t __wrap_time(time_t *to);
time_t __real_time(time_t *to);
static time_t ahead_s;

time_t __wrap_time(time_t *to)
{
    time_t now = __real_time(NULL) + ahead_s;
    if (to)
        *to = now;
    return now;
}

static void setup(void)
{
    strcpy(runtime, "/tmp/mr-uploads-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    snprintf(logs_path, sizeof logs_path, "%s/millrace/uploads", runtime);
    fault_bucket_init(&bucket);
    server = fault_server_start(fault_bucket_handle, &bucket);
    ck_assert_int_eq(mr_config_init(&config), 0);
    ck_assert_int_eq(mr_config_set_text(mr_config_key_find("gcs", "endpoint"), &config, fault_server_host(server)), 0);
    ck_assert_int_eq(mr_config_set_text(mr_config_key_find("gcs", "auth"), &config, "anonymous"), 0);
    config.retry.base_ms = 1;
    config.retry.cap_ms = 2;
    ck_assert_int_eq(mr_net_init(&net, &config), 0);
    store = mr_net_store(&net, MR_SCHEME_GS, "bucket");
    ck_assert_ptr_nonnull(store);
}

static void teardown(void)
{
    mr_net_close(&net);
    mr_config_close(&config);
    fault_server_stop(server);
    fault_bucket_close(&bucket);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runtime);
    ck_assert_int_eq(system(command), 0);
}

static unsigned count_logs(void)
{
    unsigned count = 0;
    DIR *dir = opendir(logs_path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

static void on_begun(void *arg, const struct mr_store_result *result, const char *id)
{
    (void)arg;
    ck_assert_int_eq(result->code, MR_OK);
    snprintf(begun_id, sizeof begun_id, "%s", id);
    ended++;
}

/* An upload of that name that nobody goes on with. */
static const char *begin(const char *name)
{
    int before = ended;
    ck_assert_ptr_nonnull(mr_transfer_parts_begin(net.engine, store, name, strlen(name), NULL, on_begun, NULL));
    while (ended == before)
        ck_assert_int_ge(mr_http_step(net.http, 1000, -1), 0);
    return begun_id;
}

static unsigned open_count;

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_pending_page *page)
{
    (void)arg;
    ck_assert_int_eq(result->code, MR_OK);
    open_count = (unsigned)page->count;
    ended++;
}

static unsigned count_uploads(void)
{
    int before = ended;
    ck_assert_ptr_nonnull(mr_transfer_parts_list(net.engine, store, NULL, NULL, NULL, on_list, NULL));
    while (ended == before)
        ck_assert_int_ge(mr_http_step(net.http, 1000, -1), 0);
    return open_count;
}

enum record { LOST_ANSWER, WITH_ID, ENDED, HALF_LINE };

/* A process that records uploads of that name and is killed. id: of the first. */
static void die_with(const char *run, unsigned start, const char *name, const char *id, enum record record)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct mr_maker maker = {.slot = MR_MAKER_WRITE, .start = start};
        strcpy(maker.run, run);
        struct mr_upload_log *log = mr_upload_log_new(&maker);
        uint64_t number;
        mr_upload_log_begin(log, store, "bucket", name, strlen(name), &number);
        if (record != LOST_ANSWER)
            mr_upload_log_id(log, number, id);
        if (record == ENDED)
            mr_upload_log_end(log, number);
        if (record == HALF_LINE) {
            char path[300];
            snprintf(path, sizeof path, "%s/%s.%u.%u", logs_path, run, MR_MAKER_WRITE, start);
            FILE *file = fopen(path, "a");
            fputs("garbage\nB x y\nB 9 1 e b %zz\nI 7 %00\nE 99999999999999999999999\nE 1", file);
            fclose(file);
        }
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
}

/* A later write worker, for as long as it has something to do. */
static void clean(int late_s)
{
    struct mr_upload_janitor *janitor = mr_upload_janitor_new(&net, late_s);
    ck_assert_ptr_nonnull(janitor);
    for (unsigned i = 0; i < 5; i++) { /* a file at a look */
        mr_upload_janitor_step(janitor, mr_clock_mono_ns());
        while (mr_upload_janitor_busy(janitor))
            ck_assert_int_ge(mr_http_step(net.http, 1000, -1), 0);
    }
    mr_upload_janitor_destroy(janitor);
}

START_TEST(an_upload_of_the_dead_is_aborted)
{
    begin("someone's");
    die_with(RUN, 1, "a/x y%", begin("a/x y%"), _i ? HALF_LINE : WITH_ID);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 1);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

/* A begun line without an id: the store's list has uploads of that name, and each may be somebody's. */
START_TEST(where_the_answer_was_lost_nothing_is_aborted)
{
    bucket.started_now = 1;
    begin("a/x");
    die_with(RUN, 1, "a/x", NULL, LOST_ANSWER);
    begin("a/x");
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 2);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

static void keep_log(struct mr_upload_log **log, const char *run, unsigned slot, const char *id)
{
    struct mr_maker maker = mr_maker_of(run, MR_MAKER_WRITE + slot, 1);
    uint64_t number;
    *log = mr_upload_log_new(&maker);
    ck_assert_ptr_nonnull(*log);
    mr_upload_log_begin(*log, store, "bucket", "a/x", 3, &number);
    mr_upload_log_id(*log, number, id);
}

/* One bucket and one name: a job that lives, one whose worker died under a living supervisor, one of another machine,
 * one that died before it had an id. Of the dead one alone the upload goes. */
START_TEST(five_jobs_with_one_name)
{
    static const char stopped[] = "2f8fad5b-d9cb-469f-a165-70867728950e";
    static const char young[] = "3f8fad5b-d9cb-469f-a165-70867728950e";
    struct mr_upload_log *log;
    bucket.started_now = 1;
    keep_log(&log, OTHER, 0, begin("a/x"));
    int lock = mr_run_lock_new(stopped);
    ck_assert_int_ge(lock, 0);
    die_with(stopped, 1, "a/x", begin("a/x"), WITH_ID);
    die_with(young, 1, "a/x", NULL, LOST_ANSWER);
    begin("a/x"); /* another machine's */
    char id[200];
    snprintf(id, sizeof id, "%s", begin("a/x"));
    die_with(RUN, 1, "a/x", id, WITH_ID);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 3);
    ck_assert(bucket.sessions[strtoul(id, NULL, 10)].gone);
    mr_run_lock_end(lock, stopped);
    mr_upload_log_end(log, 1);
    mr_upload_log_destroy(log);
}
END_TEST

/* However it came there: an upload that a living process has recorded is not a dead one's. */
START_TEST(an_id_of_the_living_stays)
{
    struct mr_upload_log *log;
    char id[200];
    snprintf(id, sizeof id, "%s", begin("a/x"));
    keep_log(&log, OTHER, 0, id);
    die_with(RUN, 1, "a/x", id, WITH_ID);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 1);
    ck_assert_uint_eq(count_logs(), 2);
    mr_upload_log_end(log, 1);
    mr_upload_log_destroy(log);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 0);
}
END_TEST

/* A run of which nothing lives: nobody goes on with its upload, so it goes at once. The log stays, for what its last
 * requests may bring. */
START_TEST(a_run_that_is_dead_for_good_is_cleaned_at_once)
{
    close(mr_run_lock_new(RUN));
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    die_with(RUN, 2, "a/x", begin("a/x"), WITH_ID);
    clean(MR_LATE_S);
    ck_assert_uint_eq(count_uploads(), 0);
    ck_assert_uint_eq(count_logs(), 2);
    clean(NOW);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

/* Records of stores that are gone, and of one that answers nothing: each has a clock of its own. */
START_TEST(dead_records_do_not_hold_up_others)
{
    static const struct bucket_step script[] = {{OP_ABORT, STALL_AFTER, 0, 0, NULL}};
    char run[] = "9f8fad5b-d9cb-469f-a165-70867728950e";
    for (unsigned i = 0; i < 6; i++) {
        char path[300], text[200];
        run[7] = (char)('0' + i);
        snprintf(path, sizeof path, "%s/%s.%u.1", logs_path, run, MR_MAKER_WRITE);
        die_with(run, 1, "a/x", "7", WITH_ID);
        FILE *file = fopen(path, "w");
        snprintf(text, sizeof text, "B 1 1 http://127.0.0.1:%u bucket a\nI 1 7\n", i + 1);
        ck_assert(file && fputs(text, file) > 0 && fclose(file) == 0);
    }
    bucket.script = script;
    bucket.steps = 1;
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    die_with(OTHER, 1, "a/y", begin("a/y"), WITH_ID);
    struct mr_upload_janitor *janitor = mr_upload_janitor_new(&net, NOW);
    while (bucket.count[OP_ABORT] < 2) { /* the first one answered is never answered */
        mr_upload_janitor_step(janitor, mr_clock_mono_ns());
        ck_assert_int_ge(mr_http_step(net.http, 10, -1), 0);
    }
    mr_upload_janitor_destroy(janitor);
    ck_assert_uint_eq(count_uploads(), 0);
    ck_assert_uint_ge(count_logs(), 6);
}
END_TEST

START_TEST(what_has_ended_is_not_looked_at)
{
    const char *id = begin("a/x");
    die_with(RUN, 1, "a/x", id, ENDED);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 1);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

START_TEST(a_run_that_lives_keeps_it)
{
    struct mr_maker maker = {.run = RUN, .slot = MR_MAKER_WRITE + 1, .start = 1};
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    struct mr_upload_log *log = mr_upload_log_new(&maker);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 1);
    mr_upload_log_destroy(log); /* empty: the file goes */
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 0);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

START_TEST(a_death_of_this_moment_waits)
{
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    clean(MR_LATE_S);
    ck_assert_uint_eq(count_uploads(), 1);
    ck_assert_uint_eq(count_logs(), 1);
}
END_TEST

START_TEST(a_store_that_fails_is_asked_another_time)
{
    static const struct bucket_step script[] = {{OP_ABORT, ANSWER_STATUS, 403, 0, NULL}};
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    die_with(OTHER, 1, "a/y", begin("a/y"), WITH_ID);
    bucket.script = script;
    bucket.steps = 1;
    clean(NOW);
    clean(NOW);
    ck_assert_uint_eq(count_uploads(), 0);
    ck_assert_uint_eq(count_logs(), 0);
}
END_TEST

/* A step at that time of the run, and the end of what it begins. */
static void step_at(struct mr_upload_janitor *janitor, int64_t at_s)
{
    mr_upload_janitor_step(janitor, at_s * MR_SECOND_NS);
    while (mr_upload_janitor_busy(janitor))
        ck_assert_int_ge(mr_http_step(net.http, 1000, -1), 0);
}

START_TEST(what_fails_is_asked_ever_more_rarely_and_given_up_after_a_day)
{
    static struct bucket_step script[20];
    for (unsigned i = 0; i < 20; i++)
        script[i] = (struct bucket_step){OP_ABORT, ANSWER_STATUS, 403, 0, NULL};
    bucket.script = script;
    bucket.steps = 20;
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    struct mr_upload_janitor *janitor = mr_upload_janitor_new(&net, NOW);
    const int64_t at_s[] = {0, 29, 31, 90, 92, 211, 213}; /* waits of 30, 60 and 120 s */
    for (unsigned i = 0; i < 7; i++) {
        step_at(janitor, at_s[i]);
        ck_assert_uint_eq(bucket.count[OP_ABORT], i / 2 + 1);
    }
    ahead_s = 86401;
    step_at(janitor, 500);
    ck_assert_uint_eq(bucket.count[OP_ABORT], 5);
    step_at(janitor, 100000);
    ck_assert_uint_eq(bucket.count[OP_ABORT], 5);
    mr_upload_janitor_destroy(janitor);
    janitor = mr_upload_janitor_new(&net, NOW); /* another process asks once */
    step_at(janitor, 0);
    step_at(janitor, 100000);
    ck_assert_uint_eq(bucket.count[OP_ABORT], 6);
    mr_upload_janitor_destroy(janitor);
    ck_assert_uint_eq(count_logs(), 1);
}
END_TEST

START_TEST(a_store_that_does_not_answer_is_not_waited_for)
{
    static const struct bucket_step script[] = {{OP_ABORT, STALL_AFTER, 0, 0, NULL}};
    bucket.script = script;
    bucket.steps = 1;
    die_with(RUN, 1, "a/x", begin("a/x"), WITH_ID);
    struct mr_upload_janitor *janitor = mr_upload_janitor_new(&net, NOW);
    mr_upload_janitor_step(janitor, 0);
    while (bucket.count[OP_ABORT] == 0)
        ck_assert_int_ge(mr_http_step(net.http, 10, -1), 0);
    mr_upload_janitor_step(janitor, 19 * MR_SECOND_NS);
    ck_assert(mr_upload_janitor_busy(janitor));
    mr_upload_janitor_step(janitor, 20 * MR_SECOND_NS);
    ck_assert(!mr_upload_janitor_busy(janitor));
    step_at(janitor, 51);
    ck_assert_uint_eq(bucket.count[OP_ABORT], 2);
    ck_assert_uint_eq(count_logs(), 0);
    mr_upload_janitor_destroy(janitor);
}
END_TEST

START_TEST(the_end_of_a_process)
{
    struct mr_maker maker = {.run = RUN, .slot = MR_MAKER_WRITE, .start = 1};
    uint64_t number;
    struct mr_upload_log *log = mr_upload_log_new(&maker);
    mr_upload_log_begin(log, store, "bucket", "a", 1, &number);
    uint64_t other;
    mr_upload_log_begin(log, store, "bucket", "b", 1, &other);
    ck_assert_uint_ne(number, other);
    mr_upload_log_end(log, number);
    mr_upload_log_destroy(log); /* b is open: the file stays for others */
    ck_assert_uint_eq(count_logs(), 1);
    maker.start = 2;
    log = mr_upload_log_new(&maker);
    mr_upload_log_begin(log, store, "bucket", "a", 1, &number);
    mr_upload_log_end(log, number);
    mr_upload_log_destroy(log);
    ck_assert_uint_eq(count_logs(), 1);
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("uploads");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, an_upload_of_the_dead_is_aborted, 0, 2);
    tcase_add_test(all, where_the_answer_was_lost_nothing_is_aborted);
    tcase_add_test(all, five_jobs_with_one_name);
    tcase_add_test(all, an_id_of_the_living_stays);
    tcase_add_test(all, a_run_that_is_dead_for_good_is_cleaned_at_once);
    tcase_add_test(all, dead_records_do_not_hold_up_others);
    tcase_add_test(all, what_has_ended_is_not_looked_at);
    tcase_add_test(all, a_run_that_lives_keeps_it);
    tcase_add_test(all, a_death_of_this_moment_waits);
    tcase_add_test(all, a_store_that_fails_is_asked_another_time);
    tcase_add_test(all, what_fails_is_asked_ever_more_rarely_and_given_up_after_a_day);
    tcase_add_test(all, a_store_that_does_not_answer_is_not_waited_for);
    tcase_add_test(all, the_end_of_a_process);
    Suite *suite = suite_create("upload_log");
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
