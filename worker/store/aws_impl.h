/* aws_impl.h - what the sources of AWS keys have in common. Only worker/store/aws_*.c and s3_express.c include it. */
#ifndef MR_WORKER_STORE_AWS_IMPL_H
#define MR_WORKER_STORE_AWS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/store/auth_call.h"
#include "worker/store/aws_credentials.h"
#include "worker/store/aws_ini.h"
#include "worker/store/http.h"
#include "worker/store/text.h"

/* ---- the two files of the AWS tools ---- */

struct mr_aws_files {
    struct mr_aws_ini *config, *credentials; /* NULL: the file does not exist */
    char *config_path, *credentials_path;
    const char *profile; /* the one to use */
    bool chosen;         /* by name, by AWS_PROFILE or the caller: then it must exist */
    bool explicit;       /* by the caller */
    const char *region;  /* the caller's; NULL: none */
    bool cleartext;
    char unread[200]; /* why a file at its default place is left out; "" */
};

struct mr_aws_profile {
    const char *name;
    int in_config, in_credentials; /* section numbers; -1 */
};

/* 0, and mr_aws_files_close must follow; -1 with mr_error. */
int mr_aws_files_read(struct mr_aws_files *files, const struct mr_aws_options *options);
void mr_aws_files_close(struct mr_aws_files *files);
/* false: the profile does not exist; it can still be used, and has no values. */
bool mr_aws_profile_find(const struct mr_aws_files *files, const char *name, struct mr_aws_profile *profile);
/* -1 with mr_error: the profile was chosen by name and does not exist. */
int mr_aws_profile_chosen(const struct mr_aws_files *files, struct mr_aws_profile *profile);
/* The value in the credentials file, else in the config file; NULL if there is none. */
const char *mr_aws_profile_get(const struct mr_aws_files *files, const struct mr_aws_profile *profile, const char *key);
/* `profile "x" (PATH, line 7)`, for messages about key; NULL: about the profile. Returns out. */
const char *mr_aws_profile_where(const struct mr_aws_files *files, const struct mr_aws_profile *profile,
                                 const char *key, char *out, size_t size);

/* The URL that the environment or the profile gives for a service ("s3", "sts", "sso", "sso_oidc"), as AWS's own
 * clients look for it, for the caller to free; *url NULL: none. 0, or -1 with mr_error. */
int mr_aws_endpoint(const struct mr_aws_files *files, const char *service, char **url);
/* The same for a service that receives or returns secrets, with a default: clear text is refused. */
int mr_aws_secret_endpoint(const struct mr_aws_files *files, const char *service, const char *otherwise, char **url);
/* The caller's, else that of the environment or the profile. NULL: none is set. */
const char *mr_aws_region(const struct mr_aws_files *files);
/* path with a leading ~ replaced, for the caller to free; NULL with mr_error. */
char *mr_aws_path(const char *path);
/* "true", in any case. */
bool mr_aws_is_true(const char *text);

/* ---- a source of keys ---- */

struct mr_aws_found {
    enum mr_code code;
    const char *text; /* why there are none; "" for MR_OK */
    /* Valid until the callback returns; checked. session_token may be NULL. */
    const char *access_key_id, *secret_access_key, *session_token;
    int64_t expires_s; /* since 1970; 0: they do not expire */
};

struct mr_aws_source {
    const struct mr_aws_source_ops *ops;
    struct mr_http *http;
    char *origin; /* for people */
    /* Once per start, from mr_http_step. Must not destroy anything. */
    void (*done)(void *arg, const struct mr_aws_found *found);
    void *arg;
};

struct mr_aws_source_ops {
    /* 0, and done follows, or -1 with mr_error. One at a time. */
    int (*start)(struct mr_aws_source *source);
    void (*cancel)(struct mr_aws_source *source); /* also when nothing is under way; overwrites secrets */
    void (*destroy)(struct mr_aws_source *source);
};

/* All return NULL with mr_error. Their arguments are copied, except sources, which are destroyed with them, on failure
 * too. origin: text for people. */

/* Of the given size, zeroed but for its mr_aws_source, which is its first member. */
void *mr_aws_source_make(size_t size, const struct mr_aws_source_ops *ops, struct mr_http *http, const char *origin);
/* For destroy: frees it and its origin. */
void mr_aws_source_free(struct mr_aws_source *source);
void mr_aws_source_destroy(struct mr_aws_source *source); /* NULL is allowed */

struct mr_aws_fixed {
    const char *access_key_id, *secret_access_key, *session_token;
    int64_t expires_s;
};
/* Keys that are known already. */
struct mr_aws_source *mr_aws_fixed_new(struct mr_http *http, const char *origin, const struct mr_aws_fixed *fixed);

struct mr_aws_role {
    const char *role_arn, *session_name, *external_id; /* the last two may be NULL */
    unsigned duration_s;                               /* 0: the server's own */
    const char *token_file;                            /* web identity; NULL: signed by the keys of another source */
};
/* By AssumeRole, or AssumeRoleWithWebIdentity, at the STS of the region. inner: NULL for web identity. */
struct mr_aws_source *mr_aws_role_new(struct mr_http *http, const char *origin, const struct mr_aws_files *files,
                                      const struct mr_aws_role *role, struct mr_aws_source *inner);

struct mr_aws_sso {
    const char *session, *start_url, *region, *account_id, *role_name; /* session: NULL for the older form */
    const char *profile;
};
struct mr_aws_source *mr_aws_sso_new(struct mr_http *http, const char *origin, const struct mr_aws_files *files,
                                     const struct mr_aws_sso *sso);
struct mr_aws_source *mr_aws_process_new(struct mr_http *http, const char *origin, const char *command);
/* Of AWS_CONTAINER_CREDENTIALS_*. */
struct mr_aws_source *mr_aws_container_new(struct mr_http *http);
/* Of the EC2 instance. */
struct mr_aws_source *mr_aws_imds_new(struct mr_http *http, const struct mr_aws_files *files);

/* The first source that the chain finds; NULL with mr_error. */
struct mr_aws_source *mr_aws_chain(struct mr_http *http, const struct mr_aws_files *files);

/* ---- answers ---- */

/* Report to source->done: mr_error, or keys, which are checked here: no spaces or control bytes, not expired. */
void mr_aws_fail(struct mr_aws_source *source);
void mr_aws_give(struct mr_aws_source *source, const struct mr_aws_found *found);
/* The members AccessKeyId, SecretAccessKey, `token`, Expiration of a JSON text, which is overwritten. what: their
 * origin, for messages. 0, or -1 with mr_error. */
int mr_aws_found_in_json(struct mr_aws_found *found, char *text, size_t length, const char *token, const char *what);
/* "2026-01-02T03:04:05Z", with a fraction, an offset or "UTC" in place of the Z. Seconds since 1970; -1: it is not
 * one. */
int64_t mr_aws_parse_time(const char *text);
/* A number that is no more than max, or -1. */
int64_t mr_aws_parse_number(const char *text, int64_t max);

#endif
