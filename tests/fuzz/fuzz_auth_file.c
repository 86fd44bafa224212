/* fuzz_auth_file.c - a credentials file, which anybody may have written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "fuzz.h"
#include "worker/store/auth_file.h"

static void check(const struct mr_auth_file *file)
{
    if (!file->type || file->delegate_count > MR_AUTH_DELEGATES_MAX || file->from.header_count > MR_AUTH_HEADERS_MAX)
        abort();
    for (unsigned i = 0; i < file->delegate_count; i++) {
        if (!file->delegates[i])
            abort();
    }
    for (unsigned i = 0; i < file->from.header_count; i++) { /* they become header lines */
        if (strpbrk(file->from.headers[i].name, "\r\n:") || strpbrk(file->from.headers[i].value, "\r\n"))
            abort();
    }
    switch (file->kind) {
    case MR_AUTH_SERVICE_ACCOUNT:
        if (!file->client_email || !file->private_key || !file->token_uri)
            abort();
        break;
    case MR_AUTH_USER:
        if (!file->client_id || !file->client_secret || !file->refresh_token)
            abort();
        break;
    case MR_AUTH_EXTERNAL_USER:
        if (!file->client_id || !file->client_secret || !file->refresh_token || !file->token_url)
            abort();
        break;
    case MR_AUTH_EXTERNAL:
        if (!file->audience || !file->subject_token_type || !file->token_url ||
            (!file->from.file && !file->from.url && !file->from.command && !file->from.environment_id))
            abort();
        break;
    case MR_AUTH_IMPERSONATED:
        if (!file->impersonation_url || !file->source)
            abort();
        check(file->source);
        break;
    }
}

/* The same out of a file. */
static bool load(const uint8_t *data, size_t size)
{
    char path[40];
    int fd = memfd_create("credentials", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct mr_auth_file *file = mr_auth_file_read(path);
    if (!file && !strstr(mr_error_text(), path)) /* it names the file */
        abort();
    mr_auth_file_destroy(file);
    close(fd);
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool loaded = size % 8 == 0 && load(data, size);
    struct mr_auth_file *file = mr_auth_file_parse((const char *)data, size);
    if (file)
        check(file);
    else if (loaded || mr_error_code() != MR_E_DENIED || !mr_error_text()[0])
        abort();
    mr_auth_file_destroy(file);
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "{\"type\":\"service_account\",\"client_email\":\"a@b\",\"private_key\":\"-----BEGIN\\nx\",\"private_key_id\":"
        "\"1\",\"token_uri\":\"https://t\",\"quota_project_id\":\"p\"}",
        "{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\",\"refresh_token\":\"r\"}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"credential_source\":{\"url\":\"http://u\",\"headers\":{\"A\":\"b\"},\"format\":{\"type\":\"json\","
        "\"subject_token_field_name\":\"f\"}}}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"credential_source\":{\"executable\":{\"command\":\"c d\",\"timeout_millis\":5000,\"output_file\":null}}}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"service_account_impersonation\":{\"token_lifetime_seconds\":1800},\"credential_source\":{\"environment_id\":"
        "\"aws1\",\"regional_cred_verification_url\":\"https://sts.{region}.amazonaws.com?A=b\"}}",
        "{\"type\":1}",
        "{\"client_id\":\"i\"}",
        "{\"type\":\"nothing\"}",
        "{\"type\":\"authorized_user\",\"client_id\":\"i\",\"quota_project_id\":\"a b\\n\"}",
        "{\"type\":\"service_account\",\"client_email\":\"a@b\",\"private_key\":\"k\",\"token_uri\":\"http://"
        "far.example/\"}",
        "{\"type\":\"service_account\",\"client_email\":\"a@b\",\"private_key\":\"k\",\"token_uri\":\"ftp://t\"}",
        "{\"type\":\"external_account\",\"credential_source\":1}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"credential_source\":{\"environment_id\":\"aws2\"}}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"credential_source\":{\"file\":\"f\",\"format\":{\"type\":\"xml\"}}}",
        "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\",\"token_url\":\"https://s\","
        "\"credential_source\":{\"file\":\"f\",\"format\":{\"type\":\"json\"}}}",
        "{\"type\":\"external_account\",\"credential_source\":{\"headers\":{\"a:\":\"b\"},\"url\":\"u\"}}",
        "{\"type\":\"external_account\",\"credential_source\":{\"headers\":[1],\"url\":\"u\"}}",
        "{\"type\":\"external_account\",\"credential_source\":{\"headers\":{\"a\":1},\"url\":\"u\"}}",
        "{\"type\":\"external_account\",\"credential_source\":{\"executable\":{\"timeout_millis\":\"5\"}}}",
        "{\"type\":\"external_account\",\"credential_source\":{\"executable\":{\"timeout_millis\":5.5}}}",
        "{\"type\":\"impersonated_service_account\",\"delegates\":1}",
        "{\"type\":\"impersonated_service_account\",\"delegates\":[1]}",
        "{\"type\":\"impersonated_service_account\",\"source_credentials\":{},\"source_credentials\":{}}",
        "{\"type\":\"impersonated_service_account\",\"source_credentials\":1}",
        "{\"type\":\"impersonated_service_account\",\"service_account_impersonation_url\":\"https://i\",\"delegates\":"
        "[\"d\"],\"source_credentials\":{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\","
        "\"refresh_token\":\"r\"}}",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
