/*
 * aws_credentials.h - the keys that requests to S3 are signed with, as the AWS chain finds them, and what else the
 * environment and the files of the AWS tools say: region, endpoint, CA.
 *
 * The order and the kinds: docs/credentials.md, "S3". Everything that takes time runs on the http loop (reading a small
 * file is the only blocking call). All stores of one mr_http and one profile share the keys: the first to need them
 * fetches them, the others wait; they are replaced before they expire, while requests continue with the old ones.
 *
 * Keys stay in this process: they are overwritten before their memory is freed, and a process that holds them writes no
 * core dump (PR_SET_DUMPABLE). Not thread-safe, as mr_http is not.
 */
#ifndef MR_WORKER_STORE_AWS_CREDENTIALS_H
#define MR_WORKER_STORE_AWS_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/store/auth.h"
#include "worker/store/http.h"

struct mr_aws_credentials;

/* Zero-initialised: the chain. */
struct mr_aws_options {
    bool anonymous; /* no keys */
    /* Of ~/.aws/config and ~/.aws/credentials. NULL: AWS_PROFILE, else "default". If it is given, the keys of the
     * environment are ignored, as in boto3. */
    const char *profile;
    const char *region; /* whose STS is asked for a role's keys. NULL: as in mr_aws_settings */
    bool cleartext;     /* token servers may be http:// on another machine */
};

/* The strings are valid until the next mr_http_step. */
struct mr_aws_keys {
    const char *access_key_id; /* NULL: anonymous */
    const char *secret_access_key;
    const char *session_token; /* NULL: none */
    uint64_t serial;           /* of these keys, for mr_aws_credentials_refused; 0: anonymous */
};

/* No network. NULL with mr_error: DENIED, with a remedy, if the profile does not exist or what the chain finds is
 * broken. http must outlive it. */
struct mr_aws_credentials *mr_aws_credentials_new(const struct mr_aws_options *options, struct mr_http *http);
struct mr_aws_source;
/* Credentials from one source (aws_impl.h), which they own from now on, on failure too. They are not shared. NULL with
 * mr_error. */
struct mr_aws_credentials *mr_aws_credentials_of(struct mr_aws_source *source, struct mr_http *http);
/* No waiter may be left. NULL is allowed. */
void mr_aws_credentials_destroy(struct mr_aws_credentials *credentials);

/* For people: the kind of credentials, where they were found, how long they are good. No secret. */
void mr_aws_credentials_describe(const struct mr_aws_credentials *credentials, char *out, size_t size);

/* false: there are no valid keys; call mr_aws_credentials_wait. */
bool mr_aws_credentials_get(struct mr_aws_credentials *credentials, struct mr_aws_keys *keys);
/* Starts to fetch keys unless a fetch is under way. Never calls back before it returns; waiter->ready as in auth.h. */
void mr_aws_credentials_wait(struct mr_aws_credentials *credentials, struct mr_auth_waiter *waiter);
void mr_aws_credentials_cancel(struct mr_aws_credentials *credentials, struct mr_auth_waiter *waiter);
/*
 * A server refused these keys (ExpiredToken, InvalidToken, InvalidAccessKeyId): they are not handed out again, and the
 * next wait reads the environment and the files anew. No effect if they have been replaced since. If the same keys are
 * found again, waiters get DENIED.
 */
void mr_aws_credentials_refused(struct mr_aws_credentials *credentials, uint64_t serial);

/* ---- settings ---- */

/* NULL: not set. */
struct mr_aws_settings {
    char *region;       /* AWS_REGION, AWS_DEFAULT_REGION, the profile's region */
    char *endpoint_url; /* AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's services section, its endpoint_url */
    char *ca_bundle;    /* path: AWS_CA_BUNDLE, the profile's ca_bundle */
    char *addressing;   /* the profile's s3 addressing_style */
    bool fips;          /* AWS_USE_FIPS_ENDPOINT, the profile's use_fips_endpoint */
};

/* 0, and mr_aws_settings_close must follow; -1 with mr_error: DENIED for a missing profile or a broken file. */
int mr_aws_settings_read(const struct mr_aws_options *options, struct mr_aws_settings *settings);
void mr_aws_settings_close(struct mr_aws_settings *settings);

#endif
