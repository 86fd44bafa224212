/* fuzz_auth_file.c - a credentials file, which anybody may have written. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "shm/base/error.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_auth_file *file = mr_auth_file_parse((const char *)data, size);
    if (file)
        check(file);
    else if (mr_error_code() != MR_E_DENIED || !mr_error_text()[0])
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
        "{\"type\":\"impersonated_service_account\",\"service_account_impersonation_url\":\"https://i\",\"delegates\":"
        "[\"d\"],\"source_credentials\":{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\","
        "\"refresh_token\":\"r\"}}",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
