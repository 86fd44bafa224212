/* aws_files.c - the files of the AWS tools: their places, profiles, and the settings in them and in the environment. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/uri.h"
#include "worker/store/aws_impl.h"

#define FILE_MAX (1u << 20)

bool mr_aws_is_true(const char *text)
{
    return text && strcasecmp(text, "true") == 0;
}

char *mr_aws_path(const char *path)
{
    struct mr_text text = {0};
    bool at_home = path[0] == '~' && (path[1] == '/' || !path[1]);
    if (at_home)
        mr_text_puts(&text, mr_auth_home());
    mr_text_puts(&text, path + at_home);
    if (!text.failed)
        return text.data;
    mr_text_close(&text);
    mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
    return NULL;
}

/* ---- reading ---- */

/* A file that does not exist is no error: *ini stays NULL. Nor is one at the default place that is not ours to read, as
 * in a container whose HOME is another user's. *path is set even then, and on failure; the caller frees it. */
static int read_one(struct mr_aws_files *files, struct mr_aws_ini **ini, char **path, const char *variable,
                    const char *otherwise)
{
    *path = mr_aws_path(mr_auth_env(variable) ? mr_auth_env(variable) : otherwise);
    if (!*path)
        return -1;
    struct mr_text text = {0};
    int rc = mr_auth_text_read(&text, *path, FILE_MAX);
    if (rc == 0) {
        *ini = mr_aws_ini_parse(text.data, text.length);
        rc = *ini ? 0 : -1;
        if (!*ini)
            mr_error_append("%s", *path);
    } else if (errno == ENOENT || errno == ENOTDIR) {
        rc = 0; /* as AWS's own clients do: the chain continues */
    } else if (!mr_auth_env(variable) && (errno == EACCES || errno == EPERM || errno == EISDIR)) {
        rc = 0; /* the same; said where no credentials are found */
        snprintf(files->unread, sizeof files->unread, "%.140s cannot be read: %s", *path, strerror(errno));
    } else {
        mr_error_set(MR_E_DENIED, "%s cannot be read: %s; correct its mode, or %s", *path, strerror(errno), variable);
    }
    mr_auth_text_wipe(&text);
    return rc;
}

int mr_aws_files_read(struct mr_aws_files *files, const struct mr_aws_options *options)
{
    const char *variable = mr_auth_env("AWS_DEFAULT_PROFILE"); /* as in botocore: the older name comes first */
    if (!variable)
        variable = mr_auth_env("AWS_PROFILE");
    const char *profile = options->profile && options->profile[0] ? options->profile : variable;
    *files = (struct mr_aws_files){.profile = profile ? profile : "default",
                                   .chosen = profile != NULL,
                                   .explicit = profile && profile != variable,
                                   .region = options->region && options->region[0] ? options->region : NULL,
                                   .cleartext = options->cleartext};
    if (read_one(files, &files->config, &files->config_path, "AWS_CONFIG_FILE", "~/.aws/config") == 0 &&
        read_one(files, &files->credentials, &files->credentials_path, "AWS_SHARED_CREDENTIALS_FILE",
                 "~/.aws/credentials") == 0)
        return 0;
    mr_aws_files_close(files);
    return -1;
}

void mr_aws_files_close(struct mr_aws_files *files)
{
    mr_aws_ini_destroy(files->config);
    mr_aws_ini_destroy(files->credentials);
    free(files->config_path);
    free(files->credentials_path);
    *files = (struct mr_aws_files){0};
}

/* ---- profiles ---- */

bool mr_aws_profile_find(const struct mr_aws_files *files, const char *name, struct mr_aws_profile *profile)
{
    *profile = (struct mr_aws_profile){
        .name = name,
        .in_config = files->config ? mr_aws_ini_titled(files->config, "profile", name) : -1,
        .in_credentials = files->credentials ? mr_aws_ini_section(files->credentials, name) : -1,
    };
    return profile->in_config >= 0 || profile->in_credentials >= 0;
}

int mr_aws_profile_chosen(const struct mr_aws_files *files, struct mr_aws_profile *profile)
{
    if (mr_aws_profile_find(files, files->profile, profile) || !files->chosen)
        return 0;
    mr_error_set(MR_E_DENIED,
                 "there is no profile \"%.100s\" in %s ([profile %.100s]) or %s ([%.100s]): correct %s, or run aws "
                 "configure --profile %.100s",
                 profile->name, files->config_path, profile->name, files->credentials_path, profile->name,
                 files->explicit                      ? "the configured profile"
                 : mr_auth_env("AWS_DEFAULT_PROFILE") ? "AWS_DEFAULT_PROFILE"
                                                      : "AWS_PROFILE",
                 profile->name);
    if (files->unread[0])
        mr_error_append("%s", files->unread);
    return -1;
}

const char *mr_aws_profile_get(const struct mr_aws_files *files, const struct mr_aws_profile *profile, const char *key)
{
    const char *value = NULL;
    if (profile->in_credentials >= 0)
        value = mr_aws_ini_get(files->credentials, profile->in_credentials, key, NULL);
    if (!value && profile->in_config >= 0)
        value = mr_aws_ini_get(files->config, profile->in_config, key, NULL);
    return value;
}

const char *mr_aws_profile_where(const struct mr_aws_files *files, const struct mr_aws_profile *profile,
                                 const char *key, char *out, size_t size)
{
    unsigned line = 0;
    const char *path = files->config_path;
    if (key && profile->in_credentials >= 0 && mr_aws_ini_get(files->credentials, profile->in_credentials, key, &line))
        path = files->credentials_path;
    else if (key && profile->in_config >= 0 && mr_aws_ini_get(files->config, profile->in_config, key, &line))
        path = files->config_path;
    else if (profile->in_config >= 0)
        line = mr_aws_ini_line(files->config, profile->in_config);
    else if (profile->in_credentials >= 0) {
        path = files->credentials_path;
        line = mr_aws_ini_line(files->credentials, profile->in_credentials);
    }
    snprintf(out, size, "profile \"%.100s\" (%.400s, line %u)", profile->name, path, line);
    return out;
}

/* ---- settings ---- */

/* NULL and "" become NULL. -1 with mr_error. */
static int aws_files_copy(char **to, const char *from)
{
    if (mr_text_dup(to, from && from[0] ? from : NULL) == 0)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for the settings of S3");
    return -1;
}

const char *mr_aws_region(const struct mr_aws_files *files)
{
    const char *region = files->region ? files->region : mr_auth_env("AWS_REGION");
    if (!region)
        region = mr_auth_env("AWS_DEFAULT_REGION");
    struct mr_aws_profile profile;
    if (!region && mr_aws_profile_find(files, files->profile, &profile))
        region = mr_aws_profile_get(files, &profile, "region");
    return region && region[0] ? region : NULL;
}

/* The value of a key in nested lines (NULL: none); *to stays NULL if there is none. 0, or -1 with mr_error. */
static int copy_nested(char **to, const char *lines, const char *key)
{
    size_t length = 0;
    const char *found = lines ? mr_aws_ini_nested(lines, key, &length) : NULL;
    if (!found || length == 0)
        return 0;
    *to = strndup(found, length);
    if (*to)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for the settings of S3");
    return -1;
}

/* The endpoint_url that [services NAME] has for a service; *url stays NULL if there is none. 0, or -1 with mr_error. */
static int services_endpoint(const struct mr_aws_files *files, const struct mr_aws_profile *profile,
                             const char *service, char **url)
{
    const char *name = mr_aws_profile_get(files, profile, "services");
    if (!name)
        return 0;
    int section = files->config ? mr_aws_ini_titled(files->config, "services", name) : -1;
    if (section < 0) {
        char where[600];
        mr_error_set(MR_E_DENIED, "%s: there is no [services %.100s] in %s: add it, or remove the line",
                     mr_aws_profile_where(files, profile, "services", where, sizeof where), name, files->config_path);
        return -1;
    }
    return copy_nested(url, mr_aws_ini_get(files->config, section, service, NULL), "endpoint_url");
}

int mr_aws_endpoint(const struct mr_aws_files *files, const char *service, char **url)
{
    *url = NULL;
    char variable[64] = "AWS_ENDPOINT_URL_";
    size_t at = strlen(variable);
    for (const char *c = service; *c && at + 1 < sizeof variable; c++)
        variable[at++] = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    variable[at] = 0;
    struct mr_aws_profile profile;
    bool there = mr_aws_profile_find(files, files->profile, &profile);
    if (mr_aws_is_true(mr_auth_env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")))
        return 0;
    if (!mr_auth_env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") && there &&
        mr_aws_is_true(mr_aws_profile_get(files, &profile, "ignore_configured_endpoint_urls")))
        return 0;
    if (mr_auth_env(variable))
        return aws_files_copy(url, mr_auth_env(variable));
    if (mr_auth_env("AWS_ENDPOINT_URL"))
        return aws_files_copy(url, mr_auth_env("AWS_ENDPOINT_URL"));
    if (!there)
        return 0;
    if (services_endpoint(files, &profile, service, url) != 0 || *url)
        return *url ? 0 : -1;
    return aws_files_copy(url, mr_aws_profile_get(files, &profile, "endpoint_url"));
}

int mr_aws_secret_endpoint(const struct mr_aws_files *files, const char *service, const char *otherwise, char **url)
{
    if (mr_aws_endpoint(files, service, url) != 0)
        return -1;
    if (!*url && aws_files_copy(url, otherwise) != 0)
        return -1;
    size_t length = strlen(*url);
    while (length > 0 && (*url)[length - 1] == '/')
        (*url)[--length] = 0;
    if ((strncmp(*url, "https://", 8) != 0 && strncmp(*url, "http://", 7) != 0) || strpbrk(*url, " \t\r\n?#"))
        mr_error_set(MR_E_DENIED, "the endpoint of %s, \"%.200s\", is not an http or https URL: correct it", service,
                     *url);
    else if (!files->cleartext && mr_uri_is_cleartext(*url))
        mr_error_set(MR_E_DENIED,
                     "the endpoint of %s, \"%.200s\", is http:// on another machine: its answers hold keys, which "
                     "others could read; use https://, or s3.cleartext_credentials = \"allow\"",
                     service, *url);
    else
        return 0;
    free(*url);
    *url = NULL;
    return -1;
}

int mr_aws_settings_read(const struct mr_aws_options *options, struct mr_aws_settings *settings)
{
    *settings = (struct mr_aws_settings){0};
    struct mr_aws_files files;
    if (mr_aws_files_read(&files, options) != 0)
        return -1;
    struct mr_aws_profile profile;
    const char *bundle = mr_auth_env("AWS_CA_BUNDLE");
    int rc = mr_aws_profile_chosen(&files, &profile);
    if (rc == 0 && !bundle)
        bundle = mr_aws_profile_get(&files, &profile, "ca_bundle");
    if (rc == 0)
        rc = mr_aws_endpoint(&files, "s3", &settings->endpoint_url);
    if (rc == 0)
        rc = aws_files_copy(&settings->region, mr_aws_region(&files));
    if (rc == 0 && bundle && bundle[0]) {
        settings->ca_bundle = mr_aws_path(bundle);
        rc = settings->ca_bundle ? 0 : -1;
    }
    if (rc == 0)
        rc = copy_nested(&settings->addressing, mr_aws_profile_get(&files, &profile, "s3"), "addressing_style");
    const char *fips = mr_auth_env("AWS_USE_FIPS_ENDPOINT");
    if (rc == 0)
        settings->fips = mr_aws_is_true(fips ? fips : mr_aws_profile_get(&files, &profile, "use_fips_endpoint"));
    mr_aws_files_close(&files);
    if (rc != 0)
        mr_aws_settings_close(settings);
    return rc;
}

void mr_aws_settings_close(struct mr_aws_settings *settings)
{
    free(settings->region);
    free(settings->endpoint_url);
    free(settings->ca_bundle);
    free(settings->addressing);
    *settings = (struct mr_aws_settings){0};
}
