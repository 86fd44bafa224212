/* aws_chain.c - which keys are used: the first found, in the order of AWS's own clients (exactly botocore's). What is
 * found but broken is an error; it is not skipped. */
#include <stdio.h>
#include <string.h>

#include "worker/store/aws_impl.h"

#define PROFILES_MAX 16 /* of a chain of roles */

struct chain {
    struct mr_http *http;
    const struct mr_aws_files *files;
    const char *visited[PROFILES_MAX]; /* profiles whose roles are being resolved */
    unsigned visited_count;
};

/* 1: *source is made; 0: there is nothing of this kind; -1 with mr_error. by_name: the profile was named by the caller
 * or by another profile, so the environment is ignored. */
typedef int finder(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                   struct mr_aws_source **source);

static int made(struct mr_aws_source *source)
{
    return source ? 1 : -1;
}

static const char *get(const struct chain *chain, const struct mr_aws_profile *profile, const char *key)
{
    return mr_aws_profile_get(chain->files, profile, key);
}

/* ---- the environment ---- */

/* Returns as a finder does. */
static int find_environment(struct chain *chain, struct mr_aws_source **source)
{
    const char *token = mr_auth_env("AWS_SECURITY_TOKEN"), *expires = mr_auth_env("AWS_CREDENTIAL_EXPIRATION");
    struct mr_aws_fixed keys = {.access_key_id = mr_auth_env("AWS_ACCESS_KEY_ID"),
                                .secret_access_key = mr_auth_env("AWS_SECRET_ACCESS_KEY"),
                                .session_token = token ? token : mr_auth_env("AWS_SESSION_TOKEN")};
    if (!keys.access_key_id)
        return 0;
    if (!keys.secret_access_key) {
        mr_error_set(MR_E_DENIED, "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not: set both, or neither");
        return -1;
    }
    if (expires && (keys.expires_s = mr_aws_parse_time(expires)) < 0) {
        mr_error_set(MR_E_DENIED, "AWS_CREDENTIAL_EXPIRATION=%.40s is not a time (2026-01-02T03:04:05Z)", expires);
        return -1;
    }
    *source = mr_aws_fixed_new(chain->http, "the environment (AWS_ACCESS_KEY_ID)", &keys);
    return made(*source);
}

/* ---- keys in a file ---- */

/* Returns as a finder does. ini may be NULL and section -1: then there is nothing. */
static int find_static(struct chain *chain, const struct mr_aws_profile *profile, const struct mr_aws_ini *ini,
                       int section, const char *path, struct mr_aws_source **source)
{
    unsigned line = 0;
    const char *id = ini && section >= 0 ? mr_aws_ini_get(ini, section, "aws_access_key_id", &line) : NULL;
    if (!id)
        return 0;
    const char *token = mr_aws_ini_get(ini, section, "aws_security_token", NULL);
    struct mr_aws_fixed keys = {.access_key_id = id,
                                .secret_access_key = mr_aws_ini_get(ini, section, "aws_secret_access_key", NULL),
                                .session_token =
                                    token ? token : mr_aws_ini_get(ini, section, "aws_session_token", NULL)};
    char origin[600];
    snprintf(origin, sizeof origin, "profile \"%.100s\" (%.400s, line %u)", profile->name, path, line);
    if (!keys.secret_access_key) {
        mr_error_set(MR_E_DENIED, "%s has aws_access_key_id and no aws_secret_access_key: add it", origin);
        return -1;
    }
    *source = mr_aws_fixed_new(chain->http, origin, &keys);
    return made(*source);
}

static int find_in_credentials(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                               struct mr_aws_source **source)
{
    (void)by_name;
    return find_static(chain, profile, chain->files->credentials, profile->in_credentials,
                       chain->files->credentials_path, source);
}

static int find_in_config(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                          struct mr_aws_source **source)
{
    (void)by_name;
    return find_static(chain, profile, chain->files->config, profile->in_config, chain->files->config_path, source);
}

/* ---- web identity ---- */

static const char *web_setting(const struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                               const char *variable, const char *key)
{
    const char *value = by_name ? NULL : mr_auth_env(variable);
    return value ? value : get(chain, profile, key);
}

static int find_web_identity(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                             struct mr_aws_source **source)
{
    struct mr_aws_role role = {
        .token_file = web_setting(chain, profile, by_name, "AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file"),
        .role_arn = web_setting(chain, profile, by_name, "AWS_ROLE_ARN", "role_arn"),
        .session_name = web_setting(chain, profile, by_name, "AWS_ROLE_SESSION_NAME", "role_session_name"),
    };
    if (!role.token_file || !role.token_file[0])
        return 0;
    char where[600], origin[1000];
    bool of_profile = by_name || !mr_auth_env("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (of_profile)
        mr_aws_profile_where(chain->files, profile, "web_identity_token_file", where, sizeof where);
    else
        snprintf(where, sizeof where, "AWS_WEB_IDENTITY_TOKEN_FILE");
    if (!role.role_arn || !role.role_arn[0]) {
        mr_error_set(MR_E_DENIED, "%s names a web identity token and there is no role for it: set %s", where,
                     of_profile ? "role_arn there" : "AWS_ROLE_ARN");
        return -1;
    }
    snprintf(origin, sizeof origin, "the role %.200s by web identity, of %s", role.role_arn, where);
    *source = mr_aws_role_new(chain->http, origin, chain->files, &role, NULL);
    return made(*source);
}

/* ---- SSO ---- */

/* The value of the profile, else of its [sso-session]; *value NULL: neither. -1 with mr_error if the two differ. */
static int sso_setting(const struct chain *chain, const struct mr_aws_profile *profile, int session, const char *key,
                       const char **value)
{
    const char *of_session = session >= 0 ? mr_aws_ini_get(chain->files->config, session, key, NULL) : NULL;
    char where[600];
    *value = get(chain, profile, key);
    if (*value && of_session && strcmp(*value, of_session) != 0) {
        mr_error_set(MR_E_DENIED, "%s: its %s is \"%.200s\" and that of its sso_session is \"%.200s\": remove one",
                     mr_aws_profile_where(chain->files, profile, key, where, sizeof where), key, *value, of_session);
        return -1;
    }
    if (!*value)
        *value = of_session;
    return 0;
}

static int find_sso(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                    struct mr_aws_source **source)
{
    (void)by_name;
    struct mr_aws_sso sso = {.profile = profile->name, .session = get(chain, profile, "sso_session")};
    if (!get(chain, profile, "sso_role_name") && !get(chain, profile, "sso_account_id"))
        return 0;
    int session = -1;
    char where[600], origin[1000];
    const struct mr_aws_ini *config = chain->files->config;
    if (sso.session && (!config || (session = mr_aws_ini_titled(config, "sso-session", sso.session)) < 0)) {
        mr_error_set(MR_E_DENIED, "%s: there is no [sso-session %.100s] in %s: run aws configure sso",
                     mr_aws_profile_where(chain->files, profile, "sso_session", where, sizeof where), sso.session,
                     chain->files->config_path);
        return -1;
    }
    const struct {
        const char *key, **value;
    } settings[] = {{"sso_role_name", &sso.role_name},
                    {"sso_account_id", &sso.account_id},
                    {"sso_start_url", &sso.start_url},
                    {"sso_region", &sso.region}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (sso_setting(chain, profile, session, settings[i].key, settings[i].value) != 0)
            return -1;
        if (!*settings[i].value || !(*settings[i].value)[0]) {
            mr_error_set(MR_E_DENIED, "%s uses SSO and has no %s: run aws configure sso",
                         mr_aws_profile_where(chain->files, profile, NULL, where, sizeof where), settings[i].key);
            return -1;
        }
    }
    mr_aws_profile_where(chain->files, profile, "sso_account_id", where, sizeof where);
    snprintf(origin, sizeof origin, "the role %.100s of account %.20s by SSO, of %s", sso.role_name, sso.account_id,
             where);
    *source = mr_aws_sso_new(chain->http, origin, chain->files, &sso);
    return made(*source);
}

/* ---- programs ---- */

/* A finder that never finds: only the aws command can renew such keys, so the profile is refused, with a way around
 * it. */
static int find_login(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                      struct mr_aws_source **source)
{
    (void)by_name;
    (void)source;
    if (!get(chain, profile, "login_session"))
        return 0;
    char where[600];
    mr_error_set(
        MR_E_DENIED,
        "%s is of aws login, whose keys the aws command alone can renew: use a profile with credential_process "
        "= aws configure export-credentials --profile %.100s --format process",
        mr_aws_profile_where(chain->files, profile, "login_session", where, sizeof where), profile->name);
    return -1;
}

static int find_process(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                        struct mr_aws_source **source)
{
    (void)by_name;
    const char *command = get(chain, profile, "credential_process");
    if (!command)
        return 0;
    char where[600], origin[700];
    mr_aws_profile_where(chain->files, profile, "credential_process", where, sizeof where);
    snprintf(origin, sizeof origin, "the credential_process of %s", where);
    *source = mr_aws_process_new(chain->http, origin, command);
    return made(*source);
}

/* Every kind that a profile can be, except a role assumed with another source's keys. */
static int find_in_profile(struct chain *chain, const struct mr_aws_profile *profile, bool by_name,
                           struct mr_aws_source **source)
{
    static finder *const finders[] = {find_web_identity, find_sso,     find_in_credentials,
                                      find_login,        find_process, find_in_config};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof finders / sizeof *finders; i++)
        rc = finders[i](chain, profile, by_name, source);
    return rc;
}

/* ---- roles ---- */

static bool has_role(const struct chain *chain, const struct mr_aws_profile *profile)
{
    return get(chain, profile, "role_arn") && !get(chain, profile, "web_identity_token_file");
}

static bool has_static(const struct chain *chain, const struct mr_aws_profile *profile)
{
    return get(chain, profile, "aws_access_key_id") || get(chain, profile, "aws_secret_access_key");
}

static struct mr_aws_source *source_of_role(struct chain *chain, const struct mr_aws_profile *profile);

/* The source that the credential_source of a role names; NULL with mr_error. */
static struct mr_aws_source *by_credential_source(struct chain *chain, const struct mr_aws_profile *profile,
                                                  const char *name)
{
    char where[600];
    struct mr_aws_source *source = NULL;
    mr_aws_profile_where(chain->files, profile, "credential_source", where, sizeof where);
    if (strcmp(name, "Environment") == 0) {
        if (find_environment(chain, &source) == 0)
            mr_error_set(MR_E_DENIED, "AWS_ACCESS_KEY_ID is not set");
    } else if (strcmp(name, "EcsContainer") == 0) {
        source = mr_aws_container_new(chain->http);
    } else if (strcmp(name, "Ec2InstanceMetadata") == 0) {
        source = mr_aws_imds_new(chain->http, chain->files);
    } else {
        mr_error_set(MR_E_DENIED, "\"%.60s\" is not one of Environment, Ec2InstanceMetadata, EcsContainer", name);
    }
    if (!source)
        mr_error_append("credential_source of %s", where);
    return source;
}

/* The source of the profile that a role's source_profile names; NULL with mr_error. Records the name in chain->visited,
 * so that a cycle of profiles is found. */
static struct mr_aws_source *by_source_profile(struct chain *chain, const struct mr_aws_profile *profile,
                                               const char *name)
{
    char where[600];
    struct mr_aws_profile other;
    mr_aws_profile_where(chain->files, profile, "source_profile", where, sizeof where);
    if (!mr_aws_profile_find(chain->files, name, &other)) {
        mr_error_set(MR_E_DENIED, "source_profile of %s: there is no profile \"%.100s\"", where, name);
        return NULL;
    }
    bool visited = false;
    for (unsigned i = 0; i < chain->visited_count; i++)
        visited = visited || strcmp(chain->visited[i], name) == 0;
    /* A profile may name itself, for keys next to its role. */
    if ((visited && (strcmp(name, profile->name) != 0 || !has_static(chain, &other))) ||
        chain->visited_count == PROFILES_MAX) {
        mr_error_set(MR_E_DENIED,
                     "source_profile of %s: the roles of \"%.100s\" and others need each other, or are "
                     "more than %d: one of them must have keys",
                     where, name, PROFILES_MAX);
        return NULL;
    }
    chain->visited[chain->visited_count++] = name;
    if (!has_static(chain, &other) && has_role(chain, &other))
        return source_of_role(chain, &other);
    struct mr_aws_source *source = NULL;
    if (find_in_profile(chain, &other, true, &source) == 0)
        mr_error_set(MR_E_DENIED, "source_profile of %s: the profile \"%.100s\" has no keys", where, name);
    return source;
}

/* 0, or -1 with mr_error. */
static int read_duration(const struct chain *chain, const struct mr_aws_profile *profile, unsigned *duration_s)
{
    const char *text = get(chain, profile, "duration_seconds");
    char where[600];
    int64_t seconds = text ? mr_aws_parse_number(text, 43200) : 0;
    if (seconds < 0) {
        mr_error_set(MR_E_DENIED, "%s: duration_seconds = \"%.40s\" is not a number from 900 to 43200",
                     mr_aws_profile_where(chain->files, profile, "duration_seconds", where, sizeof where), text);
        return -1;
    }
    *duration_s = (unsigned)seconds;
    return 0;
}

/* The profile's role, assumed with the keys of the source that it names, which may be a role itself. NULL with
 * mr_error. */
static struct mr_aws_source *source_of_role(struct chain *chain, const struct mr_aws_profile *profile)
{
    const char *from_profile = get(chain, profile, "source_profile");
    const char *from_source = get(chain, profile, "credential_source");
    struct mr_aws_role role = {.role_arn = get(chain, profile, "role_arn"),
                               .session_name = get(chain, profile, "role_session_name"),
                               .external_id = get(chain, profile, "external_id")};
    char where[600], origin[1000];
    mr_aws_profile_where(chain->files, profile, "role_arn", where, sizeof where);
    if (!from_profile == !from_source) {
        mr_error_set(MR_E_DENIED, "%s has role_arn and %s source_profile %s credential_source: it needs one of them",
                     where, from_profile ? "both" : "neither", from_profile ? "and" : "nor");
        return NULL;
    }
    if (get(chain, profile, "mfa_serial")) {
        mr_error_set(MR_E_DENIED,
                     "%s asks for a code of an MFA device (mfa_serial), and no one can enter it here: take a profile "
                     "with credential_process = aws configure export-credentials --profile %.100s --format process",
                     where, profile->name);
        return NULL;
    }
    if (read_duration(chain, profile, &role.duration_s) != 0)
        return NULL;
    struct mr_aws_source *inner = from_source ? by_credential_source(chain, profile, from_source)
                                              : by_source_profile(chain, profile, from_profile);
    if (!inner)
        return NULL;
    snprintf(origin, sizeof origin, "the role %.200s of %s", role.role_arn, where);
    return mr_aws_role_new(chain->http, origin, chain->files, &role, inner);
}

/* ---- the chain ---- */

struct mr_aws_source *mr_aws_chain(struct mr_http *http, const struct mr_aws_files *files)
{
    struct chain chain = {.http = http, .files = files, .visited = {files->profile}, .visited_count = 1};
    struct mr_aws_source *source = NULL;
    struct mr_aws_profile profile;
    if (!files->explicit && find_environment(&chain, &source) != 0)
        return source;
    if (mr_aws_profile_chosen(files, &profile) != 0)
        return NULL;
    if (has_role(&chain, &profile))
        return source_of_role(&chain, &profile);
    if (find_in_profile(&chain, &profile, files->explicit, &source) != 0)
        return source;
    if (mr_auth_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || mr_auth_env("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return mr_aws_container_new(http);
    return mr_aws_imds_new(http, files);
}
