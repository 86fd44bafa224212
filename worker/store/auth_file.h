/*
 * auth_file.h - a credentials file of Application Default Credentials, parsed. Any bytes are safe to parse.
 *
 * Fields: https://google.aip.dev/auth/4112 (service account), 4113 (user), 4117 (external account), and
 * impersonated_service_account as `gcloud auth application-default login --impersonate-service-account` writes it.
 */
#ifndef MR_WORKER_STORE_AUTH_FILE_H
#define MR_WORKER_STORE_AUTH_FILE_H

#include <stddef.h>

#define MR_AUTH_FILE_MAX      (256u << 10)
#define MR_AUTH_DELEGATES_MAX 16
#define MR_AUTH_HEADERS_MAX   6

enum mr_auth_kind {
    MR_AUTH_SERVICE_ACCOUNT,
    MR_AUTH_USER,
    MR_AUTH_EXTERNAL,
    MR_AUTH_EXTERNAL_USER,
    MR_AUTH_IMPERSONATED
};

struct mr_auth_pair {
    const char *name, *value;
};

/* Strings are NULL where the file lacks them; "" counts as lacking. They point into the text of the outermost file. */
struct mr_auth_file {
    enum mr_auth_kind kind;
    const char *type, *quota_project_id, *token_uri;
    const char *client_email, *private_key, *private_key_id; /* service_account */
    const char *client_id, *client_secret, *refresh_token;   /* ..._user; the first two: also external_account */
    const char *audience, *subject_token_type, *token_url;   /* external_account; token_url: also its user's */
    const char *workforce_pool_user_project;                 /* external_account */
    const char *impersonation_url;                           /* external_account, impersonated_service_account */
    const char *delegates[MR_AUTH_DELEGATES_MAX];            /* impersonated_service_account */
    unsigned delegate_count, lifetime_s;                     /* lifetime of the impersonated token; 0: 3600 */
    struct mr_auth_file *source;                             /* impersonated: source_credentials */
    struct {                                                 /* external_account: credential_source */
        const char *file, *url, *command, *output_file;      /* one of file, url, command, environment_id */
        const char *environment_id, *region_url, *verify_url, *imdsv2_url;
        const char *format, *format_field;
        struct mr_auth_pair headers[MR_AUTH_HEADERS_MAX];
        unsigned header_count, timeout_ms;
    } from;
    char *text; /* of the outermost file: what the strings point to; overwritten when it is closed */
    size_t text_size;
};

/* Checked: everything that its kind needs is there. Copies json. NULL with mr_error (DENIED, NO_MEMORY), which names no
 * secret. */
struct mr_auth_file *mr_auth_file_parse(const char *json, size_t length);
/* The same for a file; the error names it and the remedy. */
struct mr_auth_file *mr_auth_file_read(const char *path);
/* NULL is allowed. */
void mr_auth_file_destroy(struct mr_auth_file *file);

#endif
