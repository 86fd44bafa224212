/*
 * test_aws.c - the life of AWS keys in one process: one fetch for all who wait, their replacement ahead of
 * their end and after a refusal, and what is left in memory. The kinds: tests/store/test_aws_credentials.py.
 */
#include <check.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault_server.h"
#include "tests/unit/suite.h"
#include "worker/store/aws_credentials.h"
#include "worker/store/aws_sign.h"

#define WAITERS 20

static struct fault_server *server;
static struct mr_http *http;
static struct mr_aws_credentials *credentials;
static _Atomic unsigned answers, fault_status;
static _Atomic int64_t lifetime_s;
static _Atomic bool same, silent;
static char folder[64], file_path[100];

/* The agent beside a container: keys of a number that grows. */
static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    (void)request;
    char body[300], expires[40];
    if (silent)
        fault_wait(conn, 60000);
    if (fault_status) {
        fault_answer(conn, (int)fault_status, "", "{}", 2);
        return true;
    }
    time_t end = time(NULL) + lifetime_s;
    struct tm tm;
    strftime(expires, sizeof expires, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    unsigned number = ++answers;
    if (same)
        number = 1;
    snprintf(body, sizeof body,
             "{\"AccessKeyId\":\"ASIA%u\",\"SecretAccessKey\":\"secret-%u\",\"Token\":\"t\",\"Expiration\":\"%s\"}",
             number, number, expires);
    fault_answer(conn, 200, "", body, strlen(body));
    return true;
}

static void clear_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",       "AWS_DEFAULT_PROFILE",   "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONFIG_FILE",   "AWS_SECURITY_TOKEN",    "AWS_CREDENTIAL_EXPIRATION"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    unsetenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
}

static void write_file(const char *text)
{
    FILE *file = fopen(file_path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void setup(void)
{
    answers = fault_status = 0;
    same = silent = false;
    lifetime_s = 36000;
    clear_environment();
    snprintf(folder, sizeof folder, "/tmp/millrace-test-aws-%d", (int)getpid());
    snprintf(file_path, sizeof file_path, "%s.ini", folder);
    setenv("HOME", folder, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", file_path, 1);
    server = fault_server_start(handle, NULL);
    char url[100];
    snprintf(url, sizeof url, "http://%s/keys", fault_server_host(server));
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
    http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    credentials = NULL;
}

static void teardown(void)
{
    mr_aws_credentials_destroy(credentials);
    mr_http_destroy(http);
    fault_server_stop(server);
    unlink(file_path);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* the leak checker looks into the process */
}

static void open_credentials(void)
{
    credentials = mr_aws_credentials_new(&(struct mr_aws_options){.profile = NULL}, http);
    ck_assert_msg(credentials != NULL, "%s", mr_error_text());
}

static unsigned ended;
static enum mr_code last_code;
static char last_text[1024];

static void on_ready(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    (void)waiter;
    ended++;
    last_code = code;
    snprintf(last_text, sizeof last_text, "%s", text);
}

static void step_until(unsigned count)
{
    int64_t end = mr_clock_mono_ns() + 60 * MR_SECOND_NS;
    while (ended < count) {
        ck_assert_int_ge(mr_http_step(http, 50, -1), 0);
        ck_assert_int_lt(mr_clock_mono_ns(), end);
    }
}

/* Waits for keys; the code that it ends with. */
static enum mr_code wait_for_keys(void)
{
    struct mr_auth_waiter waiter = {.ready = on_ready};
    ended = 0;
    mr_aws_credentials_wait(credentials, &waiter);
    step_until(1);
    return last_code;
}

/* The store refuses the keys until their source, which is asked once a second, says something else. */
static enum mr_code refuse_until_others(uint64_t serial)
{
    int64_t end = mr_clock_mono_ns() + 60 * MR_SECOND_NS;
    do {
        ck_assert_int_lt(mr_clock_mono_ns(), end);
        mr_aws_credentials_refused(credentials, serial);
        mr_http_step(http, 50, -1);
    } while (wait_for_keys() == MR_E_DENIED && strstr(last_text, "the store refuses the keys of") != NULL);
    return last_code;
}

START_TEST(one_fetch_for_all)
{
    open_credentials();
    struct mr_aws_credentials *again = mr_aws_credentials_new(&(struct mr_aws_options){.profile = NULL}, http);
    ck_assert_ptr_eq(again, credentials);
    struct mr_auth_waiter waiters[WAITERS] = {{.ready = NULL}};
    struct mr_aws_keys keys;
    ended = 0;
    ck_assert(!mr_aws_credentials_get(credentials, &keys));
    for (unsigned i = 0; i < WAITERS; i++) {
        waiters[i].ready = on_ready;
        mr_aws_credentials_wait(credentials, &waiters[i]);
    }
    ck_assert_uint_eq(ended, 0);
    mr_aws_credentials_cancel(credentials, &waiters[0]);
    mr_aws_credentials_cancel(credentials, &waiters[7]);
    step_until(WAITERS - 2);
    ck_assert_uint_eq(answers, 1);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.access_key_id, "ASIA1");
    ck_assert_str_eq(keys.secret_access_key, "secret-1");
    ck_assert_str_eq(keys.session_token, "t");
    ck_assert_uint_eq(keys.serial, 1);
    mr_aws_credentials_destroy(again);
}
END_TEST

/* "9999-12-31", which some programs answer for "never", is more than an int64_t of nanoseconds. */
START_TEST(keys_for_ever)
{
    struct mr_aws_keys keys;
    lifetime_s = INT64_C(250000000000);
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_uint_eq(answers, 1);
}
END_TEST

START_TEST(refused)
{
    struct mr_aws_keys keys;
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    mr_aws_credentials_refused(credentials, 1);
    ck_assert(!mr_aws_credentials_get(credentials, &keys));
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.access_key_id, "ASIA2");
    mr_aws_credentials_refused(credentials, 1); /* of those before: no matter */
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_int_eq(wait_for_keys(), MR_OK); /* at once */
    ck_assert_uint_eq(answers, 2);
}
END_TEST

START_TEST(refused_and_no_others)
{
    struct mr_aws_keys keys;
    same = true;
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    mr_aws_credentials_refused(credentials, 1);
    ck_assert_int_eq(wait_for_keys(), MR_E_DENIED);
    ck_assert_msg(strstr(last_text, "the store refuses the keys of the container's agent at http://127.0.0.1") != NULL,
                  "%s", last_text);
    ck_assert(mr_aws_credentials_get(credentials, &keys)); /* for the next request */
    ck_assert_str_eq(keys.access_key_id, "ASIA1");
    mr_aws_credentials_refused(credentials, 1); /* at once: the agent is not asked again */
    ck_assert_int_eq(wait_for_keys(), MR_E_DENIED);
    ck_assert_uint_eq(answers, 2);
    same = false;
    ck_assert_int_eq(refuse_until_others(1), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_uint_eq(answers, 3);
    ck_assert_str_eq(keys.access_key_id, "ASIA3");
}
END_TEST

/* What a person has put right in the meantime counts. */
START_TEST(files_are_read_anew)
{
    struct mr_aws_keys keys;
    write_file("[default]\naws_access_key_id = AKIAOLD\naws_secret_access_key = s\n");
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.access_key_id, "AKIAOLD");
    ck_assert_ptr_null(keys.session_token);
    mr_aws_credentials_refused(credentials, keys.serial);
    ck_assert_int_eq(wait_for_keys(), MR_E_DENIED);
    write_file("[default]\nnonsense\n");
    ck_assert_int_eq(refuse_until_others(keys.serial), MR_E_DENIED);
    ck_assert_msg(strstr(last_text, ".ini: line 2: it is neither") != NULL, "%s", last_text);
    write_file("[default]\naws_access_key_id = AKIANEW\naws_secret_access_key = s\n");
    ck_assert_int_eq(refuse_until_others(keys.serial), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.access_key_id, "AKIANEW");
    unlink(file_path); /* then the container's */
    mr_aws_credentials_refused(credentials, keys.serial);
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.access_key_id, "ASIA1");
    ck_assert_uint_eq(keys.serial, 3);
}
END_TEST

/* Keys of 8 s are replaced after half of that, and nobody waits or fails. */
START_TEST(replaced_ahead)
{
    struct mr_aws_keys keys;
    lifetime_s = 8;
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    int64_t end = mr_clock_mono_ns() + 60 * MR_SECOND_NS;
    while (answers < 3) {
        mr_http_step(http, 20, -1);
        ck_assert_int_lt(mr_clock_mono_ns(), end);
    }
    lifetime_s = 36000;
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_uint_ge(keys.serial, 2);
}
END_TEST

/* While they cannot be replaced, keys are used to their end, and no longer. */
START_TEST(replacement_fails)
{
    struct mr_aws_keys keys;
    lifetime_s = 6;
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    fault_status = 403;
    int64_t end = mr_clock_mono_ns() + 60 * MR_SECOND_NS;
    while (mr_aws_credentials_get(credentials, &keys)) {
        mr_http_step(http, 20, -1);
        ck_assert_int_lt(mr_clock_mono_ns(), end);
    }
    ck_assert_int_eq(wait_for_keys(), MR_E_DENIED);
    ck_assert_msg(strstr(last_text, "HTTP status 403") != NULL, "%s", last_text);
    fault_status = 0;
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
}
END_TEST

/* How often the text lies in this process's heap. */
static unsigned count_in_heap(const char *text, size_t length)
{
    char line[512];
    unsigned found = 0;
    unsigned long first, last;
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, "[heap]") || sscanf(line, "%lx-%lx", &first, &last) != 2)
            continue;
        for (const char *at = (const char *)first; at + length <= (const char *)last; at++)
            found += *at == *text && memcmp(at, text, length) == 0;
    }
    fclose(maps);
    return found;
}

/* Neither the file's text nor the keys are left. The secret is made by another process, so that nothing else has it. */
START_TEST(keys_are_overwritten)
{
    char command[800], secret[64] = "", path[120];
    snprintf(path, sizeof path, "%s.secret", folder);
    snprintf(command, sizeof command,
             "head -c 24 /dev/urandom | base64 > %s; { echo '[default]'; echo aws_access_key_id = A; echo "
             "aws_secret_access_key = $(cat %s); } > %s",
             path, path, file_path);
    ck_assert_int_eq(system(command), 0);
    open_credentials();
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(read(fd, secret, 32), 32);
    close(fd);
    unlink(path);
    struct mr_aws_keys keys;
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_str_eq(keys.secret_access_key, secret);
#ifndef __SANITIZE_ADDRESS__ /* whose memory is not the heap */
    ck_assert_uint_gt(count_in_heap(secret, 32), 0);
#endif
    mr_aws_credentials_destroy(credentials);
    credentials = NULL;
    ck_assert_uint_eq(count_in_heap(secret, 32), 0);
}
END_TEST

START_TEST(closed_while_waiting)
{
    silent = true;
    open_credentials();
    struct mr_auth_waiter waiter = {.ready = on_ready};
    ended = 0;
    mr_aws_credentials_wait(credentials, &waiter);
    for (unsigned i = 0; i < 5; i++)
        mr_http_step(http, 5, -1);
    mr_aws_credentials_cancel(credentials, &waiter);
    mr_aws_credentials_cancel(credentials, &waiter);
    ck_assert_uint_eq(ended, 0);
    ck_assert_uint_eq(mr_http_in_flight(http), 1);
    mr_aws_credentials_destroy(credentials);
    credentials = NULL;
    ck_assert_uint_eq(mr_http_in_flight(http), 0);
}
END_TEST

START_TEST(anonymous)
{
    struct mr_aws_keys keys;
    char text[200];
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    credentials = mr_aws_credentials_new(&(struct mr_aws_options){.anonymous = true}, http);
    ck_assert_ptr_nonnull(credentials);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    ck_assert_ptr_null(keys.access_key_id);
    ck_assert_uint_eq(keys.serial, 0);
    mr_aws_credentials_refused(credentials, 0);
    ck_assert(mr_aws_credentials_get(credentials, &keys));
    mr_aws_credentials_describe(credentials, text, sizeof text);
    ck_assert_str_eq(text, "none are sent (anonymous)");
    ck_assert_int_eq(prctl(PR_GET_DUMPABLE), 1); /* there is nothing to hide */
}
END_TEST

START_TEST(described)
{
    char text[300];
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/id", 1);
    open_credentials();
    mr_aws_credentials_describe(credentials, text, sizeof text);
    ck_assert_str_eq(text, "the container's agent at http://169.254.170.2/v2/credentials/id");
    mr_aws_credentials_destroy(credentials);
    unsetenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    open_credentials();
    ck_assert_int_eq(prctl(PR_GET_DUMPABLE), 0);
    mr_aws_credentials_describe(credentials, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "the container's agent at http://127.0.0.1:"));
    ck_assert_ptr_null(strstr(text, "good for"));
    ck_assert_int_eq(wait_for_keys(), MR_OK);
    mr_aws_credentials_describe(credentials, text, sizeof text);
    ck_assert_msg(strstr(text, "; good for 599 min") || strstr(text, "; good for 600 min"), "%s", text);
    ck_assert_ptr_null(strstr(text, "secret"));
}
END_TEST

/* The signatures themselves are compared with botocore's in tests/store/test_aws_credentials.py. */
START_TEST(signed_for_a_host)
{
    static const struct {
        const char *url, *host;
    } all[] = {{"https://sts.amazonaws.com:443/x?y", "sts.amazonaws.com"},
               {"http://127.0.0.1:80", "127.0.0.1"},
               {"http://127.0.0.1:443/", "127.0.0.1:443"},
               {"https://[::1]:9000/", "[::1]:9000"},
               {"nothing", ""}};
    char host[64];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ck_assert_str_eq(mr_aws_sign_host(all[i].url, host, sizeof host), all[i].host);
    struct mr_aws_sign request = {.access_key_id = "A",
                                  .secret_access_key = "s",
                                  .region = "us-east-1",
                                  .method = "GET",
                                  .url = "nothing",
                                  .body = "",
                                  .date = "20260102T030405Z"};
    struct mr_text text = {0};
    ck_assert_int_eq(mr_aws_sign(&text, &request), -1);
    ck_assert_str_eq(mr_error_text(), "\"nothing\" is not the URL of an AWS service");
    request.url = "https://sts-fips.us-east-2.amazonaws.com/?B=1&A";
    ck_assert_int_eq(mr_aws_sign(&text, &request), 0);
    const char *begin = "AWS4-HMAC-SHA256 Credential=A/20260102/us-east-1/sts/aws4_request, "
                        "SignedHeaders=host;x-amz-date, Signature=";
    ck_assert_int_eq(strncmp(text.data, begin, strlen(begin)), 0);
    ck_assert_uint_eq(text.length, strlen(begin) + 64);
    mr_text_close(&text);
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 100);
    tcase_add_test(all, one_fetch_for_all);
    tcase_add_test(all, keys_for_ever);
    tcase_add_test(all, refused);
    tcase_add_test(all, refused_and_no_others);
    tcase_add_test(all, files_are_read_anew);
    tcase_add_test(all, replaced_ahead);
    tcase_add_test(all, replacement_fails);
    tcase_add_test(all, keys_are_overwritten);
    tcase_add_test(all, closed_while_waiting);
    tcase_add_test(all, anonymous);
    tcase_add_test(all, described);
    tcase_add_test(all, signed_for_a_host);
    return mr_suite_run("aws_credentials", all);
}
