#include "worker/store/auth_file.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/uri.h"
#include "worker/store/auth_call.h"
#include "worker/store/json.h"

#define NESTED_MAX 3 /* source_credentials in source_credentials */

struct slot {
    const char *name;
    const char **string; /* or */
    unsigned *number;
};

struct reader {
    struct mr_json json;
    unsigned depth;
};

/* Reads a nested value: 1 if it took the value, 0 if the key is not one of its own; -1 with mr_error, or without it if
 * the JSON is bad. */
typedef int nested_fn(struct reader *reader, struct mr_auth_file *file, const char *key);

static int read_object(struct reader *reader, struct mr_auth_file *file, const struct slot *slots, size_t count,
                       nested_fn *nested);

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int wrong(const char *key, const char *what)
{
    mr_error_set(MR_E_DENIED, "its \"%s\" is not %s", key, what);
    return -1;
}

static int read_number(struct reader *reader, const struct slot *slot)
{
    const char *text;
    size_t length;
    if (mr_json_number(&reader->json, &text, &length) != 0)
        return wrong(slot->name, "a number");
    unsigned value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || value > 100000000)
            return wrong(slot->name, "a whole number");
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *slot->number = value;
    return 0;
}

/* null leaves the slot as it is; "" sets it to NULL. -1 without mr_error: bad JSON. */
static int read_slot(struct reader *reader, const struct slot *slot)
{
    enum mr_json_kind kind = mr_json_peek(&reader->json);
    if (kind == MR_JSON_WORD && *reader->json.at == 'n') /* null */
        return mr_json_skip(&reader->json);
    if (slot->number)
        return read_number(reader, slot);
    if (kind != MR_JSON_STRING)
        return kind == MR_JSON_BAD ? -1 : wrong(slot->name, "a string");
    const char *string;
    if (mr_json_string(&reader->json, &string, NULL) != 0)
        return -1;
    *slot->string = string[0] ? string : NULL;
    return 0;
}

/* Skips keys that are neither a slot's nor taken by nested, which may be NULL. -1 without mr_error: bad JSON. */
static int read_object(struct reader *reader, struct mr_auth_file *file, const struct slot *slots, size_t count,
                       nested_fn *nested)
{
    if (mr_json_enter(&reader->json) != 0)
        return -1;
    const char *key;
    int more;
    while ((more = mr_json_key(&reader->json, &key)) == 1) {
        const struct slot *slot = NULL;
        for (size_t i = 0; i < count; i++) {
            if (strcmp(slots[i].name, key) == 0)
                slot = &slots[i];
        }
        int taken = 0;
        if (slot)
            taken = read_slot(reader, slot) == 0 ? 1 : -1;
        else if (nested)
            taken = nested(reader, file, key);
        if (taken == 0)
            taken = mr_json_skip(&reader->json);
        if (taken < 0)
            return -1;
    }
    return more;
}

/* ---- nested objects ---- */

/* false with mr_error. */
static bool is_object(struct reader *reader, const char *key)
{
    if (mr_json_peek(&reader->json) == MR_JSON_OBJECT)
        return true;
    wrong(key, "an object");
    return false;
}

static int read_headers(struct reader *reader, struct mr_auth_file *file)
{
    if (mr_json_enter(&reader->json) != 0)
        return -1;
    const char *key, *value;
    int more;
    while ((more = mr_json_key(&reader->json, &key)) == 1) {
        if (mr_json_peek(&reader->json) != MR_JSON_STRING)
            return wrong("headers", "an object of strings");
        if (mr_json_string(&reader->json, &value, NULL) != 0)
            return -1;
        if (strpbrk(key, "\r\n: ") || !key[0] || strpbrk(value, "\r\n"))
            return wrong("headers", "an object of header names and values");
        if (file->from.header_count == MR_AUTH_HEADERS_MAX) {
            mr_error_set(MR_E_DENIED, "it has more than %d \"headers\"", MR_AUTH_HEADERS_MAX);
            return -1;
        }
        file->from.headers[file->from.header_count++] = (struct mr_auth_pair){key, value};
    }
    return more;
}

/* A nested_fn: the objects of credential_source. */
static int in_source(struct reader *reader, struct mr_auth_file *file, const char *key)
{
    int rc;
    if (strcmp(key, "headers") == 0) {
        if (mr_json_peek(&reader->json) != MR_JSON_OBJECT)
            return 0;
        rc = read_headers(reader, file);
    } else if (strcmp(key, "format") == 0) {
        const struct slot slots[] = {{"type", &file->from.format, NULL},
                                     {"subject_token_field_name", &file->from.format_field, NULL}};
        rc = is_object(reader, key) ? read_object(reader, file, slots, COUNT(slots), NULL) : -1;
    } else if (strcmp(key, "executable") == 0) {
        const struct slot slots[] = {{"command", &file->from.command, NULL},
                                     {"output_file", &file->from.output_file, NULL},
                                     {"timeout_millis", NULL, &file->from.timeout_ms}};
        rc = is_object(reader, key) ? read_object(reader, file, slots, COUNT(slots), NULL) : -1;
    } else {
        return 0;
    }
    return rc == 0 ? 1 : -1;
}

/* Returns as a nested_fn does: 0, and the value is skipped, if it is not a list. */
static int read_delegates(struct reader *reader, struct mr_auth_file *file)
{
    if (mr_json_peek(&reader->json) != MR_JSON_ARRAY)
        return 0;
    if (mr_json_enter(&reader->json) != 0)
        return -1;
    int more;
    while ((more = mr_json_element(&reader->json)) == 1) {
        if (mr_json_peek(&reader->json) != MR_JSON_STRING)
            return wrong("delegates", "a list of strings");
        const char *name;
        if (mr_json_string(&reader->json, &name, NULL) != 0)
            return -1;
        if (file->delegate_count == MR_AUTH_DELEGATES_MAX) {
            mr_error_set(MR_E_DENIED, "it has more than %d \"delegates\"", MR_AUTH_DELEGATES_MAX);
            return -1;
        }
        file->delegates[file->delegate_count++] = name;
    }
    return more == 0 ? 1 : -1;
}

static int read_file(struct reader *reader, struct mr_auth_file *file);

/* A nested_fn: the objects and lists of a file. Recursive: source_credentials is a file of its own. */
static int in_file(struct reader *reader, struct mr_auth_file *file, const char *key)
{
    if (strcmp(key, "delegates") == 0)
        return read_delegates(reader, file);
    if (strcmp(key, "service_account_impersonation") == 0) {
        const struct slot slots[] = {{"token_lifetime_seconds", NULL, &file->lifetime_s}};
        if (mr_json_peek(&reader->json) != MR_JSON_OBJECT)
            return 0;
        return read_object(reader, file, slots, COUNT(slots), NULL) == 0 ? 1 : -1;
    }
    if (strcmp(key, "credential_source") == 0) {
        const struct slot slots[] = {
            {"file", &file->from.file, NULL},
            {"url", &file->from.url, NULL},
            {"environment_id", &file->from.environment_id, NULL},
            {"region_url", &file->from.region_url, NULL},
            {"regional_cred_verification_url", &file->from.verify_url, NULL},
            {"imdsv2_session_token_url", &file->from.imdsv2_url, NULL},
        };
        if (!is_object(reader, key))
            return -1;
        return read_object(reader, file, slots, COUNT(slots), in_source) == 0 ? 1 : -1;
    }
    if (strcmp(key, "source_credentials") != 0)
        return 0;
    if (!is_object(reader, key))
        return -1;
    if (file->source || reader->depth == NESTED_MAX) {
        mr_error_set(MR_E_DENIED, "its \"source_credentials\" are nested too deep, or there twice");
        return -1;
    }
    file->source = calloc(1, sizeof *file->source);
    if (!file->source) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return -1;
    }
    reader->depth++;
    if (read_file(reader, file->source) != 0)
        return -1;
    reader->depth--;
    return 1;
}

static int read_file(struct reader *reader, struct mr_auth_file *file)
{
    const struct slot slots[] = {
        {"type", &file->type, NULL},
        {"quota_project_id", &file->quota_project_id, NULL},
        {"token_uri", &file->token_uri, NULL},
        {"client_email", &file->client_email, NULL},
        {"private_key", &file->private_key, NULL},
        {"private_key_id", &file->private_key_id, NULL},
        {"client_id", &file->client_id, NULL},
        {"client_secret", &file->client_secret, NULL},
        {"refresh_token", &file->refresh_token, NULL},
        {"audience", &file->audience, NULL},
        {"subject_token_type", &file->subject_token_type, NULL},
        {"token_url", &file->token_url, NULL},
        {"workforce_pool_user_project", &file->workforce_pool_user_project, NULL},
        {"service_account_impersonation_url", &file->impersonation_url, NULL},
    };
    return read_object(reader, file, slots, COUNT(slots), in_file);
}

/* ---- what each kind needs ---- */

struct need {
    const char *name, *value;
};

static int check_needs(const struct mr_auth_file *file, const struct need *needs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (needs[i].value)
            continue;
        mr_error_set(MR_E_DENIED, "it is of type %s and has no \"%s\": it is not whole; download or make it again",
                     file->type, needs[i].name);
        return -1;
    }
    return 0;
}

static int check_url(const char *name, const char *url)
{
    if (!url || ((strncmp(url, "https://", 8) == 0 || strncmp(url, "http://", 7) == 0) && !strpbrk(url, " \t\r\n")))
        return 0;
    mr_error_set(MR_E_DENIED, "its \"%s\" is not an http or https URL", name);
    return -1;
}

/* For a service that is sent a secret: a signed assertion, a refresh token. The URLs of `credential_source` may be
 * http, as those of clouds' metadata servers are. */
static int check_secret_url(const char *name, const char *url)
{
    if (check_url(name, url) != 0)
        return -1;
    if (!url || !mr_uri_is_cleartext(url))
        return 0;
    mr_error_set(MR_E_DENIED, "its \"%s\" is http:// on another machine: what is sent there could be read by others",
                 name);
    return -1;
}

static int check_external(struct mr_auth_file *file)
{
    const struct need needs[] = {
        {"audience", file->audience}, {"subject_token_type", file->subject_token_type}, {"token_url", file->token_url}};
    if (check_needs(file, needs, COUNT(needs)) != 0)
        return -1;
    int sources = (file->from.file != NULL) + (file->from.url && !file->from.environment_id) +
                  (file->from.command != NULL) + (file->from.environment_id != NULL);
    if (sources != 1) {
        mr_error_set(MR_E_DENIED, "its \"credential_source\" must have exactly one of file, url, executable, "
                                  "environment_id; make it again with gcloud iam workload-identity-pools "
                                  "create-cred-config");
        return -1;
    }
    if (file->from.environment_id) {
        const struct need aws[] = {{"regional_cred_verification_url", file->from.verify_url}};
        if (strcmp(file->from.environment_id, "aws1") != 0) {
            mr_error_set(MR_E_DENIED, "its \"environment_id\" is not aws1, the only one that there is");
            return -1;
        }
        if (check_needs(file, aws, 1) != 0)
            return -1;
    }
    const char *format = file->from.format;
    if (format && strcmp(format, "text") != 0 && strcmp(format, "json") != 0) {
        mr_error_set(MR_E_DENIED, "the format of its \"credential_source\" is neither text nor json");
        return -1;
    }
    if (format && strcmp(format, "json") == 0 && !file->from.format_field) {
        mr_error_set(MR_E_DENIED, "its \"credential_source\" has format json and no \"subject_token_field_name\"");
        return -1;
    }
    if (check_secret_url("token_url", file->token_url) || check_url("url", file->from.url) ||
        check_url("region_url", file->from.region_url) || check_url("imdsv2_session_token_url", file->from.imdsv2_url))
        return -1;
    return check_secret_url("service_account_impersonation_url", file->impersonation_url);
}

/* Also sets file->kind. Recursive: source_credentials is checked too. -1 with mr_error. */
static int check_file(struct mr_auth_file *file)
{
    const struct need service[] = {
        {"client_email", file->client_email}, {"private_key", file->private_key}, {"token_uri", file->token_uri}};
    const struct need user[] = {
        {"client_id", file->client_id}, {"client_secret", file->client_secret}, {"refresh_token", file->refresh_token}};
    const struct need external_user[] = {{"client_id", file->client_id},
                                         {"client_secret", file->client_secret},
                                         {"refresh_token", file->refresh_token},
                                         {"token_url", file->token_url}};
    const struct need impersonated[] = {{"service_account_impersonation_url", file->impersonation_url},
                                        {"source_credentials", file->source ? "" : NULL}};
    const char *type = file->type;
    if (!type) {
        mr_error_set(MR_E_DENIED,
                     "it has no \"type\": it is not a credentials file (a client secret file is not one: run "
                     "gcloud auth application-default login)");
        return -1;
    }
    if (file->quota_project_id && strpbrk(file->quota_project_id, "\r\n")) {
        mr_error_set(MR_E_DENIED, "its \"quota_project_id\" is not the name of a project");
        return -1;
    }
    if (check_secret_url("token_uri", file->token_uri) != 0)
        return -1;
    if (strcmp(type, "service_account") == 0) {
        file->kind = MR_AUTH_SERVICE_ACCOUNT;
        return check_needs(file, service, COUNT(service));
    }
    if (strcmp(type, "authorized_user") == 0) {
        file->kind = MR_AUTH_USER;
        return check_needs(file, user, COUNT(user));
    }
    if (strcmp(type, "external_account_authorized_user") == 0) {
        file->kind = MR_AUTH_EXTERNAL_USER;
        return check_needs(file, external_user, COUNT(external_user)) ? -1
                                                                      : check_secret_url("token_url", file->token_url);
    }
    if (strcmp(type, "external_account") == 0) {
        file->kind = MR_AUTH_EXTERNAL;
        return check_external(file);
    }
    if (strcmp(type, "impersonated_service_account") == 0) {
        file->kind = MR_AUTH_IMPERSONATED;
        if (check_needs(file, impersonated, COUNT(impersonated)) != 0 || !file->source ||
            check_secret_url("service_account_impersonation_url", file->impersonation_url) != 0)
            return -1;
        if (check_file(file->source) == 0)
            return 0;
        mr_error_append("source_credentials");
        return -1;
    }
    mr_error_set(MR_E_DENIED,
                 "its type \"%.40s\" is none of service_account, authorized_user, external_account, "
                 "external_account_authorized_user, impersonated_service_account",
                 type);
    return -1;
}

/* ---- life ---- */

void mr_auth_file_destroy(struct mr_auth_file *file)
{
    if (!file)
        return;
    mr_auth_file_destroy(file->source);
    if (file->text)
        OPENSSL_cleanse(file->text, file->text_size);
    free(file->text);
    free(file);
}

struct mr_auth_file *mr_auth_file_parse(const char *json, size_t length)
{
    struct reader reader = {.depth = 0};
    struct mr_auth_file *file = calloc(1, sizeof *file);
    if (file)
        file->text = malloc(length + 1);
    if (!file || !file->text) {
        free(file);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    file->text_size = length;
    memcpy(file->text, json, length);
    mr_json_init(&reader.json, file->text, length);
    mr_error_clear();
    if (read_file(&reader, file) != 0 || mr_json_finish(&reader.json) != 0) {
        if (mr_error_code() == MR_OK)
            mr_error_set(
                MR_E_DENIED, "it is not a JSON object (%s at byte %zu): it is not a credentials file, or was cut",
                reader.json.error ? reader.json.error : "no object", (size_t)(reader.json.at - reader.json.begin));
        goto fail;
    }
    if (check_file(file) != 0)
        goto fail;
    return file;
fail:
    mr_auth_file_destroy(file);
    return NULL;
}

struct mr_auth_file *mr_auth_file_read(const char *path)
{
    struct mr_auth_file *file = NULL;
    struct mr_text text = {0};
    if (mr_auth_text_read(&text, path, MR_AUTH_FILE_MAX) == 0) {
        file = mr_auth_file_parse(text.data, text.length);
        if (!file)
            mr_error_append("credentials of %s", path);
    } else if (errno == EFBIG) {
        mr_error_set(MR_E_DENIED, "%s is longer than %u bytes: it is not a credentials file", path, MR_AUTH_FILE_MAX);
    } else if (errno == ENOENT || errno == ENOTDIR) {
        mr_error_set(MR_E_DENIED,
                     "%s: there is no such file; set GOOGLE_APPLICATION_CREDENTIALS to a key file that exists, or "
                     "unset it and run gcloud auth application-default login",
                     path);
    } else {
        mr_error_set(MR_E_DENIED, "%s: %s", path, strerror(errno));
    }
    mr_auth_text_wipe(&text);
    return file;
}
