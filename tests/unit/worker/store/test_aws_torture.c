/*
 * test_aws_torture.c - each source of AWS keys with our n-th allocation failing, for every n: keys or an error with
 * words, never a crash, a hang or (under the address sanitizer) a leak. As test_torture.c does it for the store.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault_server.h"
#include "tests/unit/suite.h"
#include "worker/store/aws_credentials.h"

static _Thread_local long fail_at = -1; /* allocations until the one that fails; -1: none does */
static _Thread_local bool failed;

static bool fails(void)
{
    if (fail_at < 0 || fail_at-- > 0)
        return false;
    failed = true;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return fails() ? NULL : __real_strndup(text, size);
}

static struct fault_server *server;
static char home[64];

/* All services in one. */
static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    static const char keys[] = "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Token\":\"t\","
                               "\"Expiration\":\"2099-01-02T03:04:05Z\"}";
    static const char sts[] = "<R><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
                              "<SessionToken>t</SessionToken><Expiration>2099-01-02T03:04:05Z</Expiration>"
                              "</Credentials></R>";
    static const char login[] = "{\"accessToken\":\"login-2\",\"expiresIn\":28800}";
    static const char sso[] = "{\"x\":[\"y\"],\"roleCredentials\":{\"accessKeyId\":\"A\",\"secretAccessKey\":\"s\","
                              "\"sessionToken\":\"t\",\"expiration\":4070919845000}}";
    const char *body = keys;
    if (strcmp(request->target, "/") == 0)
        body = sts;
    else if (strcmp(request->target, "/token") == 0)
        body = login;
    else if (strncmp(request->target, "/federation", 11) == 0)
        body = sso;
    else if (strcmp(request->target, "/latest/api/token") == 0)
        body = "session";
    else if (request->target[0] && request->target[strlen(request->target) - 1] == '/')
        body = "role";
    fault_answer(conn, 200, "", body, strlen(body));
    return true;
}

static void put_file(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", home, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

#define SSO_FILE ".aws/sso/cache/b6589fc6ab0dc82cf12099d1c2d40ab994e8410c.json" /* the SHA-1 of "0" */

static const char login_file[] =
    "{\"accessToken\":\"login-1\",\"expiresAt\":\"2020-01-02T03:04:05Z\",\"clientId\":\"c\","
    "\"clientSecret\":\"s\",\"refreshToken\":\"r\","
    "\"registrationExpiresAt\":\"2099-01-02T03:04:05Z\"}";

static void setup(void)
{
    static const char *const folders[] = {"", "/.aws", "/.aws/sso", "/.aws/sso/cache"};
    static const char *const services[] = {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC",
                                           "AWS_EC2_METADATA_SERVICE_ENDPOINT"};
    char url[100];
    snprintf(home, sizeof home, "/tmp/millrace-test-aws-torture-%d", (int)getpid());
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(url, sizeof url, "%s%s", home, folders[i]);
        ck_assert_int_eq(mkdir(url, 0700), 0);
    }
    setenv("HOME", home, 1);
    server = fault_server_start(handle, NULL);
    snprintf(url, sizeof url, "http://%s", fault_server_host(server));
    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        setenv(services[i], url, 1);
    put_file("web", "token");
    put_file(".aws/config",
             "[profile keys]\naws_access_key_id = A\naws_secret_access_key = s\naws_session_token = t\n"
             "[profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = keys\nexternal_id = e\n"
             "[profile web]\nrole_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = ~/web\n"
             "[profile sso]\nsso_session = 0\nsso_account_id = 1\nsso_role_name = r\n"
             "[sso-session 0]\nsso_region = us-east-1\nsso_start_url = https://s\n"
             "[profile instance]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Ec2InstanceMetadata\n");
}

static void teardown(void)
{
    static const char *const names[] = {"web", ".aws/config", SSO_FILE, ".aws/sso/cache", ".aws/sso", ".aws", ""};
    fault_server_stop(server);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200];
        snprintf(path, sizeof path, "%s/%s", home, names[i]);
        remove(path);
    }
    ck_assert_int_ne(access(home, F_OK), 0);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* the leak checker looks into the process */
}

static int done;
static bool well, silent; /* silent: an error without words */

static void on_ready(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    (void)waiter;
    done++;
    well = code == MR_OK;
    silent = !well && !text[0];
}

/* Whether there were keys in the end. check allocates too: nothing is asserted here. */
static bool try_once(const char *profile, struct mr_http *http)
{
    done = well = silent = 0;
    struct mr_aws_credentials *credentials = mr_aws_credentials_new(&(struct mr_aws_options){.profile = profile}, http);
    if (!credentials) {
        silent = !mr_error_text()[0];
        return false;
    }
    struct mr_auth_waiter waiter = {.ready = on_ready};
    mr_aws_credentials_wait(credentials, &waiter);
    int64_t end = mr_clock_mono_ns() + 60 * MR_SECOND_NS;
    while (!done && mr_clock_mono_ns() < end)
        mr_http_step(http, 100, -1);
    mr_aws_credentials_cancel(credentials, &waiter);
    struct mr_aws_keys keys;
    bool there = mr_aws_credentials_get(credentials, &keys) && strcmp(keys.session_token, "t") == 0;
    mr_aws_credentials_destroy(credentials);
    return there;
}

START_TEST(every_allocation_fails_once)
{
    static const char *const profiles[] = {"keys", "role", "web", "sso", "instance"};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        unsigned bad = 0;
        for (long n = 0;; n++) {
            put_file(SSO_FILE, login_file);
            struct mr_http *http = mr_http_new(&(struct mr_http_options){.proxy = ""});
            ck_assert_ptr_nonnull(http);
            failed = false;
            fail_at = n;
            bool good = try_once(profiles[i], http);
            fail_at = -1;
            mr_http_destroy(http);
            ck_assert(!silent && good == well);
            if (!failed) {
                ck_assert_msg(good, "%s: %s", profiles[i], mr_error_text());
                ck_assert_int_gt(n, 10);
                break;
            }
            bad += !good;
        }
        ck_assert_uint_gt(bad, 5);
    }
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 200);
    tcase_add_test(all, every_allocation_fails_once);
    return mr_suite_run("aws_torture", all);
}
