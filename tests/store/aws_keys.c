/* aws_keys.c - prints the AWS keys and settings that millrace takes here, as JSON: test_aws_credentials.py compares them
 * with botocore's. Arguments: "settings" or "keys", a profile and a region; or "ini" and files, of which it prints the values. */
#include <stdio.h>
#include <string.h>

#include "worker/store/auth_call.h"
#include "worker/store/aws_credentials.h"
#include "worker/store/aws_ini.h"
#include "worker/store/text.h"

static enum mr_code result = MR_E_INTERNAL;
static char why[1024];
static bool over;

static void on_ready(struct mr_auth_waiter *waiter, enum mr_code code, const char *text)
{
    (void)waiter;
    result = code;
    snprintf(why, sizeof why, "%s", text);
    over = true;
}

static void put(struct mr_text *to, const char *key, const char *value)
{
    mr_text_puts(to, to->length ? ", " : "{");
    mr_text_put_json(to, key, strlen(key));
    mr_text_puts(to, ": ");
    if (value)
        mr_text_put_json(to, value, strlen(value));
    else
        mr_text_puts(to, "null");
}

static int put_settings(struct mr_text *to, const struct mr_aws_options *options)
{
    struct mr_aws_settings settings;
    if (mr_aws_settings_read(options, &settings) != 0)
        return -1;
    put(to, "region", settings.region);
    put(to, "endpoint_url", settings.endpoint_url);
    put(to, "ca_bundle", settings.ca_bundle);
    put(to, "addressing", settings.addressing);
    put(to, "fips", settings.fips ? "true" : NULL);
    mr_aws_settings_close(&settings);
    return 0;
}

static int put_keys(struct mr_text *to, const struct mr_aws_options *options, struct mr_http *http)
{
    struct mr_aws_credentials *credentials = mr_aws_credentials_new(options, http);
    if (!credentials)
        return -1;
    struct mr_aws_keys keys;
    struct mr_auth_waiter waiter = {.ready = on_ready};
    int rc = 0;
    if (!mr_aws_credentials_get(credentials, &keys)) {
        mr_aws_credentials_wait(credentials, &waiter);
        while (rc >= 0 && !over)
            rc = mr_http_step(http, 1000, -1);
        if (rc >= 0 && !mr_aws_credentials_get(credentials, &keys)) {
            mr_error_set(result, "%s", why);
            rc = -1;
        }
    }
    if (rc >= 0) {
        char text[700];
        mr_aws_credentials_describe(credentials, text, sizeof text);
        put(to, "access_key", keys.access_key_id);
        put(to, "secret_key", keys.secret_access_key);
        put(to, "token", keys.session_token);
        put(to, "described", text);
    }
    mr_aws_credentials_cancel(credentials, &waiter);
    mr_aws_credentials_destroy(credentials);
    return rc < 0 ? -1 : 0;
}

/* {"section/key": value} of what the tests put into files. */
static int put_ini(struct mr_text *to, const char *path)
{
    static const char *const sections[] = {"a", "b", "profile a", "profile 'x y'", " a "};
    static const char *const keys[] = {"k", "l", "m n", "s3"};
    struct mr_text text = {0};
    struct mr_aws_ini *ini = NULL;
    if (mr_auth_text_read(&text, path, 1 << 20) == 0)
        ini = mr_aws_ini_parse(text.data, text.length);
    mr_auth_text_wipe(&text);
    if (!ini)
        return -1;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        int section = mr_aws_ini_section(ini, sections[i]);
        for (size_t j = 0; section >= 0 && j < sizeof keys / sizeof *keys; j++) {
            char name[64];
            snprintf(name, sizeof name, "%s/%s", sections[i], keys[j]);
            put(to, name, mr_aws_ini_get(ini, section, keys[j], NULL));
        }
    }
    mr_aws_ini_destroy(ini);
    return 0;
}

static int print_ini(int count, char **paths)
{
    for (int i = 0; i < count; i++) {
        struct mr_text text = {0};
        int rc = put_ini(&text, paths[i]);
        printf("%s\n", rc != 0 ? "null" : text.length ? (mr_text_puts(&text, "}"), text.data) : "{}");
        mr_text_close(&text);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "ini") == 0)
        return print_ini(argc - 2, argv + 2);
    struct mr_aws_options options = {.profile = argc > 2 ? argv[2] : NULL, .region = argc > 3 ? argv[3] : NULL};
    struct mr_http *http = mr_http_new(&(struct mr_http_options){.proxy = NULL});
    struct mr_text text = {0};
    if (argc < 2 || !http)
        return 2;
    int rc = strcmp(argv[1], "settings") == 0 ? put_settings(&text, &options) : put_keys(&text, &options, http);
    if (rc != 0) {
        put(&text, "code", mr_code_name(mr_error_code()));
        put(&text, "error", mr_error_text());
    }
    printf("%s}\n", text.data);
    mr_text_close(&text);
    mr_http_destroy(http);
    return 0;
}
